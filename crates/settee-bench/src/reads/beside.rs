//! Reads beside a writer that appends and syncs without a pause.
//!
//! Readers and writer share one engine and one file, as in a server. The readers' thread is pinned to one
//! core, the writer's and all of the engine's to another; the kernel's workers aren't pinned. The idle
//! control is the same without the writes; its rounds alternate with those beside the writer. (In separate
//! processes, readers and writer wouldn't share the engine's queues and threads, and a read that waits behind
//! a sync there wouldn't be noticed.)

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use settee_io::{Engine, EngineKind, File, OpenMode};
use tokio::task::{self, JoinSet};

use super::config::{Config, READ_BYTES};
use crate::io::data_file::{self, BLOCK_BYTES, Offsets};
use crate::io::engine::{failed, open_direct, start_engine};
use crate::io::row::{IoRow, Latency, Series, Window};
use crate::io::tasks::{ended, run_blocking};
use crate::random::random_bytes;
use crate::report::Bound;
use crate::stats::{Elapsed, Samples};
use crate::{Error, Result};

/// Bytes at the beginning of the file that are read. They stay cached.
const READ_RANGE_BYTES: u64 = 64 << 20;

/// Bytes of each append.
const APPEND_BYTES: usize = 16 << 10;

/// Size of the file at which the writer starts again after the range that is read.
pub(super) const FILE_BYTES_MAX: u64 = 4 << 30;

/// Number of reading tasks, which share one thread.
const READER_COUNT: usize = 4;

/// Reads of a task before it yields.
const BURST_COUNT: usize = 16;

/// The kind of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// 1 KiB from the page cache, on the calling thread.
    Cached,
    /// 4 KiB past the page cache, through the engine, together with the writer's requests.
    Cold,
}

/// The engine, the handles of the file and the cores of readers and writer.
struct Setup {
    engine: Arc<dyn Engine>,
    written: Arc<File>,
    cached: Arc<File>,
    cold: Result<Arc<File>, String>,
    reader_core: usize,
    writer_core: usize,
}

/// The result of one round of readers or writer.
struct Round {
    samples: Samples,
    wall: Duration,
    waits: Option<Waits>,
}

/// The waits of a thread.
#[derive(Debug, Clone, Copy)]
struct Waits {
    /// Number of voluntary context switches.
    sleeps: u64,
    /// Time that the thread was runnable without a processor.
    ready_ns: u64,
}

impl Waits {
    /// The waits of the calling thread since its start (proc(5): `status`, `schedstat`).
    fn so_far() -> Option<Waits> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/{name}")).ok();
        let status = read("status")?;
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let schedule = read("schedstat")?;
        let ready_ns = schedule.split_ascii_whitespace().nth(1)?;
        Some(Waits { sleeps: sleeps.trim().parse().ok()?, ready_ns: ready_ns.parse().ok()? })
    }

    fn since(self, earlier: Waits) -> Waits {
        Waits { sleeps: self.sleeps - earlier.sleeps, ready_ns: self.ready_ns - earlier.ready_ns }
    }
}

/// All rounds of the readers, or of the writer.
#[derive(Debug, Default)]
struct Rounds {
    samples: Samples,
    series: Series,
    ready_ns: Option<u64>,
}

impl Rounds {
    fn add(&mut self, Round { samples, wall, waits }: Round) {
        let mut window = Window::new(samples.count() as u64, Elapsed { wall, ..Elapsed::default() });
        // The process's time is that of readers and writer together.
        window.cpu = None;
        window.switches = waits.map(|waits| waits.sleeps);
        self.ready_ns = waits.map(|waits| waits.ready_ns + self.ready_ns.unwrap_or(0));
        window.latency = Latency::of(&samples);
        self.series.0.push(window);
        self.samples.append(samples);
    }
}

