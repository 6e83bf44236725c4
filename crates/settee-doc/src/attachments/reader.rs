//! Reading of an attachment's content.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use flate2::write::GzDecoder;
use settee_store::Snapshot as StoreSnapshot;

use super::attachment::Attachment;
use super::chunk::{CHUNK_BYTES, UploadId};
use crate::documents::keys::chunk_key;
use crate::{Error, Result};

/// Compressed bytes decompressed at once: they may become a thousand times as many.
const DECOMPRESSED_AT_ONCE_BYTES: usize = 1 << 10;

/// Decompressed content is returned in pieces of at least this many bytes, except the last; a piece exceeds
/// it by at most the output of one step.
const DECOMPRESSED_PIECE_BYTES: usize = 64 << 10;

/// Reads an attachment chunk by chunk; it holds its snapshot.
pub struct AttachmentReader {
    store: StoreSnapshot,
    id: String,
    upload: UploadId,
    /// Range of the stored bytes still to be read.
    at: u64,
    end: u64,
    /// Bytes read and not yet decoded.
    encoded: Bytes,
    decoder: Option<GzDecoder<Vec<u8>>>,
    /// Keeps the database from being closed as idle.
    _user: Arc<()>,
}

impl AttachmentReader {
    /// With `decode`, compressed content is decompressed. `range` refers to stored bytes.
    pub(crate) fn new(
        store: StoreSnapshot,
        user: Arc<()>,
        id: &str,
        attachment: &Attachment,
        range: std::ops::Range<u64>,
        decode: bool,
    ) -> AttachmentReader {
        let decodes = decode && attachment.gzip_length.is_some();
        AttachmentReader {
            store,
            id: id.to_owned(),
            upload: attachment.upload,
            at: range.start,
            end: range.end.min(attachment.stored_length()),
            encoded: Bytes::new(),
            decoder: decodes.then(|| GzDecoder::new(Vec::new())),
            _user: user,
        }
    }

    /// The next bytes; `None` at the end. At most a chunk; decompressed, little more than a mebibyte.
    ///
    /// # Errors
    /// `Internal` if it can't be read. The reader is unusable afterwards.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let garbled = |_| Error::damaged("a compressed attachment can't be decompressed");
        loop {
            if self.encoded.is_empty() {
                if self.at >= self.end {
                    return Ok(None);
                }
                self.encoded = self.read().await?;
            }
            let Some(decoder) = &mut self.decoder else {
                return Ok(Some(std::mem::take(&mut self.encoded)));
            };
            while !self.encoded.is_empty() && decoder.get_ref().len() < DECOMPRESSED_PIECE_BYTES {
                let part = self.encoded.split_to(DECOMPRESSED_AT_ONCE_BYTES.min(self.encoded.len()));
                decoder.write_all(&part).map_err(garbled)?;
            }
            if self.encoded.is_empty() && self.at == self.end {
                decoder.try_finish().map_err(garbled)?;
            }
            let plain = std::mem::take(decoder.get_mut());
            if !plain.is_empty() {
                return Ok(Some(plain.into()));
            }
        }
    }

    /// The rest of the current chunk.
    async fn read(&mut self) -> Result<Bytes> {
        let index = self.at / CHUNK_BYTES as u64;
        let key = chunk_key(&self.id, &self.upload, index as u32);
        let entry = self.store.get(&key).await?;
        let entry = entry.ok_or_else(|| Error::damaged("a chunk of an attachment is missing"))?;
        let chunk = self.store.read(entry.location).await?.value();
        let start = (self.at % CHUNK_BYTES as u64) as usize;
        let end = chunk.len().min((self.end - index * CHUNK_BYTES as u64) as usize);
        if start >= end {
            return Err(Error::damaged("a chunk of an attachment is too short"));
        }
        self.at += (end - start) as u64;
        Ok(chunk.slice(start..end))
    }
}
