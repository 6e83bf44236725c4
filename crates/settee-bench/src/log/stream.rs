//! Values of 8 KiB: accepted in memory, compared with memcpy, and streamed to the disk, compared with `fio`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::FallocateFlags;
use settee_io::{BufferPool, Env};
use settee_log::{Batch, Flags, Log, LogOptions, SEGMENT_BYTES_LIMIT, Stage};

use super::bench::Bench;
use super::row::{Better, LogAim, LogRow, median, rounds_text};
use super::test_log::{random_bytes, refused, stream_options};
use crate::io::fio::Fio;
use crate::io::row::figure;
use crate::{Error, Result, space};

/// Bytes of each value.
const VALUE_BYTES: usize = 8 << 10;

/// Bytes of random values that a stream uses cyclically.
const SOURCE_BYTES: usize = 64 << 20;

/// Number of rounds of the values in memory.
const ROUND_COUNT: usize = 5;

/// Number of rounds of the stream: few, since it writes much.
const DISK_ROUND_COUNT: usize = 3;

/// Number of fio's writes in flight, of 1 MiB each.
const FIO_DEPTH: usize = 4;

/// Upper bound of the bytes on disk that a value takes besides itself, for the segment's size.
const OVERHEAD_BYTES_MAX: usize = 256;

/// Measures 128 MiB accepted in memory, compared with memcpy of the same.
pub(super) fn memory(bench: &Bench, each: &mut dyn FnMut(LogRow)) -> Result<()> {
    let bytes = bench.config.scaled(128 << 20, 1 << 20).next_multiple_of(VALUE_BYTES);
    let values = random_bytes(bytes);
    let env = bench.env((4 * bytes).max(64 << 20));
    let default = LogOptions::default();
    // One segment holds all rounds, so that no round waits for the disk.
    let all = (ROUND_COUNT + 1) * bytes / VALUE_BYTES * (VALUE_BYTES + OVERHEAD_BYTES_MAX) + (8 << 20);
    let segment = (all.min(SEGMENT_BYTES_LIMIT as usize) as u32).max(default.segment_bytes_max);
    let options = LogOptions {
        segment_bytes_min: segment,
        segment_bytes_max: segment,
        buffer_bytes_min: default.buffer_bytes_max,
        bypass_bytes_min: usize::MAX,
        ..default
    };
    fault_in(&env, 2 * bytes, default.buffer_bytes_max);
    let test_log = bench.open(&env, options)?;
    let mut target = vec![1; bytes];
    let (mut ours, mut copies) = (Vec::new(), Vec::new());
    for round in 0..=ROUND_COUNT {
        let copied = copy(&values, &mut target);
        let (log, values) = (test_log.log.clone(), values.clone());
        let accepted = bench.in_task(async move {
            let start = Instant::now();
            append_all(&log, &values, values.len()).await?;
            let accepted = start.elapsed();
            log.flush().await.map_err(refused)?;
            Ok(accepted)
        })?;
        // In the first round the segment is created; it doesn't count.
        if round > 0 {
            ours.push(rate(bytes, accepted));
            copies.push(rate(bytes, copied));
        }
    }
    bench.remove(test_log)?;
    let row = LogRow::new(
        format!("append {} MiB of 8 KiB values to memory", bytes >> 20),
        "accepted",
        "MB/s",
        median(&ours),
    );
    each(
        row.against(Better::Higher, "memcpy", median(&copies))
            .aim(LogAim::RatioAtLeast(0.5))
            .note(format!(
                "copied, checksums on, one batch each; timed: until the last is accepted, while the writer \
                 already writes; memory of both faulted in; pool of {} MiB",
                env.buffers.stats().bytes_max >> 20
            ))
            .note(format!("rounds: {} against {}", rounds_text(&ours), rounds_text(&copies))),
    );
    Ok(())
}

/// Fills the pool with buffers of `bytes` in all whose memory is faulted in.
fn fault_in(env: &Env, bytes: usize, buffer_bytes: usize) {
    let pool: &Arc<BufferPool> = &env.buffers;
    let page = vec![1; buffer_bytes];
    let buffers: Vec<_> =
        std::iter::from_fn(|| pool.try_take(buffer_bytes)).take(bytes / buffer_bytes).collect();
    for mut buffer in buffers {
        buffer.extend(&page);
    }
}

