//! Checks that readers don't wait: each write and sync stalls, the buffer pool is exhausted, and everything
//! accepted is read, wherever it is.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use settee_io::{BufferPool, Env, OperationKind, PoolOptions};
use settee_log::{Batch, Flags, Location, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk};

/// Shortest duration of each write and sync.
const STALL: Duration = Duration::from_millis(50);

/// Longest duration of a read: a tenth of that.
const READ: Duration = Duration::from_millis(5);

/// Size of an appended value in bytes: two fit into a buffer.
const VALUE_SIZE: usize = 30_000;

/// Two buffers of the smallest size.
const POOL_BYTES: usize = 128 << 10;

fn batch(value: &Bytes) -> Batch {
    let mut batch = Batch::new();
    batch.push_bytes(Flags::none(), b"key", b"", value.clone());
    batch
}

fn value(number: u8, size: usize) -> Bytes {
    Bytes::from(vec![number; size])
}

/// Reads everything accepted while appends wait for a buffer and the disk stalls.
///
/// # Errors
/// The first read that waited, and for how long.
pub(crate) fn readers_never_wait(seed: u64, options: LogOptions) -> Result<(), String> {
    let disk = SimDisk::new(seed).delays_us(10..=200);
    let sim = Sim::with_disk(&disk);
    let env = Env { buffers: BufferPool::new(PoolOptions { bytes_max: POOL_BYTES }), ..sim.env() };
    let options = LogOptions {
        batch_bytes_max: 40 << 10,
        segment_bytes_min: 1 << 20,
        segment_bytes_max: 1 << 20,
        buffer_bytes_min: 64 << 10,
        buffer_bytes_max: 64 << 10,
        // Buffers are written only when they are full.
        accepted_age_ms_max: 10_000,
        ..options
    };
    let read_all = async {
        let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
        let mut persisted = Vec::new();
        for number in 0..5 {
            let value = value(number, 3_000);
            let appended = log.append(&batch(&value), Stage::Persisted).await.unwrap();
            persisted.push((appended.locations[0], value));
        }
        log.flush().await.unwrap();
        let is_stalled: fn(OperationKind) -> bool =
            |kind| matches!(kind, OperationKind::Write | OperationKind::Sync);
        let stall_us = STALL.as_micros() as u64;
        let _stalls = disk.clone().stalls(1.0).stalls_us(stall_us..=stall_us).stalls_only(is_stalled);

        // Fills the pool; the next append waits.
        let mut accepted = Vec::new();
        for number in 100..200 {
            let value = value(number, VALUE_SIZE);
            let next = batch(&value);
            let append = pin!(log.append(&next, Stage::Accepted));
            let appended = match select(append, env.clock.sleep(READ)).await {
                Either::Left((appended, _)) => appended,
                // It waits for disk space in the segment.
                Either::Right((_, append)) if env.buffers.stats().waiting_count == 0 => append.await,
                Either::Right((_, append)) => {
                    // Of the first of these, the record may be written and the frame's end not.
                    let in_memory = (log.stats().memory_bytes as usize / VALUE_SIZE).saturating_sub(1);
                    if in_memory == 0 {
                        return Err("nothing is in memory, and the pool is exhausted".into());
                    }
                    let (written, in_memory) = accepted.split_at(accepted.len() - in_memory);
                    read_accepted(&log, &env, in_memory)?;
                    read_persisted(&log, &env, written).await?;
                    read_persisted(&log, &env, &persisted).await?;
                    append.await.unwrap();
                    log.flush().await.unwrap();
                    return read_persisted(&log, &env, &accepted).await;
                }
            };
            accepted.push((appended.unwrap().locations[0], value));
        }
        Err("the pool has no end".into())
    };
    sim.run(read_all).expect("the power stays")
}

/// A read of bytes in memory completes immediately, without even another task running.
fn read_accepted(log: &Log, env: &Env, accepted: &[(Location, Bytes)]) -> Result<(), String> {
    for (location, value) in accepted {
        let start = env.clock.now();
        let Some(read) = log.read(*location).now_or_never() else {
            return Err(format!("a read of accepted data at {location:?} waits"));
        };
        if read.map_err(|error| error.to_string())?.value() != *value {
            return Err(format!("garbled: accepted data at {location:?}"));
        }
        if env.clock.now() != start {
            return Err(format!("a read of accepted data took {:?}", env.clock.now() - start));
        }
    }
    Ok(())
}

/// A read of bytes that may be in the file takes one read of the disk.
async fn read_persisted(log: &Log, env: &Env, persisted: &[(Location, Bytes)]) -> Result<(), String> {
    for (location, value) in persisted {
        let start = env.clock.now();
        let read = log.read(*location).await.map_err(|error| error.to_string())?;
        let taken = env.clock.now() - start;
        if taken > READ {
            return Err(format!("a read of persisted data at {location:?} took {taken:?}"));
        }
        if read.value() != *value {
            return Err(format!("garbled: persisted data at {location:?}"));
        }
    }
    Ok(())
}
