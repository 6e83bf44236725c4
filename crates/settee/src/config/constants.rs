//! The constants of the source that bound a queue, a buffer, a loop or a cache, for `settee config --limits`.
//!
//! `build.rs` collects those whose name has one of the words MAX, LIMIT, COUNT, BYTES, TIMEOUT, BACKLOG and
//! AHEAD, with the first sentence of their documentation.

/// A constant of the source.
pub(super) struct Constant {
    /// The file, relative to `crates/`.
    pub(super) file: &'static str,
    pub(super) name: &'static str,
    /// The number, or the expression if it isn't a plain one.
    pub(super) value: &'static str,
    pub(super) meaning: &'static str,
}

/// The constants, by file.
pub(super) const CONSTANTS: &[Constant] = include!(concat!(env!("OUT_DIR"), "/constants.rs"));

/// Returns the value of the only constant with this name.
pub(super) fn value(name: &str) -> u64 {
    let constant = CONSTANTS.iter().find(|constant| constant.name == name);
    constant.and_then(|constant| constant.value.parse().ok()).expect("the constant is a number")
}
