//! Failpoints: faults that tests enable in order to check that the tests detect them.
//!
//! Each one does, at the place where it could happen, something that a log must never do. The switch is a
//! field of [`LogOptions`] that exists only with the feature `failpoints`, which only this crate's own tests
//! enable. Without the feature, [`LogOptions::is_enabled`] is `const` false, and the faults are not compiled
//! into the program.
//!
//! Two more faults, an omitted file sync and an omitted directory sync, are implemented by the simulated
//! disk.

use crate::log::LogOptions;

/// The fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "failpoints"), expect(unreachable_pub, reason = "public where it can be enabled"))]
pub enum Failpoint {
    /// Callers that wait for a sync are notified when the write has completed.
    EarlyAcknowledgement,
    /// A completed write moves the watermark past earlier writes that have not completed.
    WatermarkPastGap,
    /// Recovery continues in the segment in which it found a torn tail, after that tail.
    AppendAfterTornTail,
    /// Recovery accepts any whole frame, independent of the segment and epoch for which it was written.
    RecycledFrame,
    /// A failed sync is retried.
    SyncRetried,
    /// Recovery treats a failed read as the end of the written bytes.
    ErrorAsEnd,
    /// A buffer's memory is reused while its write is in flight.
    #[cfg(feature = "failpoints")]
    BufferFreedInFlight,
    /// A read takes a buffer from the pool first.
    ReaderWaits,
}

impl LogOptions {
    /// Whether the failpoint is enabled.
    #[cfg(feature = "failpoints")]
    pub(crate) fn is_enabled(&self, failpoint: Failpoint) -> bool {
        self.failpoint == Some(failpoint)
    }

    #[cfg(not(feature = "failpoints"))]
    pub(crate) const fn is_enabled(&self, _: Failpoint) -> bool {
        false
    }
}

#[cfg(feature = "failpoints")]
mod buffers {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;

    use super::Failpoint;
    use crate::log::Shared;
    use crate::state::{Action, LogState};

    /// Time until the simulated device fetches the bytes of a write.
    const FETCH_TIME: Duration = Duration::from_micros(100);

    impl Shared {
        /// [`Failpoint::BufferFreedInFlight`]: the device fetches a write's bytes some time after the write
        /// was submitted. Safe code can't reuse memory that is in use; so if another buffer was taken
        /// meanwhile, which would have received this memory, the write's bytes are replaced by others.
        pub(crate) fn fetch_later(self: &Arc<Self>, action: Action) -> Option<Action> {
            let Action::Write { id, file, offset, bytes, sync } = action else { return Some(action) };
            if !self.options.is_enabled(Failpoint::BufferFreedInFlight) {
                return Some(Action::Write { id, file, offset, bytes, sync });
            }
            let (shared, before) = (self.clone(), last_buffer(&self.lock()));
            self.env.spawn("failpoint", async move {
                shared.env.clock.sleep(FETCH_TIME).await;
                let now = last_buffer(&shared.lock());
                let used_again = now.is_some_and(|now| before.is_none_or(|before| now > before));
                let bytes = if used_again { Bytes::from(vec![0xDB; bytes.len()]) } else { bytes };
                shared.submit(Action::Write { id, file, offset, bytes, sync });
            });
            None
        }
    }

    /// Identifies the newest buffer.
    fn last_buffer(state: &LogState) -> Option<u64> {
        state.chunks.back().map(|chunk| chunk.start.bits())
    }
}
