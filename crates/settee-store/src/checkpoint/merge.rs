//! Merges immutable memtables into the tree: leaf by leaf, or to a new file.
//!
//! Both ways read the old tree in the order of keys. Since that yields the previous pointers of each key, the
//! live bytes of each segment stay exact.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use settee_io::yield_now;
use settee_tree::{Change, Root, Scan, Tree, TreeBuilder, TreeError};

use super::cost::is_whole_cheaper;
use super::input::{Changes, CheckpointInput};
use crate::error::{ReadError, StoreError};
use crate::index::{self, BY_SEQ, EntryView, IndexAggregates, Pointer};
use crate::manifest::{StoreSection, tree_name};
use crate::shared::StoreContext;
use crate::version::{CheckpointFacts, CheckpointTree, Live};

/// Number of rows between two yields to other tasks.
const YIELD_COUNT: usize = 1024;

/// Result of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The checkpoint's last record.
    pub seq: u64,
    /// Number of keys merged into the tree.
    pub key_count: u64,
    /// Whether the tree was written to a new file.
    pub is_whole: bool,
}

/// Live bytes and records by segment, updated as pointers are added and removed.
struct LiveCounter {
    live: BTreeMap<u32, Live>,
}

impl LiveCounter {
    fn add(&mut self, pointer: &Pointer) {
        let live = self.live.entry(pointer.location.segment).or_default();
        live.bytes += u64::from(pointer.location.length);
        live.count += 1;
    }

    fn remove(&mut self, pointer: &Pointer) {
        let segment = pointer.location.segment;
        let live = self.live.get_mut(&segment).expect("a replaced record was counted");
        live.bytes -= u64::from(pointer.location.length);
        live.count -= 1;
        if live.count == 0 {
            self.live.remove(&segment);
        }
    }
}

/// Merges a key's memtable entry with its previous entry in the tree.
fn decide(
    live_counter: &mut LiveCounter,
    key: &[u8],
    new: &[u8],
    previous: Option<&[u8]>,
) -> Result<Change, ReadError> {
    let new_view = EntryView::trusted(new);
    if key.first() == Some(&BY_SEQ) {
        return Ok(if new_view.is_tombstone() { Change::Remove } else { Change::Put(new.to_vec()) });
    }
    let previous = previous.map(index::decode).transpose()?;
    let old: Vec<Pointer> = previous.iter().flat_map(EntryView::pointers).collect();
    let mut pointers: Vec<Pointer> = new_view.pointers().collect();
    if !new_view.is_whole() {
        pointers.extend(&old);
    }
    // Records older than the first base value are not needed.
    let count = pointers.iter().position(|pointer| pointer.is_base).map_or(pointers.len(), |at| at + 1);
    pointers.truncate(count);
    old.iter().for_each(|pointer| live_counter.remove(pointer));
    pointers.iter().for_each(|pointer| live_counter.add(pointer));
    if new_view.is_tombstone() {
        return Ok(Change::Remove);
    }
    let mut bytes = Vec::with_capacity(new.len());
    new_view.encode_with(&pointers[1..], &mut bytes);
    Ok(Change::Put(bytes))
}

impl StoreContext {
    /// Merges the memtables into the tree, and commits its root. With `rewrites_tree` it writes a new file. `section`
    /// names the tree then; the caller installs it.
    pub(super) async fn merge(
        &self,
        input: &CheckpointInput,
        rewrites_tree: bool,
        section: &mut StoreSection,
    ) -> Result<(CheckpointTree, CheckpointFacts, Checkpoint), StoreError> {
        let key_count = input.key_count();
        let mut live_counter = LiveCounter { live: (*input.checkpoint.live).clone() };
        let done = |is_whole| Checkpoint { seq: input.seq, key_count, is_whole };
        // A retry of a checkpoint that failed after its commit can't commit the same `Seq` to that file
        // again.
        let has_newer_root = |tree: &CheckpointTree| tree.tree.committed().seq() >= input.seq;
        if let Some(tree) =
            input.checkpoint.tree.as_ref().filter(|tree| !rewrites_tree && !has_newer_root(tree))
            && !is_whole_cheaper(tree, &input.memtables).await?
        {
            match self.change_touched(tree, input, &mut live_counter).await {
                // The file takes no more writes: its contents go into the next file.
                Err(StoreError::Tree(TreeError::Stopped { source })) => {
                    tracing::warn!(%source, directory = %self.directory.display(), "writing a new tree file");
                    live_counter.live = (*input.checkpoint.live).clone();
                }
                changed => {
                    let root = changed?;
                    let facts = CheckpointFacts {
                        last_in_seq_index: input.last_in_seq_index,
                        live: live_counter.live,
                    };
                    tree.tree.commit(&root, input.seq, &facts.encode()).await?;
                    // If nothing changed, the root is the previous one, with its own `Seq`.
                    let root = tree.tree.committed();
                    return Ok((CheckpointTree { root, ..tree.clone() }, facts, done(false)));
                }
            }
        }
        let number = self.new_file_number();
        let path = self.directory.join(tree_name(number));
        match self.write_tree(&path, &section.incarnation, input, live_counter).await {
            Ok((tree, facts)) => {
                section.tree = Some(number);
                let tree = CheckpointTree::new(&self.env, number, path, tree);
                Ok((tree, facts, done(true)))
            }
            Err(error) => {
                // It may have used the last free space.
                self.remove_file(&path).await;
                Err(error)
            }
        }
    }

