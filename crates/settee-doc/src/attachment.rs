//! Attachments: files that belong to a document.
//!
//! What an attachment holds lies in chunks of [`CHUNK_BYTES`], each a record under a key of its own that
//! names the document and the upload it came with. The leaf's value begins with a table that names the
//! uploads. So revisions share what they have in common, compaction and backups know nothing of
//! attachments, and what no leaf names any more is removed by the update that let it go.
//!
//! An upload is written as it comes, without a sync of its own: the update that names it follows it in
//! the log, and its sync covers both. Until then a mark stands for it; marks that a crash left are
//! swept when the database is opened. A small one goes with the update itself.
//!
//! Invariants:
//! 1. Each chunk that a leaf's table names is there: they precede it in the log.
//! 2. A chunk that no leaf names has a mark.

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
use crate::keys::{chunk_key, upload_key};
use crate::view::View;
use crate::{Error, ErrorKind, Result};

mod orphans;

pub(crate) use orphans::{Orphan, Orphans, remove_unused};

/// Bytes of a chunk; an attachment's last one may have fewer.
pub const CHUNK_BYTES: usize = 1 << 20;

/// In a leaf's table the name of its body, where that stands apart: no attachment has it.
pub(crate) const BODY_NAME: &str = "";

/// An upload up to this size goes to the log with its document.
const TOGETHER_BYTES: usize = 64 << 10;

/// So much is unfolded at once: it may be a thousand times as much then.
const UNFOLDED_AT_ONCE_BYTES: usize = 1 << 10;

/// So much is compressed at once.
const COMPRESSED_AT_ONCE_BYTES: usize = 16 << 10;

/// Who takes an attachment in lets others run after so many bytes that were compressed, or unfolded: some
/// milliseconds of compressing. A chunk that was hashed and stored counts as many.
const WORK_BYTES_MAX: u64 = 64 << 10;

/// Unfolded content is read in pieces of so many bytes, where there are as many; what the last bytes that
/// were unfolded come to may be more.
const UNFOLDED_PIECE_BYTES: usize = 64 << 10;

/// CouchDB's own level of compression.
const COMPRESSION_LEVEL: u32 = 8;

/// The operating system that zlib names in a gzip header on Unix (RFC 1952).
const GZIP_OS_UNIX: u8 = 3;

/// An MD5 digest, as CouchDB names what attachments hold.
pub type Md5Digest = [u8; 16];

/// Names an upload among those of its document.
pub(crate) type UploadId = [u8; 16];

/// An attachment of a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub content_type: String,
    /// The generation that it came with.
    pub revpos: u32,
    /// The digest of what is stored.
    #[serde(with = "hex")]
    pub digest: Md5Digest,
    /// Bytes that it holds.
    pub length: u64,
    /// Bytes that are stored, where that is its content compressed by gzip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gzip_length: Option<u64>,
    #[serde(with = "hex")]
    upload: UploadId,
}

impl Attachment {
    /// Bytes that are stored.
    pub fn stored_length(&self) -> u64 {
        self.gzip_length.unwrap_or(self.length)
    }

    /// The keys of its chunks.
    pub(crate) fn chunk_keys(&self, id: &str) -> impl Iterator<Item = Vec<u8>> {
        (0..chunk_count(self.stored_length())).map(move |index| chunk_key(id, &self.upload, index))
    }

    /// Appends the members that a stub has, but for `stub` itself. With `encoding` it tells how what is
    /// stored is compressed.
    pub fn write_members(&self, encoding: bool, out: &mut Vec<u8>) {
        self.write_described(true, encoding, out);
    }

