//! A read on its way: which requests it is made of, and what they found.
//!
//! In direct mode a request is rounded out to the alignment, and what was read is handed out as a
//! slice of its buffer. One after the other, several requests serve what comes up short, and
//! what is too long for one.
//!
//! Invariant: each request brings the read nearer to its end: it finds bytes, or the file's end,
//! or is followed by a buffered request, which finds one of the two.

use std::io;

use bytes::{Buf, Bytes};

use crate::engine::{Descriptor, Operation, OperationKind, Outcome};
use crate::file::Shared;
use crate::threads::read_cached;
use crate::{AlignedBuffer, Alignment, Error, OFFSET_MAX, Result};

/// Most bytes that one request reads. A longer read is made of several, so that its memory is
/// bounded by what the file holds and not by what was asked for.
const REQUEST_SIZE_MAX: usize = 64 << 20;

/// A read of `length` bytes at `offset`, done once the first `wanted` are found.
pub(crate) struct Reading {
    offset: u64,
    length: usize,
    wanted: usize,
    /// What was found first, in place or by a request.
    first: Bytes,
    /// What was found together, where there was more.
    joined: Vec<u8>,
    at_end: bool,
    /// Direct requests got nowhere.
    buffered: bool,
}

/// What a request was for, apart from what it is rounded out by.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// How many of its first bytes are of no interest.
    head: usize,
    length: usize,
    direct: Option<Alignment>,
}

/// Reads of the range what the page cache has, in place; nothing in direct mode. What comes up
/// short, and an error, say nothing of what the medium has.
#[inline(always)]
pub(crate) fn read_in_place(shared: &Shared, offset: u64, length: usize) -> Bytes {
    if length == 0 || shared.direct().is_some() {
        return Bytes::new();
    }
    let mut buffer = AlignedBuffer::new(length.min(REQUEST_SIZE_MAX), Alignment::ONE);
    let found = match &*shared.descriptor {
        Descriptor::System(file) => shared.reads_in_place && read_cached(file, offset, &mut buffer),
        other => matches!(shared.engine.read_cached(other, offset, &mut buffer), Some(Ok(()))),
    };
    if found { buffer.into() } else { Bytes::new() }
}

impl Reading {
    /// A reading that goes on behind `first`.
    pub(crate) fn behind(first: Bytes, offset: u64, length: usize, wanted: usize) -> Reading {
        Reading { offset, length, wanted, first, joined: Vec::new(), at_end: false, buffered: false }
    }

    fn found(&self) -> &[u8] {
        if self.joined.is_empty() { &self.first } else { &self.joined }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.at_end || self.found().len() >= self.wanted
    }

    /// What was found: less than wanted only where the file ends.
    pub(crate) fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.into() }
    }

    /// The next request.
    pub(crate) fn next(&mut self, shared: &Shared) -> (Part, Operation) {
        let offset = self.offset.saturating_add(self.found().len() as u64);
        let length = (self.length - self.found().len()).min(REQUEST_SIZE_MAX);
        let direct = shared.direct().filter(|_| !self.buffered);
        if let Some(alignment) = direct
            && offset.checked_add(length as u64).is_some_and(|end| end <= OFFSET_MAX)
        {
            let start = alignment.down(offset);
            let head = (offset - start) as usize;
            let buffer = AlignedBuffer::new(head + length, alignment);
            let operation = Operation::Read { file: shared.direct_descriptor(), offset: start, buffer };
            return (Part { head, length, direct }, operation);
        }
        let part = Part { head: 0, length, direct: None };
        let buffer = AlignedBuffer::new(length, Alignment::ONE);
        (part, Operation::Read { file: shared.descriptor.clone(), offset, buffer })
    }

    /// Takes what the request found.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn settle(&mut self, shared: &Shared, part: Part, result: io::Result<Outcome>) -> Result<()> {
        match result {
            Ok(Outcome::Read { buffer }) => self.take(part, buffer),
            Ok(_) => unreachable!("read gives a buffer"),
            Err(error) if part.direct.is_some() && shared.is_refusal(&error) => self.buffered = true,
            Err(error) => return Err(Error::io(OperationKind::Read, &shared.path, error)),
        }
        Ok(())
    }

    fn take(&mut self, part: Part, buffer: AlignedBuffer) {
        let count = buffer.len();
        // A direct read comes up short by whole sectors, but at the end of the file.
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
