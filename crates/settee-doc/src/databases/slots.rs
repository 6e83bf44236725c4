//! The databases' state in memory: names, open databases, and the order in which to close them.
//!
//! A closed database costs its name and a number here. One that is opening, open or closing has a slot. Open
//! databases are queued by the time of their last use; a use only updates the time in the slot, and the queue
//! is corrected when it is examined.
//!
//! Invariants:
//! 1. A slot changes its state, or is removed, only under the lock; a slot in `Opening` or `Closing` is
//!    changed only by the task that put it there.
//! 2. A task that waits for a slot's state to change was registered before the change.
//! 3. The queue holds each open database once, at a time not later than its last use.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::names::NameRange;
use crate::database::Database;
use crate::stats::{DatabaseStats, add_counters};
use crate::{Error, ErrorKind, Result};

/// Number of open databases examined under one lock hold, in the search for an idle one.
const EXAMINED_MAX: usize = 256;

/// Number of names visited under one lock hold.
const NAMES_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Slots {
    /// All databases whose creation is persisted and whose deletion isn't, with the numbers of their
    /// directories.
    pub(super) names: BTreeMap<Box<str>, u64>,
    /// The directories of databases whose creation is accepted and not persisted yet.
    pub(super) creating: BTreeMap<Box<str>, u64>,
    pub(super) next_directory: u64,
    /// Directory numbers of databases whose deletion failed with an unknown outcome: they can't be opened.
    pub(super) deletion_unknown: BTreeSet<u64>,
    /// Whether all databases are closed or closing: nothing is opened any more.
    pub(super) closed: bool,
    /// Whether the task that closes idle databases is running: it runs while any database is open.
    pub(super) is_closing_idle: bool,
    /// Slots by directory number.
    slots: BTreeMap<u64, Slot>,
    queue: BTreeSet<(Duration, u64)>,
    /// Sums of the counters of databases that were closed.
    closed_stats: DatabaseStats,
}

struct Slot {
    state: SlotState,
    used_at: Duration,
    queued_at: Duration,
    changed: Arc<Notify>,
}

enum SlotState {
    Opening,
    Open(Arc<Database>),
    Closing(Arc<Database>),
}

/// The result of a request for a database.
pub(super) enum Lookup {
    Open(Arc<Database>),
    /// It is opening or closing: wait for this and ask again.
    Wait(OwnedNotified),
    /// The caller must open the database with this directory number.
    Opening(u64),
}

/// The result of a request to close a database.
pub(super) enum ClosingOutcome {
    Closed,
    Wait(OwnedNotified),
    Closing(Arc<Database>),
}

/// The result of a search for an idle database.
pub(super) enum Idle {
    Found(u64, Arc<Database>),
    None,
    /// Some have not been examined.
    More,
}

impl Slots {
    /// Prevents a number from being assigned to a new directory.
    pub(super) fn reserve(&mut self, directory_number: u64) {
        self.next_directory = self.next_directory.max(directory_number.saturating_add(1));
    }

    /// The database of a name, or the caller's next step.
    ///
    /// # Errors
    /// `NotFound`; `Stopped` if nothing is opened any more.
    pub(super) fn look_up(&mut self, name: &str, now: Duration) -> Result<Lookup> {
        let number = *self.names.get(name).ok_or_else(Error::no_database)?;
        match self.slots.get_mut(&number) {
            Some(slot) => match &slot.state {
                SlotState::Open(database) => {
                    slot.used_at = now.max(slot.used_at);
                    Ok(Lookup::Open(database.clone()))
                }
                SlotState::Opening | SlotState::Closing(_) => {
                    Ok(Lookup::Wait(slot.changed.clone().notified_owned()))
                }
            },
            None if self.deletion_unknown.contains(&number) => {
                let reason = "whether this database was deleted is unknown until the server is restarted";
                Err(Error::new(ErrorKind::Stopped, reason))
            }
            None if self.closed => Err(Error::new(ErrorKind::Stopped, "the server is stopping")),
            None => {
                let (state, changed) = (SlotState::Opening, Arc::default());
                let slot = Slot { state, used_at: now, queued_at: now, changed };
                self.slots.insert(number, slot);
                Ok(Lookup::Opening(number))
            }
        }
    }

    /// Whether this is still the directory number of the name.
    pub(super) fn is_current(&self, name: &str, number: u64) -> bool {
        self.names.get(name) == Some(&number)
    }

    /// Marks a database as open after `Opening`, or after a `Closing` that failed.
    pub(super) fn set_open(&mut self, number: u64, database: Arc<Database>, now: Duration) {
        let slot = self.slots.get_mut(&number).expect("its slot is there until it is closed");
        assert!(!matches!(slot.state, SlotState::Open(_)), "a database is opened once");
        slot.state = SlotState::Open(database);
        (slot.used_at, slot.queued_at) = (now, now);
        self.queue.insert((now, number));
        slot.changed.notify_waiters();
    }

    /// Marks a database that was opening as closing.
    pub(super) fn set_closing(&mut self, number: u64, database: Arc<Database>) {
        let slot = self.slots.get_mut(&number).expect("its slot is there until it is closed");
        assert!(
            matches!(slot.state, SlotState::Opening),
            "an open database is taken for closing from the queue"
        );
        slot.state = SlotState::Closing(database);
    }

