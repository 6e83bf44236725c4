//! Evaluation of expressions.

use std::cmp::Ordering;

use super::members::PropertyKey;
use super::values::{Text, Value};
use super::{Evaluated, Run, Stop};
use crate::number;
use crate::plan::{Binary, Expression, Key, Logical, Name, Operation, Optional, Target, Unary};

impl<'r> Run<'r> {
    pub(super) fn evaluate(&mut self, expression: &'r Expression) -> Evaluated<Value> {
        Ok(match expression {
            Expression::Undefined => Value::Undefined,
            Expression::Null => Value::Null,
            Expression::Bool(value) => Value::Bool(*value),
            Expression::Number(value) => Value::Number(*value),
            Expression::Text(name) => Value::Text((*name).into()),
            Expression::Local(slot) => self.heap.locals[*slot as usize],
            Expression::Member(object, key, optional) => return self.member(object, key, *optional),
            Expression::Logical(operator, operands) => {
                let left = self.evaluate(&operands.0)?;
                if self.is_decided(*operator, left) { left } else { self.evaluate(&operands.1)? }
            }
            Expression::Binary(operator, operands) => {
                let left = self.evaluate(&operands.0)?;
                let right = self.evaluate(&operands.1)?;
                return self.binary(*operator, left, right);
            }
            Expression::Unary(operator, operand) => return self.unary(*operator, operand),
            Expression::Conditional(parts) => {
                let branch = if self.test(&parts.0)? { &parts.1 } else { &parts.2 };
                return self.evaluate(branch);
            }
            Expression::Emit(arguments) => {
                self.emit(arguments)?;
                Value::Undefined
            }
            Expression::Array(elements) => self.array(elements)?,
            Expression::Object(members) => self.object(members)?,
            other => return self.rare(other),
        })
    }

    /// Expressions that are rarer, apart so that `evaluate` takes less stack.
    fn rare(&mut self, expression: &'r Expression) -> Evaluated<Value> {
        Ok(match expression {
            Expression::Chain(inner) => match self.evaluate(inner) {
                Err(Stop::Chain) => Value::Undefined,
                evaluated => return evaluated,
            },
            Expression::Sequence(parts) => {
                let mut last = Value::Undefined;
                for part in parts {
                    last = self.evaluate(part)?;
                }
                last
            }
            Expression::Template(parts, last) => self.template(parts, *last)?,
            Expression::Assign(target, operation, value) => return self.assign(target, *operation, value),
            Expression::Update(target, added, is_postfix) => return self.update(target, *added, *is_postfix),
            Expression::Delete(object, key) => Value::Bool(self.delete(object, key)?),
            Expression::Call(function, arguments) => {
                let arguments = self.arguments(arguments)?;
                return self.invoke(*function, &arguments);
            }
            Expression::Method(call) => return self.method(call),
            Expression::Global(global, arguments) => return self.global(*global, arguments),
            other => unreachable!("`evaluate` handles {other:?}"),
        })
    }

    fn member(&mut self, object: &'r Expression, key: &'r Key, optional: Optional) -> Evaluated<Value> {
        let object = self.evaluate(object)?;
        if let (Value::Node(0), Key::Name(name)) = (object, key) {
            return self.member_of_root(name);
        }
        if optional && matches!(object, Value::Undefined | Value::Null) {
            return Err(Stop::Chain);
        }
        let key = self.key(key)?;
        self.get(object, key)
    }

    /// A member of the document, from what is known or from the text.
    fn member_of_root(&mut self, name: &Name) -> Evaluated<Value> {
        if let Some(value) = self.heap.known[name.number as usize] {
            return Ok(value);
        }
        let value = self.get(Value::Node(0), PropertyKey::Property((*name).into()))?;
        self.heap.known[name.number as usize] = Some(value);
        Ok(value)
    }

    /// Whether a logical operator's value is its left operand.
    fn is_decided(&self, operator: Logical, left: Value) -> bool {
        match operator {
            Logical::And => !self.truth(left),
            Logical::Or => self.truth(left),
            Logical::Coalesce => !matches!(left, Value::Undefined | Value::Null),
        }
    }

    fn unary(&mut self, operator: Unary, operand: &'r Expression) -> Evaluated<Value> {
        let value = self.evaluate(operand)?;
        Ok(match operator {
            Unary::Not => Value::Bool(!self.truth(value)),
            Unary::Minus => Value::Number(-self.number_of(value)?),
            Unary::Plus => Value::Number(self.number_of(value)?),
            Unary::BitNot => Value::Number(f64::from(!number::to_int32(self.number_of(value)?))),
            Unary::Typeof => Value::Text(Self::type_name(value)),
            Unary::Void => Value::Undefined,
        })
    }

