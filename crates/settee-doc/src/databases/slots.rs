//! Which databases there are, which of them are open, and which of those to close first.
//!
//! A database that is closed costs its name and a number here. One that is being opened, open or
//! being closed has a slot. Open ones stand in a queue by the time at which somebody asked for
//! them; a use only notes the time in the slot, and the queue catches up when it is looked at.
//!
//! Invariants:
//! 1. A slot leaves one of its states for another, or goes, under the lock alone; who changes
//!    `Opening` and `Closing` is the one who brought them about.
//! 2. Whoever waits for a slot's state to change was counted in before it did.
//! 3. The queue holds the open ones, each once, at a time not later than its last use.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::database::Database;
use crate::stats::{Figures, add_counters};
use crate::{Error, ErrorKind, Result};

use super::NameRange;

/// Open databases that are looked at under one hold of the lock, for one that nobody uses.
const EXAMINED_MAX: usize = 256;

/// Names that are gone through under one hold of the lock.
const NAMES_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Slots {
    /// All databases, those whose creation is persisted and whose deletion isn't, with the numbers
    /// of their folders.
    pub(super) known: BTreeMap<Box<str>, u64>,
    /// The folders of those whose creation is accepted and not persisted yet.
    pub(super) creating: BTreeMap<Box<str>, u64>,
    pub(super) next_folder: u64,
    /// Nobody can tell whether these were deleted: they are opened no more.
    pub(super) doubtful: BTreeSet<u64>,
    /// Nothing is opened any more.
    pub(super) closed: bool,
    /// Whether a task closes what is idle: it runs while anything is open.
    pub(super) is_swept: bool,
    /// By the numbers of their folders.
    open: BTreeMap<u64, Slot>,
    queue: BTreeSet<(Duration, u64)>,
    /// What those did that were open.
    ended: Figures,
}

struct Slot {
    state: State,
    used_at: Duration,
    queued_at: Duration,
    changed: Arc<Notify>,
}

enum State {
    Opening,
    Open(Arc<Database>),
    Closing(Arc<Database>),
}

/// What there is for someone who asks for a database.
pub(super) enum Claim {
    Open(Arc<Database>),
    /// It is being opened or closed: ask again after this.
    Wait(OwnedNotified),
    /// The caller is to open the one with this folder.
    Opening(u64),
}

/// What there is for someone who is to close a database for good.
pub(super) enum Taken {
    Closed,
    Wait(OwnedNotified),
    Closing(Arc<Database>),
}

/// What a look for an idle database found.
pub(super) enum Idle {
    Found(u64, Arc<Database>),
    None,
    /// Not all have been looked at.
    More,
}

impl Slots {
    /// Keeps a number from being given to a new folder.
    pub(super) fn reserve(&mut self, folder_number: u64) {
        self.next_folder = self.next_folder.max(folder_number.saturating_add(1));
    }

    /// The database of a name, or what its caller has to do.
    ///
    /// # Errors
    /// `NotFound`; `Stopped` where nothing is opened any more.
    pub(super) fn claim(&mut self, name: &str, now: Duration) -> Result<Claim> {
        let number = *self.known.get(name).ok_or_else(Error::no_database)?;
        match self.open.get_mut(&number) {
            Some(slot) => match &slot.state {
                State::Open(database) => {
                    slot.used_at = now.max(slot.used_at);
                    Ok(Claim::Open(database.clone()))
                }
                State::Opening | State::Closing(_) => Ok(Claim::Wait(slot.changed.clone().notified_owned())),
            },
            None if self.doubtful.contains(&number) => {
                let reason = "whether this database was deleted shows when the server is started again";
                Err(Error::new(ErrorKind::Stopped, reason))
            }
            None if self.closed => Err(Error::new(ErrorKind::Stopped, "the server is stopping")),
            None => {
                let (state, changed) = (State::Opening, Arc::default());
                let slot = Slot { state, used_at: now, queued_at: now, changed };
                self.open.insert(number, slot);
                Ok(Claim::Opening(number))
            }
        }
    }

    /// Whether a database is still the one of its name.
    pub(super) fn is_current(&self, name: &str, number: u64) -> bool {
        self.known.get(name) == Some(&number)
    }

