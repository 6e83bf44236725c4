//! Goal: every engine returns what `std::fs::File` returns, whichever tasks wait, are cancelled or close the
//! handle.
//! Method: random operations on both, compared step by step; many tasks at once, each against its own model;
//! futures dropped in flight. All on each engine, with small limits and with its defaults.

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{
    AlignedBuffer, Alignment, Completion, Descriptor, DirectMode, Engine, EngineKind, EngineOptions, Error,
    File, Merge, OpenMode, Operation, Outcome, ReadAhead, ReadAt, ReadPolicy, Request, Result, RingUse,
    ThreadOptions, UringEngine, UringOptions,
};

mod direct;

/// The engines of this machine, each with the smallest limits, so that every queue fills up at once, and with
/// its defaults; the ring in each of its uses.
fn engines() -> Vec<(String, Arc<dyn Engine>)> {
    let mut engines = small_engines();
    engines.extend(start("large", ThreadOptions::default(), UringOptions::default()));
    engines
}

fn small_engines() -> Vec<(String, Arc<dyn Engine>)> {
    let threads = ThreadOptions {
        thread_count: 1,
        write_thread_count: 1,
        sync_thread_count: 1,
        queue_count_max: 1,
        ..ThreadOptions::default()
    };
    start("small", threads, UringOptions { entry_count: 2, queue_count_max: 1, ..UringOptions::default() })
}

/// Starts each engine, and the ring in each of its uses unless the kernel refuses it.
fn start(size: &str, threads: ThreadOptions, uring: UringOptions) -> Vec<(String, Arc<dyn Engine>)> {
    use EngineKind::{Threads, Uring};
    let mut engines = Vec::new();
    for (kind, ring_use) in [(Threads, RingUse::All), (Uring, RingUse::Direct), (Uring, RingUse::All)] {
        match (EngineOptions { kind, threads, uring: UringOptions { ring_use, ..uring } }).start() {
            Ok(engine) => engines.push((format!("{size} {kind}, {ring_use:?}"), engine)),
            Err(error) if is_refusal(&error) => eprintln!("not tested here: {kind}: {error}"),
            Err(error) => panic!("{kind}: {error}"),
        }
    }
    engines
}

/// Whether the kernel refuses io_uring: too old, or forbidden.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

#[derive(Debug, Clone)]
enum Step {
    Read(u64, usize),
    ReadMany(Vec<(u64, usize)>, ReadPolicy),
    /// As `ReadMany`, but sorted, and read as a stream of this many device reads at once.
    ReadStream(Vec<(u64, usize)>, ReadPolicy, usize),
    ReadExact(u64, usize),
    Write(u64, WriteBuffer, bool),
    /// A write at the end of the file.
    Append(WriteBuffer),
    SetLength(u64),
    Allocate(u64, u64),
    Sync,
    LinkCount,
    Close,
    Reopen(OpenMode),
    SetDirect(bool),
}

