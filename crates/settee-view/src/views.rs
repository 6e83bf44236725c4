//! A server's indexes, and those of one design document.
//!
//! Index files are in `views/INCARNATION/` of the data directory, beside the databases: a database that is created
//! anew, restored or repaired has another incarnation, and so other indexes.
//!
//! Invariants:
//! 1. A file is open once: views that share a map function share the [`Index`].
//! 2. At most [`ViewsOptions::open_indexes_max`] indexes are kept open beside those in use.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use settee_doc::{Database, Databases, ErrorKind, Revision, Seq};
use settee_io::{Env, directory};
use settee_js::Limits;
use settee_tree::NodeCache;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::build::{BatchCount, Build};
use crate::design::{Design, Language, MapDefinition, Signature, ViewDefinition};
use crate::error::{Result, ViewError, ViewErrorKind};
use crate::index::{Index, IndexList};
use crate::index_file::{IndexPlace, remove_files};
use crate::javascript::JavascriptReduces;
use crate::mango::IndexDefinition;
use crate::mapper::{MangoMapper, Mapper};
use crate::mappers::Mappers;
use crate::planned::{PlannedMapper, Plans};
use crate::progress::{Counted, Progress};
use crate::query::KeySpace;
use crate::read::IndexSnapshot;

/// Builds of more than [`SMALL_BUILD_MAX`] changes at once. Further ones wait, in order.
const BUILDS_MAX: usize = 4;

/// Changes of a build that doesn't wait for others: what it has in memory is at most a group of documents.
const SMALL_BUILD_MAX: u64 = 256;

/// Attempts to remove the directory of a deleted database's indexes.
const REMOVALS_MAX: u32 = 3;

/// Directory of all indexes in a data directory.
const DIRECTORY: &str = "views";

/// Options of a server's indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewsOptions {
    /// Bytes of index nodes that are cached; default 64 MiB.
    pub cache_bytes_max: usize,
    /// Bytes of mapped rows that are merged into the indexes at once; default 32 MiB.
    pub merge_bytes: usize,
    /// Number of indexes that stay open while nobody uses them; default 1,000. At most a quarter of the limit on open
    /// files applies.
    pub open_indexes_max: usize,
    /// Memory of a JavaScript context in bytes; default 64 MiB.
    pub javascript_bytes_max: usize,
    /// Ticks that a JavaScript function may use for one document: see [`settee_js::Limits`].
    pub javascript_ticks_max: u64,
    /// Whether indexes are built in the background after writes; default true.
    pub autoupdate: bool,
}

impl Default for ViewsOptions {
    fn default() -> ViewsOptions {
        let Limits { memory_bytes, ticks, .. } = Limits::default();
        ViewsOptions {
            cache_bytes_max: 64 << 20,
            merge_bytes: 32 << 20,
            open_indexes_max: 1_000,
            javascript_bytes_max: memory_bytes,
            javascript_ticks_max: ticks,
            autoupdate: true,
        }
    }
}

impl ViewsOptions {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            memory_bytes: self.javascript_bytes_max,
            ticks: self.javascript_ticks_max,
            ..Limits::default()
        }
    }
}

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

/// The builds of all design documents.
struct Builds {
    permits: Semaphore,
    /// The design documents, at one of their revisions, whose indexes are being built.
    running: Mutex<Vec<Weak<DesignViews>>>,
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
        self.open.values().map(|views| views.indexes.len()).sum()
    }

    /// Takes out the least recently used design document that nobody uses.
    fn take_oldest(&mut self) -> Option<Arc<DesignViews>> {
        let idle = self.open.iter().filter(|(_, views)| Arc::strong_count(views) == 1);
        let oldest = idle.min_by_key(|(_, views)| views.used_at.load(Ordering::Relaxed));
        let key = oldest.map(|(key, _)| key.clone())?;
        self.open.remove(&key)
    }
}