    /// Writes the tree merged with the memtables to a new file, and makes it durable.
    async fn write_tree(
        &self,
        path: &Path,
        incarnation: &[u8; 16],
        input: &CheckpointInput,
        mut live_counter: LiveCounter,
    ) -> Result<(Arc<Tree<IndexAggregates>>, CheckpointFacts), StoreError> {
        let (options, aggregates) = (self.tree_options(incarnation), IndexAggregates(self.options.aggregate));
        let mut builder = TreeBuilder::create(&self.env, path, options, aggregates).await?;
        self.write_anew(&mut builder, input, &mut live_counter).await?;
        let facts = CheckpointFacts { last_in_seq_index: input.last_in_seq_index, live: live_counter.live };
        let tree = builder.finish(input.seq, &facts.encode()).await?;
        self.sync_directory().await?;
        Ok((Arc::new(tree), facts))
    }

    /// Changes the leaves that the memtables touch.
    async fn change_touched(
        &self,
        CheckpointTree { tree, root, .. }: &CheckpointTree,
        input: &CheckpointInput,
        live_counter: &mut LiveCounter,
    ) -> Result<Root<IndexAggregates>, StoreError> {
        let mut damaged: Result<(), ReadError> = Ok(());
        let changed = tree
            .update(root, Changes::new(&input.memtables), |key, new: Vec<u8>, previous| {
                decide(live_counter, key, &new, previous).unwrap_or_else(|error| {
                    damaged = Err(error);
                    Change::Keep
                })
            })
            .await?;
        damaged?;
        Ok(changed)
    }

    /// Writes the old tree merged with the changes, in the order of keys.
    async fn write_anew(
        &self,
        builder: &mut TreeBuilder<IndexAggregates>,
        input: &CheckpointInput,
        live_counter: &mut LiveCounter,
    ) -> Result<(), StoreError> {
        let mut old = OldRows::begin(input.checkpoint.tree.as_ref()).await?;
        for (count, (key, new)) in Changes::new(&input.memtables).enumerate() {
            while old.is_valid && old.key < key {
                builder.push(&old.key, &old.value).await?;
                old.advance().await?;
            }
            let is_known = old.is_valid && old.key == key;
            let previous = is_known.then_some(&old.value[..]);
            if let Change::Put(value) = decide(live_counter, &key, &new, previous)? {
                builder.push(&key, &value).await?;
            }
            if is_known {
                old.advance().await?;
            }
            if count % YIELD_COUNT == 0 {
                yield_now().await;
            }
        }
        while old.is_valid {
            builder.push(&old.key, &old.value).await?;
            old.advance().await?;
        }
        Ok(())
    }
}

/// The rows of the tree that is to be replaced, in the order of keys.
struct OldRows {
    scan: Option<Scan<IndexAggregates>>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether there is a current row.
    is_valid: bool,
    count: usize,
}

impl OldRows {
    async fn begin(tree: Option<&CheckpointTree>) -> Result<OldRows, ReadError> {
        let scan = tree.map(|tree| tree.root.scan((Bound::Unbounded, Bound::Unbounded), false));
        let mut rows = OldRows { scan, key: Vec::new(), value: Vec::new(), is_valid: false, count: 0 };
        rows.advance().await?;
        Ok(rows)
    }

    async fn advance(&mut self) -> Result<(), ReadError> {
        let Some(scan) = &mut self.scan else { return Ok(()) };
        let row = scan.next().await?;
        self.is_valid = row.is_some();
        if let Some((key, value)) = row {
            self.key.clear();
            self.key.extend_from_slice(key);
            self.value.clear();
            self.value.extend_from_slice(value);
        }
        self.count += 1;
        if self.count.is_multiple_of(YIELD_COUNT) {
            yield_now().await;
        }
        Ok(())
    }
}
