//! `settee backup` and `settee restore`: copies of all databases, made while a server runs or while none
//! does.

use std::path::{Path, PathBuf};

use settee_bench::couch::Couch;
use settee_doc::{BackupSummary, Databases};
use settee_io::{Env, ThreadOptions};

use crate::CommandResult;

#[derive(clap::Args)]
#[command(
    after_help = "Each run is a folder of its own, 000001, 000002, …; what an earlier one has is not copied \
    again. Verify one with `settee check DIR/000001`, and never serve it in place: restore it."
)]
pub(crate) struct Args {
    /// Folder that holds the backup's runs; of the server's machine, where --url is given
    dir: PathBuf,

    /// Server whose databases are to be copied while it runs: `http://[user:password@]host:port`
    #[arg(long, value_name = "URL", conflicts_with = "data_dir")]
    url: Option<String>,

    /// Data folder, while no server runs on it [default: $SETTEE_DATA_DIR, or ./settee-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct RestoreArgs {
    /// A run of a backup, or the folder of all runs: then the newest whole one
    backup: PathBuf,

    /// Data folder to make
    new_folder: PathBuf,
}

pub(crate) fn run(args: Args) -> CommandResult {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(backup(args))
}

pub(crate) fn run_restore(args: RestoreArgs) -> CommandResult {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(restore(args))
}

async fn backup(args: Args) -> CommandResult {
    let dir = std::path::absolute(&args.dir)?;
    if let Some(url) = &args.url {
        let mut couch = Couch::new(url.parse()?);
        let body = serde_json::to_vec(&serde_json::json!({ "folder": dir }))?;
        let reply = couch.call("POST", "/_settee/backup", Some(&body)).await?;
        print!("{}", String::from_utf8_lossy(&reply.body));
        return Ok(());
    }
    let named = args.data_dir.or_else(|| std::env::var_os("SETTEE_DATA_DIR").map(PathBuf::from));
    let folder = named.unwrap_or_else(|| PathBuf::from("./settee-data"));
    if !folder.is_dir() {
        return Err(format!("there is no data folder {}", folder.display()).into());
    }
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    let databases = Databases::open(env, &std::path::absolute(&folder)?).await.map_err(|error| {
        format!("{error} (where a server runs on the folder, use --url with its address)")
    })?;
    let done = databases.backup(&dir, settee_http::IDENTITY_FILES).await;
    databases.close().await?;
    let BackupSummary { folder, database_count, files } = done?;
    println!(
        "{database_count} databases in {}: {} files copied ({} bytes), {} linked ({} bytes)",
        folder.display(),
        files.copied_count,
        files.copied_bytes,
        files.linked_count,
        files.linked_bytes
    );
    Ok(())
}

async fn restore(args: RestoreArgs) -> CommandResult {
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    let to: &Path = &args.new_folder;
    let (run, bytes) = settee_doc::restore(&env, &args.backup, to, settee_http::IDENTITY_FILES).await?;
    println!("{} restored into {}: {bytes} bytes", run.display(), to.display());
    Ok(())
}
