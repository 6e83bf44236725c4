//! Goal: a stream without waiters writes only its own bytes, and hardly waits.
//! Method: the simulated disk counts operations, its clock measures waits.

use std::path::Path;
use std::time::Duration;

use settee_io::{Env, OperationKind};
use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";

async fn open(env: &Env) -> Log {
    open_with(env, LogOptions::default()).await
}

async fn open_with(env: &Env, options: LogOptions) -> Log {
    Log::open(env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap().0
}

async fn append(log: &Log, bytes: usize, stage: Stage) {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &vec![7; bytes]);
    let appended = log.append(&batch, stage).await.unwrap();
    log.wait(appended.last_seq, stage).await.unwrap();
}

/// Appends `mib` MiB in values of 8 KiB, and lets the disk write them.
async fn stream(log: &Log, mib: usize) {
    for _ in 0..mib * 128 {
        append(log, 8 << 10, Stage::Accepted).await;
    }
    log.flush().await.unwrap();
}

#[test]
fn small_commits_before_a_stream_cause_no_zero_fill_of_it() {
    for seed in seeds(10) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        // One segment takes all: no segment index is written meanwhile.
        let options = LogOptions { segment_bytes_min: 64 << 20, ..LogOptions::default() };
        sim.run(async {
            let log = open_with(&env, options).await;
            for _ in 0..20 {
                append(&log, 100, Stage::Persisted).await;
            }
            let zeros = || disk.count_of(OperationKind::Write) - log.stats().write_count;
            let before = zeros();
            stream(&log, 16).await;
            let after = zeros();
            // Includes operations in flight when it began; zeros for all of it would be 64 writes.
            assert!(after <= before + 8, "seed={seed}: {before} writes of zeros before, {after} after");
            for _ in 0..4_000 {
                append(&log, 100, Stage::Persisted).await;
            }
            assert!(zeros() > after, "seed={seed}: small commits are written over zeros again");
            log.close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn a_stream_into_a_new_log_waits_for_few_syncs_between_segments() {
    for seed in seeds(10) {
        let sim = Sim::with_disk(&SimDisk::new(seed));
        let env = sim.env();
        sim.run(async {
            let log = open(&env).await;
            stream(&log, 64).await;
            let segments = log.segments().len();
            // With a sixteenth of the log each, there would be some 80.
            assert!(segments <= 40, "seed={seed}: {segments} segments");
            // If every commit is waited for, a segment is a sixteenth of the log, after those that the stream
            // began.
            while log.segments().len() == segments {
                append(&log, 64 << 10, Stage::Persisted).await;
            }
            let segments = log.segments().len();
            let size = log.stats().file_bytes;
            while log.stats().file_bytes < size * 5 / 4 {
                append(&log, 64 << 10, Stage::Persisted).await;
            }
            let more = log.segments().len() - segments;
            assert!((3..=5).contains(&more), "seed={seed}: {more} more segments");
            log.close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn segments_are_sealed_in_a_pause_or_when_many_wait() {
    for seed in seeds(10) {
        let sim = Sim::with_disk(&SimDisk::new(seed));
        let env = sim.env();
        sim.run(async {
            let log = open(&env).await;
            stream(&log, 8).await;
            let segments = log.segments();
            let closed = segments.len() - 1;
            let sealed = sealed_count(&log, &segments).await;
            assert!(sealed < closed, "seed={seed}: nothing waited for a pause, {sealed} of {closed}");
            env.clock.sleep(Duration::from_secs(10)).await;
            append(&log, 1, Stage::Persisted).await;
            env.clock.sleep(Duration::from_secs(10)).await;
            assert_eq!(sealed_count(&log, &segments).await, closed, "seed={seed}");
            log.close().await.unwrap();
        })
        .unwrap();
    }
}

async fn sealed_count(log: &Log, segments: &[u32]) -> usize {
    let mut count = 0;
    for number in segments {
        count += usize::from(log.segment_index(*number).await.is_ok());
    }
    count
}
