//! Index entries, which have the same bytes in a memtable and in the tree.
//!
//! An entry holds the location, the flags and the meta of a key's newest record. If that is a merge operand,
//! pointers to older records follow, newest first, up to the base value (`is_base`): the operand chain.
//! Numbers are LEB128; the format is in `docs/format.md`.

use settee_log::Flags;

use super::location::{Location, Pointer, until_base};

/// The key is removed; its previous entry is hidden.
const TOMBSTONE: u8 = 1;

/// The entry is also in the seq index.
const IN_SEQ_INDEX: u8 = 2;

/// The newest record is a merge operand, and needs the older ones.
const OPERAND: u8 = 4;

/// Pointers to older records follow.
const HAS_OLDER: u8 = 8;

/// An entry, borrowed from its encoded bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryView<'a> {
    flags: u8,
    pub location: Location,
    older: &'a [u8],
    pub meta: &'a [u8],
}

impl<'a> EntryView<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<EntryView<'a>> {
        let mut reader = Reader(bytes);
        let flags = reader.byte()?;
        let location = reader.location()?;
        let mut older: &[u8] = &[];
        if flags & HAS_OLDER != 0 {
            let size = reader.number()? as usize;
            let (bytes, rest) = reader.0.split_at_checked(size)?;
            (older, reader.0) = (bytes, rest);
        }
        Some(EntryView { flags, location, older, meta: reader.0 })
    }

    /// As [`EntryView::decode`], for bytes that this process encoded itself.
    pub(crate) fn trusted(bytes: &'a [u8]) -> EntryView<'a> {
        EntryView::decode(bytes).expect("a memtable holds valid entries")
    }

    /// Appends the same entry with other older records.
    pub(crate) fn encode_with(&self, older: &[Pointer], out: &mut Vec<u8>) {
        encode_parts(self.flags, self.location, older, self.meta, out);
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.flags & TOMBSTONE != 0
    }

    pub(crate) fn is_in_seq_index(&self) -> bool {
        self.flags & IN_SEQ_INDEX != 0
    }

    /// Whether the entry has all records that a read needs: no older entry of the key shows.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_tombstone() || self.pointers().any(|pointer| pointer.is_base)
    }

    /// Appends this entry combined with older entries of the key, newest first: with their records, and
    /// complete if one of them is.
    pub(crate) fn encode_over<'b>(&self, older: impl Iterator<Item = EntryView<'b>>, out: &mut Vec<u8>) {
        let mut records: Vec<Pointer> = self.pointers().skip(1).collect();
        let mut flags = self.flags;
        for view in older {
            records.extend(view.pointers());
            if view.is_tombstone() {
                // The tombstone hides all before it: the oldest record needs none.
                match records.last_mut() {
                    Some(oldest) => oldest.is_base = true,
                    None => flags &= !OPERAND,
                }
            }
            if view.is_whole() {
                break;
            }
        }
        encode_parts(flags, self.location, &records, self.meta, out);
    }

    /// The newest record's `Seq`, if it is in the seq index.
    pub(crate) fn indexed_seq(&self) -> Option<u64> {
        (self.is_in_seq_index() && !self.is_tombstone()).then_some(self.location.seq)
    }

    /// Whether the newest record is a base value.
    pub(crate) fn is_base(&self) -> bool {
        self.flags & OPERAND == 0
    }

    /// The records that make up the value, newest first: up to the first base value, or as many as this entry
    /// has.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = Pointer> + use<'a> {
        until_base(self.all_pointers())
    }

    /// All records that this entry has, newest first, including those that the value no longer needs.
    pub(crate) fn all_pointers(&self) -> impl Iterator<Item = Pointer> + use<'a> {
        let newest =
            (!self.is_tombstone()).then_some(Pointer { location: self.location, is_base: self.is_base() });
        let mut reader = Reader(self.older);
        newest.into_iter().chain(std::iter::from_fn(move || {
            let is_base = reader.byte()? == 1;
            Some(Pointer { location: reader.location()?, is_base })
        }))
    }
}

/// Appends an entry.
pub(crate) fn encode(flags: Flags, location: Location, older: &[Pointer], meta: &[u8], out: &mut Vec<u8>) {
    let bit = |is: bool, bit: u8| if is { bit } else { 0 };
    let flags = bit(flags.has(Flags::TOMBSTONE), TOMBSTONE)
        | bit(flags.has(Flags::IN_SEQ_INDEX), IN_SEQ_INDEX)
        | bit(flags.has(Flags::OPERAND), OPERAND);
    encode_parts(flags, location, older, meta, out);
}

fn encode_parts(flags: u8, location: Location, older: &[Pointer], meta: &[u8], out: &mut Vec<u8>) {
    let older_flag = if older.is_empty() { 0 } else { HAS_OLDER };
    out.push(flags & !HAS_OLDER | older_flag);
    encode_location(location, out);
    if !older.is_empty() {
        let mut bytes = Vec::with_capacity(older.len() * 16);
        for pointer in older {
            bytes.push(u8::from(pointer.is_base));
            encode_location(pointer.location, &mut bytes);
        }
        push_number(bytes.len() as u64, out);
        out.extend_from_slice(&bytes);
    }
    out.extend_from_slice(meta);
}

fn encode_location(location: Location, out: &mut Vec<u8>) {
    push_number(location.seq, out);
    push_number(location.segment.into(), out);
    push_number(location.offset.into(), out);
    push_number(location.length.into(), out);
}

/// Appends a number as LEB128.
pub(crate) fn push_number(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads encoded bytes.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn location(&mut self) -> Option<Location> {
        Some(Location {
            seq: self.number()?,
            segment: self.small()?,
            offset: self.small()?,
            length: self.small()?,
        })
    }
}
