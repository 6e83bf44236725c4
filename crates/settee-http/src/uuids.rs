//! Identifiers by CouchDB's algorithms, for `_uuids`, for documents without an id, and for the server itself.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest suffix of `utc_id` in bytes.
const SUFFIX_BYTES_MAX: usize = 256;

/// Generates an identity for a server: 32 hex digits.
pub fn new_uuid() -> String {
    Uuids::new(Algorithm::Sequential).next()
}

/// How identifiers are generated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Algorithm {
    /// 128 random bits.
    Random,
    /// A random prefix and a number that grows by random steps, so that documents created in succession are
    /// adjacent.
    #[default]
    Sequential,
    /// Microseconds since 1970 in 14 hex digits, and 18 random ones.
    UtcRandom,
    /// The same microseconds, and a configured suffix.
    UtcId(String),
}

impl Algorithm {
    /// Parses CouchDB's name of an algorithm.
    ///
    /// # Errors
    /// The valid names.
    pub(crate) fn parse(name: &str, suffix: &str) -> Result<Algorithm, String> {
        if suffix.len() > SUFFIX_BYTES_MAX {
            return Err(format!("uuids/utc_id_suffix must have {SUFFIX_BYTES_MAX} bytes at most"));
        }
        match name {
            "random" => Ok(Algorithm::Random),
            "sequential" => Ok(Algorithm::Sequential),
            "utc_random" => Ok(Algorithm::UtcRandom),
            "utc_id" => Ok(Algorithm::UtcId(suffix.to_owned())),
            _ => Err("uuids/algorithm must be random, sequential, utc_random or utc_id".to_owned()),
        }
    }
}

/// Generates identifiers.
pub(crate) struct Uuids(Mutex<GeneratorState>);

struct GeneratorState {
    algorithm: Algorithm,
    sequence: Sequence,
    /// The last timestamp used, so that none is used twice.
    last_us: u64,
}

struct Sequence {
    prefix: [u8; 13],
    number: u32,
    /// State of the generator of the steps, which needn't be secret.
    steps: u64,
}

/// Past this number a new prefix is generated: three bytes less one step.
const NUMBER_MAX: u32 = 0xfff000;

impl Uuids {
    pub(crate) fn new(algorithm: Algorithm) -> Uuids {
        Uuids(Mutex::new(GeneratorState { algorithm, sequence: Sequence::draw(), last_us: 0 }))
    }

    /// Changes the algorithm.
    pub(crate) fn choose(&self, algorithm: Algorithm) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).algorithm = algorithm;
    }

    /// The next identifier: 32 hex digits, or the time followed by the configured suffix.
    pub(crate) fn next(&self) -> String {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.algorithm {
            Algorithm::Random => hex(&random::<16>()),
            Algorithm::Sequential => state.sequence.next(),
            Algorithm::UtcRandom => format!("{:014x}{}", state.time_us(), hex(&random::<9>())),
            Algorithm::UtcId(suffix) => {
                let suffix = suffix.clone();
                format!("{:014x}{suffix}", state.time_us())
            }
        }
    }
}

impl GeneratorState {
    /// Microseconds since 1970, later than all returned before.
    fn time_us(&mut self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        self.last_us = now_us.max(self.last_us.saturating_add(1));
        self.last_us
    }
}

impl Sequence {
    fn draw() -> Sequence {
        let mut sequence = Sequence { prefix: random(), number: 0, steps: u64::from_ne_bytes(random()) | 1 };
        sequence.advance();
        sequence
    }

    fn next(&mut self) -> String {
        if self.number > NUMBER_MAX {
            *self = Sequence::draw();
        }
        let mut bytes = [0; 16];
        bytes[..13].copy_from_slice(&self.prefix);
        bytes[13..].copy_from_slice(&self.number.to_be_bytes()[1..]);
        self.advance();
        hex(&bytes)
    }

    /// Adds 1 to 4094 (xorshift64).
    fn advance(&mut self) {
        self.steps ^= self.steps << 13;
        self.steps ^= self.steps >> 7;
        self.steps ^= self.steps << 17;
        self.number += 1 + (self.steps % 0xffe) as u32;
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system provides randomness");
    bytes
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn drawn(algorithm: Algorithm, count: usize) -> Vec<String> {
        let uuids = Uuids::new(algorithm);
        let drawn: Vec<String> = (0..count).map(|_| uuids.next()).collect();
        let distinct: HashSet<_> = drawn.iter().collect();
        assert_eq!(distinct.len(), drawn.len());
        drawn
    }

    fn is_hex(uuid: &str) -> bool {
        uuid.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
    }

    #[test]
    fn sequential_identifiers_are_distinct_and_mostly_in_order() {
        let drawn = drawn(Algorithm::Sequential, 20_000);
        assert!(drawn.iter().all(|uuid| uuid.len() == 32 && is_hex(uuid)));
        let descents = drawn.windows(2).filter(|pair| pair[0] >= pair[1]).count();
        // A prefix lasts for about 8,000 identifiers; a new one may be lower.
        assert!(descents <= 6, "{descents} descents");
    }

    #[test]
    fn random_identifiers_share_no_prefix() {
        let drawn = drawn(Algorithm::Random, 1000);
        assert!(drawn.iter().all(|uuid| uuid.len() == 32 && is_hex(uuid)));
        let prefixes: HashSet<_> = drawn.iter().map(|uuid| &uuid[..16]).collect();
        assert_eq!(prefixes.len(), 1000);
    }

    #[test]
    fn identifiers_by_the_time_are_in_its_order() {
        for (algorithm, length) in [(Algorithm::UtcRandom, 32), (Algorithm::UtcId("@me".to_owned()), 17)] {
            let drawn = drawn(algorithm, 1000);
            assert!(drawn.iter().all(|uuid| uuid.len() == length && is_hex(&uuid[..14])), "{}", drawn[0]);
            assert!(drawn.is_sorted());
            let us = u64::from_str_radix(&drawn[0][..14], 16).unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
            assert!(u128::from(us).abs_diff(now) < 600_000_000, "a time that is not ours");
        }
    }

    #[test]
    fn an_unknown_algorithm_is_refused_with_the_valid_ones() {
        let refused = Algorithm::parse("dice", "").unwrap_err();
        assert_eq!(refused, "uuids/algorithm must be random, sequential, utc_random or utc_id");
        assert_eq!(Algorithm::parse("utc_id", "x"), Ok(Algorithm::UtcId("x".to_owned())));
    }
}
