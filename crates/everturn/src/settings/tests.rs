//! Layering, lines, and the table against its page.

use super::*;

fn load(flags: &Flags, env: &[(&str, &str)]) -> Result<Settings> {
    let env = |name: &str| {
        env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Settings::load(flags, &env)
}

/// docs/configuration.md has one row per setting, in the order of the table, and says the same.
#[test]
fn the_page_of_settings_and_the_code_agree() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .skip_while(|line| *line != "## All settings")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let code = |text: &str| format!("`{text}`");
    let expected: Vec<Vec<String>> = TABLE
        .iter()
        .map(|row| {
            let default = match row.default {
                Some("") => "empty".to_owned(),
                Some(default) => code(default),
                None => "see right".to_owned(),
            };
            vec![
                code(row.key),
                code(&row.env()),
                row.flag.map(code).unwrap_or_default(),
                default,
                row.about.to_owned(),
            ]
        })
        .collect();
    for (at, expected) in expected.iter().enumerate() {
        let line = format!("| {} |", expected.join(" | "));
        assert_eq!(rows.get(at).map(|row| row.join(" | ")), Some(expected.join(" | ")), "\n{line}");
    }
    assert_eq!(rows.len(), expected.len(), "rows that are no settings");
}

#[test]
fn variables_are_named_after_their_keys() {
    let env = |key: &str| TABLE.iter().find(|row| row.key == key).unwrap().env();
    assert_eq!(env("limits.queue"), "EVERTURN_LIMITS_QUEUE");
    assert_eq!(env("model"), "EVERTURN_MODEL");
}

#[test]
fn every_default_is_a_value_that_would_be_accepted() {
    let settings = load(&Flags::default(), &[("HOME", "/nobody")]).unwrap();
    assert_eq!(settings.lease_s.value.seconds().as_secs(), 30);
    assert_eq!(settings.home.value, PathBuf::from("/nobody/.local/share/everturn"));
    assert_eq!(settings.rows().len(), TABLE.len());
}

#[test]
fn a_flag_beats_a_variable_beats_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    std::fs::write(&file, "model = \"a/file\"\nhome = \"/from/file\"\n").unwrap();
    let mut flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let settings = load(&flags, &[]).unwrap();
    assert_eq!(settings.model.value.as_deref(), Some("a/file"));
    assert_eq!(settings.model.source, Source::File { path: file.clone(), line: 1 });
    assert_eq!(settings.home.value, PathBuf::from("/from/file"));
    let env = [("EVERTURN_MODEL", "a/env"), ("EVERTURN_HOME", "/from/env")];
    let settings = load(&flags, &env).unwrap();
    assert_eq!(settings.model.value.as_deref(), Some("a/env"));
    assert_eq!(settings.home.value, PathBuf::from("/from/env"));
    flags.set("model", Some("a/flag"));
    let settings = load(&flags, &env).unwrap();
    assert_eq!(settings.model.value.as_deref(), Some("a/flag"));
    assert_eq!(settings.model.source, Source::Flag("--model"));
}

#[test]
fn unknown_variables_are_found_and_ours_are_not() {
    let names =
        ["EVERTURN_HOME", "EVERTURN_LIMITS_QUEUE", "EVERTURN_LONG", "EVERTURN_MODLE", "PATH"];
    let unknown = unknown_variables(names.iter().map(|name| (*name).to_owned()));
    assert_eq!(unknown, ["EVERTURN_MODLE"]);
}

#[test]
fn misspelt_keys_are_guessed() {
    assert_eq!(file::nearest("limits.qeue"), Some("limits.queue"));
    assert_eq!(file::nearest("fsync"), Some("journal.fsync"));
    assert_eq!(file::nearest("zzz"), None);
}
