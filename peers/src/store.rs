//! The engines with which `settee bench store` compares Settee's store. They run the workloads of the same
//! source ([`work`]) with blocking calls.
//!
//! The engines have their fastest settings: no compression (random values can't be compressed), as much
//! memory for caches and memtables as Settee's store, and a write-ahead log if the engine has one. Like
//! Settee's, the log is written when the workload requires it and not with every batch.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use self::work::meter::Baseline;
use self::work::{Failure, Key, Message, Spec, TestEngine};

mod fjall;
mod lmdb;
mod redb;
mod rocksdb;
#[path = "../../crates/settee-bench/src/store/work/mod.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
pub(crate) mod work;

/// Number of memtables, which share the half of the memory that isn't the cache's.
const MEMTABLE_COUNT: u64 = 4;

/// Minimum size of a memtable in bytes.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;

/// Size of a memtable in bytes.
fn memtable_bytes(spec: &Spec) -> u64 {
    (spec.memory_bytes / 2 / MEMTABLE_COUNT).max(MEMTABLE_BYTES_MIN)
}

/// Size of the cache in bytes.
fn cache_bytes(spec: &Spec) -> u64 {
    spec.memory_bytes / 2
}

/// Size in bytes of the cache of an engine that can read past the page cache. If the spec requires that, the
/// cache has nearly all of twice the memory.
fn own_cache_bytes(spec: &Spec) -> u64 {
    if spec.direct { spec.memory_bytes / 8 * 14 } else { cache_bytes(spec) }
}

/// An engine with blocking calls and an open database. For the methods see [`TestEngine`].
trait Engine: Send + Sync + Sized + 'static {
    type View: View;

    fn open(directory: &Path, spec: &Spec) -> Result<Self, Failure>;
    fn write(&self, pairs: &[(Key, Bytes)], durable: bool) -> Result<(), Failure>;
    fn flush_to_kernel(&self) -> Result<(), Failure>;
    fn write_out(&self) -> Result<(), Failure>;
    fn settle(&self) -> Result<(), Failure>;
    fn view(&self) -> Result<Self::View, Failure>;
    fn setup(&self) -> String;
    fn counters(&self) -> String;
}

/// A reader with blocking calls; see [`work::Reader`].
trait View: Send + 'static {
    fn get(&mut self, key: &Key, check: impl FnOnce(&[u8])) -> Result<bool, Failure>;

    fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        each: impl FnMut(&[u8], &[u8]),
    ) -> Result<u64, Failure>;
}

/// Implements [`TestEngine`] for an engine with blocking calls.
struct Blocking<E>(E);

impl<E: Engine> TestEngine for Blocking<E> {
    type Reader = BlockingView<E::View>;

    async fn write(&self, pairs: &[(Key, Bytes)], durable: bool) -> Result<(), Failure> {
        self.0.write(pairs, durable)
    }

    async fn flush_to_kernel(&self) -> Result<(), Failure> {
        self.0.flush_to_kernel()
    }

    async fn write_out(&self) -> Result<(), Failure> {
        self.0.write_out()
    }

    async fn settle(&self) -> Result<(), Failure> {
        self.0.settle()
    }

    fn reader(&self) -> Result<BlockingView<E::View>, Failure> {
        Ok(BlockingView(self.0.view()?))
    }

    async fn lanes<T, F, L>(self: &Arc<Self>, count: usize, lane: L) -> Result<Vec<T>, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        L: Fn(Arc<Self>, usize) -> F + Clone + Send + Sync + 'static,
    {
        if count == 1 {
            return Ok(vec![now(lane(self.clone(), 0))?]);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|index| {
                    let future = lane(self.clone(), index);
                    scope.spawn(move || now(future))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a lane panicked")?).collect()
        })
    }

    async fn yield_now(&self) {}

    async fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn setup(&self) -> String {
        self.0.setup()
    }

    fn counters(&self) -> String {
        self.0.counters()
    }
}

struct BlockingView<V>(V);

impl<V: View> work::Reader for BlockingView<V> {
    fn visible(&self) -> Option<u64> {
        None
    }