/// Measures the readers beside the writer and beside its idle control, and reports the rows.
pub(super) async fn measure(config: &Config, path: &Path, each: &mut impl FnMut(IoRow)) -> Result<()> {
    let cores = cores();
    let (Some(&reader_core), Some(&writer_core)) = (cores.first(), cores.get(1)) else {
        each(IoRow::missing("reads beside a writer", "reads/s", "there is one core, and two are needed"));
        return Ok(());
    };
    let made = path.to_owned();
    run_blocking(move || {
        data_file::create(&made, READ_RANGE_BYTES, 21)?;
        data_file::warm(&made)
    })
    .await?;
    // The engine's threads are pinned with the thread that starts them.
    let engine = run_pinned(writer_core, || start_engine(EngineKind::Auto, None).map_err(failed)).await?;
    let open = async |mode| Ok::<_, Error>(Arc::new(File::open(&engine, path, mode).await.map_err(failed)?));
    let setup = Arc::new(Setup {
        written: open(OpenMode::Write).await?,
        cached: open(OpenMode::Read).await?,
        cold: open_direct(&engine, path).await?.map(Arc::new),
        engine,
        reader_core,
        writer_core,
    });
    for reads in [Reads::Cached, Reads::Cold] {
        if let (Reads::Cold, Err(reason)) = (reads, &setup.cold) {
            each(IoRow::missing("4 KiB direct reads beside a writer", "reads/s", reason));
            continue;
        }
        let (mut idle, mut beside, mut writer) = (Rounds::default(), Rounds::default(), Rounds::default());
        let mut end = READ_RANGE_BYTES;
        for round in 0..config.beside_rounds {
            for turn in 0..2 {
                let is_beside = (turn + round) % 2 == 1;
                let readers = tokio::spawn(readers(setup.clone(), reads, config.duration, round as u64));
                if is_beside {
                    let (written, new_end) = write(setup.clone(), config.duration, end).await?;
                    end = new_end;
                    writer.add(written);
                }
                let read = readers.await.map_err(ended)??;
                if is_beside { &mut beside } else { &mut idle }.add(read);
            }
        }
        report(&setup, reads, &idle, &beside, &writer, each);
    }
    Ok(())
}

/// Runs the readers' tasks on a separate, pinned thread.
async fn readers(setup: Arc<Setup>, reads: Reads, duration: Duration, seed: u64) -> Result<Round> {
    run_pinned(setup.reader_core, move || {
        let file = match (reads, &setup.cold) {
            (Reads::Cold, Ok(file)) => file.clone(),
            _ => setup.cached.clone(),
        };
        let runtime = runtime()?;
        let waits = Waits::so_far();
        let start = Instant::now();
        let until = start + duration;
        let samples = runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for index in 0..READER_COUNT {
                let offsets = Offsets::new(seed * READER_COUNT as u64 + index as u64, READ_RANGE_BYTES);
                tasks.spawn(read_until(file.clone(), reads, offsets, until));
            }
            let mut all = Samples::default();
            while let Some(samples) = tasks.join_next().await {
                all.append(samples.map_err(ended)??);
            }
            Ok::<_, Error>(all)
        })?;
        let wall = start.elapsed();
        let waits = Waits::so_far().zip(waits).map(|(now, then)| now.since(then));
        Ok(Round { samples, wall, waits })
    })
    .await
}

async fn read_until(file: Arc<File>, reads: Reads, mut offsets: Offsets, until: Instant) -> Result<Samples> {
    let mut samples = Samples::default();
    loop {
        let mut now = until;
        for _ in 0..BURST_COUNT {
            let (offset, length) = match reads {
                Reads::Cached => (offsets.piece(READ_BYTES), READ_BYTES),
                Reads::Cold => (offsets.block(), BLOCK_BYTES),
            };
            let start = Instant::now();
            let bytes = file.read_at(offset, length).await.map_err(failed)?;
            now = Instant::now();
            samples.push(now - start);
            if bytes.len() != length || !data_file::verify(offset, &bytes) {
                return Err(Error::wrong("reads beside a writer", format!("wrong bytes at {offset}")));
            }
        }
        if now >= until {
            return Ok(samples);
        }
        task::yield_now().await;
    }
}

