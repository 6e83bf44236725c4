//! `_approx_count_distinct`: HyperLogLog over the rows' keys.
//!
//! Source: Flajolet, Fusy, Gandouet and Meunier, "HyperLogLog: the analysis of a near-optimal cardinality
//! estimation algorithm" (2007), with linear counting for small sets. 2,048 registers, as in CouchDB: a standard
//! error of about 2 %.

/// Number of bits of a hash that select a register.
const REGISTER_BITS: u32 = 11;
const REGISTER_COUNT: usize = 1 << REGISTER_BITS;

/// Up to this number of registers in use, a set is stored as a list of them.
const LIST_COUNT_MAX: usize = 400;

/// The registers in use, ascending, each with its value.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Distinct(Vec<(u16, u8)>);

impl Distinct {
    /// The set of one key, given as its sort key.
    pub(crate) fn of(sort_key: &[u8]) -> Distinct {
        let hash = twox_hash::XxHash3_64::oneshot(sort_key);
        let register = (hash >> (64 - REGISTER_BITS)) as u16;
        let rest = hash << REGISTER_BITS | 1 << (REGISTER_BITS - 1);
        Distinct(vec![(register, rest.leading_zeros() as u8 + 1)])
    }

    pub(crate) fn union(&self, other: &Distinct) -> Distinct {
        let mut all = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut one, mut other) = (self.0.iter().copied().peekable(), other.0.iter().copied().peekable());
        loop {
            let next = match (one.peek(), other.peek()) {
                (Some(&(first, value)), Some(&(second, other_value))) => {
                    if first <= second {
                        one.next();
                    }
                    if second <= first {
                        other.next();
                    }
                    match first.cmp(&second) {
                        std::cmp::Ordering::Less => (first, value),
                        std::cmp::Ordering::Equal => (first, value.max(other_value)),
                        std::cmp::Ordering::Greater => (second, other_value),
                    }
                }
                (Some(_), None) => one.next().expect("it was there"),
                (None, Some(_)) => other.next().expect("it was there"),
                (None, None) => return Distinct(all),
            };
            all.push(next);
        }
    }

    /// The estimated number of keys.
    pub(crate) fn count(&self) -> u64 {
        let registers = REGISTER_COUNT as f64;
        let empty = REGISTER_COUNT - self.0.len();
        let inverse: f64 = self.0.iter().map(|(_, value)| f64::from(*value).exp2().recip()).sum();
        let scale = 0.7213 / (1.0 + 1.079 / registers);
        let raw = scale * registers * registers / (inverse + empty as f64);
        let estimate = match raw <= 2.5 * registers && empty > 0 {
            true => registers * (registers / empty as f64).ln(),
            false => raw,
        };
        estimate.round() as u64
    }

    /// The list of the registers in use, or the values of all of them.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        if self.0.len() <= LIST_COUNT_MAX {
            for (register, value) in &self.0 {
                out.extend_from_slice(&register.to_le_bytes());
                out.push(*value);
            }
            return;
        }
        // Six bits each.
        let mut all = [0_u8; REGISTER_COUNT];
        self.0.iter().for_each(|(register, value)| all[usize::from(*register)] = *value);
        for four in all.chunks_exact(4) {
            let bits = four.iter().fold(0_u32, |bits, value| bits << 6 | u32::from(*value));
            out.extend_from_slice(&bits.to_be_bytes()[1..]);
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Distinct> {
        if bytes.len() != REGISTER_COUNT * 6 / 8 {
            let entries = bytes.chunks(3).map(|entry| match entry {
                [low, high, value] => Some((u16::from_le_bytes([*low, *high]), *value)),
                _ => None,
            });
            let list: Vec<(u16, u8)> = entries.collect::<Option<_>>()?;
            let is_sound = list.len() <= LIST_COUNT_MAX
                && list.windows(2).all(|pair| pair[0].0 < pair[1].0)
                && list.last().is_none_or(|(register, _)| usize::from(*register) < REGISTER_COUNT);
            return is_sound.then_some(Distinct(list));
        }
        let mut list = Vec::new();
        for (group, three) in bytes.chunks_exact(3).enumerate() {
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            for place in 0..4 {
                let value = (bits >> (18 - 6 * place) & 63) as u8;
                if value > 0 {
                    list.push(((4 * group + place) as u16, value));
                }
            }
        }
        Some(Distinct(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_near_and_survives_its_encoding() {
        for count in [0_u32, 1, 10, 399, 1_000, 100_000] {
            let mut all = Distinct::default();
            for number in 0..count {
                all = all.union(&Distinct::of(&number.to_be_bytes()));
                if number % 3 == 0 {
                    all = all.union(&Distinct::of(&number.to_be_bytes()));
                }
            }
            let mut bytes = Vec::new();
            all.encode(&mut bytes);
            assert!(bytes.len() <= 1_536);
            assert_eq!(Distinct::decode(&bytes).as_ref(), Some(&all), "{count}");
            let off = (all.count() as f64 - f64::from(count)).abs();
            assert!(off <= f64::from(count) * 0.06, "{count}: {}", all.count());
        }
        assert_eq!(Distinct::decode(&[1, 2]), None);
        assert_eq!(Distinct::decode(&[0, 255, 1]), None);
    }
}
