//! What several of the tests use.

pub(crate) mod model;
pub(crate) mod trial;
pub(crate) mod versions;
