//! Calls: `emit`, functions of the source, known global functions and methods.

use oxc_ast::ast;
use oxc_span::GetSpan;

use super::outside::{Compiled, outside};
use super::scopes::Meaning;
use super::{Body, Compiler};
use crate::plan::{Callback, Expression, FunctionId, Global, Method, MethodCall};

impl Compiler<'_> {
    pub(super) fn call(&mut self, call: &ast::CallExpression<'_>) -> Compiled<Expression> {
        if call.optional {
            return outside(call.span, "an optional call");
        }
        if let ast::Expression::Identifier(name) = &call.callee {
            return match self.resolve(&name.name, name.span)? {
                Meaning::Helper(function) => {
                    self.note_call(function);
                    Ok(Expression::Call(function, self.arguments(&call.arguments)?))
                }
                Meaning::Local { .. } => outside(name.span, "a call of a variable"),
                Meaning::Free if name.name == "emit" => {
                    self.summary.emit_count += 1;
                    Ok(Expression::Emit(self.arguments(&call.arguments)?))
                }
                Meaning::Free => match global_function(&name.name) {
                    Some(global) => Ok(Expression::Global(global, self.arguments(&call.arguments)?)),
                    None => outside(name.span, format!("a call of `{}`", name.name)),
                },
            };
        }
        let ast::Expression::StaticMemberExpression(member) = &call.callee else {
            return outside(call.span, "a call of this kind");
        };
        match self.namespace_function(member)? {
            Some(global) => Ok(Expression::Global(global, self.arguments(&call.arguments)?)),
            None => self.method(member, &call.arguments),
        }
    }

    /// Inner functions belong to the helper that they are in.
    fn note_call(&mut self, callee: FunctionId) {
        if let Some(caller) = self.helper {
            self.calls.push((caller, callee));
        }
    }

    fn arguments(&mut self, arguments: &[ast::Argument<'_>]) -> Compiled<Vec<Expression>> {
        arguments
            .iter()
            .map(|argument| match argument.as_expression() {
                Some(argument) => self.expression(argument),
                None => outside(argument.span(), "a spread argument"),
            })
            .collect()
    }

    /// `Array.isArray`, `Object.keys`, `Math.floor`, `Object.prototype.hasOwnProperty.call` and the like.
    fn namespace_function(&self, member: &ast::StaticMemberExpression<'_>) -> Compiled<Option<Global>> {
        let Some(mut path) = path(&member.object) else { return Ok(None) };
        let Meaning::Free = self.resolve(path[0].0, path[0].1)? else { return Ok(None) };
        path.push((&member.property.name, member.property.span));
        let names: Vec<&str> = path.iter().map(|name| name.0).collect();
        Ok(Some(match names.as_slice() {
            ["Array", "isArray"] => Global::IsArray,
            ["Object", "keys"] => Global::Keys,
            ["Object", "values"] => Global::Values,
            ["Object", "entries"] => Global::Entries,
            ["Object", "prototype", "hasOwnProperty", "call"] => Global::HasOwn,
            ["Math", "abs"] => Global::Abs,
            ["Math", "ceil"] => Global::Ceil,
            ["Math", "floor"] => Global::Floor,
            ["Math", "max"] => Global::Max,
            ["Math", "min"] => Global::Min,
            ["Math", "round"] => Global::Round,
            ["Math", "trunc"] => Global::Trunc,
            _ => return Ok(None),
        }))
    }

    fn method(
        &mut self,
        member: &ast::StaticMemberExpression<'_>,
        arguments: &[ast::Argument<'_>],
    ) -> Compiled<Expression> {
        let name = &member.property.name;
        let Some(method) = Method::of_name(name) else {
            return outside(member.property.span, format!("the method `{name}`"));
        };
        let receiver = self.expression(&member.object)?;
        let name = self.name(name);
        let (callback, arguments) = if method.takes_function() {
            let Some((first, others)) = arguments.split_first() else {
                return outside(member.span, "a method without its function");
            };
            (Some(self.callback(first)?), others)
        } else {
            (None, arguments)
        };
        if callback.is_some() {
            self.summary.loop_count += 1;
        }
        let arguments = self.arguments(arguments)?;
        let optional = member.optional;
        Ok(Expression::Method(Box::new(MethodCall { receiver, optional, name, method, callback, arguments })))
    }

    fn callback(&mut self, argument: &ast::Argument<'_>) -> Compiled<Callback> {
        match argument {
            ast::Argument::Identifier(name) => match self.resolve(&name.name, name.span)? {
                Meaning::Helper(function) => {
                    self.note_call(function);
                    Ok(Callback::Function(function))
                }
                Meaning::Free if name.name == "emit" => {
                    self.summary.emit_count += 1;
                    Ok(Callback::Emit)
                }
                _ => outside(name.span, "a function of this kind"),
            },
            ast::Argument::FunctionExpression(function) => {
                self.check_function(function)?;
                let own_name = function.id.as_ref().map(|id| id.name.as_str());
                let id = self.function(None, own_name, &function.params, Body::of(function)?)?;
                Ok(Callback::Function(id))
            }
            ast::Argument::ArrowFunctionExpression(function) => {
                let body = self.arrow_body(function)?;
                Ok(Callback::Function(self.function(None, None, &function.params, body)?))
            }
            other => outside(other.span(), "a function of this kind"),
        }
    }
}

/// The names of `a.b.c`.
fn path<'b>(expression: &'b ast::Expression<'_>) -> Option<Vec<(&'b str, oxc_span::Span)>> {
    match expression {
        ast::Expression::Identifier(name) => Some(vec![(&name.name, name.span)]),
        ast::Expression::StaticMemberExpression(member) if !member.optional => {
            let mut path = path(&member.object)?;
            path.push((&member.property.name, member.property.span));
            Some(path)
        }
        _ => None,
    }
}

fn global_function(name: &str) -> Option<Global> {
    Some(match name {
        "isArray" => Global::IsArray,
        "Number" => Global::Number,
        "String" => Global::Text,
        "Boolean" => Global::Boolean,
        _ => return None,
    })
}
