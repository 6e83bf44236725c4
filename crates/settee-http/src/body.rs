//! Reading request bodies within their limits, and parsing what is large without holding up
//! others.
//!
//! All bodies share one room. One whose length is declared takes its share whole before it is
//! read; any other takes what it needs as it grows, and never waits: so nobody waits who holds a
//! share already, and no two requests can wait for each other.
//!
//! A text of many small things is a multiple of itself once it is parsed: what they take is charged to the
//! share before room is made for them ([`Charge`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap};

use settee_doc::Edit;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Limits;
use crate::encoding::{self, Unfolding};
use crate::error::Failure;
use crate::server::Server;

/// Bytes of a body that needs no share of the room, so that small writes don't wait for large
/// ones: there are never more of them than connections.
const SMALL_BODY_BYTES: u64 = 16 << 10;

/// Bytes that a small thing of its own takes of the allocator, at least.
pub(crate) const ALLOCATION_BYTES: usize = 32;

/// Up to this many items a list's capacity is doubled; from then on it grows by a quarter.
const DOUBLED_MAX: usize = 1024;

/// What a text is parsed to may take this many times its bytes, or [`PARSED_BYTES_MIN`] where that is more: with
/// the text itself at most four times what was sent.
const PARSED_PER_BYTE: u64 = 3;
const PARSED_BYTES_MIN: u64 = 64 << 20;

/// The unit of shares.
const UNIT_BYTES: u64 = 1 << 10;

/// Bytes of a text that is parsed in its request's own task; a longer one gets a thread that
/// may block, so that it holds up no other task.
const PARSE_INLINE_BYTES: usize = 1 << 20;

/// The memory for request bodies.
pub(crate) struct Room {
    units: Arc<Semaphore>,
    bytes: u64,
    patience: Duration,
}

/// A part of the room; none for a small body. Given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Share {
    permit: Option<OwnedSemaphorePermit>,
    /// What it is to hold.
    bytes: u64,
}

