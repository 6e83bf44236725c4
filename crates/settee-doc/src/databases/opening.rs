//! Opening databases when they are asked for, and closing those that nobody uses.
//!
//! Whoever asks for a database that isn't open opens it, in a task of its own; others who ask
//! meanwhile wait for that. Where as many are open as may be, the least recently used one that
//! nobody uses is closed first. A task closes what was not used for a while.
//!
//! Invariants:
//! 1. A database that somebody has, or has a view of, is closed where it is deleted or the server
//!    stops, and nowhere else.
//! 2. A database is opened when the closing before it has ended, which persists all that was
//!    accepted. One that can't be persisted isn't closed.
//! 3. Nobody opens more than may be open unless all that are open are in use; what is too many is
//!    closed at the next look after its users have left. So it is where too many files are open.

use std::sync::Arc;
use std::time::Duration;

use settee_io::OnPanic;
use settee_store::Stage;

use crate::database::{Database, Identity};
use crate::keys;
use crate::{Error, ErrorKind, Result};

use super::Inner;
use super::catalogue::Entry;
use super::slots::{Idle, Taken};

/// How often it is looked, in the time after which an idle database is closed, for those to close.
const SWEEPS_PER_IDLE_TIME: u32 = 16;

/// A slot while its database is being opened or closed. Dropped, it leaves the database closed.
struct Transition<'a> {
    inner: &'a Inner,
    number: u64,
    is_over: bool,
}

impl Transition<'_> {
    /// The database is open.
    fn set_open(mut self, database: Arc<Database>) {
        self.inner.lock().set_open(self.number, database, self.inner.env.clock.now());
        self.is_over = true;
    }
}

impl Drop for Transition<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let ended = self.inner.lock().end(self.number);
            drop(ended);
        }
    }
}

