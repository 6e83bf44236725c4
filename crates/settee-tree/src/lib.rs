//! An append-only copy-on-write B+tree in one file: an ordered, durable map with snapshots.
//!
//! - A [`Tree`] is the file. [`Tree::update`] merges sorted changes into a [`Root`] and returns a new root;
//!   it reports each key's previous value to the caller on the way. [`Tree::commit`] makes a root the one
//!   that opening the file returns. [`TreeBuilder`] loads a new tree from sorted entries.
//! - A [`Root`] is an immutable snapshot of the tree. Any number of tasks read it at once: by key, by sorted
//!   keys ([`Root::get_many`]), by range in both directions ([`Root::scan`]). No update makes them wait.
//! - A [`Reduction`] is kept in the inner nodes. With it, [`Root::summary_in`], [`Root::count_in`] and
//!   [`Root::seek`] answer for any range without visiting its entries.
//! - A [`NodeCache`] bounds the memory of any number of trees.
//!
//! Replaced nodes stay in the file: rewriting the tree would save [`Tree::file_bytes`] minus
//! [`Root::live_bytes`]. A rewrite is a scan into a [`TreeBuilder`], while readers and the writer continue on
//! the old file.
//!
//! Durability: a root for which [`Tree::commit`] returned survives any power loss; an interrupted commit has
//! no effect. The assumption is that a completed sync is durable and that blocks written since the last sync
//! may hold anything; checksums detect those.
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
mod options;
mod reduce;
mod reduction;
mod root;
mod run;
mod scan;
mod shared;
mod tree;
mod update;

pub use builder::TreeBuilder;
pub use cache::NodeCache;
pub use check::{PROBLEM_COUNT_MAX, Problem};
pub use error::TreeError;
pub use format::{ATTACHMENT_SIZE_MAX, HEAD_SIZE, KEY_SIZE_MAX, VALUE_SIZE_MAX};
pub use options::TreeOptions;
pub use reduction::{Count, NoReduction, Reduction, SUMMARY_SIZE_MAX};
pub use root::Root;
pub use scan::Scan;
pub use tree::Tree;
pub use update::Change;