/// The indexes of a design document, at one of its revisions.
pub struct DesignViews {
    /// The design document's views.
    pub design: Arc<Design>,
    revision: Revision,
    database: String,
    env: Env,
    merge_bytes: usize,
    indexes: IndexList,
    mappers: Arc<Mappers>,
    /// Compiled by the first task in the background that needs them, since that may take long.
    plans: Arc<OnceLock<Arc<Plans>>>,
    builds: Arc<Builds>,
    progress: Arc<Progress>,
    batch_count: Arc<BatchCount>,
    started_us: AtomicU64,
    /// Held by the build in progress, which then acquires a permit, and then the indexes.
    building: Arc<tokio::sync::Mutex<()>>,
    /// Requests that wait for a build.
    waiting: Arc<AtomicU64>,
    used_at: AtomicU64,
}

/// A build in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildTask {
    /// The database's name.
    pub database: String,
    /// The design document's id.
    pub design: String,
    /// Changes that were mapped.
    pub changes_done: u64,
    /// Changes to be mapped in all.
    pub total_changes: u64,
    /// When it began, in microseconds since 1970.
    pub started_us: u64,
}

/// What `_info` tells of a design document's indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesignInfo {
    /// Bytes of the index files.
    pub file_bytes: u64,
    /// Bytes in use in them.
    pub active_bytes: u64,
    /// The last change that all indexes have.
    pub update_seq: Seq,
    /// The last purge that all indexes have.
    pub purge_seq: u64,
    /// Whether a build is in progress.
    pub is_building: bool,
    /// Whether a compaction of an index was requested and isn't done.
    pub is_compacting: bool,
    /// Requests that wait for it.
    pub waiting_count: u64,
    /// Views that are stopped, with the reason.
    pub stopped: Vec<(String, ViewError)>,
    /// How each view's map function runs: as a plan over the documents' text, or in the engine and why.
    pub runs: Vec<(String, String)>,
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
            builds: Arc::new(Builds { permits: Semaphore::new(BUILDS_MAX), running: Mutex::default() }),
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
        let found = designs.open.get(key).filter(|found| found.revision == *revision)?;
        found.used_at.store(designs.use_count, Ordering::Relaxed);
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
            opened.used_at.store(designs.use_count, Ordering::Relaxed);
            designs.open.insert(key, opened.clone());
            let mut released_count = 0;
            while designs.index_count() > limit || is_scarce() && released_count < opened.indexes.len() {
                let Some(released) = designs.take_oldest() else { break };
                released_count += released.indexes.len();
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
        let limits = self.options.limits();
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
        let plans: Arc<OnceLock<Arc<Plans>>> = Arc::default();
        let (of_mapper, plans_of_mapper) = (design.clone(), plans.clone());
        let make_mapper = Box::new(move || mapper_of(&of_mapper, &plans_of_mapper, limits));
        Ok(DesignViews {
            design,
            revision,
            database: database.name().to_owned(),
            env: self.env.clone(),
            merge_bytes: self.options.merge_bytes,
            indexes,
            mappers: Arc::new(Mappers::new(make_mapper)),
            plans,
            builds: self.builds.clone(),
            progress: Arc::default(),
            batch_count: Arc::default(),
            started_us: AtomicU64::new(0),
            building: Arc::default(),
            waiting: Arc::default(),
            used_at: AtomicU64::new(0),
        })
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
        let designs: Vec<_> = lock(&self.builds.running).iter().filter_map(Weak::upgrade).collect();
        let task = |views: &Arc<DesignViews>| {
            let (changes_done, total_changes) = views.progress.get()?;
            Some(BuildTask {
                database: views.database.clone(),
                design: views.design.id.clone(),
                changes_done,
                total_changes,
                started_us: views.started_us.load(Ordering::Relaxed),
            })
        };
        designs.iter().filter_map(task).collect()
    }
}

impl DesignViews {
    /// The design document's revision.
    pub fn revision(&self) -> &Revision {
        &self.revision
    }

    /// The view with this name.
    ///
    /// # Errors
    /// `not_found`.
    pub fn view(&self, name: &str) -> Result<&ViewDefinition> {
        self.design.view(name).ok_or_else(|| ViewError::not_found("missing_named_view"))
    }

    /// The newest state of a view's index.
    ///
    /// # Errors
    /// Why it was stopped.
    pub fn snapshot(&self, view: &ViewDefinition) -> Result<IndexSnapshot> {
        let index = &self.indexes[view.map];
        index.failure().map_or_else(|| Ok(index.snapshot()), Err)
    }

