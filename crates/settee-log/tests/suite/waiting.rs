//! Goal: no task waits longer than necessary. Readers wait for no write, sync or buffer; a single writer for
//! no other; no task longer than the limits say; and a thousand logs that share a pool stay within it, and
//! all make progress.
//! Method: each operation of the simulated disk takes a known time, or stalls; the simulated clock measures
//! waits.

use crate::common::readers;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join_all, select};
use readers::readers_never_wait;
use settee_io::{BufferPool, Env, OperationKind, PoolOptions};
use settee_log::{Batch, Flags, Log, LogOptions, LogStats, Stage};
use settee_sim::{Sim, SimDisk, seeds};

/// Duration of a disk operation, in tests that need a fixed one.
const OPERATION: Duration = Duration::from_millis(1);

/// Longest simulated time that the tasks' own steps take between two operations.
const STEPS: Duration = Duration::from_micros(100);

fn batch(value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", value);
    batch
}

async fn open(env: &Env, directory: impl Into<PathBuf>, options: LogOptions) -> (Log, Vec<Vec<u8>>) {
    let mut found = Vec::new();
    let replay = |_, record: settee_log::RecordRef<'_>| found.push(record.value.to_vec());
    let (log, _) = Log::open(env, &directory.into(), options, replay).await.unwrap();
    (log, found)
}

/// Appends and waits; returns the duration.
async fn put(log: &Log, env: &Env) -> Duration {
    let start = env.clock.now();
    let appended = log.append(&batch(b"value"), Stage::Persisted).await.unwrap();
    log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
    env.clock.now() - start
}

#[test]
fn readers_wait_for_no_write_no_sync_and_no_buffer() {
    for seed in seeds(60) {
        let options = LogOptions {
            direct: seed % 2 == 1,
            writes_in_flight_max: [1, 2, 4][seed as usize % 3],
            bypass_bytes_min: [20_000, 256 << 10][seed as usize / 2 % 2],
            ..LogOptions::default()
        };
        readers_never_wait(seed, options).unwrap_or_else(|problem| panic!("seed={seed}: {problem}"));
    }
}

