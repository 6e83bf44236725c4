//! Goal: a log that lacks a file descriptor, or disk space for a write that it accepted, doesn't stop: it
//! refuses new batches, writes accepted ones once it can, and then continues by itself.
//! Method: the simulated disk refuses for a time; then the power fails, and the log is opened again.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use settee_io::{BufferPool, Env, OperationKind, PoolOptions};
use settee_log::{AppendError, Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Fault, Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";

/// Segments of a few batches each.
const OPTIONS: LogOptions = LogOptions {
    batch_bytes_max: 16 << 10,
    segment_bytes_min: 40 << 10,
    segment_bytes_max: 40 << 10,
    ..LogOptions::DEFAULT
};

async fn open(env: &Env) -> (Log, Vec<Vec<u8>>) {
    let mut found = Vec::new();
    let opened =
        Log::open(env, Path::new(DIRECTORY), OPTIONS, |_, record| found.push(record.value.to_vec())).await;
    (opened.unwrap().0, found)
}

fn batch(value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", value);
    batch
}

async fn put(log: &Log, value: &[u8]) -> Result<(), AppendError> {
    let appended = log.append(&batch(value), Stage::Persisted).await?;
    Ok(log.wait(appended.last_seq, Stage::Persisted).await?)
}

/// What a log contains after a power loss.
fn after_power_loss(disk: &SimDisk) -> Vec<Vec<u8>> {
    let sim = Sim::with_disk(&disk.after_power_loss());
    let env = sim.env();
    sim.run(async { open(&env).await.1 }).unwrap()
}

#[test]
fn a_log_without_a_descriptor_refuses_until_there_is_one() {
    for seed in seeds(50) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let acknowledged = sim
            .run(async {
                let (log, _) = open(&env).await;
                let mut acknowledged = Vec::new();
                for round in 0..4_u8 {
                    let _none = disk.clone().has_descriptors(false);
                    let mut refused_count = 0;
                    while refused_count < 3 {
                        match put(&log, &[round; 5_000]).await {
                            Ok(()) => acknowledged.push(vec![round; 5_000]),
                            Err(error) => {
                                assert!(
                                    matches!(error, AppendError::NoDescriptor { .. }),
                                    "seed={seed}: {error}"
                                );
                                refused_count += 1;
                            }
                        }
                    }
                    log.health().unwrap_or_else(|error| panic!("seed={seed}: {error}"));
                    let _some = disk.clone().has_descriptors(true);
                    for _ in 0..9 {
                        put(&log, &[round; 5_000])
                            .await
                            .unwrap_or_else(|error| panic!("seed={seed}: {error}"));
                        acknowledged.push(vec![round; 5_000]);
                    }
                }
                acknowledged
            })
            .unwrap();
        let found = after_power_loss(&disk);
        let show = |all: &[Vec<u8>]| all.iter().map(|value| value[0]).collect::<Vec<_>>();
        assert!(found == acknowledged, "seed={seed}: {:?} of {:?}", show(&found), show(&acknowledged));
    }
}

#[test]
fn no_single_operation_without_a_descriptor_stops_a_log() {
    for kind in [OperationKind::Open, OperationKind::SyncDirectory] {
        for nth in 0..40 {
            let case = format!("{kind} {nth}");
            let disk = SimDisk::new(nth);
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            let acknowledged = sim
                .run(async {
                    let (log, _) = open(&env).await;
                    let _one = disk.clone().fail(kind, disk.count_of(kind) + nth, Fault::NoDescriptor);
                    let (mut acknowledged, mut refused_count) = (Vec::new(), 0);
                    for index in 0..40_u8 {
                        match put(&log, &[index; 5_000]).await {
                            Ok(()) => acknowledged.push(vec![index; 5_000]),
                            Err(AppendError::NoDescriptor { .. }) => refused_count += 1,
                            Err(error) => panic!("{case}: {error}"),
                        }
                        // Earlier segments may be truncated and recycled.
                        log.truncate_before(settee_log::Seq(u64::from(index / 20) * 10));
                    }
                    assert!(refused_count <= 1, "{case}: {refused_count}");
                    log.close().await.unwrap_or_else(|error| panic!("{case}: {error}"));
                    acknowledged
                })
                .unwrap();
            let found = after_power_loss(&disk);
            assert!(acknowledged.ends_with(&found), "{case}");
            // Ten records at most were truncated.
            assert!(found.len() + 10 >= acknowledged.len(), "{case}: {} found", found.len());
        }
    }
}

