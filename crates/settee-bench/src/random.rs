//! Random bytes of a seed, for values and files.
//!
//! They are BLAKE3's extendable output (section 2.6 of its paper), which is assembly in every build profile:
//! tests draw gigabytes, and a generator in Rust takes a minute for that without optimisation.

use blake3::{Hasher, OutputReader};

/// A stream of random bytes: each seed has its own.
pub(crate) struct RandomBytes(OutputReader);

impl RandomBytes {
    pub(crate) fn new(seed: u64) -> RandomBytes {
        RandomBytes(Hasher::new().update(&seed.to_le_bytes()).finalize_xof())
    }

    /// Fills `bytes` with what comes next in the stream.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}

/// The first `count` bytes of a seed's stream.
pub(crate) fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    RandomBytes::new(seed).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_bytes_however_they_are_asked_for() {
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
