//! `settee compact`: gives back the space of what was replaced, while no server runs on the folder.

use std::path::PathBuf;

use settee_doc::Databases;
use settee_io::{Env, ThreadOptions};

use crate::CommandResult;

#[derive(clap::Args)]
#[command(after_help = "A server that runs does this by itself, and when POST /NAME/_compact asks for it.")]
pub(crate) struct Args {
    /// Data folder, while no server runs on it
    #[arg(value_name = "DATA_FOLDER", env = "SETTEE_DATA_DIR", default_value = "./settee-data")]
    folder: PathBuf,

    /// Compact this database alone
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compact(args))
}

async fn compact(args: Args) -> CommandResult {
    if !args.folder.is_dir() {
        return Err(format!("there is no data folder {}", args.folder.display()).into());
    }
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    let databases = Databases::open(env, &args.folder)
        .await
        .map_err(|error| format!("{error} (where a server runs on the folder, use POST /NAME/_compact)"))?;
    let names = match args.database {
        Some(name) => vec![name],
        None => databases.names(),
    };
    let mut result: CommandResult = Ok(());
    for name in names {
        let compacted = async { databases.get(&name).await?.compact().await };
        match compacted.await {
            Ok(done) => println!(
                "{name}: {} segments rewritten, {} bytes before, {} after",
                done.segment_count, done.bytes_before, done.bytes_after
            ),
            Err(error) => result = Err(format!("{name}: {error}").into()),
        }
    }
    databases.close().await?;
    result
}
