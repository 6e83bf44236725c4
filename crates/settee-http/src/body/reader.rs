//! Reads whole bodies: into memory, or to a spool file.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{self, HeaderMap};
use settee_doc::{Spool, Spools};

use super::budget::PARSE_INLINE_BYTES;
use super::buffer::{BodyBuffer, BufferedBody};
use super::encoding::{self, GzipDecoder};
use super::incoming::RequestBody;
use super::memory::{BodyMemory, MemoryPermit};
use crate::error::ApiError;
use crate::limits::Limits;

/// Largest body, in bytes, of a request that sets one value or asks for one action: no such value is
/// longer, and it is parsed in the request's own task.
pub(crate) const VALUE_BODY_BYTES_MAX: u64 = PARSE_INLINE_BYTES as u64;

/// A body in memory or in a file.
pub(crate) enum ReceivedBody {
    Buffered(BufferedBody),
    Spooled(Spool),
}

/// Checks that the body is declared as JSON, as CouchDB's POST handlers do.
pub(crate) fn check_json_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    match declared.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(ApiError::bad_content_type("Content-Type must be application/json")),
    }
}

/// Reads a whole JSON body into memory.
///
/// # Errors
/// 400 without a body or for invalid gzip, 413 if it is too large, 415 for another content encoding, 503 if
/// the memory is exhausted, and those of [`RequestBody::next_data`]. The rest of the body is then unread:
/// see [`RequestBody::discard`].
pub(crate) async fn read(
    body: &mut RequestBody,
    headers: &HeaderMap,
    limits: &Limits,
    body_memory: &BodyMemory,
) -> Result<BufferedBody, ApiError> {
    match read_to(None, body, headers, limits, body_memory).await? {
        ReceivedBody::Buffered(body) => Ok(body),
        ReceivedBody::Spooled(_) => unreachable!("there are no spools"),
    }
}

/// As [`read`], for a body that may be spooled.
///
/// # Errors
/// As for [`read`]; 413 or 503 if the space for spool files is too small or in use, 507 if the disk is full.
pub(crate) async fn read_or_spool(
    spools: &Arc<Spools>,
    body: &mut RequestBody,
    headers: &HeaderMap,
    limits: &Limits,
    body_memory: &BodyMemory,
) -> Result<ReceivedBody, ApiError> {
    let spools = Some(spools).filter(|_| may_be_spooled(body, limits));
    read_to(spools, body, headers, limits, body_memory).await
}

fn may_be_spooled(body: &RequestBody, limits: &Limits) -> bool {
    limits.spool_bytes_max > 0 && body.is_authenticated()
}

/// Writes the text of a body that was read into memory to a spool file.
///
/// # Errors
/// 413 if it may not be spooled; 413, 503 or 507 as for [`read_or_spool`].
pub(crate) async fn spool(
    spools: &Arc<Spools>,
    body: &RequestBody,
    text: &[u8],
    limits: &Limits,
) -> Result<Spool, ApiError> {
    if !may_be_spooled(body, limits) {
        return Err(ApiError::body_too_large());
    }
    let mut spool = spools.create(limits.spool_bytes_max).await?;
    spool.append(text).await?;
    spool.finish().await?;
    Ok(spool)
}

