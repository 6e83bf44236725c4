//! Seeded random bytes, for values and files.
//!
//! The bytes are BLAKE3's extendable output (section 2.6 of its paper). BLAKE3 is assembly in every build
//! profile: tests draw gigabytes, for which an unoptimised generator in Rust takes a minute.

use blake3::{Hasher, OutputReader};

/// The stream of random bytes of one seed.
pub(crate) struct RandomBytes(OutputReader);

impl RandomBytes {
    pub(crate) fn new(seed: u64) -> RandomBytes {
        RandomBytes(Hasher::new().update(&seed.to_le_bytes()).finalize_xof())
    }

    /// Fills `bytes` with the next bytes of the stream.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}

/// Returns the first `count` bytes of a seed's stream.
pub(crate) fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    RandomBytes::new(seed).fill(&mut bytes);
    bytes
}

/// Maps a number to a pseudo-random one (Steele, Lea and Flood's SplitMix64).
pub(crate) fn split_mix(number: u64, seed: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seeds_bytes_do_not_depend_on_the_sizes_of_reads() {
        let whole = random_bytes(7, 1000);
        let mut parts = RandomBytes::new(7);
        let (mut first, mut second) = ([0; 300], [0; 700]);
        parts.fill(&mut first);
        parts.fill(&mut second);
        assert_eq!([&first[..], &second].concat(), whole);
        assert_ne!(random_bytes(8, 1000), whole);
        let mut values = whole.clone();
        values.sort_unstable();
        values.dedup();
        assert!(values.len() > 240, "{} different bytes in 1000", values.len());
    }
}
