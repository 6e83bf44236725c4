//! Uploading: the bytes of an attachment or an out-of-line body on their way into the store.
//!
//! Content is compressed if its type says that this is worthwhile; content that is already compressed is
//! stored as it is. Each full chunk is committed when it is complete, the first one with an upload intent.

use std::io::Write as _;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use flate2::write::{GzDecoder, GzEncoder};
use flate2::{Compression, GzBuilder};
use md5::{Digest as _, Md5};
use settee_io::yield_now;
use settee_store::Stage;

use super::chunk::CHUNK_BYTES;
use super::digest::Md5Digest;
use super::upload::{Upload, UploadGuard};
use crate::database::Database;
use crate::{Error, ErrorKind, Result};

/// An upload of up to this many bytes is written with its document.
const WITH_DOCUMENT_BYTES_MAX: usize = 64 << 10;

/// Bytes decompressed at once: they may become a thousand times as many.
const DECOMPRESSED_AT_ONCE_BYTES: usize = 1 << 10;

/// Bytes compressed at once.
const COMPRESSED_AT_ONCE_BYTES: usize = 16 << 10;

/// An upload yields to other tasks after compressing or decompressing this many bytes, which takes some
/// milliseconds. A chunk that was hashed and stored counts as many.
const WORK_BYTES_MAX: u64 = 64 << 10;

/// CouchDB's default compression level.
const COMPRESSION_LEVEL: u32 = 8;

/// The operating system that zlib names in a gzip header on Unix (RFC 1952).
const GZIP_OS_UNIX: u8 = 3;

/// An attachment being uploaded. Holds a chunk in memory.
pub struct Uploading<'a> {
    database: &'a Database,
    guard: Arc<UploadGuard>,
    sink: Sink,
    /// Number of bytes received, and their digest, computed while they are in the CPU cache.
    length: u64,
    received: Md5,
    /// For an upload that is already compressed: verifies it, and counts the decompressed bytes.
    decompressor: Option<GzDecoder<Count>>,
    /// Digest of the stored bytes, if the server compresses them.
    stored: Option<Md5>,
    stored_length: u64,
    bytes_max: u64,
    /// Work since the last yield, in bytes compressed or decompressed.
    work_bytes: u64,
}

/// Counts the bytes written to it.
#[derive(Default)]
struct Count(u64);

impl std::io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Destination of an upload's bytes.
enum Sink {
    Plain(BytesMut),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Sink {
    /// Number of bytes that it accepts at once.
    fn step_bytes(&self) -> usize {
        match self {
            Sink::Plain(buffer) => CHUNK_BYTES - buffer.len(),
            Sink::Gzip(_) => COMPRESSED_AT_ONCE_BYTES,
        }
    }
}

impl<'a> Uploading<'a> {
    /// See [`Database::upload`].
    fn new(
        database: &'a Database,
        id: &str,
        content_type: &str,
        is_gzip: bool,
        bytes_max: u64,
    ) -> Uploading<'a> {
        let (sink, stored) = match !is_gzip && is_compressible(content_type) {
            true => {
                let level = Compression::new(COMPRESSION_LEVEL);
                let encoder = GzBuilder::new().operating_system(GZIP_OS_UNIX).write(Vec::new(), level);
                (Sink::Gzip(encoder), Some(Md5::new()))
            }
            false => (Sink::Plain(BytesMut::new()), None),
        };
        Uploading {
            database,
            guard: Arc::new(database.begin_upload(id)),
            sink,
            length: 0,
            received: Md5::new(),
            decompressor: is_gzip.then(|| GzDecoder::new(Count::default())),
            stored,
            stored_length: 0,
            bytes_max,
            work_bytes: 0,
        }
    }