#[test]
fn a_write_without_disk_space_is_retried_and_not_acknowledged_before() {
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let submitted = sim
            .run(async {
                let log = Arc::new(open(&env).await.0);
                let first = log.append(&batch(b"first"), Stage::Persisted).await.unwrap();
                log.flush().await.unwrap();
                let mut submitted = vec![b"first".to_vec()];
                let _full = disk.clone().refuses_writes(true);
                let refused = loop {
                    let value = vec![submitted.len() as u8; 3_000];
                    let appended = match log.append(&batch(&value), Stage::Persisted).await {
                        Ok(appended) => appended,
                        Err(error) => break error,
                    };
                    submitted.push(value);
                    let (log, acknowledged) = (log.clone(), acknowledged.clone());
                    env.spawn("wait", async move {
                        log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    });
                    env.clock.sleep(Duration::from_millis(seed % 7)).await;
                };
                assert!(matches!(refused, AppendError::NoSpace { .. }), "seed={seed}: {refused}");
                env.clock.sleep(Duration::from_secs(20)).await;
                assert_eq!(acknowledged.load(Ordering::Relaxed), 0, "seed={seed}");
                assert_eq!(log.persisted(), first.last_seq, "seed={seed}");
                assert!(log.health().is_ok(), "seed={seed}");
                assert_eq!(&log.read(first.locations[0]).await.unwrap().value()[..], b"first");
                let refused = put(&log, b"more").await;
                assert!(matches!(refused, Err(AppendError::NoSpace { .. })), "seed={seed}: {refused:?}");
                let _room = disk.clone().refuses_writes(false);
                log.flush().await.unwrap();
                env.clock.sleep(Duration::from_millis(1)).await;
                assert_eq!(acknowledged.load(Ordering::Relaxed) + 1, submitted.len(), "seed={seed}");
                put(&log, b"more").await.unwrap();
                submitted.push(b"more".to_vec());
                submitted
            })
            .unwrap();
        assert!(after_power_loss(&disk) == submitted, "seed={seed}");
    }
}

#[test]
fn a_write_without_disk_space_stops_a_log_with_unsynced_writes() {
    for seed in seeds(50) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open(&env).await;
            put(&log, &[0; 1_000]).await.unwrap();
            let written = log.append(&batch(&[1; 1_000]), Stage::Written).await.unwrap();
            log.wait(written.last_seq, Stage::Written).await.unwrap();
            let _full = disk.clone().refuses_writes(true);
            let refused = log.append(&batch(&[2; 1_000]), Stage::Written).await.unwrap();
            let waited = log.wait(refused.last_seq, Stage::Written).await;
            assert!(waited.is_err() && log.health().is_err(), "seed={seed}");
            // The error may be that of the previous write, which was not acknowledged as persisted.
            assert!(log.persisted() < written.last_seq, "seed={seed}");
        })
        .unwrap();
    }
}