/// Offsets in the file, past its end, and beyond what any file system supports.
fn offset() -> impl Strategy<Value = u64> {
    let huge = [1 << 40, i64::MAX as u64 - 1, i64::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
    prop_oneof![8 => 0..40_000u64, 1 => prop::sample::select(huge.to_vec())]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 8 => 0..20_000usize, 1 => prop::sample::select(vec![1 << 40, usize::MAX])]
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (offset(), length());
    let modes = vec![OpenMode::Read, OpenMode::Write, OpenMode::Create, OpenMode::CreateNew];
    prop_oneof![
        4 => range().prop_map(|(offset, length)| Step::Read(offset, length)),
        2 => (prop::collection::vec(range(), 0..6), policy()).prop_map(|(at, how)| Step::ReadMany(at, how)),
        1 => (prop::collection::vec(range(), 0..6), policy(), 0..4usize).prop_map(|(mut at, how, count)| {
            at.sort_unstable();
            Step::ReadStream(at, how, count)
        }),
        1 => range().prop_map(|(offset, length)| Step::ReadExact(offset, length)),
        4 => (0..40_000u64, prop::collection::vec(any::<u8>(), 0..9_000), prop::bool::weighted(0.2))
            .prop_map(|(offset, bytes, sync)| Step::Write(offset, WriteBuffer::Any(bytes), sync)),
        4 => aligned_write(),
        2 => prop::collection::vec(any::<u8>(), 0..3_000).prop_map(|bytes| Step::Append(WriteBuffer::Any(bytes))),
        1 => (offset().prop_filter("no file of a terabyte", |offset| *offset != 1 << 40), any::<bool>())
            .prop_map(|(offset, sync)| Step::Write(offset, WriteBuffer::Any(vec![7; 10]), sync)),
        2 => (0..50_000u64).prop_map(Step::SetLength),
        1 => huge_length().prop_map(Step::SetLength),
        1 => (0..50_000u64, 1..9_000u64).prop_map(|(offset, length)| Step::Allocate(offset, length)),
        1 => (0..50_000u64, huge_length()).prop_map(|(offset, length)| Step::Allocate(offset, length)),
        1 => (huge_length(), 1..9_000u64).prop_map(|(offset, length)| Step::Allocate(offset, length)),
        3 => any::<bool>().prop_map(Step::SetDirect),
        1 => Just(Step::Sync),
        1 => Just(Step::LinkCount),
        1 => Just(Step::Close),
        2 => prop::sample::select(modes).prop_map(Step::Reopen),
    ]
}

fn policy() -> impl Strategy<Value = ReadPolicy> {
    let chunked = |bytes| Merge::Chunked(Alignment::new(bytes).unwrap());
    let merges = vec![Merge::AdjacentOnly, chunked(512), chunked(4096)];
    (prop::sample::select(merges), 1..20_000usize)
        .prop_map(|(merge, read_size_max)| ReadPolicy { merge, read_size_max })
}

/// The bytes of a write, and their alignment in memory.
#[derive(Debug, Clone)]
enum WriteBuffer {
    Any(Vec<u8>),
    /// This many bytes at an aligned address, generated from one byte.
    Aligned(u8, usize),
}

impl From<WriteBuffer> for Bytes {
    fn from(memory: WriteBuffer) -> Bytes {
        match memory {
            WriteBuffer::Any(bytes) => bytes.into(),
            WriteBuffer::Aligned(byte, length) => {
                let mut buffer = AlignedBuffer::new(length, Alignment::new(4096).unwrap());
                // No two sectors are equal.
                let bytes = buffer.whole_mut().iter_mut().enumerate();
                bytes.for_each(|(at, to)| *to = byte.wrapping_add((at / 300) as u8));
                buffer.set_len(length);
                buffer.into()
            }
        }
    }
}

/// A write of whole sectors, in aligned memory or not.
fn aligned_write() -> impl Strategy<Value = Step> {
    (0..80u64, any::<u8>(), 0..24usize, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(sector, byte, count, in_place, sync)| {
            let memory = WriteBuffer::Aligned(byte, count * 512);
            let memory = if in_place { memory } else { WriteBuffer::Any(Bytes::from(memory).to_vec()) };
            Step::Write(sector * 512, memory, sync)
        },
    )
}

/// Lengths that no file system grants, even if doubled.
fn huge_length() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1 << 63, (1 << 63) + 512, u64::MAX - 511, u64::MAX])
}

/// The result of either side: the bytes read, or the system's error number.
type Compared<T> = std::result::Result<T, Option<i32>>;

fn ours<T>(result: Result<T>) -> Compared<T> {
    result.map_err(|error| match error {
        Error::Io { source, .. } => source.raw_os_error(),
        Error::Closed { .. } | Error::Panicked { .. } | Error::PastEnd { .. } => None,
    })
}

fn theirs<T>(result: io::Result<T>) -> Compared<T> {
    result.map_err(|error| error.raw_os_error())
}

/// Reads with `std` up to `length` bytes or the end of the file. The buffer is no larger than any file here.
fn read_std(file: &fs::File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; length.min(1 << 20)];
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

