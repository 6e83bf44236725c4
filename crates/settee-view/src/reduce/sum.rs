//! `_sum`: numbers, arrays by position, objects by member.
//!
//! Source: CouchDB's documentation of built-in reduce functions, and its behaviour.

use serde_json::{Map, Value};

use super::number::Number;
use crate::row::{push_bytes, push_varint, take_bytes, take_varint};

/// A sum. Structured ones are kept as trees: they are small, or the node they are in has no summary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sum {
    Number(Number),
    Array(Vec<Sum>),
    Object(Vec<(String, Sum)>),
    /// A value that can't be added, as JSON: the sum is an error.
    Refused(String),
}

/// CouchDB's reason for a value that can't be added.
const REASON: &str = "The _sum function requires that map values be numbers, arrays of numbers, or objects. \
                      Objects cannot be mixed with other data structures. Objects can be arbitrarily nested, \
                      provided that the values for all fields are themselves numbers, arrays of numbers, or objects.";

/// Largest number of bytes of a refused value that are shown.
const SHOWN_BYTES_MAX: usize = 256;

impl Sum {
    pub(crate) const ZERO: Sum = Sum::Number(Number::ZERO);

    pub(crate) fn of(json: &str) -> Sum {
        if let Some(number) = Number::parse(json) {
            return Sum::Number(number);
        }
        serde_json::from_str(json)
            .ok()
            .and_then(|value| Sum::of_value(&value))
            .unwrap_or_else(|| Sum::refused(json))
    }

    fn refused(json: &str) -> Sum {
        Sum::Refused(if json.len() <= SHOWN_BYTES_MAX { json.to_owned() } else { "\"…\"".to_owned() })
    }

    /// `None` if it, or something in it, is neither a number, an array nor an object.
    fn of_value(value: &Value) -> Option<Sum> {
        match value {
            Value::Number(number) => Number::parse(&number.to_string()).map(Sum::Number),
            Value::Array(elements) => {
                elements.iter().map(Sum::of_value).collect::<Option<_>>().map(Sum::Array)
            }
            Value::Object(members) => {
                let members = members.iter().map(|(name, value)| Some((name.clone(), Sum::of_value(value)?)));
                members.collect::<Option<_>>().map(Sum::Object)
            }
            _ => None,
        }
    }

    pub(crate) fn add(&self, other: &Sum) -> Sum {
        match (self, other) {
            (Sum::Refused(_), _) => self.clone(),
            (_, Sum::Refused(_)) => other.clone(),
            (Sum::Number(one), Sum::Number(other)) => Sum::Number(one.add(*other)),
            (Sum::Array(one), Sum::Array(other)) => add_arrays(one, other),
            (Sum::Array(array), number @ Sum::Number(_)) | (number @ Sum::Number(_), Sum::Array(array)) => {
                add_arrays(array, std::slice::from_ref(number))
            }
            (Sum::Object(one), Sum::Object(other)) => add_objects(one, other),
            // The sum of nothing is 0.
            (Sum::Object(_), Sum::Number(number)) if *number == Number::ZERO => self.clone(),
            (Sum::Number(number), Sum::Object(_)) if *number == Number::ZERO => other.clone(),
            (Sum::Object(_), _) => Sum::refused(&self.json()),
            (_, Sum::Object(_)) => Sum::refused(&other.json()),
        }
    }

    fn json(&self) -> String {
        let mut out = Vec::new();
        self.write_json(&mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Sum::Number(number) => number.write_json(out),
            Sum::Array(elements) => {
                out.push(b'[');
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    element.write_json(out);
                }
                out.push(b']');
            }
            Sum::Object(members) => {
                out.push(b'{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    settee_doc::write_json_string(name, out);
                    out.push(b':');
                    value.write_json(out);
                }
                out.push(b'}');
            }
            Sum::Refused(value) => {
                out.extend_from_slice(b"{\"error\":\"builtin_reduce_error\",\"reason\":");
                settee_doc::write_json_string(REASON, out);
                out.extend_from_slice(b",\"caused_by\":");
                out.extend_from_slice(value.as_bytes());
                out.push(b'}');
            }
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Sum::Number(number) => {
                out.push(NUMBER);
                number.encode(out);
            }
            // It is alone: a sum with a refused value in it is refused.
            Sum::Refused(value) => {
                out.push(REFUSED);
                out.extend_from_slice(value.as_bytes());
            }
            Sum::Array(elements) => {
                out.push(ARRAY);
                push_varint(elements.len() as u64, out);
                elements.iter().for_each(|element| element.encode(out));
            }
            Sum::Object(members) => {
                out.push(OBJECT);
                push_varint(members.len() as u64, out);
                for (name, value) in members {
                    push_bytes(name.as_bytes(), out);
                    value.encode(out);
                }
            }
        }
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Sum> {
        let sum = Sum::take(&mut bytes)?;
        bytes.is_empty().then_some(sum)
    }

