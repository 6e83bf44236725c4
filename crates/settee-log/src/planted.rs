//! Faults that tests plant, to see that they are caught.
//!
//! Each is something a log must never do, at the very place where it would be done. The switch is
//! a field of [`LogOptions`] that is there only with the feature `planted-faults`, which this
//! crate's own tests set and nobody else may. Without it [`LogOptions::is_planted`] is false when
//! the program is built, and nothing of the faults gets into it.
//!
//! Two more, a sync of a file and one of a folder that are left out, are the simulated disk's.

use crate::log::LogOptions;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "planted-faults"),
    expect(unreachable_pub, reason = "public where it can be planted")
)]
pub enum Planted {
    /// Who waits for a sync is told when the write has ended.
    EarlyAcknowledgement,
    /// A write that has ended moves the mark past those before it that have not.
    MarkPastHole,
    /// Recovery goes on in the segment whose torn tail it found, behind that.
    AppendBehindCut,
    /// Recovery takes any whole frame, wherever and whenever it was written.
    RecycledFrame,
    /// A sync that failed is tried again.
    SyncRetried,
    /// Recovery takes a read that failed for the end of what was written.
    ErrorAsEnd,
    /// A buffer's memory is used again while its write is in flight.
    #[cfg(feature = "planted-faults")]
    BufferFreedInFlight,
    /// A read takes a buffer from the pool first.
    ReaderWaits,
}

impl LogOptions {
    /// Whether the fault was planted.
    #[cfg(feature = "planted-faults")]
    pub(crate) fn is_planted(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }

    #[cfg(not(feature = "planted-faults"))]
    pub(crate) const fn is_planted(&self, _: Planted) -> bool {
        false
    }
}

#[cfg(feature = "planted-faults")]
mod buffers {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;

    use super::Planted;
    use crate::log::Shared;
    use crate::state::{Action, State};

    /// How long the device takes to fetch the bytes of a write.
    const FETCH_TIME: Duration = Duration::from_micros(100);

    impl Shared {
        /// [`Planted::BufferFreedInFlight`]: the device fetches a write's bytes a moment after it
        /// was submitted. Safe code can't hand out memory that is in use; so where another buffer
        /// was taken meanwhile, and would have been given this memory, what another would have
        /// written there is made up.
        pub(crate) fn fetch_later(self: &Arc<Self>, action: Action) -> Option<Action> {
            let Action::Write { id, file, offset, bytes, sync } = action else { return Some(action) };
            if !self.options.is_planted(Planted::BufferFreedInFlight) {
                return Some(Action::Write { id, file, offset, bytes, sync });
            }
            let (shared, before) = (self.clone(), last_buffer(&self.lock()));
            self.env.spawn("planted", async move {
                shared.env.clock.sleep(FETCH_TIME).await;
                let now = last_buffer(&shared.lock());
                let used_again = now.is_some_and(|now| before.is_none_or(|before| now > before));
                let bytes = if used_again { Bytes::from(vec![0xDB; bytes.len()]) } else { bytes };
                shared.submit(Action::Write { id, file, offset, bytes, sync });
            });
            None
        }
    }

    /// Which buffer is the newest.
    fn last_buffer(state: &State) -> Option<u64> {
        state.chunks.back().map(|chunk| chunk.start.bits())
    }
}
