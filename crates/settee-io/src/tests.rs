//! Goal: every engine gives what `std::fs::File` gives, whoever waits, gives up or closes.
//! Method: random operations on both, compared step by step; many tasks at once, each against
//! its own model; futures dropped in flight. All on each engine, in small and with its defaults.

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{
    Engine, EngineKind, EngineOptions, Error, File, OpenMode, Result, RingUse, ThreadOptions, UringEngine,
    UringOptions,
};

/// The engines of this machine: with the smallest limits, so that every queue is full at once,
/// and with their defaults.
fn engines() -> Vec<(String, Arc<dyn Engine>)> {
    let uring = UringOptions::default();
    let mut engines = small_engines();
    for uring in [uring, UringOptions { ring_use: RingUse::All, ..uring }] {
        engines.extend(start("large", ThreadOptions::default(), uring));
    }
    engines
}

fn small_engines() -> Vec<(String, Arc<dyn Engine>)> {
    let threads = ThreadOptions { thread_count: 1, sync_thread_count: 1, queue_count_max: 1 };
    start("small", threads, UringOptions { entry_count: 2, queue_count_max: 1, ring_use: RingUse::All })
}

/// Each kind of engine; the ring is among them unless the kernel refuses it.
fn start(size: &str, threads: ThreadOptions, uring: UringOptions) -> Vec<(String, Arc<dyn Engine>)> {
    let mut engines = Vec::new();
    for kind in [EngineKind::Threads, EngineKind::Uring] {
        match (EngineOptions { kind, threads, uring }).start() {
            Ok(engine) => engines.push((format!("{size} {kind}, {:?}", uring.ring_use), engine)),
            Err(error) if is_refusal(&error) => eprintln!("not tested here: {kind}: {error}"),
            Err(error) => panic!("{kind}: {error}"),
        }
    }
    engines
}

/// The kernel has no io_uring for us: too old, or forbidden.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

#[derive(Debug, Clone)]
enum Step {
    Read(u64, usize),
    ReadMany(Vec<(u64, usize)>),
    ReadExact(u64, usize),
    Write(u64, Vec<u8>, bool),
    SetLength(u64),
    Allocate(u64, u64),
    Sync,
    Close,
    Reopen(OpenMode),
}

/// Offsets in the file, past its end, and where no file system can go.
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
        2 => prop::collection::vec(range(), 0..6).prop_map(Step::ReadMany),
        1 => range().prop_map(|(offset, length)| Step::ReadExact(offset, length)),
        4 => (0..40_000u64, prop::collection::vec(any::<u8>(), 0..9_000), any::<bool>())
            .prop_map(|(offset, bytes, sync)| Step::Write(offset, bytes, sync)),
        1 => (offset().prop_filter("no file of a terabyte", |offset| *offset != 1 << 40), any::<bool>())
            .prop_map(|(offset, sync)| Step::Write(offset, vec![7; 10], sync)),
        2 => (0..50_000u64).prop_map(Step::SetLength),
        1 => (0..50_000u64, 1..9_000u64).prop_map(|(offset, length)| Step::Allocate(offset, length)),
        1 => Just(Step::Sync),
        1 => Just(Step::Close),
        2 => prop::sample::select(modes).prop_map(Step::Reopen),
    ]
}

/// What either side gives: the bytes read, or the system's error number.
type Given<T> = std::result::Result<T, Option<i32>>;

fn ours<T>(result: Result<T>) -> Given<T> {
    result.map_err(|error| match error {
        Error::Io { source, .. } => source.raw_os_error(),
        Error::Closed { .. } | Error::PastEnd { .. } => None,
    })
}

fn theirs<T>(result: io::Result<T>) -> Given<T> {
    result.map_err(|error| error.raw_os_error())
}

/// `std`'s reads until `length` or the end of the file; the buffer is no longer than any file
/// here.
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

/// The same file by both, and whether ours was closed.
struct Pair {
    engine: Arc<dyn Engine>,
    folder: tempfile::TempDir,
    ours: File,
    theirs: fs::File,
    closed: bool,
}

impl Pair {
    async fn new(engine: Arc<dyn Engine>) -> Pair {
        let folder = tempfile::tempdir().unwrap();
        let ours = File::open(&engine, &folder.path().join("ours"), OpenMode::CreateNew).await.unwrap();
        let theirs = open_std(&folder.path().join("theirs"), OpenMode::CreateNew).unwrap();
        Pair { engine, folder, ours, theirs, closed: false }
    }

