//! Design functions that requests name: `_update`, `_show`, `_list` and `_rewrite`, and the filters of `_changes`.
//!
//! [`request_object`] makes the object `req` that all of them get, and [`response_object`] makes a response of the
//! object that most of them return. The functions run on blocking threads: see `javascript`.

mod document;
mod list;
mod list_rows;
pub(crate) mod request_object;
mod response_object;
mod rewrite;
mod rewrite_rules;
mod show;
mod update;

pub(crate) use self::list::{list, read_list_body};
pub(crate) use self::rewrite::rewrite;
pub(crate) use self::show::show;
pub(crate) use self::update::update;
