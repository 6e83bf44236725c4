//! Opening databases on request, and closing idle ones.
//!
//! The first request for a closed database opens it, in a task of its own; concurrent requests wait for that.
//! At the limit of open databases, the least recently used idle one is closed first. A background task closes
//! databases that were idle for a while. A slot in `Opening` or `Closing` is held by a guard, `Transition`;
//! on drop, also at a panic, the slot is removed unless the database was marked as open.
//!
//! Invariants:
//! 1. A database in use, itself or through a snapshot, is closed only if it is deleted or the server stops.
//! 2. A database is opened only after the previous closing has ended, which persists everything accepted. A
//!    database that can't be persisted isn't closed.
//! 3. The limit of open databases is exceeded only while all open ones are in use; the excess is closed at
//!    the next sweep after they became idle. The same applies while too many files are open.

use std::sync::Arc;
use std::time::Duration;

use settee_io::OnPanic;
use settee_store::Stage;

use super::catalogue_entry::CatalogueEntry;
use super::slots::{ClosingOutcome, Idle};
use super::state::DatabasesInner;
use crate::database::{Database, Identity};
use crate::documents::keys;
use crate::{Error, ErrorKind, Result};

/// Number of sweeps for idle databases per idle time.
const SWEEPS_PER_IDLE_TIME: u32 = 16;

/// Holds the slot of a database that is opening or closing. Dropping it removes the slot, unless `set_open`
/// was called.
struct Transition<'a> {
    inner: &'a DatabasesInner,
    number: u64,
    is_over: bool,
}

impl Transition<'_> {
    /// Marks the database as open.
    fn set_open(mut self, database: Arc<Database>) {
        self.inner.lock().set_open(self.number, database, self.inner.env.clock.now());
        self.is_over = true;
    }
}

impl Drop for Transition<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let database = self.inner.lock().remove_closed(self.number);
            drop(database);
        }
    }
}

