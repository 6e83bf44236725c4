//! Chooses the segments that compaction rewrites.
//!
//! Rewriting a segment frees all its bytes that are neither live records nor tombstones that must stay. A
//! tombstone can go once no older segment holds anything that was garbage when the tombstone was
//! checkpointed. Each segment is therefore known to be clean up to some `Seq`: either all that was garbage as
//! of that `Seq` was left out of it, or nothing in it is garbage. Until then a tombstone counts as needed;
//! otherwise its segment would be rewritten with each checkpoint and never shrink.
//!
//! Segments with little garbage would block the tombstones after them for ever. They are rewritten once these
//! tombstones exceed a fixed share of what would have to be copied.
//!
//! Invariants:
//! 1. Every chosen segment shrinks, or becomes clean up to a later `Seq`: compaction terminates.
//! 2. A segment's needed bytes are never underestimated when it is rewritten: its segment index is read first
//!    to find tombstones that look like garbage.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use settee_log::{Segment, SegmentSet};

use super::copy::COPY_BYTES;
use crate::space::Space;
use crate::version::{CheckpointState, CheckpointTree, Live};

/// Number of segments that a store's live bytes are divided into.
const SEGMENT_COUNT_TARGET: u64 = 16;

/// Segments that block tombstones are rewritten when the tombstones exceed their live bytes divided by this.
const BLOCKED_DIVISOR: u64 = 4;

/// Bytes that a rewrite adds at most: the sparse block index, and the rest of the last page.
const OWN_BYTES: u64 = 8 << 10;
const OWN_DIVISOR: u64 = 64;

/// Bytes of a tree's file besides its nodes, at most: its head and roots, an attachment, the rest of the last page.
const TREE_OWN_BYTES: u64 = 16 << 10;

/// Size of the smallest tombstone in bytes: a record header.
const TOMBSTONE_BYTES_MIN: u64 = 28;

/// Live bytes and records of a segment, as of a checkpoint.
pub(super) fn live_of(checkpoint: &CheckpointState, segment: &Segment) -> Live {
    let numbers = checkpoint.live.range(segment.name.first..=segment.name.last);
    numbers.fold(Live::default(), |sum, (_, live)| Live {
        bytes: sum.bytes + live.bytes,
        count: sum.count + live.count,
    })
}

/// What is known of a segment, as of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentFacts {
    bytes: u64,
    live: u64,
    /// Bytes of its tombstones, or a lower bound.
    tombstones: u64,
    /// Whether `tombstones` is exact.
    pub(super) is_exact: bool,
    is_rewritten: bool,
    last_seq: u64,
    /// Nothing that was garbage as of this `Seq` is in it.
    clean_to: u64,
    /// Nothing in it is garbage.
    is_clean: bool,
    /// Tombstones up to this `Seq` can go: nothing that they hide is in an older segment.
    pub(super) tombstones_to: u64,
}

impl SegmentFacts {
    fn new(segment: &Segment, checkpoint: &CheckpointState) -> SegmentFacts {
        let name = segment.name;
        let live = live_of(checkpoint, segment);
        let mut fact = SegmentFacts {
            bytes: name.bytes,
            live: live.bytes.min(name.bytes),
            tombstones: 0,
            is_exact: true,
            is_rewritten: name.generation > 0,
            last_seq: u64::MAX,
            clean_to: segment.clean_to(),
            is_clean: false,
            tombstones_to: 0,
        };
        // Nothing is known of a segment that can't be read.
        let Some(contents) = segment.known_contents() else { return fact };
        fact.last_seq = contents.last_seq;
        fact.is_clean = contents.record_count == contents.tombstone_count + live.count;
        if fact.is_clean {
            fact.clean_to = fact.clean_to.max(checkpoint.seq);
        }
        let not_live = contents.record_bytes.saturating_sub(live.bytes);
        (fact.tombstones, fact.is_exact) = match segment.known_tombstone_bytes() {
            _ if contents.tombstone_count == 0 => (0, true),
            Some(bytes) => (bytes, true),
            None if fact.is_clean => (not_live, true),
            None => (not_live.min(contents.tombstone_count * TOMBSTONE_BYTES_MIN), false),
        };
        fact
    }

