//! Numbers as JavaScript reads and prints them.

/// Digits up to which an integer is exact as a double, and printed as it is written.
pub(crate) const EXACT_DIGITS_MAX: usize = 15;

/// Largest integer that [`EXACT_DIGITS_MAX`] digits write.
const EXACT_MAX: f64 = 999_999_999_999_999.0;

/// The double that a JSON number means.
pub(crate) fn from_json(text: &str) -> f64 {
    let bytes = text.as_bytes();
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.len() <= EXACT_DIGITS_MAX && digits.iter().all(u8::is_ascii_digit) {
        let integer = digits.iter().fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        let value = integer as f64;
        return if negative { -value } else { value };
    }
    text.parse().unwrap_or(f64::NAN)
}

/// What JavaScript's `String(number)` is.
pub(crate) fn write(value: f64, out: &mut Vec<u8>) {
    if value.abs() <= EXACT_MAX && value.trunc() == value {
        out.extend_from_slice(itoa::Buffer::new().format(value as i64).as_bytes());
    } else {
        out.extend_from_slice(dragonbox_ecma::Buffer::new().format(value).as_bytes());
    }
}

/// What a string is as a number; `None` if that isn't decided here (other bases, white space beyond ASCII).
pub(crate) fn from_text(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
    let text = text.trim_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match text {
        "" => return Some(0.0),
        "Infinity" | "+Infinity" => return Some(f64::INFINITY),
        "-Infinity" => return Some(f64::NEG_INFINITY),
        _ => {}
    }
    if let [b'0', b'x' | b'X' | b'b' | b'B' | b'o' | b'O', ..] = unsigned.as_bytes() {
        return None;
    }
    Some(if is_decimal(unsigned.as_bytes()) { text.parse().ok()? } else { f64::NAN })
}

/// Whether the text is JavaScript's `StrUnsignedDecimalLiteral`, infinity apart.
fn is_decimal(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let integer = digits(text);
    let mut rest = &text[integer..];
    let mut fraction = 0;
    if let [b'.', after @ ..] = rest {
        fraction = digits(after);
        rest = &after[fraction..];
    }
    if integer + fraction == 0 {
        return false;
    }
    if let [b'e' | b'E', after @ ..] = rest {
        let exponent = match after {
            [b'+' | b'-', exponent @ ..] => exponent,
            exponent => exponent,
        };
        return !exponent.is_empty() && digits(exponent) == exponent.len();
    }
    rest.is_empty()
}

/// The array index that a name is the canonical text of: 0 to 2^32-2.
pub(crate) fn array_index(name: &[u8]) -> Option<u32> {
    if name.is_empty() || name.len() > 10 || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    if name[0] == b'0' && name.len() > 1 {
        return None;
    }
    let index = name.iter().fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    u32::try_from(index).ok().filter(|&index| index != u32::MAX)
}

/// A number as an array index.
pub(crate) fn to_index(value: f64) -> Option<u32> {
    let index = value as u32;
    (f64::from(index) == value && index != u32::MAX).then_some(index)
}

/// JavaScript's `ToInt32`.
pub(crate) fn to_int32(value: f64) -> i32 {
    const MODULUS: f64 = 4_294_967_296.0;
    if !value.is_finite() {
        return 0;
    }
    value.trunc().rem_euclid(MODULUS) as u32 as i32
}

/// JavaScript's `ToIntegerOrInfinity`.
pub(crate) fn to_integer(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.trunc() }
}
