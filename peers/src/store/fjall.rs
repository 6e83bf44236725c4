//! fjall as a store.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use super::work::{Failure, Key, Spec};
use super::{Engine, View, cache_bytes, memtable_bytes};

/// Minimum of the limit on journals in bytes, the engine's default.
const JOURNAL_BYTES_MIN: u64 = 512 << 20;

/// Interval between two checks for the end of background work.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Fjall {
    database: Database,
    keyspace: Keyspace,
    setup: String,
}

impl Engine for Fjall {
    type View = FjallView;

    fn open(directory: &Path, spec: &Spec) -> Result<Fjall, Failure> {
        let database = Database::builder(directory)
            .cache_size(cache_bytes(spec))
            .manual_journal_persist(true)
            .journal_compression(CompressionType::None)
            .max_journaling_size(JOURNAL_BYTES_MIN.max(spec.memory_bytes))
            .open()?;
        let memtable = memtable_bytes(spec);
        let options = || {
            KeyspaceCreateOptions::default()
                .manual_journal_persist(true)
                .data_block_compression_policy(CompressionPolicy::disabled())
                .index_block_compression_policy(CompressionPolicy::disabled())
                .max_memtable_size(memtable)
        };
        let keyspace = database.keyspace("values", options)?;
        let setup = format!(
            "fjall 3.1: cache {} MiB, memtables of {} MiB, no compression, journal in memory until handed over",
            cache_bytes(spec) >> 20,
            memtable >> 20
        );
        Ok(Fjall { database, keyspace, setup })
    }

    fn write(&self, pairs: &[(Key, Bytes)], durable: bool) -> Result<(), Failure> {
        let mut batch = self.database.batch().durability(durable.then_some(PersistMode::SyncData));
        for (key, value) in pairs {
            batch.insert(&self.keyspace, *key, &value[..]);
        }
        Ok(batch.commit()?)
    }

    fn flush_to_kernel(&self) -> Result<(), Failure> {
        Ok(self.database.persist(PersistMode::Buffer)?)
    }

    fn write_out(&self) -> Result<(), Failure> {
        self.keyspace.rotate_memtable_and_wait()?;
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }

    fn settle(&self) -> Result<(), Failure> {
        while self.database.outstanding_flushes() > 0 || self.database.active_compactions() > 0 {
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn view(&self) -> Result<FjallView, Failure> {
        Ok(FjallView { snapshot: self.database.snapshot(), keyspace: self.keyspace.clone() })
    }

    fn setup(&self) -> String {
        self.setup.clone()
    }

    fn counters(&self) -> String {
        format!("{} compactions", self.database.compactions_completed())
    }
}

pub(super) struct FjallView {
    snapshot: fjall::Snapshot,
    keyspace: Keyspace,
}

impl View for FjallView {
    fn get(&mut self, key: &Key, check: impl FnOnce(&[u8])) -> Result<bool, Failure> {
        let value = self.snapshot.get(&self.keyspace, key)?;
        Ok(value.map(|value| check(&value)).is_some())
    }

    fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<u64, Failure> {
        let mut found = 0;
        for pair in self.snapshot.range(&self.keyspace, *start..).take(count as usize) {
            match values {
                true => {
                    let (key, value) = pair.into_inner()?;
                    each(&key, &value);
                }
                false => each(&pair.key()?, &[]),
            }
            found += 1;
        }
        Ok(found)
    }
}
