//! Reading request bodies within their limits, and parsing what is large without holding up
//! others.
//!
//! All bodies share the memory of one [`Room`]. A body takes its share as its bytes arrive, whatever length it
//! declares. The body of a request that isn't authenticated yet takes none: it is small, and the number of
//! those under way has a limit of its own.
//!
//! A text of many small things is a multiple of itself once it is parsed: what they take is charged to the
//! share before room is made for them ([`Charge`]).
//!
//! A body that may be spooled goes to a file once it exceeds 32 MiB, or what one body is sure to get of the memory.
//!
//! Invariants:
//! 1. No two bodies wait for each other's memory. A part of the room is a reserve, for the largest body that
//!    isn't spooled, and has one owner at a time. A share that finds the rest of the room used up waits for memory that
//!    is released or for the reserve, whichever comes first; the owner of the reserve never waits for memory.
//! 2. A client can't make a body last: see [`RequestBody`].

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
use crate::encoding::{self, Unfolding};
use crate::error::Failure;
use crate::server::Server;

/// Bytes of a body that needs no share of the room, so that small writes don't wait for large
/// ones: there are never more of them than connections.
const SMALL_BODY_BYTES: u64 = 16 << 10;

/// Bytes of a body of a request that isn't authenticated: a login.
const UNAUTHENTICATED_BODY_BYTES: u64 = SMALL_BODY_BYTES;

/// Requests that aren't authenticated and wait for their bodies, all connections together; past it the oldest
/// is refused. Together they hold 16 MiB.
pub(crate) const UNAUTHENTICATED_BODIES_MAX: usize = 1024;

/// Bytes that a small thing of its own takes of the allocator, at least.
pub(crate) const ALLOCATION_BYTES: usize = 32;

/// Up to this many items a list's capacity is doubled; from then on it grows by a quarter.
const DOUBLED_MAX: usize = 1024;

/// What a text is parsed to may take this many times its bytes, or [`PARSED_BYTES_MIN`] where that is more: with
/// the text itself at most four times what was sent.
const PARSED_PER_BYTE: u64 = 3;
const PARSED_BYTES_MIN: u64 = 64 << 20;

/// A body of more bytes is spooled where it may be, though memory would hold it: in memory a bulk takes several
/// times its bytes, from a file only a group of its documents.
const SPOOLED_FROM_BYTES: u64 = 32 << 20;

/// The unit of shares.
const UNIT_BYTES: u64 = 1 << 10;

/// Bytes of a text that is parsed in its request's own task; a longer one gets a thread that
/// may block, so that it holds up no other task.
const PARSE_INLINE_BYTES: usize = 1 << 20;

/// Largest body, in bytes, of a request that sets one value or asks for one action: no such value is
/// longer, and it is parsed in the request's own task.
pub(crate) const VALUE_BODY_BYTES_MAX: u64 = PARSE_INLINE_BYTES as u64;

/// The memory for request bodies.
pub(crate) struct Room {
    /// What isn't the reserve.
    units: Arc<Semaphore>,
    /// The right to the reserve.
    reserve: Arc<Semaphore>,
    reserve_bytes: u64,
    /// All of it.
    bytes: u64,
    patience: Duration,
}

/// A part of the room; none for a small body. Given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Share {
    units: Option<OwnedSemaphorePermit>,
    reserve: Option<OwnedSemaphorePermit>,
    /// What it is to hold.
    bytes: u64,
}

impl Share {
    /// The same memory, or none where it is the reserve: for who is about to wait for something else.
    pub(crate) fn without_reserve(self) -> Share {
        if self.reserve.is_some() { Share::default() } else { self }
    }

    /// The same memory, with nothing in it.
    pub(crate) fn emptied(self) -> Share {
        Share { bytes: 0, ..self }
    }

    fn merge(&mut self, taken: OwnedSemaphorePermit) {
        match &mut self.units {
            Some(units) => units.merge(taken),
            none => *none = Some(taken),
        }
    }
}

/// A body with its share of the room, which is kept as long as what was made of the text.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) text: Bytes,
    pub(crate) share: Share,
}

/// A body in memory, or in a file.
pub(crate) enum Content {
    Held(Held),
    Spooled(Spool),
}