/// A body with its share of the room, which is kept as long as what was made of the text.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) text: Bytes,
    pub(crate) share: Share,
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
    /// A room that holds one of the largest bodies at least.
    pub(crate) fn new(limits: &Limits) -> Room {
        let bytes = limits.request_bytes_in_flight_max.max(limits.max_request_bytes);
        let units = usize::try_from(units(bytes)).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Room {
            units: Arc::new(Semaphore::new(units)),
            bytes,
            patience: Duration::from_millis(limits.body_timeout_ms),
        }
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the whole share of a body of that size, or the whole room for a larger one, and waits for it in
    /// turn.
    ///
    /// # Errors
    /// 503 where it isn't free in time.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Share, Failure> {
        let bytes = bytes.min(self.bytes);
        if bytes <= SMALL_BODY_BYTES {
            return Ok(Share { permit: None, bytes });
        }
        let taken = self.units.clone().acquire_many_owned(units(bytes));
        match tokio::time::timeout(self.patience, taken).await {
            Ok(Ok(permit)) => Ok(Share { permit: Some(permit), bytes }),
            Ok(Err(_)) | Err(_) => Err(Failure::no_room()),
        }
    }

    /// Widens a share to a body of that size. Never waits.
    ///
    /// # Errors
    /// 503 where the room is used up.
    fn widen(&self, share: &mut Share, bytes: u64) -> Result<(), Failure> {
        share.bytes = share.bytes.max(bytes);
        let held = share.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = units(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if bytes <= SMALL_BODY_BYTES || more == 0 {
            return Ok(());
        }
        let taken = self.units.clone().try_acquire_many_owned(more).map_err(|_| Failure::no_room())?;
        match &mut share.permit {
            Some(permit) => permit.merge(taken),
            none => *none = Some(taken),
        }
        Ok(())
    }

    /// Widens a share by so many bytes. Never waits.
    ///
    /// # Errors
    /// 413 where the room could never hold them, 503 where it is used up.
    pub(crate) fn add(&self, share: &mut Share, bytes: u64) -> Result<(), Failure> {
        let whole = share.bytes.saturating_add(bytes);
        match whole <= self.bytes {
            true => self.widen(share, whole),
            false => Err(Failure::body_too_large()),
        }
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
/// 400 without a body or where it isn't gzip as it says, 408 when the client pauses too long, 413 past
/// the limit, 415 for another encoding, 503 without room. The rest of the body stays unread then: see
/// [`discard`].
pub(crate) async fn read(
    body: &mut Incoming,
    headers: &HeaderMap,
    limits: &Limits,
    room: &Room,
) -> Result<Held, Failure> {
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
    let declared = body.size_hint().exact();
    if declared == Some(0) && !headers.contains_key(header::CONTENT_LENGTH) {
        return Err(Failure::bad_request("Missing request body"));
    }
    if declared.is_some_and(|bytes| bytes > limits.max_request_bytes) {
        return Err(Failure::body_too_large());
    }
    if is_gzip {
        return read_gzip(body, limits, room).await;
    }
    let mut share = match declared {
        Some(bytes) => room.take(bytes).await?,
        None => Share::default(),
    };
    let Some(first) = next_frame(body, limits).await? else {
        return Ok(Held { text: Bytes::new(), share });
    };
    if body.is_end_stream() {
        if first.len() as u64 > limits.max_request_bytes {
            return Err(Failure::body_too_large());
        }
        room.widen(&mut share, first.len() as u64)?;
        return Ok(Held { text: first, share });
    }
    let mut growing = Growing { whole: Vec::new(), share, declared };
    growing.extend(&first, limits, room)?;
    drop(first);
    while let Some(frame) = next_frame(body, limits).await? {
        growing.extend(&frame, limits, room)?;
    }
    Ok(growing.finish())
}

/// Reads a whole body that comes compressed: what it unfolds to counts.
async fn read_gzip(body: &mut Incoming, limits: &Limits, room: &Room) -> Result<Held, Failure> {
    let mut growing = Growing::default();
    let mut unfolding = Unfolding::new();
    while let Some(frame) = next_frame(body, limits).await? {
        for part in frame.chunks(encoding::PART_BYTES) {
            growing.extend(&unfolding.push(part)?, limits, room)?;
        }
    }
    growing.extend(&unfolding.finish()?, limits, room)?;
    Ok(growing.finish())
}

/// What is held in memory as it comes. Its space grows with that, not with what a header promises.
#[derive(Default)]
pub(crate) struct Growing {
    whole: Vec<u8>,
    share: Share,
    /// How long it will be, where that is known.
    declared: Option<u64>,
}

impl Growing {
    /// Takes what comes next.
    ///
    /// # Errors
    /// 413 past `max_request_bytes`, 503 without room.
    pub(crate) fn extend(&mut self, bytes: &[u8], limits: &Limits, room: &Room) -> Result<(), Failure> {
        let size = (self.whole.len() + bytes.len()) as u64;
        if size > limits.max_request_bytes {
            return Err(Failure::body_too_large());
        }
        if size > self.whole.capacity() as u64 {
            let capacity = (2 * size).min(self.declared.unwrap_or(limits.max_request_bytes)).max(size);
            room.widen(&mut self.share, capacity)?;
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

/// Reads and drops what is left of a body, so that a client that is still sending reads its
/// answer and can go on using the connection. Gives up past `max_discard_bytes`: hyper then
/// closes the connection.
pub(crate) async fn discard(body: &mut Incoming, headers: &HeaderMap, limits: &Limits) {
    // A client that waits for leave to send is told by the answer itself.
    if headers.contains_key(header::EXPECT) {
        return;
    }
    let mut left = limits.max_discard_bytes;
    while !body.is_end_stream() {
        match next_frame(body, limits).await {
            Ok(Some(frame)) if (frame.len() as u64) < left => left -= frame.len() as u64,
            _ => return,
        }
    }
}

/// The next piece of a body; None at its end.
///
/// # Errors
/// 400 where the body broke off, 408 when the client pauses too long.
pub(crate) async fn next_frame(body: &mut Incoming, limits: &Limits) -> Result<Option<Bytes>, Failure> {
    let patience = Duration::from_millis(limits.body_timeout_ms);
    loop {
        match tokio::time::timeout(patience, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                // Trailers carry nothing here.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(_))) => return Err(Failure::bad_request("the request body broke off")),
            Ok(None) => return Ok(None),
            Err(_) => {
                let reason = "the request body paused for too long";
                return Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    /// A room for 100 units.
    fn room() -> Room {
        Room::new(&Limits {
            request_bytes_in_flight_max: 100 * UNIT_BYTES,
            max_request_bytes: 100 * UNIT_BYTES,
            ..Limits::default()
        })
    }

    fn status<T>(result: Result<T, Failure>) -> Option<u16> {
        result.err().map(|failure| failure.status.as_u16())
    }

    #[tokio::test]
    async fn a_body_that_does_not_fit_waits_for_its_whole_share_and_small_ones_do_not() {
        let room = room();
        let first = room.take(60 * UNIT_BYTES).await.unwrap();
        let mut second = Box::pin(room.take(60 * UNIT_BYTES));
        assert!(second.as_mut().now_or_never().is_none(), "it got what isn't there");
        assert!(room.take(SMALL_BODY_BYTES).now_or_never().is_some());
        drop(first);
        assert!(second.now_or_never().is_some(), "what was given back is free");
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_grows_into_what_is_free_and_is_refused_beyond() {
        let room = room();
        let mut share = Share::default();
        for size in [1, 16, 17, 60, 60, 90] {
            room.widen(&mut share, size * UNIT_BYTES).unwrap();
        }
        let mut other = Share::default();
        room.widen(&mut other, 10 * UNIT_BYTES).unwrap();
        assert_eq!(status(room.widen(&mut other, 17 * UNIT_BYTES)), Some(503));
        drop(share);
        room.widen(&mut other, 100 * UNIT_BYTES).unwrap();
        drop(other);
        assert_eq!(room.units.available_permits(), 100);
    }

    #[tokio::test]
    async fn what_a_text_is_parsed_to_has_its_share_too() {
        let room = Arc::new(room());
        let held = || Held { text: Bytes::from_static(b"[]"), share: Share { permit: None, bytes: 2 } };
        let charged = |count| parse_held(held(), &room, move |_, charge| charge.take(count, 1_000));
        let ((), share) = charged(50).await.unwrap();
        assert_eq!(room.units.available_permits(), 51, "50,002 bytes are 49 units");
        assert_eq!(status(charged(100).await), Some(503), "it may be tried again");
        assert_eq!(status(charged(103).await), Some(413), "it never fits");
        assert_eq!(status(charged(usize::MAX).await), Some(413));
        drop(share);
        assert!(charged(100).await.is_ok());
        assert_eq!(room.units.available_permits(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_finds_no_room_in_time_is_refused_and_can_be_tried_again() {
        let room = room();
        let all = room.take(100 * UNIT_BYTES).await.unwrap();
        let refused = room.take(20 * UNIT_BYTES).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.header), (503, Some((header::RETRY_AFTER, "1"))));
        drop(all);
        assert!(room.take(100 * UNIT_BYTES).now_or_never().is_some());
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
