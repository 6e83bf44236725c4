//! Files that hold a password, and directories that hold what users stored: read by their owner alone.
//!
//! The rule for a file with a password is PostgreSQL's for its private keys: nobody but its owner, and
//! where that is root its group, which is how containers hand secrets over.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use settee_bench::http::Server;

/// Largest file with a password, in bytes.
const SECRET_BYTES_MAX: u64 = 1 << 20;

/// Permissions of everybody but the owner.
const OTHERS: u32 = 0o077;

/// The same without reading by the group.
const OTHERS_BUT_GROUP_READ: u32 = 0o037;

/// Permissions with the bits for set-user-ID, set-group-ID and sticky.
const ALL_BITS: u32 = 0o7777;

/// Set on directories that everybody writes to, as `/tmp`.
const STICKY: u32 = 0o1000;

/// The user of a client command where neither its URL nor a file names one: `NAME:PASSWORD`.
pub(crate) const USER_VARIABLE: &str = "SETTEE_USER";

/// What is said behind a server's answer that it wants to know the user.
pub(crate) const USER_HINT: &str = " (name the user by --user-file, SETTEE_USER, or in the URL)";

/// What a data directory holds, beside files of which each creates its own name.
const DATA_DIRECTORIES: [&str; 3] = ["catalogue", "databases", "spool"];

/// What file systems put into the root of a volume.
const VOLUME_DIRECTORY: &str = "lost+found";

/// Refuses a file with a password that others can read, or that another user but root owns: who owns a file can
/// change it.
///
/// # Errors
/// Whose file it is, who can read it, and the command that changes that.
pub(crate) fn check_permissions(path: &Path, metadata: &Metadata) -> Result<(), String> {
    // A pipe, as a shell's `<(…)` makes it, is nobody else's.
    match metadata.is_file() {
        true => check_owner(path, metadata.uid(), metadata.mode(), geteuid().as_raw()),
        false => Ok(()),
    }
}

fn check_owner(path: &Path, owner: u32, mode: u32, own: u32) -> Result<(), String> {
    let (shown, mode) = (path.display(), mode & 0o777);
    if owner != 0 && owner != own {
        return Err(format!(
            "{shown} holds a password and belongs to user {owner}, not to root or to user {own}, who runs \
             this: chown {own} {shown}"
        ));
    }
    let denied = if owner == 0 { OTHERS_BUT_GROUP_READ } else { OTHERS };
    if mode & denied == 0 {
        return Ok(());
    }
    Err(format!("{shown} holds a password, and others can read it (mode {mode:04o}): chmod 600 {shown}"))
}

/// Reads a file that holds a password, without the line end behind it.
///
/// # Errors
/// In words, without what the file holds.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let problem = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let file = File::open(path).map_err(|error| problem(&error))?;
    check_permissions(path, &file.metadata().map_err(|error| problem(&error))?)?;
    let mut text = String::new();
    let read = file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| problem(&error))?;
    if read as u64 > SECRET_BYTES_MAX {
        return Err(problem(&format!("it is larger than {SECRET_BYTES_MAX} bytes")));
    }
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}

/// Who a client command is to the server at its URL.
#[derive(Debug, clap::Args)]
pub(crate) struct UserArgs {
    /// File that holds NAME:PASSWORD for the server at --url, as does the variable SETTEE_USER; arguments
    /// show in `ps`
    #[arg(long, env = "SETTEE_USER_FILE", value_name = "FILE")]
    user_file: Option<PathBuf>,
}

impl UserArgs {
    /// Gives `server` the user of the file or the variable, unless its URL names one.
    ///
    /// # Errors
    /// In words, without the password.
    pub(crate) fn apply(&self, server: Server) -> Result<Server, String> {
        if server.has_user() {
            return Ok(server);
        }
        let (text, source) = match &self.user_file {
            Some(path) => (read(path)?, path.display().to_string()),
            None => match std::env::var(USER_VARIABLE) {
                Ok(text) => (text, USER_VARIABLE.to_owned()),
                Err(_) => return Ok(server),
            },
        };
        match text.split_once(':') {
            Some((name, password)) if !name.is_empty() => {
                Ok(server.with_user(name.as_bytes(), password.as_bytes()))
            }
            _ => Err(format!("{source} must hold NAME:PASSWORD")),
        }
    }
}

/// What [`close_directory`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Closed {
    /// Files and directories whose permissions were changed.
    pub(crate) changed_count: u64,
    /// The directory itself stays open to others: it holds what isn't a server's.
    pub(crate) is_shared: bool,
}

