//! Copy-on-write updates: sorted changes, merged into their leaves in one pass.
//!
//! Changes are taken in bounded batches. Each batch descends level by level, reads the touched nodes of a
//! level at once, and comes back up: touched neighbours are merged with their changes (`merge`) and split anew
//! ([`crate::run`]), and the parent gets the resulting children. Untouched nodes aren't read; unchanged nodes
//! aren't written. Each batch rewrites its path from the root, so splitting an update costs one extra path
//! per batch.
//!
//! The caller's `decide` is called once for each change, with the key's present value, when the change is
//! merged into its leaf. A new leaf enters the node cache only if one of the leaves that it replaces was
//! cached (`is_cached`), so that an update doesn't displace what readers use; new inner nodes always do.
//! `node_count` is the number of old nodes merged into a run.
//!
//! Invariants:
//! 1. A root is never changed: replaced nodes stay in the file.
//! 2. A node that ends up below a quarter of the target is merged with a neighbour under the same parent that
//!    has enough free space. A root with one child is replaced by that child.
//! 3. A separator is removed only together with its node: keys between the separator and the node's first key
//!    keep their path.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use settee_io::yield_now;

use crate::append::Appender;
use crate::error::TreeError;
use crate::format::Pointer;
use crate::node::{Child, Node};
use crate::reduction::Reduction;
use crate::root::{Root, partition};
use crate::shared::{RootState, Shared, Top};
use crate::tree::Tree;

pub(crate) mod changes;
mod merge;

use changes::Batch;
pub use changes::Change;
use merge::{ChildListBuilder, Inserted, Merging, NewChildren, OldChildren, TouchedContent, merge_leaf};

impl<R: Reduction> Tree<R> {
    /// Applies `changes`, whose keys ascend strictly, to `root`, a root of this tree, and returns the new
    /// root. Calls `decide` for each change, in order, with its key, its payload, and the key's value in
    /// `root`; the result is the effect on the key.
    ///
    /// When it returns, the kernel has the new nodes, readers may use the new root, and [`Tree::root`]
    /// returns it. Nothing is durable before a [`Tree::commit`]. A change without effect costs no write; if
    /// no change has an effect, `root` itself is returned. Updates run one after another, in the order in
    /// which they were begun. Dropping the future leaves the tree unchanged; the bytes already appended are
    /// lost until the tree is rewritten.
    ///
    /// # Errors
    /// [`TreeError::KeyOrder`], [`TreeError::TooLarge`] and [`TreeError::NoSpace`]; [`TreeError::Damaged`]
    /// and [`TreeError::Io`] if a node can't be read: the tree is unchanged. [`TreeError::Stopped`]: no
    /// update will succeed any more.
    ///
    /// # Panics
    /// If `root` belongs to another tree.
    pub async fn update<K: AsRef<[u8]>, C>(
        &self,
        root: &Root<R>,
        changes: impl IntoIterator<Item = (K, C)>,
        mut decide: impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
    ) -> Result<Root<R>, TreeError> {
        assert!(Arc::ptr_eq(&root.shared, &self.shared), "a root of another tree");
        let mut update = Update::new(&self.shared, self.appender().await?);
        let mut working = WorkingTree::new(&root.state);
        let mut batch = Batch::new(changes.into_iter());
        let mut is_changed = false;
        while batch.fill()? {
            is_changed |= update.apply_batch(&mut working, &mut batch.changes, &mut decide).await?;
            yield_now().await;
        }
        if !is_changed {
            return Ok(root.clone());
        }
        let state = Arc::new(update.finish(working).await?);
        self.shared.newest().root = state.clone();
        Ok(self.root_of(state))
    }
}

/// The tree that the next batch starts from.
struct WorkingTree<S> {
    top: Option<Child<S>>,
    level: u8,
}

impl<S: Clone> WorkingTree<S> {
    fn new<R: Reduction<Summary = S>>(state: &RootState<R>) -> WorkingTree<S> {
        let Some(top) = &state.top else { return WorkingTree { top: None, level: 0 } };
        let child = Child {
            separator: Vec::new(),
            pointer: top.pointer,
            count: state.count,
            live_bytes: state.live_bytes,
            summary: state.summary.clone(),
        };
        WorkingTree { top: Some(child), level: top.node.level() }
    }
}

