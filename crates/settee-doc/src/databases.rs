//! The server's databases: a catalogue from names to directories, itself a store.
//!
//! Creating or deleting a database is one commit in the catalogue (`catalogue.rs`). A database's directory is
//! created with its first write. A deletion leaves a tombstone with the directory's number in the catalogue,
//! which is removed after the directory. A database is opened on request and closed when it is idle
//! (`opening.rs`): there may be many more than are open. `slots.rs` holds the part of this state that is in
//! memory.
//!
//! Invariants:
//! 1. A database exists if and only if the catalogue's persisted state names it.
//! 2. A directory is removed only if a tombstone records that its database was deleted: directories that the
//!    catalogue merely doesn't name, since it is damaged or old, stay.
//! 3. The number of a directory is not reused while that directory or its tombstone exists.
//! 4. A directory is used by one opening of its database at a time, and removed after the last.

mod backup;
mod catalogue;
mod offline;
mod opening;
mod restore;
mod runs;
mod salvage;
mod slots;
mod tasks;
mod updates;

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use settee_io::{Env, File, OnPanic, directory};
use settee_store::{LogOptions, Store};
use tokio::sync::oneshot;

use crate::database::Database;
use crate::limits::{StoreLimits, StoreResources};
use crate::rules::Rules;
use crate::spool::Spools;
use crate::stats::{DatabaseStats, Stats};
use crate::{Error, ErrorKind, Result};
pub use backup::{BackupProgress, BackupSummary};
use offline::lock;
pub use offline::{OfflineDatabases, OfflineEvent};
pub use restore::{RestoreSummary, restore};
pub use runs::FailedDatabase;
use slots::{Lookup, Slots};
pub use tasks::CompactionTask;
use tasks::Tasks;
pub(crate) use updates::UpdateNotifier;
use updates::Updates;
pub use updates::{DatabaseEvent, EventKind};

/// Longest database name in bytes; CouchDB's limit for names that become file names.
pub const NAME_SIZE_MAX: usize = 238;

/// CouchDB's own databases.
const SYSTEM_DATABASES: [&str; 3] = ["_users", "_replicator", "_global_changes"];

const CATALOGUE_DIRECTORY: &str = "catalogue";
const DATABASES_DIRECTORY: &str = "databases";
const LOCK_FILE: &str = "lock";

/// How databases are opened.
#[derive(Debug, Clone, Copy)]
pub struct DatabasesOptions {
    /// The limits of each database's log. They also apply to the catalogue's log, which never uses direct
    /// mode: each of its few small commits would take a block.
    pub log: LogOptions,
    /// Largest number of open databases, at least 1; default 1000. Opening another one closes the least
    /// recently used idle database; if none is idle, the limit is exceeded.
    pub open_databases_max: usize,
    /// Time in seconds after which an idle database is closed, at least 1; default 60.
    pub database_idle_s: u64,
    /// Whether design documents with `validate_doc_update`, which isn't run, are stored, and documents in
    /// their databases too; default false. Otherwise both are refused with `NotImplemented`.
    pub ignore_validation: bool,
    /// The limits of the databases' indexes and background jobs.
    pub store: StoreLimits,
}

impl Default for DatabasesOptions {
    fn default() -> DatabasesOptions {
        DatabasesOptions {
            log: LogOptions::DEFAULT,
            open_databases_max: 1000,
            database_idle_s: 60,
            ignore_validation: false,
            store: StoreLimits::default(),
        }
    }
}

/// A range of databases' names, in the order of their bytes. The default is all names.
#[derive(Debug, Clone)]
pub struct NameRange {
    /// Lower bound of the names.
    pub start: Bound<String>,
    /// Upper bound of the names.
    pub end: Bound<String>,
    /// Whether the order is descending.
    pub descending: bool,
    /// Number of names skipped first.
    pub skip: usize,
    /// Largest number of names.
    pub limit: usize,
}

impl Default for NameRange {
    fn default() -> NameRange {
        let (start, end) = (Bound::Unbounded, Bound::Unbounded);
        NameRange { start, end, descending: false, skip: 0, limit: usize::MAX }
    }
}

/// The databases in a data directory, usable from many tasks at once.
pub struct Databases {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    directory: PathBuf,
    options: DatabasesOptions,
    resources: StoreResources,
    rules: Arc<Rules>,
    catalogue: Store,
    slots: Mutex<Slots>,
    updates: Updates,
    tasks: Tasks,
    spools: Arc<Spools>,
    /// Held during a backup.
    backup: tokio::sync::Mutex<()>,
    /// The data directory's lock, held until drop.
    _lock: File,
}

impl Databases {
    /// As [`Databases::open_with`], with the default options.
    ///
    /// # Errors
    /// See there.
    pub async fn open(env: Env, directory: &Path) -> Result<Arc<Databases>> {
        Databases::open_with(env, directory, DatabasesOptions::default()).await
    }

