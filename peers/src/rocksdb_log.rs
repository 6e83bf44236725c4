//! RocksDB as a log: its write-ahead log, with the cheapest memtable.

use std::path::Path;

use rocksdb::{DB, DBCompressionType, MemtableFactory, Options, WriteBatch, WriteOptions};

use crate::{Durability, Engine, Failure, MEMTABLE_BYTES};

pub(crate) struct RocksDb {
    database: DB,
    write: WriteOptions,
    durability: Durability,
}

impl RocksDb {
    pub(crate) fn open(directory: &Path, durability: Durability) -> Result<RocksDb, Failure> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_compression_type(DBCompressionType::None);
        options.set_disable_auto_compactions(true);
        options.set_write_buffer_size(MEMTABLE_BYTES);
        options.set_max_total_wal_size(2 * MEMTABLE_BYTES as u64);
        // A vector is sorted only when it is flushed, so that writes cost little besides the log.
        options.set_memtable_factory(MemtableFactory::Vector);
        options.set_allow_concurrent_memtable_write(false);
        options.set_manual_wal_flush(durability == Durability::Buffered);
        let mut write = WriteOptions::default();
        write.set_sync(durability == Durability::Persisted);
        Ok(RocksDb { database: DB::open(&options, directory)?, write, durability })
    }
}

impl Engine for RocksDb {
    fn write(&self, first: u64, values: &[&[u8]]) -> Result<(), Failure> {
        let mut batch = WriteBatch::default();
        for (key, value) in (first..).zip(values) {
            batch.put(key.to_be_bytes(), value);
        }
        Ok(self.database.write_opt(batch, &self.write)?)
    }

    fn finish(&self) -> Result<(), Failure> {
        match self.durability {
            Durability::Buffered => Ok(self.database.flush_wal(false)?),
            Durability::Written | Durability::Persisted => Ok(()),
        }
    }

    fn setup(&self) -> String {
        let log = match self.durability {
            Durability::Buffered => "manual_wal_flush, flushed at the end",
            Durability::Written => "sync=false",
            Durability::Persisted => "sync=true",
        };
        let checksums = match cfg!(all(target_feature = "sse4.2", target_feature = "pclmulqdq")) {
            true => "CRC by SSE 4.2",
            false => "CRC BY A TABLE: build it in its own directory",
        };
        format!("RocksDB 11.8, {log}, vector memtable, no flush or compaction during the run, {checksums}")
    }
}
