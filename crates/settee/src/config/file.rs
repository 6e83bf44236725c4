//! Reads the settings file. Errors name the line, the key and the table.
//!
//! Only the message of a TOML error is kept: its full text quotes a line of the file, which may contain the
//! password.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

use toml::de::DeTable;

use super::settings::Settings;
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
    let settings = parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    if settings.admin.is_some() {
        secret::check_permissions(path, &metadata)?;
    }
    Ok(settings)
}

/// Parses the text of a settings file.
pub(super) fn parse(text: &str) -> Result<Settings, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        // Text that isn't valid TOML has no keys.
        let table = DeTable::parse(text).ok();
        let keys = table.and_then(|table| keys_to(table.get_ref(), at)).unwrap_or_default();
        match keys.split_last() {
            None => format!("line {line}: {}", error.message()),
            Some((key, outer)) => format!("line {line}: {}", key_error(outer, key, error.message())),
        }
    })
}

/// Returns the keys of the value at an offset of the text, the outermost first.
fn keys_to(table: &DeTable<'_>, at: usize) -> Option<Vec<String>> {
    table.iter().find_map(|(key, value)| {
        let inner = value.get_ref().as_table().and_then(|table| keys_to(table, at));
        let is_here = || key.span().contains(&at) || value.span().contains(&at);
        let mut keys = inner.or_else(|| is_here().then(Vec::new))?;
        keys.insert(0, key.get_ref().to_string());
        Some(keys)
    })
}

/// Returns the error message of a key in the tables `outer`.
fn key_error(outer: &[String], key: &str, message: &str) -> String {
    let position = match outer {
        [] => String::new(),
        outer => format!(" in [{}]", outer.join(".")),
    };
    if !message.starts_with("unknown field") {
        return format!("`{key}`{position}: {message}");
    }
    let known = Settings::names().into_iter().find(|(_, name)| *name == key);
    let hint = match known {
        None => String::new(),
        Some(("", _)) => "; it belongs before the first table".to_owned(),
        Some((table, _)) => format!("; it belongs in [{table}]"),
    };
    let position = if position.is_empty() { " before the first table" } else { &position };
    format!("unknown key `{key}`{position}{hint}")
}
