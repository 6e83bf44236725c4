//! Goal: under every interleaving readers see all published bytes, memory is rewritten only after its last
//! reader is gone, and a task that waits for memory is woken.
//! Method: loom tries every interleaving, and every value that a load may see under the memory model. Each
//! access to a buffer's bytes also accesses a loom cell (`sync::Shadow`).
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p settee-io --release --lib races`
//!
//! A test here fails with `Relaxed` in `publish`, in `TailShared::read` or in `published`; if a byte is
//! written or published too early; if memory returns to the pool with the buffer rather than with its last
//! reader; and if `serve` wakes no task.
//!
//! ThreadSanitizer checks the same on threads: `RUSTFLAGS="-Zsanitizer=thread
//! -Cunsafe-allow-abi-mismatch=sanitizer" cargo +nightly test --target x86_64-unknown-linux-gnu -p settee-io
//! --lib readers_on_other -- --test-threads=1`. Without a standard library built for it, it reports std's
//! mutexes and channels as races; the test passes if no report names a frame of this module. With one
//! `Relaxed` a report does.

use std::sync::atomic::Ordering;

use loom::future::block_on;
use loom::thread;

use super::sync::SHADOW_COUNT;
use super::*;
use crate::{BUFFER_SIZE_MIN, BufferPool, PoolOptions};

/// The bytes that every writer appends.
const CONTENT: [u8; SHADOW_COUNT] = *b"tail";

fn pool_of_one() -> std::sync::Arc<BufferPool> {
    BufferPool::new(PoolOptions { bytes_max: BUFFER_SIZE_MIN })
}

fn buffer() -> TailBuffer {
    pool_of_one().try_take(1).expect("an empty pool grants a buffer")
}

#[test]
fn a_reader_sees_all_published_bytes_and_no_others() {
    loom::model(|| {
        let mut buffer = buffer();
        let reader = buffer.reader();
        let reading = thread::spawn(move || {
            let published = reader.published();
            assert_eq!(reader.copy(0..published).expect("published"), CONTENT[..published]);
            if let Some(more) = reader.copy(0..published + 1) {
                assert_eq!(more, CONTENT[..published + 1]);
                assert!(reader.published() > published, "seen before it was published");
            }
        });
        buffer.extend(&CONTENT[..1]);
        buffer.publish();
        buffer.extend(&CONTENT[1..2]);
        buffer.extend(&CONTENT[2..3]);
        buffer.publish();
        drop(buffer);
        reading.join().unwrap();
    });
}

#[test]
fn readers_need_not_load_the_count_first() {
    loom::model(|| {
        let mut buffer = buffer();
        let readers = [2, 1].map(|length| {
            let reader = buffer.reader();
            thread::spawn(move || {
                if let Some(found) = reader.copy(0..length) {
                    assert_eq!(found, CONTENT[..length]);
                }
            })
        });
        buffer.extend(&CONTENT[..2]);
        buffer.publish();
        buffer.extend(&CONTENT[2..3]);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn a_slice_is_unchanged_while_more_is_appended() {
    loom::model(|| {
        let mut buffer = buffer();
        buffer.extend(&CONTENT[..1]);
        buffer.publish();
        let reader = buffer.reader();
        let writing = thread::spawn(move || {
            let slice = reader.slice(0..1).expect("published before");
            drop(reader);
            assert_eq!(slice, CONTENT[..1]);
            assert_eq!(slice.slice(..1), CONTENT[..1]);
        });
        buffer.extend(&CONTENT[1..2]);
        buffer.publish();
        buffer.pad(1);
        writing.join().unwrap();
    });
}

#[test]
fn writes_before_publishing_happen_before_a_load_of_the_count() {
    loom::model(|| {
        let mut buffer = buffer();
        let reader = buffer.reader();
        let written = Arc::new(AtomicUsize::new(0));
        let seen = written.clone();
        let reading = thread::spawn(move || {
            let published = reader.published();
            assert!(seen.load(Ordering::Relaxed) >= published);
        });
        written.store(1, Ordering::Relaxed);
        buffer.extend(&CONTENT[..1]);
        buffer.publish();
        reading.join().unwrap();
    });
}

#[test]
fn memory_is_rewritten_only_after_its_last_reader() {
    loom::model(|| {
        let pool = pool_of_one();
        let mut buffer = pool.try_take(1).expect("an empty pool grants a buffer");
        buffer.extend(&CONTENT[..2]);
        buffer.publish();
        let readers = [buffer.reader(), buffer.reader()];
        let readers = readers.map(|reader| {
            thread::spawn(move || {
                let slice = reader.slice(0..2).expect("published before");
                assert_eq!(slice, CONTENT[..2]);
            })
        });
        drop(buffer);
        if let Some(mut next) = pool.try_take(1) {
            next.extend(b"else");
            next.publish();
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn a_task_that_waits_for_memory_is_woken() {
    loom::model(|| {
        let pool = pool_of_one();
        let buffer = pool.try_take(1).expect("an empty pool grants a buffer");
        let takers = [pool.clone(), pool].map(|pool| {
            thread::spawn(move || {
                let mut buffer = block_on(pool.take(1));
                buffer.extend(&CONTENT[..1]);
                buffer.capacity()
            })
        });
        drop(buffer);
        for taker in takers {
            assert_eq!(taker.join().unwrap(), BUFFER_SIZE_MIN);
        }
    });
}

#[test]
fn a_cancelled_request_swallows_no_wake_up() {
    loom::model(|| {
        let pool = pool_of_one();
        let buffer = pool.try_take(1).expect("an empty pool grants a buffer");
        let cancelling = thread::spawn({
            let pool = pool.clone();
            move || {
                // Polled once: it waits, or has a buffer. Dropped either way.
                let mut take = std::pin::pin!(pool.take(1));
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                let _ = take.as_mut().poll(&mut context);
            }
        });
        let waiting = thread::spawn(move || block_on(pool.take(1)).capacity());
        drop(buffer);
        cancelling.join().unwrap();
        assert_eq!(waiting.join().unwrap(), BUFFER_SIZE_MIN);
    });
}