/// What the things in a text take beside it, as its parser comes upon them.
pub(crate) struct Charge {
    /// None for a text that is small by its nature.
    room: Option<Arc<Room>>,
    share: Share,
    /// Bytes that may still be charged.
    left: u64,
}

impl Charge {
    /// Of what a request's head or a test holds: nothing is charged.
    pub(crate) fn free() -> Charge {
        Charge { room: None, share: Share::default(), left: u64::MAX }
    }

    /// Makes room for so many things more, of so many bytes each.
    ///
    /// # Errors
    /// 413 where they are too many for the text's length, or the room could never hold them beside the text; 503
    /// where it is used up.
    pub(crate) fn take(&mut self, count: usize, bytes_each: usize) -> Result<(), Failure> {
        let bytes = (count as u64).saturating_mul(bytes_each as u64);
        self.left = self.left.checked_sub(bytes).ok_or_else(Failure::body_too_large)?;
        match &self.room {
            Some(room) => room.add(&mut self.share, bytes),
            None => Ok(()),
        }
    }

    /// Appends an item that takes `more_bytes` beside its place in the list. The list grows by what is charged.
    ///
    /// # Errors
    /// As [`Charge::take`].
    pub(crate) fn push<T>(&mut self, item: T, more_bytes: usize, list: &mut Vec<T>) -> Result<(), Failure> {
        if list.len() == list.capacity() {
            let more = list.len().clamp(1, DOUBLED_MAX.max(list.len() / 4));
            self.take(more, size_of::<T>())?;
            list.reserve_exact(more);
        }
        self.take(1, more_bytes)?;
        list.push(item);
        Ok(())
    }
}

impl Room {
    /// A room whose reserve holds one of the largest bodies, but takes at most half of it.
    pub(crate) fn new(limits: &Limits) -> Room {
        let bytes = limits.request_bytes_in_flight_max;
        let reserve_bytes = limits.max_request_bytes.min(bytes / 2);
        let units = usize::try_from(units(bytes - reserve_bytes)).unwrap_or(usize::MAX);
        Room {
            units: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            reserve: Arc::new(Semaphore::new(1)),
            reserve_bytes,
            bytes,
            patience: Duration::from_millis(limits.body_timeout_ms),
        }
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that one body gets, sooner or later, whatever others hold.
    pub(crate) fn body_bytes_max(&self) -> u64 {
        self.reserve_bytes
    }

    /// Bytes of the largest body that is held in memory where it may be spooled.
    fn spooled_from_bytes(&self) -> u64 {
        self.reserve_bytes.min(SPOOLED_FROM_BYTES)
    }

    /// Widens a share to `bytes` in all, and waits for memory where there is none. A request waits with one
    /// share at most: its others are widened by [`Room::add`].
    ///
    /// # Errors
    /// 503 where it isn't free in time.
    pub(crate) async fn grow(&self, share: &mut Share, bytes: u64) -> Result<(), Failure> {
        let bytes = bytes.min(self.bytes);
        let Err(missing) = self.try_grow(share, bytes) else { return Ok(()) };
        if share.reserve.is_some() {
            return Err(Failure::no_room());
        }
        let either = async {
            tokio::select! {
                taken = self.units.clone().acquire_many_owned(missing) => (taken.ok(), None),
                taken = self.reserve.clone().acquire_owned() => (None, taken.ok()),
            }
        };
        let (taken, reserve) =
            tokio::time::timeout(self.patience, either).await.map_err(|_| Failure::no_room())?;
        share.reserve = reserve;
        if let Some(taken) = taken {
            share.merge(taken);
        }
        self.try_grow(share, bytes).map_err(|_| Failure::no_room())
    }

    /// Widens a share by so many bytes. Never waits.
    ///
    /// # Errors
    /// 413 where the room could never hold them, 503 where it is used up.
    pub(crate) fn add(&self, share: &mut Share, bytes: u64) -> Result<(), Failure> {
        let whole = share.bytes.saturating_add(bytes);
        match whole <= self.bytes {
            true => self.try_grow(share, whole).map_err(|_| Failure::no_room()),
            false => Err(Failure::body_too_large()),
        }
    }

    /// Widens a share to `bytes` in all where that needs no waiting.
    ///
    /// # Errors
    /// The units that are missing; the share is as it was, but may own the reserve.
    fn try_grow(&self, share: &mut Share, bytes: u64) -> Result<(), u32> {
        let held = share.units.as_ref().map_or(0, |units| units.num_permits() as u64 * UNIT_BYTES);
        let reserved = if share.reserve.is_some() { self.reserve_bytes } else { 0 };
        if bytes <= SMALL_BODY_BYTES || bytes <= held + reserved {
            share.bytes = share.bytes.max(bytes);
            return Ok(());
        }
        let missing = units(bytes - held - reserved);
        if let Ok(taken) = self.units.clone().try_acquire_many_owned(missing) {
            share.merge(taken);
        } else if share.reserve.is_none()
            && let Ok(reserve) = self.reserve.clone().try_acquire_owned()
        {
            share.reserve = Some(reserve);
            return self.try_grow(share, bytes);
        } else {
            return Err(missing);
        }
        share.bytes = share.bytes.max(bytes);
        Ok(())
    }
}

/// Units that hold so many bytes.
fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// What `parse` makes of a text, of which `inline_bytes` are parsed in the request's own task.
///
/// # Errors
/// Those of `parse`; 500 where it panics.
async fn parse_from<T: Send + 'static>(
    inline_bytes: usize,
    text: &Bytes,
    parse: impl FnOnce(&[u8]) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    if text.len() <= inline_bytes {
        return parse(text);
    }
    let text = text.clone();
    let parsed = tokio::task::spawn_blocking(move || parse(&text)).await;
    parsed.unwrap_or_else(|error| {
        Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string()))
    })
}

