//! Reductions: summaries of entries, kept in inner nodes.

use std::fmt;

/// Largest encoded summary in bytes.
pub const SUMMARY_SIZE_MAX: usize = 2 << 10;

/// An associative function over entries in key order, kept in inner nodes, so that the summary of any range
/// costs two root-to-leaf paths. It need not be commutative.
///
/// `join(a, join(b, c))` must equal `join(join(a, b), c)`, and `join(zero, a)` and `join(a, zero)` must equal
/// `a`, since the result should not depend on how entries are distributed over nodes. Where it does, as with sums
/// of floating-point numbers, it is nevertheless the same at each reading of a root: a node's summary is made from
/// its items in their order, and joined in that order.
pub trait Reduction: Send + Sync + 'static {
    /// The summary of a run of entries.
    type Summary: Clone + PartialEq + fmt::Debug + Send + Sync + 'static;

    /// The summary of no entries.
    fn zero(&self) -> Self::Summary;

    /// The summary of one entry.
    fn of(&self, key: &[u8], value: &[u8]) -> Self::Summary;

    /// The summary of two adjacent runs, `left` before `right`.
    fn join(&self, left: &Self::Summary, right: &Self::Summary) -> Self::Summary;

    /// Shortens the summary of all items of a node, before it is kept in the parent. The default returns it
    /// unchanged. A summary that collects its parts, to reduce them together, does so here.
    fn collapse(&self, summary: Self::Summary) -> Self::Summary {
        summary
    }

    /// Appends the summary's bytes, at most [`SUMMARY_SIZE_MAX`] of them.
    fn encode(&self, summary: &Self::Summary, out: &mut Vec<u8>);

    /// Decodes a summary from exactly these bytes; `None` if they are not one.
    fn decode(&self, bytes: &[u8]) -> Option<Self::Summary>;
}

/// The empty reduction: for trees that are read by key and range only. The entry count is kept nevertheless.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoReduction;

impl Reduction for NoReduction {
    type Summary = ();

    fn zero(&self) {}

    fn of(&self, _key: &[u8], _value: &[u8]) {}

    fn join(&self, (): &(), (): &()) {}

    fn encode(&self, (): &(), _out: &mut Vec<u8>) {}

    fn decode(&self, bytes: &[u8]) -> Option<()> {
        bytes.is_empty().then_some(())
    }
}

/// Counts entries. Every tree does that itself ([`crate::Root::count_in`]); this is the shortest example of a
/// reduction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Count;

impl Reduction for Count {
    type Summary = u64;

    fn zero(&self) -> u64 {
        0
    }

    fn of(&self, _key: &[u8], _value: &[u8]) -> u64 {
        1
    }

    fn join(&self, left: &u64, right: &u64) -> u64 {
        // A damaged node must not panic.
        left.saturating_add(*right)
    }

    fn encode(&self, summary: &u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&summary.to_le_bytes());
    }

    fn decode(&self, bytes: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}
