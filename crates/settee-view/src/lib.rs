//! Map/reduce views and Mango indexes over a database's changes.

pub mod mango;
