//! Unreferenced uploads: chunks that no document refers to, and their removal.
//!
//! Every unreferenced upload has an upload intent in the store: written with an upload's first chunk, or by
//! an update that would otherwise have to remove more chunks than fit its own batch. Known intents wait in a
//! queue. Updates remove them before their own edits, in batches of deletions only, so that no edit grows or
//! fails because of them. Intents left by a crash are found when the database is opened.
//!
//! Invariants:
//! 1. An intent is removed with the last of its chunks, and an upload's chunks are removed from the last to
//!    the first: the remaining ones can be counted from 0 on.
//! 2. An intent taken from the queue returns to it unless its removal was accepted.
//! 3. Nothing is removed without an intent: the update that makes an upload part of a document deletes the
//!    intent.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use settee_store::{Batch, VALUE_SIZE_MAX};

use super::attachment::Attachment;
use super::chunk::{UploadId, chunk_count};
use crate::documents::keys::{chunk_key, intent_key};
use crate::{Error, ErrorKind, Result};

/// An update deletes up to this many bytes of chunk keys itself; for more it writes an intent.
const DELETED_WITH_UPDATE_BYTES_MAX: usize = 64 << 10;

/// Meta of an intent whose value lists uploads. Without it the intent's own key names the only upload.
const LIST: [u8; 1] = [1];

/// Size of a list's element: an upload, and its number of chunks (4 bytes, little-endian).
const LIST_ITEM_SIZE: usize = 16 + 4;

/// Chunks that no document refers to, under one upload intent.
#[derive(Debug, Clone)]
pub(crate) struct UnreferencedUpload {
    id: String,
    intent: UploadId,
    uploads: Vec<(UploadId, u32)>,
}

impl UnreferencedUpload {
    /// The remaining chunks of one upload.
    pub(crate) fn new(id: String, upload: UploadId, chunk_count: u32) -> UnreferencedUpload {
        UnreferencedUpload { id, intent: upload, uploads: vec![(upload, chunk_count)] }
    }

    /// Decodes an intent's list.
    ///
    /// # Errors
    /// `Internal` if the list is malformed.
    pub(crate) fn from_list(id: String, intent: UploadId, list: &[u8]) -> Result<UnreferencedUpload> {
        let (item, rest) = list.as_chunks::<LIST_ITEM_SIZE>();
        if !rest.is_empty() {
            return Err(Error::damaged("a list of uploads is truncated"));
        }
        let decode = |item: &[u8; LIST_ITEM_SIZE]| {
            let (upload, count) = item.split_first_chunk::<16>().expect("it begins with 16 bytes");
            (*upload, u32::from_le_bytes(count.try_into().expect("4 bytes follow")))
        };
        Ok(UnreferencedUpload { id, intent, uploads: item.iter().map(decode).collect() })
    }

    /// Whether an intent with this meta lists uploads in its value.
    pub(crate) fn is_list(meta: &[u8]) -> bool {
        meta == LIST
    }

    /// The key of its intent.
    pub(crate) fn intent_key(&self) -> Vec<u8> {
        intent_key(&self.id, &self.intent)
    }

    /// Encodes the list of its uploads.
    pub(crate) fn list(&self) -> Bytes {
        let item = |(upload, count): &(UploadId, u32)| [&upload[..], &count.to_le_bytes()].concat();
        self.uploads.iter().flat_map(item).collect()
    }

    /// Adds the removal of its chunks and then of its intent, as long as the batch has fewer than
    /// `batch_bytes` bytes. Returns the rest for another batch.
    pub(crate) fn remove(mut self, batch_bytes: usize, batch: &mut Batch) -> Option<UnreferencedUpload> {
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
        batch.delete(&self.intent_key());
        None
    }
}

/// The queue of known unreferenced uploads, oldest first. Shared by all uploads and updates of a database.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreferencedUploads(Arc<Mutex<VecDeque<UnreferencedUpload>>>);

impl UnreferencedUploads {
    pub(crate) fn push(&self, unreferenced: UnreferencedUpload) {
        self.lock().push_back(unreferenced);
    }

    /// Takes uploads one by one; dropping the guard returns them to the queue.
    pub(crate) fn take(&self) -> TakenUploads<'_> {
        TakenUploads { unreferenced: self, uploads: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<UnreferencedUpload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Uploads that are being removed; returned to the queue on drop.
pub(crate) struct TakenUploads<'a> {
    unreferenced: &'a UnreferencedUploads,
    uploads: Vec<UnreferencedUpload>,
}

impl TakenUploads<'_> {
    /// Takes the next upload.
    pub(crate) fn next(&mut self) -> Option<&UnreferencedUpload> {
        let unreferenced = self.unreferenced.lock().pop_front()?;
        self.uploads.push(unreferenced);
        self.uploads.last()
    }

    /// Doesn't return the last one taken to the queue.
    pub(crate) fn discard_last(&mut self) {
        self.uploads.pop();
    }

    /// Confirms the removal of all that were taken, except `rest`, which returns to the queue.
    pub(crate) fn confirm_removed(mut self, rest: Option<UnreferencedUpload>) {
        self.uploads.clear();
        self.uploads.extend(rest);
    }
}

