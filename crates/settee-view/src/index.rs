//! An index: its file, its newest state for readers, and why it stopped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use settee_doc::Seq;
use settee_tree::Root;

use crate::design::MapDefinition;
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
        Ok(Index { definition, file: tokio::sync::Mutex::new(file), current, failure: Mutex::default() })
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

    /// Waits until nobody else builds it.
    pub(crate) async fn begin(&self) -> Building<'_> {
        Building { index: self, file: self.file.lock().await }
    }

    /// Whether the index has these reduce functions.
    pub(crate) fn has_reduces(&self, reduces: &[&str]) -> bool {
        has_all(&lock(&self.current).reduces, reduces)
    }

    /// Adds the reduce functions that the index lacks. The rows are copied, and no document is read.
    ///
    /// # Errors
    /// The system's error; the index is unchanged.
    pub(crate) async fn add_reduces(&self, reduces: &[&str]) -> Result<()> {
        if self.has_reduces(reduces) {
            return Ok(());
        }
        let mut building = self.begin().await;
        let own = &building.file.facts.reduces;
        if has_all(own, reduces) {
            return Ok(());
        }
        let mut all: Vec<String> = reduces.iter().map(|source| (*source).to_owned()).collect();
        all.extend(own.iter().filter(|own| !reduces.contains(&own.as_str())).cloned());
        all.truncate(REDUCERS_MAX);
        if building.file.tree.root().is_empty() && building.file.facts.seq == 0 {
            building.file.facts.reduces = all;
            *building.file = building.file.begin_anew().await?;
        } else {
            *building.file = building.file.rewrite(all).await?;
        }
        building.publish();
        Ok(())
    }

    /// Rewrites the file without garbage.
    ///
    /// # Errors
    /// As [`Index::add_reduces`].
    pub(crate) async fn compact(&self) -> Result<()> {
        let mut building = self.begin().await;
        if building.file.facts.seq == 0 {
            return Ok(());
        }
        let reduces = building.file.facts.reduces.clone();
        *building.file = building.file.rewrite(reduces).await?;
        building.publish();
        Ok(())
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
    /// The tree's; the index is unchanged.
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
    /// The system's error.
    pub(crate) async fn commit(&mut self) -> Result<()> {
        let root = self.file.tree.root();
        self.file.commit(&root).await?;
        if self.file.has_much_garbage() {
            let reduces = self.file.facts.reduces.clone();
            *self.file = self.file.rewrite(reduces).await?;
            self.publish();
        }
        Ok(())
    }

    /// Begins the index anew, without rows.
    ///
    /// # Errors
    /// The system's error; the index is unchanged.
    pub(crate) async fn reset(&mut self) -> Result<()> {
        *self.file = self.file.begin_anew().await?;
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        *lock(&self.index.current) = snapshot_of(&self.file, self.file.tree.root());
    }
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