    async fn get(&mut self, key: &Key, check: impl FnOnce(&[u8]) + Send) -> Result<bool, Failure> {
        self.0.get(key, check)
    }

    async fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        each: impl FnMut(&[u8], &[u8]) + Send,
    ) -> Result<u64, Failure> {
        self.0.scan(start, count, values, each)
    }
}

/// The result of a future that is never pending.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the future of a blocking engine was pending"),
    }
}

/// Runs a spec, in JSON, on an engine in `directory`, which may contain the database of an earlier run.
pub(crate) fn run(
    name: &str,
    directory: &Path,
    spec: &str,
    send: impl FnMut(Message) + Send,
) -> Result<(), Failure> {
    let spec: Spec = serde_json::from_str(spec)?;
    if let Some(group) = &spec.group {
        std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    }
    std::fs::create_dir_all(directory)?;
    match name {
        "fjall" => run_on::<fjall::Fjall>(directory, &spec, send),
        "lmdb" => run_on::<lmdb::Lmdb>(directory, &spec, send),
        "redb" => run_on::<redb::Redb>(directory, &spec, send),
        "rocksdb" => run_on::<rocksdb::RocksDb>(directory, &spec, send),
        _ => Err(format!("there is no engine {name:?}").into()),
    }
}

fn run_on<E: Engine>(directory: &Path, spec: &Spec, send: impl FnMut(Message) + Send) -> Result<(), Failure> {
    let baseline = Baseline::new();
    let engine = Arc::new(Blocking(E::open(directory, spec)?));
    now(work::run(engine, spec, directory, baseline.opened(), send))
}

#[cfg(test)]
mod tests {
    //! Goal: every engine runs every operation, and other bytes are detected.
    //! Method: the smallest amounts, in a directory that is removed afterwards.

    use super::work::Operation;
    use super::work::data::Order;
    use super::*;

    fn spec(operation: Operation) -> Spec {
        Spec {
            operation,
            order: Order::Random,
            records: 300,
            value_bytes: 100,
            batch: 16,
            count: 40,
            warm: 8,
            seconds_max: 0,
            lanes: 4,
            memory_bytes: 16 << 20,
            write_out: true,
            compaction: true,
            direct: false,
            group: None,
        }
    }

    fn operations(name: &str, directory: &Path, spec: &Spec) -> Result<u64, Failure> {
        let mut operations = None;
        run(name, directory, &serde_json::to_string(spec)?, |message| {
            if let Message::Report(report) = message {
                operations = Some(report.operations);
            }
        })?;
        operations.ok_or_else(|| "no report".into())
    }

    #[test]
    fn every_engine_runs_every_operation_and_other_bytes_are_detected() {
        for name in ["fjall", "lmdb", "redb", "rocksdb"] {
            let directory =
                std::env::temp_dir().join(format!("settee-peers-{}-{name}-store", std::process::id()));
            for (operation, expected) in [
                (Operation::Ingest, 300),
                (Operation::IngestBesideReader, 300),
                (Operation::Read, 40),
                (Operation::ScanKeys, 300),
                (Operation::ScanValues, 40),
                (Operation::ReadInOrder, 40),
                (Operation::Open, 1),
                (Operation::Durable, 40),
            ] {
                let done = operations(name, &directory, &spec(operation)).unwrap();
                assert_eq!(done, expected, "{name} {operation:?}");
            }
            let spoilt = Spec { value_bytes: 101, ..spec(Operation::Read) };
            assert!(operations(name, &directory, &spoilt).is_err(), "{name}");
            let over = operations(name, &directory, &spec(Operation::Overwrite)).unwrap();
            std::fs::remove_dir_all(&directory).unwrap();
            assert_eq!(over, 300 * 40, "{name}");
        }
    }

    #[test]
    fn an_unknown_engine_is_refused() {
        let directory = std::env::temp_dir().join(format!("settee-peers-{}-other", std::process::id()));
        let refused = operations("other", &directory, &spec(Operation::Ingest));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(refused.unwrap_err().to_string().contains("other"));
    }
}
