//! Goal: listed segments are durable, whichever process wrote them, and each segment is listed in the end;
//! concurrent readers still see older values.
//! Method: in the simulation, use small segments. Kill the process as soon as a segment index shows in a
//! segment's file, and cut the power once the next process relies on it. Drop commits after each of their
//! first polls, then compact everything. A writer with many commits reads all older values after each of
//! them.

use crate::common::model;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, join, select};
use model::{OPTIONS, Random, open};
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{Batch, CheckEvent, Snapshot, Stage, Store, StoreOptions, check};

/// Makes checkpoints only on demand.
const QUIET: StoreOptions = StoreOptions { checkpoint_entries_min: 1 << 20, ..OPTIONS };

/// Commits a value, and waits until it is persisted.
async fn put(store: &Store, key: u32, random: &mut Random) {
    let mut batch = Batch::new();
    batch.put(&key.to_be_bytes(), &[], random.bytes(4000).into(), true);
    let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
    store.wait(seq, Stage::Persisted).await.unwrap();
}

/// The log's segments that end with a segment index's trailer.
fn sealed(disk: &SimDisk) -> Vec<PathBuf> {
    let is_sealed = |path: &PathBuf| {
        let bytes = disk.read_file(path).unwrap();
        path.extension().is_some_and(|kind| kind == "log")
            && bytes.len() >= settee_log::TRAILER_SIZE
            && bytes[bytes.len() - settee_log::TRAILER_SIZE..].starts_with(b"SETTEEFT")
    };
    disk.paths().into_iter().filter(is_sealed).collect()
}

/// Kills a process as soon as it has written a segment index; returns whether one showed.
fn kill_at_segment_index(disk: &SimDisk, seed: u64) -> bool {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    let wrote = sim.run(async {
        let mut random = Random::new(seed);
        let store = open(&env, &QUIET).await;
        for number in 0..12 {
            put(&store, number, &mut random).await;
        }
        let before = sealed(disk).len();
        for _ in 0..20_000 {
            if sealed(disk).len() > before {
                return true;
            }
            env.clock.sleep(Duration::from_micros(50)).await;
        }
        false
    });
    wrote.unwrap()
}

#[test]
fn a_segment_index_found_after_a_kill_is_durable_before_it_is_counted_on() {
    let (mut problems, mut listed) = (Vec::new(), 0);
    for seed in seeds(20) {
        let disk = SimDisk::new(seed);
        assert!(kill_at_segment_index(&disk, seed), "seed={seed}: nothing is sealed");
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let store = open(&env, &QUIET).await;
            store.checkpoint().await.unwrap();
            env.clock.sleep(Duration::from_secs(2)).await;
            put(&store, 99, &mut Random::new(seed)).await;
            store.checkpoint().await.unwrap();
            listed += usize::from(store.store_stats().segment_bytes > 0);
        })
        .unwrap();
        drop((sim, env));
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        let on_event = |event| {
            if let CheckEvent::Problem(problem) = event
                && !problem.is_doubtful
            {
                problems.push(format!("seed={seed}: {problem}"));
            }
        };
        sim.run(check(&env, Path::new("/data/store"), &QUIET, on_event)).unwrap().unwrap();
    }
    assert_eq!(problems, [] as [String; 0]);
    assert_eq!(listed, seeds(20).count(), "segments are listed");
}

/// Polls a future at most `polls` times.
async fn poll_some<T>(future: impl Future<Output = T>, polls: usize) {
    let (mut future, mut left) = (pin!(future), polls);
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        future.as_mut().poll(context).map(drop)
    })
    .await;
}

#[test]
fn a_compaction_ends_though_a_commit_was_dropped_while_room_was_made() {
    let (mut hung, mut tried) = (Vec::new(), 0);
    for (polls, count) in (1..12).flat_map(|polls| (20..30).map(move |count| (polls, count))) {
        let sim = Sim::new(polls as u64);
        let env = sim.env();
        let ended = sim.run(async {
            let mut random = Random::new(3);
            let store = open(&env, &QUIET).await;
            for number in 0..count {
                put(&store, number, &mut random).await;
            }
            let mut batch = Batch::new();
            batch.put(b"dropped", &[], random.bytes(12_000).into(), false);
            let mut writer = store.writer().await;
            poll_some(writer.commit(&batch, Stage::Persisted), polls).await;
            drop(writer);
            let (compaction, hour) = (pin!(store.compact()), env.clock.sleep(Duration::from_secs(3600)));
            matches!(select(compaction, pin!(hour)).await, Either::Left((Ok(_), _)))
        });
        tried += 1;
        if ended != Some(true) {
            hung.push((polls, count));
        }
    }
    assert!(hung.is_empty(), "{} of {tried} have no end: {hung:?}", hung.len());
}

/// Reads each of the first `count` values from a snapshot; returns those that could not be read.
async fn unreadable(snapshot: &Snapshot, count: u32) -> Vec<String> {
    let mut failed = Vec::new();
    for number in 0..count {
        let read = match snapshot.get(&number.to_be_bytes()).await {
            Ok(Some(entry)) => {
                snapshot.read(entry.location).await.map(drop).map_err(|error| error.to_string())
            }
            Ok(None) => Err("it is gone".into()),
            Err(error) => Err(error.to_string()),
        };
        failed.extend(read.err().map(|error| format!("{number}: {error}")));
    }
    failed
}

#[test]
fn a_writer_and_its_readers_see_all_while_segments_are_listed() {
    const COUNT: u32 = 12;
    let (mut problems, mut listed) = (Vec::new(), 0);
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let store = open(&env, &QUIET).await;
            for number in 0..COUNT {
                put(&store, number, &mut random).await;
            }
            // Long enough for the log to seal its closed segments.
            env.clock.sleep(Duration::from_secs(2)).await;
            let is_done = Cell::new(false);
            let write = async {
                while !is_done.get() {
                    let mut writer = store.writer().await;
                    for step in 0..20 {
                        let mut batch = Batch::new();
                        batch.put(b"newest", &[], random.bytes(10).into(), true);
                        writer.commit(&batch, Stage::Persisted).await.unwrap();
                        env.clock.sleep(Duration::from_micros(random.below(200) as u64)).await;
                        for (who, snapshot) in [("writer", writer.latest()), ("reader", store.snapshot())] {
                            let failed = unreadable(&snapshot, COUNT).await;
                            let found_problems =
                                failed.iter().map(|error| format!("seed={seed} {step} {who}: {error}"));
                            problems.extend(found_problems);
                        }
                    }
                }
            };
            let checkpoint = async {
                store.checkpoint().await.unwrap();
                is_done.set(true);
            };
            join(write, checkpoint).await;
            listed += usize::from(store.store_stats().segment_bytes > 0);
        })
        .unwrap();
    }
    assert_eq!(problems, [] as [String; 0]);
    assert_eq!(listed, seeds(20).count(), "segments are listed");
}