impl DatabasesInner {
    fn transition(&self, number: u64) -> Transition<'_> {
        Transition { inner: self, number, is_over: false }
    }

    /// Opens the database whose slot is in `Opening`. If all databases are being closed meanwhile, this one
    /// is closed again and returned closed: writes to it fail with `Stopped`.
    ///
    /// # Errors
    /// `NotFound` if it was deleted meanwhile; `Internal` if it can't be opened, or its files are missing;
    /// `NoDescriptor`; `NoSpace`.
    pub(super) async fn open_database(
        self: &Arc<DatabasesInner>,
        name: &str,
        number: u64,
    ) -> Result<Arc<Database>> {
        let transition = self.transition(number);
        self.close_one_if_over_limit().await;
        let directory = self.database_directory(number);
        let entry = self.entry(name, number).await?;
        let CatalogueEntry { created_us, incarnation, is_partitioned, .. } = entry;
        let identity = Identity { created_us, incarnation, is_partitioned };
        let options = self.resources.options(self.options.log, Some(keys::aggregate));
        let mut database = Database::open(&self.env, &directory, name, identity, options).await?;
        database.update_notifier = self.updates.notifier(name);
        database.rules = self.rules.clone();
        if !entry.was_written {
            self.watch_first_write(&mut database, number);
        }
        let database = Arc::new(database);
        if entry.was_written && database.is_empty() {
            database.close_deleted().await;
            let reason = format!(
                "the files of this database are gone from {}: put them back, or delete it",
                directory.display()
            );
            return Err(Error::new(ErrorKind::Internal, reason));
        }
        let is_current = {
            let mut slots = self.lock();
            let is_current = slots.is_current(name, number);
            if is_current && !slots.closed {
                drop(slots);
                transition.set_open(database.clone());
                self.begin_closing_idle();
                return Ok(database);
            }
            slots.set_closing(number, database.clone());
            is_current
        };
        // The deletion, or the closing of all databases, waits for this.
        if !is_current {
            database.close_deleted().await;
            return Err(Error::no_database());
        }
        database.close().await?;
        Ok(database)
    }

    /// Closes one idle database if too many are open, including the caller's, or too many files.
    async fn close_one_if_over_limit(&self) {
        let open_count = self.lock().open_count();
        if self.is_over_limit(open_count) {
            self.close_idle(Duration::MAX, open_count).await;
        }
    }

    /// Whether more databases or files are open than the limits allow.
    fn is_over_limit(&self, open_count: usize) -> bool {
        let is_scarce = || self.env.engine.descriptors().is_some_and(|descriptors| descriptors.is_scarce());
        open_count > self.options.open_databases_max.max(1) || is_scarce()
    }

    /// Closes the least recently used idle database, if it was last used at `until` or before. Returns false
    /// if there is none.
    async fn close_idle(&self, until: Duration, open_count: usize) -> bool {
        // Each is examined at most twice: at its old position in the queue, and at its new one.
        let mut remaining = 2 * open_count;
        loop {
            let now = self.env.clock.now();
            let idle = self.lock().take_idle(now, until, &mut remaining);
            match idle {
                Idle::None => return false,
                Idle::More => settee_io::yield_now().await,
                Idle::Found(number, database) => {
                    if self.close_idle_database(number, database).await {
                        return true;
                    }
                }
            }
        }
    }

    /// Closes an idle database that was taken for closing. If it fails to persist its accepted data, it stays
    /// open, as a stopped one, and this returns false.
    async fn close_idle_database(&self, number: u64, database: Arc<Database>) -> bool {
        let transition = self.transition(number);
        match database.try_barrier().await {
            Ok(true) => {}
            flushed => {
                let reason = flushed.err().map_or("no space on the disk".into(), |error| error.to_string());
                tracing::error!(reason, database = database.name(), "an idle database could not be closed");
                transition.set_open(database);
                return false;
            }
        }
        if let Err(error) = self.close_and_record(number, &database).await {
            tracing::error!(%error, database = database.name(), "closing an idle database failed");
        }
        true
    }

    /// Persists a database's accepted data and closes it. If it has data, records that in the catalogue.
    pub(super) async fn close_and_record(&self, number: u64, database: &Database) -> Result<()> {
        database.close().await?;
        if !database.is_empty()
            && let Err(error) = self.record_written(database.name(), number).await
        {
            tracing::debug!(%error, database = database.name(), "not recorded as written");
        }
        Ok(())
    }

    /// Records in the catalogue, in the background, that a database has data: now, or after its first write.
    /// From then on, missing files are detected.
    fn watch_first_write(self: &Arc<DatabasesInner>, database: &mut Database, number: u64) {
        let (inner, name) = (Arc::downgrade(self), database.name().to_owned());
        let record = move |stage: Stage| {
            let Some(inner) = inner.upgrade() else { return };
            let (env, name) = (inner.env.clone(), name.clone());
            env.spawn(
                "record first write",
                async move { inner.record_first_write(&name, number, stage).await },
            );
        };
        match database.is_empty() {
            true => database.on_first_write(Box::new(record)),
            false => record(Stage::Persisted),
        }
    }

    async fn record_first_write(&self, name: &str, number: u64, stage: Stage) {
        if stage != Stage::Persisted {
            // Not before the write is persisted: otherwise a power loss could leave the database empty and
            // the record in place. A database that was closed meanwhile has been recorded by its closing.
            let Some(database) = self.lock().find_open(number) else { return };
            if database.barrier().await.is_err() {
                return;
            }
        }
        if let Err(error) = self.record_written(name, number).await {
            tracing::debug!(%error, database = name, "not recorded as written");
        }
    }

    /// Closes a database by `close`, whether it is in use or not.
    pub(super) async fn close_regardless_of_use<F>(
        &self,
        number: u64,
        close: impl FnOnce(Arc<Database>) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        loop {
            let outcome = self.lock().begin_closing(number);
            match outcome {
                ClosingOutcome::Closed => return Ok(()),
                ClosingOutcome::Wait(changed) => changed.await,
                ClosingOutcome::Closing(database) => {
                    let _transition = self.transition(number);
                    return close(database).await;
                }
            }
        }
    }

    /// Starts the task that closes idle databases, unless it is running.
    fn begin_closing_idle(self: &Arc<DatabasesInner>) {
        if std::mem::replace(&mut self.lock().is_closing_idle, true) {
            return;
        }
        let pause = self.idle_time() / SWEEPS_PER_IDLE_TIME;
        let (clock, inner) = (self.env.clock.clone(), Arc::downgrade(self));
        // A weak reference: dropping the databases ends the task.
        self.env.spawn("close idle databases", async move {
            let _reset_on_panic = OnPanic(|| {
                inner.upgrade().into_iter().for_each(|inner| inner.lock().is_closing_idle = false)
            });
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

    /// Closes databases that were idle for a while, and those that exceeded the limit while all were in use.
    /// Returns whether any are still open.
    async fn sweep(&self) -> bool {
        let idle_time = self.idle_time();
        loop {
            let now = self.env.clock.now();
            let open_count = self.lock().open_count();
            let until = match self.is_over_limit(open_count) {
                true => Duration::MAX,
                false => now.saturating_sub(idle_time),
            };
            if !self.close_idle(until, open_count).await {
                break;
            }
        }
        let mut slots = self.lock();
        slots.is_closing_idle = !slots.closed && slots.open_count() > 0;
        slots.is_closing_idle
    }
}
