//! A file's bytes: what the program sees, what the medium holds, and the changes between.
//!
//! Every change is made to what is seen, and waits until a sync covers it. When the power goes,
//! or a sync fails, the seed decides for each sector which of its versions the medium holds.
//!
//! Invariants:
//! 1. The medium with all pending changes made, in order, is what is seen (until a sync fails).
//! 2. A sector, once covered by a sync, is at the mercy of the seed only after a further change
//!    to it.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::random::Generator;

/// The unit, in bytes, in which the medium keeps, drops or garbles what was not synced.
pub const SECTOR_SIZE: u64 = 512;

/// What becomes of a set of changes that no sync has covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All of them reached the medium.
    Kept,
    /// None did.
    Dropped,
    /// Those up to some point did, and the sector there may be torn.
    Prefix,
    /// Each sector for itself: one of its versions, or garbage.
    Mixed,
}

impl Fate {
    pub(crate) fn draw(random: &mut Generator) -> Fate {
        match random.within(0..=7) {
            0 => Fate::Kept,
            1 => Fate::Dropped,
            2 | 3 => Fate::Prefix,
            _ => Fate::Mixed,
        }
    }
}

/// A change that is not on the medium yet.
#[derive(Debug)]
struct Change {
    /// When it was made: the file system's count of changes.
    seq: u64,
    /// The bytes it puts at `offset`. A cut puts zeros over what it cuts off, since that is what
    /// is there when the file grows again.
    offset: u64,
    bytes: Bytes,
    /// The file is at least this long afterwards; after a cut, exactly.
    length: u64,
    is_cut: bool,
    /// The sectors in which the order of this change and others matters.
    span: Range<u64>,
}

impl Change {
    fn sectors(&self) -> Range<u64> {
        if self.bytes.is_empty() {
            return 0..0;
        }
        self.offset / SECTOR_SIZE..(self.offset + self.bytes.len() as u64).div_ceil(SECTOR_SIZE)
    }

    fn length_after(&self, length: u64) -> u64 {
        if self.is_cut { self.length } else { length.max(self.length) }
    }

    fn apply(&self, to: &mut Vec<u8>) {
        put(to, self.offset, &self.bytes);
        let length = self.length_after(to.len() as u64);
        to.resize(length as usize, 0);
    }

    /// The part of the file that it writes in `sector`.
    fn range_in(&self, sector: u64) -> Range<u64> {
        let end = self.offset + self.bytes.len() as u64;
        self.offset.max(sector * SECTOR_SIZE)..end.min((sector + 1) * SECTOR_SIZE)
    }

    fn apply_sector(&self, to: &mut Vec<u8>, sector: u64) {
        let range = self.range_in(sector);
        let within = (range.start - self.offset) as usize..(range.end - self.offset) as usize;
        put(to, range.start, &self.bytes[within]);
    }
}

/// A file's bytes.
#[derive(Debug, Default)]
pub(crate) struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

