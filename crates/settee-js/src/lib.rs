//! CouchDB's design functions in sandboxed JavaScript contexts.
//!
//! A context is one QuickJS engine for the functions of one design document in one database. It is `Send`, has
//! no thread of its own and blocks its caller: the caller keeps contexts in a pool and runs them on its
//! threads. Everything that crosses is JSON text.
//!
//! A context has no I/O and no modules but those that `require` finds in the design document. Memory, stack
//! and ticks are limited ([`Limits`]); what a function does depends on no clock but by `Date` and
//! `Math.random`, which CouchDB's functions have too.
//!
//! Decision: `docs/decisions/0028-javascript.md`.

mod answer;
mod check;
mod design;
mod elements;
mod engine;
mod error;
mod limits;
mod map;
mod purity;
mod reduce;

pub use check::{Kind, check};
pub use design::{DesignContext, ListChunk, ListOutput, Refusal, RowSource, Updated};
pub use error::{CompileError, Error, Stop};
pub use limits::{FUNCTION_COUNT_MAX, Limits, MEMORY_BYTES_MIN};
pub use map::{MapBatch, MapContext, Outcome, Rows};
pub use reduce::ReduceContext;
