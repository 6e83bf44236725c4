//! Permissions of files with a password and of data directories: only the owner may read them.
//!
//! The rule for a file with a password is PostgreSQL's rule for private keys: only the owner may read it, and
//! the group of a file that root owns, which is how containers receive secrets.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use settee_client::Server;

/// Largest file with a password, in bytes.
const SECRET_BYTES_MAX: u64 = 1 << 20;

/// Mode bits of the group and of other users.
const NOT_OWNER: u32 = 0o077;

/// Mode bits of the group and of other users, except that the group may read.
const NOT_OWNER_EXCEPT_GROUP_READ: u32 = 0o037;

/// All mode bits, including set-user-ID, set-group-ID and sticky.
const ALL_BITS: u32 = 0o7777;

/// Mode bit of directories that all users may write to, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// Variable with the user of a client command, as `NAME:PASSWORD`, if neither the URL nor a file names one.
pub(crate) const USER_VARIABLE: &str = "SETTEE_USER";

/// Appended to the error message of a 401 response.
pub(crate) const USER_HINT: &str = " (name the user by --user-file, SETTEE_USER, or in the URL)";

/// Subdirectories of a data directory.
const DATA_DIRECTORIES: [&str; 3] = ["catalogue", "databases", "spool"];

/// Directory that file systems create in the root of a volume.
const VOLUME_DIRECTORY: &str = "lost+found";

/// Refuses a file with a password that other users can read, or whose owner is neither root nor the process's
/// user, since an owner can change the file.
///
/// # Errors
/// The owner or the mode, and the command that corrects it.
pub(crate) fn check_permissions(path: &Path, metadata: &Metadata) -> Result<(), String> {
    // A pipe, such as a shell's `<(…)`, isn't accessible to other users.
    match metadata.is_file() {
        true => check_owner(path, metadata.uid(), metadata.mode(), geteuid().as_raw()),
        false => Ok(()),
    }
}

fn check_owner(path: &Path, owner: u32, mode: u32, own: u32) -> Result<(), String> {
    let (shown, mode) = (path.display(), mode & 0o777);
    if owner != 0 && owner != own {
        return Err(format!(
            "{shown} contains a password and belongs to user {owner}; it must belong to root or to user \
             {own}, who runs this process: chown {own} {shown}"
        ));
    }
    let denied = if owner == 0 { NOT_OWNER_EXCEPT_GROUP_READ } else { NOT_OWNER };
    if mode & denied == 0 {
        return Ok(());
    }
    Err(format!("{shown} contains a password, and others can read it (mode {mode:04o}): chmod 600 {shown}"))
}

/// Reads a file that contains a password. Trailing line ends are removed.
///
/// # Errors
/// The file can't be read, is too large, or has wrong permissions. The text contains nothing of the file's
/// content.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let with_path = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let file = File::open(path).map_err(|error| with_path(&error))?;
    check_permissions(path, &file.metadata().map_err(|error| with_path(&error))?)?;
    let mut text = String::new();
    let read =
        file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| with_path(&error))?;
    if read as u64 > SECRET_BYTES_MAX {
        return Err(with_path(&format!("it is larger than {SECRET_BYTES_MAX} bytes")));
    }
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}

/// The flag with the user of a client command.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct UserArgs {
    /// File with NAME:PASSWORD for the server at --url. The variable SETTEE_USER can contain the same.
    /// Arguments are visible in `ps`
    #[arg(long, env = "SETTEE_USER_FILE", value_name = "FILE")]
    user_file: Option<PathBuf>,
}

impl UserArgs {
    /// Sets the user of `server` from the file or the variable, unless its URL names one.
    ///
    /// # Errors
    /// The file can't be read, or the value isn't `NAME:PASSWORD`. The text contains no password.
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

/// Result of [`restrict_directory`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PermissionChanges {
    /// Number of files and directories whose permissions were changed.
    pub(crate) changed_count: u64,
    /// Whether the directory contains other files and other users still have permissions on it.
    pub(crate) is_shared: bool,
}