impl Content {
    /// A file that is on the medium as it is seen.
    pub(crate) fn durable(bytes: Vec<u8>) -> Content {
        Content { seen: bytes.clone(), durable: bytes, pending: Vec::new() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.seen
    }

    pub(crate) fn length(&self) -> u64 {
        self.seen.len() as u64
    }

    /// How many of `length` bytes at `offset` there are.
    pub(crate) fn available(&self, offset: u64, length: usize) -> usize {
        self.length().saturating_sub(offset).min(length as u64) as usize
    }

    pub(crate) fn write(&mut self, seq: u64, offset: u64, bytes: Bytes) {
        let end = offset + bytes.len() as u64;
        // A copy: once the write has ended its memory is the program's again.
        self.change(seq, offset, Bytes::copy_from_slice(&bytes), end, false);
    }

    /// Extends the file to `length` with zeros, or cuts it there.
    pub(crate) fn set_length(&mut self, seq: u64, length: u64) {
        let cut_off = self.length().saturating_sub(length);
        self.change(seq, length, Bytes::from(vec![0; cut_off as usize]), length, cut_off > 0);
    }

    fn change(&mut self, seq: u64, offset: u64, bytes: Bytes, length: u64, is_cut: bool) {
        let start = offset.min(self.length()) / SECTOR_SIZE;
        let end = if is_cut { u64::MAX } else { length.div_ceil(SECTOR_SIZE) };
        let change = Change { seq, offset, bytes, length, is_cut, span: start..end };
        change.apply(&mut self.seen);
        self.pending.push(change);
    }

    /// Puts on the medium the changes up to `covered`, and the one numbered `own`.
    pub(crate) fn sync(&mut self, covered: u64, own: Option<u64>) {
        for change in self.take_covered(covered, own) {
            change.apply(&mut self.durable);
        }
    }

    /// The seed decides what the medium holds of the changes that a sync should have covered.
    /// They are no longer pending, as if they were clean: no later sync tries them again.
    pub(crate) fn fail_sync(
        &mut self,
        covered: u64,
        own: Option<u64>,
        random: &mut Generator,
        powersafe: bool,
    ) {
        let changes = self.take_covered(covered, own);
        settle(&mut self.durable, &changes, Fate::draw(random), random, powersafe);
    }

    /// What the medium holds when the power goes now.
    pub(crate) fn survive(&self, fate: Fate, random: &mut Generator, powersafe: bool) -> Vec<u8> {
        let mut durable = self.durable.clone();
        settle(&mut durable, &self.pending, fate, random, powersafe);
        durable
    }

    fn take_covered(&mut self, covered: u64, own: Option<u64>) -> Vec<Change> {
        // A write that syncs itself also takes along earlier changes to the same sectors, since
        // the sector goes to the medium as it is. All others that it doesn't cover stay behind.
        let mut taken = vec![false; self.pending.len()];
        let mut spans: Vec<Range<u64>> = Vec::new();
        for (index, change) in self.pending.iter().enumerate().rev() {
            let is_below =
                spans.iter().any(|span| span.start < change.span.end && change.span.start < span.end);
            taken[index] = change.seq <= covered || own == Some(change.seq) || is_below;
            if taken[index] && change.seq > covered {
                spans.push(change.span.clone());
            }
        }
        let mut taken = taken.into_iter();
        self.pending.extract_if(.., |_| taken.next().expect("one for each change")).collect()
    }
}

/// Makes of `durable` what the medium holds when `changes` were neither covered by a sync nor
/// safe from one.
fn settle(durable: &mut Vec<u8>, changes: &[Change], fate: Fate, random: &mut Generator, powersafe: bool) {
    let length = match fate {
        Fate::Mixed => settle_mixed(durable, changes, random, powersafe),
        Fate::Kept | Fate::Dropped | Fate::Prefix => settle_prefix(durable, changes, fate, random, powersafe),
    };
    durable.resize(length as usize, 0);
}

/// Keeps what came before some point, length first; returns the file's length.
fn settle_prefix(
    durable: &mut Vec<u8>,
    changes: &[Change],
    fate: Fate,
    random: &mut Generator,
    powersafe: bool,
) -> u64 {
    let step_count = changes.iter().map(|change| 1 + change.sectors().count() as u64).sum();
    let mut steps_left = match fate {
        Fate::Kept => step_count,
        Fate::Dropped => 0,
        Fate::Prefix | Fate::Mixed => random.within(0..=step_count),
    };
    let mut length = durable.len() as u64;
    for change in changes {
        if steps_left == 0 {
            break;
        }
        steps_left -= 1;
        length = change.length_after(length);
        for sector in change.sectors() {
            if steps_left == 0 {
                if random.coin() {
                    garble(durable, sector, &[change], random, powersafe);
                }
                break;
            }
            steps_left -= 1;
            change.apply_sector(durable, sector);
        }
    }
    length
}

/// Decides for each sector by itself, and for the length; returns the length.
fn settle_mixed(durable: &mut Vec<u8>, changes: &[Change], random: &mut Generator, powersafe: bool) -> u64 {
    let mut lengths = vec![durable.len() as u64];
    let mut versions: BTreeMap<u64, Vec<&Change>> = BTreeMap::new();
    for change in changes {
        lengths.push(change.length_after(lengths[lengths.len() - 1]));
        for sector in change.sectors() {
            versions.entry(sector).or_default().push(change);
        }
    }
    let garbled = [0.0, 0.1, 0.4][random.index(3)];
    for (sector, changes) in versions {
        for change in &changes[..random.index(changes.len() + 1)] {
            change.apply_sector(durable, sector);
        }
        if random.chance(garbled) {
            garble(durable, sector, &changes, random, powersafe);
        }
    }
    lengths[random.index(lengths.len())]
}

/// Puts random bytes, or zeros, over the sector; where overwriting is power-safe, only over what
/// `changes` wrote in it.
fn garble(durable: &mut Vec<u8>, sector: u64, changes: &[&Change], random: &mut Generator, powersafe: bool) {
    let whole = sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
    let ranges =
        if powersafe { changes.iter().map(|change| change.range_in(sector)).collect() } else { vec![whole] };
    let zeros = random.chance(0.25);
    for range in ranges {
        let mut garbage = vec![0; (range.end - range.start) as usize];
        if !zeros {
            random.fill(&mut garbage);
        }
        put(durable, range.start, &garbage);
    }
}

fn put(to: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let offset = offset as usize;
    let end = offset + bytes.len();
    if to.len() < end {
        to.resize(end, 0);
    }
    to[offset..end].copy_from_slice(bytes);
}
