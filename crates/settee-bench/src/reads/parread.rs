//! Random small reads of large cold files, in the forms of Riak's `parread`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future;
use settee_io::{Engine, EngineKind, File, OpenMode, ReadAt, ReadPolicy};
use tokio::task::JoinSet;

use super::config::{Config, FILE_COUNT, PARALLEL_COUNT, READ_BYTES};
use crate::io::data_file::{self, Offsets};
use crate::io::engine::{failed, open_direct, start_engine};
use crate::io::row::{IoRow, Latency, Series, Window, switch_count};
use crate::io::tasks::{ended, run_blocking};
use crate::report::Bound;
use crate::stats::{Samples, Stopwatch};
use crate::{Error, Result};

/// The order of the reads and the way in which they are issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// By a thread that blocks in each call, in random order.
    Serial,
    /// By a thread that blocks in each call, in order of the offsets.
    Sorted,
    /// By [`PARALLEL_COUNT`] tasks that each take the next read.
    Parallel(EngineKind),
    /// All reads of each file at once, through the planner.
    Grouped,
}

const ORDERS: [Order; 5] = [
    Order::Serial,
    Order::Sorted,
    Order::Parallel(EngineKind::Threads),
    Order::Parallel(EngineKind::Auto),
    Order::Grouped,
];

/// Index in [`ORDERS`] of the serial reads, with which others are compared.
const SERIAL: usize = 0;

/// Index in [`ORDERS`] of the parallel reads on the default engine, with which the grouped ones are compared.
const PARALLEL: usize = 3;

impl Order {
    fn name(self, default_engine: &str) -> String {
        match self {
            Order::Serial => "serial".to_owned(),
            Order::Sorted => "sorted".to_owned(),
            Order::Parallel(EngineKind::Auto) => {
                format!("parallel, {PARALLEL_COUNT} tasks, {default_engine}")
            }
            Order::Parallel(kind) => format!("parallel, {PARALLEL_COUNT} tasks, {kind}"),
            Order::Grouped => format!("grouped by the planner, {default_engine}"),
        }
    }
}

/// The measurements of one order.
#[derive(Default)]
struct Measured {
    series: Series,
    /// Bytes read from the device.
    device_bytes: Option<u64>,
    /// Number of probed blocks that were cached before the reads.
    cached: usize,
    /// Number of blocks probed before the reads.
    probed: usize,
}

/// Measures every order on cold files, buffered and then direct, and reports the rows.
pub(super) async fn measure(config: &Config, directory: &Path, each: &mut impl FnMut(IoRow)) -> Result<()> {
    let paths: Vec<PathBuf> =
        (0..FILE_COUNT).map(|index| directory.join(format!("random-{index}"))).collect();
    for (index, path) in paths.iter().enumerate() {
        let (path, bytes) = (path.clone(), config.file_bytes);
        run_blocking(move || data_file::create(&path, bytes, index as u64)).await?;
    }
    let engine = start_engine(EngineKind::Auto, None).map_err(failed)?;
    let threads = start_engine(EngineKind::Threads, None).map_err(failed)?;
    for (mode_index, mode) in ["buffered", "direct"].into_iter().enumerate() {
        let is_direct = mode == "direct";
        let opened = (open(&engine, &paths, is_direct).await?, open(&threads, &paths, is_direct).await?);
        let (files, thread_files) = match opened {
            (Ok(files), Ok(thread_files)) => (files, thread_files),
            (Err(reason), _) | (_, Err(reason)) => {
                each(IoRow::missing(format!("parread, cold, {mode}"), "reads/s", reason));
                continue;
            }
        };
        let mut measured = ORDERS.map(|_| Measured::default());
        for round in 0..config.rounds {
            for turn in 0..ORDERS.len() {
                let index = (turn + round) % ORDERS.len();
                let order = ORDERS[index];
                let files = match order {
                    Order::Parallel(EngineKind::Threads) => &thread_files,
                    _ => &files,
                };
                let seed = ((mode_index * config.rounds + round) * ORDERS.len() + index) as u64;
                read_once(config, order, files, &paths, seed, &mut measured[index]).await?;
            }
        }
        report(mode, engine.name(), &measured, each);
    }
    Ok(())
}

