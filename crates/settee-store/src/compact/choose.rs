//! Which segments compaction takes next.
//!
//! What a rewriting frees of a segment is what is neither live nor a tombstone that has to stay. A
//! tombstone goes once whatever was dead when it was checkpointed isn't in any older segment: so each
//! segment is known to be clean up to some `Seq`. It is where all that was dead then was left out of it,
//! or where nothing in it is dead. Until then a tombstone counts as needed, or its segment would be
//! rewritten with each checkpoint and never get smaller.
//!
//! Segments with little garbage would hold back tombstones behind them for ever. They are rewritten
//! where these take more than a named share of what would have to be copied.
//!
//! Invariants:
//! 1. Whatever is chosen gets smaller by its rewriting, or clean up to a later `Seq`: there is an end.
//! 2. What a segment takes is never taken for more than it is: garbage that is none is found out by its
//!    directory before anything is copied.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use crate::segments::Segment;
use crate::state::{Base, Live};

use super::COPY_BYTES;

/// What a log's segments aim at, in number.
const SEGMENT_COUNT_AIM: u64 = 16;

/// What holds tombstones back is rewritten where they take more than this part of it (4: a fourth).
const HELD_SHARE: u64 = 4;

/// What a rewriting adds by itself at most: the pieces' index, and the last part of a page.
const OWN_BYTES: u64 = 8 << 10;
const OWN_SHARE: u64 = 64;

/// No tombstone's record takes less, in bytes: its header.
const TOMBSTONE_BYTES_MIN: u64 = 28;

/// What lives of a segment, as of a checkpoint.
pub(super) fn live_of(base: &Base, segment: &Segment) -> Live {
    let numbers = base.live.range(segment.name.first..=segment.name.last);
    numbers.fold(Live::default(), |sum, (_, live)| Live {
        bytes: sum.bytes + live.bytes,
        count: sum.count + live.count,
    })
}

/// A segment, as of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fact {
    bytes: u64,
    live: u64,
    /// Its tombstones in bytes, at least,
    tombstones: u64,
    /// and whether that is all of them.
    pub(super) is_exact: bool,
    is_rewritten: bool,
    last_seq: u64,
    /// Nothing that was dead as of this `Seq` is in it.
    clean_to: u64,
    /// Nothing in it is dead.
    is_clean: bool,
    /// Tombstones up to this `Seq` aren't needed here: what they hide isn't in any older segment.
    pub(super) tombstones_to: u64,
}

