//! An index: its file, its newest state for readers, and why it stopped.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use settee_doc::Seq;
use settee_tree::Root;

use crate::design::{Design, MapDefinition};
use crate::error::{Result, ViewError};
use crate::index_file::{IndexFile, IndexPlace};
use crate::merge::{MappedDocument, merge};
use crate::read::IndexSnapshot;
use crate::reduce::{IndexReduction, REDUCERS_MAX};

/// An open index. Any number of tasks read it; one at a time builds it.
pub(crate) struct Index {
    pub(crate) definition: MapDefinition,
    file: tokio::sync::Mutex<IndexFile>,
    current: Mutex<IndexSnapshot>,
    failure: Mutex<Option<ViewError>>,
    /// The open design documents that have it.
    users: Mutex<Vec<Weak<Design>>>,
    is_compacting: AtomicBool,
}

/// The index's file, while a task builds it.
pub(crate) struct Building<'a> {
    index: &'a Index,
    file: tokio::sync::MutexGuard<'a, IndexFile>,
}

impl Index {
    pub(crate) async fn open(
        place: IndexPlace,
        definition: MapDefinition,
        reduces: &[&str],
    ) -> Result<Index> {
        let file = place.open(reduces).await?;
        let current = Mutex::new(snapshot_of(&file, file.tree.root()));
        Ok(Index {
            definition,
            file: tokio::sync::Mutex::new(file),
            current,
            failure: Mutex::default(),
            users: Mutex::default(),
            is_compacting: AtomicBool::new(false),
        })
    }

    /// The newest state.
    pub(crate) fn snapshot(&self) -> IndexSnapshot {
        lock(&self.current).clone()
    }

    /// Why the index isn't built any more.
    pub(crate) fn failure(&self) -> Option<ViewError> {
        lock(&self.failure).clone()
    }

    /// Stops the index: its function must not be called any more.
    pub(crate) fn fail(&self, error: ViewError) {
        tracing::error!(%error, index = self.definition.signature.text(), "a map function stopped its view");
        *lock(&self.failure) = Some(error);
    }

    /// Waits until nobody else builds it. An index whose file is unusable is begun anew.
    ///
    /// # Errors
    /// The system's error, if that isn't possible.
    pub(crate) async fn begin(&self) -> Result<Building<'_>> {
        let mut building = Building { index: self, file: self.file.lock().await };
        if building.file.is_unusable().await {
            tracing::warn!(
                index = self.definition.signature.text(),
                "an index is unusable, and is built anew"
            );
            building.reset().await?;
        }
        Ok(building)
    }

    /// Registers a design document that has the index: its reduce functions are kept as long as it lives.
    pub(crate) fn add_user(&self, design: &Arc<Design>) {
        let mut users = lock(&self.users);
        users.retain(|user| user.strong_count() > 0);
        users.push(Arc::downgrade(design));
    }

    /// The reduce functions that open design documents have.
    fn needed(&self) -> HashSet<String> {
        let users: Vec<Arc<Design>> = lock(&self.users).iter().filter_map(Weak::upgrade).collect();
        let reduces_of = |design: &Arc<Design>| {
            let map = design.maps.iter().position(|map| map.signature == self.definition.signature);
            let reduces = map.map(|map| design.reduces_of(map)).unwrap_or_default();
            reduces.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        users.iter().flat_map(reduces_of).collect()
    }

    /// The index's reduce functions with `reduces` added, as far as it can have them. If it can't have them all, those
    /// go that no open design document has.
    fn extended(&self, own: &[String], reduces: &[&str]) -> Vec<String> {
        let mut all = own.to_vec();
        all.extend(
            reduces.iter().filter(|new| !own.iter().any(|own| own == *new)).map(|new| (*new).to_owned()),
        );
        if all.len() > REDUCERS_MAX {
            let needed = self.needed();
            all.retain(|reduce| needed.contains(reduce));
            all.truncate(REDUCERS_MAX);
        }
        all
    }

    /// Whether the index has these reduce functions, as far as it can.
    pub(crate) fn has_reduces(&self, reduces: &[&str]) -> bool {
        let own = lock(&self.current).reduces.clone();
        has_all(&own, reduces) || has_all(&own, &as_strs(&self.extended(&own, reduces)))
    }

    /// Adds the reduce functions that the index lacks, as far as it can have them. The rows are copied, and no document
    /// is read.
    ///
    /// # Errors
    /// The system's error; the index is unchanged.
    pub(crate) async fn add_reduces(&self, reduces: &[&str]) -> Result<()> {
        if self.has_reduces(reduces) {
            return Ok(());
        }
        let mut building = self.begin().await?;
        let all = self.extended(&building.file.facts.reduces, reduces);
        if has_all(&building.file.facts.reduces, &as_strs(&all)) {
            return Ok(());
        }
        *building.file = match building.file.tree.root().is_empty() && building.file.facts.seq == 0 {
            true => building.file.begin_anew(all).await?,
            false => building.file.rewrite(all).await?,
        };
        building.publish();
        Ok(())
    }

    /// Whether [`Index::compact`] waits or runs.
    pub(crate) fn is_compacting(&self) -> bool {
        self.is_compacting.load(Ordering::Relaxed)
    }

    /// Rewrites the file without garbage, and without the reduce functions that no open design document has. Does
    /// nothing if another task does.
    ///
    /// # Errors
    /// As [`Index::add_reduces`].
    pub(crate) async fn compact(&self) -> Result<()> {
        if self.is_compacting.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let _compacting = Compacting(self);
        let mut building = self.begin().await?;
        if building.file.facts.seq == 0 {
            return Ok(());
        }
        let needed = self.needed();
        let mut reduces = building.file.facts.reduces.clone();
        reduces.retain(|reduce| needed.contains(reduce));
        *building.file = building.file.rewrite(reduces).await?;
        building.publish();
        Ok(())
    }
}

