//! The collation order of CouchDB's views: JSON values as sort keys, which `memcmp` orders.
//!
//! A sort key is made from JSON text in one pass, without a tree of values. It is self-delimiting: no sort key
//! is a prefix of another, so that a caller may append more bytes. Values that collate as equal have the same
//! sort key; the value can't be read back from it.
//!
//! - [`write_sort_key`] makes a sort key, [`write_array_start`] the common beginning of the keys of arrays.
//! - [`array_prefix`] finds the part of an array's sort key that its first elements make up.
//! - [`raise`] turns the beginning of some keys into a bound above all of them.
//!
//! The order of types and values is CouchDB's ("Views Collation" in its documentation); strings are ordered by
//! the root collation of Unicode (CLDR), which ICU4X implements. Sort keys may change with its data, so they are
//! stored with [`VERSION`].
//!
//! | value | bytes |
//! |---|---|
//! | `null`, `false`, `true` | a tag |
//! | number | a tag, then the double's bits, ordered: 8 bytes, big-endian |
//! | string | a tag, the collation's sort key, 0 |
//! | array | a tag, the elements, [`END`] |
//! | object | a tag, the members in their order, each the name as a string and the value, [`END`] |
//!
//! Under [`Collation::Raw`] the tags have Erlang's order of types, and a string is its UTF-8 bytes, with 0 as
//! `00 ff`, ended by `00 00`.

mod order;
mod scan;
mod text;
mod write;

pub use order::{Collation, END};
pub use scan::{array_prefix, raise};
pub use write::{InvalidJson, NESTING_MAX, write_array_start, write_sort_key, write_string_key};

/// Version of the sort keys: that of their encoding, and of ICU4X's collation data.
pub const VERSION: &str = "1-icu4x-2.4.0";