    /// Appends the members that stand beside `data`: as [`Attachment::write_members`], without the length.
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

/// The digest that a text names: `md5-…`, or base 64 alone as in `Content-MD5`.
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

/// Whether content of this type gets smaller by compression.
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

/// In front of a leaf's value that has attachments: the table's size (4 bytes, little-endian), the
/// table, and the body follow.
pub(crate) fn encode_table(attachments: &[Attachment], body: &[u8], encoding: u8) -> Bytes {
    let table = serde_json::to_vec(attachments).expect("a table is plain data");
    let mut value = Vec::with_capacity(5 + table.len() + body.len());
    value.push(encoding);
    value.extend_from_slice(&(table.len() as u32).to_le_bytes());
    value.extend_from_slice(&table);
    value.extend_from_slice(body);
    value.into()
}

/// The table and the body behind the byte of encoding.
pub(crate) fn decode_table(rest: &Bytes) -> Result<(Vec<Attachment>, Bytes)> {
    let damaged = || Error::damaged("a table of attachments makes no sense");
    let (size, _) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    let end = 4 + u32::from_le_bytes(*size) as usize;
    let table = rest.get(4..end).ok_or_else(damaged)?;
    let table = serde_json::from_slice(table).map_err(|_| damaged())?;
    Ok((table, rest.slice(end..)))
}

/// What an edit says of an attachment.
#[derive(Debug, Clone)]
pub struct NewAttachment {
    /// Its name.
    pub name: String,
    /// Its media type; of a stub the one that is stored counts.
    pub content_type: String,
    /// The generation that it came with: of a replicated one, and of a stub. What an interactive edit
    /// brings comes with the revision that it makes, whatever is said here.
    pub revpos: Option<u32>,
    /// Where its content is.
    pub content: Content,
}

/// Where the content of an edit's attachment is.
#[derive(Debug, Clone)]
pub enum Content {
    /// In the revision that the edit replaces; with the digest that is said to be its.
    Stub(Option<Md5Digest>),
    /// In the edit, decoded.
    Inline(Bytes),
    /// It comes behind the document, and has to be put in before the edit is made.
    Follows(Following),
    /// In the store.
    Stored(Upload),
}

/// What is said of content that comes behind a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Following {
    /// Bytes that come.
    pub length: u64,
    /// Whether they are the content compressed by gzip.
    pub is_gzip: bool,
    /// Their digest.
    pub digest: Option<Md5Digest>,
}

/// What was uploaded; gone again when nobody makes a document refer to it.
#[derive(Debug, Clone)]
pub struct Upload {
    length: u64,
    gzip_length: Option<u64>,
    digest: Md5Digest,
    /// Written with the document where it isn't yet.
    chunk: Option<Bytes>,
    claim: Arc<Claim>,
}

impl Upload {
    /// Writes a document's body ahead of the document, as `upload`. It has no digest.
    pub(crate) async fn of_body(
        database: &Database,
        id: &str,
        body: &Bytes,
        orphans: Orphans,
        upload: UploadId,
    ) -> Result<Upload> {
        let claim = Arc::new(Claim::new(id, orphans, upload));
        for start in (0..body.len()).step_by(CHUNK_BYTES) {
            let end = body.len().min(start + CHUNK_BYTES);
            claim.put(database, body.slice(start..end)).await?;
        }
        let length = body.len() as u64;
        Ok(Upload { length, gzip_length: None, digest: Md5Digest::default(), chunk: None, claim })
    }

    /// The digest of what is stored.
    pub fn digest(&self) -> &Md5Digest {
        &self.digest
    }

    /// Bytes that are held in memory and go to the log with the document.
    pub fn waiting_bytes(&self) -> u64 {
        self.chunk.as_ref().map_or(0, |chunk| chunk.len() as u64)
    }

    /// Writes them now, so that they aren't held.
    ///
    /// # Errors
    /// `NoSpace`; `Stopped`.
    pub async fn store(&mut self, database: &Database) -> Result<()> {
        if let Some(chunk) = self.chunk.take_if(|chunk| !chunk.is_empty()) {
            self.claim.put(database, chunk).await?;
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
            upload: self.claim.upload,
        }
    }

    /// Adds what makes it a document's, and returns what is to be told when that is accepted.
    pub(crate) fn take_in(&self, batch: &mut Batch) -> Arc<Claim> {
        let Claim { id, upload, .. } = &*self.claim;
        match &self.chunk {
            Some(chunk) if chunk.is_empty() => {}
            Some(chunk) => batch.put(&chunk_key(id, upload, 0), &[], chunk.clone(), false),
            None => batch.delete(&upload_key(id, upload)),
        }
        self.claim.clone()
    }
}

/// Holds an upload until a document refers to it.
#[derive(Debug)]
pub(crate) struct Claim {
    id: String,
    upload: UploadId,
    /// Chunks that were written.
    chunk_count: std::sync::atomic::AtomicU32,
    kept: AtomicBool,
    orphans: Orphans,
}