/// What `parse_text` makes of a body's text, with the share that holds it: what is made is charged.
///
/// # Errors
/// Those of `parse_text`; 500 where it panics.
pub(crate) async fn parse_held<T: Send + 'static>(
    held: Held,
    room: &Arc<Room>,
    parse_text: impl FnOnce(&[u8], &mut Charge) -> Result<T, Failure> + Send + 'static,
) -> Result<(T, Share), Failure> {
    parse_held_from(PARSE_INLINE_BYTES, held, room, parse_text).await
}

/// As [`parse_held`], of which `inline_bytes` are parsed in the request's own task.
pub(crate) async fn parse_held_from<T: Send + 'static>(
    inline_bytes: usize,
    held: Held,
    room: &Arc<Room>,
    parse_text: impl FnOnce(&[u8], &mut Charge) -> Result<T, Failure> + Send + 'static,
) -> Result<(T, Share), Failure> {
    let Held { text, share } = held;
    let left = PARSED_BYTES_MIN.max((text.len() as u64).saturating_mul(PARSED_PER_BYTE));
    let mut charge = Charge { room: Some(room.clone()), share, left };
    let parse_charged = move |text: &[u8]| Ok((parse_text(text, &mut charge)?, charge.share));
    parse_from(inline_bytes, &text, parse_charged).await
}

/// The edit that a document's text asks for, with the share that holds it.
pub(crate) async fn parse_edit(held: Held, server: &Server) -> Result<(Edit, Share), Failure> {
    let options = server.document_options;
    parse_held(held, &server.room, move |text, charge| edit(text, &options, charge)).await
}

/// The edit that a document's text asks for.
pub(crate) fn edit(text: &[u8], options: &settee_doc::Options, charge: &mut Charge) -> Result<Edit, Failure> {
    Edit::parse_within(text, options, &mut |bytes| charge.take(1, bytes))
}

/// Requires a body to be declared as JSON, as CouchDB's POST handlers do.
pub(crate) fn check_json_type(headers: &HeaderMap) -> Result<(), Failure> {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    match declared.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Failure::bad_content_type("Content-Type must be application/json")),
    }
}

/// Reads a whole body that holds JSON.
///
/// # Errors
/// 400 without a body or where it isn't gzip as it says, 413 past the limit, 415 for another encoding, 503
/// without room, and those of [`RequestBody::next_frame`]. The rest of the body stays unread then: see
/// [`RequestBody::discard`].
pub(crate) async fn read(
    body: &mut RequestBody,
    headers: &HeaderMap,
    limits: &Limits,
    room: &Room,
) -> Result<Held, Failure> {
    match read_to(None, body, headers, limits, room).await? {
        Content::Held(held) => Ok(held),
        Content::Spooled(_) => unreachable!("there are no spools"),
    }
}

