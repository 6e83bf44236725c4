//! A store: put, take a snapshot, scan, merge, make a checkpoint, and reopen.

use std::ops::Bound;

use settee_io::{Env, ThreadOptions};
use settee_store::{Batch, Stage, Store, StoreOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let env = Env::current(ThreadOptions::default());
    let (store, _) = Store::open(&env, directory.path(), StoreOptions::default()).await?;

    let mut batch = Batch::new();
    batch.put(b"chair", b"oak", "four legs".into(), false);
    batch.put(b"settee", b"velvet", "room for two".into(), false);
    let seq = store.writer().await.commit(&batch, Stage::Persisted).await?;
    store.wait(seq, Stage::Persisted).await?; // on stable storage, and visible to snapshots
    let before = store.snapshot();

    let mut batch = Batch::new();
    batch.delete(b"chair");
    batch.merge(b"settee", b"velvet", ", or three".into()); // appends an operand; the base value is not read
    let seq = store.writer().await.commit(&batch, Stage::Persisted).await?;
    store.wait(seq, Stage::Persisted).await?;
    store.checkpoint().await?; // also made in the background

    let now = store.snapshot();
    let settee = now.get(b"settee").await?.expect("it was put");
    for part in now.read_parts(settee.pointers()).await? {
        println!("newest first: {:?}", part.value());
    }
    let mut scan = before.scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(entry) = scan.next().await? {
        println!("there was {}", String::from_utf8_lossy(entry.key)); // the chair, too
    }
    drop((scan, before, now));
    store.close().await?;

    let (store, recovery) = Store::open(&env, directory.path(), StoreOptions::default()).await?;
    println!("{} records replayed", recovery.record_count); // none since the checkpoint
    assert!(store.snapshot().get(b"chair").await?.is_none());
    Ok(())
}