impl Claim {
    fn new(id: &str, orphans: Orphans, upload: UploadId) -> Claim {
        let (id, kept) = (id.to_owned(), AtomicBool::new(false));
        Claim { id, upload, chunk_count: Default::default(), kept, orphans }
    }

    /// Stores the next chunk; with the first one a mark.
    async fn put(&self, database: &Database, chunk: Bytes) -> Result<()> {
        let Claim { id, upload, chunk_count, .. } = self;
        let index = chunk_count.load(Ordering::Acquire);
        let mut batch = Batch::new();
        if index == 0 {
            batch.put(&upload_key(id, upload), &[], Bytes::new(), false);
        }
        batch.put(&chunk_key(id, upload, index), &[], chunk, false);
        // Before the commit, whose future may be dropped when it is done.
        chunk_count.store(index + 1, Ordering::Release);
        database.commit(&batch, Stage::Accepted).await.map(drop)
    }

    /// A document refers to it.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let count = *self.chunk_count.get_mut();
        if count > 0 && !*self.kept.get_mut() {
            self.orphans.push(Orphan::new(std::mem::take(&mut self.id), self.upload, count));
        }
    }
}

/// An attachment on its way in. Holds a chunk in memory.
pub struct Uploading<'a> {
    database: &'a Database,
    claim: Arc<Claim>,
    sink: Sink,
    /// Bytes that came, and their digest, taken while they are in the processor's cache.
    length: u64,
    came: Md5,
    /// Of an upload that comes compressed: checks that, and counts what it is.
    unfolding: Option<GzDecoder<Count>>,
    /// Of what is stored, where that is compressed here.
    stored: Option<Md5>,
    stored_length: u64,
    bytes_max: u64,
    /// Work since others could run, in bytes that were compressed or unfolded.
    worked: u64,
}

/// Counts what is written to it.
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

/// Where its bytes go.
enum Sink {
    Plain(BytesMut),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Sink {
    /// Bytes that it takes at once.
    fn room(&self) -> usize {
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
        orphans: Orphans,
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
            claim: Arc::new(Claim::new(id, orphans, upload)),
            sink,
            length: 0,
            came: Md5::new(),
            unfolding: is_gzip.then(|| GzDecoder::new(Count::default())),
            stored,
            stored_length: 0,
            bytes_max,
            worked: 0,
        }
    }

