//! The names of simulated files and directories: those that the program sees, those on the medium, and the
//! changes between.
//!
//! A change gives a node another name, or none: creation, removal and rename alike. It is pending until every
//! directory that it affects was synced. At a power loss each pending change is kept or dropped as a whole.
//!
//! Invariants:
//! 1. A directory has at most one name, a file any number. A change is kept only if all earlier changes to
//!    the same names are kept. So what remains is a tree that some order of the medium's writes could
//!    produce.
//! 2. A synced name changes only by a later change to the same name.

use std::collections::{BTreeMap, BTreeSet};

use crate::content::Fate;
use crate::random::Generator;

/// A file or directory, independent of its name.
pub(crate) type NodeId = usize;

/// A directory and a name in it.
pub(crate) type Name = (NodeId, String);

/// The node of each name, sorted by directory.
pub(crate) type NameTable = BTreeMap<Name, NodeId>;

/// A change of names.
#[derive(Debug)]
struct NameChange {
    seq: u64,
    node: NodeId,
    from: Option<Name>,
    to: Option<Name>,
    /// Affected directories that were not synced since.
    unsynced: Vec<NodeId>,
    /// Whether it moves a directory to another directory. Such a change depends on all earlier ones, so that
    /// no cycle arises.
    moves_directory: bool,
    /// Whether the node has had several names; then only `from` is removed.
    has_links: bool,
}

impl NameChange {
    fn names(&self) -> impl Iterator<Item = &Name> {
        self.from.iter().chain(&self.to)
    }

    fn depends_on(&self, earlier: &NameChange) -> bool {
        self.moves_directory || self.names().any(|name| earlier.names().any(|other| name == other))
    }

    fn apply(&self, table: &mut NameTable) {
        if !self.has_links {
            table.retain(|_, node| *node != self.node);
        } else if let Some(from) = self.from.as_ref().filter(|from| table.get(*from) == Some(&self.node)) {
            table.remove(from);
        }
        if let Some(to) = &self.to {
            table.insert(to.clone(), self.node);
        }
    }
}

/// The names of all files and directories.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The names that the program sees.
    visible: NameTable,
    /// The names on the medium.
    durable: NameTable,
    pending: Vec<NameChange>,
    /// Files that were ever given a second name.
    linked: BTreeSet<NodeId>,
}

impl Names {
    /// Names that are all durable.
    pub(crate) fn durable(table: NameTable) -> Names {
        Names { visible: table.clone(), durable: table, pending: Vec::new(), linked: BTreeSet::new() }
    }

    pub(crate) fn visible(&self) -> &NameTable {
        &self.visible
    }

    /// Returns the names in the directory and their nodes.
    pub(crate) fn in_directory(&self, directory: NodeId) -> impl Iterator<Item = (&str, NodeId)> {
        let range = (directory, String::new())..(directory + 1, String::new());
        self.visible.range(range).map(|((_, name), node)| (name.as_str(), *node))
    }

    /// Gives `node` the name `to`, or none, in place of `from`. A node that had the name `to` loses it.
    pub(crate) fn change(
        &mut self,
        seq: u64,
        node: NodeId,
        from: Option<Name>,
        to: Option<Name>,
        is_directory: bool,
    ) {
        let mut unsynced: Vec<NodeId> = from.iter().chain(&to).map(|name| name.0).collect();
        unsynced.dedup();
        let moves_directory = is_directory && unsynced.len() > 1;
        let is_link = from.is_none() && self.visible.values().any(|named| *named == node);
        if is_link {
            self.linked.insert(node);
        }
        let has_links = self.linked.contains(&node);
        let change = NameChange { seq, node, from, to, unsynced, moves_directory, has_links };
        change.apply(&mut self.visible);
        self.pending.push(change);
    }

    /// Makes durable the changes in the directory up to `covered`, except those that also affect another
    /// directory that wasn't synced since.
    pub(crate) fn sync(&mut self, directory: NodeId, covered: u64) {
        for change in self.pending.iter_mut().filter(|change| change.seq <= covered) {
            change.unsynced.retain(|unsynced| *unsynced != directory);
        }
        let synced = self.pending.iter().map(|change| change.unsynced.is_empty()).collect();
        self.make_durable(synced);
    }

    /// Lets the seed decide which of the changes that a failed sync should have covered reach the medium.
    /// None of them is pending afterwards, so no later sync writes them again.
    pub(crate) fn fail_sync(&mut self, directory: NodeId, covered: u64, random: &mut Generator) {
        let is_covered = |change: &NameChange| change.seq <= covered && change.unsynced.contains(&directory);
        let kept = self.pending.iter().map(|change| is_covered(change) && random.coin()).collect();
        self.make_durable(kept);
        self.pending.retain(|change| !is_covered(change));
    }

    /// Makes all changes durable.
    pub(crate) fn sync_all(&mut self) {
        self.make_durable(vec![true; self.pending.len()]);
    }

    /// Returns the names on the medium if the power is lost now.
    pub(crate) fn survive(&self, fate: Fate, random: &mut Generator) -> NameTable {
        let mut table = self.durable.clone();
        let prefix = random.index(self.pending.len() + 1);
        let mut dropped: Vec<&NameChange> = Vec::new();
        for (index, change) in self.pending.iter().enumerate() {
            let wanted = match fate {
                Fate::Kept => true,
                Fate::Dropped => false,
                Fate::Prefix => index < prefix,
                Fate::Mixed => random.coin(),
            };
            if wanted && !dropped.iter().any(|earlier| change.depends_on(earlier)) {
                change.apply(&mut table);
            } else {
                dropped.push(change);
            }
        }
        table
    }

    /// Makes the chosen changes durable, and those that they depend on.
    fn make_durable(&mut self, mut chosen: Vec<bool>) {
        for index in (0..chosen.len()).rev() {
            for earlier in 0..index {
                chosen[earlier] |= chosen[index] && self.pending[index].depends_on(&self.pending[earlier]);
            }
        }
        let mut chosen = chosen.into_iter();
        for change in self.pending.extract_if(.., |_| chosen.next().expect("one for each change")) {
            change.apply(&mut self.durable);
        }
    }
}