    /// A database that was being opened, or was to be closed and couldn't, is open.
    pub(super) fn set_open(&mut self, number: u64, database: Arc<Database>, now: Duration) {
        let slot = self.open.get_mut(&number).expect("its slot is there until it is closed");
        slot.state = State::Open(database);
        (slot.used_at, slot.queued_at) = (now, now);
        self.queue.insert((now, number));
        slot.changed.notify_waiters();
    }

    /// A database that was being opened is to be closed.
    pub(super) fn set_closing(&mut self, number: u64, database: Arc<Database>) {
        let slot = self.open.get_mut(&number).expect("its slot is there until it is closed");
        slot.state = State::Closing(database);
    }

    /// A database isn't open any more. What it did stays in the sums; itself, which may be large,
    /// is to be dropped without the lock.
    pub(super) fn end(&mut self, number: u64) -> Option<Arc<Database>> {
        let slot = self.open.remove(&number)?;
        slot.changed.notify_waiters();
        let State::Closing(database) = slot.state else { return None };
        add_counters(&mut self.ended, &database.figures());
        Some(database)
    }

    /// Takes a database, used or not, to be closed.
    pub(super) fn take(&mut self, number: u64) -> Taken {
        match self.open.get_mut(&number) {
            None => Taken::Closed,
            Some(slot) => match &slot.state {
                State::Opening | State::Closing(_) => Taken::Wait(slot.changed.clone().notified_owned()),
                State::Open(database) => {
                    let database = database.clone();
                    slot.state = State::Closing(database.clone());
                    self.queue.remove(&(slot.queued_at, number));
                    Taken::Closing(database)
                }
            },
        }
    }

    /// One of those that aren't closed; none where all are.
    pub(super) fn any_open(&self) -> Option<u64> {
        self.open.keys().next().copied()
    }

    /// Takes the least recently used database that nobody uses to be closed, of those that were
    /// last used at `until` or before. One that a failure has stopped stays: it can still be
    /// read, and it shows. `left` is how many may still be looked at.
    pub(super) fn take_idle(&mut self, now: Duration, until: Duration, left: &mut usize) -> Idle {
        for _ in 0..EXAMINED_MAX {
            let Some(&(queued_at, number)) = self.queue.first().filter(|(at, _)| *at <= until && *left > 0)
            else {
                return Idle::None;
            };
            *left -= 1;
            self.queue.pop_first();
            let slot = self.open.get_mut(&number).expect("what is queued is open");
            let State::Open(database) = &mut slot.state else { unreachable!("what is queued is open") };
            if slot.used_at <= queued_at {
                if is_idle(database) {
                    let database = database.clone();
                    slot.state = State::Closing(database.clone());
                    return Idle::Found(number, database);
                }
                slot.used_at = now;
            }
            slot.queued_at = slot.used_at;
            self.queue.insert((slot.queued_at, number));
        }
        Idle::More
    }

    /// How many are open, or being opened or closed.
    pub(super) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// The database with this number, where it is open.
    pub(super) fn open_one(&self, number: u64) -> Option<Arc<Database>> {
        match &self.open.get(&number)?.state {
            State::Open(database) => Some(database.clone()),
            _ => None,
        }
    }

    pub(super) fn open(&self) -> Vec<Arc<Database>> {
        let open = |slot: &Slot| match &slot.state {
            State::Open(database) => Some(database.clone()),
            _ => None,
        };
        self.open.values().filter_map(open).collect()
    }

    /// What those did that are open no more, or are being closed.
    pub(super) fn ended(&self) -> Figures {
        let mut ended = self.ended;
        for slot in self.open.values() {
            if let State::Closing(database) = &slot.state {
                add_counters(&mut ended, &database.figures());
            }
        }
        ended
    }

    /// Visits the next few names of a range, and takes them out of it: false at its end.
    pub(super) fn visit_names(&self, range: &mut NameRange, visit: &mut impl FnMut(&str)) -> bool {
        if is_empty(range) {
            return false;
        }
        let bounds = (range.start.as_ref().map(String::as_str), range.end.as_ref().map(String::as_str));
        let mut names = self.known.range::<str, _>(bounds).map(|(name, _)| &**name);
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

/// Whether nobody has the database, nor a view of it, and it takes writes.
fn is_idle(database: &mut Arc<Database>) -> bool {
    // Who has the only reference keeps others from appearing: they are made from it.
    let unused = Arc::get_mut(database).is_some_and(|database| !database.has_views());
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