    /// The key space of a view, or of its rows in a partition.
    pub fn space(&self, view: &ViewDefinition, partition: Option<&str>) -> KeySpace {
        KeySpace::new(self.indexes[view.map].definition.collation, partition)
    }

    /// Builds the indexes until they have all changes up to `target`. The build goes on if the future is dropped.
    ///
    /// # Errors
    /// If a document can't be read, or an index not be written.
    pub async fn build(self: &Arc<DesignViews>, database: &Arc<Database>, target: Seq) -> Result<()> {
        if self.is_current(database, target) {
            return Ok(());
        }
        let _waiting = Counted::new(&self.waiting);
        self.build_unattended(database, target).await
    }

    /// As [`DesignViews::build`], for nobody: the build stops once the design document is edited or deleted.
    pub(crate) async fn build_unattended(
        self: &Arc<DesignViews>,
        database: &Arc<Database>,
        target: Seq,
    ) -> Result<()> {
        if self.is_current(database, target) {
            return Ok(());
        }
        let built = self.clone().start(database, target).await;
        built.unwrap_or_else(|_| Err(ViewError::damaged("a build was aborted")))
    }

    /// As [`DesignViews::build`], without waiting for it.
    pub fn build_in_background(self: &Arc<DesignViews>, database: &Arc<Database>, target: Seq) {
        if !self.is_current(database, target) && self.progress.get().is_none() {
            drop(self.clone().start(database, target));
        }
    }

    fn start(self: Arc<DesignViews>, database: &Arc<Database>, target: Seq) -> oneshot::Receiver<Result<()>> {
        let (sender, done) = oneshot::channel();
        let (env, database) = (self.env.clone(), database.clone());
        env.spawn_background("view build", async move {
            let building = self.building.clone();
            let _building = building.lock().await;
            let built = if self.is_current(&database, target) { Ok(()) } else { self.run(database).await };
            drop(sender.send(built));
        });
        done
    }

