//! Goal: a read waits for no thread that writes or syncs, however many of those are held.
//! Method: a completion that doesn't return holds its thread, as a write throttled by the file system does.
//! Each operation reports the thread in which it ended.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::Advice;

use super::*;
use crate::engine::Completion;
use crate::tests::is_refusal;
use crate::{EngineKind, EngineOptions, UringOptions};

/// Time after which no result is expected any more. Only a failing test waits this long.
const TIMEOUT: Duration = Duration::from_secs(20);

const SMALL: ThreadOptions = ThreadOptions {
    thread_count: 1,
    write_thread_count: 3,
    sync_thread_count: 2,
    queue_count_max: 4,
    files_max: usize::MAX,
};

/// The thread engine, and the threads beside a ring if the kernel has io_uring.
fn engines() -> Vec<Arc<dyn Engine>> {
    let start = |kind| EngineOptions { kind, threads: SMALL, uring: UringOptions::default() }.start();
    let mut engines = vec![start(EngineKind::Threads).unwrap()];
    match start(EngineKind::Uring) {
        Ok(engine) => engines.push(engine),
        Err(error) => assert!(is_refusal(&error), "{error}"),
    }
    engines
}

/// The result of an operation, and the name of the thread in which it ended.
type Ended = (io::Result<Outcome>, Option<String>);

fn submit(engine: &dyn Engine, operation: Operation) -> Receiver<Ended> {
    let (ended, end) = mpsc::channel();
    let completion = Completion::call(move |result| {
        drop(ended.send((result, thread::current().name().map(String::from))));
    });
    engine.submit(Request { operation, completion });
    end
}

/// Submits an operation whose completion holds its thread until the returned sender is dropped. Returns once
/// the thread is held, or at once if the operation is to stay in the queue.
fn hold(engine: &dyn Engine, operation: Operation, is_queued: bool) -> Sender<()> {
    let (release, released) = mpsc::channel();
    let (holds, held) = mpsc::channel();
    let completion = Completion::call(move |result| {
        drop(holds.send(result.map(drop)));
        let _: Result<(), _> = released.recv();
    });
    engine.submit(Request { operation, completion });
    if !is_queued {
        held.recv_timeout(TIMEOUT).expect("a thread is free").expect("the operation succeeds");
    }
    release
}

/// A file of 64 KiB that is not in the page cache, and its directory.
struct Subject {
    directory: tempfile::TempDir,
    file: Arc<Descriptor>,
}

