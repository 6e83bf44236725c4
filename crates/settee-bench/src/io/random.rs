//! Random reads of 4 KiB: cold and past the page cache, compared with `fio`; cached, compared with pread(2).
//!
//! Every workload of a group, `fio` included, is measured once per round, and each round begins with another
//! one. So other load on the machine affects all alike, and ratios compare measurements close in time.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use settee_io::{EngineKind, File};
use tokio::task::{self, JoinSet};

use super::config::Config;
use super::data_file::{self, BLOCK_BYTES, Offsets};
use super::engine::{failed, open_direct, start_engine};
use super::row::{IoRow, Latency, Series, Window, switch_count};
use super::tasks::{ended, run_blocking};
use crate::report::Bound;
use crate::stats::{Samples, Stopwatch};
use crate::{Error, Result};

/// Numbers of reads in flight of the cold workloads.
const DEPTHS: [usize; 3] = [1, 32, 128];

/// Numbers of tasks of the cached workloads.
const TASK_COUNTS: [usize; 3] = [1, 4, 64];

/// Cached reads of a task before it yields: half of tokio's budget of a task.
const CACHED_BURST_COUNT: u64 = 64;

/// The way in which reads are issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// By a thread that blocks in each call.
    Blocking,
    /// By one task with this many in flight.
    OneTask(usize),
    /// By this many tasks with one in flight each.
    Tasks(usize),
}

impl Form {
    fn of_depth(depth: usize) -> Vec<Form> {
        match depth {
            1 => vec![Form::Tasks(1)],
            _ => vec![Form::OneTask(depth), Form::Tasks(depth)],
        }
    }

    fn name(self) -> String {
        match self {
            Form::Blocking => "blocking call".to_owned(),
            Form::OneTask(depth) => format!("one task, {depth} in flight"),
            Form::Tasks(1) => "through a task".to_owned(),
            Form::Tasks(count) => format!("{count} tasks"),
        }
    }

    fn aim(self, depth: usize) -> Bound {
        Bound::AtLeast(if depth == 1 && self != Form::Blocking { 0.7 } else { 0.95 })
    }
}

/// A workload through `settee-io`, on a file of its engine.
struct Workload {
    form: Form,
    name: String,
    file: Result<Arc<File>, String>,
    series: Series,
}

/// Measures the cold reads of `path`, past the page cache, and reports the rows.
pub(super) async fn cold(config: &Config, path: &Path, each: &mut impl FnMut(IoRow)) -> Result<()> {
    let engines = [EngineKind::Threads, EngineKind::Uring].map(|kind| (kind, start_engine(kind, None)));
    for depth in DEPTHS {
        let mut workloads = Vec::new();
        for (kind, engine) in &engines {
            let file = match engine {
                Ok(engine) => open_direct(engine, path).await?.map(Arc::new),
                Err(reason) => Err(reason.clone()),
            };
            let mut forms = Form::of_depth(depth);
            if depth == 1 && *kind == EngineKind::Threads {
                forms.insert(0, Form::Blocking);
            }
            for form in forms {
                let name = match form {
                    Form::Blocking => form.name(),
                    _ => format!("{}, {kind}", form.name()),
                };
                workloads.push(Workload { form, name, file: file.clone(), series: Series::default() });
            }
        }
        cold_at_depth(config, path, depth, workloads, each).await?;
    }
    Ok(())
}

async fn cold_at_depth(
    config: &Config,
    path: &Path,
    depth: usize,
    mut workloads: Vec<Workload>,
    each: &mut impl FnMut(IoRow),
) -> Result<()> {
    let mut peer: Result<Series, String> =
        config.fio.as_ref().map(|_| Series::default()).ok_or_else(|| "no fio".to_owned());
    let turns = workloads.len() + 1;
    for round in 0..config.rounds {
        for turn in 0..turns {
            match (turn + round) % turns {
                0 => fio_turn(config, path, depth, &mut peer).await?,
                index => {
                    let workload = &mut workloads[index - 1];
                    let Ok(file) = &workload.file else { continue };
                    let offsets = (round as u64, config.file_bytes);
                    let window = read_for(file, workload.form, config.duration, offsets).await?;
                    workload.series.0.push(window);
                }
            }
        }
    }
    let title = |what: &str| format!("4 KiB, direct, {depth} outstanding: {what}");
    let fio_row = match &peer {
        Ok(series) => IoRow::new(title("fio"), "reads/s", series),
        Err(reason) => IoRow::missing(title("fio"), "reads/s", reason),
    };
    each(fio_row);
    for Workload { form, name, file, series } in workloads {
        let aim = form.aim(depth);
        each(match file {
            Ok(_) => IoRow::new(title(&name), "reads/s", &series)
                .against("fio", &series, peer.as_ref().ok())
                .with_aim(aim),
            Err(reason) => IoRow::missing(title(&name), "reads/s", reason).with_aim(aim),
        });
    }
    Ok(())
}

