//! Execution of statements.

use super::limits::MEMBERS_PER_STEP;
use super::values::Value;
use super::{Evaluated, Run};
use crate::document::Kind;
use crate::plan::{Expression, For, FunctionId, Slot, Statement};

/// Where execution goes on after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
    /// The value is `Heap::returned`.
    Return,
}

impl<'r> Run<'r> {
    /// Calls a function of the plan.
    pub(super) fn invoke(&mut self, function: FunctionId, arguments: &[Value]) -> Evaluated<Value> {
        self.step()?;
        let plan: &'r _ = self.plan;
        let function = &plan.functions[function as usize];
        for (index, slot) in function.params.iter().enumerate() {
            self.heap.locals[*slot as usize] = arguments.get(index).copied().unwrap_or(Value::Undefined);
        }
        for slot in &function.variables {
            self.heap.locals[*slot as usize] = Value::Undefined;
        }
        self.heap.returned = None;
        self.execute_all(&function.body)?;
        Ok(self.heap.returned.take().unwrap_or(Value::Undefined))
    }

    fn execute_all(&mut self, statements: &'r [Statement]) -> Evaluated<Flow> {
        for statement in statements {
            let flow = self.execute(statement)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn execute(&mut self, statement: &'r Statement) -> Evaluated<Flow> {
        self.step()?;
        match statement {
            Statement::Evaluate(expression) => {
                self.evaluate(expression)?;
            }
            Statement::Initialise(slot, expression) => {
                self.heap.locals[*slot as usize] = self.evaluate(expression)?
            }
            Statement::Reset(slot) => self.heap.locals[*slot as usize] = Value::Undefined,
            Statement::Block(statements) => return self.execute_all(statements),
            Statement::If(test, consequent, alternate) => {
                if self.test(test)? {
                    return self.execute(consequent);
                }
                if let Some(alternate) = alternate {
                    return self.execute(alternate);
                }
            }
            Statement::For(of) => return self.execute_for(of),
            Statement::While(test, body) => {
                while self.test(test)? {
                    if let Some(flow) = self.iterate(body)? {
                        return Ok(flow);
                    }
                }
            }
            Statement::DoWhile(body, test) => loop {
                if let Some(flow) = self.iterate(body)? {
                    return Ok(flow);
                }
                if !self.test(test)? {
                    break;
                }
            },
            Statement::ForIn(slot, object, body) => return self.execute_for_in(*slot, object, body),
            Statement::ForOf(slot, object, body) => return self.execute_for_of(*slot, object, body),
            Statement::Switch(value, cases) => return self.execute_switch(value, cases),
            Statement::Return(value) => {
                let value = match value {
                    Some(value) => self.evaluate(value)?,
                    None => Value::Undefined,
                };
                self.heap.returned = Some(value);
                return Ok(Flow::Return);
            }
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    pub(super) fn test(&mut self, expression: &'r Expression) -> Evaluated<bool> {
        let value = self.evaluate(expression)?;
        Ok(self.truth(value))
    }

    /// One iteration of a loop; the flow after the loop, if it ends here.
    fn iterate(&mut self, body: &'r Statement) -> Evaluated<Option<Flow>> {
        self.step()?;
        Ok(match self.execute(body)? {
            Flow::Next | Flow::Continue => None,
            Flow::Break => Some(Flow::Next),
            Flow::Return => Some(Flow::Return),
        })
    }

    fn execute_for(&mut self, of: &'r For) -> Evaluated<Flow> {
        self.execute_all(&of.init)?;
        loop {
            if let Some(test) = &of.test
                && !self.test(test)?
            {
                return Ok(Flow::Next);
            }
            if let Some(flow) = self.iterate(&of.body)? {
                return Ok(flow);
            }
            if let Some(update) = &of.update {
                self.evaluate(update)?;
            }
        }
    }

    fn execute_for_in(&mut self, slot: Slot, object: &'r Expression, body: &'r Statement) -> Evaluated<Flow> {
        let object = self.evaluate(object)?;
        let Some(keys) = self.keys(object)? else { return Ok(Flow::Next) };
        self.steps(keys.len() / MEMBERS_PER_STEP)?;
        for key in keys {
            if !self.is_enumerated_still(object, key)? {
                continue;
            }
            self.heap.locals[slot as usize] = Value::Text(key);
            if let Some(flow) = self.iterate(body)? {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn execute_for_of(&mut self, slot: Slot, object: &'r Expression, body: &'r Statement) -> Evaluated<Flow> {
        let object = self.evaluate(object)?;
        let is_array = match object {
            Value::Array(_) => true,
            Value::Node(node) => self.document.kind(node) == Kind::Array,
            Value::Text(_) => return self.engine("a loop over a string's characters"),
            _ => false,
        };
        if let Value::Undefined | Value::Null = object {
            let receiver = if matches!(object, Value::Null) { "null" } else { "undefined" };
            return self.throw(format!("TypeError: cannot read property 'Symbol.iterator' of {receiver}"));
        }
        if !is_array {
            return self.throw("TypeError: value is not iterable");
        }
        let mut index = 0;
        while let Some(element) = self.element(object, index)? {
            self.heap.locals[slot as usize] = element;
            if let Some(flow) = self.iterate(body)? {
                return Ok(flow);
            }
            index += 1;
        }
        Ok(Flow::Next)
    }

    fn execute_switch(
        &mut self,
        value: &'r Expression,
        cases: &'r [(Option<Expression>, Vec<Statement>)],
    ) -> Evaluated<Flow> {
        let value = self.evaluate(value)?;
        let mut chosen = None;
        for (index, (test, _)) in cases.iter().enumerate() {
            if let Some(test) = test {
                let test = self.evaluate(test)?;
                if self.is_same(value, test)? {
                    chosen = Some(index);
                    break;
                }
            }
        }
        let default = cases.iter().position(|(test, _)| test.is_none());
        let Some(first) = chosen.or(default) else { return Ok(Flow::Next) };
        for (_, statements) in &cases[first..] {
            match self.execute_all(statements)? {
                Flow::Next => {}
                Flow::Break => return Ok(Flow::Next),
                flow => return Ok(flow),
            }
        }
        Ok(Flow::Next)
    }
}
