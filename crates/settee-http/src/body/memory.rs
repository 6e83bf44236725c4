//! The memory that all request bodies share, and the permits under which they hold parts of it.
//!
//! A part of the memory is a reserve for the largest body that isn't spooled, and has one owner at a time. A
//! permit that finds the rest exhausted waits for released memory or for the reserve, whichever comes first.
//!
//! Invariant: no two bodies wait for each other's memory, because the owner of the reserve never waits for
//! memory.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;
use crate::limits::Limits;

/// Largest body in bytes that needs no permit, so that small writes don't wait for large ones. There are
/// never more of them than requests in flight.
pub(super) const SMALL_BODY_BYTES: u64 = 16 << 10;

/// Largest body in bytes that stays in memory although it may be spooled. Memory may hold a larger one, but a
/// bulk request in memory takes several times its size, and a spooled one only a group of its documents.
const IN_MEMORY_BYTES_MAX: u64 = 32 << 20;

/// Granularity of memory permits in bytes.
const UNIT_BYTES: u64 = 1 << 10;

/// The memory for request bodies.
pub(crate) struct BodyMemory {
    /// The memory without the reserve, in units.
    units: Arc<Semaphore>,
    /// One permit, for the whole reserve.
    reserve: Arc<Semaphore>,
    reserve_bytes: u64,
    /// All of the memory, the reserve included.
    bytes: u64,
    wait_timeout: Duration,
}

/// A part of the memory for bodies; empty for a small body. Dropping it releases the memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryPermit {
    units: Option<OwnedSemaphorePermit>,
    reserve: Option<OwnedSemaphorePermit>,
    /// Bytes that are held under this permit.
    bytes: u64,
}

impl MemoryPermit {
    /// Releases all of this permit's memory if it owns the reserve, and returns an empty permit; otherwise
    /// returns this permit. Called before waiting for something other than memory.
    pub(crate) fn release_if_reserve_owner(self) -> MemoryPermit {
        if self.reserve.is_some() { MemoryPermit::default() } else { self }
    }

    /// This permit with its memory, of which no byte is used.
    pub(crate) fn with_zero_used(self) -> MemoryPermit {
        MemoryPermit { bytes: 0, ..self }
    }

    /// Bytes that are held under this permit.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn merge(&mut self, taken: OwnedSemaphorePermit) {
        match &mut self.units {
            Some(units) => units.merge(taken),
            none => *none = Some(taken),
        }
    }
}

impl BodyMemory {
    /// Memory whose reserve holds one body of the largest size, but takes at most half of the memory.
    pub(crate) fn new(limits: &Limits) -> BodyMemory {
        let bytes = limits.request_bytes_in_flight_max;
        let reserve_bytes = limits.request_bytes_max.min(bytes / 2);
        let units = usize::try_from(units(bytes - reserve_bytes)).unwrap_or(usize::MAX);
        BodyMemory {
            units: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            reserve: Arc::new(Semaphore::new(1)),
            reserve_bytes,
            bytes,
            wait_timeout: Duration::from_millis(limits.body_timeout_ms),
        }
    }

    /// All of the memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that one body is guaranteed to get eventually, whatever other bodies hold.
    pub(crate) fn body_bytes_max(&self) -> u64 {
        self.reserve_bytes
    }

    /// As [`IN_MEMORY_BYTES_MAX`], but at most the memory guaranteed to one body.
    pub(super) fn in_memory_bytes_max(&self) -> u64 {
        self.reserve_bytes.min(IN_MEMORY_BYTES_MAX)
    }

    /// Extends a permit to `bytes` in all, but at most to all of the memory; waits up to `body_timeout_ms`
    /// for it. A request waits with at most one permit; it extends its others with [`BodyMemory::add`].
    ///
    /// # Errors
    /// 503 if no memory becomes free in time.
    pub(crate) async fn grow(&self, permit: &mut MemoryPermit, bytes: u64) -> Result<(), ApiError> {
        let bytes = bytes.min(self.bytes);
        let Err(missing) = self.try_grow(permit, bytes) else { return Ok(()) };
        if permit.reserve.is_some() {
            return Err(ApiError::no_body_memory());
        }
        let either = async {
            tokio::select! {
                taken = self.units.clone().acquire_many_owned(missing) => (taken.ok(), None),
                taken = self.reserve.clone().acquire_owned() => (None, taken.ok()),
            }
        };
        let (taken, reserve) =
            tokio::time::timeout(self.wait_timeout, either).await.map_err(|_| ApiError::no_body_memory())?;
        permit.reserve = reserve;
        if let Some(taken) = taken {
            permit.merge(taken);
        }
        self.try_grow(permit, bytes).map_err(|_| ApiError::no_body_memory())
    }

    /// Extends a permit by `bytes`. Never waits.
    ///
    /// # Errors
    /// 413 if the memory could never hold them, 503 if it is exhausted.
    pub(crate) fn add(&self, permit: &mut MemoryPermit, bytes: u64) -> Result<(), ApiError> {
        let new_total = permit.bytes.saturating_add(bytes);
        match new_total <= self.bytes {
            true => self.try_grow(permit, new_total).map_err(|_| ApiError::no_body_memory()),
            false => Err(ApiError::body_too_large()),
        }
    }

