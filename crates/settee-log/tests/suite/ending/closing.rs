//! Goal: a closed log never writes to its files again, so that they can be reopened.
//! Method: a write stalls while its log is closed; the next log continues in the segment.

use std::path::Path;
use std::time::Duration;

use futures_util::future::{FutureExt, join};
use settee_io::OperationKind;
use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk};

fn batch(value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", value);
    batch
}

async fn open(env: &settee_io::Env) -> Log {
    Log::open(env, Path::new("/log"), LogOptions::default(), |_, _| {}).await.unwrap().0
}

fn stall(disk: &SimDisk, probability: f64) {
    let _ = disk
        .clone()
        .stalls(probability)
        .stalls_us(1_000_000..=1_000_000)
        .stalls_only(|kind| kind == OperationKind::Write);
}

/// Appends to the next log, lets the stalled write complete, and reads back, also after a power loss.
async fn check(env: &settee_io::Env, disk: &SimDisk, value: Vec<u8>) {
    stall(disk, 0.0);
    let log = open(env).await;
    let appended = log.append(&batch(&value), Stage::Persisted).await.unwrap();
    log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
    env.clock.sleep(Duration::from_secs(3)).await;
    let read = log.read(appended.locations[0]).await.map(|record| record.value().to_vec());
    assert!(
        read.as_ref().is_ok_and(|read| *read == value),
        "an acknowledged record is lost: {:?}",
        read.err()
    );
}

#[test]
fn a_write_in_flight_completes_before_close_returns() {
    let disk = SimDisk::new(1).delays_us(1_000..=1_000).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let log = open(&env).await;
        let first = log.append(&batch(b"first"), Stage::Written).await.unwrap();
        log.wait(first.last_seq, Stage::Written).await.unwrap();
        let mut close = Box::pin(log.close());
        assert!((&mut close).now_or_never().is_none());
        // While the last group is synced another task appends; its write stalls.
        stall(&disk, 1.0);
        log.append(&batch(&[1; 1_000]), Stage::Written).await.unwrap();
        close.await.unwrap();
        check(&env, &disk, vec![2; 1_000]).await;
    })
    .unwrap();
}

#[test]
fn a_write_in_flight_of_a_stopped_log_completes_before_close_returns() {
    let disk = SimDisk::new(1).delays_us(1_000..=1_000).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let log = open(&env).await;
        let first = log.append(&batch(b"first"), Stage::Written).await.unwrap();
        log.wait(first.last_seq, Stage::Written).await.unwrap();
        let _ =
            disk.clone().fail(OperationKind::Sync, disk.count_of(OperationKind::Sync), settee_sim::Fault::Io);
        let flush = log.flush();
        let append = async {
            env.clock.sleep(Duration::from_micros(100)).await;
            stall(&disk, 1.0);
            log.append(&batch(&[1; 1_000]), Stage::Written).await.unwrap();
        };
        assert!(join(flush, append).await.0.is_err());
        assert!(log.close().await.is_err());
        check(&env, &disk, vec![2; 1_000]).await;
    })
    .unwrap();
}

#[test]
fn a_log_may_be_closed_while_its_segments_wait_to_be_sealed() {
    let sim = Sim::with_disk(&SimDisk::new(1));
    let env = sim.env();
    sim.run(async {
        let log = open(&env).await;
        for _ in 0..20 {
            let appended = log.append(&batch(&[1; 40_000]), Stage::Persisted).await.unwrap();
            log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
        }
        assert!(log.segments().len() > 2);
        log.close().await.unwrap();
        // The sealing task, which waits for a pause, continues.
        env.clock.sleep(Duration::from_secs(1)).await;
        drop(log);
    })
    .unwrap();
}
