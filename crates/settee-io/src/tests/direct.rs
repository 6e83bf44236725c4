//! Goal: direct mode changes only how bytes get to and from the medium, whenever the mode changes and
//! whatever the file system answers.
//! Method: an engine that records, refuses or holds its requests; many tasks whose regions share pages, while
//! the mode changes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;
use crate::engine::OperationKind;
use crate::{EngineKind, plan};

/// How a test engine treats a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Works,
    /// Refuses to open direct descriptors.
    RefusesToOpen,
    /// Opens direct descriptors, and fails every request on them.
    RefusesRequests,
    /// Keeps writes in `held`.
    HoldsWrites,
}

struct Recorder {
    engine: Arc<dyn Engine>,
    behaviour: Behaviour,
    /// Kind, whether direct, offset and length of each request submitted or run.
    requests: Mutex<Vec<(OperationKind, bool, u64, usize)>>,
    held: Mutex<Vec<Request>>,
    /// For each write, whether it had a sync.
    syncs: Mutex<Vec<bool>>,
    /// No longer holds requests.
    passes_all: AtomicBool,
}

impl Recorder {
    fn new(behaviour: Behaviour) -> Arc<Recorder> {
        let options = EngineOptions { kind: EngineKind::Threads, ..EngineOptions::default() };
        let engine = options.start().unwrap();
        Arc::new(Recorder {
            engine,
            behaviour,
            requests: Mutex::default(),
            held: Mutex::default(),
            syncs: Mutex::default(),
            passes_all: AtomicBool::default(),
        })
    }

    /// Records the operation; fails if it is refused.
    fn record(&self, operation: &Operation) -> io::Result<()> {
        let kind = operation.kind();
        let (file, offset, length) = match operation {
            Operation::Read { file, offset, buffer } => (file, *offset, buffer.capacity()),
            Operation::Write { file, offset, buffer, sync } => {
                self.syncs.lock().unwrap().push(*sync);
                (file, *offset, buffer.len())
            }
            Operation::OpenDirect { .. } if self.behaviour == Behaviour::RefusesToOpen => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "not on this disk"));
            }
            _ => return Ok(()),
        };
        let direct = matches!(**file, Descriptor::Direct { .. });
        self.requests.lock().unwrap().push((kind, direct, offset, length));
        match direct && self.behaviour == Behaviour::RefusesRequests {
            true => Err(io::ErrorKind::InvalidInput.into()),
            false => Ok(()),
        }
    }

    fn holds(&self, operation: &Operation) -> bool {
        self.behaviour == Behaviour::HoldsWrites
            && operation.kind() == OperationKind::Write
            && !self.passes_all.load(Ordering::Relaxed)
    }

    fn take_requests(&self) -> Vec<(OperationKind, bool, u64, usize)> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// Returns for each held write whether it is direct, and runs it.
    fn release(&self) -> Vec<bool> {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        let direct = |request: &Request| match &request.operation {
            Operation::Write { file, .. } => matches!(**file, Descriptor::Direct { .. }),
            other => panic!("{} was held", other.kind()),
        };
        let directs = held.iter().map(direct).collect();
        for Request { operation, completion } in held {
            completion.complete(self.engine.run(operation));
        }
        directs
    }
}

impl Engine for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn submit(&self, request: Request) {
        if let Err(error) = self.record(&request.operation) {
            request.completion.complete(Err(error));
        } else if self.holds(&request.operation) {
            self.held.lock().unwrap().push(request);
        } else {
            self.engine.submit(request);
        }
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        self.record(&operation)?;
        self.engine.run(operation)
    }
}

/// A file of `length` bytes in direct mode; `None` if direct I/O is not available here.
async fn direct_file(recorder: &Arc<Recorder>, length: usize) -> Option<(tempfile::TempDir, File, usize)> {
    let engine: Arc<dyn Engine> = recorder.clone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, content(length)).unwrap();
    let file = File::open(&engine, &path, OpenMode::Write).await.unwrap();
    match file.set_direct(true).await.unwrap() {
        DirectMode::Direct(alignment) => Some((directory, file, alignment.bytes())),
        other => {
            eprintln!("not tested here: {other:?}");
            None
        }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 * 13) as u8).collect()
}

