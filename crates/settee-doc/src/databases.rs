//! The server's databases: a catalogue from names to folders, itself a store.
//!
//! Creating or deleting a database is one commit in the catalogue. A database's folder appears
//! with its first write. A deletion leaves a mark with the folder's number, which goes when the
//! folder has gone.
//!
//! Invariants:
//! 1. A database exists if and only if the catalogue's persisted state names it.
//! 2. A folder is removed only where a mark says that its database was deleted: what the
//!    catalogue merely doesn't name, since it is damaged or old, stays.
//! 3. The number of a folder is not used again while that folder, or its mark, is there.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, folder};
use settee_store::{Batch, LogOptions, LogStats, Seq, Stage, Store, StoreOptions};
use tokio::sync::{OnceCell, oneshot};

use crate::database::Database;
use crate::stats::{Stats, add_counters};
use crate::{Error, ErrorKind, Result};

/// Longest database name in bytes, as CouchDB has it for what becomes a file's name.
pub const NAME_SIZE_MAX: usize = 238;

const CATALOGUE_FOLDER: &str = "catalogue";
const DATABASES_FOLDER: &str = "databases";
const LOCK_FILE: &str = "lock";

/// How databases are opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatabasesOptions {
    /// The limits of each database's log. The catalogue's has them too, but is never in direct
    /// mode: its few small commits would each take a block.
    pub log: LogOptions,
}

/// The databases in a folder. Used from many tasks at once.
pub struct Databases {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    folder: PathBuf,
    options: DatabasesOptions,
    catalogue: Store,
    slots: Mutex<Slots>,
    /// Held as long as the folder is ours.
    _lock: File,
}

#[derive(Default)]
struct Slots {
    by_name: BTreeMap<String, Arc<Slot>>,
    /// Numbers of folders whose databases were deleted.
    deleted: Vec<u64>,
    next_folder: u64,
    closed: bool,
    /// Deleted databases that are being closed, and what those did that were.
    leaving: Vec<Arc<Database>>,
    ended: LogStats,
}

/// A database in the catalogue, opened when it is first asked for.
struct Slot {
    created_us: u64,
    folder_number: u64,
    incarnation: [u8; 16],
    database: OnceCell<Arc<Database>>,
}

/// Keys of the marks of deleted databases begin with this; no name does.
const DELETED_MARK: u8 = 0;

fn deleted_key(folder_number: u64) -> [u8; 9] {
    let mut key = [DELETED_MARK; 9];
    key[1..].copy_from_slice(&folder_number.to_be_bytes());
    key
}

const SLOT_META_SIZE: usize = 32;

impl Slot {
    fn encode(&self) -> [u8; SLOT_META_SIZE] {
        let mut meta = [0; SLOT_META_SIZE];
        meta[..8].copy_from_slice(&self.created_us.to_le_bytes());
        meta[8..16].copy_from_slice(&self.folder_number.to_le_bytes());
        meta[16..].copy_from_slice(&self.incarnation);
        meta
    }