async fn fio_turn(
    config: &Config,
    path: &Path,
    depth: usize,
    peer: &mut Result<Series, String>,
) -> Result<()> {
    let (Some(fio), Ok(series)) = (config.fio.clone(), &mut *peer) else { return Ok(()) };
    let (path, bytes, duration) = (path.to_owned(), config.file_bytes, config.duration);
    let measured = run_blocking(move || Ok(fio.random_reads(&path, bytes, depth, duration))).await?;
    match measured {
        Ok(window) => series.0.push(window),
        Err(reason) => *peer = Err(reason),
    }
    Ok(())
}

/// Reads random blocks for `duration`, at least one. `offsets` is the seed and the file's size.
async fn read_for(file: &Arc<File>, form: Form, duration: Duration, offsets: (u64, u64)) -> Result<Window> {
    let (switches, stopwatch) = (switch_count(), Stopwatch::start(None));
    let until = Instant::now() + duration;
    let samples = match form {
        Form::Blocking => {
            let file = file.clone();
            run_blocking(move || blocking_reads(&file, Offsets::new(offsets.0, offsets.1), until)).await?
        }
        Form::OneTask(depth) => {
            let file = file.clone();
            let reads =
                async move { many_reads(&file, depth, Offsets::new(offsets.0, offsets.1), until).await };
            task::spawn(reads).await.map_err(ended)??
        }
        Form::Tasks(count) => task_reads(file, count, offsets, until).await?,
    };
    let mut window = Window::new(samples.count() as u64, stopwatch.read());
    window.switches = switch_count().zip(switches).map(|(now, then)| now.saturating_sub(then));
    window.latency = Latency::of(&samples);
    Ok(window)
}

fn blocking_reads(file: &File, mut offsets: Offsets, until: Instant) -> Result<Samples> {
    let mut samples = Samples::default();
    let mut start = Instant::now();
    loop {
        let offset = offsets.block();
        let bytes = file.read_at_blocking(offset, BLOCK_BYTES).map_err(failed)?;
        check(offset, &bytes)?;
        let now = Instant::now();
        samples.push(now - start);
        if now >= until {
            return Ok(samples);
        }
        start = now;
    }
}

/// Keeps `depth` reads in flight from one task.
async fn many_reads(file: &File, depth: usize, mut offsets: Offsets, until: Instant) -> Result<Samples> {
    let mut samples = Samples::default();
    let mut in_flight: FuturesUnordered<_> = (0..depth).map(|_| read_block(file, offsets.block())).collect();
    while let Some(read) = in_flight.next().await {
        samples.push(read?);
        if Instant::now() < until {
            in_flight.push(read_block(file, offsets.block()));
        }
    }
    Ok(samples)
}

async fn task_reads(file: &Arc<File>, count: usize, offsets: (u64, u64), until: Instant) -> Result<Samples> {
    let mut tasks = JoinSet::new();
    for index in 0..count {
        let file = file.clone();
        let mut offsets = Offsets::new(offsets.0 * count as u64 + index as u64, offsets.1);
        tasks.spawn(async move {
            let mut samples = Samples::default();
            loop {
                samples.push(read_block(&file, offsets.block()).await?);
                if Instant::now() >= until {
                    return Ok::<_, Error>(samples);
                }
            }
        });
    }
    let mut all = Samples::default();
    while let Some(samples) = tasks.join_next().await {
        all.append(samples.map_err(ended)??);
    }
    Ok(all)
}

async fn read_block(file: &File, offset: u64) -> Result<Duration> {
    let start = Instant::now();
    let bytes = file.read_at(offset, BLOCK_BYTES).await.map_err(failed)?;
    check(offset, &bytes)?;
    Ok(start.elapsed())
}