fn aligned(byte: u8, length: usize) -> Bytes {
    WriteBuffer::Aligned(byte, length).into()
}

#[tokio::test]
async fn aligned_requests_bypass_the_page_cache_and_others_use_it() {
    use OperationKind::{Read, Write};
    let recorder = Recorder::new(Behaviour::Works);
    let Some((_directory, file, unit)) = direct_file(&recorder, 10_000).await else { return };
    let at = unit as u64;

    // Reads are rounded out. The first request that finds the end of the file ends the read.
    assert_eq!(file.read_at(3, 5).await.unwrap(), content(10)[3..8]);
    assert_eq!(recorder.take_requests(), [(Read, true, 0, unit)]);
    assert_eq!(file.read_at(at - 1, unit + 2).await.unwrap(), content(10_000)[unit - 1..2 * unit + 1]);
    assert_eq!(recorder.take_requests(), [(Read, true, 0, 3 * unit)]);
    let last = 9_999 / at * at;
    assert_eq!(file.read_at(9_990, 100).await.unwrap(), content(10_000)[9_990..]);
    assert_eq!(recorder.take_requests(), [(Read, true, last, unit)]);
    assert!(matches!(file.read_exact_at(20_000, 1).await, Err(Error::PastEnd { .. })));
    recorder.take_requests();

    file.write_at(at, aligned(1, unit)).await.unwrap();
    assert_eq!(recorder.take_requests(), [(Write, true, at, unit)]);
    // Unaligned memory is copied.
    file.write_at(at, aligned(1, 2 * unit).slice(1..=unit)).await.unwrap();
    assert_eq!(recorder.take_requests(), [(Write, true, at, unit)]);
    for (offset, length) in [(at + 1, unit), (at, unit - 1)] {
        file.write_at(offset, aligned(1, length)).await.unwrap();
        assert_eq!(recorder.take_requests(), [(Write, false, offset, length)]);
    }

    assert_eq!(file.set_direct(false).await.unwrap(), DirectMode::Buffered);
    file.write_at(at, aligned(1, unit)).await.unwrap();
    file.read_at(0, unit).await.unwrap();
    assert_eq!(recorder.take_requests(), [(Write, false, at, unit), (Read, false, 0, unit)]);
}

#[tokio::test]
async fn a_write_copied_in_parts_is_synced_with_its_last_part() {
    const SIZE: usize = (2 << 20) + 4096;
    let recorder = Recorder::new(Behaviour::Works);
    let Some((_directory, file, _)) = direct_file(&recorder, 0).await else { return };
    let bytes = aligned(1, SIZE + 1).slice(1..);
    file.write_and_sync_at(0, bytes.clone()).await.unwrap();
    assert_eq!(*recorder.syncs.lock().unwrap(), [false, false, true]);
    assert!(recorder.take_requests().iter().all(|(_, direct, ..)| *direct));
    assert!(file.read_at(0, SIZE).await.unwrap() == bytes);
}

#[tokio::test]
async fn a_bulk_read_in_direct_mode_reads_each_chunk_once() {
    let recorder = Recorder::new(Behaviour::Works);
    let Some((_directory, file, unit)) = direct_file(&recorder, 200_000).await else { return };
    let reads: Vec<_> = (0..90u64).map(|at| ReadAt::new(at * 1_700 % 150_000, 900)).collect();
    let values = file.read_many(&reads, ReadPolicy::ADJACENT_ONLY).await;
    for (value, read) in values.iter().zip(&reads) {
        let start = read.offset as usize;
        assert_eq!(value.as_ref().unwrap(), &content(200_000)[start..start + read.length]);
    }
    let merge = Merge::Chunked(Alignment::new(unit).unwrap());
    let expected = plan(&reads, ReadPolicy { merge, ..ReadPolicy::ADJACENT_ONLY });
    let expected: Vec<_> =
        expected.iter().map(|read| (OperationKind::Read, true, read.offset, read.length)).collect();
    assert_eq!(recorder.take_requests(), expected);
}

