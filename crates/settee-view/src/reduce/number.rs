//! Numbers of reduce functions: integers of any size that an `i128` holds, and doubles with a compensated sum.

/// A number as Erlang has it: integers are exact, and a sum with a double is a double.
///
/// A double carries the rounding error of the additions that made it (Neumaier's sum), so that a sum of many
/// doubles is that of exact arithmetic, rounded once, up to the last bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Integer(i128),
    Double { sum: f64, error: f64 },
}

impl Number {
    pub(crate) const ZERO: Number = Number::Integer(0);

    /// Parses a JSON number; `None` for other text.
    pub(crate) fn parse(json: &str) -> Option<Number> {
        let first = *json.as_bytes().first()?;
        if first != b'-' && !first.is_ascii_digit() {
            return None;
        }
        if json.len() < 30
            && let Ok(integer) = json.parse()
        {
            return Some(Number::Integer(integer));
        }
        json.parse().ok().map(Number::double)
    }

    pub(crate) fn double(sum: f64) -> Number {
        Number::Double { sum, error: 0.0 }
    }

    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Number::Integer(integer) => integer as f64,
            Number::Double { sum, error } if error.is_finite() => sum + error,
            Number::Double { sum, .. } => sum,
        }
    }

    pub(crate) fn add(self, other: Number) -> Number {
        if let (Number::Integer(one), Number::Integer(other)) = (self, other)
            && let Some(sum) = one.checked_add(other)
        {
            return Number::Integer(sum);
        }
        let ((one, one_error), (other, other_error)) = (self.parts(), other.parts());
        let sum = one + other;
        let lost = if one.abs() >= other.abs() { (one - sum) + other } else { (other - sum) + one };
        Number::Double { sum, error: one_error + other_error + lost }
    }

    pub(crate) fn square(self) -> Number {
        match self {
            Number::Integer(integer) => match integer.checked_mul(integer) {
                Some(square) => Number::Integer(square),
                None => Number::double(integer as f64 * integer as f64),
            },
            Number::Double { .. } => Number::double(self.as_f64() * self.as_f64()),
        }
    }

    pub(crate) fn min(self, other: Number) -> Number {
        if other.as_f64() < self.as_f64() { other } else { self }
    }

    pub(crate) fn max(self, other: Number) -> Number {
        if other.as_f64() > self.as_f64() { other } else { self }
    }

    fn parts(self) -> (f64, f64) {
        match self {
            Number::Integer(integer) => {
                let sum = integer as f64;
                // Beyond 2^53 the conversion rounds.
                (sum, (integer - sum as i128) as f64)
            }
            Number::Double { sum, error } => (sum, error),
        }
    }

    /// Appends its JSON text: a double has a decimal point or an exponent, as Erlang writes it.
    pub(crate) fn write_json(self, out: &mut Vec<u8>) {
        match self {
            Number::Integer(integer) => out.extend_from_slice(itoa::Buffer::new().format(integer).as_bytes()),
            Number::Double { .. } => {
                let value = self.as_f64();
                // JSON has no infinity.
                let text = if value.is_finite() { format!("{value:?}") } else { "null".to_owned() };
                out.extend_from_slice(text.as_bytes());
            }
        }
    }

    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        match self {
            Number::Integer(integer) => {
                let bytes = integer.to_le_bytes();
                let fill = if integer < 0 { 0xff } else { 0 };
                let mut size = bytes.iter().rposition(|byte| *byte != fill).map_or(1, |last| last + 1);
                // The last byte has the sign.
                if size < 16 && (bytes[size - 1] ^ fill) & 0x80 != 0 {
                    size += 1;
                }
                out.push(size as u8);
                out.extend_from_slice(&bytes[..size]);
            }
            Number::Double { sum, error } => {
                out.push(DOUBLE);
                out.extend_from_slice(&sum.to_le_bytes());
                out.extend_from_slice(&error.to_le_bytes());
            }
        }
    }

    /// Decodes a number from the front of `bytes`.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Number> {
        let (first, rest) = bytes.split_first()?;
        let size = if *first == DOUBLE { 16 } else { usize::from(*first) };
        let (own, rest) = rest.split_at_checked(size)?;
        *bytes = rest;
        if *first == DOUBLE {
            let double = |at: usize| f64::from_le_bytes(own[at..at + 8].try_into().expect("8 bytes"));
            return Some(Number::Double { sum: double(0), error: double(8) });
        }
        let last = *own.last()?;
        let mut all = [if last & 0x80 == 0 { 0 } else { 0xff }; 16];
        all.get_mut(..size)?.copy_from_slice(own);
        Some(Number::Integer(i128::from_le_bytes(all)))
    }
}

/// The first byte of a double; that of an integer is its size.
const DOUBLE: u8 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    fn json(number: Number) -> String {
        let mut out = Vec::new();
        number.write_json(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn integers_are_exact_and_doubles_are_compensated() {
        let sum = |texts: &[&str]| {
            texts.iter().map(|text| Number::parse(text).unwrap()).fold(Number::ZERO, Number::add)
        };
        assert_eq!(json(sum(&["1", "2"])), "3");
        assert_eq!(json(sum(&["0.5", "2.5"])), "3.0");
        assert_eq!(json(sum(&["9007199254740992", "1", "9007199254740992"])), "18014398509481985");
        assert_eq!(json(sum(&["1e16", "1.5", "-1e16"])), "1.5");
        let tenths = vec!["0.1"; 10];
        assert_eq!(json(sum(&tenths)), "1.0");
        assert_eq!(Number::parse("null"), None);
        assert_eq!(Number::parse(""), None);
    }

    #[test]
    fn a_number_survives_its_encoding() {
        let integers = [0, 1, -1, 127, 128, -128, -129, 255, 256, i128::MAX, i128::MIN, 1 << 53];
        let numbers = integers
            .into_iter()
            .map(Number::Integer)
            .chain([Number::double(0.5), Number::Double { sum: 1e300, error: -1e280 }]);
        for number in numbers {
            let mut bytes = Vec::new();
            number.encode(&mut bytes);
            bytes.push(7);
            let mut rest = &bytes[..];
            assert_eq!(Number::decode(&mut rest), Some(number));
            assert_eq!(rest, [7]);
        }
        assert_eq!(Number::decode(&mut &[3, 1][..]), None);
        assert_eq!(Number::decode(&mut &[17; 20][..]), None);
    }
}
