//! From a map function's source to a [`Plan`].
//!
//! The parser checks the syntax, but not all of JavaScript's early errors (such as names that are declared
//! twice). So everything that isn't known to be right is outside the subset: a plan is made only from syntax that
//! is listed here, with every name resolved.

mod calls;
mod expressions;
mod outside;
mod scopes;
mod statements;

use std::collections::HashMap;

use oxc_allocator::Allocator;
use oxc_ast::ast;
use oxc_parser::Parser;
use oxc_span::{GetSpan, SourceType, Span};

use crate::document;
use crate::names;
use crate::plan::{Function, FunctionId, Name, Plan, Slot, Summary};
pub use outside::Outside;
use outside::{Compiled, outside};
use scopes::Scopes;

/// Longest source in bytes; longer functions run in the engine.
pub const SOURCE_BYTES_MAX: usize = 16 << 10;

/// Stack of the thread that parses: enough for a source of [`SOURCE_BYTES_MAX`] that nests at every byte.
const STACK_BYTES: usize = 128 << 20;

/// Variables of a plan, those of inner functions included.
const SLOTS_MAX: usize = 256;

/// Nesting of expressions and statements in a source: bounds the recursion of the compiler, and of a run together
/// with [`HELPERS_MAX`].
const NESTING_MAX: u32 = 100;

/// Functions that are called by name: each may call the next from its deepest expression.
const HELPERS_MAX: usize = 4;

/// Nesting of brackets in a source, which costs the parser most of its stack.
const BRACKETS_MAX: usize = 200;

/// Global names that no declaration may redefine: the engine takes a named function for one.
const CONSTANT_GLOBALS: [&str; 3] = ["undefined", "NaN", "Infinity"];

impl Plan {
    /// Compiles a map function's source, if it lies in the subset. Blocks for some tens of microseconds: the source
    /// is parsed in a thread with a stack of its own size, since the parser recurses.
    ///
    /// # Errors
    /// [`Outside`] names the first construct that has no plan.
    pub fn compile(source: &str) -> Result<Self, Outside> {
        parse(source, |text, expression| {
            let mut compiler = Compiler { text, ..Compiler::default() };
            compiler.map_function(expression)?;
            compiler.finish()
        })
    }
}

/// Parses a map function's source, and passes `compile` what was parsed and the expression that it is.
pub(crate) fn parse<T: Send>(
    source: &str,
    compile: impl FnOnce(&str, &ast::Expression<'_>) -> Compiled<T> + Send,
) -> Compiled<T> {
    let start = Span::new(0, 0);
    if source.len() > SOURCE_BYTES_MAX {
        return outside(start, "a long source");
    }
    if source.contains("<!--") || source.contains("-->") {
        return outside(start, "a comment as in HTML");
    }
    if bracket_depth(source) > BRACKETS_MAX {
        return outside(start, "deep nesting");
    }
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("map-compiler".to_owned()).stack_size(STACK_BYTES);
        let parsed = builder.spawn_scoped(scope, || parse_here(source, compile));
        match parsed.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => outside(start, "no thread for the parser"),
        }
    })
}

