//! `_find`, `_explain` and `_index`: searches by selectors, and the indexes that answer them.
//!
//! What a request means, and how it is answered, is decided by [`settee_view::mango`]. [`search`] reads the rows
//! and documents of a plan and writes the results; [`rows`] is what a JSON index must provide.

mod definitions;
mod find;
mod index;
mod results;
mod rows;
mod search;

pub(crate) use self::find::{explain, find};
pub(crate) use self::index::handle as indexes;
