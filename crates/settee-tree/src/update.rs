//! Copy-on-write updates: sorted changes, merged into the leaves they fall in, in one pass.
//!
//! Changes are taken in bounded batches. Each goes down level by level, reading what it touches of
//! a level at once, and comes back up: touched nodes that are neighbours are merged with their
//! changes and cut anew ([`Run`]), and their parent gets what came of them. What isn't touched
//! isn't read; what comes out as it was isn't written. A batch costs one more path than the
//! update as a whole would, since the next one starts from its root.
//!
//! Invariants:
//! 1. A root is never changed: what is replaced stays in the file.
//! 2. A node that comes out below a quarter of the target is merged with a neighbour under the
//!    same parent that has room for it. A root with one child gives way to it.
//! 3. A separator, once a node lies behind it, only goes with that node: keys between it and the
//!    first one keep their way.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use settee_io::yield_now;

use crate::append::Appender;
use crate::error::TreeError;
use crate::format::{KEY_SIZE_MAX, Pointer, VALUE_SIZE_MAX};
use crate::node::{Child, Node};
use crate::reduction::Reduction;
use crate::root::{Root, partition};
use crate::run::{Run, items_min};
use crate::shared::{RootState, Shared, Top};
use crate::tree::Tree;

/// How many changes go down the tree at once: the leaves they touch are in memory together.
const CHANGES_AT_ONCE_MAX: usize = 8192;

/// How many bytes of keys go down at once.
const KEY_BYTES_AT_ONCE_MAX: usize = 1 << 20;

/// A node below this share of the target is merged with a neighbour.
const SMALL_SHARE: usize = 4;

/// What becomes of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It stays as it is, there or not.
    Keep,
    /// It has this value from now on.
    Put(Vec<u8>),
    /// It isn't there any more.
    Remove,
}

impl<R: Reduction> Tree<R> {
    /// The state that comes of `root`, a root of this tree, by `changes`, whose keys ascend
    /// strictly. For each of them, in order, `decide` is told the key, what came with it, and the
    /// value that the key has in `root`, and says what becomes of it.
    ///
    /// When it returns, the new nodes are in the system's hands, readers may use the new root, and
    /// [`Tree::root`] gives it. Nothing is durable before a [`Tree::commit`]. A change that makes
    /// no difference costs no write; where none makes one, the root given is the root returned.
    /// Updates come one after another, in the order in which they were begun. Dropping the future
    /// leaves the tree as it was, but for room in the file that is lost until the tree is written
    /// anew.
    ///
    /// # Errors
    /// [`TreeError::KeyOrder`], [`TreeError::TooLarge`] and [`TreeError::NoSpace`];
    /// [`TreeError::Damaged`] and [`TreeError::Io`] where a node can't be read: the tree is as it
    /// was. [`TreeError::Stopped`]: no update will succeed any more.
    ///
    /// # Panics
    /// Where `root` is another tree's.
    pub async fn update<K: AsRef<[u8]>, C>(
        &self,
        root: &Root<R>,
        changes: impl IntoIterator<Item = (K, C)>,
        mut decide: impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
    ) -> Result<Root<R>, TreeError> {
        assert!(Arc::ptr_eq(&root.shared, &self.shared), "a root of another tree");
        let mut update = Update::new(&self.shared, self.appender().await?);
        let mut base = Base::new(&root.state);
        let mut batch = Batch::new(changes.into_iter());
        let mut is_changed = false;
        while batch.fill()? {
            is_changed |= update.pass(&mut base, &mut batch.changes, &mut decide).await?;
            yield_now().await;
        }
        if !is_changed {
            return Ok(root.clone());
        }
        let state = Arc::new(update.finish(base).await?);
        self.shared.newest().root = state.clone();
        Ok(self.root_of(state))
    }
}

/// Changes on their way: those that go down next, and those that are still to come.
struct Batch<K, C, I> {
    source: I,
    changes: Vec<(K, Option<C>)>,
    /// The last key of the batch before.
    last_key: Option<K>,
    taken_count: u64,
}

