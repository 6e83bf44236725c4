//! `settee compact`: rewrites segments of a data directory to free the disk space of replaced records.

use std::path::PathBuf;

use settee_doc::Databases;

use crate::data_directory;
use crate::output::{CommandResult, print_stdout};

#[derive(clap::Args)]
#[command(after_help = "A running server compacts in the background, and on POST /NAME/_compact.")]
pub(crate) struct Args {
    /// Data directory that no server has open
    #[arg(value_name = "DATA_DIRECTORY", env = "SETTEE_DATA_DIR", default_value = "./settee-data")]
    directory: PathBuf,

    /// Compact only this database
    #[arg(long, alias = "database", value_name = "NAME")]
    db: Option<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compact(args))
}

async fn compact(args: Args) -> CommandResult {
    let databases = data_directory::open_existing(&args.directory, "use POST /NAME/_compact").await?;
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
            Ok(text) => print_stdout!("{name}: {text}"),
            Err(error) => result = Err(format!("{name}: {error}").into()),
        }
    }
    databases.close().await?;
    result
}

async fn compact_one(databases: &Databases, name: &str) -> settee_doc::Result<String> {
    let database = databases.get(name).await?;
    let summary = database.compact().await?;
    let info = database.info();
    let sizes = format!("{} bytes live of {} in its files", info.active_bytes, info.file_bytes);
    Ok(match summary.segment_count {
        0 => format!("nothing to rewrite: {sizes}"),
        count => format!(
            "{count} segments rewritten, from {} to {} bytes: {sizes}",
            summary.bytes_before, summary.bytes_after
        ),
    })
}
