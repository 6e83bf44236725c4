//! The limits of a selector, which bound its memory and the work of matching.

/// Largest nesting depth of a selector, its values included.
pub(super) const NESTING_MAX: usize = 100;

/// Largest size of a selector's text in bytes.
pub const SELECTOR_BYTES_MAX: usize = 1 << 20;

/// Largest number of conditions of a selector.
pub(super) const CONDITIONS_MAX: usize = 10_000;

/// Largest number of conditions that may walk a whole value, or are evaluated for each of its elements.
pub(super) const WALKS_MAX: usize = 500;

/// Largest number of values in a selector's `$in`, `$nin` and `$all` lists, which are sorted during parsing.
pub(super) const LISTED_MAX: usize = 100_000;

/// Largest total size in bytes of the conditions' paths: a long name around many conditions is stored for
/// each of them.
pub(super) const PATH_BYTES_MAX: usize = 1 << 20;

/// Largest number of regular expressions of a selector.
pub(super) const REGEXES_MAX: usize = 64;

/// Largest size in bytes of a compiled regular expression, and of its state cache.
pub(super) const REGEX_BYTES_MAX: usize = 256 << 10;