    fn decode(meta: &[u8]) -> Option<Slot> {
        let meta: &[u8; SLOT_META_SIZE] = meta.try_into().ok()?;
        Some(Slot {
            created_us: u64::from_le_bytes(meta[..8].try_into().expect("8 bytes")),
            folder_number: u64::from_le_bytes(meta[8..16].try_into().expect("8 bytes")),
            incarnation: meta[16..].try_into().expect("16 bytes"),
            database: OnceCell::new(),
        })
    }
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
    /// `Internal`: another process has the folder, which is named; damage, or an empty catalogue
    /// beside databases; or what the system says.
    ///
    /// # Panics
    /// Where [`LogOptions::check`] refuses the log's limits.
    pub async fn open_with(env: Env, folder: &Path, options: DatabasesOptions) -> Result<Arc<Databases>> {
        folder::create(&*env.engine, folder).await?;
        let lock = File::open(&env.engine, &folder.join(LOCK_FILE), OpenMode::Create).await?;
        if let Err(error) = lock.lock().await {
            if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) {
                let reason = format!("{} is in use by another process", folder.display());
                return Err(Error::new(ErrorKind::Internal, reason));
            }
            return Err(error.into());
        }
        let log = LogOptions { direct: false, ..options.log };
        let of_catalogue = StoreOptions { log, measure: |_, _, _| Default::default() };
        let (catalogue, _) = Store::open(&env, &folder.join(CATALOGUE_FOLDER), of_catalogue).await?;
        let slots = Mutex::new(Slots::read(&catalogue)?);
        let inner = Inner { env, folder: folder.to_path_buf(), options, catalogue, slots, _lock: lock };
        inner.check_catalogue().await?;
        inner.tidy_folders().await?;
        Ok(Arc::new(Databases { inner: Arc::new(inner) }))
    }

    /// Creates a database; it survives a power loss once this returns. Dropping the future
    /// doesn't stop it.
    ///
    /// # Errors
    /// `IllegalDatabaseName`, `DatabaseExists`, `NoSpace`, `Stopped`.
    pub async fn create(&self, name: &str) -> Result<Arc<Database>> {
        check_database_name(name)?;
        let name = name.to_owned();
        self.detached(async move |inner| inner.create(&name).await).await
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

    /// A database, opened if it wasn't.
    ///
    /// # Errors
    /// `NotFound`; `Internal` where it can't be opened.
    pub async fn get(&self, name: &str) -> Result<Arc<Database>> {
        let slot = self.inner.lock().by_name.get(name).cloned().ok_or_else(Error::no_database)?;
        if let Some(database) = slot.database.get() {
            return Ok(database.clone());
        }
        // Opening goes on though its caller leaves: or one that always leaves early would never
        // see it open.
        let name = name.to_owned();
        self.detached(async move |inner| inner.open_slot(&name, &slot).await).await
    }

    /// All names, sorted by their bytes.
    pub fn names(&self) -> Vec<String> {
        self.inner.lock().by_name.keys().cloned().collect()
    }

    /// Whether the catalogue and every open database take writes.
    ///
    /// # Errors
    /// `Stopped`: the first reason found.
    pub fn health(&self) -> Result<()> {
        self.inner.catalogue.health()?;
        self.inner.open_databases().iter().try_for_each(|database| database.health())
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
        for database in self.inner.open_databases() {
            let closed = database.close().await;
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

impl Slots {
    fn read(catalogue: &Store) -> Result<Slots> {
        let mut slots = Slots { next_folder: 1, ..Slots::default() };
        let mut scan = catalogue.snapshot().scan(Bound::Unbounded, Bound::Unbounded, false);
        while let Some(entry) = scan.next() {
            if let Some((&DELETED_MARK, number)) = entry.key.split_first() {
                let number = number.try_into().map_err(|_| Error::damaged("a mark in the catalogue"))?;
                slots.deleted.push(u64::from_be_bytes(number));
                continue;
            }
            let name = std::str::from_utf8(entry.key).ok();
            let (Some(name), Some(slot)) = (name, Slot::decode(entry.meta)) else {
                return Err(Error::damaged("an entry of the catalogue"));
            };
            slots.reserve(slot.folder_number);
            slots.by_name.insert(name.to_owned(), Arc::new(slot));
        }
        Ok(slots)
    }
}

impl Slots {
    /// Keeps a number from being given to a new folder.
    fn reserve(&mut self, folder_number: u64) {
        self.next_folder = self.next_folder.max(folder_number.saturating_add(1));
    }

    fn open(&self) -> Vec<Arc<Database>> {
        self.by_name.values().filter_map(|slot| slot.database.get().cloned()).collect()
    }

    /// Keeps the counters of a deleted database that was closed.
    fn end(&mut self, database: &Arc<Database>) {
        self.leaving.retain(|leaving| !Arc::ptr_eq(leaving, database));
        add_counters(&mut self.ended, &database.log_stats());
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_databases(&self) -> Vec<Arc<Database>> {
        self.lock().open()
    }

    fn stats(&self) -> Stats {
        // All at one moment: a database that goes is in one of the three, and in one alone.
        let (database_count, open, leaving, mut ended) = {
            let slots = self.lock();
            (slots.by_name.len(), slots.open(), slots.leaving.clone(), slots.ended)
        };
        for database in leaving {
            add_counters(&mut ended, &database.log_stats());
        }
        let of_catalogue = (self.catalogue.stats(), self.catalogue.health().is_err());
        let of_databases = open.iter().map(|database| (database.log_stats(), database.health().is_err()));
        let logs = std::iter::once(of_catalogue).chain(of_databases);
        let stats = Stats::new(self.env.engine.name(), self.env.buffers.stats(), ended, logs);
        Stats { database_count, open_count: open.len(), ..stats }
    }

    fn database_folder(&self, number: u64) -> PathBuf {
        self.folder.join(DATABASES_FOLDER).join(format!("{number:010}"))
    }

    async fn open_slot(&self, name: &str, slot: &Slot) -> Result<Arc<Database>> {
        let open = async || {
            let folder = self.database_folder(slot.folder_number);
            let (created_us, incarnation) = (slot.created_us, &slot.incarnation);
            let log = self.options.log;
            let database = Database::open(&self.env, &folder, name, created_us, incarnation, log).await?;
            Ok::<_, Error>(Arc::new(database))
        };
        let database = slot.database.get_or_try_init(open).await?.clone();
        // Whoever closes or deletes it while it is being opened doesn't see it.
        let (gone, closed) = {
            let slots = self.lock();
            let current = slots.by_name.get(name);
            (current.is_none_or(|current| !std::ptr::eq(&**current, slot)), slots.closed)
        };
        if gone {
            database.close_deleted().await;
            return Err(Error::no_database());
        }
        if closed {
            database.close().await?;
        }
        Ok(database)
    }

    async fn create(&self, name: &str) -> Result<Arc<Database>> {
        let mut writer = self.catalogue.writer().await;
        if writer.get(name.as_bytes()).is_some() {
            let reason = "The database could not be created, the file already exists.";
            return Err(Error::new(ErrorKind::DatabaseExists, reason));
        }
        let folder_number = {
            let mut slots = self.lock();
            slots.next_folder += 1;
            slots.next_folder - 1
        };
        let slot = Arc::new(Slot {
            created_us: self.env.clock.unix_us(),
            folder_number,
            incarnation: self.env.random_bytes(),
            database: OnceCell::new(),
        });
        let mut batch = Batch::new();
        batch.put(name.as_bytes(), &slot.encode(), Bytes::new(), false);
        let seq = writer.commit(&batch, Stage::Persisted).await?;
        // Held until it is told: a deletion that follows must find the slot.
        self.catalogue.wait(seq, Stage::Persisted).await?;
        self.lock().by_name.insert(name.to_owned(), slot.clone());
        drop(writer);
        self.open_slot(name, &slot).await
    }

    async fn delete(self: &Arc<Inner>, name: &str) -> Result<()> {
        let mut writer = self.catalogue.writer().await;
        let slot = self.lock().by_name.get(name).cloned().ok_or_else(Error::no_database)?;
        let mut batch = Batch::new();
        batch.delete(name.as_bytes());
        batch.put(&deleted_key(slot.folder_number), b"", Bytes::new(), false);
        batch.use_reserve();
        let seq = writer.commit(&batch, Stage::Persisted).await?;
        if let Err(stopped) = self.catalogue.wait(seq, Stage::Persisted).await {
            // Whether it was deleted shows when the databases are opened again: until then
            // nothing more may be promised in it.
            if let Some(database) = slot.database.get() {
                // Its log may have stopped too, which comes to the same.
                let _ = database.close().await;
            }
            return Err(stopped.into());
        }
        {
            let mut slots = self.lock();
            slots.by_name.remove(name);
            slots.leaving.extend(slot.database.get().cloned());
        }
        drop(writer);
        if let Some(database) = slot.database.get() {
            database.close_deleted().await;
            self.lock().end(database);
        }
        let inner = self.clone();
        self.env.spawn("remove database", async move {
            // What stays behind is removed when the databases are opened again.
            if let Err(error) = inner.remove_folder(slot.folder_number).await {
                tracing::warn!(%error, folder = slot.folder_number, "could not remove a deleted database's files");
            }
        });
        Ok(())
    }

    /// Removes the folder of a deleted database, and then its mark.
    async fn remove_folder(&self, number: u64) -> Result<()> {
        let engine = &*self.env.engine;
        folder::remove_with_files(engine, &self.database_folder(number)).await?;
        let root = self.folder.join(DATABASES_FOLDER);
        match folder::sync(engine, &root).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        let mut batch = Batch::new();
        batch.delete(&deleted_key(number));
        batch.use_reserve();
        // Nobody waits for it: where it is lost, the next opening finds nothing to remove.
        self.catalogue.writer().await.commit(&batch, Stage::Accepted).await?;
        Ok(())
    }

    /// A catalogue that never held anything, beside databases' folders, has lost what it held: a
    /// folder comes after its entry.
    async fn check_catalogue(&self) -> Result<()> {
        let root = self.folder.join(DATABASES_FOLDER);
        if self.catalogue.writer().await.last_seq() > Seq(0) {
            return Ok(());
        }
        let entries = folder::list(&*self.env.engine, &root).await?;
        if entries.iter().any(|entry| entry.name.parse::<u64>().is_ok()) {
            let (root, catalogue) = (root.display(), self.folder.join(CATALOGUE_FOLDER));
            let reason = format!(
                "there are databases in {root}, but {} is empty: put a copy of it back, or move {root} away",
                catalogue.display()
            );
            return Err(Error::new(ErrorKind::Internal, reason));
        }
        Ok(())
    }

    /// Removes the folders of deleted databases that are still there, and keeps the numbers of
    /// all others from being used again.
    async fn tidy_folders(&self) -> Result<()> {
        let deleted = std::mem::take(&mut self.lock().deleted);
        for number in deleted {
            self.lock().reserve(number);
            self.remove_folder(number).await?;
        }
        let known: Vec<u64> = self.lock().by_name.values().map(|slot| slot.folder_number).collect();
        for entry in folder::list(&*self.env.engine, &self.folder.join(DATABASES_FOLDER)).await? {
            let Ok(number) = entry.name.parse::<u64>() else {
                continue;
            };
            self.lock().reserve(number);
            if !known.contains(&number) {
                tracing::warn!(
                    folder = entry.name,
                    "the catalogue names no database in this folder: left as it is"
                );
            }
        }
        Ok(())
    }
}

/// Checks a database's name by CouchDB's rule: a lowercase letter, then lowercase letters,
/// digits and `_$()+/-`; or one of the names of CouchDB's own databases.
///
/// # Errors
/// `IllegalDatabaseName`.
pub fn check_database_name(name: &str) -> Result<()> {
    let system = ["_users", "_replicator", "_global_changes"].contains(&name);
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
