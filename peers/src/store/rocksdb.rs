//! RocksDB as a store.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Options, WaitForCompactOptions, WriteBatch, WriteOptions,
};

use super::work::{Failure, Key, Operation, Spec};
use super::{Engine, MEMTABLE_COUNT, View, memtable_bytes, own_cache_bytes};

/// Bits per key of the filters, as RocksDB's tuning guide recommends.
const FILTER_BITS: f64 = 10.0;

pub(super) struct RocksDb {
    database: Arc<DB>,
    setup: String,
}

impl Engine for RocksDb {
    type View = RocksDbView;

    fn open(directory: &Path, spec: &Spec) -> Result<RocksDb, Failure> {
        let mut blocks = BlockBasedOptions::default();
        let cache = Cache::new_lru_cache(own_cache_bytes(spec) as usize);
        blocks.set_block_cache(&cache);
        blocks.set_bloom_filter(FILTER_BITS, false);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.increase_parallelism(cores as i32);
        options.set_compression_type(DBCompressionType::None);
        options.set_block_based_table_factory(&blocks);
        options.set_level_compaction_dynamic_level_bytes(true);
        options.set_write_buffer_size(memtable_bytes(spec) as usize);
        options.set_max_write_buffer_number(MEMTABLE_COUNT as i32);
        options.set_use_direct_reads(spec.direct);
        options.set_disable_auto_compactions(!spec.compaction);
        // For a durable write the log must be written at once.
        let is_durable = spec.operation == Operation::Durable;
        options.set_manual_wal_flush(!is_durable);
        let checksums = match cfg!(all(target_feature = "sse4.2", target_feature = "pclmulqdq")) {
            true => "CRC by SSE 4.2",
            false => "CRC BY A TABLE: build it in its own directory",
        };
        let setup = format!(
            "RocksDB 11.8: block cache {} MiB, {MEMTABLE_COUNT} memtables of {} MiB, filters of {FILTER_BITS} bits, \
             no compression, {}, {}, {checksums}",
            own_cache_bytes(spec) >> 20,
            memtable_bytes(spec) >> 20,
            if spec.direct { "direct reads" } else { "buffered reads" },
            if is_durable { "sync=true" } else { "manual_wal_flush" },
        );
        Ok(RocksDb { database: Arc::new(DB::open(&options, directory)?), setup })
    }

    fn write(&self, pairs: &[(Key, Bytes)], durable: bool) -> Result<(), Failure> {
        let mut batch = WriteBatch::default();
        for (key, value) in pairs {
            batch.put(key, value);
        }
        let mut options = WriteOptions::default();
        options.set_sync(durable);
        Ok(self.database.write_opt(batch, &options)?)
    }

    fn flush_to_kernel(&self) -> Result<(), Failure> {
        Ok(self.database.flush_wal(false)?)
    }

    fn write_out(&self) -> Result<(), Failure> {
        self.database.flush()?;
        Ok(self.database.flush_wal(true)?)
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(self.database.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn view(&self) -> Result<RocksDbView, Failure> {
        Ok(RocksDbView(self.database.clone()))
    }

    fn setup(&self) -> String {
        self.setup.clone()
    }

    fn counters(&self) -> String {
        let property = |name: &str| self.database.property_int_value(name).ok().flatten().unwrap_or(0);
        format!(
            "{} files at level 0, {} MiB to compact",
            property("rocksdb.num-files-at-level0"),
            property("rocksdb.estimate-pending-compaction-bytes") >> 20
        )
    }
}

/// A reader of the newest state, which costs less than a snapshot.
pub(super) struct RocksDbView(Arc<DB>);

impl View for RocksDbView {
    fn get(&mut self, key: &Key, check: impl FnOnce(&[u8])) -> Result<bool, Failure> {
        Ok(self.0.get_pinned(key)?.map(|value| check(&value)).is_some())
    }

    fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<u64, Failure> {
        let mut cursor = self.0.raw_iterator();
        cursor.seek(start);
        let mut found = 0;
        while found < count {
            let Some((key, value)) = cursor.item() else { break };
            each(key, if values { value } else { &[] });
            found += 1;
            cursor.next();
        }
        cursor.status()?;
        Ok(found)
    }
}