    async fn run(&mut self, step: Step) -> std::result::Result<(), TestCaseError> {
        if self.closed && !matches!(step, Step::Close | Step::Reopen(_)) {
            let result = self.try_ours(step).await;
            prop_assert!(matches!(result, Err(Error::Closed { .. })), "{:?}", result);
            return Ok(());
        }
        match step {
            Step::Read(offset, length) => {
                let found = ours(self.ours.read_at(offset, length).await);
                prop_assert_eq!(found, theirs(read_std(&self.theirs, offset, length)));
            }
            Step::ReadMany(ranges) => {
                let found = ours(self.ours.read_many_at(&ranges).await);
                let expected =
                    ranges.iter().map(|&(at, length)| read_std(&self.theirs, at, length)).collect();
                prop_assert_eq!(found, theirs(expected));
            }
            Step::ReadExact(offset, length) => {
                let found = ours(self.ours.read_exact_at(offset, length).await);
                let mut expected = theirs(read_std(&self.theirs, offset, length));
                if expected.as_ref().is_ok_and(|bytes| bytes.len() < length) {
                    expected = Err(None);
                }
                prop_assert_eq!(found, expected);
            }
            Step::Write(offset, ref bytes, _) => {
                let expected = theirs(self.theirs.write_all_at(bytes, offset));
                prop_assert_eq!(ours(self.try_ours(step).await), expected);
            }
            Step::SetLength(length) => {
                let expected = theirs(self.theirs.set_len(length));
                prop_assert_eq!(ours(self.try_ours(step).await), expected);
            }
            Step::Allocate(offset, length) => {
                let end = self.theirs.metadata().unwrap().len().max(offset + length);
                // A file that isn't open for writing: EINVAL of ftruncate, EBADF of fallocate.
                let expected = self.theirs.set_len(end).is_ok();
                prop_assert_eq!(self.try_ours(step).await.is_ok(), expected);
            }
            Step::Sync => prop_assert_eq!(ours(self.try_ours(step).await), theirs(self.theirs.sync_data())),
            Step::Close => {
                self.ours.close();
                self.closed = true;
            }
            Step::Reopen(mode) => self.reopen(mode).await?,
        }
        if !self.closed {
            prop_assert_eq!(self.ours.length().await.unwrap(), self.theirs.metadata().unwrap().len());
        }
        Ok(())
    }

