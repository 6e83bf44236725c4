//! The administrator that a server makes for itself where its settings name none.
//!
//! Name and password are `NAME:PASSWORD` in the file [`ADMIN_FILE`] of the data directory, which only
//! the server's user may read. It is written and synced at the first start, and read at later ones;
//! changing it changes the password from the next start on, and deleting it has a new one made.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use settee_http::Admin;

use crate::secret;

/// Holds name and password, beside the databases.
pub(crate) const ADMIN_FILE: &str = "admin";

/// The name of an administrator that is made.
const NAME: &str = "admin";

/// Random bytes of a password; it has two hexadecimal digits for each.
const PASSWORD_BYTES: usize = 16;

/// An administrator, and the password where it was made just now.
pub(crate) struct FirstAdmin {
    pub(crate) admin: Admin,
    pub(crate) new_password: Option<String>,
}

impl FirstAdmin {
    /// Reads the administrator of a data directory, or makes one.
    ///
    /// # Errors
    /// What the system says of the file, that others can read it, or that it isn't `NAME:PASSWORD`;
    /// passwords aren't shown.
    pub(crate) fn of(data_dir: &Path) -> Result<FirstAdmin, String> {
        let path = data_dir.join(ADMIN_FILE);
        let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        if path.try_exists().map_err(|error| problem(&error))? {
            let admin = Admin::parse(&secret::read(&path)?).map_err(|error| problem(&error))?;
            return Ok(FirstAdmin { admin, new_password: None });
        }
        let password = new_password();
        let text = format!("{NAME}:{password}");
        write(data_dir, &text).map_err(|error| problem(&error))?;
        let admin = Admin::parse(&text).expect("it has a name and a password");
        Ok(FirstAdmin { admin, new_password: Some(password) })
    }
}

fn new_password() -> String {
    let mut bytes = [0; PASSWORD_BYTES];
    getrandom::fill(&mut bytes).expect("the system gives randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the file, whole and synced, or leaves none behind under its name.
fn write(data_dir: &Path, text: &str) -> io::Result<()> {
    let unfinished = data_dir.join(format!("{ADMIN_FILE}.new"));
    // A new file: one that was there may be somebody's else, or lead elsewhere.
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
