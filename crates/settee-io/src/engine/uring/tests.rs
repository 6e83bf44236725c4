//! Goal: the ring's own guarantees: results that the kernel seldom returns, full queues, an orderly end.
//! Method: made-up completions passed to `finish`; rings of two entries; engines dropped with everything in
//! flight.

use std::fs;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::ThreadOptions;
use crate::tests::is_refusal;

type Done = oneshot::Receiver<io::Result<Outcome>>;

/// An engine that uses its ring for all operations that a ring can run; `None` if the kernel refuses.
fn engine(entry_count: u32, queue_count_max: usize) -> Option<UringEngine> {
    let threads = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    let options = UringOptions { entry_count, queue_count_max, ring_use: RingUse::All };
    match UringEngine::new(options, threads) {
        Ok(engine) => Some(engine),
        Err(error) if is_refusal(&error) => None,
        Err(error) => panic!("{error}"),
    }
}

fn temporary() -> (Arc<Descriptor>, fs::File) {
    let file = tempfile::tempfile().unwrap();
    (Arc::new(Descriptor::System(file.try_clone().unwrap())), file)
}

fn submit(engine: &UringEngine, operation: Operation) -> Done {
    let (completion, done) = Completion::new();
    engine.submit(Request { operation, completion });
    done
}

#[test]
fn dropping_the_engine_waits_for_all_submitted_requests() {
    for (entry_count, queue_count_max) in [(2, 0), (2, 1), (4, 1_000), (512, 1_000)] {
        let Some(engine) = engine(entry_count, queue_count_max) else { return };
        let (file, std) = temporary();
        let dones: Vec<Done> = (0..500u64)
            .map(|at| {
                let (file, buffer) = (file.clone(), Bytes::from(vec![at as u8; 100]));
                submit(&engine, Operation::Write { file, offset: at * 100, buffer, sync: at % 50 == 0 })
            })
            .collect();
        drop(engine);
        for mut done in dones {
            assert!(matches!(done.try_recv(), Ok(Ok(Outcome::Count(100)))), "{entry_count} entries");
        }
        assert_eq!(Arc::strong_count(&file), 1, "a finished request keeps its descriptor");
        let mut found = vec![0; 50_000];
        std.read_exact_at(&mut found, 0).unwrap();
        let expected: Vec<u8> = (0..500u64).flat_map(|at| [at as u8; 100]).collect();
        assert!(found == expected, "{entry_count} entries");
    }
}

#[test]
fn a_ring_of_an_invalid_size_is_refused() {
    for entry_count in [0, 1, 3, 2 * ENTRY_COUNT_MAX] {
        let threads = Arc::new(ThreadEngine::new(ThreadOptions::default()));
        let options = UringOptions { entry_count, ..UringOptions::default() };
        let refused = UringEngine::new(options, threads).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
    }
}

/// A ring without its thread.
fn ring() -> Option<Ring> {
    let engine = engine(2, 1)?;
    let inbox = Inbox {
        state: Mutex::default(),
        wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        count_max: 1,
    };
    Some(Ring::new(2, Arc::new(inbox), engine.threads.clone()).unwrap())
}

/// Marks the operation as in flight in the ring, without submitting it to the kernel.
fn pretend(ring: &mut Ring, operation: Operation) -> (usize, Done) {
    let (completion, done) = Completion::new();
    let slot = ring.free_slots.pop().unwrap();
    ring.in_flight[slot] = Some(InFlight { operation, completion, written: false });
    (slot, done)
}

fn write(file: &Arc<Descriptor>, sync: bool) -> Operation {
    Operation::Write { file: file.clone(), offset: 0, buffer: Bytes::from_static(b"settee"), sync }
}

#[test]
fn a_request_that_the_kernel_gave_up_runs_in_a_thread() {
    for errno in [Errno::INTR, Errno::AGAIN, Errno::CANCELED] {
        let Some(mut ring) = ring() else { return };
        let (file, std) = temporary();
        let (slot, done) = pretend(&mut ring, write(&file, true));
        ring.finish(slot, -errno.raw_os_error());
        assert!(matches!(done.blocking_recv(), Ok(Ok(Outcome::Count(6)))), "{errno}");
        let mut found = [0; 6];
        std.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"settee", "{errno}");
        assert!(ring.is_idle(), "{errno}");
    }
}

#[test]
fn a_whole_write_is_synced_before_it_completes_and_a_short_or_failed_one_is_not_synced() {
    let Some(mut ring) = ring() else { return };
    let (file, _) = temporary();

    let (slot, mut done) = pretend(&mut ring, write(&file, true));
    ring.finish(slot, 5);
    assert!(matches!(done.try_recv(), Ok(Ok(Outcome::Count(5)))));
    assert!(ring.is_idle());

    let (slot, mut done) = pretend(&mut ring, write(&file, true));
    ring.finish(slot, -Errno::NOSPC.raw_os_error());
    let error = done.try_recv().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    assert!(ring.is_idle());

    let (slot, mut done) = pretend(&mut ring, write(&file, true));
    ring.finish(slot, 6);
    assert!(matches!(done.try_recv(), Err(TryRecvError::Empty)), "completed before its sync");
    ring.ring.submit_and_wait(1).unwrap();
    ring.reap();
    assert!(matches!(done.try_recv(), Ok(Ok(Outcome::Count(6)))));
    assert!(ring.is_idle());
}

#[test]
fn a_failed_sync_is_reported_and_not_repeated() {
    let Some(mut ring) = ring() else { return };
    let (file, _) = temporary();
    let (slot, mut done) = pretend(&mut ring, write(&file, true));
    ring.in_flight[slot].as_mut().unwrap().written = true;
    ring.finish(slot, -Errno::IO.raw_os_error());
    let error = done.try_recv().unwrap().unwrap_err();
    let source = error.get_ref().and_then(|inner| inner.downcast_ref::<SyncFailed>());
    assert_eq!(source.and_then(|failed| failed.0.raw_os_error()), Some(Errno::IO.raw_os_error()), "{error}");
    assert!(ring.is_idle());
}

#[test]
fn a_failed_ring_fails_its_requests_and_keeps_the_memory_that_the_kernel_may_use() {
    let Some(mut ring) = ring() else { return };
    let (file, _) = temporary();
    let (_, mut in_flight) = pretend(&mut ring, write(&file, false));
    let (completion, waiting) = Completion::new();
    let operation = Operation::Length { file: file.clone() };
    ring.inbox.push(Request { operation, completion }).unwrap();
    let inbox = ring.inbox.clone();
    drop(ring);
    assert!(in_flight.try_recv().unwrap().is_err());
    assert!(matches!(waiting.blocking_recv(), Ok(Ok(Outcome::Count(0)))));
    assert_eq!(Arc::strong_count(&file), 2, "the descriptor of a request in flight was released");
    let (completion, _done) = Completion::new();
    let later = Request { operation: Operation::Length { file }, completion };
    assert!(inbox.push(later).is_err(), "accepted by a ring that has ended");
}
