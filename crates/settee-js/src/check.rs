//! Whether a source is a function.

use crate::engine::{Engine, Role};
use crate::error::{CompileError, Error};
use crate::limits::Limits;

/// What a source is to be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `views.V.map`.
    Map,
    /// `views.V.reduce`.
    Reduce,
    /// Any other function of a design document.
    Design,
}

/// Compiles `source` in an engine of its own, with the default limits, and evaluates it to a function, which
/// is not called. A source is an expression such as `function (doc) {…}` or `doc => {…}`, or a function
/// declaration; comments, white space and a semicolon may surround it.
///
/// # Errors
/// What CouchDB answers for such a source.
pub fn check(kind: Kind, source: &str) -> Result<(), CompileError> {
    let role = match kind {
        Kind::Map => Role::Map,
        Kind::Reduce => Role::Reduce,
        Kind::Design => Role::Design,
    };
    let compiled =
        Engine::new(&Limits::default()).and_then(|mut engine| engine.add_function(role, None, source));
    match compiled {
        Ok(_) => Ok(()),
        Err(Error::Compile(error)) => Err(error),
        Err(other) => {
            Err(CompileError::Rejected { message: other.to_string(), source_text: source.to_owned() })
        }
    }
}
