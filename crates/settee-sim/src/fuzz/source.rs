//! Random choices: what a grammar and the mutations draw from.

use crate::random::Generator;

/// Size of the largest input, in bytes.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// The source of a grammar's random choices.
pub struct Source<'a> {
    pub(super) random: Generator,
    pub(super) words: &'a [&'static str],
}

impl Source<'_> {
    /// Returns a number below `count`, which must not be 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.random.index(count)
    }

    /// Returns true with probability 1/2.
    pub fn coin(&mut self) -> bool {
        self.random.coin()
    }

    /// Returns one of the elements.
    pub fn pick<'b, T: ?Sized>(&mut self, from: &[&'b T]) -> &'b T {
        from[self.below(from.len())]
    }

    /// Returns one of the target's words.
    pub fn word(&mut self) -> &'static str {
        self.words[self.random.index(self.words.len())]
    }

    /// Returns at most `count_max` random bytes.
    pub fn bytes(&mut self, count_max: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(count_max + 1)];
        self.random.fill(&mut bytes);
        bytes
    }
}