impl Fact {
    fn new(segment: &Segment, base: &Base) -> Fact {
        let name = segment.name;
        let live = live_of(base, segment);
        let mut fact = Fact {
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
        // Nothing is known of one that can't be read.
        let Some(contents) = segment.known_contents() else { return fact };
        fact.last_seq = contents.last_seq;
        fact.is_clean = contents.record_count == contents.tombstone_count + live.count;
        if fact.is_clean {
            fact.clean_to = fact.clean_to.max(base.seq);
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

    /// Tombstones that have to stay, in bytes. Where only some could go they all do.
    fn kept(&self) -> u64 {
        if self.last_seq <= self.tombstones_to { 0 } else { self.tombstones }
    }

    /// What has to be copied, in bytes.
    fn needed(&self) -> u64 {
        (self.live + self.kept()).min(self.bytes)
    }

    /// Bytes that a rewriting would free.
    fn garbage(&self) -> u64 {
        let needed = self.needed();
        (self.bytes - needed).saturating_sub(needed / OWN_SHARE + OWN_BYTES)
    }

    /// Whether a rewriting as of `seq` leaves less. One that was rewritten as of the same can't get
    /// smaller, but by its tombstones.
    fn can_shrink(&self, seq: u64) -> bool {
        let can_change =
            !self.is_rewritten || self.clean_to < seq || (self.tombstones > 0 && self.kept() == 0);
        can_change && self.garbage() > 0
    }

    fn gain(&self) -> f64 {
        self.garbage() as f64 / (self.needed() + COPY_BYTES) as f64
    }
}

/// All segments, as of a checkpoint.
pub(super) struct Overview {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) facts: Vec<Fact>,
    seq: u64,
}

impl Overview {
    /// Of what is known in memory. With `forgets_tombstones` (planted) none has to stay.
    pub(super) fn new(base: &Base, forgets_tombstones: bool) -> Overview {
        let segments: Vec<Arc<Segment>> = base.segments.iter().cloned().collect();
        let mut facts: Vec<Fact> = segments.iter().map(|segment| Fact::new(segment, base)).collect();
        let mut tombstones_to = base.seq;
        for fact in &mut facts {
            fact.tombstones_to = if forgets_tombstones { u64::MAX } else { tombstones_to };
            tombstones_to = tombstones_to.min(fact.clean_to);
        }
        Overview { segments, facts, seq: base.seq }
    }

    /// Tombstones that have to stay, in bytes.
    pub(super) fn kept(&self) -> u64 {
        self.facts.iter().map(Fact::kept).sum()
    }

    /// Those in which nothing is dead.
    pub(super) fn clean(&self) -> Vec<Arc<Segment>> {
        let all = self.segments.iter().zip(&self.facts);
        all.filter(|(_, fact)| fact.is_clean).map(|(segment, _)| segment.clone()).collect()
    }

    fn is_readable(&self, index: usize, unreadable: &BTreeSet<u32>) -> bool {
        !unreadable.contains(&self.segments[index].name.last)
    }

    /// The one whose rewriting frees the most for what is copied, or one that holds too much back; none
    /// where there is no more garbage than may be.
    pub(super) fn best(&self, garbage_percent_max: u64, unreadable: &BTreeSet<u32>) -> Option<usize> {
        let sums = self.facts.iter().fold((0, 0), |sum, fact| (sum.0 + fact.bytes, sum.1 + fact.needed()));
        let (all, needed) = sums;
        let best = (0..self.facts.len())
            .filter(|index| self.facts[*index].can_shrink(self.seq) && self.is_readable(*index, unreadable))
            .max_by(|a, b| self.facts[*a].gain().total_cmp(&self.facts[*b].gain()));
        best.filter(|_| (all - needed) * 100 > garbage_percent_max * all).or_else(|| self.holder(unreadable))
    }

    /// The oldest of the segments that hold back tombstones behind them, where these take more than
    /// their share of what lives in all of those segments.
    pub(super) fn holder(&self, unreadable: &BTreeSet<u32>) -> Option<usize> {
        // Those that hold nothing back so far, by what they are clean up to.
        let mut clean: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let (mut oldest, mut to_copy, mut held) = (usize::MAX, 0, 0);
        for (index, fact) in self.facts.iter().enumerate() {
            if fact.kept() > 0 {
                held += fact.kept();
                while let Some(Reverse((clean_to, holder))) = clean.peek().copied()
                    && clean_to < fact.last_seq
                {
                    clean.pop();
                    if !self.is_readable(holder, unreadable) {
                        // What is behind it stays.
                        return None;
                    }
                    oldest = oldest.min(holder);
                    to_copy += self.facts[holder].live;
                }
                if oldest != usize::MAX && held.saturating_mul(HELD_SHARE) > to_copy + OWN_BYTES {
                    return Some(oldest);
                }
            }
            clean.push(Reverse((fact.clean_to, index)));
        }
        None
    }

    /// What a rewritten segment aims at, in bytes.
    pub(super) fn aim(&self, bytes_min: u32, bytes_max: u32) -> u64 {
        let live = self.facts.iter().map(|fact| fact.live).sum::<u64>();
        (live / SEGMENT_COUNT_AIM).clamp(bytes_min.into(), bytes_max.into())
    }

    /// Whether a neighbour may come along: it is small, or will be.
    pub(super) fn joins(&self, index: usize, aim: u64, unreadable: &BTreeSet<u32>) -> bool {
        let Some(fact) = self.facts.get(index) else { return false };
        let is_small = fact.needed() * 2 <= aim || fact.needed() * 2 <= fact.bytes;
        is_small && self.is_readable(index, unreadable)
    }
}
