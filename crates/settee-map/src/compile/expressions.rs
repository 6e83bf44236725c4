//! Expressions other than calls.

use oxc_ast::ast;
use oxc_span::{GetSpan, Span};

use super::Compiler;
use super::outside::{Compiled, outside};
use super::scopes::Meaning;
use crate::plan::{Binary, Expression, Key, Logical, Operation, Target, Unary};

impl Compiler<'_> {
    pub(super) fn expression(&mut self, expression: &ast::Expression<'_>) -> Compiled<Expression> {
        self.nested(expression.span(), |compiler| compiler.any_expression(expression))
    }

    fn any_expression(&mut self, expression: &ast::Expression<'_>) -> Compiled<Expression> {
        Ok(match expression {
            ast::Expression::BooleanLiteral(literal) => Expression::Bool(literal.value),
            ast::Expression::NullLiteral(_) => Expression::Null,
            ast::Expression::NumericLiteral(literal) => Expression::Number(number(literal)?),
            ast::Expression::StringLiteral(literal) => {
                self.check_string(literal)?;
                Expression::Text(self.name(&literal.value))
            }
            ast::Expression::TemplateLiteral(template) => self.template(template)?,
            ast::Expression::Identifier(name) => self.variable(&name.name, name.span)?,
            ast::Expression::ParenthesizedExpression(inner) => self.expression(&inner.expression)?,
            ast::Expression::ArrayExpression(array) => self.array(array)?,
            ast::Expression::ObjectExpression(object) => self.object(object)?,
            ast::Expression::AssignmentExpression(assignment) => self.assignment(assignment)?,
            ast::Expression::BinaryExpression(binary) => {
                let operator = binary_operator(binary.operator, binary.span)?;
                let (left, right) = (self.expression(&binary.left)?, self.expression(&binary.right)?);
                Expression::Binary(operator, Box::new((left, right)))
            }
            ast::Expression::LogicalExpression(logical) => {
                if mixes_operators(logical) {
                    return outside(logical.span, "`??` beside `&&` or `||`");
                }
                let (left, right) = (self.expression(&logical.left)?, self.expression(&logical.right)?);
                Expression::Logical(logical_operator(logical.operator), Box::new((left, right)))
            }
            ast::Expression::ConditionalExpression(conditional) => {
                let test = self.expression(&conditional.test)?;
                let consequent = self.expression(&conditional.consequent)?;
                let alternate = self.expression(&conditional.alternate)?;
                Expression::Conditional(Box::new((test, consequent, alternate)))
            }
            ast::Expression::SequenceExpression(sequence) => {
                let parts = sequence.expressions.iter().map(|part| self.expression(part));
                Expression::Sequence(parts.collect::<Compiled<_>>()?)
            }
            ast::Expression::UnaryExpression(unary) => self.unary(unary)?,
            ast::Expression::UpdateExpression(update) => {
                let added = if update.operator == ast::UpdateOperator::Increment { 1.0 } else { -1.0 };
                let target = self.simple_target(&update.argument)?;
                Expression::Update(Box::new(target), added, !update.prefix)
            }
            ast::Expression::CallExpression(call) => self.call(call)?,
            ast::Expression::ChainExpression(chain) => self.chain(&chain.expression)?,
            other => match other.as_member_expression() {
                Some(member) => self.member(member)?,
                None => return outside(other.span(), kind_outside(other)),
            },
        })
    }

    fn chain(&mut self, element: &ast::ChainElement<'_>) -> Compiled<Expression> {
        let inner = match element {
            ast::ChainElement::CallExpression(call) => self.call(call)?,
            other => match other.as_member_expression() {
                Some(member) => self.member(member)?,
                None => return outside(other.span(), "a chain of this kind"),
            },
        };
        Ok(Expression::Chain(Box::new(inner)))
    }

    pub(super) fn resolve(&self, name: &str, span: Span) -> Compiled<Meaning> {
        self.scopes.resolve(name, span, self.helper)
    }

    fn variable(&mut self, name: &str, span: Span) -> Compiled<Expression> {
        match self.resolve(name, span)? {
            Meaning::Local { slot, .. } => Ok(Expression::Local(slot)),
            Meaning::Helper(_) => outside(span, "a function as a value"),
            Meaning::Free => match name {
                "undefined" => Ok(Expression::Undefined),
                "NaN" => Ok(Expression::Number(f64::NAN)),
                "Infinity" => Ok(Expression::Number(f64::INFINITY)),
                _ => outside(span, format!("the free variable `{name}`")),
            },
        }
    }

    fn check_string(&self, literal: &ast::StringLiteral<'_>) -> Compiled<()> {
        let raw = &self.text[literal.span.start as usize..literal.span.end as usize];
        if literal.lone_surrogates || has_digit_escape(raw) {
            return outside(literal.span, "a string with a lone surrogate or an octal escape");
        }
        Ok(())
    }

    fn template(&mut self, template: &ast::TemplateLiteral<'_>) -> Compiled<Expression> {
        let mut texts = Vec::new();
        for quasi in &template.quasis {
            let Some(cooked) = quasi.value.cooked.as_ref().filter(|_| !quasi.lone_surrogates) else {
                return outside(quasi.span, "a template of this kind");
            };
            // Line ends in templates are normalised, escapes have rules of their own.
            if quasi.value.raw.contains(['\\', '\r']) {
                return outside(quasi.span, "a template with escapes");
            }
            texts.push(self.name(cooked));
        }
        let Some(last) = texts.pop().filter(|_| texts.len() == template.expressions.len()) else {
            return outside(template.span, "a template of this kind");
        };
        let values =
            template.expressions.iter().map(|value| self.expression(value)).collect::<Compiled<Vec<_>>>()?;
        Ok(Expression::Template(texts.into_iter().zip(values).collect(), last))
    }

    fn array(&mut self, array: &ast::ArrayExpression<'_>) -> Compiled<Expression> {
        let mut elements = Vec::new();
        for element in &array.elements {
            match element.as_expression() {
                Some(element) => elements.push(self.expression(element)?),
                None => return outside(element.span(), "a hole or a spread in an array"),
            }
        }
        Ok(Expression::Array(elements))
    }

    fn object(&mut self, object: &ast::ObjectExpression<'_>) -> Compiled<Expression> {
        let mut members = Vec::new();
        for property in &object.properties {
            let ast::ObjectPropertyKind::ObjectProperty(property) = property else {
                return outside(property.span(), "a spread in an object");
            };
            if property.kind != ast::PropertyKind::Init || property.method || property.computed {
                return outside(property.span, "a method, getter, setter or computed name in an object");
            }
            let name = match &property.key {
                ast::PropertyKey::StaticIdentifier(name) => name.name.to_string(),
                ast::PropertyKey::StringLiteral(literal) => {
                    self.check_string(literal)?;
                    literal.value.to_string()
                }
                ast::PropertyKey::NumericLiteral(literal) => {
                    let mut text = Vec::new();
                    crate::number::write(number(literal)?, &mut text);
                    String::from_utf8(text).expect("numbers are printed in ASCII")
                }
                other => return outside(other.span(), "a name of this kind in an object"),
            };
            if name == "__proto__" {
                return outside(property.span, "`__proto__` in an object");
            }
            let name = self.name(&name);
            members.push((name, self.expression(&property.value)?));
        }
        Ok(Expression::Object(members))
    }

    pub(super) fn member(&mut self, member: &ast::MemberExpression<'_>) -> Compiled<Expression> {
        if let ast::MemberExpression::PrivateFieldExpression(field) = member {
            return outside(field.span, "a private field");
        }
        self.summary.member_count += 1;
        let optional = member.optional();
        let object = self.expression(member.object())?;
        Ok(Expression::Member(Box::new(object), self.key(member)?, optional))
    }

    fn key(&mut self, member: &ast::MemberExpression<'_>) -> Compiled<Key> {
        Ok(match member {
            ast::MemberExpression::StaticMemberExpression(member) => {
                Key::Name(self.name(&member.property.name))
            }
            ast::MemberExpression::ComputedMemberExpression(member) => match &member.expression {
                ast::Expression::StringLiteral(literal) => {
                    self.check_string(literal)?;
                    Key::Name(self.name(&literal.value))
                }
                value => Key::Value(Box::new(self.expression(value)?)),
            },
            ast::MemberExpression::PrivateFieldExpression(field) => {
                return outside(field.span, "a private field");
            }
        })
    }

    fn unary(&mut self, unary: &ast::UnaryExpression<'_>) -> Compiled<Expression> {
        let operator = match unary.operator {
            ast::UnaryOperator::UnaryPlus => Unary::Plus,
            ast::UnaryOperator::UnaryNegation => Unary::Minus,
            ast::UnaryOperator::LogicalNot => Unary::Not,
            ast::UnaryOperator::BitwiseNot => Unary::BitNot,
            ast::UnaryOperator::Typeof => Unary::Typeof,
            ast::UnaryOperator::Void => Unary::Void,
            ast::UnaryOperator::Delete => {
                let Some(member) = unary.argument.as_member_expression() else {
                    return outside(unary.span, "`delete` of something that isn't a member");
                };
                let object = self.expression(member.object())?;
                let key = self.key(member)?;
                return Ok(Expression::Delete(Box::new(object), Box::new(key)));
            }
        };
        Ok(Expression::Unary(operator, Box::new(self.expression(&unary.argument)?)))
    }

    fn assignment(&mut self, assignment: &ast::AssignmentExpression<'_>) -> Compiled<Expression> {
        let Some(target) = assignment.left.as_simple_assignment_target() else {
            return outside(assignment.span, "a pattern in an assignment");
        };
        let operation = assignment_operation(assignment.operator, assignment.span)?;
        let target = self.simple_target(target)?;
        let value = self.expression(&assignment.right)?;
        Ok(Expression::Assign(Box::new(target), operation, Box::new(value)))
    }

    fn simple_target(&mut self, target: &ast::SimpleAssignmentTarget<'_>) -> Compiled<Target> {
        if let ast::SimpleAssignmentTarget::AssignmentTargetIdentifier(name) = target {
            return match self.resolve(&name.name, name.span)? {
                Meaning::Local { slot, constant: false } => Ok(Target::Local(slot)),
                Meaning::Free => {
                    outside(name.span, format!("an assignment to the free variable `{}`", name.name))
                }
                _ => outside(name.span, format!("an assignment to `{}`", name.name)),
            };
        }
        let Some(member) = target.as_member_expression() else {
            return outside(target.span(), "an assignment of this kind");
        };
        let object = self.expression(member.object())?;
        let is_computed = matches!(member, ast::MemberExpression::ComputedMemberExpression(_));
        Ok(Target::Member(object, self.key(member)?, is_computed))
    }
}

