//! The server's identity: 32 hex digits in a file of the data directory.
//!
//! A replication's checkpoint id contains it, so that a copy of the data under another identity starts its
//! replications over.

use std::io::{self, Write};
use std::path::Path;

/// File in the data directory with the server's identity.
pub(crate) const UUID_FILE: &str = "server-uuid";

/// Reads the server's identity from the data directory. None if it has none yet.
///
/// # Errors
/// The file can't be read. `InvalidData`: it doesn't contain an identity.
pub(crate) fn read(data_dir: &Path) -> io::Result<Option<String>> {
    match std::fs::read(data_dir.join(UUID_FILE)) {
        Ok(bytes) if bytes.len() == 32 && bytes.iter().all(u8::is_ascii_hexdigit) => {
            Ok(Some(bytes.into_iter().map(char::from).collect()))
        }
        Ok(_) => {
            let reason = format!(
                "{} is damaged: it doesn't consist of 32 hex digits. Without the file the server generates a \
                 new identity, and replications with it start over",
                data_dir.join(UUID_FILE).display()
            );
            Err(io::Error::new(io::ErrorKind::InvalidData, reason))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the identity from the data directory. Generates and persists one if it has none.
pub(crate) fn load_or_create(data_dir: &Path) -> io::Result<String> {
    let path = data_dir.join(UUID_FILE);
    match read(data_dir)? {
        Some(uuid) => Ok(uuid),
        None => {
            let fresh = settee_http::new_uuid();
            // The rename makes the file appear complete or not at all.
            let unfinished = path.with_extension("new");
            let mut file = std::fs::File::create(&unfinished)?;
            file.write_all(fresh.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)?;
            std::fs::File::open(data_dir)?.sync_all()?;
            Ok(fresh)
        }
    }
}
