//! A write-ahead log for your own database: here a map in memory, with a checkpoint that replaces the earlier
//! part of the log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use settee_io::{Env, File, OpenMode, ThreadOptions, directory};
use settee_log::{Batch, Flags, Log, LogOptions, Seq, Stage};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Database {
    env: Env,
    directory: PathBuf,
    log: Log,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    last_seq: Seq,
}

impl Database {
    /// Reads the checkpoint, and then the later records of the log.
    async fn open(env: &Env, directory: &Path) -> Result<Database> {
        directory::create(&*env.engine, directory).await?;
        let (mut last_seq, mut map) = read_checkpoint(env, &directory.join("checkpoint")).await?;
        let (log, recovery) = Log::open(env, &directory.join("log"), LogOptions::default(), |_, record| {
            if record.seq > last_seq {
                last_seq = record.seq;
                match record.flags.has(Flags::TOMBSTONE) {
                    true => map.remove(record.key),
                    false => map.insert(record.key.to_vec(), record.value.to_vec()),
                };
            }
        })
        .await?;
        println!("{} keys, {} records in the log", map.len(), recovery.record_count);
        Ok(Database { env: env.clone(), directory: directory.to_path_buf(), log, map, last_seq })
    }

    /// Writes the log first, then the map: what a reader of the map sees is durable.
    async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(Flags::none(), key, b"", value);
        let appended = self.log.append(&batch, Stage::Persisted).await?;
        self.log.wait(appended.last_seq, Stage::Persisted).await?;
        self.map.insert(key.to_vec(), value.to_vec());
        self.last_seq = appended.last_seq;
        Ok(())
    }

    /// Writes the whole map, durably and under its name in one step; then the log is truncated.
    async fn checkpoint(&self) -> Result<()> {
        let mut bytes = self.last_seq.0.to_le_bytes().to_vec();
        for text in self.map.iter().flat_map(|(key, value)| [key, value]) {
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(text);
        }
        let (unfinished, path) = (self.directory.join("checkpoint.new"), self.directory.join("checkpoint"));
        let file = File::open(&self.env.engine, &unfinished, OpenMode::Create).await?;
        file.set_length(0).await?;
        file.write_and_sync_at(0, bytes.into()).await?;
        directory::rename(&*self.env.engine, &unfinished, &path).await?;
        directory::sync(&*self.env.engine, &self.directory).await?;
        self.log.truncate_before(Seq(self.last_seq.0 + 1));
        Ok(())
    }
}

async fn read_checkpoint(env: &Env, path: &Path) -> Result<(Seq, BTreeMap<Vec<u8>, Vec<u8>>)> {
    let file = match File::open(&env.engine, path, OpenMode::Read).await {
        Err(error) if error.is_not_found() => return Ok((Seq(0), BTreeMap::new())),
        file => file?,
    };
    let bytes = file.read_at(0, file.length().await? as usize).await?;
    let (seq, mut rest) = bytes.split_first_chunk().ok_or("half a checkpoint")?;
    let mut texts = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let text = after.split_at_checked(u32::from_le_bytes(*length) as usize);
        let (text, after) = text.ok_or("half a checkpoint")?;
        texts.push(text.to_vec());
        rest = after;
    }
    let pairs = texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    Ok((Seq(u64::from_le_bytes(*seq)), pairs.collect()))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let env = Env::current(ThreadOptions::default());
    let path = directory.path().join("furniture");

    let mut database = Database::open(&env, &path).await?;
    database.put(b"chair", b"four legs").await?;
    database.put(b"settee", b"room for two").await?;
    database.checkpoint().await?;
    database.put(b"chair", b"three legs").await?;
    drop(database); // without closing the log, as if the process had died

    let database = Database::open(&env, &path).await?;
    assert_eq!(database.map[&b"chair"[..]], b"three legs");
    assert_eq!(database.map[&b"settee"[..]], b"room for two");
    println!("the chair has {}", String::from_utf8_lossy(&database.map[&b"chair"[..]]));
    Ok(())
}