async fn read_to(
    spools: Option<&Arc<Spools>>,
    body: &mut RequestBody,
    headers: &HeaderMap,
    limits: &Limits,
    body_memory: &BodyMemory,
) -> Result<ReceivedBody, ApiError> {
    let is_gzip = match headers.get(header::CONTENT_ENCODING).map(|encoding| encoding.to_str().unwrap_or(""))
    {
        None => false,
        Some(encoding) if encoding.eq_ignore_ascii_case("identity") => false,
        Some(encoding) if encoding.eq_ignore_ascii_case("gzip") => true,
        Some(encoding) => {
            let reason = format!("{encoding} is not a supported content encoding.");
            return Err(ApiError::bad_content_type(reason));
        }
    };
    let (declared, bytes_max) = (body.declared_bytes(), body.bytes_max(limits));
    if declared == Some(0) && !headers.contains_key(header::CONTENT_LENGTH) {
        return Err(ApiError::bad_request("Missing request body"));
    }
    if declared.is_some_and(|bytes| bytes > bytes_max) {
        return Err(ApiError::body_too_large());
    }
    if spools.is_none() && declared.is_some_and(|bytes| bytes > body_memory.bytes()) {
        return Err(ApiError::exceeds_memory());
    }
    let spool_bytes_max = limits.spool_bytes_max;
    if spools.is_some() && declared.is_some_and(|bytes| bytes > spool_bytes_max.max(body_memory.bytes())) {
        return Err(settee_doc::SpoolError::TooLarge { bytes_max: spool_bytes_max }.into());
    }
    let spools = spools.map(|spools| (spools, limits.spool_bytes_max));
    if is_gzip {
        let collector = BodyCollector { buffer: BodyBuffer::new(bytes_max), spools, spool: None, bytes_max };
        return read_gzip(body, limits, body_memory, collector).await;
    }
    let Some(first) = body.next_data(limits).await? else {
        return Ok(ReceivedBody::Buffered(BufferedBody {
            text: Bytes::new(),
            permit: MemoryPermit::default(),
        }));
    };
    if body.is_end_stream() && first.len() as u64 <= body_memory.body_bytes_max() {
        if first.len() as u64 > bytes_max {
            return Err(ApiError::body_too_large());
        }
        let mut permit = MemoryPermit::default();
        body_memory.grow(&mut permit, first.len() as u64).await?;
        return Ok(ReceivedBody::Buffered(BufferedBody { text: first, permit }));
    }
    let bytes_max = declared.unwrap_or(bytes_max);
    let mut collector = BodyCollector { buffer: BodyBuffer::new(bytes_max), spools, spool: None, bytes_max };
    if declared.is_some_and(|bytes| bytes > body_memory.in_memory_bytes_max()) {
        collector.begin_spool().await?;
    }
    collector.extend(&first, body_memory).await?;
    drop(first);
    while let Some(frame) = body.next_data(limits).await? {
        collector.extend(&frame, body_memory).await?;
    }
    collector.finish().await
}

/// Reads a whole gzip body. The limits apply to its decompressed size.
async fn read_gzip(
    body: &mut RequestBody,
    limits: &Limits,
    body_memory: &BodyMemory,
    mut collector: BodyCollector<'_>,
) -> Result<ReceivedBody, ApiError> {
    let mut decoder = GzipDecoder::new();
    while let Some(frame) = body.next_data(limits).await? {
        for part in frame.chunks(encoding::PART_BYTES) {
            collector.extend(&decoder.push(part)?, body_memory).await?;
        }
    }
    collector.extend(&decoder.finish()?, body_memory).await?;
    collector.finish().await
}

/// Collects a body in memory, and moves it to a file if it may be spooled and grows too large.
struct BodyCollector<'a> {
    buffer: BodyBuffer,
    /// The spool directory and the bytes that all spools may take; None if the body may not be spooled.
    spools: Option<(&'a Arc<Spools>, u64)>,
    spool: Option<Spool>,
    bytes_max: u64,
}

impl BodyCollector<'_> {
    async fn extend(&mut self, bytes: &[u8], body_memory: &BodyMemory) -> Result<(), ApiError> {
        if (self.buffer.len() + bytes.len()) as u64 > body_memory.in_memory_bytes_max() {
            self.begin_spool().await?;
        }
        match &mut self.spool {
            Some(spool) if spool.bytes() + bytes.len() as u64 > self.bytes_max => {
                Err(ApiError::body_too_large())
            }
            Some(spool) => Ok(spool.append(bytes).await?),
            None => self.buffer.extend(bytes, body_memory).await,
        }
    }

    /// Moves the bytes in memory to a file, if the body may be spooled.
    async fn begin_spool(&mut self) -> Result<(), ApiError> {
        if let (Some((spools, bytes_max)), None) = (self.spools, &self.spool) {
            let mut spool = spools.create(bytes_max).await?;
            let buffer = std::mem::replace(&mut self.buffer, BodyBuffer::new(0));
            spool.append(buffer.bytes()).await?;
            self.spool = Some(spool);
        }
        Ok(())
    }

    async fn finish(self) -> Result<ReceivedBody, ApiError> {
        match self.spool {
            Some(mut spool) => {
                spool.finish().await?;
                Ok(ReceivedBody::Spooled(spool))
            }
            None => Ok(ReceivedBody::Buffered(self.buffer.finish())),
        }
    }
}