impl Inner {
    fn transition(&self, number: u64) -> Transition<'_> {
        Transition { inner: self, number, is_over: false }
    }

    /// Opens the database whose slot says that it is being opened.
    pub(super) async fn open_claimed(self: &Arc<Inner>, name: &str, number: u64) -> Result<Arc<Database>> {
        let transition = self.transition(number);
        self.make_room().await;
        let folder = self.database_folder(number);
        let entry = self.entry(name, number).await?;
        let Entry { created_us, incarnation, is_partitioned, .. } = entry;
        let identity = Identity { created_us, incarnation, is_partitioned };
        let options = self.resources.options(self.options.log, Some(keys::measure));
        let mut database = Database::open(&self.env, &folder, name, identity, options).await?;
        database.changed = self.updates.of(name);
        database.rules = self.rules.clone();
        if !entry.was_written {
            self.note_when_written(&mut database, number);
        }
        let database = Arc::new(database);
        if entry.was_written && database.is_empty() {
            database.close_deleted().await;
            let reason = format!(
                "the files of this database are gone from {}: put them back, or delete it",
                folder.display()
            );
            return Err(Error::new(ErrorKind::Internal, reason));
        }
        let is_current = {
            let mut slots = self.lock();
            let is_current = slots.is_current(name, number);
            if is_current && !slots.closed {
                drop(slots);
                transition.set_open(database.clone());
                self.begin_sweeping();
                return Ok(database);
            }
            slots.set_closing(number, database.clone());
            is_current
        };
        // Whoever deleted it, or closes them all, waits for this.
        if !is_current {
            database.close_deleted().await;
            return Err(Error::no_database());
        }
        database.close().await?;
        Ok(database)
    }

    /// Closes a database that nobody uses where too many are open, the caller's counted, or their files
    /// are too many.
    async fn make_room(&self) {
        let open_count = self.lock().open_count();
        if self.is_too_much(open_count) {
            self.close_idle(Duration::MAX, open_count).await;
        }
    }

    /// Whether more databases are open than may be, or more files than leave some for others.
    fn is_too_much(&self, open_count: usize) -> bool {
        let is_scarce = || self.env.engine.descriptors().is_some_and(|descriptors| descriptors.is_scarce());
        open_count > self.options.open_databases_max.max(1) || is_scarce()
    }

    /// Closes the least recently used database that nobody uses, of those that were last used at
    /// `until` or before. Returns false where there is none.
    async fn close_idle(&self, until: Duration, open_count: usize) -> bool {
        // Each is seen at most twice: at the place that it had, and at the one that it has.
        let mut left = 2 * open_count;
        loop {
            let now = self.env.clock.now();
            let idle = self.lock().take_idle(now, until, &mut left);
            match idle {
                Idle::None => return false,
                Idle::More => settee_io::yield_now().await,
                Idle::Found(number, database) => {
                    if self.close_taken(number, database).await {
                        return true;
                    }
                }
            }
        }
    }

    /// Closes a database that nobody uses and that was taken for it. One that fails to persist
    /// what it accepted stays open, as one that has stopped: returns false.
    async fn close_taken(&self, number: u64, database: Arc<Database>) -> bool {
        let transition = self.transition(number);
        match database.try_barrier().await {
            Ok(true) => {}
            flushed => {
                let reason = flushed.err().map_or("no room on the disk".into(), |error| error.to_string());
                tracing::error!(reason, database = database.name(), "an idle database could not be closed");
                transition.set_open(database);
                return false;
            }
        }
        if let Err(error) = self.close_well(number, &database).await {
            tracing::error!(%error, database = database.name(), "an idle database did not close well");
        }
        true
    }

    /// Persists what a database accepted and closes it.
    pub(super) async fn close_well(&self, number: u64, database: &Database) -> Result<()> {
        database.close().await?;
        if !database.is_empty()
            && let Err(error) = self.note_written(database.name(), number).await
        {
            tracing::debug!(%error, database = database.name(), "not noted as written");
        }
        Ok(())
    }

    /// Has the catalogue note, in the background, that a database holds something: at once, or when it
    /// first does. Its files are missed from then on, should they go.
    fn note_when_written(self: &Arc<Inner>, database: &mut Database, number: u64) {
        let (inner, name) = (Arc::downgrade(self), database.name().to_owned());
        let note = move |stage: Stage| {
            let Some(inner) = inner.upgrade() else { return };
            let (env, name) = (inner.env.clone(), name.clone());
            env.spawn(
                "note a first write",
                async move { inner.note_first_write(&name, number, stage).await },
            );
        };
        match database.is_empty() {
            true => database.on_first_write(Box::new(note)),
            false => note(Stage::Persisted),
        }
    }

    async fn note_first_write(&self, name: &str, number: u64, stage: Stage) {
        if stage != Stage::Persisted {
            // Not before a power loss could leave the database empty, and the note in place. Where it was
            // closed meanwhile, that has noted it.
            let Some(database) = self.lock().open_one(number) else { return };
            if database.barrier().await.is_err() {
                return;
            }
        }
        if let Err(error) = self.note_written(name, number).await {
            tracing::debug!(%error, database = name, "not noted as written");
        }
    }

    /// Closes a database, whoever uses it; in the way of `close`.
    pub(super) async fn close_for_good<F>(
        &self,
        number: u64,
        close: impl FnOnce(Arc<Database>) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        loop {
            let taken = self.lock().take(number);
            match taken {
                Taken::Closed => return Ok(()),
                Taken::Wait(changed) => changed.await,
                Taken::Closing(database) => {
                    let _transition = self.transition(number);
                    return close(database).await;
                }
            }
        }
    }

    /// Sees to it that a task closes what is idle, while anything is open.
    fn begin_sweeping(self: &Arc<Inner>) {
        if std::mem::replace(&mut self.lock().is_swept, true) {
            return;
        }
        let pause = self.idle_time() / SWEEPS_PER_IDLE_TIME;
        let (clock, inner) = (self.env.clock.clone(), Arc::downgrade(self));
        // It doesn't keep the databases: whoever drops them ends it.
        self.env.spawn("close idle databases", async move {
            let _again =
                OnPanic(|| inner.upgrade().into_iter().for_each(|inner| inner.lock().is_swept = false));
            loop {
                clock.sleep(pause).await;
                match inner.upgrade() {
                    Some(inner) if inner.sweep().await => {}
                    _ => return,
                }
            }
        });
    }

    fn idle_time(&self) -> Duration {
        Duration::from_secs(self.options.database_idle_s.max(1))
    }

    /// Closes what nobody has used for a while, and what is open beyond the limit since all were
    /// in use. Returns whether to look again: not where nothing is open any more.
    async fn sweep(&self) -> bool {
        let idle_time = self.idle_time();
        loop {
            let now = self.env.clock.now();
            let open_count = self.lock().open_count();
            let until = match self.is_too_much(open_count) {
                true => Duration::MAX,
                false => now.saturating_sub(idle_time),
            };
            if !self.close_idle(until, open_count).await {
                break;
            }
        }
        let mut slots = self.lock();
        slots.is_swept = !slots.closed && slots.open_count() > 0;
        slots.is_swept
    }
}
