//! The bytes of a simulated file: those that the program sees, those on the medium, and the changes between.
//!
//! Every change applies to the visible bytes at once and is pending until a sync covers it. At a power loss,
//! or when a sync fails, the seed decides for each sector which of its versions the medium holds.
//!
//! Invariants:
//! 1. The medium with all pending changes applied, in order, equals the visible bytes (until a sync fails).
//! 2. After a sync covered a sector, the seed decides about it only after a further change to it.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::random::Generator;

/// Size of a sector in bytes: the unit in which the medium keeps, drops or garbles unsynced changes.
pub const SECTOR_SIZE: u64 = 512;

/// How the medium treats a set of changes that no sync has covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All of them reached the medium.
    Kept,
    /// None of them did.
    Dropped,
    /// Those up to some point did, and the sector at that point may be torn.
    Prefix,
    /// Each sector independently holds one of its versions, or garbage.
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
struct ContentChange {
    /// Number of the change, from the file system's counter.
    seq: u64,
    /// Offset of `bytes` in the file.
    offset: u64,
    /// The bytes written. A truncation writes zeros over the truncated part, since the file holds zeros there
    /// if it grows again.
    bytes: Bytes,
    /// Least length of the file afterwards; its exact length after a truncation.
    length: u64,
    is_truncation: bool,
    /// The sectors in which the order of this change relative to others matters.
    span: Range<u64>,
}

impl ContentChange {
    fn sectors(&self) -> Range<u64> {
        if self.bytes.is_empty() {
            return 0..0;
        }
        self.offset / SECTOR_SIZE..(self.offset + self.bytes.len() as u64).div_ceil(SECTOR_SIZE)
    }

    fn length_after(&self, length: u64) -> u64 {
        if self.is_truncation { self.length } else { length.max(self.length) }
    }

    fn apply(&self, to: &mut Vec<u8>) {
        write_bytes(to, self.offset, &self.bytes);
        let length = self.length_after(to.len() as u64);
        to.resize(length as usize, 0);
    }

    /// The range of the file that the change writes in `sector`.
    fn range_in(&self, sector: u64) -> Range<u64> {
        let end = self.offset + self.bytes.len() as u64;
        self.offset.max(sector * SECTOR_SIZE)..end.min((sector + 1) * SECTOR_SIZE)
    }

    fn apply_sector(&self, to: &mut Vec<u8>, sector: u64) {
        let range = self.range_in(sector);
        let within = (range.start - self.offset) as usize..(range.end - self.offset) as usize;
        write_bytes(to, range.start, &self.bytes[within]);
    }
}

/// The bytes of a file.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The bytes that the program sees.
    visible: Vec<u8>,
    /// The bytes on the medium.
    durable: Vec<u8>,
    pending: Vec<ContentChange>,
}

impl Content {
    /// A file whose visible bytes are durable.
    pub(crate) fn durable(bytes: Vec<u8>) -> Content {
        Content { visible: bytes.clone(), durable: bytes, pending: Vec::new() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.visible
    }

    pub(crate) fn length(&self) -> u64 {
        self.visible.len() as u64
    }

    /// Number of the `length` bytes at `offset` that the file has.
    pub(crate) fn available(&self, offset: u64, length: usize) -> usize {
        self.length().saturating_sub(offset).min(length as u64) as usize
    }

    pub(crate) fn write(&mut self, seq: u64, offset: u64, bytes: Bytes) {
        let end = offset + bytes.len() as u64;
        // A copy, since the program may reuse the memory once the write has ended.
        self.change(seq, offset, Bytes::copy_from_slice(&bytes), end, false);
    }

    /// Extends the file to `length` with zeros, or truncates it.
    pub(crate) fn set_length(&mut self, seq: u64, length: u64) {
        let truncated = self.length().saturating_sub(length);
        self.change(seq, length, Bytes::from(vec![0; truncated as usize]), length, truncated > 0);
    }

    fn change(&mut self, seq: u64, offset: u64, bytes: Bytes, length: u64, is_truncation: bool) {
        let start = offset.min(self.length()) / SECTOR_SIZE;
        let end = if is_truncation { u64::MAX } else { length.div_ceil(SECTOR_SIZE) };
        let change = ContentChange { seq, offset, bytes, length, is_truncation, span: start..end };
        change.apply(&mut self.visible);
        self.pending.push(change);
    }

    /// Applies to the medium the changes up to `covered`, and the change with number `own`.
    pub(crate) fn sync(&mut self, covered: u64, own: Option<u64>) {
        for change in self.take_covered(covered, own) {
            change.apply(&mut self.durable);
        }
    }

    /// Lets the seed decide which of the changes that a failed sync should have covered reach the medium.
    /// They are then no longer pending, as if they were clean, so no later sync writes them again.
    pub(crate) fn fail_sync(
        &mut self,
        covered: u64,
        own: Option<u64>,
        random: &mut Generator,
        powersafe: bool,
    ) {
        let changes = self.take_covered(covered, own);
        apply_fate(&mut self.durable, &changes, Fate::draw(random), random, powersafe);
    }

    /// Returns the contents of the medium if the power is lost now.
    pub(crate) fn survive(&self, fate: Fate, random: &mut Generator, powersafe: bool) -> Vec<u8> {
        let mut durable = self.durable.clone();
        apply_fate(&mut durable, &self.pending, fate, random, powersafe);
        durable
    }

    fn take_covered(&mut self, covered: u64, own: Option<u64>) -> Vec<ContentChange> {
        // A write that syncs itself also makes earlier changes to the same sectors durable, since a sector is
        // written whole. All other uncovered changes stay pending.
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

/// Applies `changes`, which no sync covered, to `durable` as `fate` says.
fn apply_fate(
    durable: &mut Vec<u8>,
    changes: &[ContentChange],
    fate: Fate,
    random: &mut Generator,
    powersafe: bool,
) {
    let length = match fate {
        Fate::Mixed => apply_mixed(durable, changes, random, powersafe),
        Fate::Kept | Fate::Dropped | Fate::Prefix => apply_prefix(durable, changes, fate, random, powersafe),
    };
    durable.resize(length as usize, 0);
}

/// Applies the changes up to some point, of each change the length first. Returns the file's length.
fn apply_prefix(
    durable: &mut Vec<u8>,
    changes: &[ContentChange],
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

/// Decides for each sector, and for the length, independently. Returns the file's length.
fn apply_mixed(
    durable: &mut Vec<u8>,
    changes: &[ContentChange],
    random: &mut Generator,
    powersafe: bool,
) -> u64 {
    let mut lengths = vec![durable.len() as u64];
    let mut versions: BTreeMap<u64, Vec<&ContentChange>> = BTreeMap::new();
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

/// Overwrites the sector with random bytes or zeros. If overwriting is power-safe, overwrites only the bytes
/// that `changes` wrote in it.
fn garble(
    durable: &mut Vec<u8>,
    sector: u64,
    changes: &[&ContentChange],
    random: &mut Generator,
    powersafe: bool,
) {
    let whole = sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
    let ranges =
        if powersafe { changes.iter().map(|change| change.range_in(sector)).collect() } else { vec![whole] };
    let zeros = random.chance(0.25);
    for range in ranges {
        let mut garbage = vec![0; (range.end - range.start) as usize];
        if !zeros {
            random.fill(&mut garbage);
        }
        write_bytes(durable, range.start, &garbage);
    }
}

fn write_bytes(to: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
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