    /// Decodes a sum from the front of `bytes`.
    fn take(bytes: &mut &[u8]) -> Option<Sum> {
        let (kind, rest) = bytes.split_first()?;
        *bytes = rest;
        match *kind {
            NUMBER => Number::decode(bytes).map(Sum::Number),
            REFUSED => {
                let text = std::str::from_utf8(std::mem::take(bytes)).ok()?;
                Some(Sum::Refused(text.to_owned()))
            }
            ARRAY => {
                let count = take_varint(bytes)?;
                (0..count).map(|_| Sum::take(bytes)).collect::<Option<_>>().map(Sum::Array)
            }
            OBJECT => {
                let count = take_varint(bytes)?;
                let mut member = || {
                    let name = std::str::from_utf8(take_bytes(bytes)?).ok()?.to_owned();
                    Some((name, Sum::take(bytes)?))
                };
                (0..count).map(|_| member()).collect::<Option<_>>().map(Sum::Object)
            }
            _ => None,
        }
    }
}

/// First bytes of encoded sums.
const NUMBER: u8 = 0;
const REFUSED: u8 = 1;
const ARRAY: u8 = 2;
const OBJECT: u8 = 3;

/// Adds by position; a missing element is 0. Empty arrays make `[0]`, as in CouchDB, whose sum begins with 0.
fn add_arrays(one: &[Sum], other: &[Sum]) -> Sum {
    let at = |array: &[Sum], index: usize| array.get(index).cloned().unwrap_or(Sum::ZERO);
    let count = one.len().max(other.len()).max(1);
    let mut sums = Vec::with_capacity(count);
    for index in 0..count {
        let sum = at(one, index).add(&at(other, index));
        if let Sum::Refused(_) = sum {
            return sum;
        }
        sums.push(sum);
    }
    Sum::Array(sums)
}

fn add_objects(one: &[(String, Sum)], other: &[(String, Sum)]) -> Sum {
    let mut sums: Map<String, Value> = Map::new();
    let mut values: Vec<Sum> = Vec::new();
    for (name, value) in one.iter().chain(other) {
        match sums.get(name).and_then(Value::as_u64) {
            Some(place) => {
                let sum = values[place as usize].add(value);
                if let Sum::Refused(_) = sum {
                    return sum;
                }
                values[place as usize] = sum;
            }
            None => {
                sums.insert(name.clone(), values.len().into());
                values.push(value.clone());
            }
        }
    }
    Sum::Object(sums.into_iter().map(|(name, _)| name).zip(values).collect())
}

#[cfg(test)]
mod tests {
    //! Goal: a sum survives its encoding. Method: sums of all kinds, also beyond the range of doubles.

    use super::Sum;

    #[test]
    fn a_sum_survives_its_encoding() {
        for values in [
            &["1", "0.5"][..],
            &["1e308", "1e308"],
            &["[1e308, 2]", "[1e308]", "7"],
            &[r#"{"a":{"b":[1e308]},"c":1}"#, r#"{"a":{"b":[1e308, 0.1]}}"#],
            &["[0.1]", "[0.2]", "[1e16]", "[-1e16]"],
            &["[340282366920938463463]", "[1]"],
            &["[]", "{}"],
            &["\"x\"", "1"],
            &["[[1],[2,[3]]]", "[[1]]"],
        ] {
            let sum = values.iter().map(|value| Sum::of(value)).reduce(|one, other| one.add(&other)).unwrap();
            let mut bytes = Vec::new();
            sum.encode(&mut bytes);
            let decoded = Sum::decode(&bytes).unwrap_or_else(|| panic!("{values:?}"));
            let mut again = Vec::new();
            decoded.encode(&mut again);
            assert_eq!((again, decoded.json()), (bytes.clone(), sum.json()), "{values:?}");
            let cut = Sum::decode(&bytes[..bytes.len() - 1]);
            assert_eq!(cut.is_some(), matches!(sum, Sum::Refused(_)), "{values:?}");
        }
    }
}
