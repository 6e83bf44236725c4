//! fjall as a log: its journal, with its memtable.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::{Durability, Engine, Failure, MEMTABLE_BYTES};

pub(crate) struct Fjall {
    database: Database,
    keyspace: Keyspace,
    mode: Option<PersistMode>,
}

impl Fjall {
    pub(crate) fn open(directory: &Path, durability: Durability) -> Result<Fjall, Failure> {
        let database = Database::builder(directory)
            .manual_journal_persist(true)
            .max_journaling_size(2 * MEMTABLE_BYTES as u64)
            .open()?;
        let options = || {
            KeyspaceCreateOptions::default()
                .manual_journal_persist(true)
                .max_memtable_size(MEMTABLE_BYTES as u64)
        };
        let keyspace = database.keyspace("values", options)?;
        let mode = match durability {
            Durability::Buffered => None,
            Durability::Written => Some(PersistMode::Buffer),
            Durability::Persisted => Some(PersistMode::SyncData),
        };
        Ok(Fjall { database, keyspace, mode })
    }
}

impl Engine for Fjall {
    fn write(&self, first: u64, values: &[&[u8]]) -> Result<(), Failure> {
        let mut batch = self.database.batch().durability(self.mode);
        for (key, value) in (first..).zip(values) {
            batch.insert(&self.keyspace, key.to_be_bytes(), *value);
        }
        Ok(batch.commit()?)
    }

    fn finish(&self) -> Result<(), Failure> {
        Ok(self.database.persist(PersistMode::Buffer)?)
    }

    fn setup(&self) -> String {
        let mode = match self.mode {
            None => "no persist until the end".to_owned(),
            Some(mode) => format!("PersistMode::{mode:?} for each batch"),
        };
        format!("fjall 3.1, {mode}, skiplist memtable, no flush or compaction during the run")
    }
}