/// As [`read`], of a body that may be spooled.
///
/// # Errors
/// As [`read`]; 413 or 503 where there is no space for spools, 507 where the disk is full.
pub(crate) async fn read_or_spool(
    spools: &Arc<Spools>,
    body: &mut RequestBody,
    headers: &HeaderMap,
    limits: &Limits,
    room: &Room,
) -> Result<Content, Failure> {
    let is_allowed = limits.spool_bytes_max > 0 && body.unauthenticated.is_none();
    read_to(Some(spools).filter(|_| is_allowed), body, headers, limits, room).await
}

async fn read_to(
    spools: Option<&Arc<Spools>>,
    body: &mut RequestBody,
    headers: &HeaderMap,
    limits: &Limits,
    room: &Room,
) -> Result<Content, Failure> {
    let is_gzip = match headers.get(header::CONTENT_ENCODING).map(|encoding| encoding.to_str().unwrap_or(""))
    {
        None => false,
        Some(encoding) if encoding.eq_ignore_ascii_case("identity") => false,
        Some(encoding) if encoding.eq_ignore_ascii_case("gzip") => true,
        Some(encoding) => {
            let reason = format!("{encoding} is not a supported content encoding.");
            return Err(Failure::bad_content_type(reason));
        }
    };
    let (declared, bytes_max) = (body.declared_bytes(), body.bytes_max(limits));
    if declared == Some(0) && !headers.contains_key(header::CONTENT_LENGTH) {
        return Err(Failure::bad_request("Missing request body"));
    }
    if declared.is_some_and(|bytes| bytes > bytes_max) {
        return Err(Failure::body_too_large());
    }
    if spools.is_none() && declared.is_some_and(|bytes| bytes > room.bytes()) {
        return Err(Failure::exceeds_memory());
    }
    let spool_bytes_max = limits.spool_bytes_max;
    if spools.is_some() && declared.is_some_and(|bytes| bytes > spool_bytes_max.max(room.bytes())) {
        return Err(settee_doc::SpoolError::TooLarge { bytes_max: spool_bytes_max }.into());
    }
    let spools = spools.map(|spools| (spools, limits.spool_bytes_max));
    if is_gzip {
        let intake = Intake { growing: Growing::new(bytes_max), spools, spool: None, bytes_max };
        return read_gzip(body, limits, room, intake).await;
    }
    let Some(first) = body.next_frame(limits).await? else {
        return Ok(Content::Held(Held { text: Bytes::new(), share: Share::default() }));
    };
    if body.is_end_stream() && first.len() as u64 <= room.body_bytes_max() {
        if first.len() as u64 > bytes_max {
            return Err(Failure::body_too_large());
        }
        let mut share = Share::default();
        room.grow(&mut share, first.len() as u64).await?;
        return Ok(Content::Held(Held { text: first, share }));
    }
    let bytes_max = declared.unwrap_or(bytes_max);
    let mut intake = Intake { growing: Growing::new(bytes_max), spools, spool: None, bytes_max };
    if declared.is_some_and(|bytes| bytes > room.spooled_from_bytes()) {
        intake.begin_spool().await?;
    }
    intake.extend(&first, room).await?;
    drop(first);
    while let Some(frame) = body.next_frame(limits).await? {
        intake.extend(&frame, room).await?;
    }
    intake.finish().await
}

/// Reads a whole body that comes compressed: what it unfolds to counts.
async fn read_gzip(
    body: &mut RequestBody,
    limits: &Limits,
    room: &Room,
    mut intake: Intake<'_>,
) -> Result<Content, Failure> {
    let mut unfolding = Unfolding::new();
    while let Some(frame) = body.next_frame(limits).await? {
        for part in frame.chunks(encoding::PART_BYTES) {
            intake.extend(&unfolding.push(part)?, room).await?;
        }
    }
    intake.extend(&unfolding.finish()?, room).await?;
    intake.finish().await
}

/// A body on its way into memory, and on into a file where it may be spooled and grows too large.
struct Intake<'a> {
    growing: Growing,
    /// Where it may be spooled, and the bytes that all spools may take.
    spools: Option<(&'a Arc<Spools>, u64)>,
    spool: Option<Spool>,
    bytes_max: u64,
}

