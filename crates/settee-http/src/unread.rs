//! Memory of answers that their clients haven't taken yet.
//!
//! A buffer on its way to a client is counted from [`Unread::hold`] until nobody has it any more, this crate
//! or hyper: for its connection ([`Unread`]), and for all of them ([`Answers`]).
//!
//! Invariants:
//! 1. What is counted is at most `answer_bytes_in_flight_max`, but for one answer: past it the connection that
//!    holds the most is closed.
//! 2. A connection that holds a part of that is given no further whole answer ([`Unread::check`]), and its
//!    streamed answers go on chunk by chunk ([`Unread::below_share`]): alone it closes no other, and none is
//!    kept from its end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::Limits;
use crate::error::Failure;

/// Bytes of a buffer that isn't counted: there is one to a request under way.
const SMALL_BYTES: usize = 4 << 10;

/// Bytes of a whole answer that is never refused.
const ALWAYS_ANSWERED_BYTES: usize = 64 << 10;

/// A connection may hold one part in this many of all that may be held, and is given more only for an answer
/// of its own that is larger.
const CONNECTION_SHARE: u64 = 4;

/// Bytes of a connection's streamed answers past which each of them has one chunk under way.
const STREAMED_BYTES: u64 = 8 << 20;

/// The unread answers of a server.
pub(crate) struct Answers {
    bytes_max: u64,
    held_bytes: AtomicU64,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    next: u64,
    open: HashMap<u64, Weak<Unread>>,
}

/// The unread answers of a connection.
pub(crate) struct Unread {
    answers: Arc<Answers>,
    number: u64,
    held_bytes: AtomicU64,
    /// Notified when a client took something.
    taken: Notify,
    /// Whether the connection is being closed: it is given nothing more.
    is_closing: AtomicBool,
    /// Notified when the connection is to be closed.
    closed: Notify,
}

impl Answers {
    pub(crate) fn new(limits: &Limits) -> Arc<Answers> {
        Arc::new(Answers {
            bytes_max: limits.answer_bytes_in_flight_max,
            held_bytes: AtomicU64::new(0),
            connections: Mutex::default(),
        })
    }

    /// The account of a new connection.
    pub(crate) fn connection(self: &Arc<Answers>) -> Arc<Unread> {
        let mut connections = self.lock();
        let number = connections.next;
        connections.next += 1;
        let unread = Arc::new(Unread {
            answers: self.clone(),
            number,
            held_bytes: AtomicU64::new(0),
            taken: Notify::new(),
            is_closing: AtomicBool::new(false),
            closed: Notify::new(),
        });
        connections.open.insert(number, Arc::downgrade(&unread));
        unread
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connection that holds the most, of several the oldest, where what others that are being closed
    /// hold doesn't do.
    fn close_largest(&self) {
        // None is dropped under the lock, which its drop takes.
        let connections: Vec<Arc<Unread>> = self.lock().open.values().filter_map(Weak::upgrade).collect();
        let (closing, open): (Vec<_>, Vec<_>) =
            connections.iter().partition(|unread| unread.is_closing.load(Ordering::Relaxed));
        let released: u64 = closing.iter().map(|unread| unread.held_bytes()).sum();
        let all = self.held_bytes.load(Ordering::Relaxed);
        let largest = open.iter().max_by_key(|unread| (unread.held_bytes(), u64::MAX - unread.number));
        if let Some(unread) = largest.filter(|_| all.saturating_sub(released) > self.bytes_max) {
            let bytes = unread.held_bytes();
            tracing::warn!(
                bytes,
                all,
                "a connection was closed: it holds the most of answers that nobody takes"
            );
            unread.is_closing.store(true, Ordering::Relaxed);
            unread.closed.notify_one();
        }
    }
}

impl Unread {
    fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Whether the connection is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Whether the connection may be given a whole answer of that size. A request that changes something checks
    /// this before the change.
    ///
    /// # Errors
    /// 503 where it holds its part already, or is being closed. Small answers have neither error.
    pub(crate) fn check(&self, bytes: usize) -> Result<(), Failure> {
        let held = self.held_bytes();
        let is_over = held > 0 && held + bytes as u64 > self.answers.bytes_max / CONNECTION_SHARE;
        match bytes > ALWAYS_ANSWERED_BYTES && (self.is_closing() || is_over) {
            true => Err(Failure::unread()),
            false => Ok(()),
        }
    }

