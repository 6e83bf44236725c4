//! Map functions compiled to plans over JSON text.
//!
//! Most map functions are a few conditions over members and one or two calls of `emit`. [`Plan::compile`] parses a
//! function's source and compiles it, if it lies in a subset of JavaScript; [`Plan::run`] evaluates the plan over a
//! [`Document`], the document's text with a flat index of its tokens, and reports the rows as JSON text. No object
//! is built for what the function doesn't make itself.
//!
//! Invariants:
//! 1. Rows are byte for byte those of the engine (QuickJS) in CouchDB's loop: the document frozen, rows printed by
//!    `JSON.stringify` after the function returned.
//! 2. What isn't known to be exact is [`Outside`] at compile time, or [`Outcome::NeedsEngine`] for one document.
//! 3. A plan keeps no state: a run depends on the plan and the document only. It assumes the globals of a new
//!    context, which [`may_change_globals`] is about.
//! 4. A run is bounded in steps, memory and output ([`run`]).
//!
//! What has no plan runs in the engine, over the [`Members`] that it reads if they are known.
//!
//! The subset: `docs/decisions/0029-plans.md`.

pub mod run;

mod compile;
mod document;
mod globals;
mod members;
mod names;
mod number;
mod plan;
mod text;

pub use compile::{Outside, SOURCE_BYTES_MAX};
pub use document::{DOCUMENT_BYTES_MAX, DOCUMENT_DEPTH_MAX, Document, DocumentBuffer, Unreadable};
pub use globals::may_change_globals;
pub use members::Members;
pub use plan::Plan;
pub use run::{Outcome, Rows, Scratch};