    /// Extends a permit to `bytes` in all if that needs no waiting.
    ///
    /// # Errors
    /// The number of missing units. The permit is unchanged, except that it may have got the reserve.
    fn try_grow(&self, permit: &mut MemoryPermit, bytes: u64) -> Result<(), u32> {
        let held_bytes = permit.units.as_ref().map_or(0, |units| units.num_permits() as u64 * UNIT_BYTES);
        let reserved = if permit.reserve.is_some() { self.reserve_bytes } else { 0 };
        if bytes <= SMALL_BODY_BYTES || bytes <= held_bytes + reserved {
            permit.bytes = permit.bytes.max(bytes);
            self.check(permit);
            return Ok(());
        }
        let missing = units(bytes - held_bytes - reserved);
        if let Ok(taken) = self.units.clone().try_acquire_many_owned(missing) {
            permit.merge(taken);
        } else if permit.reserve.is_none()
            && let Ok(reserve) = self.reserve.clone().try_acquire_owned()
        {
            permit.reserve = Some(reserve);
            return self.try_grow(permit, bytes);
        } else {
            return Err(missing);
        }
        permit.bytes = permit.bytes.max(bytes);
        self.check(permit);
        Ok(())
    }

    /// Verifies that a permit's memory holds its bytes, and that the reserve was returned once at most.
    fn check(&self, permit: &MemoryPermit) {
        let owned = permit.units.as_ref().map_or(0, |units| units.num_permits() as u64 * UNIT_BYTES);
        let reserved = if permit.reserve.is_some() { self.reserve_bytes } else { 0 };
        assert!(
            permit.bytes <= SMALL_BODY_BYTES.max(owned + reserved),
            "a body without a permit for its bytes"
        );
        assert!(self.reserve.available_permits() <= 1, "the reserve has one owner");
    }
}

/// The number of units that hold `bytes`.
fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use hyper::header;

    use super::*;
    use crate::body::{BufferedBody, parse_buffered};

    /// Memory of 100 units, of which 40 are the reserve.
    fn body_memory() -> BodyMemory {
        BodyMemory::new(&Limits {
            request_bytes_in_flight_max: 100 * UNIT_BYTES,
            request_bytes_max: 40 * UNIT_BYTES,
            ..Limits::default()
        })
    }

    fn is_free(body_memory: &BodyMemory) -> bool {
        body_memory.units.available_permits() == 60 && body_memory.reserve.available_permits() == 1
    }

    fn status<T>(result: Result<T, ApiError>) -> Option<u16> {
        result.err().map(|failure| failure.status.as_u16())
    }

    async fn grown(body_memory: &BodyMemory, kib: u64) -> MemoryPermit {
        let mut permit = MemoryPermit::default();
        body_memory.grow(&mut permit, kib * UNIT_BYTES).await.unwrap();
        permit
    }

    #[tokio::test]
    async fn a_body_that_finds_no_memory_waits_and_small_ones_do_not() {
        let body_memory = body_memory();
        let first = grown(&body_memory, 60).await;
        let second = grown(&body_memory, 40).await;
        let mut third = Box::pin(grown(&body_memory, 40));
        assert!(third.as_mut().now_or_never().is_none(), "it got memory that is in use");
        assert!(grown(&body_memory, SMALL_BODY_BYTES / UNIT_BYTES).now_or_never().is_some());
        drop(second);
        assert!(third.now_or_never().is_some(), "released memory is free");
        drop(first);
        assert!(is_free(&body_memory));
    }

    #[tokio::test]
    async fn bodies_that_grow_concurrently_never_deadlock() {
        let body_memory = Arc::new(body_memory());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let body_memory = body_memory.clone();
            tasks.spawn(async move {
                let mut permit = MemoryPermit::default();
                for kib in 1..=40 {
                    body_memory.grow(&mut permit, kib * UNIT_BYTES).await.unwrap();
                    tokio::task::yield_now().await;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert!(is_free(&body_memory));
    }

    #[tokio::test]
    async fn parsed_text_is_charged_to_the_memory_for_bodies() {
        let body_memory = Arc::new(body_memory());
        let body = || BufferedBody {
            text: Bytes::from_static(b"[]"),
            permit: MemoryPermit { bytes: 2, ..MemoryPermit::default() },
        };
        let charged =
            |count| parse_buffered(body(), &body_memory, move |_, budget| budget.charge(count, 1_000));
        let ((), permit) = charged(50).await.unwrap();
        assert_eq!(body_memory.units.available_permits(), 11, "50,002 bytes are 49 units");
        assert_eq!(status(charged(100).await), Some(503), "it may be tried again");
        assert_eq!(status(charged(103).await), Some(413), "it never fits");
        assert_eq!(status(charged(usize::MAX).await), Some(413));
        drop(permit);
        assert!(charged(100).await.is_ok());
        assert!(is_free(&body_memory));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_finds_no_memory_in_time_is_refused_and_can_be_tried_again() {
        let body_memory = body_memory();
        let all = grown(&body_memory, 100).await;
        let refused = body_memory.grow(&mut MemoryPermit::default(), 20 * UNIT_BYTES).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.header), (503, Some((header::RETRY_AFTER, "1"))));
        drop(all);
        assert!(grown(&body_memory, 100).now_or_never().is_some());
    }
}