    fn binary(&mut self, operator: Binary, left: Value, right: Value) -> Evaluated<Value> {
        let decided = match operator {
            Binary::Same => self.is_same(left, right)?,
            Binary::NotSame => !self.is_same(left, right)?,
            Binary::Equal => self.is_equal(left, right)?,
            Binary::NotEqual => !self.is_equal(left, right)?,
            Binary::Less => self.order(left, right)? == Some(Ordering::Less),
            Binary::Greater => self.order(left, right)? == Some(Ordering::Greater),
            Binary::LessOrEqual => matches!(self.order(left, right)?, Some(Ordering::Less | Ordering::Equal)),
            Binary::GreaterOrEqual => {
                matches!(self.order(left, right)?, Some(Ordering::Greater | Ordering::Equal))
            }
            Binary::In => self.is_in(left, right)?,
            Binary::Add => return self.add(left, right),
            _ => return self.arithmetic(operator, left, right).map(Value::Number),
        };
        Ok(Value::Bool(decided))
    }

    fn arithmetic(&mut self, operator: Binary, left: Value, right: Value) -> Evaluated<f64> {
        let (left, right) = (self.number_of(left)?, self.number_of(right)?);
        let (bits, shift) = (number::to_int32(left), number::to_int32(right) as u32 & 31);
        Ok(match operator {
            Binary::Subtract => left - right,
            Binary::Multiply => left * right,
            Binary::Divide => left / right,
            Binary::Remainder => left % right,
            Binary::ShiftLeft => f64::from(bits << shift),
            Binary::ShiftRight => f64::from(bits >> shift),
            Binary::ShiftRightUnsigned => f64::from(bits as u32 >> shift),
            Binary::BitOr => f64::from(bits | number::to_int32(right)),
            Binary::BitXor => f64::from(bits ^ number::to_int32(right)),
            Binary::BitAnd => f64::from(bits & number::to_int32(right)),
            other => unreachable!("`binary` handles {other:?}"),
        })
    }

    fn array(&mut self, elements: &'r [Expression]) -> Evaluated<Value> {
        let array = self.new_array()?;
        for element in elements {
            let element = self.evaluate(element)?;
            self.push(array, element)?;
        }
        Ok(Value::Array(array))
    }

    fn object(&mut self, members: &'r [(Name, Expression)]) -> Evaluated<Value> {
        let object = self.new_object()?;
        for (name, value) in members {
            let value = self.evaluate(value)?;
            self.define(object, *name, value)?;
        }
        Ok(Value::Object(object))
    }

    fn template(&mut self, parts: &'r [(Name, Expression)], last: Name) -> Evaluated<Value> {
        let mut texts: Vec<Text> = Vec::with_capacity(parts.len() * 2 + 1);
        for (text, value) in parts {
            texts.push((*text).into());
            let value = self.evaluate(value)?;
            texts.push(self.text_of(value)?);
        }
        texts.push(last.into());
        Ok(Value::Text(self.concatenate(&texts)?))
    }

    fn assign(
        &mut self,
        target: &'r Target,
        operation: Operation,
        value: &'r Expression,
    ) -> Evaluated<Value> {
        let place = self.place(target)?;
        let old = match operation {
            Operation::Replace => Value::Undefined,
            Operation::Combine(_) | Operation::Unless(_) => self.read(place, target)?,
        };
        if let Operation::Unless(operator) = operation
            && self.is_decided(operator, old)
        {
            return Ok(old);
        }
        let value = self.evaluate(value)?;
        let value = match operation {
            Operation::Combine(operator) => self.binary(operator, old, value)?,
            Operation::Replace | Operation::Unless(_) => value,
        };
        self.write(place, value)?;
        Ok(value)
    }

    fn update(&mut self, target: &'r Target, added: f64, is_postfix: bool) -> Evaluated<Value> {
        let place = self.place(target)?;
        let old = self.read(place, target)?;
        let old = self.number_of(old)?;
        self.write(place, Value::Number(old + added))?;
        Ok(Value::Number(if is_postfix { old } else { old + added }))
    }

    fn place(&mut self, target: &'r Target) -> Evaluated<Place> {
        match target {
            Target::Local(slot) => Ok(Place::Local(*slot as usize)),
            Target::Member(object, key, _) => {
                let object = self.evaluate(object)?;
                Ok(Place::Member(object, self.key(key)?))
            }
        }
    }

    /// The value that an assignment or update changes.
    fn read(&mut self, place: Place, target: &Target) -> Evaluated<Value> {
        let is_computed = matches!(target, Target::Member(_, _, true));
        match place {
            Place::Member(Value::Undefined | Value::Null, _) if is_computed => {
                self.throw("TypeError: value has no property")
            }
            Place::Local(slot) => Ok(self.heap.locals[slot]),
            Place::Member(object, key) => self.get(object, key),
        }
    }

    fn write(&mut self, place: Place, value: Value) -> Evaluated<()> {
        match place {
            Place::Local(slot) => {
                self.heap.locals[slot] = value;
                Ok(())
            }
            Place::Member(object, key) => self.set(object, key, value),
        }
    }
}

/// What an assignment writes to, its operands evaluated.
#[derive(Debug, Clone, Copy)]
enum Place {
    Local(usize),
    Member(Value, PropertyKey),
}
