//! Random reads of 4 KiB: cold and past the page cache, compared with `fio`; cached, compared with pread(2).

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use settee_io::{DirectMode, Engine, EngineKind, File, OpenMode};
use tokio::task;

use super::common::{Sizes, start_engine};
use super::data_file::{self, BLOCK_BYTES, Offsets};
use super::fio::Fio;
use crate::report::{Bound, Row};
use crate::rounds::{Measured, Window, failed, join_all, measure_rounds, run_blocking};
use crate::stats::{Samples, Stopwatch};
use crate::{Error, Result};

/// Numbers of reads in flight of the cold workloads.
const DEPTHS: [usize; 3] = [1, 32, 128];

/// Numbers of tasks of the cached workloads.
const TASK_COUNTS: [usize; 3] = [1, 4, 64];

/// Cached reads of a task before it yields: half of tokio's budget of a task.
const CACHED_BURST_COUNT: u64 = 64;

/// The way in which reads are issued.
#[derive(Clone)]
enum Form {
    /// By `fio`, with this many in flight.
    Fio(Fio, usize),
    /// By a thread that blocks in each call.
    Blocking(Arc<File>),
    /// By one task with this many in flight.
    OneTask(Arc<File>, usize),
    /// By this many tasks with one in flight each.
    Tasks(Arc<File>, usize),
    /// By this many tasks from the page cache, without timing each read.
    Cached(Arc<File>, usize),
    /// By this many threads with pread(2) in a loop.
    Pread(usize),
}

/// A workload, or the reason why it can't be run.
struct Workload {
    name: String,
    form: Result<Form, String>,
}

impl Workload {
    fn new(name: impl Into<String>, form: Result<Form, String>) -> Workload {
        Workload { name: name.into(), form }
    }
}

/// Measures the cold reads of `path`, past the page cache, and reports the rows.
pub(super) async fn cold(sizes: &Sizes, path: &Path, has_fio: bool, each: &mut dyn FnMut(Row)) -> Result<()> {
    let mut files = Vec::new();
    for kind in [EngineKind::Threads, EngineKind::Uring] {
        files.push((kind, open_direct(&start_engine(kind), path).await?));
    }
    let fio = Fio::find().filter(|_| has_fio).ok_or_else(|| "no fio".to_owned());
    for depth in DEPTHS {
        let name = fio.as_ref().map_or("fio", |fio| &fio.version);
        let mut workloads = vec![Workload::new(name, fio.clone().map(|fio| Form::Fio(fio, depth)))];
        for (kind, file) in &files {
            let tasks = file.clone().map(|file| Form::Tasks(file, depth));
            if depth > 1 {
                let form = file.clone().map(|file| Form::OneTask(file, depth));
                workloads.push(Workload::new(format!("one task, {depth} in flight, {kind}"), form));
                workloads.push(Workload::new(format!("{depth} tasks, {kind}"), tasks));
                continue;
            }
            if *kind == EngineKind::Threads {
                workloads.push(Workload::new("blocking call", file.clone().map(Form::Blocking)));
            }
            workloads.push(Workload::new(format!("through a task, {kind}"), tasks));
        }
        let measured = measure(sizes, path, workloads).await?;
        let peer = &measured[0].series;
        for Measured { workload, series } in &measured {
            let name = format!("4 KiB, direct, {depth} outstanding: {}", workload.name);
            let row = Row::of(name, "reads/s", series);
            let aim = if workload.name.starts_with("through a task") { 0.7 } else { 0.95 };
            each(match (&workload.form, series) {
                (Ok(Form::Fio(..)), _) | (_, Err(_)) => row,
                (_, Ok(ours)) => row.against("fio", ours, peer.as_ref().ok(), Bound::AtLeast(aim)),
            });
        }
    }
    Ok(())
}

