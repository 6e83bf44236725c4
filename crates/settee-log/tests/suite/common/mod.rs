//! Helpers that several tests use.

pub(crate) mod model;
pub(crate) mod readers;
pub(crate) mod trial;
