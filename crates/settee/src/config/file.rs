//! Reads the settings file. Errors name the line, the key and the table.
//!
//! Only the message of a TOML error is kept: its full text quotes a line of the file, which may contain the
//! password.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::limits::Value;
use super::retired;
use super::settings::{self, Kind, Origin, Setting, Settings, TABLES};
use crate::secret;

/// Largest settings file or ini file in bytes.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<String, String> {
    read_with_metadata(path).map(|(text, _)| text)
}

fn read_with_metadata(path: &Path) -> Result<(String, Metadata), String> {
    let problem = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let file = File::open(path).map_err(|error| problem(&error))?;
    let metadata = file.metadata().map_err(|error| problem(&error))?;
    let mut text = String::new();
    let size = file.take(FILE_SIZE_MAX + 1).read_to_string(&mut text).map_err(|error| problem(&error))?;
    match size as u64 > FILE_SIZE_MAX {
        true => Err(problem(&format!("it is larger than {FILE_SIZE_MAX} bytes"))),
        false => Ok((text, metadata)),
    }
}

/// Reads the settings of a file. A file with a password that other users can read is refused.
pub(super) fn settings(path: &Path) -> Result<Settings, String> {
    let (text, metadata) = read_with_metadata(path)?;
    let settings = parse(&text, path).map_err(|error| format!("{}: {error}", path.display()))?;
    if settings.has("admin") {
        secret::check_permissions(path, &metadata)?;
    }
    Ok(settings)
}

/// Parses the text of the settings file at `path`.
pub(super) fn parse(text: &str, path: &Path) -> Result<Settings, String> {
    let at_line = |offset: usize, message: &str| {
        let line = 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
        format!("line {line}: {message}")
    };
    let tables = DeTable::parse(text)
        .map_err(|error| at_line(error.span().map_or(0, |span| span.start), error.message()))?;
    let mut settings = Settings::default();
    let mut read = |table: &str, key: &str, value: &Spanned<DeValue<'_>>| {
        let read = setting(table, key)
            .and_then(|setting| Ok((setting.name, parse_value(setting, value.get_ref())?)));
        let (name, value) = read.map_err(|error| at_line(value.span().start, &error))?;
        settings.insert(name, value, Origin::File(path.to_owned()));
        Ok::<_, String>(())
    };
    for (table, value) in tables.get_ref() {
        match value.get_ref() {
            DeValue::Table(keys) if is_table(table.get_ref()) => {
                keys.iter().try_for_each(|(key, value)| read(table.get_ref(), key.get_ref(), value))?;
            }
            _ => read("", table.get_ref(), value)?,
        }
    }
    Ok(settings)
}

/// Whether a table has settings, or had them: a file with an empty former table is valid.
fn is_table(name: &str) -> bool {
    TABLES.iter().any(|(table, _)| *table == name && !name.is_empty()) || name == retired::TABLE
}

/// Returns the setting `key` of a table.
fn setting(table: &str, key: &str) -> Result<&'static Setting, String> {
    let position = match table {
        "" => "before the first table".to_owned(),
        table => format!("in [{table}]"),
    };
    match settings::find(key) {
        Some(setting) if setting.table == table => Ok(setting),
        Some(Setting { table: "", .. }) => {
            Err(format!("unknown key `{key}` {position}; it belongs before the first table"))
        }
        Some(Setting { table, .. }) => {
            Err(format!("unknown key `{key}` {position}; it belongs in [{table}]"))
        }
        None => Err(retired::message(key).unwrap_or_else(|| format!("unknown key `{key}` {position}"))),
    }
}

fn parse_value(setting: &Setting, value: &DeValue<'_>) -> Result<Value, String> {
    let parsed = match (&setting.kind, value) {
        (Kind::Text { .. }, DeValue::String(text)) => Some(Value::Text(text.to_string())),
        (Kind::Path { .. }, DeValue::String(path)) => Some(Value::Path(path.as_ref().into())),
        (Kind::Choice(choices), DeValue::String(text)) if choices.contains(&text.as_ref()) => {
            Some(Value::Text(text.to_string()))
        }
        (Kind::Switch(_), DeValue::Boolean(value)) => Some(Value::Bool(*value)),
        (Kind::Number(_), DeValue::Integer(number)) => {
            u64::from_str_radix(number.as_str(), number.radix()).ok().map(Value::Number)
        }
        _ => None,
    };
    let expected = || match &setting.kind {
        Kind::Text { .. } | Kind::Path { .. } => "a text in quotation marks".to_owned(),
        Kind::Choice(choices) => format!("one of {choices:?}"),
        Kind::Switch(_) => "true or false".to_owned(),
        Kind::Number(_) => "a number, 0 or more".to_owned(),
    };
    let position = if setting.table.is_empty() { String::new() } else { format!(" in [{}]", setting.table) };
    parsed.ok_or_else(|| format!("`{}`{position}: invalid type: it must be {}", setting.name, expected()))
}