impl Subject {
    fn new() -> Subject {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, vec![7; 64 << 10]).unwrap();
        let file = open(&path, OpenMode::Write).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        Subject { directory, file: Arc::new(Descriptor::System(file)) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn open(&self, name: &str, mode: OpenMode) -> Operation {
        Operation::Open { path: self.path(name), mode }
    }

    fn read(&self) -> Operation {
        let buffer = AlignedBuffer::new(4096, Alignment::new(4096).unwrap());
        Operation::Read { file: self.file.clone(), offset: 32 << 10, buffer }
    }

    fn write(&self, sync: bool) -> Operation {
        Operation::Write { file: self.file.clone(), offset: 0, buffer: Bytes::from_static(b"settee"), sync }
    }

    fn sync(&self) -> Operation {
        Operation::Sync { file: self.file.clone() }
    }

    /// All operations that change nothing, except direct I/O, which not every file system has.
    fn reading(&self) -> Vec<Operation> {
        vec![
            self.read(),
            Operation::Length { file: self.file.clone() },
            Operation::LinkCount { file: self.file.clone() },
            Operation::Identity { file: self.file.clone() },
            self.open("file", OpenMode::Read),
            Operation::List { path: self.directory.path().into() },
        ]
    }

    /// All operations that may wait for writes, in an order in which each succeeds.
    fn writing(&self) -> Vec<Operation> {
        let file = || self.file.clone();
        vec![
            self.write(false),
            Operation::Allocate { file: file(), offset: 0, length: 128 << 10 },
            Operation::SetLength { file: file(), length: 64 << 10 },
            Operation::Lock { file: file() },
            self.open("file", OpenMode::Write),
            self.open("created", OpenMode::Create),
            self.open("new", OpenMode::CreateNew),
            Operation::Rename { from: self.path("new"), to: self.path("created") },
            Operation::Link { from: self.path("created"), to: self.path("linked") },
            Operation::Remove { path: self.path("linked") },
            Operation::Remove { path: self.path("created") },
            Operation::CreateDirectory { path: self.path("folder") },
            Operation::RemoveDirectory { path: self.path("folder") },
        ]
    }

    fn syncing(&self) -> Vec<Operation> {
        vec![self.sync(), self.write(true), Operation::SyncDirectory { path: self.directory.path().into() }]
    }
}

/// Checks that every operation that only reads ends, in a read thread, while others are held.
fn assert_all_read(engine: &dyn Engine, subject: &Subject, beside: &str) {
    for operation in subject.reading() {
        let name = format!("{}: a {} beside {beside}", engine.name(), operation.kind());
        let end = submit(engine, operation).recv_timeout(TIMEOUT);
        let (result, thread) = end.unwrap_or_else(|_| panic!("{name} waits"));
        assert_eq!(thread.as_deref(), Some("settee-read"), "{name}");
        match result.unwrap_or_else(|error| panic!("{name}: {error}")) {
            Outcome::Read { buffer } => assert_eq!(Bytes::from(buffer), vec![7; 4096], "{name}"),
            Outcome::Count(_) | Outcome::Identity(_) | Outcome::Opened(_) | Outcome::Entries(_) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_cold_read_waits_for_no_thread_that_writes_or_syncs() {
    for engine in engines() {
        let (engine, subject) = (&*engine, Subject::new());
        let mut held = Vec::new();
        for _ in 0..SMALL.write_thread_count {
            held.push(hold(engine, subject.write(false), false));
        }
        assert_all_read(engine, &subject, "held writes");
        for _ in 0..SMALL.sync_thread_count {
            held.push(hold(engine, subject.sync(), false));
        }
        assert_all_read(engine, &subject, "held writes and syncs");
        for _ in 0..SMALL.queue_count_max {
            held.push(hold(engine, subject.write(false), true));
            held.push(hold(engine, subject.sync(), true));
        }
        assert_all_read(engine, &subject, "full queues");

        // An operation whose queue is full runs in this thread.
        for operation in [subject.write(false), subject.sync()] {
            let (result, thread) = submit(engine, operation).try_recv().expect("it has run");
            assert_eq!(thread.as_deref(), thread::current().name(), "{result:?}");
        }
        assert_all_read(engine, &subject, "what runs in place");
    }
}

#[test]
fn writes_and_syncs_wait_for_no_thread_of_another_kind() {
    for engine in engines() {
        let (engine, subject) = (&*engine, Subject::new());
        let ends =
            |operation| submit(engine, operation).recv_timeout(TIMEOUT).expect("it has a thread").0.unwrap();
        let reads: Vec<_> = (0..SMALL.thread_count).map(|_| hold(engine, subject.read(), false)).collect();
        ends(subject.write(false));
        ends(subject.sync());
        let syncs: Vec<_> =
            (0..SMALL.sync_thread_count).map(|_| hold(engine, subject.sync(), false)).collect();
        ends(subject.write(false));
        drop(syncs);
        let writes = (0..SMALL.write_thread_count).map(|_| hold(engine, subject.write(false), false));
        let writes: Vec<_> = writes.collect();
        ends(subject.write(true));
        drop((reads, writes));
    }
}

#[test]
fn each_operation_runs_in_a_thread_of_its_kind() {
    for engine in engines() {
        let subject = Subject::new();
        let kinds = [
            ("settee-read", subject.reading()),
            ("settee-write", subject.writing()),
            ("settee-sync", subject.syncing()),
        ];
        for (expected, operations) in kinds {
            for operation in operations {
                let name = format!("{}: {}", engine.name(), operation.kind());
                let (result, thread) = submit(&*engine, operation).recv_timeout(TIMEOUT).expect("it ends");
                assert!(result.is_ok(), "{name}: {result:?}");
                assert_eq!(thread.as_deref(), Some(expected), "{name}");
            }
        }
        // It may be refused, but not in a write thread.
        let open = Operation::OpenDirect { file: subject.file.clone() };
        let (_, thread) = submit(&*engine, open).recv_timeout(TIMEOUT).expect("it ends");
        assert_eq!(thread.as_deref(), Some("settee-read"));
    }
}

#[tokio::test]
async fn a_read_does_not_update_the_access_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![7; 8_192]).unwrap();
    // Older than the last write, so a read would update it.
    let before = std::time::UNIX_EPOCH + Duration::from_secs(1);
    std::fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_times(std::fs::FileTimes::new().set_accessed(before)))
        .unwrap();
    for (direct, engine) in [false, true].into_iter().zip(engines().into_iter().cycle()) {
        let file = crate::File::open(&engine, &path, OpenMode::Read).await.unwrap();
        file.set_direct(direct).await.unwrap();
        assert_eq!(file.read_at(0, 4_096).await.unwrap().len(), 4_096);
        assert_eq!(std::fs::metadata(&path).unwrap().accessed().unwrap(), before, "direct {direct}");
    }
}
