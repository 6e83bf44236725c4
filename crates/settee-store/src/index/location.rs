//! Locations of records in the log, and pointers to the records that make up a value.

use settee_log::Seq;

/// Largest number of records that make up a key's value, the base value included.
pub const OPERAND_COUNT_MAX: usize = 32;

/// Where the log first stored a record. It never changes; after compaction the rewritten segment translates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The update number.
    pub seq: u64,
    /// The segment's number.
    pub segment: u32,
    /// Offset of the record in its segment, in bytes.
    pub offset: u32,
    /// Size of the record in bytes.
    pub length: u32,
}

impl Location {
    /// The location of the record `seq`, which the log found at `at`.
    pub(crate) fn in_log(seq: Seq, at: settee_log::Location) -> Location {
        Location { seq: seq.0, segment: at.segment, offset: at.offset, length: at.length }
    }

    /// Where the log first stored the record.
    pub(crate) fn at(&self) -> settee_log::Location {
        let Location { segment, offset, length, .. } = *self;
        settee_log::Location { segment, offset, length }
    }

    /// The record's update number.
    pub fn seq(&self) -> Seq {
        Seq(self.seq)
    }
}

/// A pointer to one record of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// The record's location.
    pub location: Location,
    /// Whether the record is a base value, which needs no older record.
    pub is_base: bool,
}

/// The records, given newest first, up to the first base value.
pub(crate) fn until_base(pointers: impl Iterator<Item = Pointer>) -> impl Iterator<Item = Pointer> {
    let mut done = false;
    pointers.take_while(move |pointer| {
        let is_needed = !done;
        done |= pointer.is_base;
        is_needed
    })
}
