//! What a leaf's record holds beside the key: the three sums (zigzag LEB128, as most are small and
//! some negative), and the value up to the record's end.

/// What an entry adds to the sums over a range; the caller gives the components their meaning.
/// They are added without regard to overflow: an entry that takes away adds the complement.
pub type Sums = [u64; 3];

/// `a` and `b` together.
#[inline]
pub(crate) fn add(a: Sums, b: Sums) -> Sums {
    std::array::from_fn(|index| a[index].wrapping_add(b[index]))
}

/// What `b` lacks of `a`.
#[inline]
pub(crate) fn subtract(a: Sums, b: Sums) -> Sums {
    std::array::from_fn(|index| a[index].wrapping_sub(b[index]))
}

/// An entry, borrowed from the layer or the cursor that found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value, as given.
    pub value: &'a [u8],
    /// What the entry adds to the sums.
    pub sums: Sums,
}

/// Appends a record's tail up to the value.
#[inline]
pub(super) fn encode_sums(sums: Sums, tail: &mut Vec<u8>) {
    for sum in sums {
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
    let (sums, value) = decode_sums(tail);
    Found { key, value, sums }
}

/// The sums in a record's tail.
#[inline]
pub(super) fn decode_sums(mut rest: &[u8]) -> (Sums, &[u8]) {
    let mut sums = Sums::default();
    for sum in &mut sums {
        let (mut number, mut shift) = (0, 0);
        loop {
            let (byte, after) = rest.split_first().expect("a tail holds three sums");
            rest = after;
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                break;
            }
            shift += 7;
        }
        *sum = (number >> 1) ^ (number & 1).wrapping_neg();
    }
    (sums, rest)
}
