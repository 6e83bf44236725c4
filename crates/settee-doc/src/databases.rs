//! The server's databases: a catalogue from names to folders, itself a store.
//!
//! Creating or deleting a database is one commit in the catalogue (`catalogue.rs`). A database's
//! folder appears with its first write. A deletion leaves a mark with the folder's number, which
//! goes when the folder has gone. A database is opened when it is asked for and closed when nobody
//! uses it (`opening.rs`): there may be many more than are open. What is known of them without the
//! disk is in `slots.rs`.
//!
//! Invariants:
//! 1. A database exists if and only if the catalogue's persisted state names it.
//! 2. A folder is removed only where a mark says that its database was deleted: what the
//!    catalogue merely doesn't name, since it is damaged or old, stays.
//! 3. The number of a folder is not used again while that folder, or its mark, is there.
//! 4. A folder is used by one opening of its database at a time, and removed after the last.

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

use settee_io::{Env, File, OnPanic, folder};
use settee_store::{LogOptions, Store};
use tokio::sync::oneshot;

use crate::database::Database;
use crate::limits::{StoreLimits, StoreResources};
use crate::rules::Rules;
use crate::spool::Spools;
use crate::stats::{Figures, Stats};
use crate::{Error, ErrorKind, Result};
pub use backup::{BackupProgress, BackupSummary};
use offline::lock;
pub use offline::{OfflineDatabases, OfflineEvent};
pub use restore::{RestoreSummary, restore};
pub use runs::FailedDatabase;
use slots::{Claim, Slots};
pub use tasks::CompactionTask;
use tasks::Tasks;
pub(crate) use updates::Changed;
use updates::Updates;
pub use updates::{DatabaseEvent, EventKind};

/// Longest database name in bytes, as CouchDB has it for what becomes a file's name.
pub const NAME_SIZE_MAX: usize = 238;

/// CouchDB's own databases.
const SYSTEM_DATABASES: [&str; 3] = ["_users", "_replicator", "_global_changes"];

const CATALOGUE_FOLDER: &str = "catalogue";
const DATABASES_FOLDER: &str = "databases";
const LOCK_FILE: &str = "lock";

/// How databases are opened.
#[derive(Debug, Clone, Copy)]
pub struct DatabasesOptions {
    /// The limits of each database's log. The catalogue's has them too, but is never in direct
    /// mode: its few small commits would each take a block.
    pub log: LogOptions,
    /// Databases that are open at once, at least 1. Whoever opens one more closes the least
    /// recently used of those that nobody uses. Where all are in use there are more.
    pub open_databases_max: usize,
    /// A database that nobody has used for so many seconds, at least 1, is closed.
    pub database_idle_s: u64,
    /// Whether design documents with `validate_doc_update`, which isn't run, are stored all the same, and
    /// documents written beside them. Otherwise both are refused as `NotImplemented`.
    pub ignore_validation: bool,
    /// The limits of their indexes, and of what goes on in the background.
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

/// A range of databases' names, in the order of their bytes. The default is all of them.
#[derive(Debug, Clone)]
pub struct NameRange {
    /// The least of the names.
    pub start: Bound<String>,
    /// The greatest of them.
    pub end: Bound<String>,
    /// Whether the greatest comes first.
    pub descending: bool,
    /// How many are passed over first.
    pub skip: usize,
    /// How many there are at most.
    pub limit: usize,
}

impl Default for NameRange {
    fn default() -> NameRange {
        let (start, end) = (Bound::Unbounded, Bound::Unbounded);
        NameRange { start, end, descending: false, skip: 0, limit: usize::MAX }
    }
}

/// The databases in a folder. Used from many tasks at once.
pub struct Databases {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    folder: PathBuf,
    options: DatabasesOptions,
    resources: StoreResources,
    rules: Arc<Rules>,
    catalogue: Store,
    slots: Mutex<Slots>,
    updates: Updates,
    tasks: Tasks,
    spools: Arc<Spools>,
    /// Held by who makes a backup.
    backup: tokio::sync::Mutex<()>,
    /// Held as long as the folder is ours.
    _lock: File,
}

impl Databases {
    /// As [`Databases::open_with`], with the default options.
    ///
    /// # Errors
    /// See there.
    pub async fn open(env: Env, folder: &Path) -> Result<Arc<Databases>> {
        Databases::open_with(env, folder, DatabasesOptions::default()).await
    }

    /// Opens the databases in `folder`, which is created where it doesn't exist, and takes its
    /// lock. Each database is opened when it is first asked for.
    ///
    /// # Errors
    /// `BadRequest` where the folder is a backup's run; `InUse`: another process has the folder, which is
    /// named; `Internal`: damage, or an empty catalogue beside databases; or what the system says.
    ///
    /// # Panics
    /// Where [`LogOptions::check`] refuses the log's limits.
    pub async fn open_with(env: Env, folder: &Path, options: DatabasesOptions) -> Result<Arc<Databases>> {
        runs::refuse_run(&env, folder).await?;
        folder::create(&*env.engine, folder).await?;
        let lock = lock(&env, folder).await?;
        let log = LogOptions { direct: false, ..options.log };
        let resources = StoreResources::new(options.store);
        let of_catalogue = resources.options(log, None);
        let (catalogue, _) = Store::open(&env, &folder.join(CATALOGUE_FOLDER), of_catalogue).await?;
        let (slots, deleted) = catalogue::read(&catalogue).await?;
        let updates = Updates::new(&env.random_bytes(), !slots.known.is_empty());
        let slots = Mutex::new(slots);
        let spools = Spools::open(&env, folder).await;
        let inner = Inner {
            env,
            folder: folder.to_path_buf(),
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
        inner.tidy_folders(&deleted).await?;
        Ok(Arc::new(Databases { inner: Arc::new(inner) }))
    }

    /// Creates a database; it survives a power loss once this returns. It isn't opened. Dropping
    /// the future doesn't stop it.
    ///
    /// # Errors
    /// `IllegalDatabaseName`, `DatabaseExists`, `NoSpace`, `Stopped`.
    pub async fn create_closed(&self, name: &str) -> Result<()> {
        check_database_name(name)?;
        let name = name.to_owned();
        self.detached(async move |inner| inner.create(&name, false).await).await
    }

    /// As [`Databases::create_closed`], with documents whose ids are `partition:id`.
    ///
    /// # Errors
    /// See there; `BadRequest` for one of CouchDB's own databases.
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

    /// Deletes a database with all that it holds, for good once this returns; its users get
    /// `NotFound` from then on. Its files go in the background. Dropping the future doesn't
    /// stop it.
    ///
    /// # Errors
    /// `NotFound`, `NoSpace`, `Stopped`.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.detached(async move |inner| inner.delete(&name).await).await
    }

