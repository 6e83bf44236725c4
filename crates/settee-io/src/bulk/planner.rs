//! The read planner: merges many small reads of one file into few device reads.
//!
//! One sweep over the reads in order of their offsets keeps one device read open and extends it while the
//! policy allows; a read that doesn't fit closes it and opens the next. Planning does no I/O:
//! [`File::read_many`](crate::File::read_many) and [`ReadStream`](crate::ReadStream) execute plans, [`plan`]
//! returns one.
//!
//! Invariants of a plan:
//! 1. Every byte of a value is in a device read. A device read has no other bytes, except those from rounding
//!    out to the policy's chunks.
//! 2. [`Merge::AdjacentOnly`]: each value lies whole in one device read, so it is a slice of its buffer.
//!    Bytes are read twice only if overlapping values together exceed the maximum.
//! 3. [`Merge::Chunked`]: no chunk is in two device reads. A value that spans two device reads is joined,
//!    which is the only copy made. An oversize value (one that, rounded out, exceeds the maximum by itself)
//!    is read alone: the device read before it ends where its chunks begin. It is joined only if another
//!    oversize value has its first chunk, or if values overlap it.
//! 4. No device read exceeds the maximum, except one that lies within an oversize value.
//! 5. The number of device reads is the least that 1 to 4 allow. In chunked plans whose values overlap
//!    oversize ones there may be one more for each of those.
//!
//! The fifth holds because the sweep opens a device read at the first byte not yet covered and extends it as
//! far as allowed: no other plan covers more bytes with the same number of device reads.

use std::cmp::Reverse;
use std::ops::Range;

use crate::{Alignment, OFFSET_MAX};

/// Default maximum size of a device read, in bytes.
pub const READ_SIZE_MAX: usize = 128 << 10;

/// A value to read: `length` bytes at `offset`, with a tag of the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAt<T = ()> {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
    /// Identifies the value to the caller.
    pub tag: T,
}

impl ReadAt {
    /// `length` bytes at `offset`.
    pub fn new(offset: u64, length: usize) -> ReadAt {
        ReadAt { offset, length, tag: () }
    }
}

impl<T> ReadAt<T> {
    /// Returns the value's range in the file, or `None` if it ends beyond [`OFFSET_MAX`].
    pub(crate) fn range(&self) -> Option<Range<u64>> {
        let end = self.offset.checked_add(self.length as u64).filter(|end| *end <= OFFSET_MAX)?;
        Some(self.offset..end)
    }
}

/// The rule by which reads may share a device read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// Reads that are adjacent or overlap. For buffered files.
    AdjacentOnly,
    /// Reads that are adjacent or overlap after rounding out to chunks of this size; each chunk is read once.
    /// For direct mode, and for caches of chunks.
    Chunked(Alignment),
}

/// The policy by which reads are merged into device reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPolicy {
    /// The rule by which reads may share a device read.
    pub merge: Merge,
    /// Maximum size of a device read in bytes. A larger value is read by itself. In chunked plans the maximum
    /// is rounded down to whole chunks, and is at least one chunk.
    pub read_size_max: usize,
}

impl ReadPolicy {
    /// Merges adjacent and overlapping reads, up to [`READ_SIZE_MAX`] bytes.
    pub const ADJACENT_ONLY: ReadPolicy =
        ReadPolicy { merge: Merge::AdjacentOnly, read_size_max: READ_SIZE_MAX };

    /// Reads each chunk of `alignment` once, up to [`READ_SIZE_MAX`] bytes at a time.
    pub const fn chunked(alignment: Alignment) -> ReadPolicy {
        ReadPolicy { merge: Merge::Chunked(alignment), read_size_max: READ_SIZE_MAX }
    }

    /// Returns the policy for a handle in this mode: in direct mode, chunked with chunks no smaller than the
    /// alignment.
    pub(crate) fn for_mode(self, direct: Option<Alignment>) -> ReadPolicy {
        let merge = match (self.merge, direct) {
            (merge, None) => merge,
            (Merge::AdjacentOnly, Some(alignment)) => Merge::Chunked(alignment),
            (Merge::Chunked(chunk), Some(alignment)) => Merge::Chunked(chunk.max(alignment)),
        };
        ReadPolicy { merge, ..self }
    }

    fn size_max(self) -> u64 {
        let max = self.read_size_max as u64;
        match self.merge {
            Merge::AdjacentOnly => max,
            Merge::Chunked(alignment) => alignment.down(max).max(alignment.bytes() as u64),
        }
    }

    fn rounded_out(self, value: &Range<u64>) -> Range<u64> {
        match self.merge {
            Merge::AdjacentOnly => value.clone(),
            Merge::Chunked(alignment) => alignment.down(value.start)..alignment.up(value.end),
        }
    }
}

