//! Mango selectors: conditions on documents, as in `_find` and `_changes`.
//!
//! A selector is parsed once, into a tree. A document is matched as the text that it is stored as: one walk
//! over it finds all values that the selector names, and the conditions are then evaluated on their text.
//! Nothing else of the document is parsed.
//!
//! Work is bounded by the document's size times a factor. `$in` and similar operators look a value up in sorted
//! constants. At most `WALKS_MAX` conditions of a selector may walk a value again or be evaluated for each of its
//! elements. A regular expression may take a step per byte of text and byte of its program, so its programs have at most
//! `REGEXES_BYTES_MAX` bytes together: 13 µs per byte of text. A caller that can't wait so long looks at
//! [`Selector::regex_steps`] first.
//!
//! Selectors mean what they mean in CouchDB 3.5, including these peculiarities:
//! 1. A negation is pushed down to the conditions, each of which requires its field to exist: with or without
//!    `$not`, a document that lacks the field doesn't match (except for `$exists`). Within `$elemMatch`,
//!    `$allMatch` and `$keyMapMatch` a negation isn't pushed down, and is an ordinary negation.
//! 2. Values are ordered as views order them, strings by collation; values of `_id` by their bytes.
//! 3. Empty `$and` and `$or` match, an empty `$all` doesn't.
//!
//! Differences: `$regex` is matched by an automaton, without look-around and back-references (400 instead of
//! a search with unbounded time), and its `$` matches only the very end; `$nor` works within `$elemMatch` and
//! similar operators, where CouchDB fails; `$mod` by 0 and names with an empty part are refused when the
//! selector is parsed; `$text` is refused except in a search, since there are no text indexes; errors show an argument as JSON.

mod condition;
mod constant;
mod constants;
mod error;
mod fields;
#[cfg(test)]
#[path = "../tests/fuzz/raw.rs"]
pub(crate) mod fuzz;
mod limits;
mod matcher;
mod parse;
mod paths;
mod raw;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod work;

pub use error::SelectorError;
pub use fields::{FieldPaths, Fields};
pub use limits::SELECTOR_BYTES_MAX;
pub use matcher::Selector;
