//! Goal: a full disk is never more than a refusal, also if a write of zeros in advance detects it.
//! Method: one write of zeros fails with ENOSPC; appends continue into the next segments.

use std::path::Path;
use std::time::Duration;

use settee_io::OperationKind;
use settee_log::{AppendError, Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Fault, Sim, SimDisk};

#[test]
fn a_full_disk_during_preallocation_does_not_stop_the_log() {
    let options = LogOptions { segment_bytes_min: 1 << 20, ..LogOptions::default() };
    let mut stopped = Vec::new();
    for nth in 0..160 {
        let disk = SimDisk::new(3).short_writes(0.0).fail(OperationKind::Write, nth, Fault::NoSpace);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
            for index in 0..130 {
                let passed = disk.count_of(OperationKind::Write) > nth;
                let healthy = log.health().is_ok();
                let mut batch = Batch::new();
                batch.push(Flags::none(), b"key", b"", &[1; 28_000]);
                let result = match log.append(&batch, Stage::Persisted).await {
                    Ok(appended) => log.wait(appended.last_seq, Stage::Persisted).await.map_err(Into::into),
                    Err(error) => Err(error),
                };
                if let Err(error) = result {
                    let source = std::error::Error::source(&error).map(|source| source.to_string());
                    // A failure later than that of the write has another cause.
                    if passed && healthy {
                        stopped.push(format!("write {nth}, append {index}: {error} ({source:?})"));
                    }
                    return;
                }
            }
        })
        .unwrap();
    }
    assert!(stopped.is_empty(), "{stopped:#?}");
}

#[test]
fn a_segment_whose_preallocation_failed_is_created_when_needed() {
    let options = LogOptions { segment_bytes_min: 1 << 20, ..LogOptions::default() };
    // The first two segments are created for a waiting batch.
    for number in 3..7 {
        let path = format!("/log/{number:010}.log");
        let disk = SimDisk::new(3).short_writes(0.0).fail_next_open(&path, Fault::Io);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
            for index in 0..200 {
                let mut batch = Batch::new();
                batch.push(Flags::none(), b"key", b"", &[1; 28_000]);
                let appended = log.append(&batch, Stage::Persisted).await;
                let appended = appended.unwrap_or_else(|error| panic!("{path}, append {index}: {error}"));
                log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
            }
            assert!(!disk.fails_to_open(&path) && disk.read_file(&path).is_some());
            log.close().await.unwrap();
        })
        .unwrap();
    }
}

/// Fills a log until a segment is preallocated; from then on the disk is full.
async fn fill_up(log: &Log, disk: &SimDisk) {
    let segments =
        || disk.paths().iter().filter(|path| path.extension().is_some_and(|end| end == "log")).count();
    while segments() <= log.segment_infos().len() {
        log.append(&batch(), Stage::Accepted).await.unwrap();
        log.flush().await.unwrap();
    }
    let bytes = disk.paths().iter().map(|path| disk.read_file(path).unwrap().len() as u64).sum();
    disk.clone().capacity(Some(bytes));
}

fn batch() -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &[1; 28_000]);
    batch
}

#[test]
fn a_preallocated_segment_takes_no_space_from_the_open_one() {
    let options = LogOptions {
        segment_bytes_min: 2 << 20,
        segment_bytes_max: 2 << 20,
        batch_bytes_max: 64 << 10,
        recycled_percent_max: 100,
        ..LogOptions::default()
    };
    let disk = SimDisk::new(3).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
        fill_up(&log, &disk).await;
        let segments = log.segment_infos();
        let open = segments.last().unwrap().number;
        loop {
            match log.append(&batch(), Stage::Accepted).await {
                Ok(_) => log.flush().await.unwrap(),
                // There is no space for the next segment.
                Err(AppendError::NoSpace { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            if log.segment_infos().last().unwrap().number > open {
                break;
            }
        }
        let full = log.segment_infos().into_iter().find(|segment| segment.number == open).unwrap();
        assert!(full.frame_bytes > (2 << 20) - 100_000, "it holds {} bytes", full.frame_bytes);
        assert!(log.health().is_ok());
    })
    .unwrap();
}

#[test]
fn a_closed_log_leaves_no_preallocated_segment() {
    let options = LogOptions { segment_bytes_min: 1 << 20, ..LogOptions::default() };
    let disk = SimDisk::new(3).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
        fill_up(&log, &disk).await;
        let segment_count = log.segment_infos().len();
        log.close().await.unwrap();
        assert_eq!(disk.paths().len(), segment_count + 1, "the segments, and the lock file");
    })
    .unwrap();
}

/// Records so small that their segment index doesn't fit into the free space behind them.
fn many() -> Batch {
    let mut batch = Batch::new();
    (0..400_u32).for_each(|key| batch.push(Flags::none(), &key.to_be_bytes(), b"", b""));
    batch
}

#[test]
fn a_segment_unsealed_for_lack_of_disk_space_is_sealed_once_there_is_space() {
    let options =
        LogOptions { segment_bytes_max: 1 << 20, batch_bytes_max: 64 << 10, ..LogOptions::default() };
    let disk = SimDisk::new(3).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
        // A closed segment that waits for a pause to be sealed.
        let waiting = loop {
            log.append(&many(), Stage::Accepted).await.unwrap();
            log.flush().await.unwrap();
            let segments = log.segment_infos();
            let closed = &segments[..segments.len() - 1];
            if let Some(found) = closed.iter().find(|segment| !segment.is_sealed) {
                break found.number;
            }
        };
        disk.clone().capacity(Some(0));
        env.clock.sleep(Duration::from_secs(5)).await;
        let segments = log.segment_infos();
        assert!(segments.iter().any(|segment| segment.number == waiting && !segment.is_sealed));
        let count = segments.len();
        disk.clone().capacity(None);
        while log.segment_infos().len() < count + 2 {
            log.append(&many(), Stage::Accepted).await.unwrap();
            log.flush().await.unwrap();
        }
        env.clock.sleep(Duration::from_secs(5)).await;
        let segments = log.segment_infos();
        let unsealed: Vec<u32> = segments.iter().filter(|one| !one.is_sealed).map(|one| one.number).collect();
        assert_eq!(unsealed, [segments.last().unwrap().number]);
        log.close().await.unwrap();
    })
    .unwrap();
}
