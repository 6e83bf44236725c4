//! An entry: what a leaf's record holds beside the key.
//!
//! The tail of a record is the location (four little-endian integers), the three sums (LEB128,
//! as most are small), and the meta up to its end.

const LOCATION_SIZE: usize = 20;

/// Where a record lies in the log.
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

/// What an entry adds to the sums over a range; the caller gives the components their meaning.
/// The sums over all entries must fit.
pub type Sums = [u64; 3];

/// An entry, borrowed from the layer or the cursor that found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The meta, as given.
    pub meta: &'a [u8],
    /// Where the record lies.
    pub location: Location,
    /// What the entry adds to the sums.
    pub sums: Sums,
}

/// What an entry was before it was replaced or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Previous {
    /// Where its record lies.
    pub location: Location,
    /// What it added to the sums.
    pub sums: Sums,
}

pub(super) fn encode(meta: &[u8], location: Location, sums: Sums) -> Vec<u8> {
    let mut tail = Vec::with_capacity(LOCATION_SIZE + 32 + meta.len());
    tail.extend_from_slice(&location.seq.to_le_bytes());
    tail.extend_from_slice(&location.segment.to_le_bytes());
    tail.extend_from_slice(&location.offset.to_le_bytes());
    tail.extend_from_slice(&location.length.to_le_bytes());
    for mut sum in sums {
        while sum > 0x7f {
            tail.push(sum as u8 | 0x80);
            sum >>= 7;
        }
        tail.push(sum as u8);
    }
    tail.extend_from_slice(meta);
    tail
}

#[inline]
pub(super) fn decode<'a>((key, tail): (&'a [u8], &'a [u8])) -> Found<'a> {
    let (location, rest) = tail.split_at(LOCATION_SIZE);
    let word =
        |at: usize| u32::from_le_bytes([location[at], location[at + 1], location[at + 2], location[at + 3]]);
    let location = Location {
        seq: u64::from(word(0)) | u64::from(word(4)) << 32,
        segment: word(8),
        offset: word(12),
        length: word(16),
    };
    let (sums, meta) = decode_sums(rest);
    Found { key, meta, location, sums }
}

/// The sums in a record's tail alone.
#[inline]
pub(super) fn sums(tail: &[u8]) -> Sums {
    decode_sums(&tail[LOCATION_SIZE..]).0
}

#[inline]
fn decode_sums(mut rest: &[u8]) -> (Sums, &[u8]) {
    let mut sums = Sums::default();
    for sum in &mut sums {
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first().expect("a tail holds three sums");
            rest = after;
            *sum |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                break;
            }
            shift += 7;
        }
    }
    (sums, rest)
}
