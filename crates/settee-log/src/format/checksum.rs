//! Checksums: XXH3 with 64 bits.
//!
//! A record's checksum combines the hash of its key, meta and value, which is known early, with its `Seq`,
//! which is known when it is appended. A frame's checksum covers its header and its records' checksums, and
//! has a seed that only the log knows.

use twox_hash::XxHash3_64;

use crate::types::TimelineId;

/// Factor by which a `Seq` is multiplied before it is added to a record's hash: odd, so that distinct numbers
/// stay distinct.
const SEQ_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The seed of the checksums of a segment's frames, and of the bytes with which frames begin. It is derived
/// from the id of the segment's timeline, which clients never learn: so they can't create bytes that look like a
/// frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameSeed(pub(super) u64);

impl FrameSeed {
    pub(crate) fn of(timeline: TimelineId) -> FrameSeed {
        FrameSeed(xxh3_64(&timeline.0))
    }

    /// A frame's first bytes, so that a search for frames has little to hash.
    pub(super) fn magic(self) -> [u8; 2] {
        (self.0 as u16).to_le_bytes()
    }
}

impl std::fmt::Debug for FrameSeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameSeed")
    }
}

/// XXH3 with 64 bits, seed 0: detects accidental damage, not attacks.
pub(crate) fn xxh3_64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

pub(super) fn frame_checksum(
    seed: FrameSeed,
    header: &[u8],
    record_checksums: impl Iterator<Item = u64>,
) -> u64 {
    // In one piece, since most batches are small and the streaming hash has a large state.
    let mut hashed = Vec::with_capacity(header.len() + record_checksums.size_hint().0 * 8);
    hashed.extend_from_slice(header);
    record_checksums.for_each(|checksum| hashed.extend_from_slice(&checksum.to_le_bytes()));
    XxHash3_64::oneshot_with_seed(seed.0, &hashed)
}

/// Hash of a record without its `Seq`: of its header from the sizes on, its key and meta, and its value.
pub(super) fn record_hash(head: &[u8], value_hash: u64) -> u64 {
    xxh3_64(head) ^ value_hash.rotate_left(32)
}

pub(super) fn record_checksum(hash: u64, seq: u64) -> u64 {
    hash.wrapping_add(seq.wrapping_mul(SEQ_FACTOR))
}
