//! The databases' events as clients follow them: `_db_updates`.

use std::ops::Bound;

use settee_store::Seq;

use super::names::NameRange;
use super::server::Databases;
use crate::Result;
use crate::events::DatabaseEvent;

impl Databases {
    /// The events after `since`, in order, at most `count_max`; `None` if some of them were removed: then
    /// [`Databases::names_before_events`] returns the databases without a creation event, and
    /// [`Databases::first_event`] is the position to continue from.
    ///
    /// An update is registered when its writer is answered: with a durability below `persisted` that may be
    /// before a snapshot shows it.
    pub fn events_after(&self, since: Seq, count_max: usize) -> Option<Vec<DatabaseEvent>> {
        self.inner.updates.after(since, count_max)
    }

    /// The position behind all events.
    pub fn last_event(&self) -> Seq {
        self.inner.updates.last()
    }

    /// The position before the first event that is kept.
    pub fn first_event(&self) -> Seq {
        self.inner.updates.first()
    }

    /// Names of databases without a creation event, sorted: at most the next `count_max` after a name. Events
    /// cover databases that are created or deleted meanwhile.
    pub fn names_before_events(&self, after: Option<&str>, count_max: usize) -> Vec<String> {
        let mut start = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.to_owned()));
        let mut names = Vec::new();
        while names.len() < count_max {
            let mut some = Vec::new();
            let range = NameRange { start, limit: count_max - names.len(), ..NameRange::default() };
            self.visit_names(range, |name| some.push(name.to_owned()));
            let Some(last) = some.last() else { break };
            start = Bound::Excluded(last.clone());
            self.inner.updates.remove_created(&mut some);
            names.append(&mut some);
        }
        names
    }

    /// Returns once there is an event after `since`. Dropping the future is harmless.
    pub async fn event_after(&self, since: Seq) {
        self.inner.updates.wait_after(since).await;
    }

    /// Appends an event's position as clients see it.
    pub fn write_event_seq(&self, seq: Seq, out: &mut Vec<u8>) {
        self.inner.updates.write_seq(seq, out);
    }

    /// Parses a client's position: as [`Database::parse_since`](crate::Database::parse_since).
    ///
    /// # Errors
    /// `BadRequest` for anything else.
    pub fn parse_event_seq(&self, text: &str) -> Result<Seq> {
        self.inner.updates.parse_seq(text)
    }
}
