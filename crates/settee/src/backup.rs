//! `settee backup` and `settee restore`: copies of all databases, made while a server runs or while none
//! does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use settee_bench::couch::Couch;
use settee_doc::{BackupProgress, BackupSummary, Databases, FailedDatabase};
use settee_io::{Env, ThreadOptions};

use crate::output::{complain, say};
use crate::secret::UserArgs;
use crate::{CommandResult, place};

/// Time between two looks at how far a backup has got.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
#[command(
    after_help = "Each run is a directory of its own, 000001, 000002, …; what an earlier one has is not copied \
    again. Runs may be deleted in any order. One without the file `complete` was interrupted, and the next run \
    removes it. Verify one with `settee check DIR/000001`, and never serve it in place: restore it. A database \
    that is damaged is left out, named, and the exit code is 1."
)]
pub(crate) struct Args {
    /// Directory that holds the backup's runs, and nothing else; of the server's machine, where --url is given
    dir: PathBuf,

    /// Server whose databases are to be copied while it runs: `http://[user:password@]host:port`
    #[arg(long, value_name = "URL", conflicts_with = "data_dir")]
    url: Option<String>,

    /// Data directory, while no server runs on it [default: $SETTEE_DATA_DIR, or ./settee-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    #[command(flatten)]
    user: UserArgs,
}

#[derive(clap::Args)]
#[command(
    after_help = "The run's files are compared with the lengths and checksums of its list; where one differs, \
    nothing is restored. The copy is another server: it draws a uuid of its own, and whoever followed or \
    replicated the original's databases begins anew. Where the run lacks databases that were damaged when it \
    was made, the others are restored, the missing ones are named, and the exit code is 1."
)]
pub(crate) struct RestoreArgs {
    /// A run of a backup, or the directory of all runs: then the newest whole one
    backup: PathBuf,

    /// Data directory to make
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
        let body = serde_json::to_vec(&serde_json::json!({ "folder": dir }))?;
        let reply = couch.call("POST", "/_settee/backup", Some(&body)).await?;
        say!("{}", String::from_utf8_lossy(&reply.body).trim_end());
        return Ok(());
    }
    let dir = place::real(&args.dir)?;
    let named = args.data_dir.or_else(|| std::env::var_os("SETTEE_DATA_DIR").map(PathBuf::from));
    let directory = named.unwrap_or_else(|| PathBuf::from("./settee-data"));
    let databases = place::open(&directory, "use --url with its address").await?;
    let done = watched(&databases, &dir).await;
    databases.close().await?;
    let BackupSummary { directory, database_count, failed, files, removed_count } = done?;
    if removed_count > 0 {
        say!("interrupted runs that were removed: {removed_count}");
    }
    say!(
        "{database_count} databases in {}: {} files copied ({} bytes), {} linked ({} bytes)",
        directory.display(),
        files.copied_count,
        files.copied_bytes,
        files.linked_count,
        files.linked_bytes
    );
    told("could not be backed up", &failed)
}

/// Makes a backup, and shows how far it has got.
async fn watched(databases: &Databases, dir: &std::path::Path) -> settee_doc::Result<BackupSummary> {
    let progress = Arc::<BackupProgress>::default();
    let bar = place::progress_bar("backup [{bar:30}] {pos}/{len} databases, eta {eta}");
    let made = databases.backup_with(dir, settee_http::BACKED_UP_FILES, progress.clone());
    let mut made = std::pin::pin!(made);
    let done = loop {
        tokio::select! {
            done = &mut made => break done,
            () = tokio::time::sleep(PROGRESS_EVERY) => {
                let (done, all) = progress.counts();
                place::show(&bar, done, all);
            }
        }
    };
    bar.finish_and_clear();
    done
}

/// Names the databases that are missing: an error where there are any.
fn told(what: &str, failed: &[FailedDatabase]) -> CommandResult {
    for FailedDatabase { name, reason, .. } in failed {
        complain!("settee: {name} {what}: {reason}");
    }
    match failed.len() {
        0 => Ok(()),
        1 => Err(format!("1 database {what}; all others are there").into()),
        count => Err(format!("{count} databases {what}; all others are there").into()),
    }
}

async fn restore(args: RestoreArgs) -> CommandResult {
    if !args.backup.is_dir() {
        return Err(format!("there is no backup {}", args.backup.display()).into());
    }
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    let to = place::real(&args.new_directory)?;
    let done = settee_doc::restore(&env, &place::real(&args.backup)?, &to).await?;
    if let Some(note) = done.note {
        complain!("settee: {}: {note}", done.run.display());
    }
    say!("{} restored into {}: {} bytes", done.run.display(), to.display(), done.bytes);
    told("could not be copied when this backup was made, and is missing", &done.failed)
}