/// Measures the cached reads of `path`, which must be in the page cache, compared with pread(2) on as many
/// cores.
pub(super) async fn cached(sizes: &Sizes, path: &Path, each: &mut dyn FnMut(Row)) -> Result<()> {
    let core_count = thread::available_parallelism().map_or(1, usize::from);
    let engine = start_engine(EngineKind::Auto).map_err(failed)?;
    let file = Arc::new(File::open(&engine, path, OpenMode::Read).await.map_err(failed)?);
    let threads = if core_count > 1 { vec![1, core_count] } else { vec![1] };
    let pread = |count| Workload::new(format!("pread in a loop, {count} thread(s)"), Ok(Form::Pread(count)));
    let tasks = |count| Workload::new(format!("{count} task(s)"), Ok(Form::Cached(file.clone(), count)));
    let workloads = threads.iter().copied().map(pread).chain(TASK_COUNTS.map(tasks));
    let measured = measure(sizes, path, workloads.collect()).await?;
    let series = |index: usize| measured[index].series.as_ref().map_err(failed);
    for (index, Measured { workload, series: ours }) in measured.iter().enumerate() {
        let row = Row::of(format!("4 KiB, cached: {}", workload.name), "reads/s", ours);
        let Ok(Form::Cached(_, count)) = workload.form else {
            each(row);
            continue;
        };
        let (ours, cores) = (series(index)?, count.min(core_count));
        let peer = series(threads.iter().position(|threads| *threads == cores).unwrap_or(threads.len() - 1))?;
        let row = row
            .against("pread", ours, Some(peer), Bound::AtLeast(0.9))
            .compare("× pread by processor time", ours.per_cpu_ratio_to(peer), None)
            .against("one task", ours, Some(series(threads.len())?), None);
        each(row.note(format!("on {cores} of {core_count} cores")));
    }
    Ok(())
}

async fn measure(sizes: &Sizes, path: &Path, workloads: Vec<Workload>) -> Result<Vec<Measured<Workload>>> {
    let measure = async |workload: &Workload, round| match workload.form.clone() {
        Ok(form) => read_for(sizes, path.to_owned(), form, round as u64).await,
        Err(reason) => Ok(Err(reason)),
    };
    measure_rounds(sizes.rounds, workloads, measure).await
}

/// Opens a file in direct mode, or returns the reason why that fails.
pub(super) async fn open_direct(
    engine: &Result<Arc<dyn Engine>, String>,
    path: &Path,
) -> Result<Result<Arc<File>, String>> {
    let engine = match engine {
        Ok(engine) => engine,
        Err(reason) => return Ok(Err(reason.clone())),
    };
    let file = File::open(engine, path, OpenMode::Read).await.map_err(failed)?;
    Ok(match file.set_direct(true).await.map_err(failed)? {
        DirectMode::Direct(_) => Ok(Arc::new(file)),
        DirectMode::Buffered => Err("the file stayed buffered".to_owned()),
        DirectMode::Refused(reason) => Err(format!("no direct mode: {reason}")),
    })
}

/// Reads random blocks for the sizes' duration, at least one.
async fn read_for(
    &Sizes { file_bytes, duration, .. }: &Sizes,
    path: PathBuf,
    form: Form,
    seed: u64,
) -> Result<Result<Window, String>> {
    let stopwatch = Stopwatch::start(None);
    let until = Instant::now() + duration;
    let offsets =
        move |index: usize, count: usize| Offsets::new(seed * count as u64 + index as u64, file_bytes);
    let tasks = |file: Arc<File>, count, burst, timed| {
        join_all((0..count).map(move |index| {
            let mut offsets = offsets(index, count);
            read_until(file.clone(), move || (offsets.block(), BLOCK_BYTES), burst, timed, until)
        }))
    };
    let read: Vec<(u64, Samples)> = match form {
        Form::Fio(fio, depth) => {
            let read = move || Ok(fio.random_reads(&path, file_bytes, depth, duration));
            return run_blocking(read).await;
        }
        Form::Blocking(file) => {
            vec![run_blocking(move || blocking_reads(&file, offsets(0, 1), until)).await?]
        }
        Form::OneTask(file, depth) => {
            let reads = async move { many_reads(&file, depth, offsets(0, 1), until).await };
            vec![task::spawn(reads).await.map_err(failed)??]
        }
        Form::Tasks(file, count) => tasks(file, count, 1, true).await?,
        Form::Cached(file, count) => tasks(file, count, CACHED_BURST_COUNT, false).await?,
        Form::Pread(count) => pread_for(&path, (0..count).map(|index| offsets(index, count)), until)?,
    };
    let elapsed = stopwatch.read();
    let operations = read.iter().map(|(count, _)| count).sum();
    Ok(Ok(Window::new(operations, read.into_iter().map(|(_, samples)| samples).collect(), elapsed)))
}