    /// Opens the databases in `directory`, which is created if it doesn't exist, and takes its lock. Each
    /// database is opened on its first request.
    ///
    /// # Errors
    /// `BadRequest` if the directory is a run of a backup; `InUse` if another process uses the directory,
    /// which the reason names; `Internal` for damage, or an empty catalogue beside databases; or the system's
    /// error.
    ///
    /// # Panics
    /// If [`LogOptions::check`] refuses the log's limits.
    pub async fn open_with(env: Env, directory: &Path, options: DatabasesOptions) -> Result<Arc<Databases>> {
        runs::refuse_run(&env, directory).await?;
        directory::create(&*env.engine, directory).await?;
        let lock = lock(&env, directory).await?;
        let log = LogOptions { direct: false, ..options.log };
        let resources = StoreResources::new(options.store);
        let of_catalogue = resources.options(log, None);
        let (catalogue, _) = Store::open(&env, &directory.join(CATALOGUE_DIRECTORY), of_catalogue).await?;
        let (slots, deleted) = catalogue::read(&catalogue).await?;
        let updates = Updates::new(&env.random_bytes(), !slots.names.is_empty());
        let slots = Mutex::new(slots);
        let spools = Spools::open(&env, directory).await;
        let inner = Inner {
            env,
            directory: directory.to_path_buf(),
            options,
            resources,
            rules: Arc::new(Rules::new(options.ignore_validation)),
            catalogue,
            slots,
            updates,
            tasks: Tasks::default(),
            spools,
            backup: Default::default(),
            _lock: lock,
        };
        inner.check_catalogue().await?;
        inner.tidy_directories(&deleted).await?;
        Ok(Arc::new(Databases { inner: Arc::new(inner) }))
    }

    /// Creates a database, without opening it; it survives a power loss once this returns. Dropping the
    /// future doesn't cancel the creation.
    ///
    /// # Errors
    /// `IllegalDatabaseName`, `DatabaseExists`, `NoSpace`, `Stopped`.
    pub async fn create_closed(&self, name: &str) -> Result<()> {
        check_database_name(name)?;
        let name = name.to_owned();
        self.detached(async move |inner| inner.create(&name, false).await).await
    }

    /// As [`Databases::create_closed`], for a partitioned database, whose document ids are `partition:id`.
    ///
    /// # Errors
    /// See there; `BadRequest` for the name of a CouchDB system database.
    pub async fn create_partitioned(&self, name: &str) -> Result<()> {
        check_database_name(name)?;
        if is_system_database(name) {
            return Err(Error::bad_request("Cannot partition a system database"));
        }
        let name = name.to_owned();
        self.detached(async move |inner| inner.create(&name, true).await).await
    }

    /// As [`Databases::create_closed`], and then as [`Databases::get`].
    ///
    /// # Errors
    /// See both.
    pub async fn create(&self, name: &str) -> Result<Arc<Database>> {
        self.create_closed(name).await?;
        self.get(name).await
    }

