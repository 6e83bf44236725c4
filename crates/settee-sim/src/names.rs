//! The names of files and folders: what the program sees, what the medium holds, and the
//! changes between.
//!
//! Each change gives a node another place, or none: creation, removal and rename alike. It waits
//! until every folder that it concerns was synced. When the power goes, each waiting change is
//! kept or dropped whole.
//!
//! Invariants:
//! 1. A folder has at most one name, a file any number; and every kept change stands on the changes to the same names
//!    before it: so what survives is a tree that some order of the medium's writes could give.
//! 2. What was synced changes only by a later change to the same names.

use std::collections::{BTreeMap, BTreeSet};

use crate::content::Fate;
use crate::random::Generator;

/// A file or folder, whatever its name.
pub(crate) type NodeId = usize;

/// A folder, and a name in it.
pub(crate) type Name = (NodeId, String);

/// Who has which name, sorted by folder.
pub(crate) type Table = BTreeMap<Name, NodeId>;

/// A change of names.
#[derive(Debug)]
struct Change {
    seq: u64,
    node: NodeId,
    from: Option<Name>,
    to: Option<Name>,
    /// Folders that were not synced since.
    unsynced: Vec<NodeId>,
    /// A folder goes from one folder to another: safe from circles only after all that came
    /// before.
    moves_folder: bool,
    /// It had, or gets, a second name: only the one that is given up goes.
    has_links: bool,
}

impl Change {
    fn names(&self) -> impl Iterator<Item = &Name> {
        self.from.iter().chain(&self.to)
    }

    fn depends_on(&self, earlier: &Change) -> bool {
        self.moves_folder || self.names().any(|name| earlier.names().any(|other| name == other))
    }

    fn apply(&self, table: &mut Table) {
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

/// All names.
#[derive(Debug, Default)]
pub(crate) struct Names {
    seen: Table,
    durable: Table,
    pending: Vec<Change>,
    /// Files that were ever given a second name.
    linked: BTreeSet<NodeId>,
}

impl Names {
    /// Names that are on the medium as they are seen.
    pub(crate) fn durable(table: Table) -> Names {
        Names { seen: table.clone(), durable: table, pending: Vec::new(), linked: BTreeSet::new() }
    }

    pub(crate) fn seen(&self) -> &Table {
        &self.seen
    }

    /// What has a name in the folder.
    pub(crate) fn in_folder(&self, folder: NodeId) -> impl Iterator<Item = (&str, NodeId)> {
        let range = (folder, String::new())..(folder + 1, String::new());
        self.seen.range(range).map(|((_, name), node)| (name.as_str(), *node))
    }

    /// Gives `node` the name `to`, or none, in place of `from`; whoever had `to` loses it.
    pub(crate) fn change(
        &mut self,
        seq: u64,
        node: NodeId,
        from: Option<Name>,
        to: Option<Name>,
        is_folder: bool,
    ) {
        let mut unsynced: Vec<NodeId> = from.iter().chain(&to).map(|name| name.0).collect();
        unsynced.dedup();
        let moves_folder = is_folder && unsynced.len() > 1;
        let is_link = from.is_none() && self.seen.values().any(|named| *named == node);
        if is_link {
            self.linked.insert(node);
        }
        let has_links = self.linked.contains(&node);
        let change = Change { seq, node, from, to, unsynced, moves_folder, has_links };
        change.apply(&mut self.seen);
        self.pending.push(change);
    }

    /// Puts on the medium the changes up to `covered` in the folder, save those that concern
    /// another folder too which wasn't synced since.
    pub(crate) fn sync(&mut self, folder: NodeId, covered: u64) {
        for change in self.pending.iter_mut().filter(|change| change.seq <= covered) {
            change.unsynced.retain(|unsynced| *unsynced != folder);
        }
        let synced = self.pending.iter().map(|change| change.unsynced.is_empty()).collect();
        self.put(synced);
    }

    /// The seed decides which of the changes that a sync should have covered the medium holds.
    /// None of them is pending afterwards: no later sync tries them again.
    pub(crate) fn fail_sync(&mut self, folder: NodeId, covered: u64, random: &mut Generator) {
        let is_covered = |change: &Change| change.seq <= covered && change.unsynced.contains(&folder);
        let kept = self.pending.iter().map(|change| is_covered(change) && random.coin()).collect();
        self.put(kept);
        self.pending.retain(|change| !is_covered(change));
    }

    /// Puts all there is on the medium.
    pub(crate) fn sync_all(&mut self) {
        self.put(vec![true; self.pending.len()]);
    }

    /// What the medium holds when the power goes now.
    pub(crate) fn survive(&self, fate: Fate, random: &mut Generator) -> Table {
        let mut table = self.durable.clone();
        let prefix = random.index(self.pending.len() + 1);
        let mut dropped: Vec<&Change> = Vec::new();
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

    /// Puts the chosen changes on the medium, and what they stand on.
    fn put(&mut self, mut chosen: Vec<bool>) {
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
