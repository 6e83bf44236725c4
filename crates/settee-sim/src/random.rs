//! The simulation's random numbers: SplitMix64 (Steele, Lea and Flood, 2014). Implemented here, so that a
//! seed gives the same run with every version of every library.

use std::ops::RangeInclusive;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Generator(u64);

impl Generator {
    /// Returns the stream of `seed` for `salt`. Streams of different salts are independent.
    pub(crate) fn new(seed: u64, salt: u64) -> Generator {
        let mut generator = Generator(seed.wrapping_mul(STEP) ^ salt.rotate_left(32));
        Generator(generator.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in the range.
    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let width = u128::from(range.end() - range.start()) + 1;
        range.start() + ((u128::from(self.next()) * width) >> 64) as u64
    }

    /// Returns an index below `count`, which must not be 0.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        self.within(0..=count as u64 - 1) as usize
    }

    /// Returns true with the given probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        unit < probability
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