/// A number in the form that every version of JavaScript reads alike.
fn number(literal: &ast::NumericLiteral<'_>) -> Compiled<f64> {
    let raw = literal.raw.as_deref().unwrap_or_default();
    let is_octal = raw.len() > 1 && raw.starts_with('0') && !raw.starts_with("0.");
    let is_plain = raw.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    match raw.parse() {
        Ok(value) if is_plain && !is_octal => Ok(value),
        _ => outside(literal.span, "a number of this form"),
    }
}

/// Whether a string literal has `\` and a digit: an octal escape, or NUL.
fn has_digit_escape(raw: &str) -> bool {
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'\\' && bytes.next().is_some_and(|escaped| escaped.is_ascii_digit()) {
            return true;
        }
    }
    false
}

fn binary_operator(operator: ast::BinaryOperator, span: Span) -> Compiled<Binary> {
    Ok(match operator {
        ast::BinaryOperator::Equality => Binary::Equal,
        ast::BinaryOperator::Inequality => Binary::NotEqual,
        ast::BinaryOperator::StrictEquality => Binary::Same,
        ast::BinaryOperator::StrictInequality => Binary::NotSame,
        ast::BinaryOperator::LessThan => Binary::Less,
        ast::BinaryOperator::LessEqualThan => Binary::LessOrEqual,
        ast::BinaryOperator::GreaterThan => Binary::Greater,
        ast::BinaryOperator::GreaterEqualThan => Binary::GreaterOrEqual,
        ast::BinaryOperator::Addition => Binary::Add,
        ast::BinaryOperator::Subtraction => Binary::Subtract,
        ast::BinaryOperator::Multiplication => Binary::Multiply,
        ast::BinaryOperator::Division => Binary::Divide,
        ast::BinaryOperator::Remainder => Binary::Remainder,
        ast::BinaryOperator::ShiftLeft => Binary::ShiftLeft,
        ast::BinaryOperator::ShiftRight => Binary::ShiftRight,
        ast::BinaryOperator::ShiftRightZeroFill => Binary::ShiftRightUnsigned,
        ast::BinaryOperator::BitwiseOR => Binary::BitOr,
        ast::BinaryOperator::BitwiseXOR => Binary::BitXor,
        ast::BinaryOperator::BitwiseAnd => Binary::BitAnd,
        ast::BinaryOperator::In => Binary::In,
        ast::BinaryOperator::Exponential | ast::BinaryOperator::Instanceof => {
            return outside(span, "`**` or `instanceof`");
        }
    })
}