/// Takes a data directory's permissions for others away, as an older version or `mkdir` left them: 0700,
/// its files 0600. A directory whose `databases` is closed already isn't walked. One that holds other
/// things, such as `/tmp` or a home, keeps its own permissions: then only what is the server's is closed.
///
/// # Errors
/// What the system says, with the path; what comes behind it in the walk is as it was.
pub(crate) fn close_directory(directory: &Path, own_files: &[&str]) -> io::Result<Closed> {
    let mut closed = Closed::default();
    if !directory.is_dir() {
        return Ok(closed);
    }
    for name in DATA_DIRECTORIES {
        close_tree(&directory.join(name), &mut closed.changed_count)?;
    }
    for name in own_files {
        close(&directory.join(name), &mut closed.changed_count)?;
    }
    closed.is_shared = fs::metadata(directory)?.mode() & STICKY != 0;
    for entry in fs::read_dir(directory).map_err(|error| named(directory, &error))? {
        let name = entry?.file_name();
        let is_ours = |known: &&str| name == **known;
        closed.is_shared |= !(DATA_DIRECTORIES.iter().any(is_ours)
            || own_files.iter().any(is_ours)
            || name == VOLUME_DIRECTORY);
    }
    if closed.is_shared {
        closed.is_shared = fs::metadata(directory)?.mode() & OTHERS != 0;
    } else {
        close(directory, &mut closed.changed_count)?;
    }
    Ok(closed)
}

/// Closes a directory with all that it holds, the directory last: it is what says that all is closed.
fn close_tree(directory: &Path, changed_count: &mut u64) -> io::Result<()> {
    match fs::symlink_metadata(directory) {
        Ok(found) if found.is_dir() && found.mode() & OTHERS != 0 => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(directory, &error)),
        _ => return Ok(()),
    }
    for entry in fs::read_dir(directory).map_err(|error| named(directory, &error))? {
        let path = entry?.path();
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            close_tree(&path, changed_count)?;
        } else {
            close(&path, changed_count)?;
        }
    }
    close(directory, changed_count)
}

/// Takes the permissions for others away from a file or a directory; a link is left alone.
fn close(path: &Path, changed_count: &mut u64) -> io::Result<()> {
    let mode = match fs::symlink_metadata(path) {
        Ok(found) if !found.is_symlink() => found.mode() & ALL_BITS,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(path, &error)),
        _ => return Ok(()),
    };
    if mode & OTHERS != 0 {
        fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS))
            .map_err(|error| named(path, &error))?;
        *changed_count += 1;
    }
    Ok(())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Writes a file that others can't read.
#[cfg(test)]
pub(crate) fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_password_is_read_only_from_a_file_that_others_can_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin");
        fs::write(&path, "ann:sesame\r\n").unwrap();
        // Where the tests run as root its group may read.
        let group_may = rustix::process::getuid().is_root();
        for (mode, is_taken) in [
            (0o600, true),
            (0o400, true),
            (0o640, group_may),
            (0o440, group_may),
            (0o660, false),
            (0o644, false),
            (0o604, false),
            (0o602, false),
        ] {
            set(&path, mode);
            let found = read(&path);
            assert_eq!(found.is_ok(), is_taken, "{mode:o}: {found:?}");
            match found {
                Ok(text) => assert_eq!(text, "ann:sesame"),
                Err(reason) => {
                    assert!(reason.contains("chmod 600") && !reason.contains("sesame"), "{reason}");
                }
            }
        }
    }

    #[test]
    fn a_password_of_another_user_is_refused_unless_that_is_root() {
        let path = Path::new("admin");
        for (owner, own, is_taken) in [(7, 7, true), (0, 7, true), (0, 0, true), (8, 7, false), (8, 0, false)]
        {
            let checked = check_owner(path, owner, 0o600, own);
            assert_eq!(checked.is_ok(), is_taken, "{owner} {own}: {checked:?}");
            assert!(checked.err().is_none_or(|reason| reason.contains("belongs to user 8")));
        }
    }

    #[test]
    fn a_data_directory_is_closed_and_what_is_not_the_servers_stays_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("data");
        fs::create_dir_all(directory.join("databases/0000000001")).unwrap();
        let (log, uuid) =
            (directory.join("databases/0000000001/0000000001.log"), directory.join("server-uuid"));
        for path in [&log, &uuid] {
            fs::write(path, "x").unwrap();
            set(path, 0o644);
        }
        for path in [&directory, &directory.join("databases"), &directory.join("databases/0000000001")] {
            set(path, 0o755);
        }
        let closed = close_directory(&directory, &["server-uuid"]).unwrap();
        assert_eq!(closed, Closed { changed_count: 5, is_shared: false });
        assert_eq!((mode(&directory), mode(&log), mode(&uuid)), (0o700, 0o600, 0o600));
        assert_eq!(close_directory(&directory, &["server-uuid"]).unwrap(), Closed::default());

        fs::write(directory.join("letter"), "x").unwrap();
        for path in [&directory, &directory.join("databases"), &directory.join("letter")] {
            set(path, 0o755);
        }
        let closed = close_directory(&directory, &["server-uuid"]).unwrap();
        assert_eq!(closed, Closed { changed_count: 1, is_shared: true });
        assert_eq!((mode(&directory), mode(&directory.join("letter"))), (0o755, 0o755));
        assert_eq!(mode(&directory.join("databases")), 0o700);
    }
}
