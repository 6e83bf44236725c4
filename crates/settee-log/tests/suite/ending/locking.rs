//! Goal: no two logs write to one directory at a time, and the directory is locked no longer than that.
//! Method: the directory is opened again while a log is open, dropped with a write in flight, closed, and
//! after files were created, removed and recycled.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use futures_util::future::{join, join_all};
use settee_io::{Env, OperationKind};
use settee_log::{Batch, Flags, Log, LogOptions, OpenError, ReadError, Seq, Stage};
use settee_sim::{Sim, SimDisk, seeds};

const OPTIONS: LogOptions = LogOptions {
    batch_bytes_max: 48 << 10,
    segment_bytes_min: 128 << 10,
    segment_bytes_max: 128 << 10,
    recycled_percent_max: 100,
    ..LogOptions::DEFAULT
};

async fn open(env: &Env) -> Result<Log, OpenError> {
    Log::open(env, Path::new("/log"), OPTIONS, |_, _| {}).await.map(|(log, _)| log)
}

async fn append(log: &Log, bytes: usize) -> settee_log::Appended {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &vec![1; bytes]);
    let appended = log.append(&batch, Stage::Persisted).await.unwrap();
    log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
    appended
}

#[test]
fn an_open_log_is_locked_whatever_happens_to_its_segments() {
    for seed in seeds(20) {
        let sim = Sim::with_disk(&SimDisk::new(seed));
        let env = sim.env();
        sim.run(async {
            let mut log = open(&env).await.unwrap();
            for turn in 0..60 {
                let last = append(&log, 20_000).await.last_seq;
                if turn % 7 == 6 {
                    log.truncate_before(Seq(last.0 - 3));
                    env.clock.sleep(Duration::from_secs(1)).await;
                }
                let second = open(&env).await.err();
                // A file may have been removed between the listing and its opening.
                let refused = matches!(second, Some(OpenError::InUse { .. } | OpenError::Io(_)));
                assert!(refused, "seed={seed}: {second:?}");
                if turn % 20 == 19 {
                    log.close().await.unwrap();
                    log = open(&env).await.unwrap();
                }
            }
            let last = append(&log, 10).await;
            log.close().await.unwrap();
            let read = log.read(last.locations[0]).await;
            assert!(matches!(read, Err(ReadError::Stopped(_))), "seed={seed}: {read:?}");
            assert!(log.set_direct(true).await.is_err());
            open(&env).await.unwrap().close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn a_dropped_log_is_locked_until_its_last_write_has_completed() {
    let disk = SimDisk::new(1).delays_us(1_000..=1_000).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let log = open(&env).await.unwrap();
        append(&log, 100).await;
        let _ = disk
            .clone()
            .stalls(1.0)
            .stalls_us(1_000_000..=1_000_000)
            .stalls_only(|kind| kind == OperationKind::Write);
        let mut batch = Batch::new();
        batch.push(Flags::none(), b"key", b"", &[2; 1_000]);
        log.append(&batch, Stage::Written).await.unwrap();
        drop(log);
        let second = open(&env).await.err();
        assert!(matches!(second, Some(OpenError::InUse { .. })), "{second:?}");
        env.clock.sleep(Duration::from_secs(3)).await;
        open(&env).await.unwrap().close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn an_attempt_to_open_an_open_log_does_it_no_harm() {
    for seed in seeds(40) {
        // Some locks take long, so that others may be faster.
        let disk = SimDisk::new(seed).stalls(0.5).stalls_us(10_000..=10_000);
        let sim = Sim::with_disk(&disk.stalls_only(|kind| kind == OperationKind::Lock));
        let env = sim.env();
        sim.run(async {
            let log = open(&env).await.unwrap();
            append(&log, 100).await;
            let (trying, tries) = (Cell::new(true), Cell::new(0));
            let others = join_all((0..8).map(|_| async {
                while trying.get() {
                    assert!(open(&env).await.is_err(), "seed={seed}");
                    tries.set(tries.get() + 1);
                }
            }));
            let work = async {
                for turn in 0..60 {
                    let last = append(&log, 20_000).await.last_seq;
                    if turn % 7 == 6 {
                        log.truncate_before(Seq(last.0 - 3));
                    }
                }
                trying.set(false);
            };
            join(others, work).await;
            assert!(tries.get() >= 8, "seed={seed}: {tries:?}");
            log.close().await.unwrap();
        })
        .unwrap();
    }
}
