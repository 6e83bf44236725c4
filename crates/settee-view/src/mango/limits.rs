//! The limits of Mango's requests, indexes and plans.

/// Largest number of columns of an index, and of fields of a sort.
pub const COLUMNS_MAX: usize = 256;

/// Largest number of indexes of a database that a request considers.
pub const INDEXES_MAX: usize = 1_000;

/// Largest number of ranges of an index that a plan reads. A selector with more alternatives reads what lies
/// between them, too.
pub const RANGES_MAX: usize = 1_000;

/// Largest number of design documents of one bulk deletion.
pub const BULK_DELETE_MAX: usize = 10_000;

/// Number of results of a page by default.
pub const LIMIT_DEFAULT: u64 = 25;

/// More documents examined per result than this cause a warning.
pub const EXAMINED_PER_RESULT_MAX: u64 = 10;

/// Largest number of bytes of a value shown in an error.
pub const SHOWN_BYTES_MAX: usize = 200;
