//! Reads request bodies within their limits, and parses large ones off the request's task.
//!
//! All bodies share the memory of one [`BodyMemory`]. A body acquires memory as its bytes arrive, regardless
//! of its declared length. The body of an unauthenticated request acquires none: its size is limited, and so
//! is the number of such bodies.
//!
//! Parsed text with many small items takes a multiple of its size. The parser charges each item to the body's
//! permit before it allocates the item ([`BodyBudget`]).
//!
//! A body that may be spooled goes to a file once it exceeds 32 MiB or the memory that is guaranteed to one
//! body.
//!
//! Invariants:
//! 1. No two bodies wait for each other's memory. A part of the memory is a reserve for the largest body that
//!    isn't spooled, and has one owner at a time. A permit that finds the rest exhausted waits for released
//!    memory or for the reserve, whichever comes first; the owner of the reserve never waits for memory.
//! 2. A client can't stretch out a body: see [`RequestBody`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap};

use settee_doc::{Edit, Spool, Spools};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Limits;
use crate::admission::{EvictingSet, Member};
use crate::encoding::{self, GzipDecoder};
use crate::error::ApiError;
use crate::server::Server;

/// Largest body in bytes that needs no permit, so that small writes don't wait for large ones. There are
/// never more of them than requests in flight.
const SMALL_BODY_BYTES: u64 = 16 << 10;

/// Largest body of an unauthenticated request in bytes. Such a request is a login.
const UNAUTHENTICATED_BODY_BYTES: u64 = SMALL_BODY_BYTES;

/// Unauthenticated requests that may wait for their bodies at once, over all connections. The next one evicts
/// the oldest. Together they hold at most 16 MiB.
pub(crate) const UNAUTHENTICATED_BODIES_MAX: usize = 1024;

/// Minimum bytes that a separate small allocation takes.
pub(crate) const ALLOCATION_BYTES: usize = 32;

/// A list of up to this many items doubles its capacity when it is full; a longer one grows by a quarter.
const DOUBLED_MAX: usize = 1024;

/// Parsed text may take this many times the bytes of its text, or [`PARSED_BYTES_MIN`] if that is more: with
/// the text itself at most four times the bytes sent.
const PARSED_PER_BYTE: u64 = 3;
const PARSED_BYTES_MIN: u64 = 64 << 20;

/// A body that may be spooled is spooled from this size in bytes on, even if memory could hold it: a bulk
/// request in memory takes several times its size, a spooled one only a group of its documents.
const SPOOLED_FROM_BYTES: u64 = 32 << 20;

/// Granularity of memory permits in bytes.
const UNIT_BYTES: u64 = 1 << 10;

/// Largest text in bytes that is parsed in the request's own task. A longer one is parsed on a blocking
/// thread, so that it doesn't delay other tasks.
const PARSE_INLINE_BYTES: usize = 1 << 20;

/// Largest body, in bytes, of a request that sets one value or asks for one action: no such value is
/// longer, and it is parsed in the request's own task.
pub(crate) const VALUE_BODY_BYTES_MAX: u64 = PARSE_INLINE_BYTES as u64;

/// The memory for request bodies.
pub(crate) struct BodyMemory {
    /// The memory without the reserve, in units.
    units: Arc<Semaphore>,
    /// One permit, for the whole reserve.
    reserve: Arc<Semaphore>,
    reserve_bytes: u64,
    /// All of the memory, the reserve included.
    bytes: u64,
    wait_timeout: Duration,
}

/// A part of the memory for bodies; empty for a small body. Dropping it releases the memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryPermit {
    units: Option<OwnedSemaphorePermit>,
    reserve: Option<OwnedSemaphorePermit>,
    /// Bytes that are held under this permit.
    bytes: u64,
}

impl MemoryPermit {
    /// This permit, or an empty one if it owns the reserve. Used before waiting for something other than
    /// memory.
    pub(crate) fn without_reserve(self) -> MemoryPermit {
        if self.reserve.is_some() { MemoryPermit::default() } else { self }
    }

    /// This permit, with nothing held under it.
    pub(crate) fn emptied(self) -> MemoryPermit {
        MemoryPermit { bytes: 0, ..self }
    }

    fn merge(&mut self, taken: OwnedSemaphorePermit) {
        match &mut self.units {
            Some(units) => units.merge(taken),
            none => *none = Some(taken),
        }
    }
}