/// Whether `??` and another logical operator meet without parentheses, which the parser accepts.
fn mixes_operators(logical: &ast::LogicalExpression<'_>) -> bool {
    let is_mixed = |operand: &ast::Expression<'_>| match operand {
        ast::Expression::LogicalExpression(inner) => {
            inner.operator.is_coalesce() != logical.operator.is_coalesce()
        }
        _ => false,
    };
    is_mixed(&logical.left) || is_mixed(&logical.right)
}

fn logical_operator(operator: ast::LogicalOperator) -> Logical {
    match operator {
        ast::LogicalOperator::And => Logical::And,
        ast::LogicalOperator::Or => Logical::Or,
        ast::LogicalOperator::Coalesce => Logical::Coalesce,
    }
}

fn assignment_operation(operator: ast::AssignmentOperator, span: Span) -> Compiled<Operation> {
    Ok(match operator {
        ast::AssignmentOperator::Assign => Operation::Replace,
        ast::AssignmentOperator::Addition => Operation::Combine(Binary::Add),
        ast::AssignmentOperator::Subtraction => Operation::Combine(Binary::Subtract),
        ast::AssignmentOperator::Multiplication => Operation::Combine(Binary::Multiply),
        ast::AssignmentOperator::Division => Operation::Combine(Binary::Divide),
        ast::AssignmentOperator::Remainder => Operation::Combine(Binary::Remainder),
        ast::AssignmentOperator::LogicalAnd => Operation::Unless(Logical::And),
        ast::AssignmentOperator::LogicalOr => Operation::Unless(Logical::Or),
        ast::AssignmentOperator::LogicalNullish => Operation::Unless(Logical::Coalesce),
        _ => return outside(span, "an assignment with this operator"),
    })
}

fn kind_outside(expression: &ast::Expression<'_>) -> &'static str {
    match expression {
        ast::Expression::RegExpLiteral(_) => "a regular expression",
        ast::Expression::BigIntLiteral(_) => "a BigInt",
        ast::Expression::NewExpression(_) => "`new`",
        ast::Expression::ThisExpression(_) => "`this`",
        ast::Expression::FunctionExpression(_) | ast::Expression::ArrowFunctionExpression(_) => {
            "a function as a value"
        }
        _ => "an expression of this kind",
    }
}
