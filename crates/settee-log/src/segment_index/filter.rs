//! A filter of keys: a Bloom filter in lines of 64 bytes, one line per key.
//!
//! All bits of a key are in one line, so that a query costs one cache miss. Ten bits per key and six probes
//! give about one false positive in a hundred, and no false negatives. After: F. Putze, P. Sanders, J.
//! Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007), blocked filters.

/// Size of a line in bytes.
pub(super) const LINE_SIZE: usize = 64;

const BITS_PER_KEY: usize = 10;

/// Number of bits that a key sets; nine bits of its hash select each.
const PROBE_COUNT: u32 = 6;

/// Multiplier that rehashes for the selection of the line, so that it doesn't correlate with the probes. It
/// is odd, so that distinct hashes stay distinct.
const LINE_FACTOR: u64 = 0xD6E8_FEB8_6659_FD93;

/// Size of a filter of `key_count` keys in bytes.
pub(super) const fn size(key_count: usize) -> usize {
    (key_count * BITS_PER_KEY).div_ceil(LINE_SIZE * 8) * LINE_SIZE
}

/// Inserts a key, given its hash.
pub(super) fn insert(filter: &mut [u8], hash: u64) {
    let line = line_start(filter.len(), hash);
    for bit in probes(hash) {
        filter[line + bit / 8] |= 1 << (bit % 8);
    }
}

/// Whether the key with this hash may have been inserted.
pub(super) fn may_contain(filter: &[u8], hash: u64) -> bool {
    if filter.len() < LINE_SIZE {
        return false;
    }
    let line = line_start(filter.len(), hash);
    probes(hash).all(|bit| filter[line + bit / 8] & 1 << (bit % 8) != 0)
}

fn line_start(filter_size: usize, hash: u64) -> usize {
    let line_count = (filter_size / LINE_SIZE) as u64;
    let mixed = hash.wrapping_mul(LINE_FACTOR) >> 32;
    ((mixed * line_count) >> 32) as usize * LINE_SIZE
}

fn probes(hash: u64) -> impl Iterator<Item = usize> {
    (0..PROBE_COUNT).map(move |index| (hash >> (9 * index)) as usize % (LINE_SIZE * 8))
}
