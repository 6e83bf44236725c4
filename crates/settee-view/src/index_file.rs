//! The file of an index: a tree of rows, whose attachment says what the rows were made from.
//!
//! A damaged file, or one that another version of the sort keys made, is begun anew. The rows can be made again from
//! the documents, so nothing in it is worth a repair. A file that the system refuses to open stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use settee_io::{Env, directory};
use settee_tree::{NodeCache, Root, Tree, TreeBuilder, TreeError, TreeOptions};

use crate::design::Signature;
use crate::error::{Result, ViewError};
use crate::reduce::{Functions, IndexReduction, REDUCERS_MAX, Reducer};
use crate::row::Overflow;

/// The ending of an index file's name: `SIGNATURE.NUMBER.view`.
const SUFFIX: &str = ".view";

/// Version of the entries' encoding.
const FORMAT_VERSION: u64 = 2;

/// Target size of a node. Larger than a store's, since rows are read in ranges.
const NODE_BYTES: usize = 8 << 10;

/// Garbage in an index's file, in bytes, below which it isn't rewritten.
const GARBAGE_BYTES_MIN: u64 = 4 << 20;

/// What an index's rows were made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// All changes of the database up to here are in the index.
    pub(crate) seq: u64,
    /// All purges up to this number, too.
    pub(crate) purge_seq: u64,
    /// Number of the next large value.
    pub(crate) next_overflow: u64,
    /// Sources of the reduce functions, in the order of the summaries.
    pub(crate) reduces: Vec<String>,
}

impl Facts {
    fn encode(&self) -> Vec<u8> {
        let text = serde_json::json!({
            "version": FORMAT_VERSION,
            "collation": settee_collate::VERSION,
            "seq": self.seq,
            "purge_seq": self.purge_seq,
            "next_overflow": self.next_overflow,
            "reduces": self.reduces,
        });
        text.to_string().into_bytes()
    }

    /// `None` if another version made the index.
    fn decode(bytes: &[u8]) -> Option<Facts> {
        let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
        let number = |name: &str| value.get(name)?.as_u64();
        if number("version")? != FORMAT_VERSION
            || value.get("collation")?.as_str()? != settee_collate::VERSION
        {
            return None;
        }
        let reduces =
            value.get("reduces")?.as_array()?.iter().map(|source| source.as_str().map(str::to_owned));
        Some(Facts {
            seq: number("seq")?,
            purge_seq: number("purge_seq")?,
            next_overflow: number("next_overflow")?,
            reduces: reduces.collect::<Option<_>>()?,
        })
    }
}

/// Where an index is, and how it is opened.
#[derive(Clone)]
pub(crate) struct IndexPlace {
    pub(crate) env: Env,
    pub(crate) directory: PathBuf,
    pub(crate) signature: Signature,
    pub(crate) cache: Arc<NodeCache>,
    pub(crate) functions: Arc<dyn Functions>,
    /// The greatest number of a file of any index: each file of a process has another one, so that two handles of an
    /// index never remove or replace each other's file.
    pub(crate) last_number: Arc<AtomicU64>,
}

/// An open file. One task at a time writes to it.
pub(crate) struct IndexFile {
    place: IndexPlace,
    number: u64,
    pub(crate) tree: Tree<IndexReduction>,
    pub(crate) reduction: IndexReduction,
    pub(crate) facts: Facts,
    /// Large values that no row has any more, whose chunks are still to be removed.
    pub(crate) freed: Vec<Overflow>,
    /// The number of the next commit.
    next_commit: u64,
}

