//! Bulk load: turns sorted entries into full nodes, level by level, in one sequential write.
//!
//! Invariants:
//! 1. A level that reaches [`LEVEL_BYTES_MAX`] writes its full nodes and adds them to the level above, so
//!    that memory is bounded by the height.
//! 2. All nodes are full except the last two of each level, which share the remaining items.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use settee_io::Env;

use crate::append::Appender;
use crate::error::TreeError;
use crate::format::{KEY_SIZE_MAX, VALUE_SIZE_MAX};
use crate::node::Child;
use crate::options::TreeOptions;
use crate::reduction::Reduction;
use crate::run::Run;
use crate::shared::{RootState, Top};
use crate::tree::Tree;
use crate::update::changes::check_size;

/// Bytes that a level collects before it is split into nodes.
const LEVEL_BYTES_MAX: usize = 128 << 10;

/// Loads a new tree from entries in ascending order of their keys.
pub struct TreeBuilder<R: Reduction> {
    tree: Tree<R>,
    appender: Appender<R>,
    levels: Vec<Level>,
    last_key: Vec<u8>,
    count: u64,
}

/// Items of a level that are not in a node yet.
#[derive(Default)]
struct Level {
    run: Run,
    /// Separator of the next node.
    separator: Vec<u8>,
}

impl<R: Reduction> TreeBuilder<R> {
    /// Creates the file, as [`Tree::create`] does.
    ///
    /// # Errors
    /// As [`Tree::create`].
    pub async fn create(
        env: &Env,
        path: &Path,
        options: TreeOptions,
        reduction: R,
    ) -> Result<TreeBuilder<R>, TreeError> {
        let tree = Tree::create(env, path, options, reduction).await?;
        let appender = tree.appender().await?;
        Ok(TreeBuilder { tree, appender, levels: vec![Level::default()], last_key: Vec::new(), count: 0 })
    }

    /// Adds an entry, whose key must be above the last one. Waits only while writes can't keep up. After a
    /// dropped future the tree must not be finished.
    ///
    /// # Errors
    /// [`TreeError::KeyOrder`] and [`TreeError::TooLarge`]: the entry isn't added. [`TreeError::NoSpace`] and
    /// [`TreeError::Stopped`]: the load has failed.
    pub async fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), TreeError> {
        if self.count > 0 && key <= &self.last_key[..] {
            return Err(TreeError::KeyOrder { index: self.count });
        }
        check_size("a key", key.len(), KEY_SIZE_MAX)?;
        check_size("a value", value.len(), VALUE_SIZE_MAX)?;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.count += 1;
        self.levels[0].run.push(key, value);
        if self.levels[0].run.bytes() >= LEVEL_BYTES_MAX {
            self.write_full_nodes().await?;
        }
        Ok(())
    }

    /// Writes the remaining items, and commits the tree, as [`Tree::commit`] does. The file's name is durable
    /// only after the caller has synced the directory.
    ///
    /// # Errors
    /// As [`Tree::commit`]; the load has failed.
    pub async fn finish(mut self, seq: u64, attachment: &[u8]) -> Result<Tree<R>, TreeError> {
        let mut level = 0;
        let top = loop {
            let ends = self.levels[level].run.split_into_nodes(level as u8, self.node_bytes(), None);
            let mut children = self.write(level, &ends).await?;
            if self.levels.len() == level + 1 && children.len() <= 1 {
                break children.pop();
            }
            self.push_to_parent(level, &children);
            level += 1;
        };
        let TreeBuilder { tree, appender, .. } = self;
        let (writer, end) = appender.finish().await?;
        drop(writer);
        let mut state = RootState { end, ..RootState::empty(&tree.shared.reduction) };
        if let Some(Child { pointer, count, live_bytes, summary, .. }) = top {
            let node = tree.shared.load(pointer, level as u8, true).await?;
            let top = Some(Top { pointer, node });
            state = RootState { top, count, live_bytes, summary, end, committed: OnceLock::new() };
        }
        tree.shared.newest().root = Arc::new(state);
        tree.commit(&tree.root(), seq, attachment).await?;
        Ok(tree)
    }

    fn node_bytes(&self) -> usize {
        self.tree.shared.options.node_bytes
    }

    /// Writes the full nodes of each level that has reached its limit.
    async fn write_full_nodes(&mut self) -> Result<(), TreeError> {
        let mut level = 0;
        while self.levels.get(level).is_some_and(|level| level.run.bytes() >= LEVEL_BYTES_MAX) {
            let run = &self.levels[level].run;
            let mut ends = Vec::new();
            let mut end = 0;
            while end < run.len() {
                end = run.fill(level as u8, end, self.node_bytes());
                ends.push(end);
            }
            // The last node may still grow, and shares its items with the one before it at the very end.
            ends.truncate(ends.len().saturating_sub(2));
            let children = self.write(level, &ends).await?;
            self.push_to_parent(level, &children);
            level += 1;
        }
        Ok(())
    }

    /// Writes nodes of a level, from its front up to the last of `ends`.
    async fn write(&mut self, level: usize, ends: &[usize]) -> Result<Vec<Child<R::Summary>>, TreeError> {
        let Level { run, separator } = &mut self.levels[level];
        let mut children = Vec::with_capacity(ends.len());
        let mut first = 0;
        for end in ends.iter().copied() {
            let next = match level {
                _ if end == run.len() => Vec::new(),
                0 => run.separator(end).to_vec(),
                _ => run.key(end).to_vec(),
            };
            let separator = std::mem::replace(separator, next);
            let items = first..end;
            children.push(self.appender.append_items(run, level as u8, items, separator, level > 0).await?);
            first = end;
        }
        run.remove_front(first);
        Ok(children)
    }

    fn push_to_parent(&mut self, level: usize, children: &[Child<R::Summary>]) {
        if children.is_empty() {
            return;
        }
        if self.levels.len() == level + 1 {
            self.levels.push(Level::default());
        }
        let run = &mut self.levels[level + 1].run;
        for child in children {
            run.push_with(&child.separator, |out| child.encode(&self.tree.shared.reduction, out));
        }
    }
}

impl<R: Reduction> fmt::Debug for TreeBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeBuilder")
            .field("tree", &self.tree)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