fn open_std(path: &Path, mode: OpenMode) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(mode != OpenMode::Read);
    options.create(mode == OpenMode::Create).create_new(mode == OpenMode::CreateNew);
    options.open(path)
}

/// The same content in a file of ours and in one of `std`, and whether ours was closed.
struct Pair {
    engine: Arc<dyn Engine>,
    directory: tempfile::TempDir,
    ours: File,
    theirs: fs::File,
    closed: bool,
    /// Whether reads, writes and syncs run in the caller's thread.
    blocking: bool,
    /// The result of switching to direct mode on this file system.
    direct: DirectMode,
}

impl Pair {
    async fn new(engine: Arc<dyn Engine>, within: &Path) -> Pair {
        let directory = tempfile::tempdir_in(within).unwrap();
        let ours = File::open(&engine, &directory.path().join("ours"), OpenMode::CreateNew).await.unwrap();
        let theirs = open_std(&directory.path().join("theirs"), OpenMode::CreateNew).unwrap();
        let direct = ours.set_direct(true).await.unwrap();
        ours.set_direct(false).await.unwrap();
        Pair { engine, directory, ours, theirs, closed: false, blocking: false, direct }
    }

    async fn run(&mut self, step: Step) -> std::result::Result<(), TestCaseError> {
        if self.closed && !matches!(step, Step::Close | Step::Reopen(_)) {
            for result in [self.try_ours(step).await, self.ours.length().await.map(drop)] {
                prop_assert!(matches!(result, Err(Error::Closed { .. })), "{:?}", result);
            }
            return Ok(());
        }
        match step {
            Step::Read(offset, length) => {
                let found = match self.blocking {
                    true => self.ours.read_at_blocking(offset, length),
                    false => self.ours.read_at(offset, length).await,
                };
                let found = ours(found);
                prop_assert_eq!(found, theirs(read_std(&self.theirs, offset, length).map(Bytes::from)));
            }
            Step::ReadMany(ranges, policy) => {
                let reads: Vec<_> = ranges.iter().map(|&(at, length)| ReadAt::new(at, length)).collect();
                let found = self.ours.read_many(&reads, policy).await;
                self.check_values(&ranges, found)?;
            }
            Step::ReadStream(ranges, policy, count_max) => {
                let reads = ranges.iter().map(|&(at, length)| ReadAt::new(at, length));
                let ahead = ReadAhead { count_max, size_max: 10_000 };
                let mut stream = self.ours.read_stream(reads, policy, ahead);
                let mut found = Vec::new();
                while let Some(((), value)) = stream.next().await {
                    found.push(value);
                }
                self.check_values(&ranges, found)?;
            }
            Step::ReadExact(offset, length) => {
                let found = ours(self.ours.read_exact_at(offset, length).await);
                let mut expected = theirs(read_std(&self.theirs, offset, length).map(Bytes::from));
                if expected.as_ref().is_ok_and(|bytes| bytes.len() < length) {
                    expected = Err(None);
                }
                prop_assert_eq!(found, expected);
            }
            Step::Write(offset, ref memory, _) => {
                let expected = theirs(self.theirs.write_all_at(&Bytes::from(memory.clone()), offset));
                prop_assert_eq!(ours(self.try_ours(step).await), expected);
            }
            Step::Append(ref memory) => {
                let end = self.theirs.metadata().unwrap().len();
                let expected = theirs(self.theirs.write_all_at(&Bytes::from(memory.clone()), end));
                prop_assert_eq!(ours(self.try_ours(step).await), expected);
            }
            Step::LinkCount => prop_assert_eq!(self.ours.link_count().await.unwrap(), 1),
            Step::SetLength(length) => {
                let expected = theirs(self.theirs.set_len(length));
                prop_assert_eq!(ours(self.try_ours(step).await), expected);
            }
            Step::Allocate(offset, length) => {
                let end = offset.checked_add(length);
                let length = self.theirs.metadata().unwrap().len();
                // For a file that isn't open for writing ftruncate gives EINVAL and fallocate EBADF.
                let expected = end.is_some_and(|end| self.theirs.set_len(length.max(end)).is_ok());
                prop_assert_eq!(self.try_ours(step).await.is_ok(), expected);
            }
            Step::Sync => prop_assert_eq!(ours(self.try_ours(step).await), theirs(self.theirs.sync_data())),
            Step::Close => {
                self.ours.close();
                self.closed = true;
            }
            Step::Reopen(mode) => self.reopen(mode).await?,
            Step::SetDirect(direct) => {
                let mode = self.ours.set_direct(direct).await.unwrap();
                let expected = if direct { self.direct.clone() } else { DirectMode::Buffered };
                prop_assert_eq!(mode, expected);
            }
        }
        if !self.closed {
            prop_assert_eq!(self.ours.length().await.unwrap(), self.theirs.metadata().unwrap().len());
        }
        Ok(())
    }

