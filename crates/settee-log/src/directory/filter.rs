//! A filter of keys: a Bloom filter in lines of 64 bytes, one line for each key.
//!
//! All bits of a key lie in one line, so that a question costs one cache miss. Ten bits a key
//! and six probes give about one wrong "perhaps" in a hundred; a key that was put in is never
//! denied. After: F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom
//! Filters" (2007), blocked filters.

/// Bytes of a line.
pub(super) const LINE_SIZE: usize = 64;

const BITS_PER_KEY: usize = 10;

/// Bits that a key sets: nine bits of its hash choose each.
const PROBE_COUNT: u32 = 6;

/// Mixes the hash anew for the choice of the line, so that it tells nothing of the probes: an
/// odd number, and so no two hashes become one.
const LINE_FACTOR: u64 = 0xD6E8_FEB8_6659_FD93;

/// Bytes that a filter of so many keys takes.
pub(super) const fn size(key_count: usize) -> usize {
    (key_count * BITS_PER_KEY).div_ceil(LINE_SIZE * 8) * LINE_SIZE
}

/// Puts a key in, by its hash.
pub(super) fn insert(filter: &mut [u8], hash: u64) {
    let line = line_start(filter.len(), hash);
    for bit in probes(hash) {
        filter[line + bit / 8] |= 1 << (bit % 8);
    }
}

/// Whether the key with this hash may have been put in.
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