impl<K: AsRef<[u8]>, C, I: Iterator<Item = (K, C)>> Batch<K, C, I> {
    fn new(source: I) -> Batch<K, C, I> {
        Batch { source, changes: Vec::new(), last_key: None, taken_count: 0 }
    }

    /// Takes the next changes; `false` after the last.
    fn fill(&mut self) -> Result<bool, TreeError> {
        if let Some((key, _)) = self.changes.pop() {
            self.last_key = Some(key);
            self.changes.clear();
        }
        let mut key_bytes = 0;
        while self.changes.len() < CHANGES_AT_ONCE_MAX && key_bytes < KEY_BYTES_AT_ONCE_MAX {
            let Some((key, change)) = self.source.next() else { break };
            let before = self.changes.last().map(|(key, _)| key).or(self.last_key.as_ref());
            if before.is_some_and(|before| before.as_ref() >= key.as_ref()) {
                return Err(TreeError::KeyOrder { index: self.taken_count });
            }
            check_size("a key", key.as_ref().len(), KEY_SIZE_MAX)?;
            key_bytes += key.as_ref().len();
            self.taken_count += 1;
            self.changes.push((key, Some(change)));
        }
        Ok(!self.changes.is_empty())
    }
}

pub(crate) fn check_size(what: &'static str, size: usize, max: usize) -> Result<(), TreeError> {
    if size > max { Err(TreeError::TooLarge { what, size, max }) } else { Ok(()) }
}

/// The tree that the next batch starts from.
struct Base<S> {
    top: Option<Child<S>>,
    level: u8,
}

impl<S: Clone> Base<S> {
    fn new<R: Reduction<Summary = S>>(state: &RootState<R>) -> Base<S> {
        let Some(top) = &state.top else { return Base { top: None, level: 0 } };
        let child = Child {
            separator: Vec::new(),
            pointer: top.pointer,
            count: state.count,
            live_bytes: state.live_bytes,
            summary: state.summary.clone(),
        };
        Base { top: Some(child), level: top.node.level() }
    }
}

/// A node on the way of some changes.
struct Touched {
    node: Arc<Node>,
    separator: Vec<u8>,
    /// Which child of its parent it is.
    index: usize,
    changes: Range<usize>,
    /// The cache had it.
    is_hot: bool,
    /// How many of the nodes one level down are its children.
    touched_count: usize,
}

/// What was made of a touched node's items.
enum Content<S> {
    /// A leaf's are still to be merged.
    Entries,
    /// An inner node's children; `None`: as they were.
    Children(Option<Grown<S>>),
}

/// New children of one parent.
struct Grown<S> {
    children: Vec<Child<S>>,
    /// Some of the last came of entries in order behind all others.
    is_appended: bool,
}

/// Neighbours under one parent that are merged.
struct Merging {
    run: Run,
    separator: Vec<u8>,
    node_count: usize,
    is_hot: bool,
    inserted: Inserted,
}

/// Which items are new, where those are neighbours.
#[derive(Default)]
enum Inserted {
    #[default]
    None,
    Neighbours(Range<usize>),
    Scattered,
}

impl Inserted {
    fn add(&mut self, index: usize) {
        *self = match self {
            Inserted::None => Inserted::Neighbours(index..index + 1),
            Inserted::Neighbours(range) if range.end == index => Inserted::Neighbours(range.start..index + 1),
            _ => Inserted::Scattered,
        };
    }
}

struct Update<'a, R: Reduction> {
    shared: &'a Arc<Shared<R>>,
    appender: Appender<R>,
    /// Nodes that the pass has replaced.
    replaced: Vec<Pointer>,
}

