//! `settee backup` and `settee restore`: copy all databases of a running server or of a data directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use settee_client::Couch;
use settee_doc::{BackupProgress, BackupSummary, Databases, FailedDatabase};
use settee_io::{Env, ThreadOptions};

use crate::output::{CommandResult, print_stderr, print_stdout};
use crate::secret::UserArgs;
use crate::{data_directory, progress};

/// Time between two updates of the progress bar.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
#[command(
    after_help = "Each run is a directory of its own: 000001, 000002, …. Files that an earlier run contains \
    are linked and not copied again. Runs may be deleted in any order. A run without the file `complete` was \
    interrupted; the next run removes it. Verify a run with `settee check DIR/000001`. Never serve a run in \
    place: restore it. A damaged database is left out and reported, and the exit code is 1."
)]
pub(crate) struct Args {
    /// Directory for the backup's runs, which contains nothing else; with --url a directory on the server's
    /// machine
    dir: PathBuf,

    /// Running server whose databases are copied: `http://[user:password@]host:port`
    #[arg(long, value_name = "URL", conflicts_with = "data_dir")]
    url: Option<String>,

    /// Data directory that no server has open [default: $SETTEE_DATA_DIR, or ./settee-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    #[command(flatten)]
    user: UserArgs,
}

#[derive(clap::Args)]
#[command(
    after_help = "The files are compared with the lengths and checksums recorded in the run; if one differs, \
    nothing is restored. The copy is another server: it generates its own uuid, and followers and replications \
    of the original's databases start over. If the run lacks databases that were damaged when it was made, the \
    others are restored, the missing ones are reported, and the exit code is 1."
)]
pub(crate) struct RestoreArgs {
    /// A run of a backup, or the directory of all runs, which selects the newest complete run
    backup: PathBuf,

    /// Data directory to create
    new_directory: PathBuf,
}

pub(crate) fn run(args: Args) -> CommandResult {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(backup(args))
}

pub(crate) fn run_restore(args: RestoreArgs) -> CommandResult {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(restore(args))
}

async fn backup(args: Args) -> CommandResult {
    if let Some(url) = &args.url {
        let dir = std::path::absolute(&args.dir)?;
        let mut couch = Couch::new(args.user.apply(url.parse()?)?);
        let body = serde_json::to_vec(&serde_json::json!({ "directory": dir }))?;
        let reply = couch.call("POST", "/_settee/backup", Some(&body)).await?;
        print_stdout!("{}", String::from_utf8_lossy(&reply.body).trim_end());
        return Ok(());
    }
    let dir = data_directory::resolve_path(&args.dir)?;
    let given = args.data_dir.or_else(|| std::env::var_os("SETTEE_DATA_DIR").map(PathBuf::from));
    let directory = given.unwrap_or_else(|| PathBuf::from("./settee-data"));
    let databases = data_directory::open_existing(&directory, "use --url with its address").await?;
    let result = backup_with_progress(&databases, &dir).await;
    databases.close().await?;
    let BackupSummary { directory, database_count, failed, files, removed_count } = result?;
    if removed_count > 0 {
        print_stdout!("removed interrupted runs: {removed_count}");
    }
    print_stdout!(
        "{database_count} databases in {}: {} files copied ({} bytes), {} linked ({} bytes)",
        directory.display(),
        files.copied_count,
        files.copied_bytes,
        files.linked_count,
        files.linked_bytes
    );
    report_failed("could not be backed up", &failed)
}

/// Makes a backup and shows its progress on stderr.
async fn backup_with_progress(
    databases: &Databases,
    dir: &std::path::Path,
) -> settee_doc::Result<BackupSummary> {
    let counts = Arc::<BackupProgress>::default();
    let bar = progress::progress_bar("backup [{bar:30}] {pos}/{len} databases, eta {eta}");
    let backup = databases.backup_with(dir, settee_http::BACKED_UP_FILES, counts.clone());
    let mut backup = std::pin::pin!(backup);
    let result = loop {
        tokio::select! {
            result = &mut backup => break result,
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                let (done, total) = counts.counts();
                progress::show_progress(&bar, done, total);
            }
        }
    };
    bar.finish_and_clear();
    result
}

/// Prints the databases that are missing from a backup.
///
/// # Errors
/// `failed` isn't empty.
fn report_failed(problem: &str, failed: &[FailedDatabase]) -> CommandResult {
    for FailedDatabase { name, reason, .. } in failed {
        print_stderr!("settee: {name} {problem}: {reason}");
    }
    match failed.len() {
        0 => Ok(()),
        1 => Err(format!("1 database {problem}; all others are complete").into()),
        count => Err(format!("{count} databases {problem}; all others are complete").into()),
    }
}

async fn restore(args: RestoreArgs) -> CommandResult {
    if !args.backup.is_dir() {
        return Err(format!("there is no backup {}", args.backup.display()).into());
    }
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    let to = data_directory::resolve_path(&args.new_directory)?;
    let summary = settee_doc::restore(&env, &data_directory::resolve_path(&args.backup)?, &to).await?;
    print_stdout!("{} restored into {}: {} bytes", summary.run.display(), to.display(), summary.bytes);
    for (directory, damage) in &summary.damaged {
        print_stderr!("settee: {} was damaged when this backup was made: {damage}", directory.display());
    }
    report_failed("could not be copied when this backup was made, and is missing", &summary.failed)?;
    match summary.damaged.is_empty() {
        true => Ok(()),
        false => {
            Err("a restored database is damaged; `settee check --repair` salvages what can be read".into())
        }
    }
}
