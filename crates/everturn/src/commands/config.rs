//! `everturn config`: every setting and where it came from.

use serde::Serialize;

use crate::error::Result;
use crate::exit::Exit;
use crate::settings::{Settings, Source, unknown_variables};
use crate::{print, table};

#[derive(Serialize)]
struct Shown<'a> {
    key: &'a str,
    value: &'a str,
    source: String,
    env: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    flag: Option<&'a str>,
    about: &'a str,
}

/// `config show`
pub(crate) fn show(settings: &Settings, json: bool, only_set: bool) -> Result<Exit> {
    let rows = settings.rows();
    let rows = rows.iter().filter(|(_, _, source)| !only_set || **source != Source::Default);
    if json {
        let shown: Vec<_> = rows
            .map(|(row, value, source)| Shown {
                key: row.key,
                value,
                source: source.to_string(),
                env: row.env(),
                flag: row.flag,
                about: row.about,
            })
            .collect();
        print::json(&shown)?;
    } else {
        let cells: Vec<_> = rows
            .map(|(row, value, source)| {
                let value = if value.is_empty() { "-" } else { value.as_str() };
                vec![row.key.to_owned(), value.to_owned(), source.to_string()]
            })
            .collect();
        print::text(&table::columns(&["SETTING", "VALUE", "FROM"], &cells))?;
        match &settings.file {
            Some(path) => tracing::info!(path = %path.display(), "the file that was read"),
            None => tracing::info!("no file was read"),
        }
    }
    for name in unknown_variables(std::env::vars().map(|(name, _)| name)) {
        tracing::warn!(name, "this variable is no setting; docs/configuration.md lists all");
    }
    Ok(Exit::Completed)
}
