//! Goal: a task that panics leaves no other task waiting: every write, wait, subscription and close returns,
//! and nothing acknowledged is lost.
//! Method: in the simulation, make each task of a store panic at some of its calls into its environment, one
//! after another. Write until a commit is refused, try another writer and a checkpoint, and close the store;
//! the simulation fails if nothing can make progress. Then cut the power, and open the store again.

use crate::common::model;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::OPTIONS;
use settee_io::Env;
use settee_sim::{Panics, Sim, SimDisk};
use settee_store::{Batch, Seq, Stage, Store, StoreError, StoreOptions};
use tokio::sync::oneshot;

/// Makes many checkpoints, and has little memory.
const BUSY: StoreOptions = StoreOptions {
    memory_bytes_max: 32 << 10,
    checkpoint_entries_min: 40,
    checkpoint_garbage_min: 16 << 10,
    garbage_percent_max: 10,
    ..OPTIONS
};

const KEY_COUNT: u32 = 40;
const ROUND_COUNT: u32 = 6;

async fn open(env: &Env) -> Store {
    Store::open(env, Path::new("/data/store"), BUSY).await.unwrap().0
}

/// A run's store, what was acknowledged, and the checkpoint errors it reported.
#[derive(Default)]
struct Run {
    store: Mutex<Option<Arc<Store>>>,
    acknowledged: Mutex<BTreeMap<u32, u32>>,
    reported: Mutex<Vec<StoreError>>,
}

impl Run {
    fn store(&self) -> Option<Arc<Store>> {
        self.store.lock().unwrap().clone()
    }

    /// Opens the store and writes to it until it refuses.
    async fn write(&self, env: &Env) {
        let store = Arc::new(open(env).await);
        *self.store.lock().unwrap() = Some(store.clone());
        for round in 0..ROUND_COUNT {
            for key in 0..KEY_COUNT {
                if self.put(&store, key, round).await.is_none() {
                    return;
                }
            }
            // Segments are sealed, listed and compacted meanwhile.
            env.clock.sleep(Duration::from_secs(2)).await;
        }
    }

    async fn put(&self, store: &Store, key: u32, round: u32) -> Option<()> {
        let mut batch = Batch::new();
        batch.put(&key.to_be_bytes(), b"meta", vec![round as u8; 2_000].into(), false);
        let committed = store.writer().await.commit(&batch, Stage::Persisted).await;
        self.reported.lock().unwrap().extend(store.checkpoint_error());
        store.wait(committed.ok()?, Stage::Persisted).await.ok()?;
        self.acknowledged.lock().unwrap().insert(key, round);
        Some(())
    }

    /// Uses the store after the panic.
    async fn go_on(&self, env: &Env) {
        let Some(store) = self.store() else { return };
        let follower = store.clone();
        env.spawn("follower", async move {
            let mut seq = Seq(0);
            while follower.changed_after(seq).await.is_ok() {
                seq = follower.snapshot().seq();
            }
        });
        self.put(&store, 0, ROUND_COUNT).await;
        let _ = store.checkpoint().await;
        let _ = store.compact().await;
        let _ = store.flush().await;
        self.put(&store, 1, ROUND_COUNT).await;
    }
}

/// Runs two writers, one after the other, and closes the store; returns whether all succeeded.
async fn write_and_close(env: Env, run: Arc<Run>) -> bool {
    for is_first in [true, false] {
        let (done, ended) = oneshot::channel::<()>();
        let (its_run, its_env) = (run.clone(), env.clone());
        let name = if is_first { "first writer" } else { "second writer" };
        env.spawn(name, async move {
            let _done = done;
            match is_first {
                true => its_run.write(&its_env).await,
                false => its_run.go_on(&its_env).await,
            }
        });
        let _ = ended.await;
    }
    match run.store() {
        Some(store) => store.close().await.is_ok(),
        None => false,
    }
}

/// Runs with a task that panics at one of its calls. Returns whether it made that call, and the checkpoint
/// errors.
fn panics_at(task: &'static str, call: u64) -> (bool, Vec<StoreError>) {
    let case = format!("{task:?} at its call {call}");
    let disk = SimDisk::new(call);
    let sim = Sim::with_disk(&disk).step_count_max(500_000);
    let panics = Panics::new(task, call);
    let env = panics.env(&sim.env());
    let run = Arc::new(Run::default());
    let (done, ended) = oneshot::channel();
    let all = write_and_close(env.clone(), run.clone());
    env.spawn("driver", async move {
        let _ = done.send(all.await);
    });
    let closed = sim.run(ended).unwrap().unwrap();
    assert!(closed || panics.has_fired(), "{case}: it did not close well");
    drop(sim);
    let acknowledged = run.acknowledged.lock().unwrap().clone();
    let sim = Sim::with_disk(&disk.after_power_loss());
    let env = sim.env();
    sim.run(async {
        let store = open(&env).await;
        let snapshot = store.snapshot();
        for (key, round) in &acknowledged {
            let entry = snapshot.get(&key.to_be_bytes()).await.unwrap();
            let entry = entry.unwrap_or_else(|| panic!("{case}: {key} is lost"));
            let found = u32::from(snapshot.read(entry.location).await.unwrap().value()[0]);
            assert!(found >= *round, "{case}: {key} has {found} and not {round}");
        }
        store.checkpoint().await.unwrap();
        store.close().await.unwrap();
    })
    .unwrap();
    let reported = std::mem::take(&mut *run.reported.lock().unwrap());
    (panics.has_fired(), reported)
}

/// Makes a task panic at one in `step` of its calls, from `first` on; returns how often it panicked.
fn some_calls_of(task: &'static str, first: u64, step: usize) -> usize {
    (first..).step_by(step).take_while(|call| panics_at(task, *call).0).count()
}

#[test]
fn a_checkpoint_that_panics_keeps_nobody_waiting_and_is_reported() {
    let mut reported_count = 0;
    let calls = (0..).step_by(7).map(|call| panics_at("store checkpoint", call));
    let count = calls
        .take_while(|(has_fired, _)| *has_fired)
        .inspect(|(_, reported)| {
            let is_of_panic = |error: &StoreError| matches!(error, StoreError::Panicked { .. });
            reported_count += usize::from(reported.iter().any(is_of_panic));
        })
        .count();
    assert!(count > 20 && reported_count > count / 2, "{reported_count} of {count}");
}

#[test]
fn compaction_that_panics_keeps_nobody_waiting() {
    assert!(some_calls_of("store compaction", 0, 11) > 10);
}

#[test]
fn a_listing_that_panics_keeps_nobody_waiting() {
    assert!(some_calls_of("store segments", 0, 5) > 5);
}

#[test]
fn a_commit_of_a_tree_that_panics_keeps_nobody_waiting() {
    assert!(some_calls_of("tree commit", 0, 1) > 2);
}

#[test]
fn a_writer_that_panics_keeps_no_other_waiting() {
    assert!(some_calls_of("first writer", 0, 31) > 10);
}
