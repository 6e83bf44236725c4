//! The administrator that a server creates if its settings name none.
//!
//! The file [`ADMIN_FILE`] in the data directory contains `NAME:PASSWORD` and is readable only by the
//! server's user. The first start writes and syncs it; later starts read it. A changed file takes effect at
//! the next start; after its deletion the next start creates a new administrator.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use settee_http::Admin;

use crate::secret;

/// File in the data directory with the administrator's name and password.
pub(crate) const ADMIN_FILE: &str = "admin";

/// The name of a created administrator.
const NAME: &str = "admin";

/// Number of random bytes of a password, which is written in hexadecimal.
const PASSWORD_BYTES: usize = 16;

/// The administrator of a data directory.
pub(crate) struct FirstAdmin {
    pub(crate) admin: Admin,
    /// The password, if the administrator was created now.
    pub(crate) new_password: Option<String>,
}

impl FirstAdmin {
    /// Reads the administrator of a data directory, or creates and persists one.
    ///
    /// # Errors
    /// The file can't be read or written, is readable by other users, or isn't `NAME:PASSWORD`. The text
    /// contains no password.
    pub(crate) fn load_or_create(data_dir: &Path) -> Result<FirstAdmin, String> {
        let path = data_dir.join(ADMIN_FILE);
        let with_path = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        if path.try_exists().map_err(|error| with_path(&error))? {
            let admin = Admin::parse(&secret::read(&path)?).map_err(|error| with_path(&error))?;
            return Ok(FirstAdmin { admin, new_password: None });
        }
        let password = new_password();
        let text = format!("{NAME}:{password}");
        write(data_dir, &text).map_err(|error| with_path(&error))?;
        let admin = Admin::parse(&text).expect("a name and a password");
        Ok(FirstAdmin { admin, new_password: Some(password) })
    }
}

fn new_password() -> String {
    let mut bytes = [0; PASSWORD_BYTES];
    getrandom::fill(&mut bytes).expect("the system provides random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Creates the file atomically. It is persisted when this returns.
fn write(data_dir: &Path, text: &str) -> io::Result<()> {
    let unfinished = data_dir.join(format!("{ADMIN_FILE}.new"));
    // An existing file is replaced by a new one: it may be another user's, or a symbolic link.
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&unfinished, data_dir.join(ADMIN_FILE))?;
    File::open(data_dir)?.sync_all()
}