    /// A database, opened if it wasn't. It isn't closed for being idle while somebody has it, or
    /// a [`View`](crate::View) of it.
    ///
    /// # Errors
    /// `NotFound`; `Internal` where it can't be opened; `Stopped` after [`Databases::close`].
    pub async fn get(&self, name: &str) -> Result<Arc<Database>> {
        loop {
            let now = self.inner.env.clock.now();
            let claim = self.inner.lock().claim(name, now)?;
            match claim {
                Claim::Open(database) => return Ok(database),
                Claim::Wait(changed) => changed.await,
                Claim::Opening(number) => {
                    // It goes on though its caller leaves: or one that always leaves early would
                    // never see it open.
                    let name = name.to_owned();
                    return self.detached(async move |inner| inner.open_claimed(&name, number).await).await;
                }
            }
        }
    }

    /// Sets the bytes of a partition from which on an interactive edit may not make it larger, for all
    /// databases from the next edit on. At first there is no such limit.
    pub fn set_partition_bytes_max(&self, bytes: u64) {
        self.inner.rules.set_partition_bytes_max(bytes);
    }

    /// Begins to give back the space of what was replaced in a database, in the background; nothing
    /// happens where that is under way. [`Database::is_compacting`] tells when it has ended.
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

    /// The files for what requests send and memory doesn't hold.
    pub fn spools(&self) -> &Arc<Spools> {
        &self.inner.spools
    }

    /// Whether there is a database of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.inner.lock().known.contains_key(name)
    }

    /// All names, sorted by their bytes.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        self.visit_names(NameRange::default(), |name| names.push(name.to_owned()));
        names
    }

    /// Visits the names in a range. Nobody waits for it: what comes or goes meanwhile may be
    /// visited or not.
    pub fn visit_names(&self, mut range: NameRange, mut visit: impl FnMut(&str)) {
        loop {
            let goes_on = self.inner.lock().visit_names(&mut range, &mut visit);
            if !goes_on {
                return;
            }
        }
    }

    /// Whether the catalogue and every open database take writes, and their checkpoints don't fail. Opens
    /// none.
    ///
    /// # Errors
    /// `Stopped` or, of a checkpoint, `Internal`: the first reason found.
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

    /// What all of them have done since they were opened here, and where they stand. Takes each
    /// open database's mutex for a moment.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Persists everything accepted and closes all databases; later writes get `Stopped`.
    ///
    /// # Errors
    /// `Stopped`: the first of the databases that had stopped before; all are closed.
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
            (slots.known.len(), slots.open(), slots.ended())
        };
        let catalogue = Figures { log: self.catalogue.stats(), store: self.catalogue.store_stats() };
        let of_catalogue = (catalogue, self.catalogue.health().is_err());
        let is_stopped = |health: Result<()>| health.is_err_and(|error| error.kind() != ErrorKind::NotFound);
        let of_databases = open.iter().map(|database| (database.figures(), is_stopped(database.health())));
        let logs = std::iter::once(of_catalogue).chain(of_databases);
        let snapshot_age_s_max = self.options.store.snapshot_age_s_max;
        let (engine, buffers) = (self.env.engine.name(), self.env.buffers.stats());
        let stats = Stats::new(engine, buffers, snapshot_age_s_max, ended, logs);
        let index_memory_bytes_max = self.options.store.index_memory_bytes_max as u64;
        Stats { database_count, open_count: open.len(), index_memory_bytes_max, ..stats }
    }
}

/// Whether the last checkpoint of a store failed, for another reason than want of room or of a
/// descriptor.
pub(crate) fn check_checkpoints(store: &Store) -> Result<()> {
    let reason = "a checkpoint failed: the log tells why, and it is tried again";
    store.checkpoint_error().map_or(Ok(()), |_| Err(Error::new(ErrorKind::Internal, reason)))
}

/// The folder of the database with this number.
fn folder_of(data: &Path, number: u64) -> PathBuf {
    data.join(DATABASES_FOLDER).join(format!("{number:010}"))
}

/// Whether a name, or what follows the last slash in it, is that of one of CouchDB's own databases.
fn is_system_database(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    SYSTEM_DATABASES.contains(&name) || ["_users", "_replicator"].contains(&last)
}

/// Checks a database's name by CouchDB's rule: a lowercase letter, then lowercase letters,
/// digits and `_$()+/-`; or one of the names of CouchDB's own databases.
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