    /// Takes what comes next. Waits while the store is behind, and lets others run where it is much work.
    ///
    /// # Errors
    /// `AttachmentTooLarge`; `BadRequest` for what isn't gzip though it should be; `NoSpace`; `Stopped`.
    /// What was uploaded goes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.length += bytes.len() as u64;
        if self.length > self.bytes_max {
            return Err(Error::new(ErrorKind::AttachmentTooLarge, "the attachment is too large"));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let part;
            (part, rest) = rest.split_at(rest.len().min(self.room()));
            if let Some(unfolding) = &mut self.unfolding {
                let before = unfolding.get_ref().0;
                unfolding.write_all(part).map_err(|_| not_gzip())?;
                self.worked += unfolding.get_ref().0 - before;
            }
            self.came.update(part);
            self.take(part);
            self.put_full().await?;
            if self.worked >= WORK_BYTES_MAX {
                self.worked = 0;
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Bytes that are worked on at once.
    fn room(&self) -> usize {
        match self.unfolding {
            Some(_) => self.sink.room().min(UNFOLDED_AT_ONCE_BYTES),
            None => self.sink.room(),
        }
    }

    fn take(&mut self, part: &[u8]) {
        match &mut self.sink {
            Sink::Plain(buffer) => {
                if buffer.len() + part.len() > TOGETHER_BYTES {
                    // All at once, so that nothing is copied while it grows.
                    buffer.reserve(CHUNK_BYTES - buffer.len());
                }
                buffer.extend_from_slice(part);
            }
            Sink::Gzip(encoder) => {
                self.worked += part.len() as u64;
                encoder.write_all(part).expect("a vector takes it");
            }
        }
    }

    /// Stores the chunks that are full.
    async fn put_full(&mut self) -> Result<()> {
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
        self.worked += WORK_BYTES_MAX;
        self.count(&chunk);
        self.claim.put(self.database, chunk).await
    }

    fn count(&mut self, chunk: &Bytes) {
        if let Some(stored) = &mut self.stored {
            stored.update(chunk);
        }
        self.stored_length += chunk.len() as u64;
    }

    /// All has come. `expected` is what the digest of what came should be.
    ///
    /// # Errors
    /// As [`Uploading::write`]; `DigestMismatch` where the digest is another: what was uploaded goes.
    pub async fn finish(mut self, expected: Option<Md5Digest>) -> Result<Upload> {
        let mut rest: Bytes = match std::mem::replace(&mut self.sink, Sink::Plain(BytesMut::new())) {
            Sink::Plain(buffer) => buffer.freeze(),
            Sink::Gzip(encoder) => encoder.finish().expect("a vector takes it").into(),
        };
        while rest.len() >= CHUNK_BYTES {
            let chunk = rest.split_to(CHUNK_BYTES);
            self.put(chunk).await?;
        }
        let is_first = self.claim.chunk_count.load(Ordering::Acquire) == 0;
        let chunk = if is_first && rest.len() <= TOGETHER_BYTES {
            self.count(&rest);
            Some(rest)
        } else {
            if !rest.is_empty() {
                self.put(rest).await?;
            }
            None
        };
        let came: Md5Digest = self.came.finalize().into();
        if expected.is_some_and(|expected| expected != came) {
            return Err(Error::new(ErrorKind::DigestMismatch, "Possible message corruption."));
        }
        let is_compressed = self.stored.is_some() || self.unfolding.is_some();
        let digest = self.stored.map_or(came, |stored| stored.finalize().into());
        let gzip_length = is_compressed.then_some(self.stored_length);
        let length = match self.unfolding {
            Some(unfolding) => unfolding.finish().map_err(|_| not_gzip())?.0,
            None => self.length,
        };
        Ok(Upload { length, gzip_length, digest, chunk, claim: self.claim })
    }
}

fn not_gzip() -> Error {
    Error::bad_request("the attachment isn't gzip, as it says")
}

/// An attachment on its way out, chunk by chunk; it holds its view.
pub struct AttachmentReader {
    view: View,
    id: String,
    upload: UploadId,
    /// Of what is stored, what is still to be read.
    at: u64,
    end: u64,
    /// What was read and is not yet decoded.
    encoded: Bytes,
    decoder: Option<GzDecoder<Vec<u8>>>,
}

impl AttachmentReader {
    /// With `decode`, what is stored compressed is read as what it is. `range` counts what is stored.
    pub(crate) fn new(
        view: View,
        id: &str,
        attachment: &Attachment,
        range: std::ops::Range<u64>,
        decode: bool,
    ) -> AttachmentReader {
        let decodes = decode && attachment.gzip_length.is_some();
        AttachmentReader {
            view,
            id: id.to_owned(),
            upload: attachment.upload,
            at: range.start,
            end: range.end.min(attachment.stored_length()),
            encoded: Bytes::new(),
            decoder: decodes.then(|| GzDecoder::new(Vec::new())),
        }
    }

    /// What comes next; `None` at the end. At most a chunk; unfolded, little more than a mebibyte.
    ///
    /// # Errors
    /// `Internal` where it can't be read. The reader can't go on then.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let garbled = |_| Error::damaged("a compressed attachment doesn't unfold");
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
            while !self.encoded.is_empty() && decoder.get_ref().len() < UNFOLDED_PIECE_BYTES {
                let part = self.encoded.split_to(UNFOLDED_AT_ONCE_BYTES.min(self.encoded.len()));
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

    /// The rest of the chunk that it stands in.
    async fn read(&mut self) -> Result<Bytes> {
        let index = self.at / CHUNK_BYTES as u64;
        let key = chunk_key(&self.id, &self.upload, index as u32);
        let entry = self.view.snapshot().get(&key).await?;
        let entry = entry.ok_or_else(|| Error::damaged("a chunk of an attachment is missing"))?;
        let chunk = self.view.snapshot().read(entry.location).await?.value();
        let start = (self.at % CHUNK_BYTES as u64) as usize;
        let end = chunk.len().min((self.end - index * CHUNK_BYTES as u64) as usize);
        if start >= end {
            return Err(Error::damaged("a chunk of an attachment is too short"));
        }
        self.at += (end - start) as u64;
        Ok(chunk.slice(start..end))
    }
}

/// 16 bytes as 32 hex digits in the table.
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