impl Drop for TakenUploads<'_> {
    fn drop(&mut self) {
        let mut queue = self.unreferenced.lock();
        self.uploads.drain(..).rev().for_each(|unreferenced| queue.push_front(unreferenced));
    }
}

/// Removes the content of the attachments of `old` that aren't in `kept`: adds the chunks' deletions, or, if
/// there are many, one upload intent. Returns the intent's uploads, to be removed once the intent is
/// accepted.
///
/// # Errors
/// `TooLarge` if there are more uploads than an intent can list.
pub(crate) fn remove_unused(
    id: &str,
    old: &[Attachment],
    kept: &[Attachment],
    batch: &mut Batch,
) -> Result<Option<UnreferencedUpload>> {
    // Still referenced, or removed already.
    let mut seen: HashSet<UploadId> = kept.iter().map(|attachment| attachment.upload).collect();
    let unused = old.iter().filter(|attachment| seen.insert(attachment.upload));
    let uploads: Vec<(UploadId, u32)> =
        unused.map(|attachment| (attachment.upload, chunk_count(attachment.stored_length()))).collect();
    let Some(&(intent, _)) = uploads.first() else { return Ok(None) };
    let key_size = chunk_key(id, &intent, 0).len();
    let count: usize = uploads.iter().map(|(_, count)| *count as usize).sum();
    if count.saturating_mul(key_size) <= DELETED_WITH_UPDATE_BYTES_MAX {
        for (upload, count) in &uploads {
            (0..*count).for_each(|index| batch.delete(&chunk_key(id, upload, index)));
        }
        return Ok(None);
    }
    let unreferenced = UnreferencedUpload { id: id.to_owned(), intent, uploads };
    let list = unreferenced.list();
    if list.len() > VALUE_SIZE_MAX {
        return Err(Error::new(ErrorKind::TooLarge, unreferenced.id));
    }
    batch.put(&unreferenced.intent_key(), &LIST, list, false);
    Ok(Some(unreferenced))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(upload: u8, chunk_count: u64) -> Attachment {
        let table = format!(
            "{{\"name\":\"n\",\"content_type\":\"t\",\"revpos\":1,\"digest\":\"{0}\",\"length\":{1},\"upload\":\"{0}\"}}",
            format!("{upload:02x}").repeat(16),
            chunk_count * crate::CHUNK_BYTES as u64,
        );
        serde_json::from_str(&table).unwrap()
    }

    #[test]
    fn few_chunks_are_deleted_at_once_and_many_by_an_intent() {
        let few = [attachment(1, 2), attachment(2, 3), attachment(1, 2)];
        let mut batch = Batch::new();
        assert!(remove_unused("doc", &few, &few[1..2], &mut batch).unwrap().is_none());
        assert!(!batch.is_empty());
        let id = "x".repeat(8000);
        let mut small = Batch::new();
        let many = [attachment(1, 2000), attachment(2, 0), attachment(3, 5000)];
        let unreferenced = remove_unused(&id, &many, &many[..1], &mut small).unwrap().unwrap();
        assert!(small.size() < 10_000, "{}", small.size());
        let read =
            UnreferencedUpload::from_list(id.clone(), unreferenced.intent, &unreferenced.list()).unwrap();
        assert_eq!(read.uploads, [([2; 16], 0), ([3; 16], 5000)]);
        assert_eq!(read.intent_key(), unreferenced.intent_key());
        assert!(UnreferencedUpload::from_list(id, unreferenced.intent, &unreferenced.list()[1..]).is_err());
    }

    #[test]
    fn an_upload_is_removed_in_batches_without_duplicates() {
        let id = "x".repeat(8000);
        let mut rest =
            Some(UnreferencedUpload { id, intent: [1; 16], uploads: vec![([1; 16], 300), ([2; 16], 7)] });
        let (mut batch_count, mut bytes) = (0, 0);
        while let Some(unreferenced) = rest {
            let mut batch = Batch::new();
            rest = unreferenced.remove(1 << 20, &mut batch);
            assert!(batch.size() < (1 << 20) + 9000);
            (batch_count, bytes) = (batch_count + 1, bytes + batch.size());
        }
        assert_eq!(batch_count, 3);
        assert!((308 * 8000..308 * 8100).contains(&bytes), "{bytes}");
    }

    #[test]
    fn taken_uploads_return_in_order_unless_removed() {
        let unreferenced = UnreferencedUploads::default();
        for upload in 1..=4 {
            unreferenced.push(UnreferencedUpload::new("a".into(), [upload; 16], 1));
        }
        let intents =
            || unreferenced.lock().iter().map(|unreferenced| unreferenced.intent[0]).collect::<Vec<_>>();
        let mut taken = unreferenced.take();
        assert!(taken.next().is_some() && taken.next().is_some());
        assert_eq!(intents(), [3, 4]);
        drop(taken);
        assert_eq!(intents(), [1, 2, 3, 4]);
        let mut taken = unreferenced.take();
        (0..3).for_each(|_| assert!(taken.next().is_some()));
        taken.discard_last();
        taken.confirm_removed(Some(UnreferencedUpload::new("a".into(), [9; 16], 1)));
        assert_eq!(intents(), [9, 4]);
    }
}