/// A body with its memory permit, which lives as long as the value parsed from the body.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    pub(crate) text: Bytes,
    pub(crate) permit: MemoryPermit,
}

/// A body in memory or in a file.
pub(crate) enum ReceivedBody {
    Buffered(BufferedBody),
    Spooled(Spool),
}

/// The memory that a parser may use besides the text, charged item by item.
pub(crate) struct BodyBudget {
    /// None for a text that is always small.
    body_memory: Option<Arc<BodyMemory>>,
    permit: MemoryPermit,
    /// Bytes that may still be charged.
    bytes_left: u64,
}

impl BodyBudget {
    /// A budget that charges nothing, for text from a request head or a test.
    pub(crate) fn unlimited() -> BodyBudget {
        BodyBudget { body_memory: None, permit: MemoryPermit::default(), bytes_left: u64::MAX }
    }

    /// Charges `count` items of `bytes_each` bytes.
    ///
    /// # Errors
    /// 413 if the items exceed the budget for the text's length, or the memory could never hold them besides
    /// the text; 503 if the memory is exhausted.
    pub(crate) fn charge(&mut self, count: usize, bytes_each: usize) -> Result<(), ApiError> {
        let bytes = (count as u64).saturating_mul(bytes_each as u64);
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(ApiError::body_too_large)?;
        match &self.body_memory {
            Some(body_memory) => body_memory.add(&mut self.permit, bytes),
            None => Ok(()),
        }
    }

    /// Appends an item that takes `more_bytes` besides its slot in the list. The growth of the list is
    /// charged, too.
    ///
    /// # Errors
    /// As for [`BodyBudget::charge`].
    pub(crate) fn push<T>(&mut self, item: T, more_bytes: usize, list: &mut Vec<T>) -> Result<(), ApiError> {
        if list.len() == list.capacity() {
            let more = list.len().clamp(1, DOUBLED_MAX.max(list.len() / 4));
            self.charge(more, size_of::<T>())?;
            list.reserve_exact(more);
        }
        self.charge(1, more_bytes)?;
        list.push(item);
        Ok(())
    }
}

impl BodyMemory {
    /// Memory whose reserve holds one body of the largest size, but takes at most half of the memory.
    pub(crate) fn new(limits: &Limits) -> BodyMemory {
        let bytes = limits.request_bytes_in_flight_max;
        let reserve_bytes = limits.max_request_bytes.min(bytes / 2);
        let units = usize::try_from(units(bytes - reserve_bytes)).unwrap_or(usize::MAX);
        BodyMemory {
            units: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            reserve: Arc::new(Semaphore::new(1)),
            reserve_bytes,
            bytes,
            wait_timeout: Duration::from_millis(limits.body_timeout_ms),
        }
    }

    /// All of the memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that one body is guaranteed to get eventually, whatever other bodies hold.
    pub(crate) fn body_bytes_max(&self) -> u64 {
        self.reserve_bytes
    }

    /// Largest body in bytes that stays in memory although it may be spooled.
    fn spooled_from_bytes(&self) -> u64 {
        self.reserve_bytes.min(SPOOLED_FROM_BYTES)
    }

    /// Extends a permit to `bytes` in all; waits up to `body_timeout_ms` for memory. A request waits with at
    /// most one permit; it extends its others with [`BodyMemory::add`].
    ///
    /// # Errors
    /// 503 if no memory becomes free in time.
    pub(crate) async fn grow(&self, permit: &mut MemoryPermit, bytes: u64) -> Result<(), ApiError> {
        let bytes = bytes.min(self.bytes);
        let Err(missing) = self.try_grow(permit, bytes) else { return Ok(()) };
        if permit.reserve.is_some() {
            return Err(ApiError::no_body_memory());
        }
        let either = async {
            tokio::select! {
                taken = self.units.clone().acquire_many_owned(missing) => (taken.ok(), None),
                taken = self.reserve.clone().acquire_owned() => (None, taken.ok()),
            }
        };
        let (taken, reserve) =
            tokio::time::timeout(self.wait_timeout, either).await.map_err(|_| ApiError::no_body_memory())?;
        permit.reserve = reserve;
        if let Some(taken) = taken {
            permit.merge(taken);
        }
        self.try_grow(permit, bytes).map_err(|_| ApiError::no_body_memory())
    }

