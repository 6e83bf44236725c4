//! The map's entries, their limits, and their aggregates.
//!
//! A leaf's record is an entry's key and a tail: the three numbers of the aggregate, then the value up to the
//! record's end. The numbers are zigzag LEB128, as most are small and some negative.

/// Longest key in bytes.
pub(super) const KEY_SIZE_MAX: usize = crate::KEY_SIZE_MAX + 16;

/// Longest value in bytes.
pub(super) const VALUE_SIZE_MAX: usize = 4 << 10;

/// What entries add to the aggregate over a range; the caller defines the three components. They are added
/// with wrapping: an entry that subtracts adds the two's complement.
pub type Aggregates = [u64; 3];

/// `a` + `b`, component by component.
#[inline]
pub(crate) fn add(a: Aggregates, b: Aggregates) -> Aggregates {
    std::array::from_fn(|index| a[index].wrapping_add(b[index]))
}

/// `a` − `b`, component by component.
#[inline]
pub(crate) fn subtract(a: Aggregates, b: Aggregates) -> Aggregates {
    std::array::from_fn(|index| a[index].wrapping_sub(b[index]))
}

/// An entry, borrowed from the map or the cursor that found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The entry's aggregate.
    pub aggregates: Aggregates,
}

/// Appends the aggregate to a record's tail.
#[inline]
pub(super) fn encode_aggregates(aggregates: Aggregates, tail: &mut Vec<u8>) {
    for sum in aggregates {
        let mut number = (sum << 1) ^ (((sum as i64) >> 63) as u64);
        while number > 0x7f {
            tail.push(number as u8 | 0x80);
            number >>= 7;
        }
        tail.push(number as u8);
    }
}

#[inline]
pub(super) fn decode<'a>((key, tail): (&'a [u8], &'a [u8])) -> Found<'a> {
    let (aggregates, value) = decode_aggregates(tail);
    Found { key, value, aggregates }
}

/// The aggregate in a record's tail, and the rest.
#[inline]
pub(super) fn decode_aggregates(mut rest: &[u8]) -> (Aggregates, &[u8]) {
    let mut aggregates = Aggregates::default();
    for sum in &mut aggregates {
        let (mut number, mut shift) = (0, 0);
        loop {
            let (byte, after) = rest.split_first().expect("a tail holds three numbers");
            rest = after;
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                break;
            }
            shift += 7;
        }
        *sum = (number >> 1) ^ (number & 1).wrapping_neg();
    }
    (aggregates, rest)
}