impl IndexPlace {
    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{}.{number}{SUFFIX}", self.signature.text()))
    }

    fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn options(&self) -> TreeOptions {
        TreeOptions { node_bytes: NODE_BYTES, ..TreeOptions::new(self.cache.clone()) }
    }

    fn reduction(&self, reduces: &[String]) -> IndexReduction {
        let reducers = reduces.iter().map(|source| Reducer::parse(source)).collect();
        IndexReduction::new(reducers, self.functions.clone())
    }

    /// Opens the newest usable file, or begins one with these reduce functions. The others are removed.
    ///
    /// # Errors
    /// The system's error; no file that may be usable was removed.
    pub(crate) async fn open(&self, reduces: &[&str]) -> Result<IndexFile> {
        directory::create(&*self.env.engine, &self.directory).await?;
        let mut numbers = self.numbers().await?;
        numbers.sort_unstable();
        self.last_number.fetch_max(numbers.last().copied().unwrap_or(0), Ordering::Relaxed);
        let mut opened = None;
        while let Some(number) = numbers.pop() {
            if opened.is_none() {
                match self.open_file(number).await {
                    Ok(Some(file)) => {
                        opened = Some(file);
                        continue;
                    }
                    Ok(None) => {}
                    Err(error @ (TreeError::Damaged(_) | TreeError::OtherFormat { .. })) => {
                        let path = self.path(number);
                        tracing::warn!(%error, path = %path.display(), "an index can't be read, and is built anew");
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            self.remove(number).await;
        }
        match opened {
            Some(file) => Ok(file),
            None => {
                let reduces = reduces.iter().take(REDUCERS_MAX).map(|source| (*source).to_owned()).collect();
                self.create(reduces).await
            }
        }
    }

    /// The numbers of this index's files.
    async fn numbers(&self) -> Result<Vec<u64>> {
        let entries = directory::list(&*self.env.engine, &self.directory).await?;
        let numbers = entries.iter().filter_map(|entry| match parse_name(&entry.name) {
            Some((signature, number)) if signature == self.signature => Some(number),
            _ => None,
        });
        Ok(numbers.collect())
    }

    async fn create(&self, reduces: Vec<String>) -> Result<IndexFile> {
        let number = self.next_number();
        let facts = Facts { seq: 0, purge_seq: 0, next_overflow: 0, reduces };
        let reduction = self.reduction(&facts.reduces);
        let path = self.path(number);
        let tree = Tree::create(&self.env, &path, self.options(), reduction.clone()).await?;
        Ok(IndexFile {
            place: self.clone(),
            number,
            tree,
            reduction,
            facts,
            freed: Vec::new(),
            next_commit: 1,
        })
    }

    /// `None` if it is of another version, or has no root.
    async fn open_file(&self, number: u64) -> std::result::Result<Option<IndexFile>, TreeError> {
        let path = self.path(number);
        // The reduce functions are in the attachment: it is read without them first.
        let bare = Tree::open_to_read(&self.env, &path, self.options(), NoSummary).await;
        let bare = match bare {
            Ok(tree) => tree,
            Err(TreeError::NoRoot { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (attachment, seq) = (bare.root().attachment().await?, bare.root().seq());
        bare.close().await;
        let Some(facts) = Facts::decode(&attachment) else { return Ok(None) };
        let reduction = self.reduction(&facts.reduces);
        let tree = Tree::open(&self.env, &path, self.options(), reduction.clone()).await?;
        let (place, freed) = (self.clone(), Vec::new());
        Ok(Some(IndexFile { place, number, tree, reduction, facts, freed, next_commit: seq + 1 }))
    }

    async fn remove(&self, number: u64) {
        let path = self.path(number);
        if let Err(error) = directory::remove(&*self.env.engine, &path).await
            && !error.is_not_found()
        {
            tracing::warn!(%error, path = %path.display(), "a file of an index can't be removed");
        }
    }
}

impl IndexFile {
    /// Makes `root` durable as the index's state, with the facts.
    ///
    /// # Errors
    /// The system's error; reopening shows whether it was committed.
    pub(crate) async fn commit(&mut self, root: &Root<IndexReduction>) -> Result<()> {
        let is_first = self.next_commit == 1;
        self.tree.commit(root, self.next_commit, &self.facts.encode()).await?;
        self.next_commit += 1;
        if is_first {
            directory::sync(&*self.place.env.engine, &self.place.directory).await?;
        }
        Ok(())
    }

    /// Whether rewriting the file would free most of it.
    pub(crate) fn has_much_garbage(&self) -> bool {
        let live = self.tree.root().live_bytes();
        self.tree.file_bytes().saturating_sub(live) > (2 * live).max(GARBAGE_BYTES_MIN)
    }

    /// Whether the file can't be read or written any more: a read found damage, or a write or sync failed.
    pub(crate) async fn is_unusable(&self) -> bool {
        self.tree.root().found_damage() || self.tree.is_stopped().await
    }

    /// Begins a new file without rows, with these reduce functions, and removes the present one. Readers of its roots
    /// continue.
    ///
    /// # Errors
    /// The system's error; the present file remains.
    pub(crate) async fn begin_anew(&self, reduces: Vec<String>) -> Result<IndexFile> {
        let file = self.place.create(reduces).await?;
        self.place.remove(self.number).await;
        Ok(file)
    }

    /// Copies the rows to a new file, with these reduce functions, and removes the present one. Readers of its
    /// roots continue.
    ///
    /// # Errors
    /// The system's error; the present file remains.
    pub(crate) async fn rewrite(&self, reduces: Vec<String>) -> Result<IndexFile> {
        let place = self.place.clone();
        let number = place.next_number();
        let (path, reduction) = (place.path(number), place.reduction(&reduces));
        let facts = Facts { reduces, ..self.facts.clone() };
        let rewritten = async {
            let mut builder =
                TreeBuilder::create(&place.env, &path, place.options(), reduction.clone()).await?;
            let mut scan =
                self.tree.root().scan((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded), false);
            while let Some((key, value)) = scan.next().await? {
                builder.push(key, value).await?;
            }
            let tree = builder.finish(1, &facts.encode()).await?;
            directory::sync(&*place.env.engine, &place.directory).await?;
            Ok::<_, ViewError>(tree)
        };
        match rewritten.await {
            Ok(tree) => {
                place.remove(self.number).await;
                let freed = self.freed.clone();
                Ok(IndexFile { number, tree, reduction, facts, freed, next_commit: 2, place })
            }
            Err(error) => {
                place.remove(number).await;
                Err(error)
            }
        }
    }
}

/// The signature and number in an index file's name.
pub(crate) fn parse_name(name: &str) -> Option<(Signature, u64)> {
    let (signature, number) = name.strip_suffix(SUFFIX)?.split_once('.')?;
    Some((Signature::parse(signature)?, number.parse().ok()?))
}

/// Removes the files of an index.
pub(crate) async fn remove_files(
    env: &Env,
    directory: &Path,
    is_unneeded: impl Fn(Signature) -> bool,
) -> Result<u64> {
    let entries = match directory::list(&*env.engine, directory).await {
        Err(error) if error.is_not_found() => return Ok(0),
        entries => entries?,
    };
    let mut count = 0;
    for entry in entries {
        if parse_name(&entry.name).is_some_and(|(signature, _)| is_unneeded(signature)) {
            directory::remove(&*env.engine, &directory.join(&entry.name)).await?;
            count += 1;
        }
    }
    Ok(count)
}

/// Reads a tree whose reduction isn't known yet: any summary is accepted, and none is read.
#[derive(Debug, Clone, Copy)]
struct NoSummary;

impl settee_tree::Reduction for NoSummary {
    type Summary = ();

    fn zero(&self) {}

    fn of(&self, _key: &[u8], _value: &[u8]) {}

    fn join(&self, (): &(), (): &()) {}

    fn encode(&self, (): &(), _out: &mut Vec<u8>) {}

    fn decode(&self, _bytes: &[u8]) -> Option<()> {
        Some(())
    }
}
