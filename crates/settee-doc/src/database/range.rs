//! Ranges of ids, and their bounds as keys.

use std::ops::Bound;

use crate::documents::keys::{LOCAL, document_key, local_key};

/// Common prefix of local documents' ids.
const LOCAL_PREFIX: &str = "_local/";

/// A range of ids, in the order of their bytes. The default is all ids.
#[derive(Debug, Clone, Default)]
pub struct Range {
    /// First id of the scan, inclusive.
    pub start: Option<String>,
    /// Last id of the scan.
    pub end: Option<String>,
    /// Whether `end` itself is left out.
    pub exclusive_end: bool,
    /// Whether the scan descends: `start` is then the greatest id.
    pub descending: bool,
    /// Number of documents skipped first.
    pub skip: u64,
    /// Common prefix of the ids: a partition's prefix, or `_design/`.
    pub prefix: String,
}

/// The range's lower and upper bounds as keys.
pub(super) fn bounds(range: &Range) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let start = range.start.as_deref().map(|id| Bound::Included(document_key(id)));
    let end = range.end.as_deref().map(document_key);
    let end = end.map(|key| if range.exclusive_end { Bound::Excluded(key) } else { Bound::Included(key) });
    let (lower, upper) = if range.descending { (end, start) } else { (start, end) };
    let (first, last) = prefix_bounds(&range.prefix);
    // Bounds outside the prefix are clamped to it.
    let lower = lower.filter(|lower| key_of(lower) >= &first).unwrap_or(Bound::Included(first.clone()));
    let upper = upper.filter(|upper| key_of(upper) < &last).unwrap_or(Bound::Excluded(last));
    in_order(lower, upper, first)
}

/// As [`bounds`], for local documents. A bound without `_local/` precedes or follows all of them.
pub(super) fn local_bounds(range: &Range) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let key = |id: &str| match id.strip_prefix(LOCAL_PREFIX) {
        Some(rest) => local_key(rest),
        None if id < LOCAL_PREFIX => vec![LOCAL],
        None => vec![LOCAL + 1],
    };
    let start = range.start.as_deref().map(|id| Bound::Included(key(id)));
    let end = range.end.as_deref().map(key);
    let end = end.map(|key| if range.exclusive_end { Bound::Excluded(key) } else { Bound::Included(key) });
    let (lower, upper) = if range.descending { (end, start) } else { (start, end) };
    let lower = lower.unwrap_or(Bound::Included(vec![LOCAL]));
    in_order(lower, upper.unwrap_or(Bound::Excluded(vec![LOCAL + 1])), vec![LOCAL])
}

/// The same bounds, or those of an empty range at `first` if nothing lies between them.
fn in_order(
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    first: Vec<u8>,
) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let is_one = matches!((&lower, &upper), (Bound::Included(low), Bound::Included(high)) if low == high);
    match is_one || key_of(&lower) < key_of(&upper) {
        true => (lower, upper),
        false => (Bound::Included(first.clone()), Bound::Excluded(first)),
    }
}

/// The first key of the documents whose ids begin with `prefix`, and the first key behind them.
pub(super) fn prefix_bounds(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let first = document_key(prefix);
    let mut behind = first.clone();
    // Neither the key's first byte nor a byte of UTF-8 is 255.
    *behind.last_mut().expect("a key has its kind") += 1;
    (first, behind)
}

fn key_of(bound: &Bound<Vec<u8>>) -> &Vec<u8> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => unreachable!("ranges of documents are bounded"),
    }
}

pub(super) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// The complementary bound: of the keys on the other side.
pub(super) fn opposite(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match as_slice(bound) {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => unreachable!("ranges of documents are bounded"),
    }
}
