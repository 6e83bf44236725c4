//! Limits the memory of responses that clients haven't read yet.
//!
//! A buffer is counted from [`ConnectionMemory::track`] until its last reference, in this crate or in hyper,
//! is dropped: for its connection ([`ConnectionMemory`]), and for all connections ([`ResponseMemory`]).
//!
//! Invariants:
//! 1. The counted bytes are at most `response_bytes_in_flight_max` plus one response: past the limit the
//!    connection that holds the most is closed.
//! 2. A connection that holds a quarter of the limit is sent no further buffered response
//!    ([`ConnectionMemory::check`]). A connection that holds much continues its streamed responses one chunk
//!    at a time ([`ConnectionMemory::below_stream_limit`]). So one connection alone doesn't cause another to
//!    be closed, and every stream can complete.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::error::ApiError;
use crate::limits::Limits;

/// Largest buffer in bytes that isn't counted. There is one per request in flight.
const SMALL_BYTES: usize = 4 << 10;

/// Largest buffered response in bytes that is never refused.
const ALWAYS_SENT_BYTES: usize = 64 << 10;

/// A connection may hold the limit divided by this. It exceeds that only with one larger response of its own.
const CONNECTION_DIVISOR: u64 = 4;

/// Bytes held by a connection from which on each of its streams has only one chunk in flight.
const STREAMED_BYTES: u64 = 8 << 20;

/// The unread responses of a server.
pub(crate) struct ResponseMemory {
    bytes_max: u64,
    held_bytes: AtomicU64,
    connections: Mutex<ConnectionTable>,
}

#[derive(Default)]
struct ConnectionTable {
    next: u64,
    open: HashMap<u64, Weak<ConnectionMemory>>,
}

/// The unread responses of a connection.
pub(crate) struct ConnectionMemory {
    response_memory: Arc<ResponseMemory>,
    number: u64,
    held_bytes: AtomicU64,
    /// Notified when the client has read a buffer.
    released: Notify,
    /// Whether the connection is being closed. It is sent nothing more.
    is_closing: AtomicBool,
    /// Notified when the connection is to be closed.
    closed: Notify,
}

impl ResponseMemory {
    pub(crate) fn new(limits: &Limits) -> Arc<ResponseMemory> {
        Arc::new(ResponseMemory {
            bytes_max: limits.response_bytes_in_flight_max,
            held_bytes: AtomicU64::new(0),
            connections: Mutex::default(),
        })
    }

    /// The accounting of a new connection.
    pub(crate) fn connection(self: &Arc<ResponseMemory>) -> Arc<ConnectionMemory> {
        let mut connections = self.lock();
        let number = connections.next;
        connections.next += 1;
        let connection_memory = Arc::new(ConnectionMemory {
            response_memory: self.clone(),
            number,
            held_bytes: AtomicU64::new(0),
            released: Notify::new(),
            is_closing: AtomicBool::new(false),
            closed: Notify::new(),
        });
        connections.open.insert(number, Arc::downgrade(&connection_memory));
        connection_memory
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connection that holds the most, the oldest of several, unless the connections already being
    /// closed hold enough.
    fn close_largest(&self) {
        // The last reference is dropped outside the lock, which `Drop` takes.
        let connections: Vec<Arc<ConnectionMemory>> =
            self.lock().open.values().filter_map(Weak::upgrade).collect();
        let (closing, open): (Vec<_>, Vec<_>) = connections
            .iter()
            .partition(|connection_memory| connection_memory.is_closing.load(Ordering::Relaxed));
        let closing_bytes: u64 = closing.iter().map(|connection_memory| connection_memory.held_bytes()).sum();
        let all = self.held_bytes.load(Ordering::Relaxed);
        let largest = open.iter().max_by_key(|connection_memory| {
            (connection_memory.held_bytes(), u64::MAX - connection_memory.number)
        });
        if let Some(connection_memory) =
            largest.filter(|_| all.saturating_sub(closing_bytes) > self.bytes_max)
        {
            let bytes = connection_memory.held_bytes();
            tracing::warn!(bytes, all, "a connection was closed: it held the most unread responses");
            connection_memory.is_closing.store(true, Ordering::Relaxed);
            connection_memory.closed.notify_one();
        }
    }
}

impl ConnectionMemory {
    fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Whether the connection is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Checks that the connection may be sent a buffered response of `bytes` bytes. A request that changes
    /// something checks this before the change.
    ///
    /// # Errors
    /// 503 if the connection holds its share already or is being closed. Small responses never fail.
    pub(crate) fn check(&self, bytes: usize) -> Result<(), ApiError> {
        let tracked = self.held_bytes();
        let is_over =
            tracked > 0 && tracked + bytes as u64 > self.response_memory.bytes_max / CONNECTION_DIVISOR;
        match bytes > ALWAYS_SENT_BYTES && (self.is_closing() || is_over) {
            true => Err(ApiError::unread_responses()),
            false => Ok(()),
        }
    }

