//! Memtables: recent records, indexed in memory.
//!
//! A memtable (`table.rs`) is two ordered maps with aggregates over ranges of keys (`map.rs`): one by key,
//! one by `Seq`. `cursor.rs` scans a map, and `merge.rs` the maps of several memtables as one.

mod cursor;
mod entry;
mod map;
mod merge;
mod node;
mod page;
mod table;
#[cfg(test)]
mod tests;

pub use cursor::Cursor;
pub use entry::{Aggregates, Found};
pub(crate) use entry::{add, subtract};
pub use map::MemtableMap;
pub(crate) use merge::Merged;
pub(crate) use table::Memtable;
