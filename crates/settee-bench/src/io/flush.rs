//! Flushes of large buffers, for each combination of size, number in flight, engine and mode.
//!
//! Each combination writes the same random bytes in order to the same file, whose blocks are reserved and
//! unwritten each time (as the log's are), and syncs it once at the end, within the measured time. `fio`
//! writes as many bytes to the same file, past the page cache, in the same round.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::fs::{Advice, FallocateFlags};
use settee_io::{AlignedBuffer, Alignment, Engine, EngineKind, File, OpenMode, RingUse};

use super::config::{Config, IN_FLIGHT_COUNTS, SIZES};
use super::engine::{failed, set_direct, start_engine};
use super::row::{IoRow, Latency, Series, Window, switch_count};
use super::tasks::{ended, run_blocking};
use crate::random::RandomBytes;
use crate::stats::{Samples, Stopwatch};
use crate::{Error, Result};

/// Number of fio's writes in flight, of 1 MiB each.
const FIO_DEPTH: usize = 4;

/// Number of combinations between two runs of `fio`.
const CELLS_BETWEEN: usize = 12;

/// Size of the random source, which is written cyclically: more than fits a processor's caches.
const SOURCE_BYTES: usize = 64 << 20;

/// Alignment of the source in bytes, sufficient for any device.
const SOURCE_ALIGNMENT: usize = 4096;

/// Share of the best rate from which on a combination counts as near it.
const NEAR: f64 = 0.9;

const MIB: u64 = 1 << 20;
const MB_OF_MIB: f64 = 1.048_576;

/// One combination of parameters.
#[derive(Debug, Clone, Copy)]
struct Cell {
    size: usize,
    in_flight: usize,
    engine: EngineKind,
    is_direct: bool,
}

impl Cell {
    fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for is_direct in [false, true] {
            for engine in [EngineKind::Threads, EngineKind::Uring] {
                for size in SIZES {
                    let of = |in_flight| Cell { size, in_flight, engine, is_direct };
                    cells.extend(IN_FLIGHT_COUNTS.map(of));
                }
            }
        }
        cells
    }

    fn name(self) -> String {
        let mode = if self.is_direct { "direct" } else { "buffered" };
        format!("flush: {mode}, {}, {} KiB, {} in flight", self.engine, self.size >> 10, self.in_flight)
    }
}

/// Measures every combination and reports its row, then the best of each mode.
pub(super) async fn measure(config: &Config, directory: &Path, each: &mut impl FnMut(IoRow)) -> Result<()> {
    let path = directory.join("flush");
    let bytes = config.flush_bytes;
    let source = run_blocking(|| Ok(source())).await?;
    // The uring engine does all operations through the ring.
    let engines = [
        (EngineKind::Threads, start_engine(EngineKind::Threads, None)),
        (EngineKind::Uring, start_engine(EngineKind::Uring, Some(RingUse::All))),
    ];
    let mut cells: Vec<(Cell, Result<Series, String>)> =
        Cell::all().into_iter().map(|cell| (cell, Ok(Series::default()))).collect();
    let mut peers: Vec<Result<Series, String>> = Vec::new();
    for round in 0..config.flush_rounds {
        for (group, cells) in cells.chunks_mut(CELLS_BETWEEN).enumerate() {
            if round == 0 {
                peers.push(config.fio.as_ref().map(|_| Series::default()).ok_or_else(|| "no fio".to_owned()));
            }
            fio_turn(config, &path, &mut peers[group]).await?;
            for (cell, series) in cells {
                let Ok(windows) = &mut *series else { continue };
                let engine = &engines.iter().find(|(kind, _)| *kind == cell.engine).expect("one of two").1;
                prepare_in_thread(&path, bytes).await?;
                let window = match engine {
                    Ok(engine) => write(engine, &path, *cell, bytes, &source).await?,
                    Err(reason) => Err(reason.clone()),
                };
                match window {
                    Ok(window) => windows.0.push(window),
                    Err(reason) => *series = Err(reason),
                }
            }
        }
    }
    report(&cells, &peers, each);
    Ok(())
}

fn report(
    cells: &[(Cell, Result<Series, String>)],
    peers: &[Result<Series, String>],
    each: &mut impl FnMut(IoRow),
) {
    let name = format!("flush: fio, direct, 1024 KiB, {FIO_DEPTH} in flight");
    let windows = peers.iter().flatten().flat_map(|series| series.0.clone());
    let all_fio = Series(windows.collect());
    each(match peers.iter().find_map(|peer| peer.as_ref().err()) {
        Some(reason) => IoRow::missing(name, "MB/s", reason),
        None => IoRow::new(name, "MB/s", &all_fio),
    });
    let mut rows = Vec::new();
    for (index, (cell, series)) in cells.iter().enumerate() {
        let peer = peers.get(index / CELLS_BETWEEN).and_then(|peer| peer.as_ref().ok());
        let row = match series {
            Ok(series) => IoRow::new(cell.name(), "MB/s", series).against("fio", series, peer),
            Err(reason) => IoRow::missing(cell.name(), "MB/s", reason),
        };
        each(row.clone());
        rows.push(row);
    }
    for (title, mode) in [("buffered", "buffered,"), ("direct", "direct,")] {
        let of_mode = rows.iter().filter(|row| row.workload.contains(mode) && row.rate.is_some());
        let best = of_mode.max_by(|one, other| f64::total_cmp(&rate(one), &rate(other)));
        if let Some(mut row) = best.cloned() {
            row.workload = row.workload.replacen("flush:", &format!("flush, the best {title}:"), 1);
            row.note = Some(near_best(&rows, mode, &row));
            each(row);
        }
    }
}

