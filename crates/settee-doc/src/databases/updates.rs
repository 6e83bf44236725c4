//! What happens to databases: made, changed, deleted, in an order that clients can follow.
//!
//! Each event is remembered once: a later one of the same kind and name takes its place. That a
//! database changed is noted by a flag of its own, and gets its place in the order when somebody
//! looks: so a writer that nobody follows pays one atomic operation a batch.
//!
//! Invariants:
//! 1. Places only grow, and an event's is greater than all that were told before.
//! 2. What was changed before a look has its place, or a greater one, after it.
//! 3. At most [`EVENTS_MAX`] events are remembered. Who comes from before what is remembered is
//!    told so, and begins with the names of all databases.
//!
//! Nothing of this outlives the process: a position of an earlier one means the start.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use settee_store::Seq;
use tokio::sync::Notify;

use crate::Result;
use crate::sequence::Sequence;

use super::{Databases, NameRange};

/// Events that are remembered at most, of all kinds and databases.
const EVENTS_MAX: usize = 65_536;

/// Changed databases that wait for their place at most: past it the writer looks itself.
const CHANGED_MAX: usize = 1024;

/// The place of all that happened before the process began.
const BEFORE: u64 = 1;

/// What happened to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It was made.
    Created,
    /// Documents of it were written.
    Updated,
    /// It was deleted.
    Deleted,
}

/// Something that happened to a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseEvent {
    /// Its place in the order.
    pub seq: Seq,
    /// What happened.
    pub kind: EventKind,
    /// The database's name.
    pub name: Arc<str>,
}

/// The events of a server's databases.
pub(super) struct Updates {
    sequence: Sequence,
    shared: Arc<Shared>,
}

struct Shared {
    events: Mutex<Events>,
    happened: Notify,
}

struct Events {
    last: u64,
    /// Of what happened up to here not everything is remembered.
    forgotten: u64,
    by_place: BTreeMap<u64, (EventKind, Arc<str>)>,
    places: HashMap<(EventKind, Arc<str>), u64>,
    changed: Vec<Arc<Mark>>,
}

struct Mark {
    name: Arc<str>,
    /// It stands in `Events::changed`.
    is_noted: AtomicBool,
}

/// Notes the changes of one database; the default notes nothing.
#[derive(Default)]
pub(crate) struct Changed(Option<(Arc<Mark>, Arc<Shared>)>);

impl Changed {
    /// The database changed: to be called once what was written is as far as its writer asked for.
    pub(crate) fn note(&self) {
        let Some((mark, shared)) = &self.0 else { return };
        if mark.is_noted.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut events = shared.lock();
        events.changed.push(mark.clone());
        if events.changed.len() > CHANGED_MAX {
            events.place_changed();
        }
        drop(events);
        shared.happened.notify_waiters();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    /// Gives what changed since the last look its place.
    fn place_changed(&mut self) {
        for mark in std::mem::take(&mut self.changed) {
            // Before it gets its place: what is written from now on is noted anew.
            mark.is_noted.swap(false, Ordering::AcqRel);
            self.add(EventKind::Updated, mark.name.clone());
        }
    }

    fn add(&mut self, kind: EventKind, name: Arc<str>) {
        self.last += 1;
        if let Some(earlier) = self.places.insert((kind, name.clone()), self.last) {
            self.by_place.remove(&earlier);
        }
        self.by_place.insert(self.last, (kind, name));
        while self.by_place.len() > EVENTS_MAX
            && let Some((place, key)) = self.by_place.pop_first()
        {
            self.places.remove(&key);
            self.forgotten = place;
        }
    }
}

impl Updates {
    /// `incarnation` names this process's order; `has_any`: there are databases already.
    pub(super) fn new(incarnation: &[u8; 16], has_any: bool) -> Updates {
        let forgotten = if has_any { BEFORE } else { 0 };
        let (by_place, places, changed) = Default::default();
        let events = Events { last: BEFORE, forgotten, by_place, places, changed };
        let shared = Shared { events: Mutex::new(events), happened: Notify::new() };
        Updates { sequence: Sequence::new(incarnation), shared: Arc::new(shared) }
    }

    /// What notes the changes of a database that is being opened.
    pub(super) fn of(&self, name: &str) -> Changed {
        let mark = Mark { name: name.into(), is_noted: AtomicBool::new(false) };
        Changed(Some((Arc::new(mark), self.shared.clone())))
    }

