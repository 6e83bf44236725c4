//! Attachments: files that belong to a document.
//!
//! An attachment's content is stored in chunks of [`CHUNK_BYTES`], each a record under its own key, which
//! names the document and the upload. A leaf's value begins with a table of its uploads. So revisions share
//! common attachments, and compaction and backups need no knowledge of attachments. The update that removes
//! the last reference to an upload also removes its chunks.
//!
//! An upload is written as it arrives, without a sync of its own: the update that refers to it follows in the
//! log, and the update's sync covers both. Until then an upload intent marks it; intents that a crash left
//! are removed with their chunks after the database is opened. A small upload is written with the update
//! itself.
//!
//! Invariants:
//! 1. Each chunk that a leaf's table refers to exists: it precedes the leaf in the log.
//! 2. A chunk that no leaf refers to has an upload intent.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use flate2::write::{GzDecoder, GzEncoder};
use flate2::{Compression, GzBuilder};
use md5::{Digest as _, Md5};
use serde::{Deserialize, Serialize};
use settee_io::yield_now;
use settee_store::{Batch, Stage};

use crate::database::Database;
use crate::json::write_json_string;
use crate::keys::{chunk_key, intent_key};
use crate::snapshot::Snapshot;
use crate::{Error, ErrorKind, Result};

mod unreferenced;

pub(crate) use unreferenced::{UnreferencedUpload, UnreferencedUploads, remove_unused};

/// Size of a chunk in bytes; an attachment's last chunk may be smaller.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Name of an out-of-line body in a leaf's table: no attachment has this name.
pub(crate) const BODY_NAME: &str = "";

/// An upload of up to this many bytes is written with its document.
const WITH_DOCUMENT_BYTES_MAX: usize = 64 << 10;

/// Bytes decompressed at once: they may become a thousand times as many.
const DECOMPRESSED_AT_ONCE_BYTES: usize = 1 << 10;

/// Bytes compressed at once.
const COMPRESSED_AT_ONCE_BYTES: usize = 16 << 10;

/// An upload yields to other tasks after compressing or decompressing this many bytes, which takes some
/// milliseconds. A chunk that was hashed and stored counts as many.
const WORK_BYTES_MAX: u64 = 64 << 10;

/// Decompressed content is returned in pieces of at least this many bytes, except the last; a piece exceeds
/// it by at most the output of one step.
const DECOMPRESSED_PIECE_BYTES: usize = 64 << 10;

/// CouchDB's default compression level.
const COMPRESSION_LEVEL: u32 = 8;

/// The operating system that zlib names in a gzip header on Unix (RFC 1952).
const GZIP_OS_UNIX: u8 = 3;

/// An MD5 digest, which CouchDB uses for attachments.
pub type Md5Digest = [u8; 16];

/// Identifies an upload among those of its document.
pub(crate) type UploadId = [u8; 16];

/// An attachment of a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub content_type: String,
    /// The generation of the revision that added it.
    pub revpos: u32,
    /// The digest of the stored bytes.
    #[serde(with = "hex")]
    pub digest: Md5Digest,
    /// Size of the content in bytes.
    pub length: u64,
    /// Size of the stored bytes, if the content is stored compressed by gzip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gzip_length: Option<u64>,
    #[serde(with = "hex")]
    upload: UploadId,
}

impl Attachment {
    /// Number of stored bytes.
    pub fn stored_length(&self) -> u64 {
        self.gzip_length.unwrap_or(self.length)
    }

    /// The keys of its chunks.
    pub(crate) fn chunk_keys(&self, id: &str) -> impl Iterator<Item = Vec<u8>> {
        (0..chunk_count(self.stored_length())).map(move |index| chunk_key(id, &self.upload, index))
    }

    /// Appends the members of a stub, except `stub` itself. With `encoding` they include the compression of
    /// the stored bytes.
    pub fn write_members(&self, encoding: bool, out: &mut Vec<u8>) {
        self.write_described(true, encoding, out);
    }

    /// Appends the members beside `data`: as [`Attachment::write_members`], without the length.
    pub fn write_members_with_data(&self, encoding: bool, out: &mut Vec<u8>) {
        self.write_described(false, encoding, out);
    }

    fn write_described(&self, has_length: bool, encoding: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"content_type\":");
        write_json_string(&self.content_type, out);
        let mut number = |name: &str, value: u64| {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        };
        number(",\"revpos\":", self.revpos.into());
        if has_length {
            number(",\"length\":", self.length);
        }
        if let Some(length) = self.gzip_length.filter(|_| encoding) {
            number(",\"encoded_length\":", length);
            out.extend_from_slice(b",\"encoding\":\"gzip\"");
        }
        out.extend_from_slice(b",\"digest\":\"");
        out.extend_from_slice(digest_text(&self.digest).as_bytes());
        out.push(b'"');
    }
}