    /// Removes the slot of a closed database, and adds its counters to the sums. The caller drops the
    /// database, which may be large, outside the lock.
    pub(super) fn remove_closed(&mut self, number: u64) -> Option<Arc<Database>> {
        let slot = self.slots.remove(&number)?;
        slot.changed.notify_waiters();
        let SlotState::Closing(database) = slot.state else { return None };
        add_counters(&mut self.closed_stats, &database.database_stats());
        Some(database)
    }

    /// Takes a database for closing, whether it is in use or not.
    pub(super) fn begin_closing(&mut self, number: u64) -> ClosingOutcome {
        match self.slots.get_mut(&number) {
            None => ClosingOutcome::Closed,
            Some(slot) => match &slot.state {
                SlotState::Opening | SlotState::Closing(_) => {
                    ClosingOutcome::Wait(slot.changed.clone().notified_owned())
                }
                SlotState::Open(database) => {
                    let database = database.clone();
                    slot.state = SlotState::Closing(database.clone());
                    let was_queued = self.queue.remove(&(slot.queued_at, number));
                    assert!(was_queued, "an open database is in the queue");
                    ClosingOutcome::Closing(database)
                }
            },
        }
    }

    /// The directory number of any database that has a slot.
    pub(super) fn any_slot(&self) -> Option<u64> {
        self.slots.keys().next().copied()
    }

    /// Takes the least recently used idle database for closing, if it was last used at `until` or before. A
    /// stopped database stays: it can still be read, and its state is reported. `remaining` is the number of
    /// databases that may still be examined.
    pub(super) fn take_idle(&mut self, now: Duration, until: Duration, remaining: &mut usize) -> Idle {
        for _ in 0..EXAMINED_MAX {
            let Some(&(queued_at, number)) =
                self.queue.first().filter(|(at, _)| *at <= until && *remaining > 0)
            else {
                return Idle::None;
            };
            *remaining -= 1;
            self.queue.pop_first();
            let slot = self.slots.get_mut(&number).expect("what is queued is open");
            let SlotState::Open(database) = &mut slot.state else { unreachable!("what is queued is open") };
            if slot.used_at <= queued_at {
                if is_idle(database) {
                    let database = database.clone();
                    slot.state = SlotState::Closing(database.clone());
                    return Idle::Found(number, database);
                }
                slot.used_at = now;
            }
            slot.queued_at = slot.used_at;
            self.queue.insert((slot.queued_at, number));
        }
        Idle::More
    }

    /// Number of databases that are open, opening or closing.
    pub(super) fn open_count(&self) -> usize {
        self.slots.len()
    }

    /// The database with this number, if it is open.
    pub(super) fn find_open(&self, number: u64) -> Option<Arc<Database>> {
        match &self.slots.get(&number)?.state {
            SlotState::Open(database) => Some(database.clone()),
            _ => None,
        }
    }

    /// All open databases.
    pub(super) fn open_databases(&self) -> Vec<Arc<Database>> {
        let open = |slot: &Slot| match &slot.state {
            SlotState::Open(database) => Some(database.clone()),
            _ => None,
        };
        self.slots.values().filter_map(open).collect()
    }

    /// Counters of the databases that were closed or are closing.
    pub(super) fn closed_stats(&self) -> DatabaseStats {
        let mut stats = self.closed_stats;
        for slot in self.slots.values() {
            if let SlotState::Closing(database) = &slot.state {
                add_counters(&mut stats, &database.database_stats());
            }
        }
        stats
    }

    /// Visits the next few names of a range, and removes them from it; false at the end.
    pub(super) fn visit_names(&self, range: &mut NameRange, visit: &mut impl FnMut(&str)) -> bool {
        if is_empty(range) {
            return false;
        }
        let bounds = (range.start.as_ref().map(String::as_str), range.end.as_ref().map(String::as_str));
        let mut names = self.names.range::<str, _>(bounds).map(|(name, _)| &**name);
        let mut next = || if range.descending { names.next_back() } else { names.next() };
        let mut last = None;
        for _ in 0..NAMES_MAX {
            let Some(name) = next() else { return false };
            if range.skip > 0 {
                range.skip -= 1;
            } else if range.limit > 0 {
                range.limit -= 1;
                visit(name);
            }
            last = Some(name);
        }
        let rest = last.map_or(Bound::Unbounded, |name| Bound::Excluded(name.to_owned()));
        if range.descending {
            range.end = rest
        } else {
            range.start = rest
        }
        range.limit > 0
    }
}

/// Whether nothing else holds the database or a snapshot of it, and it accepts writes.
fn is_idle(database: &mut Arc<Database>) -> bool {
    // The only reference: new ones can be made only from it.
    let unused = Arc::get_mut(database).is_some_and(|database| !database.has_snapshots());
    unused && database.health().is_ok()
}

fn is_empty(range: &NameRange) -> bool {
    let (start, start_included) = match &range.start {
        Bound::Unbounded => return range.limit == 0,
        Bound::Included(start) => (start, true),
        Bound::Excluded(start) => (start, false),
    };
    let (end, end_included) = match &range.end {
        Bound::Unbounded => return range.limit == 0,
        Bound::Included(end) => (end, true),
        Bound::Excluded(end) => (end, false),
    };
    range.limit == 0 || start > end || (start == end && !(start_included && end_included))
}