    /// Waits until the build may run, unless it is small.
    async fn permit(&self, database: &Database) -> Result<Option<SemaphorePermit<'_>>> {
        let sound = self.indexes.iter().filter(|index| index.failure().is_none());
        let reached = sound.map(|index| index.snapshot()).map(|own| match own.root.found_damage() {
            true => Seq(0),
            false => own.seq,
        });
        let since = reached.min().unwrap_or(Seq(0));
        let is_small = database.snapshot().pending(since).await? <= SMALL_BUILD_MAX;
        Ok(if is_small { None } else { self.builds.permits.acquire().await.ok() })
    }

    async fn run(self: &Arc<DesignViews>, database: Arc<Database>) -> Result<()> {
        let _permit = self.permit(&database).await?;
        {
            let mut running = lock(&self.builds.running);
            running.retain(|views| views.strong_count() > 0 && !std::ptr::eq(views.as_ptr(), &**self));
            running.push(Arc::downgrade(self));
        }
        self.started_us.store(self.env.clock.unix_us(), Ordering::Relaxed);
        let build = Build {
            env: self.env.clone(),
            database: database.clone(),
            design: self.design.clone(),
            indexes: self.indexes.clone(),
            mappers: self.mappers.clone(),
            progress: self.progress.clone(),
            merge_bytes: self.merge_bytes,
            revision: self.revision.clone(),
            waiting: self.waiting.clone(),
            batch_count: self.batch_count.clone(),
        };
        let built = build.run().await;
        self.mappers.release();
        match built {
            // The index went with its database.
            Err(error) => Err(database.barrier().await.err().map_or(error, ViewError::from)),
            Ok(()) => Ok(()),
        }
    }

    /// Whether all indexes that aren't stopped have the changes up to `target`, and all purges.
    fn is_current(&self, database: &Database, target: Seq) -> bool {
        let purge_seq = database.info().purge_seq;
        let sound = self.indexes.iter().filter(|index| index.failure().is_none());
        sound
            .map(|index| index.snapshot())
            .all(|own| own.seq >= target && own.purge_seq >= purge_seq && !own.root.found_damage())
    }

    /// Adds the reduce functions of a view's index that it lacks, since another design document made it. The rows are
    /// copied, and no document is read. Until then, and if the index can't have more, queries reduce the rows.
    ///
    /// # Errors
    /// If the index can't be written; it is unchanged.
    pub async fn add_reduces(self: &Arc<DesignViews>, view: &ViewDefinition) -> Result<()> {
        let map = view.map;
        if self.indexes[map].has_reduces(&self.design.reduces_of(map)) {
            return Ok(());
        }
        let views = self.clone();
        self.in_background("view reduces", async move {
            views.indexes[map].add_reduces(&views.design.reduces_of(map)).await
        })
        .await
    }

    /// Rewrites the index files without garbage.
    ///
    /// # Errors
    /// If one can't be written; it is unchanged.
    pub async fn compact(self: &Arc<DesignViews>) -> Result<()> {
        let views = self.clone();
        self.in_background("view compaction", async move {
            for index in &views.indexes {
                index.compact().await?;
            }
            Ok(())
        })
        .await
    }

    /// Runs work that computes for long, and waits for it. It goes on if the future is dropped.
    async fn in_background(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let (sender, done) = oneshot::channel();
        self.env.spawn_background(name, async move { drop(sender.send(work.await)) });
        done.await.unwrap_or_else(|_| Err(ViewError::damaged("background work was aborted")))
    }

    async fn compiled_plans(&self) -> Option<Arc<Plans>> {
        if let Some(plans) = self.plans.get() {
            return Some(plans.clone());
        }
        let (design, plans) = (self.design.clone(), self.plans.clone());
        let compile = async move {
            plans_of(&design, &plans);
            Ok(())
        };
        // An error is that the server stops.
        let _ = self.in_background("view plans", compile).await;
        self.plans.get().cloned()
    }

    /// What is known of the indexes.
    pub async fn info(&self) -> DesignInfo {
        let is_building = self.progress.get().is_some();
        let mut info = DesignInfo {
            file_bytes: 0,
            active_bytes: 0,
            update_seq: Seq(u64::MAX),
            purge_seq: u64::MAX,
            is_building,
            is_compacting: self.indexes.iter().any(|index| index.is_compacting()),
            waiting_count: self.waiting.load(Ordering::Relaxed),
            stopped: Vec::new(),
            runs: Vec::new(),
        };
        if self.design.language == Language::Javascript
            && let Some(plans) = self.compiled_plans().await
        {
            let run = |view: &ViewDefinition| (view.name.clone(), plans.explain(view.map));
            info.runs = self.design.views.iter().map(run).collect();
        }
        for (place, index) in self.indexes.iter().enumerate() {
            let snapshot = index.snapshot();
            info.file_bytes += snapshot.file_bytes();
            info.active_bytes += snapshot.root.live_bytes();
            info.update_seq = info.update_seq.min(snapshot.seq);
            info.purge_seq = info.purge_seq.min(snapshot.purge_seq);
            if let Some(error) = index.failure() {
                let views = self.design.views.iter().filter(|view| view.map == place);
                info.stopped.extend(views.map(|view| (view.name.clone(), error.clone())));
            }
        }
        if self.indexes.is_empty() {
            (info.update_seq, info.purge_seq) = (Seq(0), 0);
        }
        info
    }
}

fn plans_of(design: &Design, plans: &OnceLock<Arc<Plans>>) -> Arc<Plans> {
    plans.get_or_init(|| Arc::new(Plans::compile(design.lib.as_deref(), &sources_of(design)))).clone()
}

fn mapper_of(design: &Design, plans: &OnceLock<Arc<Plans>>, limits: Limits) -> Result<Box<dyn Mapper>> {
    if design.language == Language::Query {
        let definition = |map: &MapDefinition| {
            IndexDefinition::of_view(&design.id, "", &map.source, design.is_partitioned)
        };
        return Ok(Box::new(MangoMapper(design.maps.iter().map(definition).collect())));
    }
    let sources = sources_of(design);
    Ok(Box::new(PlannedMapper::new(plans_of(design, plans), design.lib.as_deref(), &sources, limits)?))
}

fn sources_of(design: &Design) -> Vec<&str> {
    design.maps.iter().map(|map| map.source.as_str()).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
