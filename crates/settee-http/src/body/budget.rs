//! Parses bodies within a budget, and large ones off the request's task.
//!
//! Parsed text with many small items takes a multiple of its size. The parser charges each item to the body's
//! permit before it allocates the item ([`BodyBudget`]).

use std::sync::Arc;

use bytes::Bytes;
use settee_doc::Edit;

use super::buffer::BufferedBody;
use super::memory::{BodyMemory, MemoryPermit};
use crate::blocking;
use crate::error::ApiError;

/// Minimum bytes that a separate small allocation takes.
pub(crate) const ALLOCATION_BYTES: usize = 32;

/// A full list doubles its capacity up to this many items; a longer one grows by this many or by a quarter,
/// whichever is more.
const DOUBLED_MAX: usize = 1024;

/// Parsed values may take this many times the bytes of the text, after decompression, or [`PARSED_BYTES_MIN`]
/// if that is more.
const PARSED_PER_BYTE: u64 = 3;

/// Bytes that parsed values may take in any case. See [`PARSED_PER_BYTE`].
const PARSED_BYTES_MIN: u64 = 64 << 20;

/// Largest text in bytes that is parsed in the request's own task. A longer one is parsed on a blocking
/// thread, so that it doesn't delay other tasks.
pub(crate) const PARSE_INLINE_BYTES: usize = 1 << 20;

/// The memory that a parser may use besides the text, charged item by item.
pub(crate) struct BodyBudget {
    /// None for a text that is always small.
    body_memory: Option<Arc<BodyMemory>>,
    permit: MemoryPermit,
    /// Bytes that may still be charged.
    bytes_left: u64,
}

impl BodyBudget {
    /// A budget that charges nothing, for text from a request head or a test.
    pub(crate) fn unlimited() -> BodyBudget {
        BodyBudget { body_memory: None, permit: MemoryPermit::default(), bytes_left: u64::MAX }
    }

    /// Charges `count` items of `bytes_each` bytes.
    ///
    /// # Errors
    /// 413 if the items exceed the budget for the text's length, or the memory could never hold them besides
    /// the text; 503 if the memory is exhausted.
    pub(crate) fn charge(&mut self, count: usize, bytes_each: usize) -> Result<(), ApiError> {
        let bytes = (count as u64).saturating_mul(bytes_each as u64);
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(ApiError::body_too_large)?;
        match &self.body_memory {
            Some(body_memory) => body_memory.add(&mut self.permit, bytes),
            None => Ok(()),
        }
    }

    /// Appends an item that takes `more_bytes` besides its slot in the list. The growth of the list is
    /// charged, too.
    ///
    /// # Errors
    /// As for [`BodyBudget::charge`].
    pub(crate) fn push<T>(&mut self, item: T, more_bytes: usize, list: &mut Vec<T>) -> Result<(), ApiError> {
        if list.len() == list.capacity() {
            let more = list.len().clamp(1, DOUBLED_MAX.max(list.len() / 4));
            self.charge(more, size_of::<T>())?;
            list.reserve_exact(more);
        }
        self.charge(1, more_bytes)?;
        list.push(item);
        Ok(())
    }
}

/// Parses a text: up to `inline_bytes` in the request's own task, a longer one on a blocking thread.
///
/// # Errors
/// Those of `parse`; 500 if it panics.
async fn parse_from<T: Send + 'static>(
    inline_bytes: usize,
    text: &Bytes,
    parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if text.len() <= inline_bytes {
        return parse(text);
    }
    let text = text.clone();
    blocking::run(move || parse(&text)).await?
}

/// Parses a body's text and returns the result with the permit for its memory. The result's memory is charged
/// to the body's budget.
///
/// # Errors
/// Those of `parse_text`; 500 if it panics.
pub(crate) async fn parse_buffered<T: Send + 'static>(
    body: BufferedBody,
    body_memory: &Arc<BodyMemory>,
    parse_text: impl FnOnce(&[u8], &mut BodyBudget) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, MemoryPermit), ApiError> {
    parse_buffered_from(PARSE_INLINE_BYTES, body, body_memory, parse_text).await
}

/// As [`parse_buffered`], with `inline_bytes` instead of [`PARSE_INLINE_BYTES`].
pub(crate) async fn parse_buffered_from<T: Send + 'static>(
    inline_bytes: usize,
    body: BufferedBody,
    body_memory: &Arc<BodyMemory>,
    parse_text: impl FnOnce(&[u8], &mut BodyBudget) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, MemoryPermit), ApiError> {
    let BufferedBody { text, permit } = body;
    let bytes_left = PARSED_BYTES_MIN.max((text.len() as u64).saturating_mul(PARSED_PER_BYTE));
    let mut budget = BodyBudget { body_memory: Some(body_memory.clone()), permit, bytes_left };
    let parse_charged = move |text: &[u8]| Ok((parse_text(text, &mut budget)?, budget.permit));
    parse_from(inline_bytes, &text, parse_charged).await
}

/// Parses a document's text into an edit.
pub(crate) fn parse_edit(
    text: &[u8],
    options: &settee_doc::Options,
    budget: &mut BodyBudget,
) -> Result<Edit, ApiError> {
    Edit::parse_within(text, options, &mut |bytes| budget.charge(1, bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn parsing_a_large_text_does_not_block_other_tasks() {
        let text = Bytes::from(vec![b' '; PARSE_INLINE_BYTES + 1]);
        let (send, receive) = mpsc::channel();
        let waits = move |_: &[u8]| Ok(receive.recv_timeout(Duration::from_secs(60)).is_ok());
        let (others_ran, _) =
            tokio::join!(parse_from(PARSE_INLINE_BYTES, &text, waits), async { send.send(()) });
        assert!(others_ran.unwrap());
    }
}
