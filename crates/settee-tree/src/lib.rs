//! An append-only copy-on-write B+tree in one file: an ordered, durable map with snapshots.
//!
//! - A [`Tree`] is the file. [`Tree::update`] merges sorted changes into a [`Root`] and gives a new
//!   one, telling each key's previous value on the way; [`Tree::commit`] makes a root what opening
//!   the file gives. [`TreeBuilder`] loads a new tree from sorted entries.
//! - A [`Root`] is the tree as it was at one moment, for ever. Any number of tasks read it at once,
//!   by key, by sorted keys ([`Root::get_many`]), by range in both directions ([`Root::scan`]),
//!   and no update makes them wait.
//! - A [`Reduction`] is kept in the inner nodes: [`Root::summary_in`], [`Root::count_in`] and
//!   [`Root::seek`] know of any range without visiting it.
//! - A [`NodeCache`] bounds the memory of any number of trees.
//!
//! What was replaced stays in the file: [`Tree::file_bytes`] less [`Root::live_bytes`] is what
//! writing the tree anew would save. That is a scan into a [`TreeBuilder`], while readers and
//! the writer go on with the old file.
//!
//! Durability: what [`Tree::commit`] returned for survives any power loss; a commit cut short is
//! as if it had never been begun. It is assumed that a completed sync is durable, and that blocks
//! written since may hold anything: checksums tell.
//!
//! Bytes: `docs/format.md`, "A tree file".
//!
//! # A tree in 40 lines
//! `cargo run -p settee-tree --example tree`
#![doc = concat!("```\n", include_str!("../examples/tree.rs"), "```\n")]

mod append;
mod builder;
mod cache;
mod check;
mod error;
mod format;
mod node;
mod reduce;
mod reduction;
mod root;
mod run;
mod scan;
mod shared;
mod tree;
mod update;

pub use builder::TreeBuilder;
pub use cache::{CacheStats, NodeCache};
pub use check::{PROBLEM_COUNT_MAX, Problem};
pub use error::TreeError;
pub use format::{ATTACHMENT_SIZE_MAX, HEAD_SIZE, KEY_SIZE_MAX, VALUE_SIZE_MAX};
pub use reduction::{Count, NoReduction, Reduction, SUMMARY_SIZE_MAX};
pub use root::Root;
pub use scan::Scan;
pub use tree::{Tree, TreeOptions};
pub use update::Change;
