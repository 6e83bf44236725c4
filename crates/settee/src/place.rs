//! Data directories that commands without a server work on, and the paths that they are given.

use std::io::IsTerminal as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use settee_doc::{Databases, DatabasesOptions, ErrorKind};
use settee_io::{Env, ThreadOptions};

use crate::output::complain;
use crate::secret::{self, Closed};
use crate::serve::UUID_FILE;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Time between two pictures of a progress bar.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Whether a directory holds databases, or a server has it that has none yet.
pub(crate) fn has_databases(directory: &Path) -> bool {
    ["catalogue", "databases"].iter().any(|name| directory.join(name).is_dir())
        || directory.join("lock").is_file()
}

/// Opens the databases in `directory`, which must hold some. `while_served` says what to do where a server runs
/// on it.
pub(crate) async fn open(directory: &Path, while_served: &str) -> Result<Arc<Databases>, Error> {
    if !directory.is_dir() {
        return Err(no_directory(directory).into());
    }
    if !has_databases(directory) {
        return Err(format!("there are no databases in {}", directory.display()).into());
    }
    make(directory, while_served, false).await
}

/// As [`open`], where there may be none yet.
pub(crate) async fn make(
    directory: &Path,
    while_served: &str,
    ignore_validation: bool,
) -> Result<Arc<Databases>, Error> {
    if let Some(problem) = close_to_others(directory) {
        complain!("settee: {problem}");
    }
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    let options = DatabasesOptions { ignore_validation, ..DatabasesOptions::default() };
    Databases::open_with(env, &real(directory)?, options).await.map_err(|error| match error.kind() {
        ErrorKind::InUse => format!("{error} (where a server runs on the directory, {while_served})").into(),
        _ => error.into(),
    })
}

/// What is said where a data directory was named that isn't there.
pub(crate) fn no_directory(directory: &Path) -> String {
    format!("there is no data directory {}", directory.display())
}

/// Files of a data directory beside those that backups copy.
const OTHER_FILES: [&str; 3] = ["lock", "admin", UUID_FILE];

/// Closes a data directory to others (see [`secret::close_directory`]). Returns what an operator has to know.
pub(crate) fn close_to_others(directory: &Path) -> Option<String> {
    let own_files = [&OTHER_FILES, settee_http::BACKED_UP_FILES].concat();
    let shown = directory.display();
    match secret::close_directory(directory, &own_files) {
        Ok(Closed { is_shared: true, .. }) => Some(format!(
            "{shown} holds other things beside the data and can be read by others: only the data in it are closed \
             to them"
        )),
        Ok(Closed { changed_count: 0, .. }) => None,
        Ok(Closed { changed_count, .. }) => Some(format!(
            "{shown} could be read by others: the permissions of {changed_count} files and directories were changed"
        )),
        Err(error) => Some(format!("others may be able to read the data: {error}")),
    }
}

/// An absolute path without links and `..`, as far as it is there.
pub(crate) fn real(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path)?;
    let mut missing = PathBuf::new();
    for there in absolute.ancestors() {
        match std::fs::canonicalize(there) {
            Ok(real) => {
                missing = absolute.strip_prefix(there)?.to_path_buf();
                if missing.components().any(|part| part == Component::ParentDir) {
                    break;
                }
                // Nothing to add: a `/` at the end would name a directory.
                return Ok(if missing.as_os_str().is_empty() { real } else { real.join(missing) });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{}: {error}", there.display()).into()),
        }
    }
    Err(format!("{} leads through a directory that isn't there: {}", path.display(), missing.display())
        .into())
}

/// A progress bar on stderr that shows nothing until [`show`] is told how much there is.
pub(crate) fn progress_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::hidden();
    bar.set_style(ProgressStyle::with_template(template).expect("the template is sound"));
    bar
}

/// Shows how far something has got.
pub(crate) fn show(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
    if bar.is_hidden() && all > 0 && std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.enable_steady_tick(PROGRESS_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_path_has_no_links_and_no_dots_also_where_it_is_not_there_yet() {
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
            assert_eq!(real(&home.join(given)).unwrap(), home.join(expected), "{given}");
        }
        assert!(real(&home.join("none/../x")).is_err());
    }
}