impl Intake<'_> {
    async fn extend(&mut self, bytes: &[u8], room: &Room) -> Result<(), Failure> {
        if (self.growing.len() + bytes.len()) as u64 > room.spooled_from_bytes() {
            self.begin_spool().await?;
        }
        match &mut self.spool {
            Some(spool) if spool.bytes() + bytes.len() as u64 > self.bytes_max => {
                Err(Failure::body_too_large())
            }
            Some(spool) => Ok(spool.append(bytes).await?),
            None => self.growing.extend(bytes, room).await,
        }
    }

    /// Moves what is in memory into a file, if it may be spooled.
    async fn begin_spool(&mut self) -> Result<(), Failure> {
        if let (Some((spools, bytes_max)), None) = (self.spools, &self.spool) {
            let mut spool = spools.create(bytes_max).await?;
            let growing = std::mem::replace(&mut self.growing, Growing::new(0));
            spool.append(&growing.whole).await?;
            self.spool = Some(spool);
        }
        Ok(())
    }

    async fn finish(self) -> Result<Content, Failure> {
        match self.spool {
            Some(mut spool) => {
                spool.finish().await?;
                Ok(Content::Spooled(spool))
            }
            None => Ok(Content::Held(self.growing.finish())),
        }
    }
}

/// What is held in memory as it comes. Its space grows with that, not with what a header promises.
pub(crate) struct Growing {
    whole: Vec<u8>,
    share: Share,
    bytes_max: u64,
    waits: bool,
}

impl Growing {
    /// Nothing yet, and `bytes_max` at most.
    pub(crate) fn new(bytes_max: u64) -> Growing {
        Growing { whole: Vec::new(), share: Share::default(), bytes_max, waits: true }
    }

    /// In the memory of a share that has nothing in it: as much as the room holds.
    pub(crate) fn with_share(share: Share) -> Growing {
        Growing { share: share.emptied(), ..Growing::new(u64::MAX) }
    }

    pub(crate) fn len(&self) -> usize {
        self.whole.len()
    }

    /// Of a request that has another share already: it is refused where it would have to wait for memory.
    pub(crate) fn without_waiting(self) -> Growing {
        Growing { waits: false, ..self }
    }

    /// Takes what comes next, and waits for memory where there is none.
    ///
    /// # Errors
    /// 413 past `bytes_max` or all of the room, 503 without room.
    pub(crate) async fn extend(&mut self, bytes: &[u8], room: &Room) -> Result<(), Failure> {
        let size = (self.whole.len() + bytes.len()) as u64;
        if size > self.bytes_max {
            return Err(Failure::body_too_large());
        }
        if size > room.bytes {
            return Err(Failure::exceeds_memory());
        }
        if size > self.whole.capacity() as u64 {
            // Not more than the reserve, which one body is sure to get, as long as that holds it.
            let capacity = (2 * size).min(room.reserve_bytes.max(size + size / 8));
            let capacity = capacity.min(self.bytes_max).min(room.bytes);
            match self.waits {
                true => room.grow(&mut self.share, capacity).await?,
                false => {
                    let more = capacity - self.share.bytes;
                    room.add(&mut self.share, more)?;
                }
            }
            self.whole.reserve_exact(usize::try_from(capacity).unwrap_or(usize::MAX) - self.whole.len());
        }
        self.whole.extend_from_slice(bytes);
        Ok(())
    }

    /// All that came.
    pub(crate) fn finish(self) -> Held {
        Held { text: self.whole.into(), share: self.share }
    }
}

/// A request's body as it arrives, and how long its client may take.
///
/// Only time in which the client is waited for counts. Of a request that isn't authenticated all of the body has
/// to come within `body_timeout_ms`, and it is given up where too many such requests wait. Of any other no pause
/// may be longer than that, and behind the first one's time it comes at `body_bytes_per_second_min` on average.
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// Where this request belongs while it waits; None once it is authenticated.
    unauthenticated: Option<Arc<EvictingSet>>,
    /// Its place there, from its first wait on.
    member: Option<Member>,
    received: u64,
    waited: Duration,
    /// What it was given up for: nothing more is waited for.
    given_up: Option<Failure>,
}

impl RequestBody {
    /// Of a request that isn't authenticated, which belongs to that set while it waits.
    pub(crate) fn new(incoming: Incoming, unauthenticated: Arc<EvictingSet>) -> RequestBody {
        let (received, waited) = (0, Duration::ZERO);
        let unauthenticated = Some(unauthenticated);
        RequestBody { incoming, unauthenticated, member: None, received, waited, given_up: None }
    }

