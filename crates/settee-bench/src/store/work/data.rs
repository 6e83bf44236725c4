//! Keys and values, which are functions of a record's number.

use std::sync::OnceLock;

use crate::random::random_bytes;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of every key.
pub(crate) const KEY_BYTES: usize = 16;

pub(crate) type Key = [u8; KEY_BYTES];

/// Number of distinct keys of [`Order::Reuse`].
pub(crate) const REUSED_COUNT: u64 = 1024;

/// Random bytes of which values are slices.
const SOURCE_BYTES: usize = 16 << 20;

/// Bytes at each end of a value that are compared with the expected ones.
const CHECKED_BYTES: usize = 16;

/// The order in which keys are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// In ascending order.
    Sequential,
    /// At random: the keys are hashes.
    Random,
    /// At random, of [`REUSED_COUNT`] hashes.
    Reuse,
}

impl Order {
    /// The record of the `index`th write.
    pub(crate) fn record(self, index: u64) -> u64 {
        match self {
            Order::Sequential | Order::Random => index,
            Order::Reuse => mix(index ^ 0x5eed) % REUSED_COUNT,
        }
    }

    pub(crate) fn key(self, record: u64) -> Key {
        let (first, second) = match self {
            Order::Sequential => (0x7365_7474_6565_2d31, record),
            Order::Random | Order::Reuse => (mix(record), mix(!record)),
        };
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&first.to_be_bytes());
        key[8..].copy_from_slice(&second.to_be_bytes());
        key
    }
}

/// Maps each number to another pseudo-random one (the last step of SplitMix64: Steele, Lea, Flood, Fast
/// splittable pseudorandom number generators, OOPSLA 2014).
pub(crate) fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Random bytes of a fixed seed.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    bytes: Bytes,
}

impl Source {
    /// The source of this process, created by the first call.
    pub(crate) fn get() -> Source {
        static BYTES: OnceLock<Bytes> = OnceLock::new();
        let make = || random_bytes(1, SOURCE_BYTES).into();
        Source { bytes: BYTES.get_or_init(make).clone() }
    }

    /// The value of one version of a record.
    pub(crate) fn value(&self, record: u64, version: u64, bytes: usize) -> Bytes {
        let start = self.start(record, version, bytes);
        self.bytes.slice(start..start + bytes)
    }

    /// Whether `value` equals [`Source::value`], judged by its length and its ends.
    pub(crate) fn is_value(&self, value: &[u8], record: u64, version: u64, bytes: usize) -> bool {
        let start = self.start(record, version, bytes);
        let expected = &self.bytes[start..start + bytes];
        let checked = bytes.min(CHECKED_BYTES);
        value.len() == bytes
            && value[..checked] == expected[..checked]
            && value[bytes - checked..] == expected[bytes - checked..]
    }

    fn start(&self, record: u64, version: u64, bytes: usize) -> usize {
        (mix(record ^ version.rotate_left(40)) % (self.bytes.len() - bytes) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_order_ascend_and_reused_ones_are_few() {
        let keys: Vec<Key> = (0..1000).map(|record| Order::Sequential.key(record)).collect();
        assert!(keys.is_sorted());
        let random: std::collections::BTreeSet<Key> =
            (0..1000).map(|record| Order::Random.key(record)).collect();
        assert_eq!(random.len(), 1000);
        let reused: std::collections::BTreeSet<u64> =
            (0..100_000).map(|index| Order::Reuse.record(index)).collect();
        assert_eq!((reused.len() as u64, reused.last()), (REUSED_COUNT, Some(&(REUSED_COUNT - 1))));
    }

    #[test]
    fn only_the_right_value_is_accepted() {
        let source = Source::get();
        let value = source.value(7, 1, 100);
        assert!(source.is_value(&value, 7, 1, 100));
        assert!(!source.is_value(&value, 8, 1, 100) && !source.is_value(&value, 7, 2, 100));
        assert!(!source.is_value(&value[..99], 7, 1, 100));
        let mut spoilt = value.to_vec();
        spoilt[99] ^= 1;
        assert!(!source.is_value(&spoilt, 7, 1, 100));
    }
}
