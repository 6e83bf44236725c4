//! Methods of arrays: the document's, which are frozen, and the function's own, which only grow.

use crate::plan::{Callback, Method};
use crate::run::limits::MEMBERS_PER_STEP;
use crate::run::values::{Text, Value};
use crate::run::{Evaluated, Run};

impl Run<'_> {
    /// The methods that call a function for each element.
    pub(super) fn iteration(
        &mut self,
        method: Method,
        array: Value,
        callback: Callback,
        arguments: &[Value],
    ) -> Evaluated<Value> {
        if method == Method::Reduce {
            return self.reduce(array, callback, arguments);
        }
        let made = match method {
            Method::Map | Method::Filter => Some(self.new_array()?),
            _ => None,
        };
        // The length is read once, each element when it is reached.
        for index in 0..self.count(array) {
            let element = self.element(array, index as u32)?.unwrap_or(Value::Undefined);
            let returned = self.call_back(callback, &[element, Value::Number(index as f64), array])?;
            let is_true = self.truth(returned);
            match (method, made) {
                (Method::Map, Some(made)) => self.push(made, returned)?,
                (Method::Filter, Some(made)) if is_true => self.push(made, element)?,
                (Method::Some, _) if is_true => return Ok(Value::Bool(true)),
                (Method::Every, _) if !is_true => return Ok(Value::Bool(false)),
                (Method::Find, _) if is_true => return Ok(element),
                (Method::FindIndex, _) if is_true => return Ok(Value::Number(index as f64)),
                _ => {}
            }
        }
        Ok(match method {
            Method::Map | Method::Filter => Value::Array(made.expect("an array was made above")),
            Method::Some => Value::Bool(false),
            Method::Every => Value::Bool(true),
            Method::FindIndex => Value::Number(-1.0),
            _ => Value::Undefined,
        })
    }

    fn reduce(&mut self, array: Value, callback: Callback, arguments: &[Value]) -> Evaluated<Value> {
        let count = self.count(array);
        let (mut reduced, first) = match arguments.first() {
            Some(initial) => (*initial, 0),
            None if count == 0 => return self.throw("TypeError: empty array"),
            None => (self.element(array, 0)?.unwrap_or(Value::Undefined), 1),
        };
        for index in first..count {
            let element = self.element(array, index as u32)?.unwrap_or(Value::Undefined);
            reduced = self.call_back(callback, &[reduced, element, Value::Number(index as f64), array])?;
        }
        Ok(reduced)
    }

    fn call_back(&mut self, callback: Callback, arguments: &[Value]) -> Evaluated<Value> {
        match callback {
            Callback::Function(function) => self.invoke(function, arguments),
            Callback::Emit => {
                self.step()?;
                self.emit_row(arguments[0], arguments[1])?;
                Ok(Value::Undefined)
            }
        }
    }

    pub(super) fn array_method(
        &mut self,
        method: Method,
        array: Value,
        arguments: &[Value],
    ) -> Evaluated<Value> {
        let count = self.count(array);
        self.steps(count / MEMBERS_PER_STEP)?;
        let first = arguments.first().copied();
        Ok(match method {
            Method::IndexOf | Method::Includes => {
                let start = self.relative(arguments.get(1).copied(), 0, count)?;
                let found = self.find_element(method, array, first.unwrap_or(Value::Undefined), start)?;
                match (method, found) {
                    (Method::Includes, found) => Value::Bool(found.is_some()),
                    (_, Some(index)) => Value::Number(index as f64),
                    (_, None) => Value::Number(-1.0),
                }
            }
            Method::Join => Value::Text(self.join(array, first)?),
            Method::Slice => {
                let start = self.relative(first, 0, count)?;
                let end = self.relative(arguments.get(1).copied(), count, count)?;
                let made = self.new_array()?;
                self.push_all(made, array, start, end)?;
                Value::Array(made)
            }
            Method::Concat => {
                let made = self.new_array()?;
                self.push_all(made, array, 0, count)?;
                for argument in arguments {
                    if self.is_array(*argument) {
                        let count = self.count(*argument);
                        self.push_all(made, *argument, 0, count)?;
                    } else {
                        self.push(made, *argument)?;
                    }
                }
                Value::Array(made)
            }
            Method::Push => {
                let Value::Array(made) = array else {
                    return self.throw("TypeError: object is not extensible");
                };
                for argument in arguments {
                    self.push(made, *argument)?;
                }
                Value::Number(self.count(array) as f64)
            }
            _ => return self.engine("a method of arrays"),
        })
    }

    fn find_element(
        &mut self,
        method: Method,
        array: Value,
        wanted: Value,
        start: usize,
    ) -> Evaluated<Option<usize>> {
        let is_nan = |value| matches!(value, Value::Number(number) if number.is_nan());
        for index in start..self.count(array) {
            let element = self.element(array, index as u32)?.unwrap_or(Value::Undefined);
            let are_nan = method == Method::Includes && is_nan(element) && is_nan(wanted);
            if are_nan || self.is_same(element, wanted)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn join(&mut self, array: Value, separator: Option<Value>) -> Evaluated<Text> {
        let separator = match separator {
            None | Some(Value::Undefined) => Text::COMMA,
            Some(separator) => self.text_of(separator)?,
        };
        let mut texts = Vec::new();
        for index in 0..self.count(array) {
            if index > 0 {
                texts.push(separator);
            }
            let element = self.element(array, index as u32)?.unwrap_or(Value::Undefined);
            texts.push(match element {
                Value::Undefined | Value::Null => Text::EMPTY,
                element => self.text_of(element)?,
            });
        }
        self.concatenate(&texts)
    }

    fn push_all(&mut self, made: u32, array: Value, start: usize, end: usize) -> Evaluated<()> {
        for index in start..end {
            let element = self.element(array, index as u32)?.unwrap_or(Value::Undefined);
            self.push(made, element)?;
        }
        Ok(())
    }
}
