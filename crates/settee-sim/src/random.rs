//! The simulation's random numbers: SplitMix64 (Steele, Lea and Flood, 2014). Implemented here, so that a
//! seed gives the same run with every version of every library.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use bytes::Bytes;

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

/// A seeded stream of random numbers of a test. Streams with different numbers are independent.
#[derive(Debug, Clone)]
pub struct Random(Generator);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut generator = Generator(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ stream.rotate_left(40));
        Random(Generator(generator.next()))
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "the stream has no end, so it needs no Option")]
    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `count`, which must not be 0.
    pub fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// True for one in `count` numbers.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Random bytes: a slice of the same 64 KiB, so `size` must be less.
    pub fn slice(&mut self, size: u64) -> Bytes {
        let start = self.below(BYTES.len() as u64 - size) as usize;
        BYTES.slice(start..start + size as usize)
    }
}

static BYTES: LazyLock<Bytes> = LazyLock::new(|| {
    let mut random = Random::new(0, 0);
    (0..8 << 10).flat_map(|_| random.next().to_le_bytes()).collect::<Vec<u8>>().into()
});
