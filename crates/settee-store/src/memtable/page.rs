//! A page: a sorted array of records, packed into one buffer.
//!
//! A record is a key and a tail. Its slot gives its position in the buffer. Its head is the integer value of
//! the eight bytes (padded with zeros) that follow the prefix which all the page's keys share. A search
//! counts the heads less than the key's head, and compares keys only where heads are equal: at a million
//! entries that takes about half the time of a binary search over the keys.
//!
//! Invariants:
//! 1. `slots[..count]` are in ascending order of their keys; no key occurs twice.
//! 2. All keys begin with the first `prefix_size` bytes of the first.
//! 3. `heads[i]` is the head of record i below `count`, and `HEAD_UNUSED` from there on.
//! 4. `live_size` is the size of all records; the rest of the buffer is garbage, at most its size
//!    divided by `GARBAGE_DIVISOR`.

use std::cmp::Ordering;

/// Largest number of records in a page.
pub(super) const RECORD_COUNT_MAX: usize = 64;

/// Size in bytes of keys and tails that an insertion may not exceed in a page of more than two records.
pub(super) const PAGE_SIZE_MAX: usize = 8 << 10;

/// A page's buffer is compacted when more than its size divided by this is garbage.
const GARBAGE_DIVISOR: usize = 4;

/// A full buffer grows by its size divided by this.
const GROWTH_DIVISOR: usize = 4;

/// A page is merged with a neighbour when it has less than the largest number of records, and of bytes,
/// divided by this.
const UNDERFULL_DIVISOR: usize = 4;

/// Assumed size of a cache line in bytes; a wrong value costs only time.
const CACHE_LINE_SIZE: usize = 64;

/// Head of an unused slot. It is not less than any head in use; if equal, `count` tells them apart.
const HEAD_UNUSED: u64 = u64::MAX;

/// A key and its tail.
pub(super) type PageRecord<'a> = (&'a [u8], &'a [u8]);

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    at: u32,
    key_size: u16,
    tail_size: u16,
}

#[derive(Debug)]
pub(super) struct Page {
    count: usize,
    prefix_size: usize,
    live_size: usize,
    /// Length of the latest run of adjacent insertions.
    run_count: usize,
    /// The index after the latest insertion.
    run_end: usize,
    heads: [u64; RECORD_COUNT_MAX],
    slots: [Slot; RECORD_COUNT_MAX],
    bytes: Vec<u8>,
}

impl Page {
    /// Creates a page of records that are given in ascending order.
    pub(super) fn new(records: &[PageRecord<'_>]) -> Page {
        let mut page = Page {
            count: 0,
            prefix_size: 0,
            live_size: 0,
            run_count: 0,
            run_end: 0,
            heads: [HEAD_UNUSED; RECORD_COUNT_MAX],
            slots: [Slot::default(); RECORD_COUNT_MAX],
            bytes: Vec::with_capacity(size_of_records(records)),
        };
        let (Some((first, _)), Some((last, _))) = (records.first(), records.last()) else {
            return page;
        };
        page.prefix_size = common_size(first, last);
        for (key, tail) in records {
            page.heads[page.count] = head(&key[page.prefix_size..]);
            page.slots[page.count] = page.push(key, tail);
            page.count += 1;
        }
        page
    }

    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Length of the run that an insertion at this index would continue.
    pub(super) fn run_before(&self, index: usize) -> usize {
        if index == self.run_end { self.run_count } else { 0 }
    }

    #[inline]
    pub(super) fn record(&self, index: usize) -> PageRecord<'_> {
        let slot = self.slots[..self.count][index];
        let size = usize::from(slot.key_size) + usize::from(slot.tail_size);
        self.bytes[slot.at as usize..][..size].split_at(usize::from(slot.key_size))
    }

    #[inline]
    pub(super) fn key(&self, index: usize) -> &[u8] {
        self.record(index).0
    }

