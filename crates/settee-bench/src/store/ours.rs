//! The store, as the workloads want it; and what a read costs at least.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use settee_io::Env;
use settee_store::{Batch, NodeCache, Snapshot, Stage, Store, StoreOptions};

use super::work::{Failure, Key, Reader, Spec, Subject};

/// Values that a scan has asked for and not yet been given.
const SCAN_AHEAD_COUNT: usize = 256;

/// The store, open.
pub(super) struct Settee {
    store: Store,
    setup: String,
}

/// Half of the memory for what is recent, half for the tree's nodes. No sums: the peers keep none.
fn options(spec: &Spec) -> StoreOptions {
    let half = (spec.memory_bytes / 2) as usize;
    let options = StoreOptions {
        memory_bytes_max: half,
        cache: Some(Arc::new(NodeCache::new(half))),
        ..StoreOptions::DEFAULT
    };
    match spec.compaction {
        true => options,
        // There is never more garbage than that.
        false => StoreOptions { garbage_percent_max: 100, ..options },
    }
}

impl Settee {
    pub(super) async fn open(env: &Env, folder: &Path, spec: &Spec) -> Result<Settee, Failure> {
        let (store, _) = Store::open(env, folder, options(spec)).await?;
        let setup = format!(
            "the store: {} MiB for recent entries, as much for nodes, {}",
            (spec.memory_bytes / 2) >> 20,
            env.engine.name()
        );
        Ok(Settee { store, setup })
    }
}

impl Subject for Settee {
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

    async fn hand_over(&self) -> Result<(), Failure> {
        let last = self.store.writer().await.last_seq();
        Ok(self.store.wait(last, Stage::Written).await?)
    }

    async fn write_out(&self) -> Result<(), Failure> {
        self.store.flush().await?;
        self.store.checkpoint().await?;
        Ok(())
    }

    /// What it does in the background has no end that it tells: a checkpoint waits for the one
    /// under way, and there is nothing to be compacted after a load of new keys.
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

    async fn breathe(&self) {
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
        let mut ahead = Vec::with_capacity(SCAN_AHEAD_COUNT);
        while found < count {
            let Some(entry) = scan.next().await? else { break };
            found += 1;
            if !values {
                each(entry.key, &[]);
                continue;
            }
            ahead.push((entry.key.to_vec(), entry.location));
            if ahead.len() == SCAN_AHEAD_COUNT || found == count {
                read_many(self, &mut ahead, &mut each).await?;
            }
        }
        read_many(self, &mut ahead, &mut each).await?;
        Ok(found)
    }
}

/// Reads the values of neighbouring keys, all asked for at once.
async fn read_many(
    snapshot: &Snapshot,
    ahead: &mut Vec<(Vec<u8>, settee_store::Location)>,
    each: &mut (impl FnMut(&[u8], &[u8]) + Send),
) -> Result<(), Failure> {
    let reads = ahead.iter().map(|(_, location)| snapshot.read(*location));
    let records = futures_util::future::try_join_all(reads).await?;
    for ((key, _), record) in ahead.iter().zip(records) {
        each(key, &record.value());
    }
    ahead.clear();
    Ok(())
}
