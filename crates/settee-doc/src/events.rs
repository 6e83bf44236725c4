//! Database events: created, updated, deleted, in an order that clients can follow (`_db_updates`).
//!
//! Each kind of event is kept once per name: a later one replaces it. An update only sets a flag of its
//! database, and gets its position when the events are read; so a writer without subscribers pays one atomic
//! operation per batch.
//!
//! Invariants:
//! 1. Positions only grow, and an event's position is greater than all that were returned before.
//! 2. An update before a read has its position, or a greater one, after it.
//! 3. At most [`EVENTS_MAX`] events are kept. A client whose position precedes them learns that, and starts
//!    with the names of all databases.
//!
//! Events don't outlive the process: a position of an earlier process means the start.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use settee_store::Seq;
use tokio::sync::Notify;

use crate::Result;
use crate::sequence::Sequence;

/// Largest number of events kept, of all kinds and databases.
const EVENTS_MAX: usize = 65_536;

/// Largest number of updated databases without a position: beyond it the writer assigns them itself.
const CHANGED_MAX: usize = 1024;

/// The position of everything that happened before the process began.
const BEFORE: u64 = 1;

/// The kind of a database event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It was made.
    Created,
    /// Documents were written.
    Updated,
    /// It was deleted.
    Deleted,
}

/// An event of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseEvent {
    /// Its position.
    pub seq: Seq,
    /// Its kind.
    pub kind: EventKind,
    /// The database's name.
    pub name: Arc<str>,
}

/// The events of a server's databases.
pub(crate) struct Updates {
    sequence: Sequence,
    shared: Arc<SharedEvents>,
}

struct SharedEvents {
    events: Mutex<EventLog>,
    notify: Notify,
}

struct EventLog {
    last: u64,
    /// Events up to this position may have been removed.
    removed_up_to: u64,
    by_position: BTreeMap<u64, (EventKind, Arc<str>)>,
    positions: HashMap<(EventKind, Arc<str>), u64>,
    changed: Vec<Arc<UpdateFlag>>,
}

struct UpdateFlag {
    name: Arc<str>,
    /// Whether it is in `EventLog::changed`.
    is_set: AtomicBool,
}

/// Registers the updates of one database; the default does nothing.
#[derive(Default)]
pub(crate) struct UpdateNotifier(Option<(Arc<UpdateFlag>, Arc<SharedEvents>)>);

impl UpdateNotifier {
    /// Registers an update: to be called once the written batch has reached its writer's stage.
    pub(crate) fn register(&self) {
        let Some((flag, shared)) = &self.0 else { return };
        if flag.is_set.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut events = shared.lock();
        events.changed.push(flag.clone());
        if events.changed.len() > CHANGED_MAX {
            events.assign_positions();
        }
        drop(events);
        shared.notify.notify_waiters();
    }
}

impl SharedEvents {
    fn lock(&self) -> MutexGuard<'_, EventLog> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventLog {
    /// Assigns positions to the databases updated since the last read.
    fn assign_positions(&mut self) {
        for flag in std::mem::take(&mut self.changed) {
            // Before it gets its position: later writes register again.
            flag.is_set.swap(false, Ordering::AcqRel);
            self.add(EventKind::Updated, flag.name.clone());
        }
    }

    fn add(&mut self, kind: EventKind, name: Arc<str>) {
        self.last += 1;
        if let Some(earlier) = self.positions.insert((kind, name.clone()), self.last) {
            self.by_position.remove(&earlier);
        }
        self.by_position.insert(self.last, (kind, name));
        while self.by_position.len() > EVENTS_MAX
            && let Some((position, key)) = self.by_position.pop_first()
        {
            self.positions.remove(&key);
            self.removed_up_to = position;
        }
        assert!(self.by_position.len() == self.positions.len(), "an event has one position");
        assert!(self.removed_up_to < self.last, "the newest event is kept");
    }
}

impl Updates {
    /// `incarnation` identifies this process's positions; `has_any`: whether there are databases already.
    pub(crate) fn new(incarnation: &[u8; 16], has_any: bool) -> Updates {
        let removed_up_to = if has_any { BEFORE } else { 0 };
        let (by_position, positions, changed) = Default::default();
        let events = EventLog { last: BEFORE, removed_up_to, by_position, positions, changed };
        let shared = SharedEvents { events: Mutex::new(events), notify: Notify::new() };
        Updates { sequence: Sequence::new(incarnation), shared: Arc::new(shared) }
    }

    /// The notifier of a database that is being opened.
    pub(crate) fn notifier(&self, name: &str) -> UpdateNotifier {
        let flag = UpdateFlag { name: name.into(), is_set: AtomicBool::new(false) };
        UpdateNotifier(Some((Arc::new(flag), self.shared.clone())))
    }