/// Measures the cached reads of `path`, which must be in the page cache, compared with pread(2) on as many
/// cores.
pub(super) async fn cached(config: &Config, path: &Path, each: &mut impl FnMut(IoRow)) -> Result<()> {
    let core_count = thread::available_parallelism().map_or(1, usize::from);
    let engine = start_engine(EngineKind::Auto, None).map_err(failed)?;
    let file = Arc::new(File::open(&engine, path, settee_io::OpenMode::Read).await.map_err(failed)?);
    let mut peers = vec![(1, Series::default())];
    if core_count > 1 {
        peers.push((core_count, Series::default()));
    }
    let mut ours = TASK_COUNTS.map(|count| (count, Series::default()));
    let turns = peers.len() + ours.len();
    for round in 0..config.rounds {
        for turn in 0..turns {
            let index = (turn + round) % turns;
            let (seed, bytes) = (round as u64, config.file_bytes);
            if let Some((threads, series)) = peers.get_mut(index) {
                let (path, threads, duration) = (path.to_owned(), *threads, config.duration);
                series
                    .0
                    .push(run_blocking(move || pread_for(&path, threads, duration, (seed, bytes))).await?);
            } else {
                let (count, series) = &mut ours[index - peers.len()];
                series.0.push(cached_for(&file, *count, config.duration, (seed, bytes)).await?);
            }
        }
    }
    let title = |what: &str| format!("4 KiB, cached: {what}");
    for (threads, series) in &peers {
        each(IoRow::new(title(&format!("pread in a loop, {threads} thread(s)")), "reads/s", series));
    }
    let one = ours[0].1.clone();
    for (count, series) in ours {
        let cores = count.min(core_count);
        let (_, peer) =
            peers.iter().find(|(threads, _)| *threads == cores).unwrap_or(&peers[peers.len() - 1]);
        let scale = series.ratio_to(&one).unwrap_or_default();
        let per_cpu = series.per_cpu_ratio_to(peer).unwrap_or_default();
        each(
            IoRow::new(title(&format!("{count} task(s)")), "reads/s", &series)
                .against("pread", &series, Some(peer))
                .with_aim(Bound::AtLeast(0.9))
                .with_note(format!(
                    "on {cores} of {core_count} cores; {scale:.2} × one task; by processor time {per_cpu:.2} × pread"
                )),
        );
    }
    Ok(())
}

async fn cached_for(
    file: &Arc<File>,
    count: usize,
    duration: Duration,
    (seed, bytes): (u64, u64),
) -> Result<Window> {
    let stopwatch = Stopwatch::start(None);
    let until = Instant::now() + duration;
    let mut tasks = JoinSet::new();
    for index in 0..count {
        let file = file.clone();
        let mut offsets = Offsets::new(seed * count as u64 + index as u64, bytes);
        tasks.spawn(async move {
            let mut done = 0;
            loop {
                for _ in 0..CACHED_BURST_COUNT {
                    let offset = offsets.block();
                    check(offset, &file.read_at(offset, BLOCK_BYTES).await.map_err(failed)?)?;
                }
                done += CACHED_BURST_COUNT;
                if Instant::now() >= until {
                    return Ok::<u64, Error>(done);
                }
                task::yield_now().await;
            }
        });
    }
    let mut done = 0;
    while let Some(count) = tasks.join_next().await {
        done += count.map_err(ended)??;
    }
    Ok(Window::new(done, stopwatch.read()))
}

/// Measures the limit: pread(2) into one buffer, with the same random offsets and the same check.
fn pread_for(path: &Path, threads: usize, duration: Duration, (seed, bytes): (u64, u64)) -> Result<Window> {
    let file = fs::File::open(path).map_err(|error| Error::file(path, error))?;
    let stopwatch = Stopwatch::start(None);
    let until = Instant::now() + duration;
    let read = |mut offsets: Offsets| {
        let (mut buffer, mut done) = (vec![0; BLOCK_BYTES], 0);
        loop {
            for _ in 0..CACHED_BURST_COUNT {
                let offset = offsets.block();
                file.read_exact_at(&mut buffer, offset).map_err(|error| Error::file(path, error))?;
                check(offset, &buffer)?;
            }
            done += CACHED_BURST_COUNT;
            if Instant::now() >= until {
                return Ok(done);
            }
        }
    };
    let done: Result<Vec<u64>> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads as u64)
            .map(|index| scope.spawn(move || read(Offsets::new(seed * threads as u64 + index, bytes))))
            .collect();
        started.into_iter().map(|thread| thread.join().expect("a reader doesn't panic")).collect()
    });
    Ok(Window::new(done?.into_iter().sum(), stopwatch.read()))
}

fn check(offset: u64, bytes: &[u8]) -> Result<()> {
    if bytes.len() == BLOCK_BYTES && data_file::verify(offset, bytes) {
        return Ok(());
    }
    Err(Error::wrong("random reads", format!("wrong bytes, {} of them, at {offset}", bytes.len())))
}
