//! Chunks that no document refers to, and how they go.
//!
//! They go in lots, each with a mark in the store: one that came with an upload's first chunk, or one
//! that an update wrote instead of removing more than belongs in its own batch. Lots that are known wait
//! in a queue; updates remove them before their own edits, in batches of deletions alone, so that no
//! edit grows or fails because of them. What a crash leaves is found by its mark when the database is
//! opened.
//!
//! Invariants:
//! 1. A lot's mark goes with the last of its chunks, and an upload's chunks go from the last to the
//!    first: what is left of it can be counted from 0 on.
//! 2. A lot that was taken from the queue is back in it unless its removal was accepted.
//! 3. Nothing is removed without a mark: the update that makes an upload its document's removes that.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use settee_store::{Batch, VALUE_SIZE_MAX};

use crate::keys::{chunk_key, upload_key};
use crate::{Error, ErrorKind, Result};

use super::{Attachment, UploadId, chunk_count};

/// Deletions of chunks up to so many bytes go with the update that lets the chunks go; the update marks
/// what is more than that.
const REMOVED_TOGETHER_BYTES_MAX: usize = 64 << 10;

/// Meta of a mark whose value lists uploads. Without it the mark's own key names the only one.
const LIST: [u8; 1] = [1];

/// In a list: an upload, and how many chunks it has (4 bytes, little-endian).
const LISTED_SIZE: usize = 16 + 4;

/// Chunks that no document refers to, under one mark.
#[derive(Debug, Clone)]
pub(crate) struct Orphan {
    id: String,
    mark: UploadId,
    uploads: Vec<(UploadId, u32)>,
}

impl Orphan {
    /// What one upload has left.
    pub(crate) fn new(id: String, upload: UploadId, chunk_count: u32) -> Orphan {
        Orphan { id, mark: upload, uploads: vec![(upload, chunk_count)] }
    }

    /// What a mark lists.
    ///
    /// # Errors
    /// `Internal` where it makes no sense.
    pub(crate) fn from_list(id: String, mark: UploadId, list: &[u8]) -> Result<Orphan> {
        let (listed, rest) = list.as_chunks::<LISTED_SIZE>();
        if !rest.is_empty() {
            return Err(Error::damaged("a list of uploads is cut"));
        }
        let decode = |listed: &[u8; LISTED_SIZE]| {
            let (upload, count) = listed.split_first_chunk::<16>().expect("it begins with 16 bytes");
            (*upload, u32::from_le_bytes(count.try_into().expect("4 bytes follow")))
        };
        Ok(Orphan { id, mark, uploads: listed.iter().map(decode).collect() })
    }

    /// Whether a mark with this meta lists uploads in its value.
    pub(crate) fn is_listed(meta: &[u8]) -> bool {
        meta == LIST
    }

    /// Its mark's key.
    pub(crate) fn mark_key(&self) -> Vec<u8> {
        upload_key(&self.id, &self.mark)
    }

    /// What a mark of it lists.
    pub(crate) fn list(&self) -> Bytes {
        let listed = |(upload, count): &(UploadId, u32)| [&upload[..], &count.to_le_bytes()].concat();
        self.uploads.iter().flat_map(listed).collect()
    }

    /// Adds the removal of its chunks and then of its mark, as long as the batch has fewer than
    /// `batch_bytes` bytes. Returns what is left for another batch.
    pub(crate) fn remove(mut self, batch_bytes: usize, batch: &mut Batch) -> Option<Orphan> {
        while let Some((upload, count)) = self.uploads.last_mut() {
            while *count > 0 {
                if batch.size() >= batch_bytes {
                    return Some(self);
                }
                *count -= 1;
                batch.delete(&chunk_key(&self.id, upload, *count));
            }
            self.uploads.pop();
        }
        batch.delete(&self.mark_key());
        None
    }
}

/// The lots that are known, in the order in which they came. Shared by all who may let one go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Orphans(Arc<Mutex<VecDeque<Orphan>>>);

impl Orphans {
    pub(crate) fn push(&self, orphan: Orphan) {
        self.lock().push_back(orphan);
    }

    /// Takes lots one by one; they come back when what is returned goes.
    pub(crate) fn take(&self) -> Taken<'_> {
        Taken { orphans: self, lots: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Orphan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lots that are being removed: back in the queue where that is given up.
pub(crate) struct Taken<'a> {
    orphans: &'a Orphans,
    lots: Vec<Orphan>,
}

impl Taken<'_> {
    /// Takes the next one.
    pub(crate) fn next(&mut self) -> Option<&Orphan> {
        let lot = self.orphans.lock().pop_front()?;
        self.lots.push(lot);
        self.lots.last()
    }

    /// Forgets the one that was taken last.
    pub(crate) fn forget_last(&mut self) {
        self.lots.pop();
    }

