//! Data directories that commands open without a server, and the resolution of paths.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use settee_doc::{Databases, ErrorKind};
use settee_io::{Env, ThreadOptions};

use crate::output::print_stderr;
use crate::secret::{self, PermissionChanges};
use crate::server_uuid::UUID_FILE;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Whether a directory is a data directory. It may contain no databases yet.
pub(crate) fn has_databases(directory: &Path) -> bool {
    ["catalogue", "databases"].iter().any(|name| directory.join(name).is_dir())
        || directory.join("lock").is_file()
}

/// Opens the databases in `directory`. `while_served` is the advice in the error message for a directory that
/// a server has open.
///
/// # Errors
/// The directory doesn't exist, contains no databases, is in use, or can't be opened.
pub(crate) async fn open_existing(directory: &Path, while_served: &str) -> Result<Arc<Databases>, Error> {
    if !directory.is_dir() {
        return Err(missing_directory_text(directory).into());
    }
    if !has_databases(directory) {
        return Err(format!("there are no databases in {}", directory.display()).into());
    }
    open_or_create(directory, while_served).await
}

/// Opens a data directory like [`open_existing`], and creates it if it doesn't exist.
/// Design functions aren't run: documents are stored unvalidated.
///
/// # Errors
/// The directory is in use, or can't be opened.
pub(crate) async fn open_or_create(directory: &Path, while_served: &str) -> Result<Arc<Databases>, Error> {
    if let Some(problem) = restrict_access(directory) {
        print_stderr!("settee: {problem}");
    }
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    Databases::open(env, &resolve_path(directory)?).await.map_err(|error| match error.kind() {
        ErrorKind::InUse => format!("{error} (if a server has the directory open, {while_served})").into(),
        _ => error.into(),
    })
}

/// The error message for a data directory that doesn't exist.
pub(crate) fn missing_directory_text(directory: &Path) -> String {
    format!("there is no data directory {}", directory.display())
}

/// Files of a data directory that belong to its server: an upgrade copies them, a backup doesn't.
pub(crate) const KEPT_FILES: &[&str] = &["admin", UUID_FILE];

/// Removes other users' permissions on a data directory ([`secret::restrict_directory`]). Returns a warning
/// for the operator if permissions were changed or could not be.
pub(crate) fn restrict_access(directory: &Path) -> Option<String> {
    let own_files = [&["lock"], KEPT_FILES, settee_http::BACKED_UP_FILES].concat();
    let shown = directory.display();
    match secret::restrict_directory(directory, &own_files) {
        Ok(PermissionChanges { is_shared: true, .. }) => Some(format!(
            "{shown} contains other files too and keeps its permissions: only Settee's files in it were made \
             inaccessible to other users"
        )),
        Ok(PermissionChanges { changed_count: 0, .. }) => None,
        Ok(PermissionChanges { changed_count, .. }) => Some(format!(
            "{shown} could be read by others: the permissions of {changed_count} files and directories were \
             changed"
        )),
        Err(error) => Some(format!("cannot remove other users' permissions on the data: {error}")),
    }
}

/// Returns `path` as an absolute path. The part that exists is returned without symbolic links and `..`.
///
/// # Errors
/// A `..` follows a component that doesn't exist, or a directory on the path can't be read.
pub(crate) fn resolve_path(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path)?;
    let mut missing = PathBuf::new();
    for existing in absolute.ancestors() {
        match std::fs::canonicalize(existing) {
            Ok(real) => {
                missing = absolute.strip_prefix(existing)?.to_path_buf();
                if missing.components().any(|part| part == Component::ParentDir) {
                    break;
                }
                // Joining an empty path would append a `/`.
                return Ok(if missing.as_os_str().is_empty() { real } else { real.join(missing) });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{}: {error}", existing.display()).into()),
        }
    }
    Err(format!(
        "{} contains `..` after a directory that doesn't exist: {}",
        path.display(),
        missing.display()
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolved_path_has_no_links_and_no_dots_even_if_it_does_not_exist() {
        let home = tempfile::tempdir().unwrap();
        let home = std::fs::canonicalize(home.path()).unwrap();
        std::fs::create_dir_all(home.join("data/inner")).unwrap();
        std::os::unix::fs::symlink(home.join("data/inner"), home.join("link")).unwrap();
        for (given, expected) in [
            ("data", "data"),
            ("link", "data/inner"),
            ("link/x/y", "data/inner/x/y"),
            ("link/../new", "data/new"),
            ("data/./inner/../x", "data/x"),
        ] {
            assert_eq!(resolve_path(&home.join(given)).unwrap(), home.join(expected), "{given}");
        }
        assert!(resolve_path(&home.join("none/../x")).is_err());
    }
}
