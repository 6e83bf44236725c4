//! Goal: after a panic of a task, every caller that writes, waits or closes gets an answer, and no
//! acknowledged record is lost.
//! Method: in the simulation, each task of a log panics at each of its calls into its environment, one after
//! another. A writer continues until it is refused, another writer tries, and the log is closed; the
//! simulation fails if no task makes progress. Then the power fails, and the log is opened again.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use settee_io::Env;
use settee_log::{Batch, Flags, Log, LogOptions, Seq, Stage};
use settee_sim::{Panics, Sim, SimDisk};
use tokio::sync::oneshot;

const DIRECTORY: &str = "/data/log";

/// Segments of a few batches each, several of which are sealed, truncated and recycled.
const OPTIONS: LogOptions = LogOptions {
    batch_bytes_max: 16 << 10,
    segment_bytes_min: 40 << 10,
    segment_bytes_max: 40 << 10,
    recycled_percent_max: 100,
    ..LogOptions::DEFAULT
};

/// The value whose write fails for lack of disk space at first; its writer waits until it is persisted.
const FULL_AT: u8 = 31;

/// Enough for a segment to be preallocated.
const VALUE_COUNT: u8 = 140;

/// Number of records that are truncated.
const TRUNCATED_COUNT: u8 = 110;

async fn open(env: &Env) -> (Log, Vec<Vec<u8>>) {
    let mut found = Vec::new();
    let opened =
        Log::open(env, Path::new(DIRECTORY), OPTIONS, |_, record| found.push(record.value.to_vec())).await;
    (opened.unwrap().0, found)
}

/// A run's log, and its acknowledged records.
#[derive(Default)]
struct Run {
    log: Mutex<Option<Arc<Log>>>,
    acknowledged: Mutex<Vec<Vec<u8>>>,
}

impl Run {
    fn log(&self) -> Option<Arc<Log>> {
        self.log.lock().unwrap().clone()
    }

    /// Opens the log and writes to it until it stops.
    async fn write(&self, env: &Env, disk: &SimDisk) {
        let log = Arc::new(open(env).await.0);
        *self.log.lock().unwrap() = Some(log.clone());
        for index in 0..VALUE_COUNT {
            // A period without disk space for accepted batches.
            let _full = disk.clone().refuses_writes(index == FULL_AT);
            let stage = if index % 5 == 0 { Stage::Accepted } else { Stage::Persisted };
            let mut batch = Batch::new();
            let value = vec![index; 13_000];
            batch.push(Flags::none(), b"key", b"", &value);
            let Ok(appended) = log.append(&batch, stage).await else { return };
            if index == FULL_AT {
                env.clock.sleep(Duration::from_secs(1)).await;
                let _room = disk.clone().refuses_writes(false);
            }
            if log.wait(appended.last_seq, stage).await.is_err() {
                return;
            }
            if stage == Stage::Persisted {
                self.acknowledged.lock().unwrap().push(value);
            }
            if index % 30 == 29 {
                // The previous segments may be sealed now.
                env.clock.sleep(Duration::from_secs(1)).await;
            }
            if index == TRUNCATED_COUNT + 10 {
                log.truncate_before(Seq(TRUNCATED_COUNT.into()));
            }
        }
    }
}

/// Runs two writers one after the other, and closes the log; returns whether that succeeded.
async fn write_twice_and_close(env: Env, disk: SimDisk, run: Arc<Run>) -> bool {
    for name in ["first writer", "second writer"] {
        let (done, ended) = oneshot::channel::<()>();
        let (run, its_env, its_disk) = (run.clone(), env.clone(), disk.clone());
        env.spawn(name, async move {
            let _done = done;
            match run.log() {
                None => run.write(&its_env, &its_disk).await,
                Some(log) => {
                    let mut batch = Batch::new();
                    batch.push(Flags::none(), b"key", b"", b"more");
                    if let Ok(appended) = log.append(&batch, Stage::Persisted).await {
                        let _ = log.wait(appended.last_seq, Stage::Persisted).await;
                    }
                }
            }
        });
        let _ = ended.await;
        let _room = disk.clone().refuses_writes(false);
    }
    match run.log() {
        Some(log) => log.close().await.is_ok(),
        None => false,
    }
}

/// Returns whether the task made the call at which it was to panic.
fn panics_at(task: &'static str, call: u64) -> bool {
    let case = format!("{task:?} at its call {call}");
    let disk = SimDisk::new(call);
    let sim = Sim::with_disk(&disk).step_count_max(200_000);
    let panics = Panics::new(task, call);
    let env = panics.env(&sim.env());
    let run = Arc::new(Run::default());
    let (done, ended) = oneshot::channel();
    let all = write_twice_and_close(env.clone(), disk.clone(), run.clone());
    env.spawn("driver", async move {
        let _ = done.send(all.await);
    });
    let closed = sim.run(ended).unwrap().unwrap();
    assert!(closed || panics.has_fired(), "{case}: it did not close well");
    drop(sim);
    let sim = Sim::with_disk(&disk.after_power_loss());
    let env = sim.env();
    let found = sim.run(async { open(&env).await.1 }).unwrap();
    let found: std::collections::BTreeSet<_> = found.into_iter().collect();
    for value in run.acknowledged.lock().unwrap().iter().filter(|value| value[0] >= TRUNCATED_COUNT) {
        assert!(found.contains(value), "{case}: {} is lost", value[0]);
    }
    panics.has_fired()
}

/// Makes a task panic at every `step`-th of its calls, from `first` on; returns how often it did.
fn some_calls_of(task: &'static str, first: u64, step: usize) -> usize {
    (first..).step_by(step).take_while(|call| panics_at(task, *call)).count()
}

#[test]
fn a_panic_in_a_reservation_task_leaves_no_caller_waiting() {
    assert!(some_calls_of("log reservation", 0, 7) > 30);
}

#[test]
fn a_panic_in_a_background_job_leaves_no_caller_waiting() {
    assert!(some_calls_of("log background job", 0, 5) > 20);
}

#[test]
fn a_panic_in_sealing_leaves_no_caller_waiting() {
    assert!(some_calls_of("log seal", 0, 29) > 20);
}

#[test]
fn a_panic_in_the_timer_leaves_no_caller_waiting() {
    assert!(some_calls_of("log timer", 0, 3) > 5);
}

#[test]
fn a_panic_in_a_write_retry_leaves_no_caller_waiting() {
    assert!(some_calls_of("log write retry", 0, 1) > 5);
}

#[test]
fn a_panic_in_a_writer_leaves_no_other_waiting() {
    assert!(some_calls_of("first writer", 0, 23) > 20);
}

#[test]
fn a_panic_in_a_completion_leaves_no_caller_waiting() {
    // The first call starts the driver.
    assert!(some_calls_of(Panics::OUTSIDE, 1, 7) > 30);
}