    /// Deletes a database and its contents permanently once this returns; its users get `NotFound` from then
    /// on. Its files are removed in the background. Dropping the future doesn't cancel the deletion.
    ///
    /// # Errors
    /// `NotFound`, `NoSpace`, `Stopped`.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.detached(async move |inner| inner.delete(&name).await).await
    }

    /// A database, opened if necessary. It isn't closed as idle while the caller holds it, or a
    /// [`Snapshot`](crate::Snapshot) of it.
    ///
    /// # Errors
    /// `NotFound`; `Internal` if it can't be opened; `Stopped` after [`Databases::close`].
    pub async fn get(&self, name: &str) -> Result<Arc<Database>> {
        loop {
            let now = self.inner.env.clock.now();
            let lookup = self.inner.lock().look_up(name, now)?;
            match lookup {
                Lookup::Open(database) => return Ok(database),
                Lookup::Wait(changed) => changed.await,
                Lookup::Opening(number) => {
                    // The opening continues if its caller is dropped: callers with a short timeout would
                    // otherwise never succeed.
                    let name = name.to_owned();
                    return self.detached(async move |inner| inner.open_database(&name, number).await).await;
                }
            }
        }
    }

    /// Sets the size of a partition in bytes from which on interactive edits may not enlarge it, for all
    /// later edits of all databases. Initially there is no limit.
    pub fn set_partition_bytes_max(&self, bytes: u64) {
        self.inner.rules.set_partition_bytes_max(bytes);
    }

    /// Starts a compaction of a database in the background, unless one is in progress.
    /// [`Database::is_compacting`] returns false when it has ended.
    pub fn start_compaction(&self, database: Arc<Database>) {
        if !database.begin_compaction() {
            return;
        }
        let task = self.inner.tasks.begin_compaction(database.name(), self.inner.env.clock.unix_us());
        self.inner.env.spawn("compact database", async move {
            let _under_way = task;
            let _end = OnPanic(|| database.end_compaction());
            match database.compact().await {
                Ok(done) => tracing::info!(
                    database = database.name(),
                    segments = done.segment_count,
                    bytes_before = done.bytes_before,
                    bytes_after = done.bytes_after,
                    "compacted"
                ),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(%error, database = database.name(), "compaction ended early");
                }
            }
            database.end_compaction();
        });
    }

    /// The spool files, for parts of requests that memory doesn't hold.
    pub fn spools(&self) -> &Arc<Spools> {
        &self.inner.spools
    }

    /// Whether there is a database of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.inner.lock().names.contains_key(name)
    }

    /// All names, sorted by their bytes.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        self.visit_names(NameRange::default(), |name| names.push(name.to_owned()));
        names
    }

    /// Visits the names in a range, without blocking other tasks: databases created or deleted meanwhile may
    /// be visited or not.
    pub fn visit_names(&self, mut range: NameRange, mut visit: impl FnMut(&str)) {
        loop {
            let goes_on = self.inner.lock().visit_names(&mut range, &mut visit);
            if !goes_on {
                return;
            }
        }
    }

    /// Whether the catalogue and every open database accept writes, and their checkpoints succeed. Opens no
    /// database.
    ///
    /// # Errors
    /// `Stopped` or, for a checkpoint, `Internal`: the first failure found.
    pub fn health(&self) -> Result<()> {
        self.inner.catalogue.health()?;
        check_checkpoints(&self.inner.catalogue)?;
        let open = self.inner.lock().open();
        open.iter().try_for_each(|database| {
            match database.health().and_then(|()| database.check_checkpoints()) {
                // Deleted since.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                health => health,
            }
        })
    }

    /// Statistics of all databases. Takes each open database's mutex briefly.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Persists everything accepted and closes all databases; later writes get `Stopped`.
    ///
    /// # Errors
    /// `Stopped`: the first database that had stopped before; all are closed.
    pub async fn close(&self) -> Result<()> {
        self.inner.lock().closed = true;
        let mut result = Ok(());
        loop {
            let open = self.inner.lock().any_open();
            let Some(number) = open else { break };
            let close = async |database: Arc<Database>| self.inner.close_well(number, &database).await;
            let closed = self.inner.close_for_good(number, close).await;
            result = result.and(closed);
        }
        let closed = self.inner.catalogue.close().await;
        result.and(closed.map_err(Error::from))
    }

    /// Runs what must not stop half-way in a task of its own.
    async fn detached<T: Send + 'static, F>(&self, run: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (done, result) = oneshot::channel();
        let task = run(self.inner.clone());
        self.inner.env.spawn("databases", async move {
            let _ = done.send(task.await);
        });
        result.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopped, "the server is stopping")))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> Stats {
        // All at one moment: what a database did is counted where it is open or where it ended.
        let (database_count, open, ended) = {
            let slots = self.lock();
            (slots.names.len(), slots.open(), slots.ended())
        };
        let catalogue = DatabaseStats { log: self.catalogue.stats(), store: self.catalogue.store_stats() };
        let of_catalogue = (catalogue, self.catalogue.health().is_err());
        let is_stopped = |health: Result<()>| health.is_err_and(|error| error.kind() != ErrorKind::NotFound);
        let of_databases =
            open.iter().map(|database| (database.database_stats(), is_stopped(database.health())));
        let logs = std::iter::once(of_catalogue).chain(of_databases);
        let snapshot_age_s_max = self.options.store.snapshot_age_s_max;
        let (engine, buffers) = (self.env.engine.name(), self.env.buffers.stats());
        let stats = Stats::new(engine, buffers, snapshot_age_s_max, ended, logs);
        let index_memory_bytes_max = self.options.store.index_memory_bytes_max as u64;
        Stats { database_count, open_count: open.len(), index_memory_bytes_max, ..stats }
    }
}

/// Whether the last checkpoint of a store failed, for another reason than missing disk space or file
/// descriptors.
pub(crate) fn check_checkpoints(store: &Store) -> Result<()> {
    let reason = "a checkpoint failed and is retried: see the log";
    store.checkpoint_error().map_or(Ok(()), |_| Err(Error::new(ErrorKind::Internal, reason)))
}

/// The directory of the database with this number.
fn directory_of(data: &Path, number: u64) -> PathBuf {
    data.join(DATABASES_DIRECTORY).join(format!("{number:010}"))
}

/// Whether a name, or its part behind the last slash, is that of a CouchDB system database.
fn is_system_database(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    SYSTEM_DATABASES.contains(&name) || ["_users", "_replicator"].contains(&last)
}

/// Checks a database's name against CouchDB's rule: a lowercase letter, then lowercase letters, digits and
/// `_$()+/-`; or the name of a CouchDB system database.
///
/// # Errors
/// `IllegalDatabaseName`.
pub fn check_database_name(name: &str) -> Result<()> {
    let system = SYSTEM_DATABASES.contains(&name);
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_$()+/-".contains(&byte);
    let ordinary = name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(legal);
    if system || (ordinary && name.len() <= NAME_SIZE_MAX) {
        return Ok(());
    }
    let reason = format!(
        "Name: '{name}'. Only lowercase characters (a-z), digits (0-9), and any of the characters \
         _, $, (, ), +, -, and / are allowed. Must begin with a letter."
    );
    Err(Error::new(ErrorKind::IllegalDatabaseName, reason))
}
