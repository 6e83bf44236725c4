//! The invariants of a version that are verified at the end of each transition, in release builds too.
//!
//! A transition is a batch's insertion, the freezing of a memtable, the installation of a checkpoint state, and
//! a publication. None of the invariants depends on bytes from disk: opening a store refuses files that
//! contradict each other. A violation panics where a panic stops the store.

use super::state::Version;

impl Version {
    /// Verifies the invariants. It costs a few comparisons for each immutable memtable.
    ///
    /// # Panics
    /// If one is violated.
    pub(crate) fn check(&self) {
        if let Some(what) = self.violated_invariant() {
            panic!("the version at Seq {} is invalid: {what}", self.last_seq);
        }
    }

    /// The first invariant that doesn't hold.
    fn violated_invariant(&self) -> Option<&'static str> {
        let generations = self.memtables().map(|memtable| memtable.generation);
        let filled = || self.memtables().map(|memtable| memtable.last_seq).filter(|seq| *seq > 0);
        let (newest, oldest) = (filled().next(), filled().last());
        let violated = [
            (self.checkpoint.seq > self.last_seq, "its checkpoint contains later records"),
            (
                newest.is_some_and(|seq| seq != self.last_seq),
                "its newest memtable doesn't end with its last record",
            ),
            (oldest.is_some_and(|seq| seq <= self.checkpoint.seq), "its checkpoint contains a memtable"),
            (!filled().is_sorted_by(|newer, older| newer > older), "its memtables are out of order"),
            (
                !generations.is_sorted_by(|newer, older| newer > older),
                "its memtables' generations are out of order",
            ),
            (self.immutable.iter().any(|memtable| memtable.is_empty()), "an immutable memtable is empty"),
        ];
        violated.into_iter().find_map(|(is_violated, what)| is_violated.then_some(what))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::*;
    use crate::memtable::Memtable;
    use crate::version::{CheckpointFacts, CheckpointState};

    fn memtable(generation: u64, last_seq: u64) -> Memtable {
        Memtable { last_seq, ..Memtable::new(generation) }
    }

    fn checkpoint(seq: u64) -> Arc<CheckpointState> {
        let facts = CheckpointFacts::default();
        let empty = CheckpointState::new(None, &facts).now_or_never();
        Arc::new(CheckpointState { seq, ..empty.expect("it reads nothing").unwrap() })
    }

    #[test]
    fn each_violated_invariant_is_found() {
        let sound = Version {
            memtable: memtable(3, 9),
            immutable: Arc::new(vec![memtable(2, 7), memtable(1, 5)]),
            checkpoint: checkpoint(4),
            set: Default::default(),
            last_seq: 9,
            last_in_seq_index: 0,
        };
        sound.check();
        let immutable = |memtables| Version { immutable: Arc::new(memtables), ..sound.clone() };
        let checkpointed = Version { memtable: memtable(4, 0), ..immutable(Vec::new()) };
        let wrong = [
            Version { checkpoint: checkpoint(10), ..checkpointed },
            Version { last_seq: 10, ..sound.clone() },
            Version { checkpoint: checkpoint(5), ..sound.clone() },
            immutable(vec![memtable(2, 5), memtable(1, 7)]),
            immutable(vec![memtable(3, 7)]),
            immutable(vec![memtable(2, 0)]),
        ];
        let found: BTreeSet<_> = wrong.iter().filter_map(Version::violated_invariant).collect();
        assert_eq!(found.len(), wrong.len(), "{found:?}");
    }
}