/// `md5-` and the digest in base 64.
pub fn digest_text(digest: &Md5Digest) -> String {
    use base64::Engine as _;
    format!("md5-{}", base64::engine::general_purpose::STANDARD.encode(digest))
}

/// Parses a digest: `md5-…`, or base 64 alone as in `Content-MD5`.
///
/// # Errors
/// `BadRequest` for anything else.
pub fn parse_digest(text: &str) -> Result<Md5Digest> {
    use base64::Engine as _;
    let digits = text.strip_prefix("md5-").unwrap_or(text);
    let bytes = base64::engine::general_purpose::STANDARD.decode(digits).ok();
    let digest = bytes.and_then(|bytes| Md5Digest::try_from(bytes).ok());
    digest.ok_or_else(|| Error::bad_request(format!("not an MD5 digest: {text}")))
}

/// Whether content of this type is compressed.
pub fn is_compressible(content_type: &str) -> bool {
    // CouchDB's `compressible_types`.
    const TYPES: [&str; 3] = ["application/javascript", "application/json", "application/xml"];
    let plain = content_type.split(';').next().unwrap_or("").trim();
    plain.get(..5).is_some_and(|front| front.eq_ignore_ascii_case("text/"))
        || TYPES.iter().any(|known| plain.eq_ignore_ascii_case(known))
}

fn chunk_count(length: u64) -> u32 {
    u32::try_from(length.div_ceil(CHUNK_BYTES as u64)).unwrap_or(u32::MAX)
}

/// Encodes a leaf's value with attachments: the encoding byte, the table's size (4 bytes, little-endian), the
/// table, and the body.
pub(crate) fn encode_table(attachments: &[Attachment], body: &[u8], encoding: u8) -> Bytes {
    let table = serde_json::to_vec(attachments).expect("a table is plain data");
    let mut value = Vec::with_capacity(5 + table.len() + body.len());
    value.push(encoding);
    value.extend_from_slice(&(table.len() as u32).to_le_bytes());
    value.extend_from_slice(&table);
    value.extend_from_slice(body);
    value.into()
}

/// Decodes the table and the body behind the encoding byte.
pub(crate) fn decode_table(rest: &Bytes) -> Result<(Vec<Attachment>, Bytes)> {
    let damaged = || Error::damaged("a table of attachments is malformed");
    let (size, _) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    let end = 4 + u32::from_le_bytes(*size) as usize;
    let table = rest.get(4..end).ok_or_else(damaged)?;
    let table = serde_json::from_slice(table).map_err(|_| damaged())?;
    Ok((table, rest.slice(end..)))
}

/// An attachment of an edit.
#[derive(Debug, Clone)]
pub struct NewAttachment {
    /// Its name.
    pub name: String,
    /// Its media type; ignored for a stub, which keeps the stored type.
    pub content_type: String,
    /// The generation of the revision that added it, for replicated edits and stubs. Ignored for the new
    /// attachments of an interactive edit, which get the new revision's generation.
    pub revpos: Option<u32>,
    /// The location of its content.
    pub content: Content,
}

/// Location of the content of an edit's attachment.
#[derive(Debug, Clone)]
pub enum Content {
    /// In the revision that the edit replaces; with the digest that the client expects.
    Stub(Option<Md5Digest>),
    /// In the edit, decoded.
    Inline(Bytes),
    /// Behind the document in the request; the caller must upload it before the edit is made.
    Follows(Following),
    /// In the store.
    Stored(Upload),
}

/// Description of content that follows a document in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Following {
    /// Number of bytes that follow.
    pub length: u64,
    /// Whether they are compressed by gzip.
    pub is_gzip: bool,
    /// Their digest.
    pub digest: Option<Md5Digest>,
}

/// Uploaded content; removed unless a document refers to it.
#[derive(Debug, Clone)]
pub struct Upload {
    length: u64,
    gzip_length: Option<u64>,
    digest: Md5Digest,
    /// Content that is written with the document.
    chunk: Option<Bytes>,
    guard: Arc<UploadGuard>,
}

impl Upload {
    /// Writes an out-of-line body before its document. It has no digest.
    pub(crate) async fn of_body(
        database: &Database,
        id: &str,
        body: &Bytes,
        unreferenced: UnreferencedUploads,
        upload: UploadId,
    ) -> Result<Upload> {
        let guard = Arc::new(UploadGuard::new(id, unreferenced, upload));
        for start in (0..body.len()).step_by(CHUNK_BYTES) {
            let end = body.len().min(start + CHUNK_BYTES);
            guard.put(database, body.slice(start..end)).await?;
        }
        let length = body.len() as u64;
        Ok(Upload { length, gzip_length: None, digest: Md5Digest::default(), chunk: None, guard })
    }