/// Removes the permissions of the group and of other users from a data directory and its files, which an
/// older version or `mkdir` may have left. The modes become 0700 and 0600. A subdirectory that is restricted
/// already isn't walked. A directory that contains other files, such as `/tmp` or a home directory, keeps its
/// own mode; then only the server's files in it are restricted.
///
/// # Errors
/// The system's error with the path. The rest of the walk is left unchanged.
pub(crate) fn restrict_directory(directory: &Path, own_files: &[&str]) -> io::Result<PermissionChanges> {
    let mut changes = PermissionChanges::default();
    if !directory.is_dir() {
        return Ok(changes);
    }
    for name in DATA_DIRECTORIES {
        restrict_tree(&directory.join(name), &mut changes.changed_count)?;
    }
    for name in own_files {
        restrict(&directory.join(name), &mut changes.changed_count)?;
    }
    changes.is_shared = fs::metadata(directory)?.mode() & STICKY != 0;
    for entry in fs::read_dir(directory).map_err(|error| with_path(directory, &error))? {
        let name = entry?.file_name();
        let is_name = |known: &&str| name == **known;
        changes.is_shared |= !(DATA_DIRECTORIES.iter().any(is_name)
            || own_files.iter().any(is_name)
            || name == VOLUME_DIRECTORY);
    }
    if changes.is_shared {
        changes.is_shared = fs::metadata(directory)?.mode() & NOT_OWNER != 0;
    } else {
        restrict(directory, &mut changes.changed_count)?;
    }
    Ok(changes)
}

/// Restricts a directory and its contents. The directory comes last: its mode indicates that its contents are
/// restricted.
fn restrict_tree(directory: &Path, changed_count: &mut u64) -> io::Result<()> {
    match fs::symlink_metadata(directory) {
        Ok(found) if found.is_dir() && found.mode() & NOT_OWNER != 0 => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(with_path(directory, &error)),
        _ => return Ok(()),
    }
    for entry in fs::read_dir(directory).map_err(|error| with_path(directory, &error))? {
        let path = entry?.path();
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            restrict_tree(&path, changed_count)?;
        } else {
            restrict(&path, changed_count)?;
        }
    }
    restrict(directory, changed_count)
}

/// Restricts a file or a directory. A symbolic link is left unchanged.
fn restrict(path: &Path, changed_count: &mut u64) -> io::Result<()> {
    let mode = match fs::symlink_metadata(path) {
        Ok(found) if !found.is_symlink() => found.mode() & ALL_BITS,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(with_path(path, &error)),
        _ => return Ok(()),
    };
    if mode & NOT_OWNER != 0 {
        fs::set_permissions(path, Permissions::from_mode(mode & !NOT_OWNER))
            .map_err(|error| with_path(path, &error))?;
        *changed_count += 1;
    }
    Ok(())
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Writes a file that only its owner can read.
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
    fn a_password_is_read_only_from_a_file_that_other_users_cannot_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin");
        fs::write(&path, "ann:sesame\r\n").unwrap();
        // The group may read a file that root owns, and the tests may run as root.
        let group_may = rustix::process::getuid().is_root();
        for (mode, is_accepted) in [
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
            assert_eq!(found.is_ok(), is_accepted, "{mode:o}: {found:?}");
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
        for (owner, own, is_accepted) in
            [(7, 7, true), (0, 7, true), (0, 0, true), (8, 7, false), (8, 0, false)]
        {
            let checked = check_owner(path, owner, 0o600, own);
            assert_eq!(checked.is_ok(), is_accepted, "{owner} {own}: {checked:?}");
            assert!(checked.err().is_none_or(|reason| reason.contains("belongs to user 8")));
        }
    }

    #[test]
    fn a_data_directory_is_restricted_and_other_files_keep_their_modes() {
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
        let changes = restrict_directory(&directory, &["server-uuid"]).unwrap();
        assert_eq!(changes, PermissionChanges { changed_count: 5, is_shared: false });
        assert_eq!((mode(&directory), mode(&log), mode(&uuid)), (0o700, 0o600, 0o600));
        assert_eq!(restrict_directory(&directory, &["server-uuid"]).unwrap(), PermissionChanges::default());

        fs::write(directory.join("letter"), "x").unwrap();
        for path in [&directory, &directory.join("databases"), &directory.join("letter")] {
            set(path, 0o755);
        }
        let changes = restrict_directory(&directory, &["server-uuid"]).unwrap();
        assert_eq!(changes, PermissionChanges { changed_count: 1, is_shared: true });
        assert_eq!((mode(&directory), mode(&directory.join("letter"))), (0o755, 0o755));
        assert_eq!(mode(&directory.join("databases")), 0o700);
    }
}