    /// Compares values that were read together with single reads.
    fn check_values(
        &self,
        ranges: &[(u64, usize)],
        found: Vec<Result<Bytes>>,
    ) -> std::result::Result<(), TestCaseError> {
        prop_assert_eq!(found.len(), ranges.len());
        for (found, &(offset, length)) in found.into_iter().zip(ranges) {
            // Beyond the largest offset nothing is read; the error says that the file ends before.
            let expected = read_std(&self.theirs, offset, length).unwrap_or_default();
            if expected.len() < length {
                prop_assert!(matches!(found, Err(Error::PastEnd { .. })), "{:?}", found);
                continue;
            }
            prop_assert_eq!(ours(found), Ok(Bytes::from(expected)));
        }
        Ok(())
    }

    /// Compares the two files' contents, read independently.
    fn check_files(&self) -> std::result::Result<(), TestCaseError> {
        let read = |name| fs::read(self.directory.path().join(name)).unwrap();
        prop_assert!(read("ours") == read("theirs"), "the files differ");
        Ok(())
    }

    async fn reopen(&mut self, mode: OpenMode) -> std::result::Result<(), TestCaseError> {
        let opened = File::open(&self.engine, &self.directory.path().join("ours"), mode).await;
        let expected = open_std(&self.directory.path().join("theirs"), mode);
        match (opened, expected) {
            (Ok(opened), Ok(expected)) => {
                (self.ours, self.theirs) = (opened, expected);
                self.closed = false;
            }
            (opened, expected) => prop_assert_eq!(ours(opened.map(drop)), theirs(expected.map(drop))),
        }
        Ok(())
    }

