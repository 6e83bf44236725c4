//! Shared by several of the tests.

pub(crate) mod model;
pub(crate) mod trial;
pub(crate) mod versions;