    /// Extends a permit by `bytes`. Never waits.
    ///
    /// # Errors
    /// 413 if the memory could never hold them, 503 if it is exhausted.
    pub(crate) fn add(&self, permit: &mut MemoryPermit, bytes: u64) -> Result<(), ApiError> {
        let whole = permit.bytes.saturating_add(bytes);
        match whole <= self.bytes {
            true => self.try_grow(permit, whole).map_err(|_| ApiError::no_body_memory()),
            false => Err(ApiError::body_too_large()),
        }
    }

    /// Extends a permit to `bytes` in all if that needs no waiting.
    ///
    /// # Errors
    /// The number of missing units. The permit is unchanged, except that it may have got the reserve.
    fn try_grow(&self, permit: &mut MemoryPermit, bytes: u64) -> Result<(), u32> {
        let held_bytes = permit.units.as_ref().map_or(0, |units| units.num_permits() as u64 * UNIT_BYTES);
        let reserved = if permit.reserve.is_some() { self.reserve_bytes } else { 0 };
        if bytes <= SMALL_BODY_BYTES || bytes <= held_bytes + reserved {
            permit.bytes = permit.bytes.max(bytes);
            return Ok(());
        }
        let missing = units(bytes - held_bytes - reserved);
        if let Ok(taken) = self.units.clone().try_acquire_many_owned(missing) {
            permit.merge(taken);
        } else if permit.reserve.is_none()
            && let Ok(reserve) = self.reserve.clone().try_acquire_owned()
        {
            permit.reserve = Some(reserve);
            return self.try_grow(permit, bytes);
        } else {
            return Err(missing);
        }
        permit.bytes = permit.bytes.max(bytes);
        Ok(())
    }
}

/// The number of units that hold `bytes`.
fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// Parses a text: up to `inline_bytes` in the request's own task, a longer one on a blocking thread.
///
/// # Errors
/// Those of `parse`; 500 if it panics.
async fn parse_from<T: Send + 'static>(
    inline_bytes: usize,
    text: &Bytes,
    parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if text.len() <= inline_bytes {
        return parse(text);
    }
    let text = text.clone();
    let parsed = tokio::task::spawn_blocking(move || parse(&text)).await;
    parsed.unwrap_or_else(|error| {
        Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string()))
    })
}

/// Parses a body's text and returns the result with the permit for its memory. The result's memory is charged
/// to the body's budget.
///
/// # Errors
/// Those of `parse_text`; 500 if it panics.
pub(crate) async fn parse_buffered<T: Send + 'static>(
    body: BufferedBody,
    body_memory: &Arc<BodyMemory>,
    parse_text: impl FnOnce(&[u8], &mut BodyBudget) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, MemoryPermit), ApiError> {
    parse_buffered_from(PARSE_INLINE_BYTES, body, body_memory, parse_text).await
}

/// As [`parse_buffered`], with `inline_bytes` instead of [`PARSE_INLINE_BYTES`].
pub(crate) async fn parse_buffered_from<T: Send + 'static>(
    inline_bytes: usize,
    body: BufferedBody,
    body_memory: &Arc<BodyMemory>,
    parse_text: impl FnOnce(&[u8], &mut BodyBudget) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, MemoryPermit), ApiError> {
    let BufferedBody { text, permit } = body;
    let bytes_left = PARSED_BYTES_MIN.max((text.len() as u64).saturating_mul(PARSED_PER_BYTE));
    let mut budget = BodyBudget { body_memory: Some(body_memory.clone()), permit, bytes_left };
    let parse_charged = move |text: &[u8]| Ok((parse_text(text, &mut budget)?, budget.permit));
    parse_from(inline_bytes, &text, parse_charged).await
}

/// Parses a document's text into an edit, with the permit for its memory.
pub(crate) async fn parse_edit(
    body: BufferedBody,
    server: &Server,
) -> Result<(Edit, MemoryPermit), ApiError> {
    let options = server.document_options;
    parse_buffered(body, &server.body_memory, move |text, budget| edit(text, &options, budget)).await
}

