//! The invariants of the state that are verified around each transition, in release builds too.
//!
//! They are verified before the next action is taken, so that no action is lost, and before readers and waiters
//! see the watermarks that a completion has moved. A violation panics under the lock, which stops the log.

use super::LogState;
use super::group::ClosedGroup;

impl LogState {
    /// Verifies the invariants.
    ///
    /// # Panics
    /// If one is violated.
    pub(crate) fn check(&self) {
        if let Some(what) = self.violated_invariant() {
            panic!("the log's state is invalid: {what}");
        }
    }

    /// The first invariant that doesn't hold; `None` if all do, or if the log has stopped. It costs a handful
    /// of comparisons.
    fn violated_invariant(&self) -> Option<&'static str> {
        if self.stopped.is_some() {
            return None;
        }
        let is_synced_too_early = |group: &ClosedGroup| {
            // The write that ends the group may include the sync if it is the oldest incomplete one.
            let is_with_write = self.incomplete_writes.front().is_some_and(|write| write.end == group.end);
            group.sync_started_at.is_some() && !self.written.reaches(group.end) && !is_with_write
        };
        let ids = self.incomplete_writes.iter().map(|write| write.id);
        let violated = [
            (self.written.seq > self.accepted.seq, "the written Seq is past the accepted one"),
            (self.persisted.seq > self.written.seq, "the persisted Seq is past the written one"),
            (self.persisted.at > self.written.at, "the persisted bytes end past the written ones"),
            (self.accepted.at > self.next, "the accepted frames end past the next frame's position"),
            (self.written.at > self.next, "the written bytes end past the next frame's position"),
            (self.submitted > self.next, "submitted bytes end past the next frame's position"),
            (
                self.closed_group.as_ref().is_some_and(is_synced_too_early),
                "a sync began before its group was written",
            ),
            (
                self.incomplete_writes.len() > self.options.writes_in_flight_max,
                "too many writes are in flight",
            ),
            (!ids.is_sorted_by(|a, b| a < b), "the writes in flight are out of order"),
        ];
        violated.into_iter().find_map(|(is_violated, what)| is_violated.then_some(what))
    }
}