#[test]
fn a_thousand_logs_share_a_pool_while_the_disk_stalls_and_all_recover() {
    const LOG_COUNT: usize = 1_000;
    const POOL_BYTES: usize = 8 << 20;
    let options = LogOptions {
        batch_bytes_max: 32 << 10,
        segment_bytes_min: 128 << 10,
        segment_bytes_max: 128 << 10,
        buffer_bytes_min: 64 << 10,
        buffer_bytes_max: 64 << 10,
        ..LogOptions::default()
    };
    let directory = |log: usize| PathBuf::from(format!("/data/{log}"));
    let value =
        |log: usize, number: usize| vec![(log + number) as u8; 100 + (log * 31 + number * 7_919) % 3_000];
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = Env { buffers: BufferPool::new(PoolOptions { bytes_max: POOL_BYTES }), ..sim.env() };
    let acknowledged = RefCell::new(vec![0_usize; LOG_COUNT]);
    let most = Cell::new((0, 0));
    sim.run(async {
        let mut logs = Vec::new();
        for log in 0..LOG_COUNT {
            let (opened, _) = open(&env, directory(log), options).await;
            put(&opened, &env).await;
            logs.push(opened);
        }
        // From here on every write and sync stalls for a second.
        let is_stalled: fn(OperationKind) -> bool =
            |kind| matches!(kind, OperationKind::Write | OperationKind::Sync);
        let _stalls = disk.clone().stalls(1.0).stalls_us(1_000_000..=1_000_000).stalls_only(is_stalled);
        let append_all = join_all(logs.iter().enumerate().map(|(index, log)| {
            let (acknowledged, env) = (&acknowledged, &env);
            async move {
                for number in 0..5 {
                    let appended = log.append(&batch(&value(index, number)), Stage::Persisted).await.unwrap();
                    log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
                    acknowledged.borrow_mut()[index] = number + 1;
                    assert!(env.buffers.stats().leased_bytes <= POOL_BYTES);
                }
            }
        }));
        let watch = async {
            loop {
                let stats = env.buffers.stats();
                assert!(stats.leased_bytes + stats.kept_bytes <= POOL_BYTES, "{stats:?}");
                let (leased, waiting) = most.get();
                most.set((leased.max(stats.leased_bytes), waiting.max(stats.waiting_count)));
                env.clock.sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = select(pin!(append_all), pin!(watch)).await;
        logs
    })
    .unwrap();
    // The pool was the limit, and many tasks waited for it.
    let (leased, waiting) = most.get();
    assert!(leased > POOL_BYTES * 9 / 10 && waiting > LOG_COUNT / 2, "{leased} leased, {waiting} waiting");
    println!("{LOG_COUNT} logs: at most {leased} of {POOL_BYTES} bytes in use, {waiting} waiting");
    assert!(acknowledged.borrow().iter().all(|count| *count == 5));
    let sim = Sim::with_disk(&disk.after_power_loss());
    let env = sim.env();
    sim.run(async {
        for log in 0..LOG_COUNT {
            let (_, found) = open(&env, directory(log), options).await;
            let expected: Vec<_> = (0..5).map(|number| value(log, number)).collect();
            assert_eq!(found[1..], expected, "log {log}");
        }
    })
    .unwrap();
}

/// One segment for all batches, so that no append waits for the next one.
fn one_segment() -> LogOptions {
    LogOptions { segment_bytes_min: 64 << 20, ..LogOptions::default() }
}

/// A disk whose operations all take the same time.
fn even_disk() -> SimDisk {
    let us = OPERATION.as_micros() as u64;
    SimDisk::new(1).delays_us(us..=us).short_writes(0.0)
}

#[test]
fn a_single_writer_is_never_delayed() {
    for group_delay_us_max in [0, 500, 100_000] {
        let sim = Sim::with_disk(&even_disk());
        let env = sim.env();
        let options = LogOptions { group_delay_us_max, ..one_segment() };
        sim.run(async {
            let (log, _) = open(&env, "/log", options).await;
            put(&log, &env).await;
            for _ in 0..100 {
                let taken = put(&log, &env).await;
                assert!(taken < OPERATION + STEPS, "{taken:?} with {group_delay_us_max}");
            }
        })
        .unwrap();
    }
}

#[test]
fn a_group_waits_for_half_a_sync_at_most_and_never_past_its_limit() {
    for (group_delay_us_max, delay_us) in [(0, 0), (100, 100), (400, 400), (500, 500), (5_000, 500)] {
        let sim = Sim::with_disk(&even_disk());
        let env = sim.env();
        let options = LogOptions { group_delay_us_max, ..one_segment() };
        sim.run(async {
            let (log, _) = open(&env, "/log", options).await;
            put(&log, &env).await;
            let delay = Duration::from_micros(delay_us);
            for others in [1, 2, 7] {
                // They commit together; one starts last, and continues alone when the others have finished.
                let times = join_all((0..=others).map(|writer| {
                    let count = if writer == others { 25 } else { 20 };
                    let (log, env) = (&log, &env);
                    async move {
                        let mut times = Vec::new();
                        for _ in 0..count {
                            times.push(put(log, env).await);
                        }
                        times
                    }
                }))
                .await;
                // A batch appended while a group is synced waits for that sync as well.
                let longest = times.iter().flatten().max().unwrap();
                assert!(*longest < 2 * OPERATION + delay + 2 * STEPS, "{longest:?} with {delay_us}");
                let last = &times[others];
                if delay_us > 0 {
                    // It waits once for the committers that have finished, for the maximal delay, counted
                    // from the end of the last sync, which is a few steps before its append.
                    let (taken, full) = (last[19], OPERATION + delay);
                    assert!(taken + STEPS > full && taken < full + STEPS, "{taken:?} with {delay_us}");
                }
                // After that it never waits for them again.
                let alone = last[21..].iter().max().unwrap();
                assert!(*alone < OPERATION + STEPS, "{alone:?} with {delay_us}");
            }
        })
        .unwrap();
    }
}

#[test]
fn concurrent_committers_wait_for_each_other_and_share_syncs() {
    let sim = Sim::with_disk(&even_disk());
    let env = sim.env();
    sim.run(async {
        let (log, _) = open(&env, "/log", one_segment()).await;
        put(&log, &env).await;
        let before = log.stats();
        join_all((0..10).map(|_| async {
            for _ in 0..50 {
                put(&log, &env).await;
            }
        }))
        .await;
        let LogStats { batch_count, sync_count, .. } = log.stats();
        let (batches, syncs) = (batch_count - before.batch_count, sync_count - before.sync_count);
        assert_eq!(batches, 500);
        assert!(syncs <= 55, "{syncs} syncs for {batches} batches of ten writers");
    })
    .unwrap();
}

#[test]
fn accepted_bytes_are_written_within_their_age_limit_also_under_load() {
    for accepted_age_ms_max in [5, 50] {
        let sim = Sim::with_disk(&even_disk());
        let env = sim.env();
        let options = LogOptions { accepted_age_ms_max, written_age_ms_max: 3_600_000, ..one_segment() };
        // A write in flight may have to complete before its own.
        let most = Duration::from_millis(accepted_age_ms_max) + 3 * OPERATION;
        sim.run(async {
            let (log, _) = open(&env, "/log", options).await;
            put(&log, &env).await;
            let written = || log.stats().written_bytes;
            for _ in 0..5 {
                let before = written();
                log.append(&batch(b"nobody waits"), Stage::Accepted).await.unwrap();
                assert_eq!(log.stats().written_bytes, before, "it is written at once");
                env.clock.sleep(most).await;
                assert!(written() > before && log.stats().memory_bytes == 0, "{:?}", log.stats());
            }
            // One more each millisecond. There is no sync in between, so the written bytes have no gaps.
            let before = written();
            let mut ends = VecDeque::new();
            let mut start = None;
            for _ in 0..1_000 {
                let appended = log.append(&batch(&[1; 40]), Stage::Accepted).await.unwrap();
                let location = appended.locations[0];
                let end =
                    u64::from(location.offset + location.length - *start.get_or_insert(location.offset));
                ends.push_back((end, env.clock.now()));
                while ends.front().is_some_and(|(end, _)| *end <= written() - before) {
                    ends.pop_front();
                }
                if let Some((_, since)) = ends.front() {
                    assert!(env.clock.now() - *since < most, "{} are still in memory", ends.len());
                }
                env.clock.sleep(Duration::from_millis(1)).await;
            }
            assert!(written() > before, "nothing was written");
        })
        .unwrap();
    }
}
