//! Runs design functions: JavaScript contexts, on blocking threads, and the functions that writes need.
//!
//! Invariants:
//! 1. No JavaScript runs on an async thread.
//! 2. The number of contexts, in use and idle, is bounded.

mod contexts;
mod user;
mod writes;

pub(crate) use contexts::{Contexts, DesignSource};
pub(crate) use user::{DEFAULT_SECURITY, UserContext};
pub(crate) use writes::WriteFunctions;
