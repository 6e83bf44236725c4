//! A server's indexes.
//!
//! Index files are in `views/INCARNATION/` of the data directory, beside the databases: a database that is created
//! anew, restored or repaired has another incarnation, and so other indexes.
//!
//! Invariants:
//! 1. A file is open once: views that share a map function share the [`Index`].
//! 2. At most [`ViewsOptions::open_indexes_max`] indexes are kept open beside those in use.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use settee_doc::{Database, Databases, ErrorKind, Revision};
use settee_io::{Env, directory};
use settee_tree::NodeCache;

use crate::design::{Design, Language, Signature};
use crate::design_views::{BuildTask, Builds, DesignViews};
use crate::error::{Result, ViewError, ViewErrorKind};
use crate::index::{Index, IndexList};
use crate::index_file::{IndexPlace, remove_files};
use crate::javascript::JavascriptReduces;
use crate::options::ViewsOptions;

/// Attempts to remove the directory of a deleted database's indexes.
const REMOVALS_MAX: u32 = 3;

/// Directory of all indexes in a data directory.
const DIRECTORY: &str = "views";

/// An incarnation of a database.
type Incarnation = [u8; 16];

/// A server's indexes.
pub struct Views {
    env: Env,
    directory: PathBuf,
    options: ViewsOptions,
    cache: Arc<NodeCache>,
    reduces: Arc<JavascriptReduces>,
    designs: Mutex<Designs>,
    indexes: Mutex<HashMap<(Incarnation, Signature), Weak<Index>>>,
    last_number: Arc<AtomicU64>,
    builds: Arc<Builds>,
    /// Held while indexes are opened, so that each is opened once.
    opening: tokio::sync::Mutex<()>,
}

/// The design documents whose indexes are open.
#[derive(Default)]
struct Designs {
    open: HashMap<(Incarnation, String), Arc<DesignViews>>,
    use_count: u64,
}

impl Designs {
    /// Number of indexes, each counted for each of its design documents.
    fn index_count(&self) -> usize {
        self.open.values().map(|views| views.index_count()).sum()
    }

    /// Takes out the least recently used design document that nobody uses.
    fn take_oldest(&mut self) -> Option<Arc<DesignViews>> {
        let idle = self.open.iter().filter(|(_, views)| Arc::strong_count(views) == 1);
        let oldest = idle.min_by_key(|(_, views)| views.used_at());
        let key = oldest.map(|(key, _)| key.clone())?;
        self.open.remove(&key)
    }
}

