//! `settee compact`: gives back the space of what was replaced, while no server runs on the directory.

use std::path::PathBuf;

use settee_doc::Databases;

use crate::output::say;
use crate::{CommandResult, place};

#[derive(clap::Args)]
#[command(after_help = "A server that runs does this by itself, and when POST /NAME/_compact asks for it.")]
pub(crate) struct Args {
    /// Data directory, while no server runs on it
    #[arg(value_name = "DATA_DIRECTORY", env = "SETTEE_DATA_DIR", default_value = "./settee-data")]
    directory: PathBuf,

    /// Compact this database alone
    #[arg(long, alias = "database", value_name = "NAME")]
    db: Option<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compact(args))
}

async fn compact(args: Args) -> CommandResult {
    let databases = place::open(&args.directory, "use POST /NAME/_compact").await?;
    let names = match args.db {
        Some(name) if !databases.names().contains(&name) => {
            databases.close().await?;
            return Err(format!("there is no database {name}").into());
        }
        Some(name) => vec![name],
        None => databases.names(),
    };
    let mut result: CommandResult = Ok(());
    for name in names {
        match compact_one(&databases, &name).await {
            Ok(text) => say!("{name}: {text}"),
            Err(error) => result = Err(format!("{name}: {error}").into()),
        }
    }
    databases.close().await?;
    result
}

async fn compact_one(databases: &Databases, name: &str) -> settee_doc::Result<String> {
    let database = databases.get(name).await?;
    let done = database.compact().await?;
    let info = database.info();
    let now = format!("{} bytes live of {} in its files", info.active_bytes, info.file_bytes);
    Ok(match done.segment_count {
        0 => format!("nothing to give back: {now}"),
        count => format!(
            "{count} segments rewritten, of {} bytes, into {} bytes: {now}",
            done.bytes_before, done.bytes_after
        ),
    })
}
