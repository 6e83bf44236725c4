//! Merges in memory: a leaf's entries with their changes, and neighbours under one parent with each other.
//!
//! A [`Merging`] collects the items of neighbours in a [`Run`], which the update then splits into nodes. A
//! [`ChildListBuilder`] collects a parent's new child list. Nothing here reads or writes.

use std::ops::Range;

use crate::error::TreeError;
use crate::format::{Pointer, VALUE_SIZE_MAX};
use crate::node::{Child, Node};
use crate::reduction::Reduction;
use crate::run::{Run, items_min};
use crate::update::changes::{Change, check_size};

/// A node smaller than the target divided by this is merged with a neighbour.
const SMALL_DIVISOR: usize = 4;

/// How a touched node is rebuilt.
pub(super) enum TouchedContent<S> {
    /// A leaf: its entries are merged with their changes.
    Entries,
    /// An inner node: it gets these children; `None`: unchanged.
    Children(Option<NewChildren<S>>),
}

/// New children of one parent.
pub(super) struct NewChildren<S> {
    pub(super) children: Vec<Child<S>>,
    /// Whether the last of them received entries appended in order.
    pub(super) is_appended: bool,
}

/// Neighbours under one parent that are being merged.
pub(super) struct Merging {
    pub(super) run: Run,
    pub(super) separator: Vec<u8>,
    /// Number of old nodes whose items are in the run.
    pub(super) node_count: usize,
    /// Whether one of these nodes was cached.
    pub(super) is_cached: bool,
    pub(super) inserted: Inserted,
}

/// The new items, if they are adjacent.
#[derive(Default)]
pub(super) enum Inserted {
    #[default]
    None,
    Neighbours(Range<usize>),
    Scattered,
}

impl Merging {
    pub(super) fn new(separator: Vec<u8>) -> Merging {
        Merging {
            run: Run::default(),
            separator,
            node_count: 0,
            is_cached: false,
            inserted: Inserted::default(),
        }
    }

    /// Whether a neighbour should join the merge: if the merged node would be small and has enough free
    /// space, or would be an inner node with one child.
    pub(super) fn should_absorb(&self, level: u8, node_bytes: usize, neighbour: Pointer) -> bool {
        if self.run.is_empty() {
            return false;
        }
        let size = self.run.node_size(0..self.run.len());
        let is_small =
            size * SMALL_DIVISOR < node_bytes && size + usize::from(neighbour.length) <= node_bytes;
        is_small || self.run.len() < items_min(level)
    }

    /// Adds children of an inner node. The first of all gets the run's separator, since keys below its own
    /// belong to it too.
    pub(super) fn push_children<R: Reduction>(
        &mut self,
        reduction: &R,
        new_children: &NewChildren<R::Summary>,
    ) {
        if new_children.is_appended {
            let end = self.run.len() + new_children.children.len();
            self.inserted = Inserted::Neighbours(end.saturating_sub(1)..end);
        }
        for child in &new_children.children {
            let key = if self.run.is_empty() { &self.separator } else { &child.separator };
            self.run.push_with(key, |out| child.encode(reduction, out));
        }
    }

    /// Adds a neighbour's items.
    pub(super) fn push_node(&mut self, node: &Node, is_cached: bool) {
        self.run.push_items(node, 0..node.len());
        self.node_count += 1;
        self.is_cached |= is_cached;
    }

    pub(super) fn push_run(&mut self, run: &Run) {
        for index in 0..run.len() {
            self.run.push(run.key(index), run.payload(index));
        }
        self.node_count += 1;
    }
}

impl Inserted {
    fn add(&mut self, index: usize) {
        *self = match self {
            Inserted::None => Inserted::Neighbours(index..index + 1),
            Inserted::Neighbours(range) if range.end == index => Inserted::Neighbours(range.start..index + 1),
            _ => Inserted::Scattered,
        };
    }
}

/// The children of a parent before the update.
pub(super) enum OldChildren<'a, S> {
    Node(&'a Node),
    /// The root node, of this level; it has no parent.
    Top(&'a Child<S>, u8),
}

impl<S: Clone> OldChildren<'_, S> {
    pub(super) fn len(&self) -> usize {
        match self {
            OldChildren::Node(node) => node.len(),
            OldChildren::Top(..) => 1,
        }
    }

    pub(super) fn child<R: Reduction<Summary = S>>(&self, reduction: &R, index: usize) -> Option<Child<S>> {
        match self {
            OldChildren::Node(node) => node.child(reduction, index),
            OldChildren::Top(top, _) => Some((*top).clone()),
        }
    }

    /// The parent's offset.
    pub(super) fn offset(&self) -> u64 {
        match self {
            OldChildren::Node(node) => node.offset(),
            OldChildren::Top(top, _) => top.pointer.offset,
        }
    }

    /// The children's level.
    pub(super) fn level(&self) -> u8 {
        match self {
            OldChildren::Node(node) => node.level() - 1,
            OldChildren::Top(_, level) => *level,
        }
    }
}

/// Collects a parent's new child list.
pub(super) struct ChildListBuilder<S> {
    pub(super) new_children: NewChildren<S>,
    /// The merge in progress after the last of them.
    pub(super) merging: Option<Merging>,
    pub(super) level: u8,
    pub(super) is_changed: bool,
}

impl<S> ChildListBuilder<S> {
    pub(super) fn new(level: u8) -> ChildListBuilder<S> {
        let new_children = NewChildren { children: Vec::new(), is_appended: false };
        ChildListBuilder { new_children, merging: None, level, is_changed: false }
    }
}

/// Merges changes into a leaf's entries, and appends the result to `merging`. Returns whether they had an
/// effect; if not, nothing is appended.
pub(super) fn merge_leaf<K: AsRef<[u8]>, C>(
    merging: &mut Merging,
    leaf: Option<&Node>,
    changes: &mut [(K, Option<C>)],
    decide: &mut impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
) -> Result<bool, TreeError> {
    let start = merging.run.len();
    let mut is_changed = false;
    let mut copied = 0;
    for (key, change) in changes {
        let key = key.as_ref();
        let place = leaf.map_or(Err(0), |leaf| leaf.search(key));
        let previous = leaf.zip(place.ok()).map(|(leaf, index)| leaf.payload(index));
        let change = change.take().expect("each is decided once");
        let decision = decide(key, change, previous);
        if decision == Change::Keep {
            continue;
        }
        if let Some(leaf) = leaf {
            let (Ok(index) | Err(index)) = place;
            merging.run.push_items(leaf, copied..index);
            copied = index + usize::from(place.is_ok());
        }
        match decision {
            Change::Put(value) => {
                check_size("a value", value.len(), VALUE_SIZE_MAX)?;
                is_changed |= previous != Some(&value[..]);
                if previous.is_none() {
                    merging.inserted.add(merging.run.len());
                }
                merging.run.push(key, &value);
            }
            Change::Remove | Change::Keep => is_changed |= previous.is_some(),
        }
    }
    match leaf {
        _ if !is_changed => merging.run.truncate(start),
        Some(leaf) => merging.run.push_items(leaf, copied..leaf.len()),
        None => {}
    }
    Ok(is_changed)
}
