//! Values of 8 KiB: accepted in memory, compared with memcpy, and streamed to the disk, compared with `fio`.

use bytes::Bytes;
use rustix::fs::FallocateFlags;
use settee_io::Env;
use settee_log::{Batch, Flags, Log, LogOptions, SEGMENT_BYTES_LIMIT, Stage};

use super::bench::{Bench, in_task, random_bytes};
use crate::io::fio::Fio;
use crate::report::{Bound, Row, figures};
use crate::rounds::{Measured, Series, Window, failed, measure_rounds, run_blocking};
use crate::stats::{Elapsed, Samples, Stopwatch};
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
pub(super) async fn memory(bench: &Bench<'_>, each: &mut dyn FnMut(Row)) -> Result<()> {
    let bytes = bench.scaled(128 << 20, 1 << 20).next_multiple_of(VALUE_BYTES);
    let values = random_bytes(bytes);
    let env = bench.env(Some((4 * bytes).max(64 << 20)));
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
    let test_log = bench.open(&env, options).await?;
    let mut target = vec![1; bytes];
    let (mut ours, mut copies) = (Series::default(), Series::default());
    for round in 0..=ROUND_COUNT {
        let copied = copy(&values, &mut target);
        let (log, values) = (test_log.log.clone(), values.clone());
        let accepted = in_task(async move {
            let stopwatch = Stopwatch::start(None);
            append_all(&log, &values, values.len()).await?;
            let accepted = stopwatch.read();
            log.flush().await.map_err(failed)?;
            Ok(window(bytes, accepted))
        });
        let accepted = accepted.await?;
        // In the first round the segment is created; it doesn't count.
        if round > 0 {
            ours.0.push(accepted);
            copies.0.push(copied);
        }
    }
    bench.remove(test_log).await?;
    let name = format!("append {} MiB of 8 KiB values to memory, accepted", bytes >> 20);
    let note = format!(
        "copied, checksums on, one batch each; timed: until the last is accepted, while the writer already writes; \
         memory of both faulted in; pool of {} MiB",
        env.buffers.stats().bytes_max >> 20
    );
    let row = Row::new(name, "MB/s", &ours).against("memcpy", &ours, Some(&copies), Bound::AtLeast(0.5));
    each(row.note(note).note(rounds_note(&ours, &copies)));
    Ok(())
}

fn rounds_note(ours: &Series, peer: &Series) -> String {
    let of = |series: &Series| figures(series.0.iter().map(Window::rate));
    format!("rounds: {} against {} MB/s", of(ours), of(peer))
}

/// The window of a stream of values.
fn window(bytes: usize, elapsed: Elapsed) -> Window {
    let window = Window::new((bytes / VALUE_BYTES) as u64, Samples::default(), elapsed);
    Window { units: bytes as f64 / 1e6, ..window }
}

/// Fills the pool with buffers of `bytes` in all whose memory is faulted in.
fn fault_in(env: &Env, bytes: usize, buffer_bytes: usize) {
    let page = vec![1; buffer_bytes];
    let buffers: Vec<_> =
        std::iter::from_fn(|| env.buffers.try_take(buffer_bytes)).take(bytes / buffer_bytes).collect();
    for mut buffer in buffers {
        buffer.extend(&page);
    }
}

/// Copies `values` with memcpy, one at a time.
fn copy(values: &[u8], target: &mut [u8]) -> Window {
    let stopwatch = Stopwatch::start(None);
    for (from, to) in values.chunks(VALUE_BYTES).zip(target.chunks_mut(VALUE_BYTES)) {
        to.copy_from_slice(from);
    }
    let elapsed = stopwatch.read();
    std::hint::black_box(target);
    window(values.len(), elapsed)
}

/// Appends `bytes` of `values`, cyclically, each in a batch.
async fn append_all(log: &Log, values: &Bytes, bytes: usize) -> Result<()> {
    for index in 0..bytes / VALUE_BYTES {
        let start = index * VALUE_BYTES % values.len();
        let mut batch = Batch::new();
        let value = values.slice(start..start + VALUE_BYTES);
        batch.push_bytes(Flags::none(), &(index as u64).to_be_bytes(), &[], value);
        log.append(&batch, Stage::Accepted).await.map_err(failed)?;
    }
    Ok(())
}

/// Measures a stream of 2 GiB to the disk in direct mode, compared with `fio`. From the start its segments are
/// as large as those of a log of 1 GiB and more, since the peer's file is preallocated.
pub(super) async fn disk(bench: &Bench<'_>, each: &mut dyn FnMut(Row)) -> Result<()> {
    let bytes = bench.scaled(2 << 30, 8 << 20).next_multiple_of(1 << 20);
    let values = random_bytes(SOURCE_BYTES.min(bytes));
    let default = LogOptions::default();
    let options = LogOptions { direct: true, segment_bytes_min: default.segment_bytes_max, ..default };
    let measured = measure_rounds(DISK_ROUND_COUNT, vec![true, false], async |is_ours, _| match is_ours {
        true => stream(bench, &values, bytes, options).await.map(Ok),
        false => fio_writes(bench, bytes as u64).await,
    });
    let [Measured { series: Ok(ours), .. }, Measured { series: theirs, .. }] = &measured.await?[..] else {
        unreachable!("the log's stream gives no reason");
    };
    let row = Row::new(
        format!("append {} MiB of 8 KiB values to the disk, direct, persisted", bytes >> 20),
        "MB/s",
        ours,
    )
    .against("fio, direct, 4 × 1 MiB", ours, theirs.as_ref().ok(), Bound::AtLeast(0.9))
    .note(format!(
        "timed: appends, writes and the last sync of both; {} MiB of random values again and again; \
         segments of {} MiB, {} writes of up to {} KiB in flight",
        values.len() >> 20,
        options.segment_bytes_max >> 20,
        options.writes_in_flight_max,
        options.buffer_bytes_max >> 10
    ));
    each(row.note(match theirs {
        Ok(theirs) => rounds_note(ours, theirs),
        Err(reason) => format!("no rate of fio: {reason}"),
    }));
    Ok(())
}

/// Streams `bytes` into a new log, until all of it is persisted.
async fn stream(bench: &Bench<'_>, values: &Bytes, bytes: usize, options: LogOptions) -> Result<Window> {
    let test_log = bench.open(&bench.env(None), options).await?;
    let (log, values) = (test_log.log.clone(), values.clone());
    let streamed = in_task(async move {
        let stopwatch = Stopwatch::start(None);
        append_all(&log, &values, bytes).await?;
        log.flush().await.map_err(failed)?;
        Ok(window(bytes, stopwatch.read()))
    })
    .await?;
    bench.remove(test_log).await?;
    Ok(streamed)
}

/// Writes `bytes` by `fio` in order to a preallocated file, past the page cache, with a sync at the end. Returns
/// the reason if that isn't possible.
async fn fio_writes(bench: &Bench<'_>, bytes: u64) -> Result<Result<Window, String>> {
    let Some(fio) = Fio::find() else { return Ok(Err("no fio".to_owned())) };
    let (path, directory) = (bench.directory.join("fio"), bench.directory.to_owned());
    run_blocking(move || {
        let made = std::fs::File::create(&path).and_then(|file| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
            file.sync_all()
        });
        let window = match made {
            Ok(()) => fio.sequential_writes(&path, bytes, FIO_DEPTH),
            Err(error) => Err(format!("no space reserved: {error}")),
        };
        std::fs::remove_file(&path).map_err(|error| Error::file(&path, error))?;
        space::sync_file_system(&directory)?;
        Ok(window)
    })
    .await
}
