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
use settee_io::{EngineKind, File, OpenMode};

use super::common::{Sizes, start_engine};
use super::data_file::{self, BLOCK_BYTES, Offsets};
use super::random::{open_direct, read_until};
use crate::Result;
use crate::random::random_bytes;
use crate::report::{Bound, Row, figure};
use crate::rounds::{Series, Window, failed, join_all, run_blocking};
use crate::stats::{Elapsed, Samples, proc_field};

/// Bytes at the beginning of the file that are read. They stay cached.
const READ_RANGE_BYTES: u64 = 64 << 20;

/// Bytes of each append.
const APPEND_BYTES: usize = 16 << 10;

/// Size of the file at which the writer starts again after the range that is read.
pub(super) const FILE_BYTES_MAX: u64 = 4 << 30;

/// Number of reading tasks, which share one thread.
const READER_COUNT: usize = 4;

/// Reads of a task before it yields.
const BURST_COUNT: u64 = 16;

/// The readers' file, and the length of each read: of any offset from the page cache on the calling thread, or
/// of a block past the page cache, through the engine, together with the writer's requests.
#[derive(Clone)]
struct Readers {
    file: Arc<File>,
    length: usize,
    core: usize,
    duration: Duration,
}

/// The writer's file, and the end of what it has written.
struct Writer {
    file: Arc<File>,
    end: u64,
    core: usize,
    duration: Duration,
}

/// Measures the readers beside the writer and beside its idle control, and reports the rows.
pub(super) async fn measure(sizes: &Sizes, path: &Path, each: &mut dyn FnMut(Row)) -> Result<()> {
    let cores = cores();
    let (Some(&reader_core), Some(&writer_core)) = (cores.first(), cores.get(1)) else {
        each(Row::missing("reads beside a writer", "reads/s", "there is one core, and two are needed"));
        return Ok(());
    };
    let made = path.to_owned();
    run_blocking(move || {
        data_file::create(&made, READ_RANGE_BYTES, 21)?;
        data_file::warm(&made)
    })
    .await?;
    // The engine's threads are pinned with the thread that starts them.
    let engine = run_pinned(writer_core, || start_engine(EngineKind::Auto).map_err(failed)).await?;
    let duration = sizes.duration;
    let open = async |mode| File::open(&engine, path, mode).await.map(Arc::new).map_err(failed);
    let file = open(OpenMode::Write).await?;
    let mut writer = Writer { file, end: READ_RANGE_BYTES, core: writer_core, duration };
    let cold = open_direct(&Ok(engine.clone()), path).await?;
    for (what, file, length) in [
        ("1 KiB cached reads", Ok(open(OpenMode::Read).await?), 1 << 10),
        ("4 KiB direct reads", cold, BLOCK_BYTES),
    ] {
        let readers = match file {
            Ok(file) => Readers { file, length, core: reader_core, duration },
            Err(reason) => {
                each(Row::missing(format!("{what} beside a writer"), "reads/s", reason));
                continue;
            }
        };
        let mut all: [Series; 3] = Default::default();
        for round in 0..sizes.beside_rounds {
            for turn in 0..2 {
                let reading = tokio::spawn(read(readers.clone(), round as u64));
                let is_beside = (turn + round) % 2 == 1;
                if is_beside {
                    all[2].0.push(write(&mut writer).await?);
                }
                all[usize::from(is_beside)].0.push(reading.await.map_err(failed)??);
            }
        }
        report(what, length < BLOCK_BYTES, engine.name(), &all, each);
    }
    Ok(())
}

/// Runs the readers' tasks on a separate, pinned thread. The sleeps are that thread's.
async fn read(Readers { file, length, core, duration }: Readers, seed: u64) -> Result<Window> {
    run_pinned(core, move || {
        let sleeps = || proc_field("/proc/thread-self/status", "voluntary_ctxt_switches:");
        let (before, start) = (sleeps(), Instant::now());
        let read = runtime()?.block_on(join_all((0..READER_COUNT).map(|index| {
            let mut offsets = Offsets::new(seed * READER_COUNT as u64 + index as u64, READ_RANGE_BYTES);
            let next = move || match length {
                BLOCK_BYTES => (offsets.block(), length),
                _ => (offsets.piece(length), length),
            };
            read_until(file.clone(), next, BURST_COUNT, true, start + duration)
        })))?;
        let switches = sleeps().zip(before).map(|(now, then)| now - then);
        // The process's processor time would be that of readers and writer together.
        let elapsed = Elapsed { wall: start.elapsed(), switches, ..Elapsed::default() };
        Ok(Window::of(read.into_iter().map(|(_, samples)| samples).collect(), elapsed))
    })
    .await
}

/// Appends to the file, each append with its sync, on a pinned thread.
async fn write(writer: &mut Writer) -> Result<Window> {
    let Writer { file, mut end, core, duration } = Writer { file: writer.file.clone(), ..*writer };
    let (window, new_end) = run_pinned(core, move || {
        let bytes = Bytes::from(random_bytes(end, APPEND_BYTES));
        let (mut samples, start) = (Samples::default(), Instant::now());
        runtime()?.block_on(async {
            while samples.count() == 0 || start.elapsed() < duration {
                if end + APPEND_BYTES as u64 > FILE_BYTES_MAX {
                    end = READ_RANGE_BYTES;
                }
                let before = Instant::now();
                file.write_and_sync_at(end, bytes.clone()).await.map_err(failed)?;
                samples.push(before.elapsed());
                end += APPEND_BYTES as u64;
            }
            Ok::<_, crate::Error>(())
        })?;
        Ok((Window::of(samples, Elapsed { wall: start.elapsed(), ..Elapsed::default() }), end))
    })
    .await?;
    writer.end = new_end;
    Ok(window)
}

fn report(what: &str, is_cached: bool, engine: &str, all: &[Series; 3], each: &mut dyn FnMut(Row)) {
    let [idle, beside, writer] = all;
    let longest = |series: &Series| series.latencies().percentiles([1.0]).map_or(0.0, |[longest]| longest);
    let sync = writer.latencies().percentiles([0.5]).map_or(f64::MAX, |[median]| median);
    let note = |series: &Series| {
        let samples = series.latencies();
        format!(
            "longest {} µs; {} of {} took as long as the writer's median sync of {} µs",
            figure(longest(series)),
            samples.count_of_at_least(sync),
            samples.count(),
            figure(sync),
        )
    };
    let name = format!("{what}, {READER_COUNT} tasks, beside");
    each(Row::new(format!("{name} an idle control"), "reads/s", idle).note(note(idle)));
    let p99 = |series: &Series| series.latencies().percentiles([0.99]).map(|[p99]| p99);
    let ratio = p99(beside).zip(p99(idle)).map(|(beside, idle)| beside / idle.max(1e-3));
    let aim = is_cached.then_some(Bound::AtMost(1.5));
    let row = Row::new(format!("{name} the writer"), "reads/s", beside);
    each(row.compare("× the idle control's p99", ratio, aim).note(note(beside)));
    let name = format!("the writer: {} KiB appended and synced, {engine}", APPEND_BYTES >> 10);
    let note = format!("the longest append with its sync: {} µs", figure(longest(writer)));
    each(Row::new(name, "syncs/s", writer).note(note));
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