/// Copies `values` with memcpy, one at a time. Returns the duration.
fn copy(values: &[u8], target: &mut [u8]) -> Duration {
    let start = Instant::now();
    for (from, to) in values.chunks(VALUE_BYTES).zip(target.chunks_mut(VALUE_BYTES)) {
        to.copy_from_slice(from);
    }
    let taken = start.elapsed();
    std::hint::black_box(target);
    taken
}

/// Appends `bytes` of `values`, cyclically, each in a batch.
async fn append_all(log: &Log, values: &Bytes, bytes: usize) -> Result<()> {
    for index in 0..bytes / VALUE_BYTES {
        let start = index * VALUE_BYTES % values.len();
        let mut batch = Batch::new();
        let value = values.slice(start..start + VALUE_BYTES);
        batch.push_bytes(Flags::none(), &(index as u64).to_be_bytes(), &[], value);
        log.append(&batch, Stage::Accepted).await.map_err(refused)?;
    }
    Ok(())
}

/// Measures a stream of 2 GiB to the disk in direct mode, compared with `fio`.
pub(super) fn disk(bench: &Bench, each: &mut dyn FnMut(LogRow)) -> Result<()> {
    let bytes = bench.config.scaled(2 << 30, 8 << 20).next_multiple_of(1 << 20);
    let values = random_bytes(SOURCE_BYTES.min(bytes));
    let options = stream_options(true);
    let mut ours = Vec::new();
    let mut theirs = Fio::find().ok_or_else(|| "no fio".to_owned()).map(|_| Vec::new());
    for _ in 0..DISK_ROUND_COUNT {
        ours.push(rate(bytes, stream(bench, &values, bytes, options)?));
        if let Ok(rates) = &mut theirs {
            match fio_rate(bench, bytes as u64)? {
                Ok(rate) => rates.push(rate),
                Err(reason) => theirs = Err(reason),
            }
        }
    }
    let row = LogRow::new(
        format!("append {} MiB of 8 KiB values to the disk, direct", bytes >> 20),
        "persisted",
        "MB/s",
        median(&ours),
    )
    .aim(LogAim::RatioAtLeast(0.9))
    .note(format!(
        "timed: appends, writes and the last sync of both; {} MiB of random values again and again; \
         segments of {} MiB, {} writes of up to {} KiB in flight",
        values.len() >> 20,
        options.segment_bytes_max >> 20,
        options.writes_in_flight_max,
        options.buffer_bytes_max >> 10
    ));
    each(match theirs {
        Ok(rates) => row.against(Better::Higher, "fio, direct, 4 × 1 MiB", median(&rates)).note(format!(
            "rounds: {} against {}",
            rounds_text(&ours),
            rounds_text(&rates)
        )),
        Err(reason) => row.note(format!("no rate of fio: {reason}")),
    });
    Ok(())
}

/// Streams `bytes` into a new log. Returns the time until all of it is persisted.
fn stream(bench: &Bench, values: &Bytes, bytes: usize, options: LogOptions) -> Result<Duration> {
    let test_log = bench.open(&bench.default_env(), options)?;
    let (log, values) = (test_log.log.clone(), values.clone());
    let taken = bench.in_task(async move {
        let start = Instant::now();
        append_all(&log, &values, bytes).await?;
        log.flush().await.map_err(refused)?;
        Ok(start.elapsed())
    })?;
    bench.remove(test_log)?;
    Ok(taken)
}

/// Measures the rate of `fio` in MB/s, writing `bytes` in order to a preallocated file, past the page cache,
/// with a sync at the end. Returns the reason if there is no rate.
pub(super) fn fio_rate(bench: &Bench, bytes: u64) -> Result<Result<f64, String>> {
    let Some(fio) = Fio::find() else { return Ok(Err("no fio".to_owned())) };
    let path = bench.path().join("fio");
    let made = std::fs::File::create(&path).and_then(|file| {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        file.sync_all()
    });
    let rate = match made {
        Ok(()) => fio.sequential_writes(&path, bytes, FIO_DEPTH).map(|window| window.rate()),
        Err(error) => Err(format!("no space reserved: {error}")),
    };
    std::fs::remove_file(&path).map_err(|error| Error::file(&path, error))?;
    space::sync_file_system(bench.path())?;
    Ok(rate.and_then(|rate| match rate > 0.0 {
        true => Ok(rate),
        false => Err(format!("fio reported a rate of {}", figure(rate))),
    }))
}

/// The rate in MB/s.
pub(super) fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}