    pub(super) fn records(&self) -> impl Iterator<Item = PageRecord<'_>> {
        (0..self.count).map(|index| self.record(index))
    }

    /// The index of the record with this key, or where it would be inserted.
    #[inline]
    pub(super) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let Some(rest) = key.strip_prefix(prefix) else {
            return Err(if key < prefix { 0 } else { self.count });
        };
        let head = head(rest);
        let lower: usize = self.heads.iter().map(|other| usize::from(*other < head)).sum();
        let equal = self.heads[lower..self.count].iter().take_while(|other| **other == head).count();
        if equal == 0 {
            return Err(lower);
        }
        let (mut low, mut high) = (lower, lower + equal);
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle)[self.prefix_size..].cmp(rest) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Whether a record of `size` bytes of key and tail can be inserted.
    pub(super) fn can_insert(&self, size: usize) -> bool {
        self.count < RECORD_COUNT_MAX && (self.count < 2 || self.live_size + size <= PAGE_SIZE_MAX)
    }

    /// Inserts a record at the index that [`Page::search`] returned.
    pub(super) fn insert(&mut self, index: usize, key: &[u8], tail: &[u8]) {
        assert!(self.count < RECORD_COUNT_MAX);
        if self.count == 0 {
            self.prefix_size = key.len();
        } else if index == 0 || index == self.count {
            self.shrink_prefix(common_size(self.prefix(), key));
        }
        self.run_count = self.run_before(index) + 1;
        self.run_end = index + 1;
        let slot = self.push(key, tail);
        self.slots.copy_within(index..self.count, index + 1);
        self.heads.copy_within(index..self.count, index + 1);
        self.slots[index] = slot;
        self.heads[index] = head(&key[self.prefix_size..]);
        self.count += 1;
    }

    /// Replaces a record's tail if the new one is not longer; returns whether it did.
    pub(super) fn overwrite(&mut self, index: usize, tail: &[u8]) -> bool {
        let slot = &mut self.slots[..self.count][index];
        let spare = usize::from(slot.tail_size).checked_sub(tail.len());
        let Some(spare) = spare else { return false };
        let at = slot.at as usize + usize::from(slot.key_size);
        self.bytes[at..at + tail.len()].copy_from_slice(tail);
        slot.tail_size = tail.len() as u16;
        self.live_size -= spare;
        self.collect_garbage();
        true
    }

    pub(super) fn remove(&mut self, index: usize) {
        let (key, tail) = self.record(index);
        self.live_size -= key.len() + tail.len();
        self.slots.copy_within(index + 1..self.count, index);
        self.heads.copy_within(index + 1..self.count, index);
        self.count -= 1;
        self.heads[self.count] = HEAD_UNUSED;
        if self.count == 0 {
            self.prefix_size = 0;
            self.slots[0] = Slot::default();
        }
        self.collect_garbage();
    }

    /// Reads a byte of each of the buffer's cache lines in turn, so that the processor prefetches them, which
    /// it does not when records are read in the order of their keys. It cuts a scan of a map larger than the
    /// caches to two thirds of the time.
    pub(super) fn prefetch(&self) {
        std::hint::black_box(self.bytes.iter().step_by(CACHE_LINE_SIZE).fold(0, |all, byte| all | byte));
    }

    pub(super) fn is_underfull(&self) -> bool {
        self.count < RECORD_COUNT_MAX / UNDERFULL_DIVISOR
            && self.live_size < PAGE_SIZE_MAX / UNDERFULL_DIVISOR
    }

    /// Size of all records in bytes.
    pub(super) fn live_size(&self) -> usize {
        self.live_size
    }

    /// Size of the buffer in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    #[inline]
    fn prefix(&self) -> &[u8] {
        &self.bytes[self.slots[0].at as usize..][..self.prefix_size]
    }

    fn shrink_prefix(&mut self, size: usize) {
        if size < self.prefix_size {
            self.prefix_size = size;
            for index in 0..self.count {
                self.heads[index] = head(&self.key(index)[size..]);
            }
        }
    }

    /// Appends a record to the buffer.
    fn push(&mut self, key: &[u8], tail: &[u8]) -> Slot {
        let at = self.bytes.len();
        let size = key.len() + tail.len();
        if self.bytes.capacity() - at < size {
            self.bytes.reserve_exact(size.max(at / GROWTH_DIVISOR));
        }
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(tail);
        self.live_size += size;
        Slot { at: at as u32, key_size: key.len() as u16, tail_size: tail.len() as u16 }
    }

    fn collect_garbage(&mut self) {
        if self.bytes.len() - self.live_size <= self.bytes.len() / GARBAGE_DIVISOR {
            return;
        }
        let mut bytes = Vec::with_capacity(self.live_size);
        for index in 0..self.count {
            let at = bytes.len() as u32;
            let (key, tail) = self.record(index);
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(tail);
            self.slots[index].at = at;
        }
        self.bytes = bytes;
    }

    /// Panics if an invariant does not hold.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let keys: Vec<_> = self.records().map(|(key, _)| key).collect();
        assert!(keys.is_sorted_by(|left, right| left < right));
        assert!(keys.iter().all(|key| key.starts_with(self.prefix())));
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(self.heads[index], head(&key[self.prefix_size..]));
        }
        assert!(self.heads[self.count..].iter().all(|head| *head == HEAD_UNUSED));
        assert_eq!(self.live_size, size_of_records(&self.records().collect::<Vec<_>>()));
        assert!(self.bytes.len() - self.live_size <= self.bytes.len() / GARBAGE_DIVISOR);
    }
}

impl Clone for Page {
    /// Copies the page with spare capacity, since a copied page is about to be changed.
    fn clone(&self) -> Page {
        let mut bytes = Vec::with_capacity(self.bytes.len() + self.bytes.len() / GROWTH_DIVISOR);
        bytes.extend_from_slice(&self.bytes);
        Page { bytes, ..*self }
    }
}

/// Whether the records fit one page.
pub(super) fn fits(records: &[PageRecord<'_>]) -> bool {
    records.len() <= RECORD_COUNT_MAX && (records.len() <= 2 || size_of_records(records) <= PAGE_SIZE_MAX)
}

pub(super) fn size_of_records(records: &[PageRecord<'_>]) -> usize {
    records.iter().map(|(key, tail)| key.len() + tail.len()).sum()
}

/// Size of the longest common prefix in bytes.
pub(super) fn common_size(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

#[inline]
fn head(rest: &[u8]) -> u64 {
    u64::from_be_bytes(rest.first_chunk().copied().unwrap_or_else(|| {
        let mut padded = [0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        padded
    }))
}