impl Views {
    /// The indexes of the databases in a data directory.
    pub fn new(databases: &Databases, options: ViewsOptions) -> Views {
        Views {
            env: databases.env().clone(),
            directory: databases.directory().join(DIRECTORY),
            options,
            cache: Arc::new(NodeCache::new(options.cache_bytes_max)),
            reduces: Arc::new(JavascriptReduces::new(databases.env().clone(), options.limits())),
            designs: Mutex::default(),
            indexes: Mutex::default(),
            last_number: Arc::default(),
            builds: Arc::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn options(&self) -> &ViewsOptions {
        &self.options
    }

    /// The indexes of a design document as it is now.
    ///
    /// # Errors
    /// `not_found` if there is none; `unknown_query_language`; or if the indexes can't be opened.
    pub async fn design(&self, database: &Arc<Database>, id: &str) -> Result<Arc<DesignViews>> {
        let snapshot = database.snapshot();
        let summary = snapshot.find(id).await?.ok_or_else(|| ViewError::not_found("missing"))?;
        if summary.deleted {
            return Err(ViewError::not_found("deleted"));
        }
        let key = (database.incarnation(), id.to_owned());
        if let Some(found) = self.find(&key, &summary.revision) {
            return Ok(found);
        }
        let _opening = self.opening.lock().await;
        if let Some(found) = self.find(&key, &summary.revision) {
            return Ok(found);
        }
        // Its indexes were removed, or will be once this is done.
        if database.is_deleted() {
            return Err(ViewError::not_found("Database does not exist."));
        }
        let document = snapshot.document(id).await?;
        let document = snapshot.read_whole(document).await?;
        let mut json = Vec::new();
        document.write_json(&settee_doc::Extras::default(), &mut json);
        let design = Design::parse(id, &json, database.is_partitioned())?;
        if let Language::Other(name) = &design.language {
            return Err(ViewError::function("unknown_query_language", name.clone()));
        }
        let design = Arc::new(design);
        let mut opened = self.open(database, design.clone(), summary.revision.clone()).await;
        if opened.as_ref().is_err_and(|error| error.kind == ViewErrorKind::Storage(ErrorKind::NoDescriptor)) {
            self.release_idle();
            opened = self.open(database, design, summary.revision).await;
        }
        let opened = Arc::new(opened?);
        self.keep(key, &opened);
        Ok(opened)
    }

    fn find(&self, key: &(Incarnation, String), revision: &Revision) -> Option<Arc<DesignViews>> {
        let mut designs = lock(&self.designs);
        designs.use_count += 1;
        let found = designs.open.get(key).filter(|found| found.revision() == revision)?;
        found.set_used_at(designs.use_count);
        Some(found.clone())
    }

    /// Keeps a design document's indexes open, and releases the least recently used ones that nobody uses: those beyond
    /// the limit, and as many as were opened if file descriptors are scarce.
    fn keep(&self, key: (Incarnation, String), opened: &Arc<DesignViews>) {
        let descriptors = self.env.engine.descriptors();
        let limit = descriptors.map_or(usize::MAX, |descriptors| descriptors.count_max() / 4);
        let limit = limit.min(self.options.open_indexes_max);
        let is_scarce = || descriptors.is_some_and(|descriptors| descriptors.is_scarce());
        {
            let mut designs = lock(&self.designs);
            designs.use_count += 1;
            opened.set_used_at(designs.use_count);
            designs.open.insert(key, opened.clone());
            let mut released_count = 0;
            while designs.index_count() > limit || is_scarce() && released_count < opened.index_count() {
                let Some(released) = designs.take_oldest() else { break };
                released_count += released.index_count();
            }
        }
        lock(&self.indexes).retain(|_, index| index.strong_count() > 0);
    }

    /// Releases all indexes that nobody uses.
    fn release_idle(&self) {
        let mut designs = lock(&self.designs);
        while designs.take_oldest().is_some() {}
    }

    async fn open(
        &self,
        database: &Arc<Database>,
        design: Arc<Design>,
        revision: Revision,
    ) -> Result<DesignViews> {
        let incarnation = database.incarnation();
        let mut indexes = IndexList::new();
        for (place, map) in design.maps.iter().enumerate() {
            let reduces = design.reduces_of(place);
            let key = (incarnation, map.signature);
            let open = lock(&self.indexes).get(&key).and_then(Weak::upgrade);
            let index = match open {
                Some(index) => index,
                None => {
                    let place = IndexPlace {
                        env: self.env.clone(),
                        directory: self.directory_of(incarnation),
                        signature: map.signature,
                        cache: self.cache.clone(),
                        functions: self.reduces.clone(),
                        last_number: self.last_number.clone(),
                    };
                    let index = Arc::new(Index::open(place, map.clone(), &reduces).await?);
                    lock(&self.indexes).insert(key, Arc::downgrade(&index));
                    index
                }
            };
            index.add_user(&design);
            indexes.push(index);
        }
        let (env, builds) = (self.env.clone(), self.builds.clone());
        Ok(DesignViews::new(database, design, revision, indexes, env, &self.options, builds))
    }

    fn directory_of(&self, incarnation: Incarnation) -> PathBuf {
        let name: String = incarnation.iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(name)
    }

    /// The ids of a database's design documents.
    pub(crate) async fn design_ids(&self, database: &Database) -> Result<Vec<String>> {
        let range = settee_doc::Range { prefix: "_design/".to_owned(), ..settee_doc::Range::default() };
        let mut rows = database.snapshot().all_docs(&range).await?;
        let mut ids = Vec::new();
        while let Some(row) = rows.next().await? {
            ids.push(row.id.to_owned());
        }
        Ok(ids)
    }

    /// Removes the indexes that no design document of the database has. Returns the number of files.
    ///
    /// # Errors
    /// If the design documents can't be read, or a file not be removed.
    pub async fn clean_up(&self, database: &Arc<Database>) -> Result<u64> {
        // No index is opened meanwhile.
        let _opening = self.opening.lock().await;
        let snapshot = database.snapshot();
        let mut needed = HashSet::new();
        let ids: HashSet<String> = self.design_ids(database).await?.into_iter().collect();
        for id in &ids {
            let document = snapshot.document(id).await?;
            let document = snapshot.read_whole(document).await?;
            let mut json = Vec::new();
            document.write_json(&settee_doc::Extras::default(), &mut json);
            match Design::parse(&document.id, &json, database.is_partitioned()) {
                Ok(design) => needed.extend(design.maps.iter().map(|map| map.signature)),
                Err(error) => {
                    // Which indexes it has isn't known.
                    tracing::warn!(database = database.name(), %error, "no index is removed");
                    return Ok(0);
                }
            }
        }
        let incarnation = database.incarnation();
        // Open files would keep their space.
        let is_needed = |id: &String, views: &DesignViews| {
            ids.contains(id) && views.design.maps.iter().all(|map| needed.contains(&map.signature))
        };
        lock(&self.designs).open.retain(|(of, id), views| *of != incarnation || is_needed(id, views));
        lock(&self.indexes).retain(|(of, signature), _| *of != incarnation || needed.contains(signature));
        let directory = self.directory_of(incarnation);
        remove_files(&self.env, &directory, |signature| !needed.contains(&signature)).await
    }

    /// Removes all indexes of a database that was deleted.
    ///
    /// # Errors
    /// If they can't be removed; they are removed when the server starts.
    pub async fn remove(&self, incarnation: [u8; 16]) -> Result<()> {
        // None is opened meanwhile, nor afterwards.
        let _opening = self.opening.lock().await;
        lock(&self.designs).open.retain(|(of, _), _| *of != incarnation);
        lock(&self.indexes).retain(|(of, _), _| *of != incarnation);
        let directory = self.directory_of(incarnation);
        for attempt in 1.. {
            match directory::remove_with_files(&*self.env.engine, &directory).await {
                Err(error) if error.is_not_found() => break,
                // A build that still runs may have begun a file meanwhile.
                Err(_) if attempt < REMOVALS_MAX => {}
                removed => return Ok(removed?),
            }
        }
        Ok(())
    }

    /// Removes the indexes of databases that don't exist. To be called before any index is opened.
    ///
    /// # Errors
    /// If the catalogue can't be read, or files not be removed.
    pub async fn sweep(&self, databases: &Databases) -> Result<()> {
        let entries = match directory::list(&*self.env.engine, &self.directory).await {
            Err(error) if error.is_not_found() => return Ok(()),
            entries => entries?,
        };
        let incarnations = databases.incarnations().await?;
        let names: HashSet<PathBuf> =
            incarnations.into_iter().map(|incarnation| self.directory_of(incarnation)).collect();
        for entry in entries.iter().filter(|entry| entry.is_directory) {
            let path = self.directory.join(&entry.name);
            if !names.contains(&path) {
                directory::remove_with_files(&*self.env.engine, &path).await?;
            }
        }
        Ok(())
    }

    /// The builds in progress, also of former revisions of design documents.
    pub fn tasks(&self) -> Vec<BuildTask> {
        self.builds.tasks()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
