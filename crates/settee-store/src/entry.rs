//! Index entries: what stands under a key in a memory layer and in the tree, byte for byte the same.
//!
//! An entry says where the key's newest record lies, and what it is. A value that was built from
//! deltas has a chain of older records behind it, newest first, up to the one that needs no older
//! (`init`). Numbers are LEB128; the format is in `docs/format.md`.

use settee_log::{Flags, Seq};

/// Most records that a key's value is gathered from.
pub const CHAIN_COUNT_MAX: usize = 32;

/// There is no value: what lies beneath is hidden.
const TOMBSTONE: u8 = 1;
/// It shows in the feed of changes.
const LISTED: u8 = 2;
/// The newest record is a delta, and needs what lies behind it.
const DELTA: u8 = 4;
/// A chain follows.
const CHAIN: u8 = 8;

/// Where a record lies in the log. It never changes, also where the segment is rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The update number.
    pub seq: u64,
    /// The segment's number.
    pub segment: u32,
    /// Where the record begins in its segment, in bytes.
    pub offset: u32,
    /// The record's size in bytes.
    pub length: u32,
}

/// One record of a key, as the index has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// Where the record lies.
    pub location: Location,
    /// It needs no older one.
    pub init: bool,
}

/// An entry, borrowed from what holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryView<'a> {
    flags: u8,
    pub location: Location,
    chain: &'a [u8],
    pub meta: &'a [u8],
}

impl<'a> EntryView<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<EntryView<'a>> {
        let mut reader = Reader(bytes);
        let flags = reader.byte()?;
        let location = reader.location()?;
        let mut chain: &[u8] = &[];
        if flags & CHAIN != 0 {
            let size = reader.number()? as usize;
            let (bytes, rest) = reader.0.split_at_checked(size)?;
            (chain, reader.0) = (bytes, rest);
        }
        Some(EntryView { flags, location, chain, meta: reader.0 })
    }

    /// As [`EntryView::decode`], for what this process encoded itself.
    pub(crate) fn trusted(bytes: &'a [u8]) -> EntryView<'a> {
        EntryView::decode(bytes).expect("a memory layer holds entries")
    }

    /// Appends the same entry with another chain.
    pub(crate) fn encode_with(&self, chain: &[Pointer], out: &mut Vec<u8>) {
        encode_parts(self.flags, self.location, chain, self.meta, out);
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.flags & TOMBSTONE != 0
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.flags & LISTED != 0
    }

    /// Whether all is known that a read needs: nothing of what lies beneath shows.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_tombstone() || self.pointers().any(|pointer| pointer.init)
    }

    /// Appends what this entry is over those of older layers, newest first: with the records that
    /// they know of, and needing none beneath where one of them says so.
    pub(crate) fn encode_over<'b>(&self, older: impl Iterator<Item = EntryView<'b>>, out: &mut Vec<u8>) {
        let mut chain: Vec<Pointer> = self.pointers().skip(1).collect();
        let mut flags = self.flags;
        for view in older {
            chain.extend(view.pointers());
            if view.is_tombstone() {
                // What was there before is gone: the oldest needs none.
                match chain.last_mut() {
                    Some(oldest) => oldest.init = true,
                    None => flags &= !DELTA,
                }
            }
            if view.is_whole() {
                break;
            }
        }
        encode_parts(flags, self.location, &chain, self.meta, out);
    }

    /// The newest record's `Seq`, where that is listed.
    pub(crate) fn listed_seq(&self) -> Option<u64> {
        (self.is_listed() && !self.is_tombstone()).then_some(self.location.seq)
    }

    /// Whether the newest record needs no older one.
    pub(crate) fn is_init(&self) -> bool {
        self.flags & DELTA == 0
    }

    /// The records that the value is made from, newest first: up to the first that needs no older one,
    /// or as far as this entry knows.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = Pointer> + use<'a> {
        until_init(self.versions())
    }

    /// All records that this entry knows of, newest first, those too that nothing needs any more.
    pub(crate) fn versions(&self) -> impl Iterator<Item = Pointer> + use<'a> {
        let newest =
            (!self.is_tombstone()).then_some(Pointer { location: self.location, init: self.is_init() });
        let mut reader = Reader(self.chain);
        newest.into_iter().chain(std::iter::from_fn(move || {
            let init = reader.byte()? == 1;
            Some(Pointer { location: reader.location()?, init })
        }))
    }
}

/// Of records, newest first, those up to the first that needs no older one.
pub(crate) fn until_init(pointers: impl Iterator<Item = Pointer>) -> impl Iterator<Item = Pointer> {
    let mut done = false;
    pointers.take_while(move |pointer| {
        let is_needed = !done;
        done |= pointer.init;
        is_needed
    })
}

/// Appends an entry.
pub(crate) fn encode(flags: Flags, location: Location, chain: &[Pointer], meta: &[u8], out: &mut Vec<u8>) {
    let bit = |is: bool, bit: u8| if is { bit } else { 0 };
    let flags = bit(flags.has(Flags::TOMBSTONE), TOMBSTONE)
        | bit(flags.has(Flags::LISTED), LISTED)
        | bit(flags.has(Flags::DELTA), DELTA);
    encode_parts(flags, location, chain, meta, out);
}

fn encode_parts(flags: u8, location: Location, chain: &[Pointer], meta: &[u8], out: &mut Vec<u8>) {
    let has_chain = if chain.is_empty() { 0 } else { CHAIN };
    out.push(flags & !CHAIN | has_chain);
    encode_location(location, out);
    if !chain.is_empty() {
        let mut bytes = Vec::with_capacity(chain.len() * 16);
        for pointer in chain {
            bytes.push(u8::from(pointer.init));
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

/// Reads what was encoded here.
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

impl Location {
    /// The record's place in the order of updates.
    pub fn seq(&self) -> Seq {
        Seq(self.seq)
    }
}