/// Reads until `until`, `burst` times before other tasks run. Returns the number of reads, and their latencies
/// if `timed` is set.
pub(super) async fn read_until(
    file: Arc<File>,
    mut next: impl FnMut() -> (u64, usize),
    burst: u64,
    timed: bool,
    until: Instant,
) -> Result<(u64, Samples)> {
    let (mut count, mut samples) = (0, Samples::default());
    loop {
        for _ in 0..burst {
            let (offset, length) = next();
            let start = timed.then(Instant::now);
            let bytes = file.read_at(offset, length).await.map_err(failed)?;
            start.inspect(|start| samples.push(start.elapsed()));
            check(offset, length, &bytes)?;
        }
        count += burst;
        if Instant::now() >= until {
            return Ok((count, samples));
        }
        if burst > 1 {
            task::yield_now().await;
        }
    }
}

fn blocking_reads(file: &File, mut offsets: Offsets, until: Instant) -> Result<(u64, Samples)> {
    let mut samples = Samples::default();
    let mut start = Instant::now();
    loop {
        let offset = offsets.block();
        let bytes = file.read_at_blocking(offset, BLOCK_BYTES).map_err(failed)?;
        check(offset, BLOCK_BYTES, &bytes)?;
        let now = Instant::now();
        samples.push(now - start);
        if now >= until {
            return Ok((samples.count(), samples));
        }
        start = now;
    }
}

/// Keeps `depth` reads in flight from one task.
async fn many_reads(
    file: &File,
    depth: usize,
    mut offsets: Offsets,
    until: Instant,
) -> Result<(u64, Samples)> {
    let read = async |offset| -> Result<Duration> {
        let start = Instant::now();
        let bytes = file.read_at(offset, BLOCK_BYTES).await.map_err(failed)?;
        check(offset, BLOCK_BYTES, &bytes)?;
        Ok(start.elapsed())
    };
    let mut samples = Samples::default();
    let mut in_flight: FuturesUnordered<_> = (0..depth).map(|_| read(offsets.block())).collect();
    while let Some(latency) = in_flight.next().await {
        samples.push(latency?);
        if Instant::now() < until {
            in_flight.push(read(offsets.block()));
        }
    }
    Ok((samples.count(), samples))
}

/// Measures the limit: pread(2) into one buffer per thread, with the same random offsets and the same check.
fn pread_for(
    path: &Path,
    threads: impl Iterator<Item = Offsets>,
    until: Instant,
) -> Result<Vec<(u64, Samples)>> {
    let file = fs::File::open(path).map_err(|error| Error::file(path, error))?;
    let read = |mut offsets: Offsets| {
        let (mut buffer, mut count) = (vec![0; BLOCK_BYTES], 0);
        loop {
            for _ in 0..CACHED_BURST_COUNT {
                let offset = offsets.block();
                file.read_exact_at(&mut buffer, offset).map_err(|error| Error::file(path, error))?;
                check(offset, BLOCK_BYTES, &buffer)?;
            }
            count += CACHED_BURST_COUNT;
            if Instant::now() >= until {
                return Ok((count, Samples::default()));
            }
        }
    };
    thread::scope(|scope| {
        let started: Vec<_> = threads.map(|offsets| scope.spawn(move || read(offsets))).collect();
        started.into_iter().map(|thread| thread.join().expect("a reader doesn't panic")).collect()
    })
}

fn check(offset: u64, length: usize, bytes: &[u8]) -> Result<()> {
    if bytes.len() == length && data_file::verify(offset, bytes) {
        return Ok(());
    }
    Err(Error::wrong("random reads", format!("wrong bytes, {} of them, at {offset}", bytes.len())))
}