    /// Counts a buffer until its last reference is dropped.
    pub(crate) fn track(self: &Arc<ConnectionMemory>, bytes: Bytes) -> Bytes {
        if bytes.len() <= SMALL_BYTES {
            return bytes;
        }
        let size = bytes.len() as u64;
        self.held_bytes.fetch_add(size, Ordering::Relaxed);
        let all = self.response_memory.held_bytes.fetch_add(size, Ordering::Relaxed) + size;
        // A single response of any size is kept, because the limits of its request bounded it.
        if all > self.response_memory.bytes_max && all > size {
            self.response_memory.close_largest();
        }
        Bytes::from_owner(TrackedBytes { bytes, connection_memory: self.clone() })
    }

    /// Waits until the connection holds less than the limit for its streams.
    pub(crate) async fn below_stream_limit(&self) {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if self.held_bytes() < STREAMED_BYTES {
                return;
            }
            released.await;
        }
    }

    /// Completes when the connection is to be closed.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }
}

impl Drop for ConnectionMemory {
    fn drop(&mut self) {
        self.response_memory.lock().open.remove(&self.number);
    }
}

/// A counted buffer.
struct TrackedBytes {
    bytes: Bytes,
    connection_memory: Arc<ConnectionMemory>,
}

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for TrackedBytes {
    fn drop(&mut self) {
        let size = self.bytes.len() as u64;
        let all = self.connection_memory.response_memory.held_bytes.fetch_sub(size, Ordering::Relaxed);
        let own = self.connection_memory.held_bytes.fetch_sub(size, Ordering::Relaxed);
        self.connection_memory.released.notify_waiters();
        // A second panic would abort the process.
        if !std::thread::panicking() {
            assert!(size <= own, "a connection released more than it held");
            assert!(size <= all, "the connections released more than they held");
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn response_memory(bytes_max: u64) -> Arc<ResponseMemory> {
        ResponseMemory::new(&Limits { response_bytes_in_flight_max: bytes_max, ..Limits::default() })
    }

    fn held_bytes(response_memory: &ResponseMemory) -> u64 {
        response_memory.held_bytes.load(Ordering::Relaxed)
    }

    fn buffer(size: usize) -> Bytes {
        vec![b'x'; size].into()
    }

    #[test]
    fn a_buffer_counts_until_its_last_reference_is_dropped() {
        let response_memory = response_memory(1 << 30);
        let connection_memory = response_memory.connection();
        let mut tracked = connection_memory.track(buffer(100_000));
        let part = tracked.split_to(10);
        let small = connection_memory.track(buffer(SMALL_BYTES));
        assert_eq!((held_bytes(&response_memory), connection_memory.held_bytes()), (100_000, 100_000));
        drop(tracked);
        assert_eq!(held_bytes(&response_memory), 100_000);
        drop(part);
        assert_eq!(
            (held_bytes(&response_memory), connection_memory.held_bytes(), small.len()),
            (0, 0, SMALL_BYTES)
        );
    }

    #[test]
    fn past_the_limit_the_connection_that_holds_the_most_is_closed() {
        let response_memory = response_memory(1_000_000);
        let (greedy, modest) = (response_memory.connection(), response_memory.connection());
        let first = [greedy.track(buffer(300_000)), greedy.track(buffer(300_000))];
        let second = modest.track(buffer(300_000));
        assert!(greedy.closed().now_or_never().is_none());
        let third = modest.track(buffer(200_000));
        assert!(greedy.closed().now_or_never().is_some() && modest.closed().now_or_never().is_none());
        assert!(greedy.is_closing() && !modest.is_closing());
        let large = ALWAYS_SENT_BYTES + 1;
        assert!(greedy.check(large).is_err() && greedy.check(1).is_ok());
        let fourth = modest.track(buffer(300_000));
        assert!(modest.closed().now_or_never().is_none(), "the first one releases enough");
        drop(fourth);
        drop((first, second, third));
        // A single response may exceed the limit.
        let whole = modest.track(buffer(2_000_000));
        assert!(modest.closed().now_or_never().is_none());
        drop((whole, greedy, modest));
        assert!(response_memory.lock().open.is_empty() && held_bytes(&response_memory) == 0);
    }

    #[test]
    fn a_connection_at_its_share_gets_small_responses_and_single_chunks() {
        let response_memory = response_memory(100 << 20);
        let connection_memory = response_memory.connection();
        assert!(connection_memory.check(80 << 20).is_ok(), "the first is given whatever its size");
        let tracked = connection_memory.track(buffer(20 << 20));
        assert_eq!(connection_memory.check(6 << 20).unwrap_err().status, 503);
        assert!(
            connection_memory.check(ALWAYS_SENT_BYTES).is_ok() && connection_memory.check(5 << 20).is_ok()
        );
        let mut waits = Box::pin(connection_memory.below_stream_limit());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(tracked);
        assert!(waits.now_or_never().is_some());
    }
}
