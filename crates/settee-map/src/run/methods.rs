//! Method calls.

mod arrays;
mod texts;

use super::members::{Property, PropertyKey};
use super::values::Value;
use super::{Evaluated, Run, Stop};
use crate::plan::{Method, MethodCall};

impl<'r> Run<'r> {
    pub(super) fn method(&mut self, call: &'r MethodCall) -> Evaluated<Value> {
        self.step()?;
        let receiver = self.evaluate(&call.receiver)?;
        if call.optional && matches!(receiver, Value::Undefined | Value::Null) {
            return Err(Stop::Chain);
        }
        let key = PropertyKey::Property(Property::from(call.name));
        if let Value::Undefined | Value::Null = receiver {
            // Throws.
            return self.get(receiver, key);
        }
        // A member of the document shadows the method, and no document has functions.
        let is_shadowed = self.has_own(receiver, key)?;
        let arguments = self.arguments(&call.arguments)?;
        if is_shadowed || call.name.inheriting & Self::kind(receiver, self) == 0 {
            return self.throw("TypeError: not a function");
        }
        match (call.method, receiver) {
            (Method::HasOwnProperty, _) => {
                let key = self.property(arguments.first().copied().unwrap_or(Value::Undefined))?;
                Ok(Value::Bool(self.has_own(receiver, PropertyKey::Property(key))?))
            }
            (Method::ToString, Value::Text(_) | Value::Number(_) | Value::Bool(_))
                if arguments.is_empty() =>
            {
                self.text_of(receiver).map(Value::Text)
            }
            (Method::ToString, _) => self.engine("`toString`"),
            (_, Value::Text(text)) => self.text_method(call.method, text, &arguments),
            (_, Value::Node(_) | Value::Array(_)) => match call.callback {
                Some(callback) => self.iteration(call.method, receiver, callback, &arguments),
                None => self.array_method(call.method, receiver, &arguments),
            },
            _ => self.engine("a method of this receiver"),
        }
    }

    /// A position in something of `length` parts: negative ones count from the end.
    pub(super) fn relative(
        &mut self,
        value: Option<Value>,
        default: usize,
        length: usize,
    ) -> Evaluated<usize> {
        let position = self.integer_of(value, default as f64)?;
        let position = if position < 0.0 { position + length as f64 } else { position };
        Ok(position.clamp(0.0, length as f64) as usize)
    }

    /// A position in something of `length` parts: negative ones are the beginning.
    pub(super) fn absolute(
        &mut self,
        value: Option<Value>,
        default: usize,
        length: usize,
    ) -> Evaluated<usize> {
        let position = self.integer_of(value, default as f64)?;
        Ok(position.clamp(0.0, length as f64) as usize)
    }
}