    /// Bytes of the tombstones that must stay. If only some could go, all of them count.
    fn kept_tombstone_bytes(&self) -> u64 {
        if self.last_seq <= self.tombstones_to { 0 } else { self.tombstones }
    }

    /// Bytes that have to be copied.
    fn needed(&self) -> u64 {
        (self.live + self.kept_tombstone_bytes()).min(self.bytes)
    }

    /// Bytes that have to be copied, and the others.
    fn space(&self) -> Space {
        let live = self.needed();
        Space { live, garbage: self.bytes - live }
    }

    /// Bytes that a rewrite would free.
    fn garbage(&self) -> u64 {
        let needed = self.needed();
        (self.bytes - needed).saturating_sub(needed / OWN_DIVISOR + OWN_BYTES)
    }

    /// Whether a rewrite as of `seq` makes the segment smaller. One that was rewritten as of the same `Seq`
    /// can only lose tombstones.
    fn can_shrink(&self, seq: u64) -> bool {
        let can_change = !self.is_rewritten
            || self.clean_to < seq
            || (self.tombstones > 0 && self.kept_tombstone_bytes() == 0);
        can_change && self.garbage() > 0
    }

    fn gain(&self) -> f64 {
        self.garbage() as f64 / (self.needed() + COPY_BYTES) as f64
    }
}

/// Size of the tree's file in bytes, and of its live nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct TreeSize {
    pub(super) bytes: u64,
    pub(super) live: u64,
}

impl TreeSize {
    pub(super) fn of(tree: &CheckpointTree) -> TreeSize {
        TreeSize { bytes: tree.tree.file_bytes(), live: tree.root.live_bytes() }
    }

    /// The bytes of a new file, and those that it frees.
    pub(super) fn space(self) -> Space {
        let live = (self.live + self.live / OWN_DIVISOR + TREE_OWN_BYTES).min(self.bytes);
        Space { live, garbage: self.bytes - live }
    }

    fn gain(self) -> f64 {
        self.space().garbage as f64 / (self.live + COPY_BYTES) as f64
    }
}

/// All segments, as of a checkpoint.
pub(super) struct Overview {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) facts: Vec<SegmentFacts>,
    seq: u64,
}

impl Overview {
    /// Collects what is known in memory. With `drops_tombstones` (a failpoint) no tombstone has to stay.
    pub(super) fn new(checkpoint: &CheckpointState, set: &SegmentSet, drops_tombstones: bool) -> Overview {
        let segments: Vec<Arc<Segment>> = set.listed().cloned().collect();
        let mut facts: Vec<SegmentFacts> =
            segments.iter().map(|segment| SegmentFacts::new(segment, checkpoint)).collect();
        let mut tombstones_to = checkpoint.seq;
        for fact in &mut facts {
            fact.tombstones_to = if drops_tombstones { u64::MAX } else { tombstones_to };
            tombstones_to = tombstones_to.min(fact.clean_to);
        }
        Overview { segments, facts, seq: checkpoint.seq }
    }

    /// Bytes of the tombstones that must stay.
    pub(super) fn kept_tombstone_bytes(&self) -> u64 {
        self.facts.iter().map(SegmentFacts::kept_tombstone_bytes).sum()
    }

    /// Segments without garbage.
    pub(super) fn clean(&self) -> Vec<Arc<Segment>> {
        let all = self.segments.iter().zip(&self.facts);
        all.filter(|(_, fact)| fact.is_clean).map(|(segment, _)| segment.clone()).collect()
    }

    fn is_readable(&self, index: usize, unreadable: &BTreeSet<u32>) -> bool {
        !unreadable.contains(&self.segments[index].name.last)
    }