#[test]
fn no_segment_follows_one_whose_writes_lack_disk_space() {
    for seed in seeds(50) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open(&env).await;
            put(&log, &[1; 15_000]).await.unwrap();
            put(&log, &[2; 10_000]).await.unwrap();
            let _full = disk.clone().refuses_writes(true);
            // Both fill segments, so that the second waits for the first to be persisted, or finds that this
            // isn't possible.
            let results = [
                log.append(&batch(&[3; 15_000]), Stage::Persisted).await,
                log.append(&batch(&[4; 15_000]), Stage::Persisted).await,
                log.append(&batch(&[5; 15_000]), Stage::Persisted).await,
                log.append(&batch(&[6; 15_000]), Stage::Persisted).await,
            ];
            let refused = results.iter().filter(|result| result.is_err()).count();
            assert!(refused > 0, "seed={seed}");
            for result in results {
                let is_fine = matches!(result, Ok(_) | Err(AppendError::NoSpace { .. }));
                assert!(is_fine, "seed={seed}: {result:?}");
            }
            let _room = disk.clone().refuses_writes(false);
            log.flush().await.unwrap();
            put(&log, &[7; 15_000]).await.unwrap();
            log.close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn appends_fail_when_another_log_without_disk_space_holds_all_buffers() {
    const POOL_BYTES: usize = 128 << 10;
    let options = LogOptions {
        segment_bytes_min: 1 << 20,
        segment_bytes_max: 1 << 20,
        buffer_bytes_max: 64 << 10,
        ..OPTIONS
    };
    for seed in seeds(50) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = Env { buffers: BufferPool::new(PoolOptions { bytes_max: POOL_BYTES }), ..sim.env() };
        sim.run(async {
            let open = |directory: &'static str| Log::open(&env, Path::new(directory), options, |_, _| {});
            let (full, other) = (open("/data/full").await.unwrap().0, open("/data/other").await.unwrap().0);
            put(&full, b"first").await.unwrap();
            put(&other, b"first").await.unwrap();
            let _full = disk.clone().refuses_writes(true);
            for index in 0..8_u8 {
                full.append(&batch(&[index; 15_000]), Stage::Accepted).await.unwrap();
            }
            assert_eq!(env.buffers.stats().leased_bytes, POOL_BYTES, "seed={seed}");
            // The first is already waiting when the write fails; the second is appended later.
            for case in ["waits", "comes"] {
                let more = batch(b"more");
                let refused = pin!(other.append(&more, Stage::Accepted));
                let patience = env.clock.sleep(Duration::from_secs(60));
                match select(refused, patience).await {
                    Either::Left((Err(AppendError::NoSpace { .. }), _)) => {}
                    Either::Left((appended, _)) => panic!("seed={seed} {case}: {appended:?}"),
                    Either::Right(_) => panic!("seed={seed} {case}: it waits for ever"),
                }
            }
            assert!(other.health().is_ok() && env.buffers.stats().waiting_count == 0, "seed={seed}");
            let _room = disk.clone().refuses_writes(false);
            full.flush().await.unwrap();
            put(&other, b"more").await.unwrap();
            put(&full, b"more").await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn closing_a_log_whose_writes_lack_disk_space_ends_with_an_error() {
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let submitted = sim
            .run(async {
                let (log, _) = open(&env).await;
                put(&log, &[0; 1_000]).await.unwrap();
                let _full = disk.clone().refuses_writes(true);
                let mut submitted = vec![vec![0; 1_000]];
                for index in 1..10_u8 {
                    if log.append(&batch(&[index; 1_000]), Stage::Written).await.is_ok() {
                        submitted.push(vec![index; 1_000]);
                    }
                    env.clock.sleep(Duration::from_micros(seed * 97)).await;
                }
                let closed = log.close().await;
                assert!(closed.is_err(), "seed={seed}");
                let _room = disk.clone().refuses_writes(false);
                // The directory is not locked.
                let (again, found) = open(&env).await;
                assert!(!found.is_empty() && submitted.starts_with(&found), "seed={seed}");
                again.close().await.unwrap();
                submitted
            })
            .unwrap();
        let found = after_power_loss(&disk);
        assert!(!found.is_empty() && submitted.starts_with(&found), "seed={seed}");
    }
}

#[test]
fn only_writes_are_retried_and_never_a_failed_sync() {
    let (mut stopped_count, mut done_count) = (0, 0);
    for seed in seeds(300) {
        let disk = SimDisk::new(seed);
        let nth = 3 + seed % 11;
        let _one = disk.clone().fail(OperationKind::Write, nth, Fault::NoSpace);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let acknowledged = sim
            .run(async {
                let (log, _) = open(&env).await;
                let mut acknowledged = Vec::new();
                for index in 0..20_u8 {
                    match put(&log, &[index; 1_000]).await {
                        Ok(()) => acknowledged.push(vec![index; 1_000]),
                        Err(AppendError::Stopped(stopped)) => {
                            let operation = stopped.source.operation();
                            assert_eq!(operation, Some(OperationKind::Sync), "seed={seed}: {stopped}");
                            stopped_count += 1;
                            break;
                        }
                        // A background job's failed writes affect no append.
                        Err(error) => panic!("seed={seed}: {error}"),
                    }
                }
                done_count += usize::from(log.health().is_ok());
                acknowledged
            })
            .unwrap();
        let found = after_power_loss(&disk);
        assert!(found.starts_with(&acknowledged), "seed={seed}: {} of {}", found.len(), acknowledged.len());
    }
    assert!(stopped_count > 30 && done_count > 100, "{stopped_count} stopped, {done_count} went on");
}
