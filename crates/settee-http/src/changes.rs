//! Feeds of changes: `_changes` of a database, and `_db_updates` of the server.
//!
//! [`args`] parses the options of `_changes`, [`filter`] selects the changes and [`feed`] sends them.

mod args;
pub(crate) mod db_updates;
mod feed;
mod filter;
mod function_filter;
mod handler;

pub(crate) use self::handler::handle;