impl<'a, R: Reduction> Update<'a, R> {
    fn new(shared: &'a Arc<Shared<R>>, appender: Appender<R>) -> Update<'a, R> {
        Update { shared, appender, replaced: Vec::new() }
    }

    /// Waits until all nodes are in the file, and gives the new state.
    async fn finish(self, base: Base<R::Summary>) -> Result<RootState<R>, TreeError> {
        let top = match &base.top {
            Some(child) => {
                let node = self.load(child.pointer, base.level).await?.0;
                Some(Top { pointer: child.pointer, node })
            }
            None => None,
        };
        let (writer, end) = self.appender.finish().await?;
        drop(writer);
        let empty = RootState::empty(&self.shared.reduction);
        let Some(child) = base.top else { return Ok(RootState { end, ..empty }) };
        let Child { count, live_bytes, summary, .. } = child;
        Ok(RootState { top, count, live_bytes, summary, end, committed: OnceLock::new() })
    }

    /// One batch; whether it made a difference.
    async fn pass<K: AsRef<[u8]>, C>(
        &mut self,
        base: &mut Base<R::Summary>,
        changes: &mut [(K, Option<C>)],
        decide: &mut impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
    ) -> Result<bool, TreeError> {
        let Some(top) = &base.top else { return self.first_pass(base, changes, decide).await };
        let levels = self.descend(top, base.level, changes).await?;
        let mut below: Vec<Content<R::Summary>> =
            levels[levels.len() - 1].iter().map(|_| Content::Entries).collect();
        for pair in levels.windows(2).rev() {
            let (parents, children) = (&pair[0], &pair[1]);
            let mut contents = below.into_iter();
            let mut first = 0;
            below = Vec::with_capacity(parents.len());
            for parent in parents {
                let last = first + parent.touched_count;
                let olds = Olds::Node(&parent.node);
                let touched = &children[first..last];
                let rebuilt =
                    self.rebuild(olds, &parent.separator, touched, &mut contents, changes, decide).await?;
                below.push(Content::Children(rebuilt));
                first = last;
            }
        }
        let rebuilt = self
            .rebuild(Olds::Top(top, base.level), &[], &levels[0], &mut below.into_iter(), changes, decide)
            .await?;
        for pointer in self.replaced.drain(..) {
            self.shared.nodes.remove(pointer.offset);
        }
        let Some(grown) = rebuilt else { return Ok(false) };
        *base = self.grow(grown, base.level).await?;
        Ok(true)
    }

    /// A batch into a tree without entries.
    async fn first_pass<K: AsRef<[u8]>, C>(
        &mut self,
        base: &mut Base<R::Summary>,
        changes: &mut [(K, Option<C>)],
        decide: &mut impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
    ) -> Result<bool, TreeError> {
        let mut merging = Merging::new(Vec::new());
        merge_leaf(&mut merging, None, changes, decide)?;
        let grown = self.cut(0, merging).await?;
        let is_changed = !grown.children.is_empty();
        *base = self.grow(grown, 0).await?;
        Ok(is_changed)
    }

    /// The nodes that the changes lead to, from the root node down.
    async fn descend<K: AsRef<[u8]>, C>(
        &self,
        top: &Child<R::Summary>,
        level: u8,
        changes: &[(K, Option<C>)],
    ) -> Result<Vec<Vec<Touched>>, TreeError> {
        let (node, is_hot) = self.load(top.pointer, level).await?;
        let all = 0..changes.len();
        let top = Touched { node, separator: Vec::new(), index: 0, changes: all, is_hot, touched_count: 0 };
        let mut levels = vec![vec![top]];
        for level in (0..level).rev() {
            let parents = levels.last_mut().expect("it has the root's");
            let mut places = Vec::new();
            let mut pointers = Vec::new();
            for (parent_index, parent) in parents.iter_mut().enumerate() {
                let parts =
                    partition(&parent.node, parent.changes.clone(), |index| changes[index].0.as_ref());
                parent.touched_count = parts.len();
                for (index, part) in parts {
                    pointers.push(self.shared.child_pointer(&parent.node, index)?);
                    places.push((parent_index, index, part));
                }
            }
            let nodes = self.load_many(&pointers, level).await?;
            let touched = nodes.into_iter().zip(places).map(|((node, is_hot), (parent, index, changes))| {
                // A first child's separator is its parent's, whatever its parent still says.
                let separator = if index == 0 {
                    parents[parent].separator.clone()
                } else {
                    parents[parent].node.key(index)
                };
                Touched { node, separator, index, changes, is_hot, touched_count: 0 }
            });
            let touched = touched.collect();
            levels.push(touched);
        }
        Ok(levels)
    }

    /// What becomes of the children of one parent, whose separator is `lower`; `None`: nothing.
    async fn rebuild<K: AsRef<[u8]>, C>(
        &mut self,
        olds: Olds<'_, R::Summary>,
        lower: &[u8],
        touched: &[Touched],
        contents: &mut impl Iterator<Item = Content<R::Summary>>,
        changes: &mut [(K, Option<C>)],
        decide: &mut impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
    ) -> Result<Option<Grown<R::Summary>>, TreeError> {
        let mut touched = touched.iter().peekable();
        let mut rebuilt = Rebuilt::new(olds.level());
        for index in 0..olds.len() {
            let old = olds
                .child(&self.shared.reduction, index)
                .ok_or_else(|| self.shared.senseless(olds.offset()))?;
            let Some(node) = touched.next_if(|node| node.index == index) else {
                self.keep(&mut rebuilt, old).await?;
                continue;
            };
            let content = contents.next().expect("one for each that is touched");
            let was_open = rebuilt.merging.is_some();
            let merging = rebuilt.merging.get_or_insert_with(|| Merging::new(node.separator.clone()));
            let is_changed = match content {
                Content::Entries => {
                    merge_leaf(merging, Some(&node.node), &mut changes[node.changes.clone()], decide)?
                }
                Content::Children(None) => false,
                Content::Children(Some(grown)) => {
                    merging.push_children(&self.shared.reduction, &grown);
                    true
                }
            };
            if is_changed {
                merging.node_count += 1;
                merging.is_hot |= node.is_hot;
                rebuilt.is_changed = true;
                self.replaced.push(old.pointer);
            } else {
                if !was_open {
                    rebuilt.merging = None;
                }
                self.keep(&mut rebuilt, old).await?;
            }
        }
        self.close(&mut rebuilt).await?;
        let Rebuilt { mut grown, is_changed, .. } = rebuilt;
        if let Some(first) = grown.children.first_mut() {
            first.separator = lower.to_vec();
        }
        Ok(is_changed.then_some(grown))
    }

    /// A child stays as it is, unless what is being merged before it is small and has room for it.
    async fn keep(
        &mut self,
        rebuilt: &mut Rebuilt<R::Summary>,
        old: Child<R::Summary>,
    ) -> Result<(), TreeError> {
        let node_bytes = self.shared.options.node_bytes;
        let level = rebuilt.level;
        if let Some(merging) = &mut rebuilt.merging
            && merging.wants(level, node_bytes, old.pointer)
        {
            let (node, is_hot) = self.load(old.pointer, level).await?;
            merging.push_node(&node, is_hot);
            self.replaced.push(old.pointer);
            return Ok(());
        }
        self.close(rebuilt).await?;
        rebuilt.grown.children.push(old);
        rebuilt.grown.is_appended = false;
        Ok(())
    }

    /// Writes what is being merged, together with the child before it where it is small.
    async fn close(&mut self, rebuilt: &mut Rebuilt<R::Summary>) -> Result<(), TreeError> {
        let Some(mut merging) = rebuilt.merging.take() else { return Ok(()) };
        let (level, node_bytes) = (rebuilt.level, self.shared.options.node_bytes);
        let before =
            rebuilt.grown.children.last().filter(|last| merging.wants(level, node_bytes, last.pointer));
        if before.is_some()
            && let Some(before) = rebuilt.grown.children.pop()
        {
            let (node, is_hot) = self.load(before.pointer, level).await?;
            let after = std::mem::replace(&mut merging, Merging::new(before.separator));
            merging.push_node(&node, is_hot || after.is_hot);
            merging.push_run(&after.run);
            self.replaced.push(before.pointer);
        }
        let Grown { children, is_appended } = self.cut(level, merging).await?;
        rebuilt.grown.children.extend(children);
        rebuilt.grown.is_appended = is_appended;
        Ok(())
    }

    /// Cuts what was merged into nodes, and writes them.
    async fn cut(&mut self, level: u8, merging: Merging) -> Result<Grown<R::Summary>, TreeError> {
        let Merging { run, mut separator, node_count, is_hot, inserted } = merging;
        let inserted = match inserted {
            Inserted::Neighbours(range) if node_count <= 1 => Some(range),
            _ => None,
        };
        let mut grown = Grown { children: Vec::new(), is_appended: false };
        grown.is_appended = inserted.as_ref().is_some_and(|items| items.end == run.len());
        let mut first = 0;
        for end in run.cut(level, self.shared.options.node_bytes, inserted) {
            let next = match level {
                _ if end == run.len() => Vec::new(),
                0 => run.separator(end).to_vec(),
                _ => run.key(end).to_vec(),
            };
            let separator = std::mem::replace(&mut separator, next);
            let keep = is_hot || level > 0;
            grown.children.push(self.appender.append_items(&run, level, first..end, separator, keep).await?);
            first = end;
        }
        Ok(grown)
    }

    /// A tree over these nodes of a level.
    async fn grow(
        &mut self,
        mut grown: Grown<R::Summary>,
        mut level: u8,
    ) -> Result<Base<R::Summary>, TreeError> {
        while grown.children.len() > 1 {
            level += 1;
            let mut merging = Merging::new(Vec::new());
            merging.push_children(&self.shared.reduction, &grown);
            merging.node_count = 1;
            grown = self.cut(level, merging).await?;
        }
        let Some(mut top) = grown.children.pop() else { return Ok(Base { top: None, level: 0 }) };
        while level > 0 {
            let node = self.load(top.pointer, level).await?.0;
            if node.len() > 1 {
                break;
            }
            let only = node.child(&self.shared.reduction, 0);
            top = only.ok_or_else(|| self.shared.senseless(top.pointer.offset))?;
            level -= 1;
        }
        top.separator = Vec::new();
        Ok(Base { top: Some(top), level })
    }

    async fn load(&self, pointer: Pointer, level: u8) -> Result<(Arc<Node>, bool), TreeError> {
        let nodes = self.load_many(&[pointer], level).await?;
        Ok(nodes.into_iter().next().expect("one for each pointer"))
    }

    /// Nodes of one level, also those that are on their way to the file, and whether the cache
    /// has them.
    async fn load_many(&self, pointers: &[Pointer], level: u8) -> Result<Vec<(Arc<Node>, bool)>, TreeError> {
        let mut nodes = Vec::with_capacity(pointers.len());
        let mut missing = Vec::new();
        for (index, pointer) in pointers.iter().enumerate() {
            let cached = self.shared.cached(*pointer, level);
            let is_hot = cached.is_some();
            let node = cached.or_else(|| self.appender.find(*pointer, level));
            if node.is_none() {
                missing.push(index);
            }
            nodes.push(node.map(|node| (node, is_hot)));
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

/// Merges changes into a leaf's entries, behind those of the leaves before; whether they made a
/// difference. If not, nothing is added.
fn merge_leaf<K: AsRef<[u8]>, C>(
    merging: &mut Merging,
    leaf: Option<&Node>,
    changes: &mut [(K, Option<C>)],
    decide: &mut impl FnMut(&[u8], C, Option<&[u8]>) -> Change,
) -> Result<bool, TreeError> {
    let mark = merging.run.len();
    let mut is_changed = false;
    let mut copied = 0;
    for (key, change) in changes {
        let key = key.as_ref();
        let place = leaf.map_or(Err(0), |leaf| leaf.search(key));
        let previous = leaf.zip(place.ok()).map(|(leaf, index)| leaf.payload(index));
        let change = change.take().expect("each is decided once");
        let decision = decide(key, change, previous);
        if decision == Change::Keep {
            continue;
        }
        if let Some(leaf) = leaf {
            let (Ok(index) | Err(index)) = place;
            merging.run.push_items(leaf, copied..index);
            copied = index + usize::from(place.is_ok());
        }
        match decision {
            Change::Put(value) => {
                check_size("a value", value.len(), VALUE_SIZE_MAX)?;
                is_changed |= previous != Some(&value[..]);
                if previous.is_none() {
                    merging.inserted.add(merging.run.len());
                }
                merging.run.push(key, &value);
            }
            Change::Remove | Change::Keep => is_changed |= previous.is_some(),
        }
    }
    match leaf {
        _ if !is_changed => merging.run.truncate(mark),
        Some(leaf) => merging.run.push_items(leaf, copied..leaf.len()),
        None => {}
    }
    Ok(is_changed)
}

/// The children of a parent before the update.
enum Olds<'a, S> {
    Node(&'a Node),
    /// The root node alone, of this level: it has no parent.
    Top(&'a Child<S>, u8),
}

impl<S: Clone> Olds<'_, S> {
    fn len(&self) -> usize {
        match self {
            Olds::Node(node) => node.len(),
            Olds::Top(..) => 1,
        }
    }

    fn child<R: Reduction<Summary = S>>(&self, reduction: &R, index: usize) -> Option<Child<S>> {
        match self {
            Olds::Node(node) => node.child(reduction, index),
            Olds::Top(top, _) => Some((*top).clone()),
        }
    }

    /// Where the parent lies.
    fn offset(&self) -> u64 {
        match self {
            Olds::Node(node) => node.offset(),
            Olds::Top(top, _) => top.pointer.offset,
        }
    }

    /// The children's level.
    fn level(&self) -> u8 {
        match self {
            Olds::Node(node) => node.level() - 1,
            Olds::Top(_, level) => *level,
        }
    }
}

/// The children of a parent after the update.
struct Rebuilt<S> {
    grown: Grown<S>,
    /// What comes behind them.
    merging: Option<Merging>,
    level: u8,
    is_changed: bool,
}

impl<S> Rebuilt<S> {
    fn new(level: u8) -> Rebuilt<S> {
        let grown = Grown { children: Vec::new(), is_appended: false };
        Rebuilt { grown, merging: None, level, is_changed: false }
    }
}

impl Merging {
    fn new(separator: Vec<u8>) -> Merging {
        Merging {
            run: Run::default(),
            separator,
            node_count: 0,
            is_hot: false,
            inserted: Inserted::default(),
        }
    }

    /// Whether a neighbour should join: this would be a small node otherwise, and there is room;
    /// or an inner node of one child.
    fn wants(&self, level: u8, node_bytes: usize, neighbour: Pointer) -> bool {
        if self.run.is_empty() {
            return false;
        }
        let size = self.run.node_size(0..self.run.len());
        let is_small = size * SMALL_SHARE < node_bytes && size + usize::from(neighbour.length) <= node_bytes;
        is_small || self.run.len() < items_min(level)
    }

    /// Adds children of an inner node. The first of all has the run's separator: keys below its
    /// own are its as well.
    fn push_children<R: Reduction>(&mut self, reduction: &R, grown: &Grown<R::Summary>) {
        if grown.is_appended {
            let end = self.run.len() + grown.children.len();
            self.inserted = Inserted::Neighbours(end.saturating_sub(1)..end);
        }
        for child in &grown.children {
            let key = if self.run.is_empty() { &self.separator } else { &child.separator };
            self.run.push_with(key, |out| child.encode(reduction, out));
        }
    }

    /// Adds a neighbour's items.
    fn push_node(&mut self, node: &Node, is_hot: bool) {
        self.run.push_items(node, 0..node.len());
        self.node_count += 1;
        self.is_hot |= is_hot;
    }

    fn push_run(&mut self, run: &Run) {
        for index in 0..run.len() {
            self.run.push(run.key(index), run.payload(index));
        }
        self.node_count += 1;
    }
}
