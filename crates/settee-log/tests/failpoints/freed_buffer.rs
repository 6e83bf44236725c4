//! [`Failpoint::BufferFreedInFlight`]: the simulated device fetches the bytes of a write late, when their
//! buffer may serve another write.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::failpoints::Failpoint;
use crate::shared::Shared;
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
    state.chunks().back().map(|chunk| chunk.start.bits())
}
