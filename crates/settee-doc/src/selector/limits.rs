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

/// Largest total size in bytes of the patterns of a selector's regular expressions. Compiling takes up to 50 µs per
/// byte of them: `\w` in another case is a set of 140,000 characters.
pub(super) const PATTERN_BYTES_MAX: usize = 8 << 10;

/// Largest total size in bytes of a selector's compiled regular expressions: without their state caches, but with
/// the programs that read backwards. It bounds the work per byte of a document.
pub(super) const REGEXES_BYTES_MAX: usize = 128 << 10;

/// Largest size in bytes of a regular expression's state cache, in each thread that matches with it.
pub(super) const REGEX_CACHE_BYTES_MAX: usize = 256 << 10;