    /// The segment whose rewrite frees the most per byte copied, or one that blocks too many tombstones;
    /// `None` if there is not too much garbage in segments and tree together, or the rest of it is the tree's.
    pub(super) fn best(
        &self,
        garbage_percent_max: u64,
        tree: TreeSize,
        unreadable: &BTreeSet<u32>,
    ) -> Option<usize> {
        let segments = self.space();
        let is_too_much = self.is_too_much(garbage_percent_max, tree);
        // A segment with less garbage than that is not worth copying because of the tree's garbage.
        let is_worth = |fact: &SegmentFacts| {
            segments.exceeds(garbage_percent_max) || fact.space().exceeds(garbage_percent_max)
        };
        let best = (0..self.facts.len())
            .filter(|index| self.facts[*index].can_shrink(self.seq) && self.is_readable(*index, unreadable))
            .filter(|index| is_worth(&self.facts[*index]))
            .max_by(|a, b| self.facts[*a].gain().total_cmp(&self.facts[*b].gain()));
        best.filter(|_| is_too_much).or_else(|| self.oldest_blocker(unreadable))
    }

    /// Whether rewriting the tree is due, and frees more per byte copied than the segment `best`.
    pub(super) fn is_tree_better(
        &self,
        best: Option<usize>,
        garbage_percent_max: u64,
        tree: TreeSize,
        bytes_min: u64,
    ) -> bool {
        let best_gain = best.map_or(0.0, |best| self.facts[best].gain());
        tree.space().exceeds_by(garbage_percent_max, bytes_min)
            && self.is_too_much(garbage_percent_max, tree)
            && tree.gain() > best_gain
    }

    /// Whether segments and tree have too much garbage.
    fn is_too_much(&self, garbage_percent_max: u64, tree: TreeSize) -> bool {
        let (segments, tree) = (self.space(), tree.space());
        let all = Space { live: segments.live + tree.live, garbage: segments.garbage + tree.garbage };
        all.exceeds(garbage_percent_max)
    }

    /// All segments' bytes that have to be copied, and the others.
    fn space(&self) -> Space {
        self.facts.iter().map(SegmentFacts::space).fold(Space::default(), |sum, one| Space {
            live: sum.live + one.live,
            garbage: sum.garbage + one.garbage,
        })
    }

    /// The oldest of the segments that block the tombstones after them, if these exceed their share of the
    /// segments' live bytes.
    pub(super) fn oldest_blocker(&self, unreadable: &BTreeSet<u32>) -> Option<usize> {
        // Segments that block nothing so far, by the `Seq` up to which they are clean.
        let mut clean: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let (mut oldest, mut to_copy, mut blocked_bytes) = (usize::MAX, 0, 0);
        for (index, fact) in self.facts.iter().enumerate() {
            if fact.kept_tombstone_bytes() > 0 {
                blocked_bytes += fact.kept_tombstone_bytes();
                while let Some(Reverse((clean_to, blocker))) = clean.peek().copied()
                    && clean_to < fact.last_seq
                {
                    clean.pop();
                    if !self.is_readable(blocker, unreadable) {
                        // The tombstones after it must stay.
                        return None;
                    }
                    oldest = oldest.min(blocker);
                    to_copy += self.facts[blocker].live;
                }
                if oldest != usize::MAX && blocked_bytes.saturating_mul(BLOCKED_DIVISOR) > to_copy + OWN_BYTES
                {
                    return Some(oldest);
                }
            }
            clean.push(Reverse((fact.clean_to, index)));
        }
        None
    }

    /// Target size of a rewritten segment in bytes.
    pub(super) fn target_bytes(&self, bytes_min: u32, bytes_max: u32) -> u64 {
        let live = self.facts.iter().map(|fact| fact.live).sum::<u64>();
        (live / SEGMENT_COUNT_TARGET).clamp(bytes_min.into(), bytes_max.into())
    }

    /// Whether a neighbour is rewritten too: it is small, or will be.
    pub(super) fn joins(&self, index: usize, target_bytes: u64, unreadable: &BTreeSet<u32>) -> bool {
        let Some(fact) = self.facts.get(index) else { return false };
        let is_small = fact.needed() * 2 <= target_bytes || fact.needed() * 2 <= fact.bytes;
        is_small && self.is_readable(index, unreadable)
    }
}