    /// The digest of the stored bytes.
    pub fn digest(&self) -> &Md5Digest {
        &self.digest
    }

    /// Bytes kept in memory, to be written with the document.
    pub fn waiting_bytes(&self) -> u64 {
        self.chunk.as_ref().map_or(0, |chunk| chunk.len() as u64)
    }

    /// Writes them now, which frees the memory.
    ///
    /// # Errors
    /// `NoSpace`; `Stopped`.
    pub async fn store(&mut self, database: &Database) -> Result<()> {
        if let Some(chunk) = self.chunk.take_if(|chunk| !chunk.is_empty()) {
            self.guard.put(database, chunk).await?;
        }
        Ok(())
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
    chunk_count: std::sync::atomic::AtomicU32,
    confirmed: AtomicBool,
    unreferenced: UnreferencedUploads,
}

impl UploadGuard {
    fn new(id: &str, unreferenced: UnreferencedUploads, upload: UploadId) -> UploadGuard {
        let (id, confirmed) = (id.to_owned(), AtomicBool::new(false));
        UploadGuard { id, upload, chunk_count: Default::default(), confirmed, unreferenced }
    }

    /// Stores the next chunk; with the first one an upload intent.
    async fn put(&self, database: &Database, chunk: Bytes) -> Result<()> {
        let UploadGuard { id, upload, chunk_count, .. } = self;
        let index = chunk_count.load(Ordering::Acquire);
        let mut batch = Batch::new();
        if index == 0 {
            batch.put(&intent_key(id, upload), &[], Bytes::new(), false);
        }
        batch.put(&chunk_key(id, upload, index), &[], chunk, false);
        // Before the commit, whose future may be dropped although the commit is done.
        chunk_count.store(index + 1, Ordering::Release);
        database.commit(&batch, Stage::Accepted).await.map(drop)
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
    pub(crate) fn new(
        database: &'a Database,
        id: &str,
        content_type: &str,
        is_gzip: bool,
        unreferenced: UnreferencedUploads,
        upload: UploadId,
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
            guard: Arc::new(UploadGuard::new(id, unreferenced, upload)),
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
        self.guard.put(self.database, chunk).await
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
        let is_first = self.guard.chunk_count.load(Ordering::Acquire) == 0;
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

/// Reads an attachment chunk by chunk; it holds its snapshot.
pub struct AttachmentReader {
    snapshot: Snapshot,
    id: String,
    upload: UploadId,
    /// Of what is stored, what is still to be read.
    /// Range of the stored bytes still to be read.
    at: u64,
    end: u64,
    /// Bytes read and not yet decoded.
    encoded: Bytes,
    decoder: Option<GzDecoder<Vec<u8>>>,
}

impl AttachmentReader {
    /// With `decode`, compressed content is decompressed. `range` refers to stored bytes.
    pub(crate) fn new(
        snapshot: Snapshot,
        id: &str,
        attachment: &Attachment,
        range: std::ops::Range<u64>,
        decode: bool,
    ) -> AttachmentReader {
        let decodes = decode && attachment.gzip_length.is_some();
        AttachmentReader {
            snapshot,
            id: id.to_owned(),
            upload: attachment.upload,
            at: range.start,
            end: range.end.min(attachment.stored_length()),
            encoded: Bytes::new(),
            decoder: decodes.then(|| GzDecoder::new(Vec::new())),
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
        let entry = self.snapshot.store().get(&key).await?;
        let entry = entry.ok_or_else(|| Error::damaged("a chunk of an attachment is missing"))?;
        let chunk = self.snapshot.store().read(entry.location).await?.value();
        let start = (self.at % CHUNK_BYTES as u64) as usize;
        let end = chunk.len().min((self.end - index * CHUNK_BYTES as u64) as usize);
        if start >= end {
            return Err(Error::damaged("a chunk of an attachment is too short"));
        }
        self.at += (end - start) as u64;
        Ok(chunk.slice(start..end))
    }
}

/// Serializes 16 bytes as 32 hex digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = Vec::with_capacity(32);
        crate::revision::write_hash(bytes, &mut text);
        serializer.serialize_str(std::str::from_utf8(&text).expect("digits are ASCII"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        crate::revision::parse_hash(&text).map_err(serde::de::Error::custom)
    }
}