/// A compaction, which ends on drop.
struct Compacting<'a>(&'a Index);

impl Drop for Compacting<'_> {
    fn drop(&mut self) {
        self.0.is_compacting.store(false, Ordering::Relaxed);
    }
}

impl Building<'_> {
    /// The last change that the index has, and the last purge.
    pub(crate) fn reached(&self) -> (Seq, u64) {
        (Seq(self.file.facts.seq), self.file.facts.purge_seq)
    }

    pub(crate) fn index(&self) -> &Index {
        self.index
    }

    /// Merges documents, after which the index has all changes up to `seq`, and purges up to `purge_seq`. Readers see
    /// them; they are durable after [`Building::commit`].
    ///
    /// # Errors
    /// The tree's; readers see none of it.
    pub(crate) async fn merge(
        &mut self,
        documents: Vec<MappedDocument>,
        seq: Seq,
        purge_seq: u64,
    ) -> Result<()> {
        merge(&mut self.file, documents).await?;
        self.file.facts.seq = seq.0;
        self.file.facts.purge_seq = purge_seq;
        self.publish();
        Ok(())
    }

    /// Makes what was merged durable, and rewrites the file if most of it is garbage.
    ///
    /// # Errors
    /// The system's error of the first; one of the rewriting is logged only.
    pub(crate) async fn commit(&mut self) -> Result<()> {
        let root = self.file.tree.root();
        self.file.commit(&root).await?;
        if self.file.has_much_garbage() {
            let reduces = self.file.facts.reduces.clone();
            match self.file.rewrite(reduces).await {
                Ok(file) => {
                    *self.file = file;
                    self.publish();
                }
                Err(error) => {
                    let index = self.index.definition.signature.text();
                    tracing::warn!(%error, index, "an index can't be rewritten without its garbage");
                }
            }
        }
        Ok(())
    }

    /// Begins the index anew, without rows.
    ///
    /// # Errors
    /// The system's error; the index is unchanged.
    pub(crate) async fn reset(&mut self) -> Result<()> {
        let reduces = self.file.facts.reduces.clone();
        *self.file = self.file.begin_anew(reduces).await?;
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        *lock(&self.index.current) = snapshot_of(&self.file, self.file.tree.root());
    }
}

fn as_strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn has_all(own: &[String], reduces: &[&str]) -> bool {
    reduces.iter().all(|source| own.iter().any(|own| own == source))
}

fn snapshot_of(file: &IndexFile, root: Root<IndexReduction>) -> IndexSnapshot {
    IndexSnapshot {
        root,
        reduction: file.reduction.clone(),
        reduces: file.facts.reduces.clone().into(),
        seq: Seq(file.facts.seq),
        purge_seq: file.facts.purge_seq,
        is_reduced_from_rows: false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("signature", &self.definition.signature.text()).finish_non_exhaustive()
    }
}

/// Indexes of a design document, by map function.
pub(crate) type IndexList = Vec<Arc<Index>>;
