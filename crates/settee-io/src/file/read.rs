//! A read in progress: the requests that it consists of, and the bytes that they found.
//!
//! In direct mode a request is rounded out to the alignment, and the result is a slice of its buffer. A read
//! that comes up short, or that is too long for one request, issues several, one after the other.
//!
//! Invariant: each request makes progress. It finds bytes, or the end of the file, or is followed by a
//! buffered request, which finds one of the two.

use std::io;

use bytes::{Buf, Bytes};

use crate::engine::operation::{Descriptor, Operation, OperationKind, Outcome};
use crate::engine::threads::read_cached;
use crate::file::open::OpenFile;
use crate::{AlignedBuffer, Alignment, Error, OFFSET_MAX, Result};

/// Most bytes that one request reads. A longer read issues several, so its memory is bounded by the size of
/// the file and not by the requested length.
const REQUEST_SIZE_MAX: usize = 64 << 20;

/// A read of `length` bytes at `offset` that is done once the first `wanted` are found.
pub(crate) struct PendingRead {
    offset: u64,
    length: usize,
    wanted: usize,
    /// The bytes found first, in the page cache or by a request.
    first: Bytes,
    /// All bytes found, if more than one request found some; else empty.
    joined: Vec<u8>,
    /// Whether the end of the file was found.
    at_end: bool,
    /// Whether later requests are buffered, because a direct one made no progress.
    buffered: bool,
}

/// The part of the read that a request is for, without the bytes from rounding out.
#[derive(Clone, Copy)]
pub(crate) struct RequestRange {
    /// Bytes at the front of the request that the read doesn't need.
    head: usize,
    length: usize,
    direct: Option<Alignment>,
}

/// Reads the part at the front of the range that the page cache holds; nothing in direct mode. Fewer bytes,
/// or none after an error, say nothing about the medium.
#[inline(always)]
pub(crate) fn read_in_place(file: &OpenFile, offset: u64, length: usize) -> Bytes {
    if length == 0 || file.direct().is_some() {
        return Bytes::new();
    }
    let mut buffer = AlignedBuffer::new(length.min(REQUEST_SIZE_MAX), Alignment::ONE);
    let found = match &*file.descriptor {
        Descriptor::System(system) => file.reads_in_place && read_cached(system, offset, &mut buffer),
        other => matches!(file.engine.read_cached(other, offset, &mut buffer), Some(Ok(()))),
    };
    if found { buffer.into() } else { Bytes::new() }
}

impl PendingRead {
    /// Continues after `first`.
    pub(crate) fn new(first: Bytes, offset: u64, length: usize, wanted: usize) -> PendingRead {
        PendingRead { offset, length, wanted, first, joined: Vec::new(), at_end: false, buffered: false }
    }

    fn found(&self) -> &[u8] {
        if self.joined.is_empty() { &self.first } else { &self.joined }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.at_end || self.found().len() >= self.wanted
    }

    /// Returns the bytes found: fewer than `wanted` only if the file ends.
    pub(crate) fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.into() }
    }

    /// Returns the next request, and the range that it is for.
    pub(crate) fn next(&mut self, file: &OpenFile) -> (RequestRange, Operation) {
        let offset = self.offset.saturating_add(self.found().len() as u64);
        let length = (self.length - self.found().len()).min(REQUEST_SIZE_MAX);
        let direct = file.direct().filter(|_| !self.buffered);
        if let Some(alignment) = direct
            && offset.checked_add(length as u64).is_some_and(|end| end <= OFFSET_MAX)
        {
            let start = alignment.down(offset);
            let head = (offset - start) as usize;
            let buffer = AlignedBuffer::new(head + length, alignment);
            let operation = Operation::Read { file: file.direct_descriptor(), offset: start, buffer };
            return (RequestRange { head, length, direct }, operation);
        }
        let part = RequestRange { head: 0, length, direct: None };
        let buffer = AlignedBuffer::new(length, Alignment::ONE);
        (part, Operation::Read { file: file.descriptor.clone(), offset, buffer })
    }

    /// Adds the bytes that the request found.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn finish_request(
        &mut self,
        file: &OpenFile,
        part: RequestRange,
        result: io::Result<Outcome>,
    ) -> Result<()> {
        match result {
            Ok(Outcome::Read { buffer }) => self.add(part, buffer),
            Ok(_) => unreachable!("read returns a buffer"),
            Err(error) if part.direct.is_some() && file.is_refusal(&error) => self.buffered = true,
            Err(error) => return Err(Error::io(OperationKind::Read, &file.path, error)),
        }
        Ok(())
    }

    fn add(&mut self, part: RequestRange, buffer: AlignedBuffer) {
        let count = buffer.len();
        // Except at the end of the file, a short direct read is short by whole sectors.
        self.at_end = count == 0 || part.direct.is_some_and(|alignment| !alignment.divides(count as u64));
        if count <= part.head {
            self.buffered = true;
            return;
        }
        let mut bytes = Bytes::from(buffer);
        bytes.advance(part.head);
        bytes.truncate(part.length);
        if self.found().is_empty() {
            self.first = bytes;
        } else {
            if self.joined.is_empty() {
                self.joined = self.first.to_vec();
            }
            self.joined.extend_from_slice(&bytes);
        }
    }
}
