//! Goal: a stream without waiters is not slowed down by segments that are too small for it.
//! Method: segments and unsynced bytes are counted, with batches larger than the smallest segment.

use std::path::Path;

use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk};

/// A batch that fills the smallest segment.
fn batch() -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &vec![1; 128 << 10]);
    batch
}

#[test]
fn a_stream_of_large_batches_does_not_fill_a_segment_with_each() {
    let disk = SimDisk::new(1).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new("/log"), LogOptions::default(), |_, _| {}).await.unwrap();
        for _ in 0..256 {
            log.append(&batch(), Stage::Accepted).await.unwrap();
        }
        log.flush().await.unwrap();
        // 32 MiB: each segment takes about as much as all previous ones.
        let segments = log.segment_infos().len();
        assert!(segments <= 12, "{segments} segments");
        log.close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_stream_without_waiters_is_synced_continuously() {
    let options = LogOptions {
        segment_bytes_min: 64 << 20,
        accepted_age_ms_max: u64::MAX / 2,
        written_age_ms_max: u64::MAX / 2,
        ..LogOptions::default()
    };
    let disk = SimDisk::new(1).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
        let mut appended = log.append(&batch(), Stage::Accepted).await.unwrap();
        for _ in 1..320 {
            appended = log.append(&batch(), Stage::Accepted).await.unwrap();
        }
        log.wait(appended.last_seq, Stage::Written).await.unwrap();
        // 40 MiB, all in one segment.
        let syncs = log.stats().sync_count;
        assert!((2..=8).contains(&syncs), "{syncs} syncs");
        assert_eq!(log.segment_infos().len(), 1);
        log.close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn the_open_segment_of_a_small_log_is_small() {
    let disk = SimDisk::new(1).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new("/log"), LogOptions::default(), |_, _| {}).await.unwrap();
        for _ in 0..4 {
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"key", b"", &vec![1; 1 << 20]);
            log.append(&batch, Stage::Accepted).await.unwrap();
            log.flush().await.unwrap();
        }
        let segments = log.segment_infos();
        assert!(segments.len() >= 2, "what was overwritten can be freed");
        log.close().await.unwrap();
    })
    .unwrap();
}