    /// All that were taken have gone, but for `rest`, which comes back.
    pub(crate) fn removed(mut self, rest: Option<Orphan>) {
        self.lots.clear();
        self.lots.extend(rest);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut queue = self.orphans.lock();
        self.lots.drain(..).rev().for_each(|lot| queue.push_front(lot));
    }
}

/// The records that remove the content of those attachments that no leaf has any more. Where there is
/// much of it they are one mark, and what it stands for is returned, to be removed once the mark is
/// accepted.
///
/// # Errors
/// `TooLarge` where there are more uploads than a mark can list.
pub(crate) fn remove_unused(
    id: &str,
    old: &[Attachment],
    kept: &[Attachment],
    batch: &mut Batch,
) -> Result<Option<Orphan>> {
    // Used, or removed already.
    let mut seen: HashSet<UploadId> = kept.iter().map(|attachment| attachment.upload).collect();
    let unused = old.iter().filter(|attachment| seen.insert(attachment.upload));
    let uploads: Vec<(UploadId, u32)> =
        unused.map(|attachment| (attachment.upload, chunk_count(attachment.stored_length()))).collect();
    let Some(&(mark, _)) = uploads.first() else { return Ok(None) };
    let key_size = chunk_key(id, &mark, 0).len();
    let count: usize = uploads.iter().map(|(_, count)| *count as usize).sum();
    if count.saturating_mul(key_size) <= REMOVED_TOGETHER_BYTES_MAX {
        for (upload, count) in &uploads {
            (0..*count).for_each(|index| batch.delete(&chunk_key(id, upload, index)));
        }
        return Ok(None);
    }
    let orphan = Orphan { id: id.to_owned(), mark, uploads };
    let list = orphan.list();
    if list.len() > VALUE_SIZE_MAX {
        return Err(Error::new(ErrorKind::TooLarge, orphan.id));
    }
    batch.put(&orphan.mark_key(), &LIST, list, false);
    Ok(Some(orphan))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(upload: u8, chunk_count: u64) -> Attachment {
        let table = format!(
            "{{\"name\":\"n\",\"content_type\":\"t\",\"revpos\":1,\"digest\":\"{0}\",\"length\":{1},\"upload\":\"{0}\"}}",
            format!("{upload:02x}").repeat(16),
            chunk_count * super::super::CHUNK_BYTES as u64,
        );
        serde_json::from_str(&table).unwrap()
    }

    #[test]
    fn little_goes_at_once_and_much_by_a_mark_that_lists_it() {
        let few = [attachment(1, 2), attachment(2, 3), attachment(1, 2)];
        let mut batch = Batch::new();
        assert!(remove_unused("doc", &few, &few[1..2], &mut batch).unwrap().is_none());
        assert!(!batch.is_empty());
        let id = "x".repeat(8000);
        let mut small = Batch::new();
        let many = [attachment(1, 2000), attachment(2, 0), attachment(3, 5000)];
        let orphan = remove_unused(&id, &many, &many[..1], &mut small).unwrap().unwrap();
        assert!(small.size() < 10_000, "{}", small.size());
        let read = Orphan::from_list(id.clone(), orphan.mark, &orphan.list()).unwrap();
        assert_eq!(read.uploads, [([2; 16], 0), ([3; 16], 5000)]);
        assert_eq!(read.mark_key(), orphan.mark_key());
        assert!(Orphan::from_list(id, orphan.mark, &orphan.list()[1..]).is_err());
    }

    #[test]
    fn a_lot_goes_in_batches_and_none_of_it_twice() {
        let id = "x".repeat(8000);
        let mut left = Some(Orphan { id, mark: [1; 16], uploads: vec![([1; 16], 300), ([2; 16], 7)] });
        let (mut batch_count, mut bytes) = (0, 0);
        while let Some(lot) = left {
            let mut batch = Batch::new();
            left = lot.remove(1 << 20, &mut batch);
            assert!(batch.size() < (1 << 20) + 9000);
            (batch_count, bytes) = (batch_count + 1, bytes + batch.size());
        }
        assert_eq!(batch_count, 3);
        assert!((308 * 8000..308 * 8100).contains(&bytes), "{bytes}");
    }

    #[test]
    fn what_was_taken_comes_back_in_its_place_unless_it_has_gone() {
        let orphans = Orphans::default();
        for upload in 1..=4 {
            orphans.push(Orphan::new("a".into(), [upload; 16], 1));
        }
        let marks = || orphans.lock().iter().map(|lot| lot.mark[0]).collect::<Vec<_>>();
        let mut taken = orphans.take();
        assert!(taken.next().is_some() && taken.next().is_some());
        assert_eq!(marks(), [3, 4]);
        drop(taken);
        assert_eq!(marks(), [1, 2, 3, 4]);
        let mut taken = orphans.take();
        (0..3).for_each(|_| assert!(taken.next().is_some()));
        taken.forget_last();
        taken.removed(Some(Orphan::new("a".into(), [9; 16], 1)));
        assert_eq!(marks(), [9, 4]);
    }
}