    /// Registers a database's persisted creation or deletion.
    pub(crate) fn register(&self, kind: EventKind, name: &str) {
        let mut events = self.shared.lock();
        // Earlier updates get earlier positions.
        events.assign_positions();
        events.add(kind, name.into());
        drop(events);
        self.shared.notify.notify_waiters();
    }

    /// The events after `since`, in order, at most `count_max`; `None` if some of them were removed.
    pub(crate) fn after(&self, since: Seq, count_max: usize) -> Option<Vec<DatabaseEvent>> {
        let mut events = self.shared.lock();
        events.assign_positions();
        if since.0 < events.removed_up_to {
            return None;
        }
        let after = (Bound::Excluded(since.0), Bound::Unbounded);
        let event = |(position, (kind, name)): (&u64, &(EventKind, Arc<str>))| DatabaseEvent {
            seq: Seq(*position),
            kind: *kind,
            name: name.clone(),
        };
        Some(events.by_position.range(after).take(count_max).map(event).collect())
    }

    /// The position behind all events.
    pub(crate) fn last(&self) -> Seq {
        let mut events = self.shared.lock();
        events.assign_positions();
        Seq(events.last)
    }

    /// The position before the first event that is kept.
    pub(crate) fn first(&self) -> Seq {
        Seq(self.shared.lock().removed_up_to)
    }

    /// Removes the databases with a creation event from `names`.
    pub(crate) fn remove_created(&self, names: &mut Vec<String>) {
        let events = self.shared.lock();
        names.retain(|name| !events.positions.contains_key(&(EventKind::Created, Arc::from(name.as_str()))));
    }

    /// Returns once there is an event after `since`. Dropping the future is harmless.
    pub(crate) async fn wait_after(&self, since: Seq) {
        let shared = &self.shared;
        loop {
            let mut notify = std::pin::pin!(shared.notify.notified());
            notify.as_mut().enable();
            {
                let events = shared.lock();
                if events.last > since.0 || !events.changed.is_empty() {
                    return;
                }
            }
            notify.await;
        }
    }

    /// Appends a position as clients see it.
    pub(crate) fn write_seq(&self, seq: Seq, out: &mut Vec<u8>) {
        self.sequence.write(seq, out);
    }

    /// Parses a client's position: as [`Database::parse_since`](crate::Database::parse_since).
    ///
    /// # Errors
    /// `BadRequest` for anything else.
    pub(crate) fn parse_seq(&self, text: &str) -> Result<Seq> {
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text) {
            "now" => Ok(self.last()),
            text => self.sequence.parse(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(updates: &Updates) -> Vec<(u64, EventKind, String)> {
        let mut events = updates.shared.lock();
        events.assign_positions();
        let registered = events.by_position.iter();
        registered.map(|(position, (kind, name))| (*position, *kind, name.to_string())).collect()
    }

    #[test]
    fn an_event_is_returned_once_at_its_last_position() {
        let updates = Updates::new(&[1; 16], false);
        updates.register(EventKind::Created, "a");
        let changed = updates.notifier("a");
        changed.register();
        changed.register();
        assert_eq!(
            registered(&updates),
            [(2, EventKind::Created, "a".to_owned()), (3, EventKind::Updated, "a".to_owned())]
        );
        changed.register();
        updates.register(EventKind::Deleted, "a");
        assert_eq!(
            registered(&updates),
            [
                (2, EventKind::Created, "a".to_owned()),
                (4, EventKind::Updated, "a".to_owned()),
                (5, EventKind::Deleted, "a".to_owned())
            ]
        );
    }

    #[test]
    fn old_events_are_removed_and_that_is_visible() {
        let updates = Updates::new(&[1; 16], false);
        for n in 0..EVENTS_MAX + 10 {
            updates.register(EventKind::Created, &format!("db{n}"));
        }
        let events = updates.shared.lock();
        assert_eq!((events.by_position.len(), events.positions.len()), (EVENTS_MAX, EVENTS_MAX));
        assert_eq!(events.removed_up_to, BEFORE + 10);
        assert_eq!(events.by_position.keys().next(), Some(&(BEFORE + 11)));
    }

    #[test]
    fn unread_updates_take_bounded_memory() {
        let updates = Updates::new(&[1; 16], false);
        for n in 0..10 * CHANGED_MAX {
            // Like a database that is opened, written and closed again and again.
            updates.notifier(&format!("db{}", n % 7)).register();
        }
        let events = updates.shared.lock();
        assert!(events.changed.len() <= CHANGED_MAX && events.by_position.len() <= 7);
    }
}
