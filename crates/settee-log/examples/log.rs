//! A log: append, wait until it is durable, read by position, find all records after a restart.

use settee_io::{Env, ThreadOptions};
use settee_log::{Batch, Flags, Log, LogOptions, Stage};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let env = Env::current(ThreadOptions::default());
    let (log, _) = Log::open(&env, directory.path(), LogOptions::default(), |_, _| {}).await?;

    let mut batch = Batch::new();
    batch.push(Flags::none(), b"chair", b"", b"four legs");
    batch.push(Flags::none(), b"settee", b"", b"room for two");
    let appended = log.append(&batch, Stage::Persisted).await?; // its position, immediately
    log.wait(appended.last_seq, Stage::Persisted).await?; // on stable storage
    let record = log.read(appended.locations[1]).await?;
    println!("read {:?} at {:?}", record.value(), appended.locations[1]);
    log.close().await?;

    let replay = |_, record: settee_log::RecordRef<'_>| println!("found {:?}", record.seq);
    let (_log, recovery) = Log::open(&env, directory.path(), LogOptions::default(), replay).await?;
    println!("{} records, {} bytes cut", recovery.record_count, recovery.cut_bytes);
    Ok(())
}
