//! A request's body as it arrives, with the limits on its size and duration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap};

use super::evicting_set::{EvictingSet, Member};
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
    /// The body of a rewritten request, instead of the one that arrives. `None` inside once it was read.
    replaced: Option<Option<Bytes>>,
    /// The set that the request joins while it waits; None once it is authenticated.
    unauthenticated: Option<Arc<EvictingSet>>,
    /// The membership in that set, from the first wait on.
    member: Option<Member>,
    received: u64,
    waited: Duration,
    /// The error after which nothing more is read.
    error: Option<ApiError>,
}

impl RequestBody {
    /// The body of an unauthenticated request, which joins `unauthenticated` while it waits.
    pub(crate) fn new(incoming: Incoming, unauthenticated: Arc<EvictingSet>) -> RequestBody {
        let (received, waited) = (0, Duration::ZERO);
        let unauthenticated = Some(unauthenticated);
        RequestBody { incoming, replaced: None, unauthenticated, member: None, received, waited, error: None }
    }

    /// Replaces the body, after the one that arrived was read.
    pub(crate) fn replace(&mut self, text: Bytes) {
        self.replaced = Some(Some(text).filter(|text| !text.is_empty()));
    }

    /// Applies the limits for authenticated requests from now on.
    pub(crate) fn authenticate(&mut self) {
        (self.unauthenticated, self.member) = (None, None);
    }

    /// Applies the limits for unauthenticated requests from now on. The body of a login is read so.
    pub(crate) fn limit_as_unauthenticated(&mut self, unauthenticated: &Arc<EvictingSet>) {
        self.unauthenticated = Some(unauthenticated.clone());
    }

    /// Whether the limits for authenticated requests apply.
    pub(super) fn is_authenticated(&self) -> bool {
        self.unauthenticated.is_none()
    }

    /// The declared length less the bytes read; None for a chunked body.
    pub(crate) fn declared_bytes(&self) -> Option<u64> {
        match &self.replaced {
            Some(text) => Some(text.as_ref().map_or(0, |text| text.len() as u64)),
            None => self.incoming.size_hint().exact(),
        }
    }

    /// Whether the whole body was read.
    pub(crate) fn is_end_stream(&self) -> bool {
        self.replaced.as_ref().map_or_else(|| self.incoming.is_end_stream(), Option::is_none)
    }

    /// Largest body in bytes that the request may have.
    pub(super) fn bytes_max(&self, limits: &Limits) -> u64 {
        match self.unauthenticated {
            Some(_) => limits.request_bytes_max.min(UNAUTHENTICATED_BODY_BYTES),
            None => limits.request_bytes_max,
        }
    }

    /// Returns the next data frame, or None at the end. Trailers are ignored.
    ///
    /// # Errors
    /// 400 if the body broke off, 408 if the client is too slow, 503 if too many unauthenticated requests
    /// wait.
    pub(crate) async fn next_data(&mut self, limits: &Limits) -> Result<Option<Bytes>, ApiError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if let Some(text) = &mut self.replaced {
            return Ok(text.take());
        }
        let next = self.wait_for_data(limits).await;
        if let Err(error) = &next {
            self.error = Some(error.clone());
        }
        next
    }

    async fn wait_for_data(&mut self, limits: &Limits) -> Result<Option<Bytes>, ApiError> {
        if let (Some(set), None) = (&self.unauthenticated, &self.member) {
            self.member = Some(set.admit());
        }
        loop {
            let begun = Instant::now();
            let timeout = self.data_timeout(limits)?;
            let evicted = async {
                match &self.member {
                    Some(member) => member.evicted().await,
                    None => std::future::pending().await,
                }
            };
            let frame = tokio::select! {
                biased;
                frame = tokio::time::timeout(timeout, self.incoming.frame()) => frame,
                () = evicted => return Err(ApiError::overloaded()),
            };
            self.waited += begun.elapsed();
            match frame {
                Ok(Some(Ok(frame))) => {
                    // The frame of the trailers has no data.
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

    /// How long the next frame may take: see [`remaining_wait`].
    ///
    /// # Errors
    /// 408 if no time remains.
    fn data_timeout(&mut self, limits: &Limits) -> Result<Duration, ApiError> {
        let pause_max = Duration::from_millis(limits.body_timeout_ms);
        let allowance = match (&self.unauthenticated, limits.body_bytes_per_second_min) {
            (Some(_), _) => Duration::ZERO,
            (None, 0) => return Ok(pause_max),
            (None, rate) => Duration::from_millis(self.received.saturating_mul(1000) / rate),
        };
        remaining_wait(pause_max, allowance, &mut self.waited).ok_or_else(too_slow)
    }

    /// Reads and drops the rest, so that a client that is still sending can read the response and reuse the
    /// connection. Stops past `discard_bytes_max`; hyper then closes the connection.
    pub(crate) async fn discard(&mut self, headers: &HeaderMap, limits: &Limits) {
        // A client that waits for `100 Continue` sees the final response instead.
        if headers.contains_key(header::EXPECT) {
            return;
        }
        let mut left = limits.discard_bytes_max;
        while !self.is_end_stream() {
            match self.next_data(limits).await {
                Ok(Some(frame)) if (frame.len() as u64) < left => left -= frame.len() as u64,
                _ => return,
            }
        }
    }
}

/// How long the next frame may take: a token bucket of waiting time. Received bytes add time at the minimum
/// rate, in all `allowance`, waiting consumes it, in all `waited`, and the capacity is `pause_max`
/// (`body_timeout_ms`), so a large frame doesn't make up for slow ones later. None if the bucket is empty.
///
/// Time beyond the capacity is removed by counting it as waited.
fn remaining_wait(pause_max: Duration, allowance: Duration, waited: &mut Duration) -> Option<Duration> {
    *waited = allowance.max(*waited);
    (pause_max + allowance).checked_sub(*waited)
}

fn too_slow() -> ApiError {
    let reason = "the request body paused for too long or came too slowly";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_frame_adds_no_time_for_later_slow_ones() {
        let [second, pause_max] = [Duration::from_secs(1), Duration::from_secs(30)];
        let mut waited = Duration::ZERO;
        // A week's worth of bytes at once.
        let mut allowance = Duration::from_secs(7 * 86_400);
        assert_eq!(remaining_wait(pause_max, allowance, &mut waited), Some(pause_max));
        waited += 29 * second;
        assert_eq!(remaining_wait(pause_max, allowance, &mut waited), Some(second));
        waited += 2 * second;
        assert_eq!(remaining_wait(pause_max, allowance, &mut waited), None);
        // A body that keeps the rate never times out.
        let mut waited = Duration::ZERO;
        for _ in 0..1_000 {
            allowance += second;
            assert_eq!(remaining_wait(pause_max, allowance, &mut waited), Some(pause_max));
            waited += second;
        }
    }
}