fn rate(row: &IoRow) -> f64 {
    row.rate.unwrap_or(0.0)
}

/// A note on the combinations of a mode that are near its best, and on the cheapest of them.
fn near_best(rows: &[IoRow], mode: &str, best: &IoRow) -> String {
    let near = |row: &&IoRow| row.workload.contains(mode) && rate(row) >= rate(best) * NEAR;
    let count = rows.iter().filter(near).count();
    let cheapest = rows.iter().filter(near).min_by(|one, other| {
        f64::total_cmp(&one.cpu_us.unwrap_or(f64::MAX), &other.cpu_us.unwrap_or(f64::MAX))
    });
    let cheapest = cheapest.unwrap_or(best);
    format!(
        "{count} cell(s) reach {NEAR} of it; of these the least processor time: {} with {:.0} µs a MiB",
        cheapest.workload.trim_start_matches("flush: "),
        cheapest.cpu_us.unwrap_or_default(),
    )
}

async fn fio_turn(config: &Config, path: &Path, peer: &mut Result<Series, String>) -> Result<()> {
    let (Some(fio), Ok(series)) = (config.fio.clone(), &mut *peer) else { return Ok(()) };
    let bytes = config.flush_bytes;
    prepare_in_thread(path, bytes).await?;
    let path = path.to_owned();
    match run_blocking(move || Ok(fio.sequential_writes(&path, bytes, FIO_DEPTH))).await? {
        Ok(window) => series.0.push(window),
        Err(reason) => *peer = Err(reason),
    }
    Ok(())
}

async fn write(
    engine: &Arc<dyn Engine>,
    path: &Path,
    cell: Cell,
    bytes: u64,
    source: &Bytes,
) -> Result<Result<Window, String>> {
    let file = File::open(engine, path, OpenMode::Write).await.map_err(failed)?;
    if cell.is_direct
        && let Err(reason) = set_direct(&file).await?
    {
        return Ok(Err(reason));
    }
    let source = source.clone();
    // In a task, so that it runs on the runtime's threads.
    let written = tokio::task::spawn(async move { write_all(&file, cell, bytes, &source).await });
    written.await.map_err(ended)?.map(Ok)
}

async fn write_all(file: &File, cell: Cell, bytes: u64, source: &Bytes) -> Result<Window> {
    let (switches, stopwatch) = (switch_count(), Stopwatch::start(None));
    let write = |index: u64| {
        let offset = index * cell.size as u64;
        let start = (offset % source.len() as u64) as usize;
        let bytes = source.slice(start..start + cell.size);
        async move {
            let start = Instant::now();
            file.write_at(offset, bytes).await.map_err(failed)?;
            Ok::<Duration, Error>(start.elapsed())
        }
    };
    let mut rest = 0..bytes / cell.size as u64;
    let mut in_flight: FuturesUnordered<_> = rest.by_ref().take(cell.in_flight).map(write).collect();
    let mut samples = Samples::default();
    while let Some(written) = in_flight.next().await {
        samples.push(written?);
        in_flight.extend(rest.next().map(write));
    }
    file.sync().await.map_err(failed)?;
    let mut window = Window::new(bytes / MIB, stopwatch.read());
    window.weight = MB_OF_MIB;
    window.switches = switch_count().zip(switches).map(|(now, then)| now.saturating_sub(then));
    window.latency = Latency::of(&samples);
    Ok(window)
}

/// Random bytes, aligned for direct writes.
fn source() -> Bytes {
    let alignment = Alignment::new(SOURCE_ALIGNMENT).expect("a power of two");
    let mut buffer = AlignedBuffer::new(SOURCE_BYTES, alignment);
    RandomBytes::new(11).fill(buffer.whole_mut());
    buffer.set_len(SOURCE_BYTES);
    buffer.into()
}

async fn prepare_in_thread(path: &Path, bytes: u64) -> Result<()> {
    let path = path.to_owned();
    run_blocking(move || prepare(&path, bytes).map_err(|error| Error::file(&path, error))).await
}

/// Makes all of the file's blocks reserved and unwritten, and drops the file from the page cache.
fn prepare(path: &Path, bytes: u64) -> std::io::Result<()> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    // Keeps the blocks and clears their content. Not every file system supports it.
    if rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, bytes).is_err() {
        file.set_len(0)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    }
    file.sync_all()?;
    Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
}