/// A read that is submitted to the engine. Offsets and lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRead {
    /// Start of the read.
    pub offset: u64,
    /// Length of the read.
    pub length: usize,
    /// Number of bytes, from the front, up to the last one that a value needs: less than `length` if the last
    /// chunk was rounded out. A read that returned this many bytes is complete, even if the file ends within
    /// that chunk.
    pub wanted: usize,
}

impl DeviceRead {
    /// Returns the offset after its last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

/// Returns the device reads for `reads`, in order of their offsets. Empty values, and those beyond
/// [`OFFSET_MAX`], need none.
pub fn plan<T>(reads: &[ReadAt<T>], policy: ReadPolicy) -> Vec<DeviceRead> {
    let mut values: Vec<_> = reads.iter().filter_map(ReadAt::range).collect();
    values.sort_unstable_by_key(|value| (value.start, Reverse(value.end)));
    let mut planner = Planner::new(policy);
    let mut device_reads: Vec<_> = values.into_iter().filter_map(|value| planner.push(value)).collect();
    device_reads.extend(planner.finish());
    device_reads
}

/// The sweep, one value at a time. A device read is returned as soon as no later value can change it. Both
/// the offsets and the ends of the device reads increase.
#[derive(Debug)]
pub(crate) struct Planner {
    policy: ReadPolicy,
    /// The device read that can still grow, unless `sealed`.
    open: Range<u64>,
    /// Whether `open` was returned. Later values may lie in it but don't change it.
    sealed: bool,
    /// Offset after the last byte of any value so far.
    wanted_end: u64,
}

impl Planner {
    pub(crate) fn new(policy: ReadPolicy) -> Planner {
        Planner { policy, open: 0..0, sealed: true, wanted_end: 0 }
    }

    /// Adds the next value, which begins no earlier than its predecessor, and returns the device read that
    /// this makes final.
    pub(crate) fn push(&mut self, value: Range<u64>) -> Option<DeviceRead> {
        if value.is_empty() {
            return None;
        }
        let wanted_before = self.wanted_end;
        self.wanted_end = self.wanted_end.max(value.end);
        let span = self.policy.rounded_out(&value);
        if span.end <= self.open.end {
            return None;
        }
        if span.start <= self.open.start && !self.sealed {
            // It covers all of the open read.
            self.open.end = span.end;
            return None;
        }
        let open_end = self.open_end(&span);
        let rest = match self.policy.merge {
            Merge::AdjacentOnly => span.clone(),
            Merge::Chunked(_) => span.start.max(open_end)..span.end,
        };
        if open_end == span.end {
            self.open.end = open_end;
            return None;
        }
        let done = self.open.start..open_end;
        let wanted_end = if value.start < open_end { self.wanted_end } else { wanted_before };
        self.open = rest;
        let was_sealed = std::mem::replace(&mut self.sealed, false);
        (!was_sealed).then(|| device_read(&done, wanted_end))
    }

    /// Returns the end of the open read if `span`, which goes beyond it, comes next. It is the end of `span`
    /// if the open read covers all of it.
    fn open_end(&self, span: &Range<u64>) -> u64 {
        let Range { start, end } = self.open;
        let size_max = self.policy.size_max();
        let limit = start.saturating_add(size_max).max(end);
        let chunked = self.policy.merge != Merge::AdjacentOnly;
        let oversize = span.end - span.start > size_max;
        let open_oversize = end - start > size_max;
        if self.sealed || span.start > end {
            end
        } else if !chunked {
            if span.end <= limit { span.end } else { end }
        } else if !oversize {
            limit.min(span.end)
        } else if open_oversize {
            end
        } else {
            // The chunk that both need goes to the oversize value, so that a small value is joined rather
            // than a large one.
            span.start
        }
    }

    /// Returns the open read as it is, so that the values pushed so far can be read. Later values continue
    /// after it.
    pub(crate) fn seal(&mut self) -> Option<DeviceRead> {
        // Later values may need more of the last chunk.
        self.close(u64::MAX)
    }

    /// Returns the open read: there are no more values.
    pub(crate) fn finish(&mut self) -> Option<DeviceRead> {
        self.close(self.wanted_end)
    }

    fn close(&mut self, wanted_end: u64) -> Option<DeviceRead> {
        let was_sealed = std::mem::replace(&mut self.sealed, true);
        (!was_sealed).then(|| device_read(&self.open, wanted_end))
    }
}

fn device_read(range: &Range<u64>, wanted_end: u64) -> DeviceRead {
    let size = |end: u64| usize::try_from(end - range.start).expect("values fit the address space");
    DeviceRead { offset: range.start, length: size(range.end), wanted: size(wanted_end.min(range.end)) }
}

#[cfg(test)]
mod tests;
