//! Reading the settings' file: every value with the line that it stands on, everything unknown
//! refused.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::kinds::Form;
use super::{Row, TABLE};
use crate::error::{CliError, Fault, Result};

/// Bytes of a settings' file that are read; no honest one is larger.
const BYTES_MAX: u64 = 1 << 20;

/// What a file says: key → (value as text, line).
pub(super) type Said = BTreeMap<&'static str, (String, usize)>;

/// Reads and checks a file. The values themselves are checked where they are used, with the line.
pub(super) fn read(path: &Path) -> Result<Said> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::new(Fault::Config, format!("cannot read {}: {error}", path.display()))
            .hint("--config FILE or EVERTURN_CONFIG names it; with neither, it is config.toml in the home, if that is there")
    };
    let size = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
    if size > BYTES_MAX {
        return Err(failed(&format_args!("it has {size} bytes, more than {BYTES_MAX}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    parse(path, &text)
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Said> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        at(path, line, error.message())
    })?;
    let mut said = Said::new();
    walk(path, text, "", table.get_ref(), &mut said)?;
    Ok(said)
}

fn walk(path: &Path, text: &str, prefix: &str, table: &DeTable<'_>, said: &mut Said) -> Result<()> {
    for (name, value) in table {
        let line = line_of(text, name.span().start);
        let key = match prefix {
            "" => name.get_ref().to_string(),
            prefix => format!("{prefix}.{}", name.get_ref()),
        };
        if let Some(row) = TABLE.iter().find(|row| row.key == key) {
            said.insert(row.key, (as_text(path, line, row, value)?, line));
        } else if let (DeValue::Table(inner), true) = (value.get_ref(), is_group(&key)) {
            walk(path, text, &key, inner, said)?;
        } else {
            if is_group(&key) {
                let what = format!("{key} is a group of settings, not one");
                return Err(at(path, line, &what)
                    .hint(format!("write [{key}] and below it the settings of the group")));
            }
            let error = at(path, line, &format!("there is no setting named {key:?}"));
            return Err(match nearest(&key) {
                Some(near) => error.hint(format!("did you mean {near}?")),
                None => error.hint("docs/configuration.md lists all settings"),
            });
        }
    }
    Ok(())
}

fn is_group(key: &str) -> bool {
    TABLE.iter().any(|row| row.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
}

fn as_text(path: &Path, line: usize, row: &Row, value: &Spanned<DeValue<'_>>) -> Result<String> {
    let wrong = |found: &str| {
        at(path, line, &format!("{} must be {}, not {found}", row.key, (row.expects)()))
    };
    match (row.form, value.get_ref()) {
        (Form::Text, DeValue::String(text)) => Ok(text.to_string()),
        (Form::Number, DeValue::Integer(number)) if number.radix() == 10 => {
            Ok(number.as_str().to_owned())
        }
        (Form::List, DeValue::Array(items)) => {
            let mut names = Vec::new();
            for item in items.iter() {
                match item.get_ref() {
                    DeValue::String(name) if !name.contains(',') => names.push(name.to_string()),
                    DeValue::String(_) => return Err(wrong("a name with a comma")),
                    other => return Err(wrong(&format!("a list with {}", article(other)))),
                }
            }
            Ok(names.join(","))
        }
        (_, other) => Err(wrong(&article(other))),
    }
}

fn article(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(_) => "a text".to_owned(),
        DeValue::Integer(_) => "a number".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        other => format!("a {}", other.type_str()),
    }
}

/// The setting whose name is closest to a misspelt one.
pub(super) fn nearest(key: &str) -> Option<&'static str> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let score = |row: &Row| {
        strsim::jaro_winkler(row.key, key).max(strsim::jaro_winkler(&last(row.key), &last(key)))
    };
    let best = TABLE.iter().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(best) > 0.8).then_some(best.key)
}

fn at(path: &Path, line: usize, what: &str) -> CliError {
    CliError::new(Fault::Config, format!("{}:{line}: {what}", path.display()))
}

fn line_of(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|byte| *byte == b'\n').count()
}
