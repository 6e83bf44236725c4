//! `emit` and the global functions.

use super::limits::MEMBERS_PER_STEP;
use super::members::PropertyKey;
use super::values::Value;
use super::{Evaluated, ROWS_MAX, Run};
use crate::document::Kind;
use crate::plan::{Expression, Global};

impl<'r> Run<'r> {
    pub(super) fn arguments(&mut self, arguments: &'r [Expression]) -> Evaluated<Vec<Value>> {
        arguments.iter().map(|argument| self.evaluate(argument)).collect()
    }

    pub(super) fn emit(&mut self, arguments: &'r [Expression]) -> Evaluated<()> {
        let mut row = [Value::Undefined; 2];
        for (index, argument) in arguments.iter().enumerate() {
            let value = self.evaluate(argument)?;
            if let Some(part) = row.get_mut(index) {
                *part = value;
            }
        }
        self.emit_row(row[0], row[1])
    }

    pub(super) fn emit_row(&mut self, key: Value, value: Value) -> Evaluated<()> {
        if self.heap.emitted.len() == ROWS_MAX {
            return self.engine("many rows");
        }
        self.heap.emitted.push((key, value));
        Ok(())
    }

    pub(super) fn is_array(&self, value: Value) -> bool {
        match value {
            Value::Array(_) => true,
            Value::Node(node) => self.document.kind(node) == Kind::Array,
            _ => false,
        }
    }

    pub(super) fn global(&mut self, global: Global, arguments: &'r [Expression]) -> Evaluated<Value> {
        let arguments = self.arguments(arguments)?;
        let first = arguments.first().copied().unwrap_or(Value::Undefined);
        Ok(match global {
            Global::IsArray => Value::Bool(self.is_array(first)),
            Global::Boolean => Value::Bool(self.truth(first)),
            Global::Number if arguments.is_empty() => Value::Number(0.0),
            Global::Number => Value::Number(self.number_of(first)?),
            Global::Text if arguments.is_empty() => Value::Text(super::values::Text::EMPTY),
            Global::Text => Value::Text(self.text_of(first)?),
            Global::Keys | Global::Values | Global::Entries => self.listed(global, first)?,
            Global::HasOwn => {
                let key = self.property(arguments.get(1).copied().unwrap_or(Value::Undefined))?;
                if let Value::Undefined | Value::Null = first {
                    return self.throw("TypeError: Cannot convert undefined or null to object");
                }
                Value::Bool(self.has_own(first, PropertyKey::Property(key))?)
            }
            Global::Max | Global::Min => Value::Number(self.extreme(global, &arguments)?),
            Global::Abs | Global::Ceil | Global::Floor | Global::Round | Global::Trunc => {
                let number = self.number_of(first)?;
                Value::Number(match global {
                    Global::Abs => number.abs(),
                    Global::Ceil => number.ceil(),
                    Global::Floor => number.floor(),
                    Global::Round => round(number),
                    _ => number.trunc(),
                })
            }
        })
    }

    /// `Object.keys`, `Object.values` and `Object.entries`.
    fn listed(&mut self, global: Global, object: Value) -> Evaluated<Value> {
        let Some(keys) = self.keys(object)? else {
            return self.throw("TypeError: Cannot convert undefined or null to object");
        };
        self.steps(keys.len() / MEMBERS_PER_STEP)?;
        let list = self.new_array()?;
        for key in keys {
            if global == Global::Keys {
                self.push(list, Value::Text(key))?;
                continue;
            }
            let property = self.property(Value::Text(key))?;
            let value = self.get_own(object, PropertyKey::Property(property))?.unwrap_or(Value::Undefined);
            if global == Global::Values {
                self.push(list, value)?;
                continue;
            }
            let entry = self.new_array()?;
            self.push(entry, Value::Text(key))?;
            self.push(entry, value)?;
            self.push(list, Value::Array(entry))?;
        }
        Ok(Value::Array(list))
    }

    fn extreme(&mut self, global: Global, arguments: &[Value]) -> Evaluated<f64> {
        let is_max = global == Global::Max;
        let mut extreme = if is_max { f64::NEG_INFINITY } else { f64::INFINITY };
        for argument in arguments {
            let number = self.number_of(*argument)?;
            if number.is_nan() || extreme.is_nan() {
                extreme = f64::NAN;
            } else if number == 0.0 && extreme == 0.0 {
                // -0 is less than 0.
                let is_negative = |zero: f64| zero.is_sign_negative();
                let negative = if is_max {
                    is_negative(number) && is_negative(extreme)
                } else {
                    is_negative(number) || is_negative(extreme)
                };
                extreme = if negative { -0.0 } else { 0.0 };
            } else if (number > extreme) == is_max {
                extreme = number;
            }
        }
        Ok(extreme)
    }
}

/// The nearest integer, the greater of two.
fn round(number: f64) -> f64 {
    let floor = number.floor();
    let rounded = if number - floor >= 0.5 { floor + 1.0 } else { floor };
    rounded.copysign(number)
}
