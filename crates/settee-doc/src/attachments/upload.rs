//! Uploads: content in the store that a document will refer to.
//!
//! Its chunks are written before the document; a small upload is kept in memory and written with it.
//!
//! Invariant: an upload with a stored chunk is referred to by an accepted leaf, or gets into the queue of
//! unreferenced uploads when its last clone is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use settee_store::Batch;

use super::attachment::Attachment;
use super::chunk::UploadId;
use super::digest::Md5Digest;
use super::unreferenced::{UnreferencedUpload, UnreferencedUploads};
use crate::documents::keys::{chunk_key, intent_key};

/// Uploaded content; removed unless a document refers to it.
#[derive(Debug, Clone)]
pub struct Upload {
    pub(super) length: u64,
    pub(super) gzip_length: Option<u64>,
    pub(super) digest: Md5Digest,
    /// Content that is written with the document.
    pub(super) chunk: Option<Bytes>,
    pub(super) guard: Arc<UploadGuard>,
}

impl Upload {
    /// The digest of the stored bytes.
    pub fn digest(&self) -> &Md5Digest {
        &self.digest
    }

    /// Bytes kept in memory, to be written with the document.
    pub fn waiting_bytes(&self) -> u64 {
        self.chunk.as_ref().map_or(0, |chunk| chunk.len() as u64)
    }

    pub(crate) fn to_attachment(&self, name: &str, content_type: &str, revpos: u32) -> Attachment {
        Attachment {
            name: name.to_owned(),
            content_type: content_type.to_owned(),
            revpos,
            digest: self.digest,
            length: self.length,
            gzip_length: self.gzip_length,
            upload: self.guard.upload,
        }
    }

    /// Adds the records that make it part of a document, and returns the guard to confirm once they are
    /// accepted.
    pub(crate) fn reference(&self, batch: &mut Batch) -> Arc<UploadGuard> {
        let UploadGuard { id, upload, .. } = &*self.guard;
        match &self.chunk {
            Some(chunk) if chunk.is_empty() => {}
            Some(chunk) => batch.put(&chunk_key(id, upload, 0), &[], chunk.clone(), false),
            None => batch.delete(&intent_key(id, upload)),
        }
        self.guard.clone()
    }
}

/// Keeps track of an upload until a document refers to it; dropped before that, it registers the upload as
/// unreferenced.
#[derive(Debug)]
pub(crate) struct UploadGuard {
    id: String,
    upload: UploadId,
    /// Number of chunks written.
    chunk_count: AtomicU32,
    confirmed: AtomicBool,
    unreferenced: UnreferencedUploads,
}

impl UploadGuard {
    pub(super) fn new(id: &str, unreferenced: UnreferencedUploads, upload: UploadId) -> UploadGuard {
        let (id, confirmed) = (id.to_owned(), AtomicBool::new(false));
        UploadGuard { id, upload, chunk_count: Default::default(), confirmed, unreferenced }
    }

    /// The batch that stores the next chunk, which the caller commits; with the first one an upload intent.
    pub(super) fn next_chunk(&self, chunk: Bytes) -> Batch {
        let UploadGuard { id, upload, chunk_count, .. } = self;
        let index = chunk_count.load(Ordering::Acquire);
        let mut batch = Batch::new();
        if index == 0 {
            batch.put(&intent_key(id, upload), &[], Bytes::new(), false);
        }
        batch.put(&chunk_key(id, upload, index), &[], chunk, false);
        // Before the commit, whose future may be dropped although the commit is done.
        chunk_count.store(index + 1, Ordering::Release);
        batch
    }

    /// Whether no chunk has been written, or is being written.
    pub(super) fn is_unwritten(&self) -> bool {
        self.chunk_count.load(Ordering::Acquire) == 0
    }

    /// A document refers to it.
    pub(crate) fn confirm(&self) {
        self.confirmed.store(true, Ordering::Release);
    }
}

impl Drop for UploadGuard {
    fn drop(&mut self) {
        let count = *self.chunk_count.get_mut();
        if count > 0 && !*self.confirmed.get_mut() {
            self.unreferenced.push(UnreferencedUpload::new(std::mem::take(&mut self.id), self.upload, count));
        }
    }
}