    async fn try_ours(&self, step: Step) -> Result<()> {
        match step {
            Step::Read(offset, length) => self.ours.read_at(offset, length).await.map(drop),
            Step::ReadMany(ranges, policy) => {
                let reads = [ReadAt::new(0, ranges.len())];
                self.ours.read_many(&reads, policy).await.remove(0).map(drop)
            }
            Step::ReadStream(ranges, policy, _) => {
                let reads = [ReadAt::new(0, 1 + ranges.len())];
                let mut stream = self.ours.read_stream(reads, policy, ReadAhead::default());
                stream.next().await.expect("one value").1.map(drop)
            }
            Step::Append(bytes) => {
                let end = self.ours.length().await?;
                self.ours.write_at(end, bytes.into()).await
            }
            Step::LinkCount => self.ours.link_count().await.map(drop),
            Step::ReadExact(offset, length) => self.ours.read_exact_at(offset, length).await.map(drop),
            Step::Write(offset, bytes, true) if self.blocking => {
                self.ours.write_and_sync_at_blocking(offset, bytes.into())
            }
            Step::Write(offset, bytes, false) if self.blocking => {
                self.ours.write_at_blocking(offset, bytes.into())
            }
            Step::Sync if self.blocking => self.ours.sync_blocking(),
            Step::Write(offset, bytes, true) => self.ours.write_and_sync_at(offset, bytes.into()).await,
            Step::Write(offset, bytes, false) => self.ours.write_at(offset, bytes.into()).await,
            Step::SetLength(length) => self.ours.set_length(length).await,
            Step::Allocate(offset, length) => self.ours.allocate(offset, length).await,
            Step::Sync => self.ours.sync().await,
            Step::SetDirect(direct) => self.ours.set_direct(direct).await.map(drop),
            Step::Close | Step::Reopen(_) => unreachable!("they have no result to compare"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, max_shrink_iters: 50, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_handle_returns_the_results_of_std(
        direct in any::<bool>(),
        blocking in any::<bool>(),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (_, engine) in small_engines() {
            // Cached reads never reach the engine, so a wrapper without a cache is tested too.
            let uncached: Arc<dyn Engine> = Arc::new(Uncached(engine.clone()));
            let short: Arc<dyn Engine> = Arc::new(Short(engine.clone()));
            for (engine, within) in [(engine, on_disk()), (uncached, in_memory()), (short, in_memory())] {
                runtime.block_on(async {
                    let mut pair = Pair::new(engine, &within).await;
                    pair.blocking = blocking;
                    pair.ours.set_direct(direct).await.unwrap();
                    for step in steps.clone() {
                        pair.run(step).await?;
                    }
                    pair.check_files()
                })?;
            }
        }
    }
}

/// An engine that doesn't know the page cache, so that each read is submitted.
struct Uncached(Arc<dyn Engine>);

impl Engine for Uncached {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn submit(&self, request: Request) {
        self.0.submit(request);
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        self.0.run(operation)
    }
}

fn on_disk() -> PathBuf {
    std::env::temp_dir()
}

/// A directory in memory, if there is one.
fn in_memory() -> PathBuf {
    Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir()).unwrap_or_else(on_disk)
}

/// An engine that reports fewer bytes than it read or wrote; direct reads come up short by whole sectors, as
/// from a device.
struct Short(Arc<dyn Engine>);

fn shorten(result: io::Result<Outcome>, sector: usize) -> io::Result<Outcome> {
    let less = |count: usize| if count > sector { 1 + (count * 31) % count.min(3_000) } else { count };
    match result {
        Ok(Outcome::Read { mut buffer }) if buffer.len() % sector == 0 && !buffer.is_empty() => {
            let count = less(buffer.len()).next_multiple_of(sector);
            buffer.set_len(count.min(buffer.len()));
            Ok(Outcome::Read { buffer })
        }
        Ok(Outcome::Count(count)) => Ok(Outcome::Count(less(count as usize) as u64)),
        result => result,
    }
}

/// The unit to which a request's count is shortened, or `None` for requests that aren't shortened.
fn sector_of(operation: &Operation) -> Option<usize> {
    match operation {
        Operation::Read { buffer, .. } => Some(buffer.alignment().bytes()),
        Operation::Write { .. } => Some(1),
        _ => None,
    }
}

impl Engine for Short {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn submit(&self, request: Request) {
        let Some(sector) = sector_of(&request.operation) else { return self.0.submit(request) };
        let Request { operation, completion } = request;
        let completion = Completion::call(move |result| completion.complete(shorten(result, sector)));
        self.0.submit(Request { operation, completion });
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        match sector_of(&operation) {
            Some(sector) => shorten(self.0.run(operation), sector),
            None => self.0.run(operation),
        }
    }
}

/// Each engine, with its knowledge of the page cache and without.
fn engines_twice() -> impl Iterator<Item = (String, Arc<dyn Engine>)> {
    engines().into_iter().flat_map(|(name, engine)| {
        let uncached: Arc<dyn Engine> = Arc::new(Uncached(engine.clone()));
        [(format!("{name}, uncached"), uncached), (name, engine)]
    })
}

#[tokio::test]
async fn a_closed_handle_refuses_and_a_missing_file_is_reported() {
    for (name, engine) in engines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let missing = File::open(&engine, &path, OpenMode::Read).await.unwrap_err();
        assert!(missing.is_not_found(), "{name}: {missing}");

        let file = File::open(&engine, &path, OpenMode::CreateNew).await.unwrap();
        file.write_at(0, Bytes::from_static(b"settee")).await.unwrap();
        let past = file.read_exact_at(3, 4).await.unwrap_err();
        assert!(matches!(past, Error::PastEnd { offset: 3, length: 4, .. }), "{name}: {past}");
        file.close();
        assert!(matches!(file.read_at(0, 1).await, Err(Error::Closed { .. })), "{name}");
        assert!(matches!(file.sync().await, Err(Error::Closed { .. })), "{name}");
    }
}

#[tokio::test]
async fn requests_in_flight_finish_after_the_handle_is_closed() {
    for (name, engine) in engines_twice() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::open(&engine, &directory.path().join("file"), OpenMode::CreateNew).await.unwrap();
        file.write_at(0, vec![7; 1 << 20].into()).await.unwrap();
        let read = tokio::join!(biased; file.read_at(0, 1 << 20), async { file.close() }).0;
        assert_eq!(read.unwrap(), vec![7; 1 << 20], "{name}");
        assert!(matches!(file.read_at(0, 1).await, Err(Error::Closed { .. })), "{name}");
    }
}

