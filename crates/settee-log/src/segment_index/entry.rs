//! The entries of a segment index, one for each record.

use crate::format::Flags;
use crate::types::{Location, Seq};

/// A segment index's entry for one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The record's `Seq`.
    pub seq: Seq,
    /// The record's flags.
    pub flags: Flags,
    /// The key.
    pub key: &'a [u8],
    /// The meta.
    pub meta: &'a [u8],
    /// Location of the record.
    pub location: Location,
}

impl EntryRef<'_> {
    /// An owned copy.
    pub fn to_entry(&self) -> Entry {
        Entry {
            seq: self.seq,
            flags: self.flags,
            key: self.key.to_vec(),
            meta: self.meta.to_vec(),
            location: self.location,
        }
    }
}

/// An owned [`EntryRef`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The record's `Seq`.
    pub seq: Seq,
    /// The record's flags.
    pub flags: Flags,
    /// The key.
    pub key: Vec<u8>,
    /// The meta.
    pub meta: Vec<u8>,
    /// Location of the record.
    pub location: Location,
}
