//! What a name in the source refers to.
//!
//! Names are resolved before a plan exists, with `var` and function declarations hoisted. JavaScript throws where
//! a `let` is used before its declaration ran; here such a use is outside the subset.

use oxc_span::Span;

use super::outside::{Compiled, outside};
use crate::plan::{FunctionId, Slot};

/// Names that mean something else than a variable in some contexts.
const RESERVED: [&str; 9] =
    ["arguments", "eval", "let", "static", "yield", "await", "async", "of", "__proto__"];

#[derive(Debug, Default)]
pub(crate) struct Scopes {
    stack: Vec<Scope>,
}

#[derive(Debug, Default)]
struct Scope {
    function: FunctionId,
    /// Whether this is the outermost scope of its function.
    is_function: bool,
    bindings: Vec<(String, Binding)>,
    /// The function's own name, which refers to the function.
    own_name: Option<String>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Binding {
    Param(Slot),
    Var(Slot),
    /// Usable from this position of the source on.
    Lexical {
        slot: Slot,
        from: u32,
        constant: bool,
    },
    Helper(FunctionId),
}

/// A name's meaning at a place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Meaning {
    Free,
    Local { slot: Slot, constant: bool },
    Helper(FunctionId),
}

impl Scopes {
    pub(crate) fn enter_function(&mut self, function: FunctionId, own_name: Option<&str>) {
        self.stack.push(Scope {
            function,
            is_function: true,
            own_name: own_name.map(str::to_owned),
            ..Scope::default()
        });
    }

    pub(crate) fn leave_function(&mut self) {
        let scope = self.stack.pop().expect("a scope was entered");
        assert!(scope.is_function, "blocks are left before their function");
    }

    pub(crate) fn enter_block(&mut self) {
        let function = self.stack.last().expect("blocks are in functions").function;
        self.stack.push(Scope { function, ..Scope::default() });
    }

    pub(crate) fn leave_block(&mut self) {
        let scope = self.stack.pop().expect("a scope was entered");
        assert!(!scope.is_function, "functions are left after their blocks");
    }

    pub(crate) fn declare_param(&mut self, name: &str, slot: Slot, span: Span) -> Compiled<()> {
        self.declare(name, Binding::Param(slot), span)
    }

    /// Declares a `var`; one that names a parameter, or is declared already, is that one and takes no new slot.
    pub(crate) fn declare_var(&mut self, name: &str, slot: Slot, span: Span) -> Compiled<bool> {
        match self.own_binding(name) {
            Some(Binding::Param(_) | Binding::Var(_)) => Ok(false),
            Some(_) => outside(span, format!("`{name}` declared twice")),
            None => self.declare(name, Binding::Var(slot), span).map(|()| true),
        }
    }

    pub(crate) fn declare_helper(&mut self, name: &str, function: FunctionId, span: Span) -> Compiled<()> {
        self.declare(name, Binding::Helper(function), span)
    }

    /// Declares a `let` or `const` in the innermost block, usable from a position on.
    pub(crate) fn declare_lexical(
        &mut self,
        name: &str,
        slot: Slot,
        from: u32,
        constant: bool,
        span: Span,
    ) -> Compiled<()> {
        // A `var` in this block would be a second declaration; it isn't known where the `var` is.
        let is_var =
            |(bound, binding): &(String, Binding)| bound == name && matches!(binding, Binding::Var(_));
        if self.function_scope().bindings.iter().any(is_var) {
            return outside(span, format!("`{name}` declared twice"));
        }
        self.declare(name, Binding::Lexical { slot, from, constant }, span)
    }

    fn declare(&mut self, name: &str, binding: Binding, span: Span) -> Compiled<()> {
        if RESERVED.contains(&name) {
            return outside(span, format!("a variable named `{name}`"));
        }
        let scope = self.stack.last_mut().expect("names are declared in functions");
        if scope.bindings.iter().any(|(bound, _)| bound == name) {
            return outside(span, format!("`{name}` declared twice"));
        }
        scope.bindings.push((name.to_owned(), binding));
        Ok(())
    }

    fn function_scope(&self) -> &Scope {
        self.stack.iter().rev().find(|scope| scope.is_function).expect("names are declared in functions")
    }

    fn own_binding(&self, name: &str) -> Option<Binding> {
        let scope = self.stack.last().expect("names are declared in functions");
        scope.bindings.iter().find(|(bound, _)| bound == name).map(|(_, binding)| *binding)
    }

    /// What `name` refers to at `span`. `helper`: the hoisted function that is being compiled; it may be called
    /// before any `let` around it is initialised.
    pub(crate) fn resolve(&self, name: &str, span: Span, helper: Option<FunctionId>) -> Compiled<Meaning> {
        let mut is_in_helper = helper.is_some();
        for scope in self.stack.iter().rev() {
            for (bound, binding) in &scope.bindings {
                if bound != name {
                    continue;
                }
                return match *binding {
                    Binding::Param(slot) | Binding::Var(slot) => Ok(Meaning::Local { slot, constant: false }),
                    Binding::Helper(function) => Ok(Meaning::Helper(function)),
                    Binding::Lexical { .. } if helper.is_some() && !is_in_helper => {
                        outside(span, format!("`{name}` of an outer function"))
                    }
                    Binding::Lexical { from, .. } if span.start < from => {
                        outside(span, format!("`{name}` before its declaration"))
                    }
                    Binding::Lexical { slot, constant, .. } => Ok(Meaning::Local { slot, constant }),
                };
            }
            if scope.own_name.as_deref() == Some(name) {
                return outside(span, "a function that refers to itself");
            }
            if scope.is_function && helper == Some(scope.function) {
                is_in_helper = false;
            }
        }
        if RESERVED.contains(&name) {
            return outside(span, format!("`{name}`"));
        }
        Ok(Meaning::Free)
    }
}