    /// A database was made or deleted, and that is persisted.
    pub(super) fn note(&self, kind: EventKind, name: &str) {
        let mut events = self.shared.lock();
        // What changed before comes before.
        events.place_changed();
        events.add(kind, name.into());
        drop(events);
        self.shared.happened.notify_waiters();
    }
}

impl Databases {
    /// What happened to databases after `since`, in order, at most `count_max` events; None where
    /// some of it isn't remembered: then [`Databases::names_before_events`] has the databases of
    /// which nothing else tells, and [`Databases::first_event`] is where to go on.
    ///
    /// That a database was updated is told once its writer was answered: with a durability below
    /// `persisted` that may be before a view shows it.
    pub fn events_after(&self, since: Seq, count_max: usize) -> Option<Vec<DatabaseEvent>> {
        let mut events = self.inner.updates.shared.lock();
        events.place_changed();
        if since.0 < events.forgotten {
            return None;
        }
        let after = (Bound::Excluded(since.0), Bound::Unbounded);
        let event = |(place, (kind, name)): (&u64, &(EventKind, Arc<str>))| DatabaseEvent {
            seq: Seq(*place),
            kind: *kind,
            name: name.clone(),
        };
        Some(events.by_place.range(after).take(count_max).map(event).collect())
    }

    /// The position behind all that has happened.
    pub fn last_event(&self) -> Seq {
        let mut events = self.inner.updates.shared.lock();
        events.place_changed();
        Seq(events.last)
    }

    /// The position before the first event that is remembered.
    pub fn first_event(&self) -> Seq {
        Seq(self.inner.updates.shared.lock().forgotten)
    }

    /// Names of databases whose creation isn't remembered, sorted: the next `count_max` at most
    /// that come after a name. Of what comes or goes meanwhile the events tell.
    pub fn names_before_events(&self, after: Option<&str>, count_max: usize) -> Vec<String> {
        let mut start = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.to_owned()));
        let mut names = Vec::new();
        while names.len() < count_max {
            let mut some = Vec::new();
            let range = NameRange { start, limit: count_max - names.len(), ..NameRange::default() };
            self.visit_names(range, |name| some.push(name.to_owned()));
            let Some(last) = some.last() else { break };
            start = Bound::Excluded(last.clone());
            let events = self.inner.updates.shared.lock();
            some.retain(|name| !events.places.contains_key(&(EventKind::Created, Arc::from(name.as_str()))));
            drop(events);
            names.append(&mut some);
        }
        names
    }

    /// Returns once something has happened after `since`. Dropping the future is harmless.
    pub async fn event_after(&self, since: Seq) {
        let shared = &self.inner.updates.shared;
        loop {
            let mut happened = std::pin::pin!(shared.happened.notified());
            happened.as_mut().enable();
            {
                let events = shared.lock();
                if events.last > since.0 || !events.changed.is_empty() {
                    return;
                }
            }
            happened.await;
        }
    }

    /// Appends a position among the events as clients see it.
    pub fn write_event_seq(&self, seq: Seq, out: &mut Vec<u8>) {
        self.inner.updates.sequence.write(seq, out);
    }

    /// The position that a client's text means: as [`Database::parse_since`](crate::Database::parse_since).
    ///
    /// # Errors
    /// `BadRequest` for anything else.
    pub fn parse_event_seq(&self, text: &str) -> Result<Seq> {
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text) {
            "now" => Ok(self.last_event()),
            text => self.inner.updates.sequence.parse(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(updates: &Updates) -> Vec<(u64, EventKind, String)> {
        let mut events = updates.shared.lock();
        events.place_changed();
        let told = events.by_place.iter();
        told.map(|(place, (kind, name))| (*place, *kind, name.to_string())).collect()
    }

    #[test]
    fn an_event_is_told_once_at_its_last_place() {
        let updates = Updates::new(&[1; 16], false);
        updates.note(EventKind::Created, "a");
        let changed = updates.of("a");
        changed.note();
        changed.note();
        assert_eq!(
            told(&updates),
            [(2, EventKind::Created, "a".to_owned()), (3, EventKind::Updated, "a".to_owned())]
        );
        changed.note();
        updates.note(EventKind::Deleted, "a");
        assert_eq!(
            told(&updates),
            [
                (2, EventKind::Created, "a".to_owned()),
                (4, EventKind::Updated, "a".to_owned()),
                (5, EventKind::Deleted, "a".to_owned())
            ]
        );
    }

    #[test]
    fn no_more_is_remembered_than_may_be_and_what_was_forgotten_shows() {
        let updates = Updates::new(&[1; 16], false);
        for n in 0..EVENTS_MAX + 10 {
            updates.note(EventKind::Created, &format!("db{n}"));
        }
        let events = updates.shared.lock();
        assert_eq!((events.by_place.len(), events.places.len()), (EVENTS_MAX, EVENTS_MAX));
        assert_eq!(events.forgotten, BEFORE + 10);
        assert_eq!(events.by_place.keys().next(), Some(&(BEFORE + 11)));
    }

    #[test]
    fn changes_that_nobody_looks_at_take_bounded_memory() {
        let updates = Updates::new(&[1; 16], false);
        for n in 0..10 * CHANGED_MAX {
            // As a database does that is opened, written and closed again and again.
            updates.of(&format!("db{}", n % 7)).note();
        }
        let events = updates.shared.lock();
        assert!(events.changed.len() <= CHANGED_MAX && events.by_place.len() <= 7);
    }
}
