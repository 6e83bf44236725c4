//! The file of the configuration set over HTTP: TOML with one table per section.
//!
//! Invariants:
//! 1. The file is replaced atomically and synced: a crash leaves the file before or after a change.
//! 2. No file is written that is too large to be read.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hyper::StatusCode;

use crate::error::ApiError;

/// The file of the data directory with the configuration set over HTTP.
pub const CONFIG_FILE: &str = "config.toml";

/// Largest size of that file in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 16 << 20;

/// Sections, each with its keys and values.
pub(crate) type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Changed values by section and key; None for a deleted key.
pub(super) type Changes = BTreeMap<(String, String), Option<String>>;

/// Reads the changes; none if there is no file.
///
/// # Errors
/// The file can't be read, or isn't one of the configuration. The error names the file.
pub(super) fn read(path: &Path) -> Result<Changes, io::Error> {
    let mut text = String::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Changes::new()),
        Err(error) => return Err(with_path(path, &error)),
        Ok(file) => {
            file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| with_path(path, &e))?
        }
    };
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(with_path(path, &format!("more than {FILE_BYTES_MAX} bytes")));
    }
    let sections: Sections = toml::from_str(&text).map_err(|error| with_path(path, &error))?;
    let mut changes = Changes::new();
    for (section, keys) in sections {
        for (key, value) in keys {
            // As in CouchDB's files, an empty value means that the key was deleted.
            let value = (!value.is_empty()).then_some(value);
            changes.insert((section.clone(), key), value);
        }
    }
    Ok(changes)
}

/// Writes the changes, and returns when they are on stable storage.
///
/// # Errors
/// 400 if they are too large to be read again, 500 if the file can't be written.
pub(super) async fn write(path: &Path, persisted: &Changes) -> Result<(), ApiError> {
    let path = path.to_owned();
    let failed =
        |error: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error);
    let text = text(persisted).map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("The configuration has at most {FILE_BYTES_MAX} bytes.");
        return Err(ApiError::bad_request(reason));
    }
    let written = tokio::task::spawn_blocking(move || replace(&path, &text)).await;
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(panicked) => Err(failed(panicked.to_string())),
    }
}

/// The text of the file with these changes.
pub(super) fn text(persisted: &Changes) -> io::Result<String> {
    let mut sections = Sections::new();
    for ((section, key), value) in persisted {
        let keys = sections.entry(section.clone()).or_default();
        keys.insert(key.clone(), value.clone().unwrap_or_default());
    }
    let text = toml::to_string(&sections).map_err(io::Error::other)?;
    Ok(format!("# What was configured over HTTP. An empty value: the key was deleted.\n\n{text}"))
}

fn with_path(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// Replaces a file atomically, readable only by its owner. It is on stable storage when this returns.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(with_path(path, &format!("more than {FILE_BYTES_MAX} bytes")));
    }
    let unfinished = path.with_extension("toml.new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished).map_err(|error| with_path(&unfinished, &error))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path).map_err(|error| with_path(path, &error))?;
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_owner_may_read_the_file() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(CONFIG_FILE);
        replace(&path, "a").unwrap();
        replace(&path, "b").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "b");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
