//! The engines that `settee bench store` is compared with: the same workloads from the same
//! source as ours ([`work`]), on engines that block.
//!
//! What counts as an engine's best: no compression (the values have nothing to compress), the
//! caches and memtables of the memory that ours has, a write-ahead log wherever the engine has one,
//! which is written when the run says so and not with every batch, as ours isn't.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use self::work::meter::Base;
use self::work::{Failure, Key, Spec, Subject, Told};

mod fjall;
mod lmdb;
mod redb;
mod rocksdb;
#[path = "../../crates/settee-bench/src/store/work/mod.rs"]
#[allow(dead_code)]
pub(crate) mod work;

/// Parts of the memory that an engine of memtables has: so many of them, in the half that isn't
/// the cache's.
const MEMTABLE_COUNT: u64 = 4;

/// No memtable is smaller, in bytes.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;

/// Bytes of one memtable, and of the cache.
fn memtable_bytes(spec: &Spec) -> u64 {
    (spec.memory_bytes / 2 / MEMTABLE_COUNT).max(MEMTABLE_BYTES_MIN)
}

fn cache_bytes(spec: &Spec) -> u64 {
    spec.memory_bytes / 2
}

/// The same for an engine that reads past the page cache: where the spec wants that, nearly all is
/// for its own, of twice the memory.
fn own_cache_bytes(spec: &Spec) -> u64 {
    if spec.direct { spec.memory_bytes / 8 * 14 } else { cache_bytes(spec) }
}

/// An engine, open.
trait Engine: Send + Sync + Sized + 'static {
    type View: View;

    fn open(directory: &Path, spec: &Spec) -> Result<Self, Failure>;

    /// See [`Subject`].
    fn write(&self, pairs: &[(Key, Bytes)], durable: bool) -> Result<(), Failure>;
    fn hand_over(&self) -> Result<(), Failure>;
    fn write_out(&self) -> Result<(), Failure>;
    fn settle(&self) -> Result<(), Failure>;
    fn view(&self) -> Result<Self::View, Failure>;
    fn setup(&self) -> String;
    fn counters(&self) -> String;
}

/// See [`work::Reader`].
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

/// An engine that blocks, as the workloads want it.
struct Blocking<E>(E);

impl<E: Engine> Subject for Blocking<E> {
    type Reader = BlockingView<E::View>;

    async fn write(&self, pairs: &[(Key, Bytes)], durable: bool) -> Result<(), Failure> {
        self.0.write(pairs, durable)
    }

    async fn hand_over(&self) -> Result<(), Failure> {
        self.0.hand_over()
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

    async fn breathe(&self) {}

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

/// The result of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("an engine that blocks was pending"),
    }
}

/// Runs a spec, in JSON, on an engine in `directory`, which may hold what an earlier run left.
pub(crate) fn run(
    name: &str,
    directory: &Path,
    spec: &str,
    tell: impl FnMut(Told) + Send,
) -> Result<(), Failure> {
    let spec: Spec = serde_json::from_str(spec)?;
    if let Some(group) = &spec.group {
        std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    }
    std::fs::create_dir_all(directory)?;
    match name {
        "fjall" => run_on::<fjall::Fjall>(directory, &spec, tell),
        "lmdb" => run_on::<lmdb::Lmdb>(directory, &spec, tell),
        "redb" => run_on::<redb::Redb>(directory, &spec, tell),
        "rocksdb" => run_on::<rocksdb::RocksDb>(directory, &spec, tell),
        _ => Err(format!("there is no engine {name:?}").into()),
    }
}

fn run_on<E: Engine>(directory: &Path, spec: &Spec, tell: impl FnMut(Told) + Send) -> Result<(), Failure> {
    let base = Base::new();
    let engine = Arc::new(Blocking(E::open(directory, spec)?));
    now(work::run(engine, spec, directory, base.opened(), tell))
}

#[cfg(test)]
mod tests {
    //! Goal: every engine runs every operation, and other bytes are found out.
    //! Method: the smallest amounts, in a directory that goes afterwards.

    use super::work::{Operation, Order};
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
        run(name, directory, &serde_json::to_string(spec)?, |told| {
            if let Told::Report(report) = told {
                operations = Some(report.operations);
            }
        })?;
        operations.ok_or_else(|| "no report".into())
    }

    #[test]
    fn every_engine_runs_every_operation_and_other_bytes_are_found_out() {
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
    fn an_engine_that_is_not_there_is_refused() {
        let directory = std::env::temp_dir().join(format!("settee-peers-{}-other", std::process::id()));
        let refused = operations("other", &directory, &spec(Operation::Ingest));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(refused.unwrap_err().to_string().contains("other"));
    }
}
