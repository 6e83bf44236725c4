//! Conversions and comparisons of values. Objects are never converted: that runs their methods.

use std::cmp::Ordering;

use super::limits::BYTES_PER_STEP;
use super::values::{Source, Text, Value};
use super::{Evaluated, Run};
use crate::document::{Kind, NodeId};
use crate::{number, text};

impl Run<'_> {
    /// The value that a node of the document is.
    pub(super) fn node_value(&mut self, node: NodeId) -> Evaluated<Value> {
        Ok(match self.document.kind(node) {
            Kind::Null => Value::Null,
            Kind::True => Value::Bool(true),
            Kind::False => Value::Bool(false),
            Kind::Number => Value::Number(self.document.number(node)),
            Kind::String | Kind::Name => Value::Text(self.node_text(node)?),
            Kind::Array | Kind::Object => Value::Node(node),
        })
    }

    pub(super) fn truth(&self, value: Value) -> bool {
        match value {
            Value::Undefined | Value::Null => false,
            Value::Bool(value) => value,
            Value::Number(value) => value != 0.0 && !value.is_nan(),
            Value::Text(text) => text.size() > 0,
            Value::Node(_) | Value::Array(_) | Value::Object(_) => true,
        }
    }

    pub(super) fn number_of(&mut self, value: Value) -> Evaluated<f64> {
        Ok(match value {
            Value::Undefined => f64::NAN,
            Value::Null => 0.0,
            Value::Bool(value) => f64::from(u8::from(value)),
            Value::Number(value) => value,
            Value::Text(text) => {
                self.steps(text.size() / BYTES_PER_STEP)?;
                match number::from_text(self.bytes(text)) {
                    Some(value) => value,
                    None => return self.engine("an unusual string as a number"),
                }
            }
            Value::Node(_) | Value::Array(_) | Value::Object(_) => {
                return self.engine("an object as a number");
            }
        })
    }

    /// A number that counts or names a position, truncated; `default` if the value is undefined.
    pub(super) fn integer_of(&mut self, value: Option<Value>, default: f64) -> Evaluated<f64> {
        match value {
            None | Some(Value::Undefined) => Ok(default),
            Some(value) => Ok(number::to_integer(self.number_of(value)?)),
        }
    }

    pub(super) fn text_of(&mut self, value: Value) -> Evaluated<Text> {
        match value {
            Value::Text(text) => Ok(text),
            Value::Undefined => Ok(Text::UNDEFINED),
            Value::Null => Ok(Text::NULL),
            Value::Bool(true) => Ok(Text::TRUE),
            Value::Bool(false) => Ok(Text::FALSE),
            Value::Number(value) => self.make(|made| number::write(value, made)),
            Value::Node(_) | Value::Array(_) | Value::Object(_) => self.engine("an object as a string"),
        }
    }

    pub(super) fn concatenate(&mut self, texts: &[Text]) -> Evaluated<Text> {
        let mut start = self.heap.made.len();
        let mut rest = texts;
        if let [first, others @ ..] = texts
            && first.source() == Source::Made
            && first.end() as usize == start
            && !others.iter().any(|other| text::begins_with_low_surrogate(self.bytes(*other)))
        {
            // The first string is the newest one: the others are appended to it. Its own bytes stay as they are, since
            // no surrogates are joined.
            start = first.start() as usize;
            rest = others;
        }
        for text in rest {
            self.append(start, *text)?;
        }
        self.steps(rest.iter().map(|text| text.size()).sum::<usize>() / BYTES_PER_STEP)?;
        self.made_since(start)
    }

    /// `===`.
    pub(super) fn is_same(&mut self, a: Value, b: Value) -> Evaluated<bool> {
        if let (Value::Text(a), Value::Text(b)) = (a, b) {
            if a.size() != b.size() {
                return Ok(false);
            }
            self.steps(a.size() / BYTES_PER_STEP)?;
        }
        Ok(self.are_same(a, b))
    }

    fn are_same(&self, a: Value, b: Value) -> bool {
        match (a, b) {
            (Value::Undefined, Value::Undefined) | (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Number(a), Value::Number(b)) => a == b,
            (Value::Text(a), Value::Text(b)) => self.bytes(a) == self.bytes(b),
            (Value::Node(a), Value::Node(b)) => a == b,
            (Value::Array(a), Value::Array(b)) => a == b,
            (Value::Object(a), Value::Object(b)) => a == b,
            _ => false,
        }
    }

    /// `==`.
    pub(super) fn is_equal(&mut self, a: Value, b: Value) -> Evaluated<bool> {
        let is_nullish = |value| matches!(value, Value::Undefined | Value::Null);
        let is_object = |value| matches!(value, Value::Node(_) | Value::Array(_) | Value::Object(_));
        if is_nullish(a) || is_nullish(b) {
            return Ok(is_nullish(a) && is_nullish(b));
        }
        match (is_object(a), is_object(b)) {
            (true, true) => return self.is_same(a, b),
            (false, false) => {}
            _ => return self.engine("an object compared with another type"),
        }
        if let (Value::Text(_), Value::Text(_)) = (a, b) {
            return self.is_same(a, b);
        }
        Ok(self.number_of(a)? == self.number_of(b)?)
    }

    /// The order of two values; `None` if one is NaN.
    pub(super) fn order(&mut self, a: Value, b: Value) -> Evaluated<Option<Ordering>> {
        if let (Value::Text(a), Value::Text(b)) = (a, b) {
            self.steps(a.size().min(b.size()) / BYTES_PER_STEP)?;
            return Ok(Some(text::compare(self.bytes(a), self.bytes(b))));
        }
        Ok(self.number_of(a)?.partial_cmp(&self.number_of(b)?))
    }

    pub(super) fn add(&mut self, a: Value, b: Value) -> Evaluated<Value> {
        if let (Value::Number(a), Value::Number(b)) = (a, b) {
            return Ok(Value::Number(a + b));
        }
        let is_object = |value| matches!(value, Value::Node(_) | Value::Array(_) | Value::Object(_));
        if is_object(a) || is_object(b) {
            return self.engine("an object in a sum");
        }
        if matches!(a, Value::Text(_)) || matches!(b, Value::Text(_)) {
            let (a, b) = (self.text_of(a)?, self.text_of(b)?);
            return Ok(Value::Text(self.concatenate(&[a, b])?));
        }
        Ok(Value::Number(self.number_of(a)? + self.number_of(b)?))
    }

    /// `typeof`.
    pub(super) fn type_name(value: Value) -> Text {
        match value {
            Value::Undefined => Text::UNDEFINED,
            Value::Null | Value::Node(_) | Value::Array(_) | Value::Object(_) => Text::OBJECT,
            Value::Bool(_) => Text::BOOLEAN,
            Value::Number(_) => Text::NUMBER,
            Value::Text(_) => Text::STRING,
        }
    }
}