/// Parses a document's text into an edit.
pub(crate) fn edit(
    text: &[u8],
    options: &settee_doc::Options,
    budget: &mut BodyBudget,
) -> Result<Edit, ApiError> {
    Edit::parse_within(text, options, &mut |bytes| budget.charge(1, bytes))
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
/// the memory is exhausted, and those of [`RequestBody::next_frame`]. The rest of the body is then unread:
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
    let is_allowed = limits.spool_bytes_max > 0 && body.unauthenticated.is_none();
    read_to(Some(spools).filter(|_| is_allowed), body, headers, limits, body_memory).await
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
    let Some(first) = body.next_frame(limits).await? else {
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
    if declared.is_some_and(|bytes| bytes > body_memory.spooled_from_bytes()) {
        collector.begin_spool().await?;
    }
    collector.extend(&first, body_memory).await?;
    drop(first);
    while let Some(frame) = body.next_frame(limits).await? {
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
    while let Some(frame) = body.next_frame(limits).await? {
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
        if (self.buffer.len() + bytes.len()) as u64 > body_memory.spooled_from_bytes() {
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
            spool.append(&buffer.whole).await?;
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

/// A body buffer that grows with the bytes that arrive, not with the declared length.
pub(crate) struct BodyBuffer {
    whole: Vec<u8>,
    permit: MemoryPermit,
    bytes_max: u64,
    waits: bool,
}

impl BodyBuffer {
    /// An empty buffer for at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> BodyBuffer {
        BodyBuffer { whole: Vec::new(), permit: MemoryPermit::default(), bytes_max, waits: true }
    }

    /// An empty buffer in the memory of a permit, limited only by all of the memory.
    pub(crate) fn with_permit(permit: MemoryPermit) -> BodyBuffer {
        BodyBuffer { permit: permit.emptied(), ..BodyBuffer::new(u64::MAX) }
    }

    pub(crate) fn len(&self) -> usize {
        self.whole.len()
    }

    /// For a request that has another permit already: it is refused instead of waiting for memory.
    pub(crate) fn without_waiting(self) -> BodyBuffer {
        BodyBuffer { waits: false, ..self }
    }

    /// Appends bytes, and waits for memory if there is none.
    ///
    /// # Errors
    /// 413 past `bytes_max` or all of the memory, 503 if the memory is exhausted.
    pub(crate) async fn extend(&mut self, bytes: &[u8], body_memory: &BodyMemory) -> Result<(), ApiError> {
        let size = (self.whole.len() + bytes.len()) as u64;
        if size > self.bytes_max {
            return Err(ApiError::body_too_large());
        }
        if size > body_memory.bytes {
            return Err(ApiError::exceeds_memory());
        }
        if size > self.whole.capacity() as u64 {
            // At most the reserve, which is guaranteed to one body, as long as the reserve suffices.
            let capacity = (2 * size).min(body_memory.reserve_bytes.max(size + size / 8));
            let capacity = capacity.min(self.bytes_max).min(body_memory.bytes);
            match self.waits {
                true => body_memory.grow(&mut self.permit, capacity).await?,
                false => {
                    let more = capacity - self.permit.bytes;
                    body_memory.add(&mut self.permit, more)?;
                }
            }
            self.whole.reserve_exact(usize::try_from(capacity).unwrap_or(usize::MAX) - self.whole.len());
        }
        self.whole.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the collected body.
    pub(crate) fn finish(self) -> BufferedBody {
        BufferedBody { text: self.whole.into(), permit: self.permit }
    }
}

/// A request's body as it arrives, with the limits on its duration.
///
/// Only time spent waiting for the client counts. The whole body of an unauthenticated request must arrive
/// within `body_timeout_ms`, and the oldest such request fails when too many wait. In other bodies no pause
/// may exceed `body_timeout_ms`, and after that time the body must arrive at `body_bytes_per_second_min` on
/// average.
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// The set that the request joins while it waits; None once it is authenticated.
    unauthenticated: Option<Arc<EvictingSet>>,
    /// The membership in that set, from the first wait on.
    member: Option<Member>,
    received: u64,
    waited: Duration,
    /// The error after which nothing more is read.
    failed_with: Option<ApiError>,
}

impl RequestBody {
    /// The body of an unauthenticated request, which joins `unauthenticated` while it waits.
    pub(crate) fn new(incoming: Incoming, unauthenticated: Arc<EvictingSet>) -> RequestBody {
        let (received, waited) = (0, Duration::ZERO);
        let unauthenticated = Some(unauthenticated);
        RequestBody { incoming, unauthenticated, member: None, received, waited, failed_with: None }
    }

    /// Applies the limits for authenticated requests from now on.
    pub(crate) fn authenticate(&mut self) {
        (self.unauthenticated, self.member) = (None, None);
    }

    /// Applies the limits for unauthenticated requests from now on.
    pub(crate) fn restrict(&mut self, unauthenticated: &Arc<EvictingSet>) {
        self.unauthenticated = Some(unauthenticated.clone());
    }

    /// The declared length less the bytes read; None for a chunked body.
    pub(crate) fn declared_bytes(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }

    /// Whether the whole body was read.
    pub(crate) fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// Largest body in bytes that the request may have.
    fn bytes_max(&self, limits: &Limits) -> u64 {
        match self.unauthenticated {
            Some(_) => limits.max_request_bytes.min(UNAUTHENTICATED_BODY_BYTES),
            None => limits.max_request_bytes,
        }
    }

    /// Returns the next frame, or None at the end.
    ///
    /// # Errors
    /// 400 if the body broke off, 408 if the client is too slow, 503 if too many unauthenticated requests
    /// wait.
    pub(crate) async fn next_frame(&mut self, limits: &Limits) -> Result<Option<Bytes>, ApiError> {
        if let Some(failure) = &self.failed_with {
            return Err(failure.clone());
        }
        let next = self.wait_for_frame(limits).await;
        if let Err(failure) = &next {
            self.failed_with = Some(failure.clone());
        }
        next
    }

    async fn wait_for_frame(&mut self, limits: &Limits) -> Result<Option<Bytes>, ApiError> {
        if let (Some(set), None) = (&self.unauthenticated, &self.member) {
            self.member = Some(set.admit());
        }
        loop {
            let begun = Instant::now();
            let timeout = self.frame_timeout(limits)?;
            let evicted = async {
                match &self.member {
                    Some(member) => member.evicted().await,
                    None => std::future::pending().await,
                }
            };
            let frame = tokio::select! {
                biased;
                frame = tokio::time::timeout(timeout, self.incoming.frame()) => frame,
                () = evicted => return Err(ApiError::too_many_requests()),
            };
            self.waited += begun.elapsed();
            match frame {
                Ok(Some(Ok(frame))) => {
                    // Trailers are ignored.
                    if let Ok(data) = frame.into_data() {
                        self.received += data.len() as u64;
                        return Ok(Some(data));
                    }
                }
                Ok(Some(Err(_))) => return Err(ApiError::bad_request("the request body broke off")),
                Ok(None) => return Ok(None),
                Err(_) => return Err(too_slow()),
            }
        }
    }

    /// How long the next frame may take.
    ///
    /// # Errors
    /// 408 if the time earned by the received bytes has run out.
    fn frame_timeout(&mut self, limits: &Limits) -> Result<Duration, ApiError> {
        let pause_max = Duration::from_millis(limits.body_timeout_ms);
        let for_what_came = match (&self.unauthenticated, limits.body_bytes_per_second_min) {
            (Some(_), _) => Duration::ZERO,
            (None, 0) => return Ok(pause_max),
            (None, rate) => Duration::from_millis(self.received.saturating_mul(1000) / rate),
        };
        pause_left(pause_max, for_what_came, &mut self.waited).ok_or_else(too_slow)
    }

    /// Reads and drops the rest, so that a client that is still sending can read the response and reuse the
    /// connection. Stops past `max_discard_bytes`; hyper then closes the connection.
    pub(crate) async fn discard(&mut self, headers: &HeaderMap, limits: &Limits) {
        // A client that waits for `100 Continue` sees the final response instead.
        if headers.contains_key(header::EXPECT) {
            return;
        }
        let mut left = limits.max_discard_bytes;
        while !self.is_end_stream() {
            match self.next_frame(limits).await {
                Ok(Some(frame)) if (frame.len() as u64) < left => left -= frame.len() as u64,
                _ => return,
            }
        }
    }
}

/// How long the next frame may take, at most `pause_max`. Each received frame earns time and waiting consumes
/// it. Unused time doesn't accumulate, so that a large frame doesn't pay for slow ones later.
fn pause_left(pause_max: Duration, earned: Duration, waited: &mut Duration) -> Option<Duration> {
    *waited = earned.max(*waited);
    (pause_max + earned).checked_sub(*waited)
}

fn too_slow() -> ApiError {
    let reason = "the request body paused for too long or came too slowly";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_large_frame_earns_no_time_for_later_slow_ones() {
        let [second, pause_max] = [Duration::from_secs(1), Duration::from_secs(30)];
        let mut waited = Duration::ZERO;
        // A week's worth of bytes at once.
        let mut earned = Duration::from_secs(7 * 86_400);
        assert_eq!(pause_left(pause_max, earned, &mut waited), Some(pause_max));
        waited += 29 * second;
        assert_eq!(pause_left(pause_max, earned, &mut waited), Some(second));
        waited += 2 * second;
        assert_eq!(pause_left(pause_max, earned, &mut waited), None);
        // A body that keeps the rate never times out.
        let mut waited = Duration::ZERO;
        for _ in 0..1_000 {
            earned += second;
            assert_eq!(pause_left(pause_max, earned, &mut waited), Some(pause_max));
            waited += second;
        }
    }

    /// Memory of 100 units, of which 40 are the reserve.
    fn body_memory() -> BodyMemory {
        BodyMemory::new(&Limits {
            request_bytes_in_flight_max: 100 * UNIT_BYTES,
            max_request_bytes: 40 * UNIT_BYTES,
            ..Limits::default()
        })
    }

    fn is_free(body_memory: &BodyMemory) -> bool {
        body_memory.units.available_permits() == 60 && body_memory.reserve.available_permits() == 1
    }

    fn status<T>(result: Result<T, ApiError>) -> Option<u16> {
        result.err().map(|failure| failure.status.as_u16())
    }

    async fn grown(body_memory: &BodyMemory, kib: u64) -> MemoryPermit {
        let mut permit = MemoryPermit::default();
        body_memory.grow(&mut permit, kib * UNIT_BYTES).await.unwrap();
        permit
    }

    #[tokio::test]
    async fn a_body_that_finds_no_memory_waits_and_small_ones_do_not() {
        let body_memory = body_memory();
        let first = grown(&body_memory, 60).await;
        let second = grown(&body_memory, 40).await;
        let mut third = Box::pin(grown(&body_memory, 40));
        assert!(third.as_mut().now_or_never().is_none(), "it got memory that is in use");
        assert!(grown(&body_memory, SMALL_BODY_BYTES / UNIT_BYTES).now_or_never().is_some());
        drop(second);
        assert!(third.now_or_never().is_some(), "released memory is free");
        drop(first);
        assert!(is_free(&body_memory));
    }

    #[tokio::test]
    async fn bodies_that_grow_concurrently_never_deadlock() {
        let body_memory = Arc::new(body_memory());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let body_memory = body_memory.clone();
            tasks.spawn(async move {
                let mut permit = MemoryPermit::default();
                for kib in 1..=40 {
                    body_memory.grow(&mut permit, kib * UNIT_BYTES).await.unwrap();
                    tokio::task::yield_now().await;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert!(is_free(&body_memory));
    }

    #[tokio::test]
    async fn parsed_text_is_charged_to_the_memory_for_bodies() {
        let body_memory = Arc::new(body_memory());
        let body = || BufferedBody {
            text: Bytes::from_static(b"[]"),
            permit: MemoryPermit { bytes: 2, ..MemoryPermit::default() },
        };
        let charged =
            |count| parse_buffered(body(), &body_memory, move |_, budget| budget.charge(count, 1_000));
        let ((), permit) = charged(50).await.unwrap();
        assert_eq!(body_memory.units.available_permits(), 11, "50,002 bytes are 49 units");
        assert_eq!(status(charged(100).await), Some(503), "it may be tried again");
        assert_eq!(status(charged(103).await), Some(413), "it never fits");
        assert_eq!(status(charged(usize::MAX).await), Some(413));
        drop(permit);
        assert!(charged(100).await.is_ok());
        assert!(is_free(&body_memory));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_finds_no_memory_in_time_is_refused_and_can_be_tried_again() {
        let body_memory = body_memory();
        let all = grown(&body_memory, 100).await;
        let refused = body_memory.grow(&mut MemoryPermit::default(), 20 * UNIT_BYTES).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.header), (503, Some((header::RETRY_AFTER, "1"))));
        drop(all);
        assert!(grown(&body_memory, 100).now_or_never().is_some());
    }

    #[tokio::test]
    async fn parsing_a_large_text_does_not_block_other_tasks() {
        let text = Bytes::from(vec![b' '; PARSE_INLINE_BYTES + 1]);
        let (send, receive) = mpsc::channel();
        let waits = move |_: &[u8]| Ok(receive.recv_timeout(Duration::from_secs(60)).is_ok());
        let (others_ran, _) =
            tokio::join!(parse_from(PARSE_INLINE_BYTES, &text, waits), async { send.send(()) });
        assert!(others_ran.unwrap());
    }
}