    /// Counts a buffer until the last reference to it is dropped.
    pub(crate) fn hold(self: &Arc<Unread>, bytes: Bytes) -> Bytes {
        if bytes.len() <= SMALL_BYTES {
            return bytes;
        }
        let size = bytes.len() as u64;
        self.held_bytes.fetch_add(size, Ordering::Relaxed);
        let all = self.answers.held_bytes.fetch_add(size, Ordering::Relaxed) + size;
        // One answer alone is held whatever its size: it was made within its request's own memory.
        if all > self.answers.bytes_max && all > size {
            self.answers.close_largest();
        }
        Bytes::from_owner(Held { bytes, unread: self.clone() })
    }

    /// Waits until the connection holds less than its streams may have ahead of their client.
    pub(crate) async fn below_share(&self) {
        loop {
            let mut taken = std::pin::pin!(self.taken.notified());
            taken.as_mut().enable();
            if self.held_bytes() < STREAMED_BYTES {
                return;
            }
            taken.await;
        }
    }

    /// Completes when the connection is to be closed.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.answers.lock().open.remove(&self.number);
    }
}

/// A counted buffer.
struct Held {
    bytes: Bytes,
    unread: Arc<Unread>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let size = self.bytes.len() as u64;
        self.unread.answers.held_bytes.fetch_sub(size, Ordering::Relaxed);
        self.unread.held_bytes.fetch_sub(size, Ordering::Relaxed);
        self.unread.taken.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn answers(bytes_max: u64) -> Arc<Answers> {
        Answers::new(&Limits { answer_bytes_in_flight_max: bytes_max, ..Limits::default() })
    }

    fn held_bytes(answers: &Answers) -> u64 {
        answers.held_bytes.load(Ordering::Relaxed)
    }

    fn buffer(size: usize) -> Bytes {
        vec![b'x'; size].into()
    }

    #[test]
    fn a_buffer_counts_until_its_last_part_is_dropped() {
        let answers = answers(1 << 30);
        let unread = answers.connection();
        let mut held = unread.hold(buffer(100_000));
        let part = held.split_to(10);
        let small = unread.hold(buffer(SMALL_BYTES));
        assert_eq!((held_bytes(&answers), unread.held_bytes()), (100_000, 100_000));
        drop(held);
        assert_eq!(held_bytes(&answers), 100_000);
        drop(part);
        assert_eq!((held_bytes(&answers), unread.held_bytes(), small.len()), (0, 0, SMALL_BYTES));
    }

    #[test]
    fn past_the_limit_the_connection_that_holds_the_most_is_closed() {
        let answers = answers(1_000_000);
        let (greedy, modest) = (answers.connection(), answers.connection());
        let first = [greedy.hold(buffer(300_000)), greedy.hold(buffer(300_000))];
        let second = modest.hold(buffer(300_000));
        assert!(greedy.closed().now_or_never().is_none());
        let third = modest.hold(buffer(200_000));
        assert!(greedy.closed().now_or_never().is_some() && modest.closed().now_or_never().is_none());
        assert!(greedy.is_closing() && !modest.is_closing());
        let large = ALWAYS_ANSWERED_BYTES + 1;
        assert!(greedy.check(large).is_err() && greedy.check(1).is_ok());
        let fourth = modest.hold(buffer(300_000));
        assert!(modest.closed().now_or_never().is_none(), "what the first one releases will do");
        drop(fourth);
        drop((first, second, third));
        // Alone an answer may be larger than all that may be held.
        let whole = modest.hold(buffer(2_000_000));
        assert!(modest.closed().now_or_never().is_none());
        drop((whole, greedy, modest));
        assert!(answers.lock().open.is_empty() && held_bytes(&answers) == 0);
    }

    #[test]
    fn a_connection_that_holds_its_part_gets_small_answers_and_chunks_one_by_one() {
        let answers = answers(100 << 20);
        let unread = answers.connection();
        assert!(unread.check(80 << 20).is_ok(), "the first is given whatever its size");
        let held = unread.hold(buffer(20 << 20));
        assert_eq!(unread.check(6 << 20).unwrap_err().status, 503);
        assert!(unread.check(ALWAYS_ANSWERED_BYTES).is_ok() && unread.check(5 << 20).is_ok());
        let mut waits = Box::pin(unread.below_share());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(held);
        assert!(waits.now_or_never().is_some());
    }
}