#[tokio::test]
async fn a_second_lock_is_refused_until_the_first_handle_is_gone() {
    for (name, engine) in engines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = File::open(&engine, &path, OpenMode::Create).await.unwrap();
        let second = File::open(&engine, &path, OpenMode::Create).await.unwrap();
        first.lock().await.unwrap();
        let refused = second.lock().await.unwrap_err();
        assert_eq!(refused.io_kind(), Some(io::ErrorKind::WouldBlock), "{name}: {refused}");
        drop(first);
        second.lock().await.unwrap();
    }
}

/// Polls the future once, so that it submits its request, and drops it.
fn begin_and_drop(future: impl Future) {
    let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
}

#[tokio::test]
async fn thousands_of_futures_dropped_in_flight_harm_nothing() {
    const COUNT: u64 = 3_000;
    const SIZE: usize = 2_000;
    for (name, engine) in engines_twice() {
        let directory = tempfile::tempdir().unwrap();
        let abandoned = File::open(&engine, &directory.path().join("a"), OpenMode::CreateNew).await.unwrap();
        for at in 0..COUNT {
            let bytes = vec![1 + (at % 251) as u8; SIZE];
            begin_and_drop(abandoned.write_at(at * SIZE as u64, bytes.into()));
            begin_and_drop(abandoned.read_at(at / 2 * SIZE as u64, SIZE));
            if at % 1_000 == 0 {
                begin_and_drop(abandoned.sync());
            }
        }
        drop(abandoned);
        // This file may reuse the descriptor number, and its buffers the memory, that were just in use.
        let other = File::open(&engine, &directory.path().join("b"), OpenMode::CreateNew).await.unwrap();
        other.write_at(0, vec![255; 1 << 20].into()).await.unwrap();
        assert_eq!(other.read_at(0, 2 << 20).await.unwrap(), vec![255; 1 << 20], "{name}");

        let abandoned = File::open(&engine, &directory.path().join("a"), OpenMode::Read).await.unwrap();
        let found = abandoned.read_at(0, COUNT as usize * SIZE).await.unwrap();
        for (at, bytes) in found.chunks(SIZE).enumerate() {
            let (written, hole) = (1 + (at % 251) as u8, 0);
            let whole = bytes.iter().all(|byte| *byte == written || *byte == hole);
            assert!(whole, "{name}: {at} has bytes of another write");
        }
    }
}