    /// Whose request it is is known: the limits for such bodies hold from here on.
    pub(crate) fn authenticate(&mut self) {
        (self.unauthenticated, self.member) = (None, None);
    }

    /// The limits for requests that aren't authenticated hold from here on.
    pub(crate) fn restrict(&mut self, unauthenticated: &Arc<EvictingSet>) {
        self.unauthenticated = Some(unauthenticated.clone());
    }

    /// The length that its head declares, less what was read; None where it comes in chunks.
    pub(crate) fn declared_bytes(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }

    /// Whether all of it was read.
    pub(crate) fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// Bytes that may be held of it.
    fn bytes_max(&self, limits: &Limits) -> u64 {
        match self.unauthenticated {
            Some(_) => limits.max_request_bytes.min(UNAUTHENTICATED_BODY_BYTES),
            None => limits.max_request_bytes,
        }
    }

    /// The next piece; None at the end.
    ///
    /// # Errors
    /// 400 where the body broke off, 408 when the client takes too long, 503 where too many requests that aren't
    /// authenticated wait.
    pub(crate) async fn next_frame(&mut self, limits: &Limits) -> Result<Option<Bytes>, Failure> {
        if let Some(failure) = &self.given_up {
            return Err(failure.clone());
        }
        let next = self.wait_for_frame(limits).await;
        if let Err(failure) = &next {
            self.given_up = Some(failure.clone());
        }
        next
    }

    async fn wait_for_frame(&mut self, limits: &Limits) -> Result<Option<Bytes>, Failure> {
        if let (Some(set), None) = (&self.unauthenticated, &self.member) {
            self.member = Some(set.admit());
        }
        loop {
            let begun = Instant::now();
            let patience = self.patience(limits)?;
            let evicted = async {
                match &self.member {
                    Some(member) => member.evicted().await,
                    None => std::future::pending().await,
                }
            };
            let frame = tokio::select! {
                biased;
                frame = tokio::time::timeout(patience, self.incoming.frame()) => frame,
                () = evicted => return Err(Failure::too_many_requests()),
            };
            self.waited += begun.elapsed();
            match frame {
                Ok(Some(Ok(frame))) => {
                    // Trailers carry nothing here.
                    if let Ok(data) = frame.into_data() {
                        self.received += data.len() as u64;
                        return Ok(Some(data));
                    }
                }
                Ok(Some(Err(_))) => return Err(Failure::bad_request("the request body broke off")),
                Ok(None) => return Ok(None),
                Err(_) => return Err(too_slow()),
            }
        }
    }

    /// How long the next piece may take.
    ///
    /// # Errors
    /// 408 where the time for what has come is over.
    fn patience(&mut self, limits: &Limits) -> Result<Duration, Failure> {
        let pause_max = Duration::from_millis(limits.body_timeout_ms);
        let for_what_came = match (&self.unauthenticated, limits.body_bytes_per_second_min) {
            (Some(_), _) => Duration::ZERO,
            (None, 0) => return Ok(pause_max),
            (None, rate) => Duration::from_millis(self.received.saturating_mul(1000) / rate),
        };
        pause_left(pause_max, for_what_came, &mut self.waited).ok_or_else(too_slow)
    }