#[tokio::test]
async fn a_refusal_of_direct_mode_is_reported_and_the_handle_stays_buffered() {
    let recorder = Recorder::new(Behaviour::RefusesToOpen);
    assert!(direct_file(&recorder, 10).await.is_none());

    let recorder = Recorder::new(Behaviour::RefusesRequests);
    let Some((_directory, file, unit)) = direct_file(&recorder, 10_000).await else { return };
    assert_eq!(file.read_at(5, 7_000).await.unwrap(), content(10_000)[5..7_005]);
    assert_eq!(file.direct(), None, "it would be refused each time");
    file.set_direct(true).await.unwrap();
    file.write_at(0, aligned(9, unit)).await.unwrap();
    assert_eq!(file.direct(), None, "it would be refused each time");
    assert_eq!(file.read_at_blocking(0, unit).unwrap(), aligned(9, unit));

    let refused = Recorder::new(Behaviour::RefusesToOpen);
    let engine: Arc<dyn Engine> = refused;
    let file = File::open(&engine, file.path(), OpenMode::Read).await.unwrap();
    assert_eq!(file.set_direct(true).await.unwrap(), DirectMode::Refused("not on this disk".into()));
    assert_eq!(file.read_at(0, unit).await.unwrap(), aligned(9, unit));
}

#[tokio::test]
async fn a_write_ends_once_even_if_its_handle_is_closed_and_dropped() {
    let recorder = Recorder::new(Behaviour::HoldsWrites);
    let engine: Arc<dyn Engine> = Arc::new(Short(recorder.clone()));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let file = File::open(&engine, &path, OpenMode::CreateNew).await.unwrap();
    let (sender, ended) = mpsc::channel();
    for offset in [0, 50_000] {
        let sender = sender.clone();
        let bytes = content(50_000).into();
        file.begin_write(offset, bytes, offset > 0, move |result| sender.send(result.is_ok()).unwrap());
    }
    file.close();
    let closed = sender.clone();
    file.begin_write(0, content(1).into(), false, move |result| closed.send(result.is_ok()).unwrap());
    assert_eq!(ended.try_recv(), Ok(false), "closed");
    drop(file);
    drop(sender);
    let mut turns = 0;
    while !recorder.release().is_empty() {
        turns += 1;
    }
    assert!(turns > 2, "no write came up short");
    assert_eq!(ended.iter().collect::<Vec<_>>(), [true, true]);
    assert!(fs::read(&path).unwrap() == [content(50_000), content(50_000)].concat());
}

#[tokio::test]
async fn direct_and_buffered_writes_are_never_in_flight_together_nor_overtaken() {
    let recorder = Recorder::new(Behaviour::HoldsWrites);
    let Some((_directory, file, unit)) = direct_file(&recorder, 0).await else { return };
    let ended = Arc::new(AtomicUsize::new(0));
    let begin = |at: usize, length: usize| {
        let ended = ended.clone();
        file.begin_write((at * unit) as u64, aligned(at as u8, length), false, move |result| {
            result.unwrap();
            ended.fetch_add(1, Ordering::Relaxed);
        });
    };
    for (at, length) in [unit, unit, 100, unit, 100, 100, unit].into_iter().enumerate() {
        begin(at, length);
    }
    let mut groups = Vec::new();
    loop {
        let group = recorder.release();
        if group.is_empty() {
            break;
        }
        groups.push(group);
    }
    let expected = [vec![true, true], vec![false], vec![true], vec![false, false], vec![true]];
    assert_eq!(groups, expected);
    assert_eq!(ended.load(Ordering::Relaxed), 7);
}

#[test]
fn a_blocking_write_waits_for_writes_of_the_other_kind() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let recorder = Recorder::new(Behaviour::HoldsWrites);
    let Some((_directory, file, unit)) = runtime.block_on(direct_file(&recorder, 0)) else { return };
    file.begin_write(0, aligned(1, unit), false, |result| result.unwrap());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            file.write_at_blocking(10, content(100).into()).unwrap();
            ended.store(true, Ordering::Release);
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!ended.load(Ordering::Acquire), "beside a direct write");
        while !ended.load(Ordering::Acquire) {
            recorder.release();
            std::thread::yield_now();
        }
    });
    assert_eq!(file.read_at_blocking(10, 100).unwrap(), content(100));
}