fn parse_here<T>(
    source: &str,
    compile: impl FnOnce(&str, &ast::Expression<'_>) -> Compiled<T>,
) -> Compiled<T> {
    let source = source.trim_end_matches(|char: char| char == ';' || char.is_ascii_whitespace());
    let text = format!("({source}\n)");
    let allocator = Allocator::default();
    let parsed = Parser::new(&allocator, &text, SourceType::script()).parse();
    if parsed.panicked || !parsed.diagnostics.is_empty() {
        return outside(Span::new(0, 0), "a syntax error");
    }
    let [ast::Statement::ExpressionStatement(statement)] = parsed.program.body.as_slice() else {
        return outside(parsed.program.span, "source that isn't one function");
    };
    if !parsed.program.directives.is_empty() {
        return outside(parsed.program.span, "a directive");
    }
    match &statement.expression {
        // The source could close the parenthesis itself: `a)=>emit(a`.
        ast::Expression::ParenthesizedExpression(whole) if whole.span == parsed.program.span => {
            compile(&text, &whole.expression)
        }
        other => outside(other.span(), "source that isn't one function"),
    }
}

/// How deep brackets are nested; those in strings and comments count too.
fn bracket_depth(source: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

#[derive(Default)]
pub(crate) struct Compiler<'s> {
    /// What was parsed: the source in parentheses.
    text: &'s str,
    literals: Vec<u8>,
    names: HashMap<String, Name>,
    functions: Vec<Function>,
    slot_count: usize,
    summary: Summary,
    scopes: Scopes,
    nesting: u32,
    helper_count: usize,
    /// Helper functions that call others: none may call itself, however indirectly.
    calls: Vec<(FunctionId, FunctionId)>,
    /// The helper that is being compiled, if any.
    helper: Option<FunctionId>,
}

impl Compiler<'_> {
    fn map_function(&mut self, expression: &ast::Expression<'_>) -> Compiled<()> {
        match expression {
            ast::Expression::ParenthesizedExpression(inner) => self.map_function(&inner.expression),
            ast::Expression::FunctionExpression(function) => {
                self.check_function(function)?;
                let own_name = function.id.as_ref().map(|id| id.name.as_str());
                if own_name.is_some_and(|name| CONSTANT_GLOBALS.contains(&name)) {
                    return outside(function.span, "a function with the name of a constant");
                }
                self.function(None, own_name, &function.params, Body::of(function)?).map(|_| ())
            }
            ast::Expression::ArrowFunctionExpression(function) => {
                let body = self.arrow_body(function)?;
                self.function(None, None, &function.params, body).map(|_| ())
            }
            other => outside(other.span(), "source that isn't one function"),
        }
    }

    fn check_function(&self, function: &ast::Function<'_>) -> Compiled<()> {
        if function.r#async || function.generator {
            return outside(function.span, "an asynchronous function or a generator");
        }
        Ok(())
    }

    fn arrow_body<'b, 'a>(&self, function: &'b ast::ArrowFunctionExpression<'a>) -> Compiled<Body<'b, 'a>> {
        if function.r#async {
            return outside(function.span, "an asynchronous function");
        }
        Ok(match &function.body {
            ast::ArrowFunctionBody::FunctionBody(body) => Body::Statements(body),
            body => match body.as_expression() {
                Some(expression) => Body::Value(expression),
                None => return outside(function.span, "a function's body"),
            },
        })
    }

    /// Compiles a function in a scope of its own; `id` was reserved for it, or is new.
    fn function(
        &mut self,
        id: Option<FunctionId>,
        own_name: Option<&str>,
        params: &ast::FormalParameters<'_>,
        body: Body<'_, '_>,
    ) -> Compiled<FunctionId> {
        let id = match id {
            Some(id) => id,
            None => self.reserve_function(),
        };
        self.scopes.enter_function(id, own_name);
        let params = self.params(params)?;
        let (variables, body) = match body {
            Body::Statements(body) => self.function_body(body)?,
            Body::Value(value) => {
                let value = self.expression(value)?;
                (Vec::new(), vec![crate::plan::Statement::Return(Some(value))])
            }
        };
        self.scopes.leave_function();
        self.functions[id as usize] = Function { params, variables, body };
        Ok(id)
    }

    fn reserve_function(&mut self) -> FunctionId {
        self.functions.push(Function::default());
        self.functions.len() as FunctionId - 1
    }

    fn params(&mut self, params: &ast::FormalParameters<'_>) -> Compiled<Vec<Slot>> {
        if params.rest.is_some() {
            return outside(params.span, "a rest parameter");
        }
        let mut slots = Vec::new();
        for param in &params.items {
            let ast::BindingPattern::BindingIdentifier(name) = &param.pattern else {
                return outside(param.span, "a parameter that isn't a name");
            };
            if param.initializer.is_some() {
                return outside(param.span, "a parameter's default");
            }
            let slot = self.new_slot(param.span)?;
            self.scopes.declare_param(&name.name, slot, param.span)?;
            slots.push(slot);
        }
        Ok(slots)
    }

    fn new_slot(&mut self, span: Span) -> Compiled<Slot> {
        if self.slot_count == SLOTS_MAX {
            return outside(span, "too many variables");
        }
        self.slot_count += 1;
        Ok(self.slot_count as Slot - 1)
    }

    /// Runs `compile` one level deeper.
    fn nested<T>(&mut self, span: Span, compile: impl FnOnce(&mut Self) -> Compiled<T>) -> Compiled<T> {
        if self.nesting == NESTING_MAX {
            return outside(span, "deep nesting");
        }
        self.nesting += 1;
        let compiled = compile(self);
        self.nesting -= 1;
        compiled
    }

    fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return *name;
        }
        let start = self.literals.len();
        self.literals.extend_from_slice(text.as_bytes());
        let name = Name {
            start: start as u32,
            end: self.literals.len() as u32,
            hash: document::name_hash(text.as_bytes()),
            inheriting: names::inheriting(text.as_bytes()),
            is_length: text == "length",
            number: self.names.len() as u32,
        };
        self.names.insert(text.to_owned(), name);
        name
    }

    fn finish(self) -> Compiled<Plan> {
        let span = Span::new(0, 0);
        if self.has_recursion() {
            return outside(span, "a recursive function");
        }
        let Self { literals, names, functions, slot_count, summary, .. } = self;
        Ok(Plan { literals, functions, slot_count, name_count: names.len(), summary })
    }

    fn has_recursion(&self) -> bool {
        // Removes calls of functions that call nothing any more, until none is left or none can be removed.
        let mut calls = self.calls.clone();
        loop {
            let before = calls.len();
            let callers: Vec<FunctionId> = calls.iter().map(|call| call.0).collect();
            calls.retain(|call| callers.contains(&call.1));
            if calls.is_empty() {
                return false;
            }
            if calls.len() == before {
                return true;
            }
        }
    }
}

/// What a function does.
#[derive(Clone, Copy)]
pub(crate) enum Body<'b, 'a> {
    Statements(&'b ast::FunctionBody<'a>),
    Value(&'b ast::Expression<'a>),
}

impl<'b, 'a> Body<'b, 'a> {
    fn of(function: &'b ast::Function<'a>) -> Compiled<Self> {
        match &function.body {
            Some(body) => Ok(Self::Statements(body)),
            None => outside(function.span, "a function without a body"),
        }
    }
}