    /// Reads and drops what is left, so that a client that is still sending reads its answer and can go on using
    /// the connection. Gives up past `max_discard_bytes`: hyper then closes the connection.
    pub(crate) async fn discard(&mut self, headers: &HeaderMap, limits: &Limits) {
        // A client that waits for leave to send is told by the answer itself.
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

/// How long the next piece of a body may take, `pause_max` at most: every piece that has come earned time, and
/// waiting has used it up. Time that isn't used is lost, so that a large piece buys no slow ones.
fn pause_left(pause_max: Duration, earned: Duration, waited: &mut Duration) -> Option<Duration> {
    *waited = earned.max(*waited);
    (pause_max + earned).checked_sub(*waited)
}

fn too_slow() -> Failure {
    let reason = "the request body paused for too long or came too slowly";
    Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_large_piece_buys_no_time_for_slow_ones() {
        let [second, pause_max] = [Duration::from_secs(1), Duration::from_secs(30)];
        let mut waited = Duration::ZERO;
        // A week's worth of bytes at once.
        let mut earned = Duration::from_secs(7 * 86_400);
        assert_eq!(pause_left(pause_max, earned, &mut waited), Some(pause_max));
        waited += 29 * second;
        assert_eq!(pause_left(pause_max, earned, &mut waited), Some(second));
        waited += 2 * second;
        assert_eq!(pause_left(pause_max, earned, &mut waited), None);
        // One that keeps the rate goes on for ever.
        let mut waited = Duration::ZERO;
        for _ in 0..1_000 {
            earned += second;
            assert_eq!(pause_left(pause_max, earned, &mut waited), Some(pause_max));
            waited += second;
        }
    }

    /// A room for 100 units, of which 40 are the reserve.
    fn room() -> Room {
        Room::new(&Limits {
            request_bytes_in_flight_max: 100 * UNIT_BYTES,
            max_request_bytes: 40 * UNIT_BYTES,
            ..Limits::default()
        })
    }

    fn is_free(room: &Room) -> bool {
        room.units.available_permits() == 60 && room.reserve.available_permits() == 1
    }

    fn status<T>(result: Result<T, Failure>) -> Option<u16> {
        result.err().map(|failure| failure.status.as_u16())
    }

    async fn grown(room: &Room, kib: u64) -> Share {
        let mut share = Share::default();
        room.grow(&mut share, kib * UNIT_BYTES).await.unwrap();
        share
    }

    #[tokio::test]
    async fn a_body_that_finds_no_memory_waits_and_small_ones_do_not() {
        let room = room();
        let first = grown(&room, 60).await;
        let second = grown(&room, 40).await;
        let mut third = Box::pin(grown(&room, 40));
        assert!(third.as_mut().now_or_never().is_none(), "it got what isn't there");
        assert!(grown(&room, SMALL_BODY_BYTES / UNIT_BYTES).now_or_never().is_some());
        drop(second);
        assert!(third.now_or_never().is_some(), "what was given back is free");
        drop(first);
        assert!(is_free(&room));
    }

    #[tokio::test]
    async fn bodies_that_grow_side_by_side_never_wait_in_a_circle() {
        let room = Arc::new(room());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let room = room.clone();
            tasks.spawn(async move {
                let mut share = Share::default();
                for kib in 1..=40 {
                    room.grow(&mut share, kib * UNIT_BYTES).await.unwrap();
                    tokio::task::yield_now().await;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert!(is_free(&room));
    }

    #[tokio::test]
    async fn what_a_text_is_parsed_to_has_its_share_too() {
        let room = Arc::new(room());
        let held = || Held { text: Bytes::from_static(b"[]"), share: Share { bytes: 2, ..Share::default() } };
        let charged = |count| parse_held(held(), &room, move |_, charge| charge.take(count, 1_000));
        let ((), share) = charged(50).await.unwrap();
        assert_eq!(room.units.available_permits(), 11, "50,002 bytes are 49 units");
        assert_eq!(status(charged(100).await), Some(503), "it may be tried again");
        assert_eq!(status(charged(103).await), Some(413), "it never fits");
        assert_eq!(status(charged(usize::MAX).await), Some(413));
        drop(share);
        assert!(charged(100).await.is_ok());
        assert!(is_free(&room));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_finds_no_memory_in_time_is_refused_and_can_be_tried_again() {
        let room = room();
        let all = grown(&room, 100).await;
        let refused = room.grow(&mut Share::default(), 20 * UNIT_BYTES).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.header), (503, Some((header::RETRY_AFTER, "1"))));
        drop(all);
        assert!(grown(&room, 100).now_or_never().is_some());
    }

    #[tokio::test]
    async fn others_have_their_turn_while_a_large_text_is_parsed() {
        let text = Bytes::from(vec![b' '; PARSE_INLINE_BYTES + 1]);
        let (send, receive) = mpsc::channel();
        let waits = move |_: &[u8]| Ok(receive.recv_timeout(Duration::from_secs(60)).is_ok());
        let (others_ran, _) =
            tokio::join!(parse_from(PARSE_INLINE_BYTES, &text, waits), async { send.send(()) });
        assert!(others_ran.unwrap());
    }
}
