//! The databases of a server: they are opened with their catalogue, created, deleted, found and closed here.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use settee_io::{Env, OnPanic, directory};
use settee_store::{LogOptions, Store};
use tokio::sync::oneshot;

use super::catalogue;
use super::data_directory::{CATALOGUE_DIRECTORY, lock};
use super::limits::StoreResources;
use super::names::{NameRange, check_database_name, is_system_database};
use super::options::DatabasesOptions;
use super::runs;
use super::slots::Lookup;
use super::spool::Spools;
use super::state::DatabasesInner;
use super::tasks::{CompactionTask, Tasks};
use super::upgrade;
use crate::database::{Database, check_checkpoints};
use crate::design_functions::DesignFunctions;
use crate::events::Updates;
use crate::rules::Rules;
use crate::stats::Stats;
use crate::{Error, ErrorKind, Result};

/// The databases in a data directory, usable from many tasks at once.
pub struct Databases {
    pub(super) inner: Arc<DatabasesInner>,
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
    /// `BadRequest` if the directory is a run of a backup, an upgrade into it was interrupted, or an earlier version
    /// wrote it; `InUse` if another process uses the directory,
    /// which the reason names; `Internal` for damage, or an empty catalogue beside databases; or the system's
    /// error.
    ///
    /// # Panics
    /// If [`LogOptions::check`] refuses the log's limits.
    pub async fn open_with(env: Env, directory: &Path, options: DatabasesOptions) -> Result<Arc<Databases>> {
        runs::refuse_run(&env, directory).await?;
        upgrade::refuse_unfinished(&env, directory).await?;
        upgrade::refuse_previous(&env, directory).await?;
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
        let inner = DatabasesInner {
            env,
            directory: directory.to_path_buf(),
            options,
            resources,
            rules: Arc::new(Rules::default()),
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

    /// Sets what compiles and runs design functions, for all databases; to be called before the first write.
    /// Without it, design documents aren't compiled and documents aren't validated. A second call has no effect.
    pub fn set_design_functions(&self, functions: Arc<dyn DesignFunctions>) {
        if !self.inner.rules.set_design_functions(functions) {
            tracing::warn!("design functions were set twice");
        }
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

    /// The environment that it runs on.
    pub fn env(&self) -> &Env {
        &self.inner.env
    }

    /// The data directory.
    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// The incarnations of all databases: see [`Database::incarnation`].
    ///
    /// # Errors
    /// `Internal` if the catalogue can't be read.
    pub async fn incarnations(&self) -> Result<HashSet<[u8; 16]>> {
        catalogue::incarnations(&self.inner.catalogue).await
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
        let open = self.inner.lock().open_databases();
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
            let open = self.inner.lock().any_slot();
            let Some(number) = open else { break };
            let close = async |database: Arc<Database>| self.inner.close_and_record(number, &database).await;
            let closed = self.inner.close_regardless_of_use(number, close).await;
            result = result.and(closed);
        }
        let closed = self.inner.catalogue.close().await;
        result.and(closed.map_err(Error::from))
    }

    /// The requested compactions in progress, in the order in which they began.
    pub fn compactions(&self) -> Vec<CompactionTask> {
        self.inner.tasks.compactions()
    }

    /// Runs what must not stop half-way in a task of its own.
    async fn detached<T: Send + 'static, F>(&self, run: impl FnOnce(Arc<DatabasesInner>) -> F) -> Result<T>
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
