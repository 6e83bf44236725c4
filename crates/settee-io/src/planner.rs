//! The read planner: many small reads of one file become few device reads.
//!
//! One sweep over the reads in order of their offset keeps one device read open and grows it
//! while the policy allows; what doesn't fit closes it and opens the next. Planning does no I/O:
//! [`File::read_many`](crate::File::read_many) and [`ReadStream`](crate::ReadStream) carry plans
//! out, [`plan`] shows one.
//!
//! Invariants of a plan:
//! 1. Every byte that a value wants is in a device read, and a device read has no byte that no
//!    value wants but for what rounding to the policy's chunks adds.
//! 2. [`Merge::AdjacentOnly`]: each value lies whole in one device read, so that it is a slice of
//!    it. Bytes are read twice only where overlapping values exceed the maximum together.
//! 3. [`Merge::Chunked`]: no chunk is in two device reads. A value across the edge of two is
//!    joined, the only copy made. An oversize value (one that exceeds the maximum by itself,
//!    rounded out) is read alone: its chunks are cut from what came before. It is joined only
//!    where another oversize value has its first chunk, or values overlap it.
//! 4. No device read is larger than the maximum but for one that lies within an oversize value.
//! 5. There are as few device reads as 1 to 4 allow; chunked, where values overlap oversize ones,
//!    at most one more for each of those.
//!
//! The fifth holds since the sweep opens at the first byte not yet served and goes on as far as
//! is allowed: no other plan has come further by as many device reads.

use std::cmp::Reverse;
use std::ops::Range;

use crate::{ALIGNMENT_MAX, Alignment};

/// The default maximum of a device read in bytes.
pub const READ_SIZE_MAX: usize = 128 << 10;

/// Where files end at the latest: values beyond are past the end of any file, and offsets can
/// be rounded up to any alignment without leaving what the system takes (`off_t`).
pub const OFFSET_MAX: u64 = i64::MAX as u64 & !(ALIGNMENT_MAX as u64 - 1);

/// One value that a caller wants: `length` bytes at `offset`, and whatever the caller wants to
/// know it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAt<T = ()> {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: usize,
    /// The caller's own.
    pub tag: T,
}

impl ReadAt {
    /// `length` bytes at `offset`.
    pub fn new(offset: u64, length: usize) -> ReadAt {
        ReadAt { offset, length, tag: () }
    }
}

impl<T> ReadAt<T> {
    /// The value's bytes in the file; `None` where no file is as long.
    pub(crate) fn range(&self) -> Option<Range<u64>> {
        let end = self.offset.checked_add(self.length as u64).filter(|end| *end <= OFFSET_MAX)?;
        Some(self.offset..end)
    }
}

/// Which reads may share a device read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// Those that touch or overlap. For buffered files.
    AdjacentOnly,
    /// Those that touch or overlap after rounding out to chunks of this size, each of which is
    /// read once. For direct mode, and for caches of chunks.
    Chunked(Alignment),
}

/// How reads become device reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPolicy {
    /// Which reads may share a device read.
    pub merge: Merge,
    /// The maximum of a device read in bytes. A value that exceeds it passes alone. Chunked, it
    /// is rounded down to whole chunks, and is one chunk at least.
    pub read_size_max: usize,
}

impl ReadPolicy {
    /// Merges what touches, up to [`READ_SIZE_MAX`].
    pub const ADJACENT_ONLY: ReadPolicy =
        ReadPolicy { merge: Merge::AdjacentOnly, read_size_max: READ_SIZE_MAX };

    /// Reads each chunk of `alignment` once, up to [`READ_SIZE_MAX`].
    pub const fn chunked(alignment: Alignment) -> ReadPolicy {
        ReadPolicy { merge: Merge::Chunked(alignment), read_size_max: READ_SIZE_MAX }
    }

    /// The policy for a handle in direct mode of this alignment: its chunks are no smaller.
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

/// One read for the engine. Offsets and lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRead {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: usize,
    /// How many of its bytes, from the front, values want at the most: less than `length` where
    /// the last chunk was rounded out. One that got as many is done, also where the file ends
    /// within that chunk.
    pub wanted: usize,
}

impl DeviceRead {
    /// The offset behind its last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

/// The device reads for `reads`, in order of their offsets. Empty values, and those that no file
/// is long enough for, need none.
pub fn plan<T>(reads: &[ReadAt<T>], policy: ReadPolicy) -> Vec<DeviceRead> {
    let mut values: Vec<_> = reads.iter().filter_map(ReadAt::range).collect();
    values.sort_unstable_by_key(|value| (value.start, Reverse(value.end)));
    let mut planner = Planner::new(policy);
    let mut device_reads: Vec<_> = values.into_iter().filter_map(|value| planner.push(value)).collect();
    device_reads.extend(planner.finish());
    device_reads
}

/// The sweep, one value at a time: device reads come out in order, the ends of each behind those
/// of the one before, as soon as no later value can change them.
#[derive(Debug)]
pub(crate) struct Planner {
    policy: ReadPolicy,
    /// The device read that can still grow, unless it is `sealed`.
    open: Range<u64>,
    /// `open` was given out. What comes may lie in it but not change it.
    sealed: bool,
    /// Behind the last byte that any value wants.
    wanted_end: u64,
}

impl Planner {
    pub(crate) fn new(policy: ReadPolicy) -> Planner {
        Planner { policy, open: 0..0, sealed: true, wanted_end: 0 }
    }

    /// Takes the next value, which begins no earlier than the last one, and gives the device
    /// read that is final by it.
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
            // It holds all that is open.
            self.open.end = span.end;
            return None;
        }
        let cut = self.cut(&span);
        let rest = match self.policy.merge {
            Merge::AdjacentOnly => span.clone(),
            Merge::Chunked(_) => span.start.max(cut)..span.end,
        };
        if cut == span.end {
            self.open.end = cut;
            return None;
        }
        let done = self.open.start..cut;
        let wanted_end = if value.start < cut { self.wanted_end } else { wanted_before };
        self.open = rest;
        let was_sealed = std::mem::replace(&mut self.sealed, false);
        (!was_sealed).then(|| device_read(&done, wanted_end))
    }

    /// Where the open read ends, given that `span` comes next and goes beyond: at the end of
    /// `span` where it takes all of it.
    fn cut(&self, span: &Range<u64>) -> u64 {
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
            // The chunk that both want goes to the oversize value: few small values are joined
            // rather than a large one.
            span.start
        }
    }

    /// Gives out the open read as it is, so that what was pushed can be read. Later values go on
    /// behind it.
    pub(crate) fn seal(&mut self) -> Option<DeviceRead> {
        // What comes may want more of the last chunk.
        self.close(u64::MAX)
    }

    /// Gives out the open read: there are no more values.
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
