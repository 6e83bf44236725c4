//! A request's body as it arrives, with the limits on its size and duration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap};

use super::admission::{EvictingSet, Member};
use super::memory::SMALL_BODY_BYTES;
use crate::error::ApiError;
use crate::limits::Limits;

/// Largest body of an unauthenticated request in bytes. Such a request is a login.
const UNAUTHENTICATED_BODY_BYTES: u64 = SMALL_BODY_BYTES;

/// Unauthenticated requests that may wait for their bodies at once, over all connections. The next one evicts
/// the oldest. Together they hold at most 16 MiB.
pub(crate) const UNAUTHENTICATED_BODIES_MAX: usize = 1024;

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

    /// Whether the limits for authenticated requests apply.
    pub(super) fn is_authenticated(&self) -> bool {
        self.unauthenticated.is_none()
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
    pub(super) fn bytes_max(&self, limits: &Limits) -> u64 {
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
}
