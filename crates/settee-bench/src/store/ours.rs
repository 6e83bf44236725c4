//! The store's implementation of [`TestEngine`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use settee_io::Env;
use settee_store::{Batch, ChunkCache, LogOptions, NodeCache, Snapshot, Stage, Store, StoreOptions};

use super::work::{Failure, Key, Operation, Reader, Spec, TestEngine};

/// The store, open.
pub(super) struct Settee {
    store: Store,
    setup: String,
}

/// The store's options for a spec. Loads have half of the memory for recent entries and half for the tree's
/// nodes. Reads have most for the nodes, or for values if the memory holds all of them; and some for values
/// if there is no page cache. There are no aggregates, since the peers have none.
fn options(spec: &Spec) -> StoreOptions {
    let part = |parts: u64| (spec.memory_bytes / 8 * parts) as usize;
    let is_read = spec.operation == Operation::Read;
    let (recent, nodes, chunks) = match (is_read, spec.direct) {
        (true, true) => (1, 13, 1),
        (true, false) if spec.memory_bytes > spec.records * spec.value_bytes as u64 => (1, 2, 5),
        _ => (4, 4, 0),
    };
    StoreOptions {
        log: LogOptions { direct: spec.direct, ..LogOptions::DEFAULT },
        memory_bytes_max: part(recent),
        cache: Some(Arc::new(NodeCache::new(part(nodes)))),
        chunks: (chunks > 0).then(|| Arc::new(ChunkCache::new(part(chunks)))),
        // Garbage never exceeds 100 %, so that nothing is compacted.
        garbage_percent_max: if spec.compaction { StoreOptions::DEFAULT.garbage_percent_max } else { 100 },
        ..StoreOptions::DEFAULT
    }
}

impl Settee {
    pub(super) async fn open(env: &Env, directory: &Path, spec: &Spec) -> Result<Settee, Failure> {
        let options = options(spec);
        let mib = |bytes: u64| bytes >> 20;
        let setup = format!(
            "the store: {} MiB for recent entries, {} for nodes, {} for values{}, {}",
            mib(options.memory_bytes_max as u64),
            mib(options.cache.as_ref().map_or(0, |cache| cache.stats().bytes_max)),
            mib(options.chunks.as_ref().map_or(0, |chunks| chunks.stats().bytes_max)),
            if options.log.direct { ", direct" } else { "" },
            env.engine.name()
        );
        let (store, _) = Store::open(env, directory, options).await?;
        Ok(Settee { store, setup })
    }
}

impl TestEngine for Settee {
    type Reader = Snapshot;

    async fn write(&self, pairs: &[(Key, Bytes)], durable: bool) -> Result<(), Failure> {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(key, &[], value.clone(), false);
        }
        let stage = if durable { Stage::Persisted } else { Stage::Accepted };
        let seq = self.store.writer().await.commit(&batch, stage).await?;
        if durable {
            self.store.wait(seq, stage).await?;
        }
        Ok(())
    }

    async fn flush_to_kernel(&self) -> Result<(), Failure> {
        let last = self.store.writer().await.last_seq();
        Ok(self.store.wait(last, Stage::Written).await?)
    }

    async fn write_out(&self) -> Result<(), Failure> {
        self.store.flush().await?;
        self.store.checkpoint().await?;
        Ok(())
    }

    /// The store doesn't report the end of background work. A new checkpoint waits for the one in progress,
    /// and after a load of new keys there is nothing to be compacted.
    async fn settle(&self) -> Result<(), Failure> {
        self.store.checkpoint().await?;
        Ok(())
    }

    fn reader(&self) -> Result<Snapshot, Failure> {
        Ok(self.store.snapshot())
    }

    async fn lanes<T, F, L>(self: &Arc<Self>, count: usize, lane: L) -> Result<Vec<T>, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        L: Fn(Arc<Self>, usize) -> F + Clone + Send + Sync + 'static,
    {
        let tasks: Vec<_> = (0..count).map(|index| tokio::spawn(lane(self.clone(), index))).collect();
        let mut results = Vec::with_capacity(count);
        for task in tasks {
            results.push(task.await??);
        }
        Ok(results)
    }

    async fn yield_now(&self) {
        tokio::task::yield_now().await;
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn setup(&self) -> String {
        self.setup.clone()
    }

    fn counters(&self) -> String {
        let stats = self.store.stats();
        let index = self.store.snapshot().index_bytes() >> 20;
        format!(
            "{index} MiB of recent entries, files of {} MiB, {} syncs",
            stats.file_bytes >> 20,
            stats.sync_count
        )
    }
}

impl Reader for Snapshot {
    fn visible(&self) -> Option<u64> {
        Some(self.seq().0)
    }

    async fn get(&mut self, key: &Key, check: impl FnOnce(&[u8]) + Send) -> Result<bool, Failure> {
        let Some(entry) = Snapshot::get(self, key).await? else { return Ok(false) };
        let record = self.read(entry.location).await?;
        check(&record.value());
        Ok(true)
    }

    async fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        mut each: impl FnMut(&[u8], &[u8]) + Send,
    ) -> Result<u64, Failure> {
        let start = std::ops::Bound::Included(&start[..]);
        let mut scan = Snapshot::scan(self, start, std::ops::Bound::Unbounded, false);
        let mut found = 0;
        if values {
            let mut scan = scan.with_values();
            while found < count
                && let Some(row) = scan.next().await?
            {
                each(&row.row.0, &row.records.map_err(Clone::clone)?[0].value());
                found += 1;
            }
            return Ok(found);
        }
        while found < count
            && let Some(entry) = scan.next().await?
        {
            each(entry.key, &[]);
            found += 1;
        }
        Ok(found)
    }
}
