//! Entries as readers receive them: [`Entry`] owns its bytes, [`EntryRef`] borrows them from a scan.

use settee_log::Seq;

use super::format::EntryView;
use super::location::{Location, Pointer, until_base};

/// A key's index entry. Its value has not been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The meta of the newest record.
    pub meta: Vec<u8>,
    /// Location of the newest record.
    pub location: Location,
    /// Whether [`Snapshot::scan_by_seq`](crate::Snapshot::scan_by_seq) returns it.
    pub in_seq_index: bool,
    /// Whether the newest record is a base value, which needs no older record.
    pub(crate) is_base: bool,
    /// Older records of the value, newest first.
    pub(crate) older: Vec<Pointer>,
}

impl Entry {
    pub(crate) fn new(view: &EntryView<'_>) -> Entry {
        Entry {
            meta: view.meta.to_vec(),
            location: view.location,
            in_seq_index: view.is_in_seq_index(),
            is_base: view.is_base(),
            older: view.all_pointers().skip(1).collect(),
        }
    }

    /// Adds the records of an older entry of the same key.
    pub(crate) fn gather(found: &mut Option<Entry>, view: &EntryView<'_>) {
        match found {
            None if view.is_tombstone() => {}
            None => *found = Some(Entry::new(view)),
            Some(entry) => entry.older.extend(view.all_pointers()),
        }
    }

    /// The `Seq` of the newest record.
    pub fn seq(&self) -> Seq {
        Seq(self.location.seq)
    }

    /// The records that make up the value, newest first: up to the first base value, or all there are.
    pub fn pointers(&self) -> impl Iterator<Item = Pointer> {
        until_base(self.all_pointers())
    }

    /// The records that made up the value at `seq`, newest first; `None` if the index no longer holds them
    /// all.
    pub fn pointers_at(&self, seq: Seq) -> Option<Vec<Pointer>> {
        let pointers = self.all_pointers().skip_while(|pointer| pointer.location.seq > seq.0);
        let pointers: Vec<_> = until_base(pointers).collect();
        pointers.last().is_some_and(|oldest| oldest.is_base).then_some(pointers)
    }

    fn all_pointers(&self) -> impl Iterator<Item = Pointer> {
        let newest = Pointer { location: self.location, is_base: self.is_base };
        std::iter::once(newest).chain(self.older.iter().copied())
    }
}

/// An [`Entry`] with its key, borrowed from the scan that found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The meta of the newest record.
    pub meta: &'a [u8],
    /// Location of the newest record.
    pub location: Location,
    view: EntryView<'a>,
    /// Records of older memtables or the tree, which follow those of `view`.
    older: &'a [Pointer],
}

impl<'a> EntryRef<'a> {
    pub(crate) fn new(key: &'a [u8], view: EntryView<'a>, older: &'a [Pointer]) -> EntryRef<'a> {
        EntryRef { key, meta: view.meta, location: view.location, view, older }
    }

    /// Copies the entry.
    pub fn to_entry(&self) -> Entry {
        let mut entry = Entry::new(&self.view);
        entry.older.extend_from_slice(self.older);
        entry
    }

    /// The `Seq` of the newest record.
    pub fn seq(&self) -> Seq {
        Seq(self.location.seq)
    }

    /// As [`Entry::pointers`].
    pub fn pointers(&self) -> impl Iterator<Item = Pointer> + use<'a> {
        until_base(self.view.all_pointers().chain(self.older.iter().copied()))
    }
}
