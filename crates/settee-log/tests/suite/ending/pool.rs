//! Goal: when a log stops, tasks that wait for a buffer get an error, and other logs get its buffers.
//! Method: a pool of one buffer; the write that would return it fails.

use std::path::Path;
use std::time::Duration;

use futures_util::future::{Either, join, select};
use settee_io::{BufferPool, Env, OperationKind, PoolOptions};
use settee_log::{AppendError, Batch, Flags, Log, LogOptions, ReadError, Stage};
use settee_sim::{Fault, Sim, SimDisk};

fn batch() -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &[1; 28_000]);
    batch
}

const OPTIONS: LogOptions = LogOptions {
    batch_bytes_max: 30 << 10,
    buffer_bytes_min: 64 << 10,
    buffer_bytes_max: 64 << 10,
    segment_bytes_min: 1 << 20,
    ..LogOptions::DEFAULT
};

async fn within<T>(env: &Env, future: impl Future<Output = T>) -> Option<T> {
    let limit = env.clock.sleep(Duration::from_secs(60));
    match select(Box::pin(future), limit).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}

#[test]
fn a_caller_waiting_for_a_buffer_gets_an_error_when_the_log_stops() {
    let disk = SimDisk::new(1).delays_us(1_000..=1_000).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = Env { buffers: BufferPool::new(PoolOptions { bytes_max: 64 << 10 }), ..sim.env() };
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new("/log"), OPTIONS, |_, _| {}).await.unwrap();
        // Disk space is reserved in advance, so that only the buffer is missing.
        for _ in 0..12 {
            let first = log.append(&batch(), Stage::Persisted).await.unwrap();
            log.wait(first.last_seq, Stage::Persisted).await.unwrap();
            env.clock.sleep(Duration::from_millis(50)).await;
        }
        let _ = disk.clone().fail(OperationKind::Write, disk.count_of(OperationKind::Write), Fault::Io);
        log.append(&batch(), Stage::Written).await.unwrap();
        log.append(&batch(), Stage::Written).await.unwrap();
        let third = within(&env, log.append(&batch(), Stage::Written)).await;
        assert!(log.health().is_err());
        assert!(matches!(third, Some(Err(AppendError::Stopped(_)))), "it waits for ever: {third:?}");
    })
    .unwrap();
}

#[test]
fn a_stopped_log_returns_its_buffers_to_the_pool() {
    let disk = SimDisk::new(1).delays_us(1_000..=1_000).short_writes(0.0);
    let sim = Sim::with_disk(&disk);
    let env = Env { buffers: BufferPool::new(PoolOptions { bytes_max: 64 << 10 }), ..sim.env() };
    sim.run(async {
        let (one, _) = Log::open(&env, Path::new("/one"), OPTIONS, |_, _| {}).await.unwrap();
        let (two, _) = Log::open(&env, Path::new("/two"), OPTIONS, |_, _| {}).await.unwrap();
        for log in [&one, &two] {
            let first = log.append(&batch(), Stage::Persisted).await.unwrap();
            log.wait(first.last_seq, Stage::Persisted).await.unwrap();
        }
        let _ = disk.clone().fail(OperationKind::Write, disk.count_of(OperationKind::Write), Fault::Io);
        let lost = one.append(&batch(), Stage::Written).await.unwrap();
        env.clock.sleep(Duration::from_secs(1)).await;
        assert!(one.health().is_err());
        let read = one.read(lost.locations[0]).await;
        assert!(matches!(read, Err(ReadError::Stopped(_))), "{read:?}");
        let other = within(&env, two.append(&batch(), Stage::Written)).await;
        assert!(matches!(other, Some(Ok(_))), "a healthy log waits for ever: {:?}", env.buffers.stats());
        let _ = join(one.close(), two.close()).await;
    })
    .unwrap();
}
