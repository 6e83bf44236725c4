//! A body in memory, with the permit under which it is held.

use bytes::Bytes;

use super::memory::{BodyMemory, MemoryPermit};
use crate::error::ApiError;

/// A body with its memory permit, which lives as long as the value parsed from the body.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    pub(crate) text: Bytes,
    pub(crate) permit: MemoryPermit,
}

/// A body buffer that grows with the bytes that arrive, not with the declared length.
pub(crate) struct BodyBuffer {
    whole: Vec<u8>,
    permit: MemoryPermit,
    bytes_max: u64,
    may_wait: bool,
}

impl BodyBuffer {
    /// An empty buffer for at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> BodyBuffer {
        BodyBuffer { whole: Vec::new(), permit: MemoryPermit::default(), bytes_max, may_wait: true }
    }

    /// An empty buffer in the memory of a permit, limited only by all of the memory.
    pub(crate) fn with_permit(permit: MemoryPermit) -> BodyBuffer {
        BodyBuffer { permit: permit.with_zero_used(), ..BodyBuffer::new(u64::MAX) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.whole
    }

    pub(crate) fn len(&self) -> usize {
        self.whole.len()
    }

    /// For a request that has another permit already: it is refused instead of waiting for memory.
    pub(crate) fn without_waiting(self) -> BodyBuffer {
        BodyBuffer { may_wait: false, ..self }
    }

    /// Appends bytes, and waits for memory if there is none.
    ///
    /// # Errors
    /// 413 past `bytes_max` or all of the memory, 503 if the memory is exhausted.
    pub(crate) async fn extend(&mut self, bytes: &[u8], body_memory: &BodyMemory) -> Result<(), ApiError> {
        let size = (self.whole.len() + bytes.len()) as u64;
        if size > self.bytes_max {
            return Err(ApiError::body_too_large());
        }
        if size > body_memory.bytes() {
            return Err(ApiError::exceeds_memory());
        }
        if size > self.whole.capacity() as u64 {
            // At most the reserve, which is guaranteed to one body, as long as the reserve suffices.
            let capacity = (2 * size).min(body_memory.body_bytes_max().max(size + size / 8));
            let capacity = capacity.min(self.bytes_max).min(body_memory.bytes());
            match self.may_wait {
                true => body_memory.grow(&mut self.permit, capacity).await?,
                false => {
                    let more = capacity - self.permit.bytes();
                    body_memory.add(&mut self.permit, more)?;
                }
            }
            self.whole.reserve_exact(usize::try_from(capacity).unwrap_or(usize::MAX) - self.whole.len());
        }
        self.whole.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the collected body.
    pub(crate) fn finish(self) -> BufferedBody {
        BufferedBody { text: self.whole.into(), permit: self.permit }
    }
}