/// Writes, reads and syncs of one task in its own region, compared with a model. Every third write is of
/// whole units of `unit` bytes in the file, if one fits.
async fn keep_a_region(file: Arc<File>, seed: u64, start: u64, size: usize, unit: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut model = vec![0; size];
    file.write_at(start, model.clone().into()).await.unwrap();
    for round in 0..60 {
        let mut at = random.random_range(0..size);
        let mut end = random.random_range(at..=size);
        if round % 3 == 0 {
            let up = |at: usize| (start as usize + at).next_multiple_of(unit) - start as usize;
            (at, end) = (up(at).min(size), up(end).min(size));
        }
        if round % 2 == 0 {
            random.fill(&mut model[at..end]);
            let bytes = Bytes::copy_from_slice(&model[at..end]);
            match random.random_ratio(1, 10) {
                true => file.write_and_sync_at(start + at as u64, bytes).await.unwrap(),
                false => file.write_at(start + at as u64, bytes).await.unwrap(),
            }
        }
        if random.random_ratio(1, 20) {
            file.sync().await.unwrap();
        }
        let (from, to) = (random.random_range(0..=at), random.random_range(at..=size));
        let ranges = [(start + from as u64, at - from), (start + at as u64, to - at)];
        let (first, second) =
            tokio::join!(file.read_at(ranges[0].0, ranges[0].1), file.read_at(ranges[1].0, ranges[1].1));
        let found = [first.unwrap(), second.unwrap()].concat();
        assert!(found == model[from..to], "seed={seed} round={round} start={start} {from}..{to}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_tasks_each_read_their_own_writes() {
    const SIZE: usize = 24_000;
    for (name, engine) in engines_twice() {
        let directory = tempfile::tempdir().unwrap();
        let mut tasks = Vec::new();
        for file in ["a", "b", "c"] {
            let file = File::open(&engine, &directory.path().join(file), OpenMode::CreateNew).await.unwrap();
            let file = Arc::new(file);
            for region in 0..16 {
                let start = region * SIZE as u64;
                tasks.push(tokio::spawn(keep_a_region(file.clone(), region, start, SIZE, 1)));
            }
        }
        for task in tasks {
            assert!(task.await.is_ok(), "{name}: a region's model and its file differ");
        }
    }
}

#[test]
fn if_io_uring_is_refused_auto_takes_threads_and_uring_returns_the_reason() {
    for errno in [rustix::io::Errno::PERM, rustix::io::Errno::NOSYS] {
        let start = |kind| {
            let options = EngineOptions { kind, ..EngineOptions::default() };
            options.start_with(|_, _| Err(errno.into()))
        };
        assert_eq!(start(EngineKind::Auto).unwrap().name(), "threads");
        let refused = start(EngineKind::Uring).err().expect("no ring");
        assert!(is_refusal(&refused), "{refused}");
        assert_eq!(start(EngineKind::Threads).unwrap().name(), "threads");
    }
}

#[test]
fn auto_takes_io_uring_exactly_if_it_is_available() {
    let threads = Arc::new(crate::ThreadEngine::new(ThreadOptions::default()));
    let expected = match UringEngine::new(UringOptions::default(), threads) {
        Ok(_) => "io_uring",
        Err(error) if is_refusal(&error) => "threads",
        Err(error) => panic!("{error}"),
    };
    assert_eq!(EngineOptions::default().start().unwrap().name(), expected);
}

#[test]
fn an_engine_kind_parses_from_its_name() {
    for kind in [EngineKind::Auto, EngineKind::Uring, EngineKind::Threads] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("uring".parse::<EngineKind>().unwrap_err().contains("io_uring"));
}

#[tokio::test]
async fn every_sync_reaches_the_system_and_reports_its_error() {
    for (name, engine) in engines() {
        // This file accepts every write and has nothing to sync: fdatasync(2) fails with EINVAL.
        let file = File::open(&engine, Path::new("/dev/null"), OpenMode::Write).await.unwrap();
        let bytes = || Bytes::from_static(b"settee");
        file.write_at(0, bytes()).await.unwrap();
        file.write_at_blocking(0, bytes()).unwrap();
        file.write_at(0, Bytes::new()).await.unwrap();
        file.write_at_blocking(0, Bytes::new()).unwrap();
        for (how, synced) in [
            ("a sync", file.sync().await),
            ("a blocking sync", file.sync_blocking()),
            ("a write", file.write_and_sync_at(0, bytes()).await),
            ("a blocking write", file.write_and_sync_at_blocking(0, bytes())),
            ("an empty write", file.write_and_sync_at(0, Bytes::new()).await),
            ("an empty blocking write", file.write_and_sync_at_blocking(0, Bytes::new())),
        ] {
            let error = synced.expect_err(how);
            assert_eq!(error.io_kind(), Some(io::ErrorKind::InvalidInput), "{name}, {how}: {error}");
        }
    }
}