#[tokio::test]
async fn thousands_of_waiting_writes_use_bounded_stack() {
    let threads = ThreadOptions {
        thread_count: 1,
        write_thread_count: 1,
        sync_thread_count: 1,
        queue_count_max: 0,
        ..ThreadOptions::default()
    };
    let options = EngineOptions { kind: EngineKind::Threads, threads, ..EngineOptions::default() };
    // Each request runs and ends while it is being submitted.
    let recorder = Arc::new(Recorder {
        engine: Arc::new(Short(options.start().unwrap())),
        behaviour: Behaviour::HoldsWrites,
        requests: Mutex::default(),
        held: Mutex::default(),
        syncs: Mutex::default(),
        passes_all: AtomicBool::default(),
    });
    let Some((_directory, file, unit)) = direct_file(&recorder, 0).await else { return };
    let ended = Arc::new(AtomicUsize::new(0));
    const COUNT: usize = 5_000;
    for at in 0..COUNT {
        let ended = ended.clone();
        let length = if at % 2 == 0 { unit } else { 10 };
        file.begin_write((at % 8 * unit) as u64, aligned(1, length), false, move |result| {
            result.unwrap();
            ended.fetch_add(1, Ordering::Relaxed);
        });
    }
    // All wait for the first, whose end admits them.
    recorder.passes_all.store(true, Ordering::Relaxed);
    assert_eq!(recorder.release(), [true]);
    assert_eq!(ended.load(Ordering::Relaxed), COUNT, "a write was forgotten");
}

#[test]
fn a_direct_descriptor_keeps_the_lock_and_outlives_its_files_name() {
    for (name, engine) in engines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, content(8_192)).unwrap();
        let open = || match engine.run(Operation::Open { path: path.clone(), mode: OpenMode::Write }) {
            Ok(Outcome::Opened(descriptor)) => Arc::new(descriptor),
            other => panic!("{other:?}"),
        };
        let (first, second) = (open(), open());
        engine.run(Operation::Lock { file: first.clone() }).unwrap();
        // It is the file that was opened, whichever file now has its name.
        fs::rename(&path, directory.path().join("other")).unwrap();
        fs::write(&path, b"another file").unwrap();
        let (direct, alignment) = match engine.run(Operation::OpenDirect { file: first }) {
            Ok(Outcome::OpenedDirect { descriptor, alignment }) => (Arc::new(descriptor), alignment),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return,
            other => panic!("{other:?}"),
        };
        let buffer = AlignedBuffer::new(8_192, alignment);
        match engine.run(Operation::Read { file: direct.clone(), offset: 0, buffer }) {
            Ok(Outcome::Read { buffer }) => assert!(buffer[..] == content(8_192), "{name}"),
            other => panic!("{other:?}"),
        }
        let lock = || engine.run(Operation::Lock { file: second.clone() });
        assert_eq!(lock().unwrap_err().kind(), io::ErrorKind::WouldBlock, "{name}");
        drop(direct);
        lock().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_that_share_pages_read_their_own_writes_while_the_mode_changes() {
    const SIZE: usize = 6_100;
    const TURNS: usize = 8;
    for (name, engine) in engines_twice() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::open(&engine, &directory.path().join("a"), OpenMode::CreateNew).await.unwrap();
        let file = Arc::new(file);
        let turns = Arc::new(AtomicUsize::new(0));
        let changes = {
            let (file, turns) = (file.clone(), turns.clone());
            tokio::spawn(async move {
                loop {
                    let turn = turns.fetch_add(1, Ordering::Relaxed);
                    file.set_direct(turn % 4 > 0).await.unwrap();
                    tokio::time::sleep(std::time::Duration::from_micros(300)).await;
                }
            })
        };
        // Repeats until the mode has changed often enough, however fast the tasks are.
        while turns.load(Ordering::Relaxed) < TURNS {
            let keep = |region| keep_a_region(file.clone(), region, region * SIZE as u64, SIZE, 512);
            let tasks: Vec<_> = (0..12).map(|region| tokio::spawn(keep(region))).collect();
            for task in tasks {
                assert!(task.await.is_ok(), "{name}: a region's model and its file differ");
            }
        }
        changes.abort();
    }
}
