//! `_sum`: numbers, arrays by position, objects by member.
//!
//! Source: CouchDB's documentation of built-in reduce functions, and its behaviour.

use serde_json::{Map, Value};

use super::number::Number;

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
                out.push(0);
                number.encode(out);
            }
            Sum::Refused(value) => {
                out.push(1);
                out.extend_from_slice(value.as_bytes());
            }
            // Doubles lose the error that they carry.
            Sum::Array(_) | Sum::Object(_) => {
                out.push(2);
                self.write_json(out);
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Sum> {
        let (kind, mut rest) = bytes.split_first()?;
        let text = std::str::from_utf8(rest);
        match kind {
            0 => Number::decode(&mut rest).filter(|_| rest.is_empty()).map(Sum::Number),
            1 => Some(Sum::Refused(text.ok()?.to_owned())),
            2 => Sum::of_value(&serde_json::from_str::<Value>(text.ok()?).ok()?),
            _ => None,
        }
    }
}

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