/// A node on the path of some changes.
struct Touched {
    node: Arc<Node>,
    separator: Vec<u8>,
    /// Its index among its parent's children.
    index: usize,
    changes: Range<usize>,
    /// Whether it was cached.
    is_cached: bool,
    /// Number of touched children.
    touched_count: usize,
}

struct Update<'a, R: Reduction> {
    shared: &'a Arc<Shared<R>>,
    appender: Appender<R>,
    /// Nodes replaced by this batch.
    replaced: Vec<Pointer>,
}

impl<'a, R: Reduction> Update<'a, R> {
    fn new(shared: &'a Arc<Shared<R>>, appender: Appender<R>) -> Update<'a, R> {
        Update { shared, appender, replaced: Vec::new() }
    }

    /// Waits until all nodes are in the file, and returns the new root.
    async fn finish(self, working: WorkingTree<R::Summary>) -> Result<RootState<R>, TreeError> {
        let top = match &working.top {
            Some(child) => {
                let node = self.load(child.pointer, working.level).await?.0;
                Some(Top { pointer: child.pointer, node })
            }
            None => None,
        };
        let (writer, end) = self.appender.finish().await?;
        drop(writer);
        let empty = RootState::empty(&self.shared.reduction);
        let Some(child) = working.top else { return Ok(RootState { end, ..empty }) };
        let Child { count, live_bytes, summary, .. } = child;
        Ok(RootState { top, count, live_bytes, summary, end, committed: OnceLock::new() })
    }

    /// Applies one batch; returns whether it had an effect.
    async fn apply_batch<K: AsRef<[u8]>, C>(
        &mut self,
        working: &mut WorkingTree<R::Summary>,
        changes: &mut [(K, Option<C>)],
        decide: &mut impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
    ) -> Result<bool, TreeError> {
        let Some(top) = &working.top else { return self.apply_to_empty(working, changes, decide).await };
        let levels = self.descend(top, working.level, changes).await?;
        let mut below: Vec<TouchedContent<R::Summary>> =
            levels[levels.len() - 1].iter().map(|_| TouchedContent::Entries).collect();
        for pair in levels.windows(2).rev() {
            let (parents, children) = (&pair[0], &pair[1]);
            let mut contents = below.into_iter();
            let mut first = 0;
            below = Vec::with_capacity(parents.len());
            for parent in parents {
                let last = first + parent.touched_count;
                let old_children = OldChildren::Node(&parent.node);
                let touched = &children[first..last];
                let rebuilt = self
                    .rebuild(old_children, &parent.separator, touched, &mut contents, changes, decide)
                    .await?;
                below.push(TouchedContent::Children(rebuilt));
                first = last;
            }
        }
        let rebuilt = self
            .rebuild(
                OldChildren::Top(top, working.level),
                &[],
                &levels[0],
                &mut below.into_iter(),
                changes,
                decide,
            )
            .await?;
        for pointer in self.replaced.drain(..) {
            self.shared.nodes.remove(pointer.offset);
        }
        let Some(new_children) = rebuilt else { return Ok(false) };
        *working = self.build_root(new_children, working.level).await?;
        Ok(true)
    }

    /// Applies a batch to a tree without entries.
    async fn apply_to_empty<K: AsRef<[u8]>, C>(
        &mut self,
        working: &mut WorkingTree<R::Summary>,
        changes: &mut [(K, Option<C>)],
        decide: &mut impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
    ) -> Result<bool, TreeError> {
        let mut merging = Merging::new(Vec::new());
        merge_leaf(&mut merging, None, changes, decide)?;
        let new_children = self.write_merged(0, merging).await?;
        let is_changed = !new_children.children.is_empty();
        *working = self.build_root(new_children, 0).await?;
        Ok(is_changed)
    }

    /// Loads the nodes that the changes lead to, from the root node down.
    async fn descend<K: AsRef<[u8]>, C>(
        &self,
        top: &Child<R::Summary>,
        level: u8,
        changes: &[(K, Option<C>)],
    ) -> Result<Vec<Vec<Touched>>, TreeError> {
        let (node, is_cached) = self.load(top.pointer, level).await?;
        let all = 0..changes.len();
        let top =
            Touched { node, separator: Vec::new(), index: 0, changes: all, is_cached, touched_count: 0 };
        let mut levels = vec![vec![top]];
        for level in (0..level).rev() {
            let parents = levels.last_mut().expect("it has the root's");
            let mut positions = Vec::new();
            let mut pointers = Vec::new();
            for (parent_index, parent) in parents.iter_mut().enumerate() {
                let parts =
                    partition(&parent.node, parent.changes.clone(), |index| changes[index].0.as_ref());
                parent.touched_count = parts.len();
                for (index, part) in parts {
                    pointers.push(self.shared.child_pointer(&parent.node, index)?);
                    positions.push((parent_index, index, part));
                }
            }
            let nodes = self.load_many(&pointers, level).await?;
            let touched =
                nodes.into_iter().zip(positions).map(|((node, is_cached), (parent, index, changes))| {
                    // A first child's effective separator is its parent's, whatever its own item says.
                    let separator = if index == 0 {
                        parents[parent].separator.clone()
                    } else {
                        parents[parent].node.key(index)
                    };
                    Touched { node, separator, index, changes, is_cached, touched_count: 0 }
                });
            let touched = touched.collect();
            levels.push(touched);
        }
        Ok(levels)
    }

    /// Rebuilds the children of one parent, whose separator is `lower`; `None`: unchanged.
    async fn rebuild<K: AsRef<[u8]>, C>(
        &mut self,
        old_children: OldChildren<'_, R::Summary>,
        lower: &[u8],
        touched: &[Touched],
        contents: &mut impl Iterator<Item = TouchedContent<R::Summary>>,
        changes: &mut [(K, Option<C>)],
        decide: &mut impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
    ) -> Result<Option<NewChildren<R::Summary>>, TreeError> {
        let mut touched = touched.iter().peekable();
        let mut builder = ChildListBuilder::new(old_children.level());
        for index in 0..old_children.len() {
            let old = old_children
                .child(&self.shared.reduction, index)
                .ok_or_else(|| self.shared.malformed_item(old_children.offset()))?;
            let Some(node) = touched.next_if(|node| node.index == index) else {
                self.retain_child(&mut builder, old).await?;
                continue;
            };
            let content = contents.next().expect("one for each that is touched");
            let was_open = builder.merging.is_some();
            let merging = builder.merging.get_or_insert_with(|| Merging::new(node.separator.clone()));
            let is_changed = match content {
                TouchedContent::Entries => {
                    merge_leaf(merging, Some(&node.node), &mut changes[node.changes.clone()], decide)?
                }
                TouchedContent::Children(None) => false,
                TouchedContent::Children(Some(new_children)) => {
                    merging.push_children(&self.shared.reduction, &new_children);
                    true
                }
            };
            if is_changed {
                merging.node_count += 1;
                merging.is_cached |= node.is_cached;
                builder.is_changed = true;
                self.replaced.push(old.pointer);
            } else {
                if !was_open {
                    builder.merging = None;
                }
                self.retain_child(&mut builder, old).await?;
            }
        }
        self.close(&mut builder).await?;
        let ChildListBuilder { mut new_children, is_changed, .. } = builder;
        if let Some(first) = new_children.children.first_mut() {
            first.separator = lower.to_vec();
        }
        Ok(is_changed.then_some(new_children))
    }

    /// Keeps a child unchanged, unless the merge before it is small and has enough free space for it.
    async fn retain_child(
        &mut self,
        builder: &mut ChildListBuilder<R::Summary>,
        old: Child<R::Summary>,
    ) -> Result<(), TreeError> {
        let node_bytes = self.shared.options.node_bytes;
        let level = builder.level;
        if let Some(merging) = &mut builder.merging
            && merging.should_absorb(level, node_bytes, old.pointer)
        {
            let (node, is_cached) = self.load(old.pointer, level).await?;
            merging.push_node(&node, is_cached);
            self.replaced.push(old.pointer);
            return Ok(());
        }
        self.close(builder).await?;
        builder.new_children.children.push(old);
        builder.new_children.is_appended = false;
        Ok(())
    }

    /// Writes the merged items, together with the previous child, if the merged node would be small and both
    /// fit, or if it would be an inner node with one child.
    async fn close(&mut self, builder: &mut ChildListBuilder<R::Summary>) -> Result<(), TreeError> {
        let Some(mut merging) = builder.merging.take() else { return Ok(()) };
        let (level, node_bytes) = (builder.level, self.shared.options.node_bytes);
        let before = builder
            .new_children
            .children
            .last()
            .filter(|last| merging.should_absorb(level, node_bytes, last.pointer));
        if before.is_some()
            && let Some(before) = builder.new_children.children.pop()
        {
            let (node, is_cached) = self.load(before.pointer, level).await?;
            let after = std::mem::replace(&mut merging, Merging::new(before.separator));
            merging.push_node(&node, is_cached || after.is_cached);
            merging.push_run(&after.run);
            self.replaced.push(before.pointer);
        }
        let NewChildren { children, is_appended } = self.write_merged(level, merging).await?;
        builder.new_children.children.extend(children);
        builder.new_children.is_appended = is_appended;
        Ok(())
    }

    /// Splits the merged items into nodes, and writes them.
    async fn write_merged(
        &mut self,
        level: u8,
        merging: Merging,
    ) -> Result<NewChildren<R::Summary>, TreeError> {
        let Merging { run, mut separator, node_count, is_cached, inserted } = merging;
        let inserted = match inserted {
            Inserted::Neighbours(range) if node_count <= 1 => Some(range),
            _ => None,
        };
        let mut new_children = NewChildren { children: Vec::new(), is_appended: false };
        new_children.is_appended = inserted.as_ref().is_some_and(|items| items.end == run.len());
        let mut first = 0;
        for end in run.split_into_nodes(level, self.shared.options.node_bytes, inserted) {
            let next = match level {
                _ if end == run.len() => Vec::new(),
                0 => run.separator(end).to_vec(),
                _ => run.key(end).to_vec(),
            };
            let separator = std::mem::replace(&mut separator, next);
            let keep = is_cached || level > 0;
            new_children
                .children
                .push(self.appender.append_items(&run, level, first..end, separator, keep).await?);
            first = end;
        }
        Ok(new_children)
    }

    /// Builds inner nodes over these nodes of a level, up to one root.
    async fn build_root(
        &mut self,
        mut new_children: NewChildren<R::Summary>,
        mut level: u8,
    ) -> Result<WorkingTree<R::Summary>, TreeError> {
        while new_children.children.len() > 1 {
            level += 1;
            let mut merging = Merging::new(Vec::new());
            merging.push_children(&self.shared.reduction, &new_children);
            merging.node_count = 1;
            new_children = self.write_merged(level, merging).await?;
        }
        let Some(mut top) = new_children.children.pop() else {
            return Ok(WorkingTree { top: None, level: 0 });
        };
        while level > 0 {
            let node = self.load(top.pointer, level).await?.0;
            if node.len() > 1 {
                break;
            }
            let only = node.child(&self.shared.reduction, 0);
            top = only.ok_or_else(|| self.shared.malformed_item(top.pointer.offset))?;
            level -= 1;
        }
        top.separator = Vec::new();
        Ok(WorkingTree { top: Some(top), level })
    }

    async fn load(&self, pointer: Pointer, level: u8) -> Result<(Arc<Node>, bool), TreeError> {
        let nodes = self.load_many(&[pointer], level).await?;
        Ok(nodes.into_iter().next().expect("one for each pointer"))
    }

    /// Nodes of one level, including those not written yet, and whether each was cached.
    async fn load_many(&self, pointers: &[Pointer], level: u8) -> Result<Vec<(Arc<Node>, bool)>, TreeError> {
        let mut nodes = Vec::with_capacity(pointers.len());
        let mut missing = Vec::new();
        for (index, pointer) in pointers.iter().enumerate() {
            let cached = self.shared.cached(*pointer, level);
            let is_cached = cached.is_some();
            let node = cached.or_else(|| self.appender.find(*pointer, level));
            if node.is_none() {
                missing.push(index);
            }
            nodes.push(node.map(|node| (node, is_cached)));
        }
        if !missing.is_empty() {
            let wanted: Vec<Pointer> = missing.iter().map(|index| pointers[*index]).collect();
            for (index, node) in missing.into_iter().zip(self.shared.read_many(&wanted, level).await) {
                nodes[index] = Some((node?, false));
            }
        }
        Ok(nodes.into_iter().flatten().collect())
    }
}