/// Appends to the file from `end`, each append with its sync, on a pinned thread. Returns the latencies and
/// the new end.
async fn write(setup: Arc<Setup>, duration: Duration, mut end: u64) -> Result<(Round, u64)> {
    run_pinned(setup.writer_core, move || {
        let bytes = Bytes::from(random_bytes(end, APPEND_BYTES));
        let mut samples = Samples::default();
        let start = Instant::now();
        runtime()?.block_on(async {
            loop {
                if end + APPEND_BYTES as u64 > FILE_BYTES_MAX {
                    end = READ_RANGE_BYTES;
                }
                let before = Instant::now();
                setup.written.write_and_sync_at(end, bytes.clone()).await.map_err(failed)?;
                samples.push(before.elapsed());
                end += APPEND_BYTES as u64;
                if start.elapsed() >= duration {
                    return Ok::<_, Error>(());
                }
            }
        })?;
        Ok((Round { samples, wall: start.elapsed(), waits: None }, end))
    })
    .await
}

fn report(
    setup: &Setup,
    reads: Reads,
    idle: &Rounds,
    beside: &Rounds,
    writer: &Rounds,
    each: &mut impl FnMut(IoRow),
) {
    let what = match reads {
        Reads::Cached => "1 KiB cached reads",
        Reads::Cold => "4 KiB direct reads",
    };
    let engine = setup.engine.name();
    let micros = |time: Option<Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e6);
    let sync = writer.samples.percentiles([0.5]).map_or(Duration::MAX, |[median]| median);
    let note = |rounds: &Rounds| {
        let as_long = rounds.samples.count_of_at_least(sync);
        let mut text = format!(
            "longest {:.0} µs; {as_long} of {} took as long as the writer's median sync of {:.0} µs",
            micros(rounds.series.longest()),
            rounds.samples.count(),
            micros(Some(sync)),
        );
        if let Some(ready_ns) = rounds.ready_ns {
            let windows = rounds.series.0.iter();
            let sleeps: u64 = windows.filter_map(|window| window.switches).sum();
            text += &format!(
                "; the readers' thread slept {sleeps} times, and was ready without a processor for {:.1} ms of {:.0}",
                ready_ns as f64 / 1e6,
                rounds.series.0.iter().map(|window| window.wall.as_secs_f64() * 1e3).sum::<f64>(),
            );
        }
        text
    };
    each(
        IoRow::new(format!("{what}, {READER_COUNT} tasks, beside an idle control"), "reads/s", &idle.series)
            .with_note(note(idle)),
    );
    let p99 = |rounds: &Rounds| rounds.samples.percentiles([0.99]).map(|[p99]| p99.as_secs_f64());
    let mut row =
        IoRow::new(format!("{what}, {READER_COUNT} tasks, beside the writer"), "reads/s", &beside.series);
    if let Some((beside, idle)) = p99(beside).zip(p99(idle)) {
        row = row.with_ratio("p99 beside idle", beside / idle.max(1e-9));
    }
    if reads == Reads::Cached {
        row = row.with_aim(Bound::AtMost(1.5));
    }
    each(row.with_note(note(beside)));
    let name = format!("the writer: {} KiB appended and synced, {engine}", APPEND_BYTES >> 10);
    let note = format!("the longest append with its sync: {:.0} µs", micros(writer.series.longest()));
    each(IoRow::new(name, "syncs/s", &writer.series).with_note(note));
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)
}

/// Runs `work` on a separate thread that is pinned to `core`.
async fn run_pinned<T: Send + 'static>(
    core: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let pinned = move || {
        let mut set = CpuSet::new();
        set.set(core);
        let pinned = sched_setaffinity(None, &set).map_err(failed);
        // Fails if the caller was cancelled.
        let _ = sender.send(pinned.and_then(|()| work()));
    };
    thread::Builder::new().name(format!("bench-core-{core}")).spawn(pinned).map_err(failed)?;
    receiver.await.map_err(failed)?
}

/// The cores that this process may run on.
fn cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}
