//! The indexes of one design document: what queries read, and what builds them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use settee_doc::{Database, Revision, Seq};
use settee_io::Env;
use settee_js::Limits;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::build::{BatchCount, Build};
use crate::design::{Design, Language, MapDefinition, ViewDefinition};
use crate::error::{Result, ViewError};
use crate::index::IndexList;
use crate::mango::IndexDefinition;
use crate::mapper::{MangoMapper, Mapper};
use crate::mappers::Mappers;
use crate::options::ViewsOptions;
use crate::planned::{PlannedMapper, Plans};
use crate::progress::{Counted, Progress};
use crate::query::KeySpace;
use crate::read::IndexSnapshot;

/// Builds of more than [`SMALL_BUILD_MAX`] changes at once. Further ones wait, in order.
const BUILDS_MAX: usize = 4;

/// Changes of a build that doesn't wait for others: what it has in memory is at most a group of documents.
const SMALL_BUILD_MAX: u64 = 256;

/// The builds of all design documents.
pub(crate) struct Builds {
    permits: Semaphore,
    /// The design documents, at one of their revisions, whose indexes are being built.
    running: Mutex<Vec<Weak<DesignViews>>>,
}

impl Default for Builds {
    fn default() -> Builds {
        Builds { permits: Semaphore::new(BUILDS_MAX), running: Mutex::default() }
    }
}

impl Builds {
    /// The builds in progress.
    pub(crate) fn tasks(&self) -> Vec<BuildTask> {
        let designs: Vec<_> = lock(&self.running).iter().filter_map(Weak::upgrade).collect();
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

/// The state of a design document's indexes, as `_info` reports it.
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

impl DesignViews {
    /// The indexes of the design document at a revision, one for each of its map functions.
    pub(crate) fn new(
        database: &Database,
        design: Arc<Design>,
        revision: Revision,
        indexes: IndexList,
        env: Env,
        options: &ViewsOptions,
        builds: Arc<Builds>,
    ) -> DesignViews {
        let plans: Arc<OnceLock<Arc<Plans>>> = Arc::default();
        let (of_mapper, plans_of_mapper, limits) = (design.clone(), plans.clone(), options.limits());
        let name = database.name().to_owned();
        let make_mapper = Box::new(move || mapper_of(&name, &of_mapper, &plans_of_mapper, limits));
        DesignViews {
            design,
            revision,
            database: database.name().to_owned(),
            env,
            merge_bytes: options.merge_bytes,
            indexes,
            mappers: Arc::new(Mappers::new(make_mapper)),
            plans,
            builds,
            progress: Arc::default(),
            batch_count: Arc::default(),
            started_us: AtomicU64::new(0),
            building: Arc::default(),
            waiting: Arc::default(),
            used_at: AtomicU64::new(0),
        }
    }

    /// Number of indexes.
    pub(crate) fn index_count(&self) -> usize {
        self.indexes.len()
    }

    /// When it was last used, by the count of uses.
    pub(crate) fn used_at(&self) -> u64 {
        self.used_at.load(Ordering::Relaxed)
    }

    pub(crate) fn set_used_at(&self, use_count: u64) {
        self.used_at.store(use_count, Ordering::Relaxed);
    }

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
        self.build_unattended(database, target).await?;
        if database.is_deleted() { Err(ViewError::not_found("Database does not exist.")) } else { Ok(()) }
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

fn mapper_of(
    database: &str,
    design: &Design,
    plans: &OnceLock<Arc<Plans>>,
    limits: Limits,
) -> Result<Box<dyn Mapper>> {
    if design.language == Language::Query {
        let definition = |map: &MapDefinition| {
            IndexDefinition::of_view(&design.id, "", &map.source, design.is_partitioned)
        };
        return Ok(Box::new(MangoMapper(design.maps.iter().map(definition).collect())));
    }
    let sources = sources_of(design);
    let origin = format!("{database}/{}", design.id);
    let (plans, lib) = (plans_of(design, plans), design.lib.as_deref());
    Ok(Box::new(PlannedMapper::new(plans, origin, lib, &sources, limits)?))
}

fn sources_of(design: &Design) -> Vec<&str> {
    design.maps.iter().map(|map| map.source.as_str()).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
