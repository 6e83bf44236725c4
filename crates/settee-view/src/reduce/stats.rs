//! `_stats`: sum, count, minimum, maximum and sum of squares, of numbers, of arrays by position, and of objects
//! that have these members already.

use serde_json::Value;

use super::number::Number;

/// Statistics, or those of each position of arrays.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stats {
    None,
    One(Fields),
    Each(Vec<Fields>),
    /// A value that isn't numeric, as JSON.
    Refused(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fields {
    sum: Number,
    count: Number,
    min: Number,
    max: Number,
    squares: Number,
}

const NAMES: [&str; 5] = ["sum", "count", "min", "max", "sumsqr"];

impl Fields {
    fn of(number: Number) -> Fields {
        let squares = number.square();
        Fields { sum: number, count: Number::Integer(1), min: number, max: number, squares }
    }

    fn of_value(value: &Value) -> Option<Fields> {
        let number = |value: &Value| match value {
            Value::Number(number) => Number::parse(&number.to_string()),
            _ => None,
        };
        if let Value::Object(members) = value {
            let member = |name: &str| members.get(name).and_then(number);
            let [sum, count, min, max, squares] = NAMES.map(member);
            return Some(Fields { sum: sum?, count: count?, min: min?, max: max?, squares: squares? });
        }
        number(value).map(Fields::of)
    }

    fn add(self, other: Fields) -> Fields {
        Fields {
            sum: self.sum.add(other.sum),
            count: self.count.add(other.count),
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            squares: self.squares.add(other.squares),
        }
    }

    fn numbers(self) -> [Number; 5] {
        [self.sum, self.count, self.min, self.max, self.squares]
    }

    fn write_json(self, out: &mut Vec<u8>) {
        for (index, (name, number)) in NAMES.into_iter().zip(self.numbers()).enumerate() {
            out.extend_from_slice(if index == 0 { b"{\"" } else { b",\"" });
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            number.write_json(out);
        }
        out.push(b'}');
    }

    fn decode(bytes: &mut &[u8]) -> Option<Fields> {
        let mut next = || Number::decode(bytes);
        Some(Fields { sum: next()?, count: next()?, min: next()?, max: next()?, squares: next()? })
    }
}

impl Stats {
    pub(crate) fn of(json: &str) -> Stats {
        if let Some(number) = Number::parse(json) {
            return Stats::One(Fields::of(number));
        }
        let found = match serde_json::from_str(json) {
            Ok(Value::Array(elements)) => {
                elements.iter().map(Fields::of_value).collect::<Option<_>>().map(Stats::Each)
            }
            Ok(value @ Value::Object(_)) => Fields::of_value(&value).map(Stats::One),
            _ => None,
        };
        found.unwrap_or_else(|| Stats::refused(json))
    }

    fn refused(json: &str) -> Stats {
        Stats::Refused(json.chars().take(256).collect())
    }

    pub(crate) fn add(&self, other: &Stats) -> Stats {
        match (self, other) {
            (Stats::Refused(_), _) | (_, Stats::None) => self.clone(),
            (_, Stats::Refused(_)) | (Stats::None, _) => other.clone(),
            (Stats::One(one), Stats::One(other)) => Stats::One(one.add(*other)),
            (Stats::Each(one), Stats::Each(other)) if one.len() == other.len() => {
                Stats::Each(one.iter().zip(other).map(|(one, other)| one.add(*other)).collect())
            }
            _ => Stats::Refused("different shapes".to_owned()),
        }
    }

    /// Appends the JSON text.
    ///
    /// # Errors
    /// CouchDB's reason for a value that isn't numeric.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Stats::None => out.extend_from_slice(b"null"),
            Stats::One(fields) => fields.write_json(out),
            Stats::Each(each) => {
                out.push(b'[');
                for (index, fields) in each.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    fields.write_json(out);
                }
                out.push(b']');
            }
            Stats::Refused(value) => return Err(format!("non-numeric _stats input: {value}")),
        }
        Ok(())
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Stats::None => {}
            Stats::One(fields) => {
                out.push(1);
                fields.numbers().into_iter().for_each(|number| number.encode(out));
            }
            Stats::Each(each) => {
                out.push(2);
                each.iter().flat_map(|fields| fields.numbers()).for_each(|number| number.encode(out));
            }
            Stats::Refused(value) => {
                out.push(3);
                out.extend_from_slice(value.as_bytes());
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Stats> {
        let Some((kind, mut rest)) = bytes.split_first() else { return Some(Stats::None) };
        match kind {
            1 => Fields::decode(&mut rest).filter(|_| rest.is_empty()).map(Stats::One),
            2 => {
                let mut each = Vec::new();
                while !rest.is_empty() {
                    each.push(Fields::decode(&mut rest)?);
                }
                Some(Stats::Each(each))
            }
            3 => Some(Stats::Refused(std::str::from_utf8(rest).ok()?.to_owned())),
            _ => None,
        }
    }
}