    /// Receives the next bytes. Waits while the store's writes can't keep up, and yields to other tasks
    /// regularly.
    ///
    /// # Errors
    /// `AttachmentTooLarge`; `BadRequest` for bytes that should be gzip and aren't; `NoSpace`; `Stopped`. The
    /// upload is removed.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.length += bytes.len() as u64;
        if self.length > self.bytes_max {
            return Err(Error::new(ErrorKind::AttachmentTooLarge, "the attachment is too large"));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let part;
            (part, rest) = rest.split_at(rest.len().min(self.step_bytes()));
            if let Some(decompressor) = &mut self.decompressor {
                let before = decompressor.get_ref().0;
                decompressor.write_all(part).map_err(|_| not_gzip())?;
                self.work_bytes += decompressor.get_ref().0 - before;
            }
            self.received.update(part);
            self.take(part);
            self.store_full_chunks().await?;
            if self.work_bytes >= WORK_BYTES_MAX {
                self.work_bytes = 0;
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Number of bytes processed at once.
    fn step_bytes(&self) -> usize {
        match self.decompressor {
            Some(_) => self.sink.step_bytes().min(DECOMPRESSED_AT_ONCE_BYTES),
            None => self.sink.step_bytes(),
        }
    }

    fn take(&mut self, part: &[u8]) {
        match &mut self.sink {
            Sink::Plain(buffer) => {
                if buffer.len() + part.len() > WITH_DOCUMENT_BYTES_MAX {
                    // All capacity at once, so that the buffer never grows by copying.
                    buffer.reserve(CHUNK_BYTES - buffer.len());
                }
                buffer.extend_from_slice(part);
            }
            Sink::Gzip(encoder) => {
                self.work_bytes += part.len() as u64;
                encoder.write_all(part).expect("a vector takes it");
            }
        }
    }

    /// Stores full chunks.
    async fn store_full_chunks(&mut self) -> Result<()> {
        loop {
            let chunk = match &mut self.sink {
                Sink::Plain(buffer) if buffer.len() == CHUNK_BYTES => std::mem::take(buffer).freeze(),
                Sink::Gzip(encoder) if encoder.get_ref().len() >= CHUNK_BYTES => {
                    let rest = encoder.get_mut().split_off(CHUNK_BYTES);
                    Bytes::from(std::mem::replace(encoder.get_mut(), rest))
                }
                _ => return Ok(()),
            };
            self.put(chunk).await?;
        }
    }

    async fn put(&mut self, chunk: Bytes) -> Result<()> {
        self.work_bytes += WORK_BYTES_MAX;
        self.count(&chunk);
        self.database.put_chunk(&self.guard, chunk).await
    }

    fn count(&mut self, chunk: &Bytes) {
        if let Some(stored) = &mut self.stored {
            stored.update(chunk);
        }
        self.stored_length += chunk.len() as u64;
    }

    /// Completes the upload. `expected` is the expected digest of the received bytes.
    ///
    /// # Errors
    /// As [`Uploading::write`]; `DigestMismatch` if the digest differs: the upload is removed.
    pub async fn finish(mut self, expected: Option<Md5Digest>) -> Result<Upload> {
        let mut rest: Bytes = match std::mem::replace(&mut self.sink, Sink::Plain(BytesMut::new())) {
            Sink::Plain(buffer) => buffer.freeze(),
            Sink::Gzip(encoder) => encoder.finish().expect("a vector takes it").into(),
        };
        while rest.len() >= CHUNK_BYTES {
            let chunk = rest.split_to(CHUNK_BYTES);
            self.put(chunk).await?;
        }
        let is_first = self.guard.is_unwritten();
        let chunk = if is_first && rest.len() <= WITH_DOCUMENT_BYTES_MAX {
            self.count(&rest);
            Some(rest)
        } else {
            if !rest.is_empty() {
                self.put(rest).await?;
            }
            None
        };
        let received: Md5Digest = self.received.finalize().into();
        if expected.is_some_and(|expected| expected != received) {
            return Err(Error::new(ErrorKind::DigestMismatch, "Possible message corruption."));
        }
        let is_compressed = self.stored.is_some() || self.decompressor.is_some();
        let digest = self.stored.map_or(received, |stored| stored.finalize().into());
        let gzip_length = is_compressed.then_some(self.stored_length);
        let length = match self.decompressor {
            Some(decompressor) => decompressor.finish().map_err(|_| not_gzip())?.0,
            None => self.length,
        };
        Ok(Upload { length, gzip_length, digest, chunk, guard: self.guard })
    }
}

fn not_gzip() -> Error {
    Error::bad_request("the attachment isn't gzip, as it says")
}

/// Whether content of this type is compressed.
pub fn is_compressible(content_type: &str) -> bool {
    // CouchDB's `compressible_types`.
    const TYPES: [&str; 3] = ["application/javascript", "application/json", "application/xml"];
    let plain = content_type.split(';').next().unwrap_or("").trim();
    plain.get(..5).is_some_and(|front| front.eq_ignore_ascii_case("text/"))
        || TYPES.iter().any(|known| plain.eq_ignore_ascii_case(known))
}

impl Upload {
    /// Writes the bytes kept in memory now, which frees the memory.
    ///
    /// # Errors
    /// `NoSpace`; `Stopped`.
    pub async fn store(&mut self, database: &Database) -> Result<()> {
        if let Some(chunk) = self.chunk.take_if(|chunk| !chunk.is_empty()) {
            database.put_chunk(&self.guard, chunk).await?;
        }
        Ok(())
    }
}

impl Database {
    /// Begins the upload of an attachment of document `id`. The caller passes its bytes to
    /// [`Uploading::write`], and puts the result of [`Uploading::finish`] into an edit of that document.
    /// `is_gzip`: the bytes are compressed by gzip already, and are stored as they are. At most `bytes_max`
    /// bytes are accepted.
    pub fn upload(&self, id: &str, content_type: &str, is_gzip: bool, bytes_max: u64) -> Uploading<'_> {
        Uploading::new(self, id, content_type, is_gzip, bytes_max)
    }

    /// Writes an out-of-line body before its document, and yields to other tasks after each chunk. The upload has
    /// no digest.
    pub(crate) async fn upload_body(&self, id: &str, body: &Bytes) -> Result<Upload> {
        let guard = Arc::new(self.begin_upload(id));
        for start in (0..body.len()).step_by(CHUNK_BYTES) {
            let end = body.len().min(start + CHUNK_BYTES);
            self.put_chunk(&guard, body.slice(start..end)).await?;
            yield_now().await;
        }
        let length = body.len() as u64;
        Ok(Upload { length, gzip_length: None, digest: Md5Digest::default(), chunk: None, guard })
    }

    fn begin_upload(&self, id: &str) -> UploadGuard {
        UploadGuard::new(id, self.unreferenced.clone(), self.env.random_bytes())
    }

    /// Stores an upload's next chunk.
    async fn put_chunk(&self, guard: &UploadGuard, chunk: Bytes) -> Result<()> {
        let batch = guard.next_chunk(chunk);
        self.commit(&batch, Stage::Accepted).await.map(drop)
    }
}