async fn open(
    engine: &Arc<dyn Engine>,
    paths: &[PathBuf],
    is_direct: bool,
) -> Result<Result<Vec<Arc<File>>, String>> {
    let mut files = Vec::new();
    for path in paths {
        let file = match is_direct {
            true => open_direct(engine, path).await?,
            false => Ok(File::open(engine, path, OpenMode::Read).await.map_err(failed)?),
        };
        match file {
            Ok(file) => files.push(Arc::new(file)),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(files))
}

/// Evicts the files from the page cache, then reads them once.
async fn read_once(
    config: &Config,
    order: Order,
    files: &[Arc<File>],
    paths: &[PathBuf],
    seed: u64,
    measured: &mut Measured,
) -> Result<()> {
    let evicted = paths.to_owned();
    let counts: Vec<(usize, usize)> =
        run_blocking(move || evicted.iter().map(|path| data_file::evict(path, seed)).collect()).await?;
    measured.cached += counts.iter().map(|(cached, _)| cached).sum::<usize>();
    measured.probed += counts.iter().map(|(_, probed)| probed).sum::<usize>();
    let mut reads = Vec::new();
    for index in 0..files.len() {
        let mut offsets = Offsets::new(seed * FILE_COUNT as u64 + index as u64, config.file_bytes);
        reads.extend((0..config.read_count).map(|_| (index, offsets.piece(READ_BYTES))));
    }
    let (device, switches, stopwatch) = (data_file::device_bytes(), switch_count(), Stopwatch::start(None));
    let samples = match order {
        Order::Serial => serial(files.to_owned(), reads).await?,
        Order::Sorted => {
            reads.sort_unstable();
            serial(files.to_owned(), reads).await?
        }
        Order::Parallel(_) => parallel(files, reads).await?,
        Order::Grouped => grouped(files, &reads).await?,
    };
    let count = config.read_count * files.len();
    let mut window = Window::new(count as u64, stopwatch.read());
    window.switches = switch_count().zip(switches).map(|(now, then)| now.saturating_sub(then));
    window.latency = Latency::of(&samples);
    measured.series.0.push(window);
    let fetched = data_file::device_bytes().zip(device).map(|(now, then)| now.saturating_sub(then));
    measured.device_bytes = fetched.map(|bytes| bytes + measured.device_bytes.unwrap_or(0));
    Ok(())
}

/// Reads one after the other, each by a blocking call.
async fn serial(files: Vec<Arc<File>>, reads: Vec<(usize, u64)>) -> Result<Samples> {
    run_blocking(move || {
        let mut samples = Samples::default();
        for (index, offset) in reads {
            let start = Instant::now();
            check(offset, &files[index].read_at_blocking(offset, READ_BYTES).map_err(failed)?)?;
            samples.push(start.elapsed());
        }
        Ok(samples)
    })
    .await
}

async fn parallel(files: &[Arc<File>], reads: Vec<(usize, u64)>) -> Result<Samples> {
    let (reads, taken) = (Arc::new(reads), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..PARALLEL_COUNT {
        let (files, reads, taken) = (files.to_owned(), reads.clone(), taken.clone());
        tasks.spawn(async move {
            let mut samples = Samples::default();
            while let Some(&(index, offset)) = reads.get(taken.fetch_add(1, Ordering::Relaxed)) {
                let start = Instant::now();
                check(offset, &files[index].read_at(offset, READ_BYTES).await.map_err(failed)?)?;
                samples.push(start.elapsed());
            }
            Ok::<_, Error>(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(samples) = tasks.join_next().await {
        all.append(samples.map_err(ended)??);
    }
    Ok(all)
}

/// Reads each file in one call, the files concurrently, each in a task.
async fn grouped(files: &[Arc<File>], reads: &[(usize, u64)]) -> Result<Samples> {
    let tasks = files.iter().enumerate().map(|(index, file)| {
        let wanted = reads.iter().filter(|(of, _)| *of == index);
        let wanted: Vec<ReadAt> = wanted.map(|(_, offset)| ReadAt::new(*offset, READ_BYTES)).collect();
        let file = file.clone();
        tokio::spawn(async move {
            let start = Instant::now();
            // In direct mode it reads whole chunks under any policy.
            let values = file.read_many(&wanted, ReadPolicy::ADJACENT_ONLY).await;
            let elapsed: Duration = start.elapsed();
            for (read, value) in wanted.iter().zip(values) {
                check(read.offset, &value.map_err(failed)?)?;
            }
            Ok::<_, Error>(elapsed)
        })
    });
    let mut samples = Samples::default();
    for elapsed in future::join_all(tasks).await {
        samples.push(elapsed.map_err(ended)??);
    }
    Ok(samples)
}

fn check(offset: u64, bytes: &[u8]) -> Result<()> {
    if bytes.len() == READ_BYTES && data_file::verify(offset, bytes) {
        return Ok(());
    }
    Err(Error::wrong("parread", format!("wrong bytes, {} of them, at {offset}", bytes.len())))
}

fn report(mode: &str, engine: &str, measured: &[Measured], each: &mut impl FnMut(IoRow)) {
    let (serial, parallel) = (&measured[SERIAL].series, &measured[PARALLEL].series);
    for (order, Measured { series, device_bytes, cached, probed }) in ORDERS.into_iter().zip(measured) {
        let row = IoRow::new(format!("parread, cold, {mode}: {}", order.name(engine)), "reads/s", series);
        let mut note = format!("{cached} of {probed} blocks probed beforehand were cached");
        if let Some(bytes) = device_bytes {
            let kib = *bytes as f64 / 1024.0 / row.operations.max(1) as f64;
            note += &format!("; {kib:.1} KiB came from the device for each read");
        }
        let row = match order {
            Order::Serial => row,
            Order::Sorted => row.against("serial", series, Some(serial)),
            Order::Parallel(_) => row.against("serial", series, Some(serial)).with_aim(Bound::AtLeast(4.0)),
            Order::Grouped => {
                let to_serial = series.ratio_to(serial).unwrap_or_default();
                note = format!("{to_serial:.2} × serial; p50/p99 are of whole files; {note}");
                row.against("parallel", series, Some(parallel)).with_aim(Bound::AtLeast(1.0))
            }
        };
        each(row.with_note(note));
    }
}