    async fn reopen(&mut self, mode: OpenMode) -> std::result::Result<(), TestCaseError> {
        let opened = File::open(&self.engine, &self.folder.path().join("ours"), mode).await;
        let expected = open_std(&self.folder.path().join("theirs"), mode);
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
            Step::ReadMany(ranges) => self.ours.read_many_at(&ranges).await.map(drop),
            Step::ReadExact(offset, length) => self.ours.read_exact_at(offset, length).await.map(drop),
            Step::Write(offset, bytes, true) => self.ours.write_and_sync_at(offset, bytes.into()).await,
            Step::Write(offset, bytes, false) => self.ours.write_at(offset, bytes.into()).await,
            Step::SetLength(length) => self.ours.set_length(length).await,
            Step::Allocate(offset, length) => self.ours.allocate(offset, length).await,
            Step::Sync => self.ours.sync().await,
            Step::Close | Step::Reopen(_) => unreachable!("they have no result to compare"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_handle_gives_what_std_gives(steps in prop::collection::vec(step(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (_, engine) in small_engines() {
            // What is cached never reaches the engine: a wrapper that knows of no cache, too.
            for engine in [engine.clone(), Arc::new(Uncached(engine)) as Arc<dyn Engine>] {
                runtime.block_on(async {
                    let mut pair = Pair::new(engine).await;
                    for step in steps.clone() {
                        pair.run(step).await?;
                    }
                    Ok::<(), TestCaseError>(())
                })?;
            }
        }
    }
}

/// An engine that can't tell what is cached, so that each read is submitted.
struct Uncached(Arc<dyn Engine>);

impl Engine for Uncached {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn submit(&self, request: crate::Request) {
        self.0.submit(request);
    }

    fn run(&self, operation: crate::Operation) -> io::Result<crate::Outcome> {
        self.0.run(operation)
    }
}

/// Each engine, with what it knows of the cache and without.
fn engines_twice() -> impl Iterator<Item = (String, Arc<dyn Engine>)> {
    engines().into_iter().flat_map(|(name, engine)| {
        let uncached: Arc<dyn Engine> = Arc::new(Uncached(engine.clone()));
        [(format!("{name}, uncached"), uncached), (name, engine)]
    })
}

#[tokio::test]
async fn a_closed_handle_refuses_and_a_missing_file_is_told() {
    for (name, engine) in engines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
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
async fn what_is_in_flight_when_the_handle_closes_finishes() {
    for (name, engine) in engines_twice() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::open(&engine, &folder.path().join("file"), OpenMode::CreateNew).await.unwrap();
        file.write_at(0, vec![7; 1 << 20].into()).await.unwrap();
        let read = tokio::join!(biased; file.read_at(0, 1 << 20), async { file.close() }).0;
        assert_eq!(read.unwrap(), vec![7; 1 << 20], "{name}");
        assert!(matches!(file.read_at(0, 1).await, Err(Error::Closed { .. })), "{name}");
    }
}

#[tokio::test]
async fn a_second_lock_is_refused_until_the_first_handle_is_gone() {
    for (name, engine) in engines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = File::open(&engine, &path, OpenMode::Create).await.unwrap();
        let second = File::open(&engine, &path, OpenMode::Create).await.unwrap();
        first.lock().await.unwrap();
        let refused = second.lock().await.unwrap_err();
        assert_eq!(refused.io_kind(), Some(io::ErrorKind::WouldBlock), "{name}: {refused}");
        drop(first);
        second.lock().await.unwrap();
    }
}

/// Polls the future once, so that what it submits is submitted, and drops it.
fn begin_and_drop(future: impl Future) {
    let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
}

#[tokio::test]
async fn thousands_of_futures_dropped_in_flight_harm_nothing() {
    const COUNT: u64 = 3_000;
    const SIZE: usize = 2_000;
    for (name, engine) in engines_twice() {
        let folder = tempfile::tempdir().unwrap();
        let abandoned = File::open(&engine, &folder.path().join("a"), OpenMode::CreateNew).await.unwrap();
        for at in 0..COUNT {
            let bytes = vec![1 + (at % 251) as u8; SIZE];
            begin_and_drop(abandoned.write_at(at * SIZE as u64, bytes.into()));
            begin_and_drop(abandoned.read_at(at / 2 * SIZE as u64, SIZE));
            if at % 1_000 == 0 {
                begin_and_drop(abandoned.sync());
            }
        }
        drop(abandoned);
        // It may get the descriptor's number, and its buffers the memory, that were just in use.
        let other = File::open(&engine, &folder.path().join("b"), OpenMode::CreateNew).await.unwrap();
        other.write_at(0, vec![255; 1 << 20].into()).await.unwrap();
        assert_eq!(other.read_at(0, 2 << 20).await.unwrap(), vec![255; 1 << 20], "{name}");

        let abandoned = File::open(&engine, &folder.path().join("a"), OpenMode::Read).await.unwrap();
        let found = abandoned.read_at(0, COUNT as usize * SIZE).await.unwrap();
        for (at, bytes) in found.chunks(SIZE).enumerate() {
            let (written, hole) = (1 + (at % 251) as u8, 0);
            let whole = bytes.iter().all(|byte| *byte == written || *byte == hole);
            assert!(whole, "{name}: {at} has bytes of another write");
        }
    }
}

/// One task's writes, reads and syncs in a region of its own, against a model of it.
async fn keep_a_region(file: Arc<File>, seed: u64, start: u64, size: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut model = vec![0; size];
    file.write_at(start, model.clone().into()).await.unwrap();
    for round in 0..60 {
        let at = random.random_range(0..size);
        let end = random.random_range(at..=size);
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
        let found = file.read_many_at(&ranges).await.unwrap().concat();
        assert!(found == model[from..to], "seed={seed} round={round} start={start} {from}..{to}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_at_once_each_read_what_they_wrote() {
    const SIZE: usize = 24_000;
    for (name, engine) in engines_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut tasks = Vec::new();
        for file in ["a", "b", "c"] {
            let file = File::open(&engine, &folder.path().join(file), OpenMode::CreateNew).await.unwrap();
            let file = Arc::new(file);
            for region in 0..16 {
                let start = region * SIZE as u64;
                tasks.push(tokio::spawn(keep_a_region(file.clone(), region, start, SIZE)));
            }
        }
        for task in tasks {
            assert!(task.await.is_ok(), "{name}: a region's model and its file differ");
        }
    }
}

#[test]
fn where_io_uring_is_refused_auto_takes_threads_and_uring_says_why() {
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
fn auto_takes_io_uring_exactly_where_it_can_be_had() {
    let threads = Arc::new(crate::ThreadEngine::new(ThreadOptions::default()));
    let expected = match UringEngine::new(UringOptions::default(), threads) {
        Ok(_) => "io_uring",
        Err(error) if is_refusal(&error) => "threads",
        Err(error) => panic!("{error}"),
    };
    assert_eq!(EngineOptions::default().start().unwrap().name(), expected);
}

#[test]
fn an_engines_kind_is_read_as_it_is_shown() {
    for kind in [EngineKind::Auto, EngineKind::Uring, EngineKind::Threads] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("uring".parse::<EngineKind>().unwrap_err().contains("io_uring"));
}
