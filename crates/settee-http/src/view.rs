//! Views: `_view`, its `queries`, and `_info`.

mod args;
mod handler;
mod info;
mod query;
mod rows;

pub(crate) use handler::route;
pub(crate) use info::info;
