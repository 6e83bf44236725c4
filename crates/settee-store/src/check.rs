//! Verification: reads every checksummed byte of a store, and compares its files with each other.
//!
//! The segments are read one after another, frames or records, each with its segment index. A row of a few
//! dozen bytes is kept for each record: its location, its flags, and hashes of its key and meta. Once there
//! are many rows, or no more segments, the whole tree is read and compared: each entry with the rows it
//! points to, each row with the tree's entry of its key. Memory is therefore bounded, and a store of a few
//! million records costs one pass over each of its files. The same pass yields every readable record for
//! repair (`repair.rs`).
//!
//! Nothing is changed, truncated or locked: the caller keeps others from writing to the store.
//!
//! Invariants:
//! 1. Damage does not end the check: what can be read after it is checked too.
//! 2. A problem names the keys it touches as far as the readable rest tells.
//! 3. What a crash may leave is reported as doubtful, not as damage.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_io::{Env, File, OpenMode, directory};
use settee_log::{SegmentHead, SegmentIndex, segment_head};
use settee_tree::{NodeCache, Tree, TreeError};

use crate::checkpoint_state::CheckpointFacts;
use crate::error::StoreError;
use crate::manifest::{MANIFEST_FILE, Manifest, SegmentName, tree_name};
use crate::options::StoreOptions;
use crate::segments::{Segment, Segments};
use crate::store::StoreContext;
use crate::tree_index::IndexAggregates;

mod index;
mod sources;

pub use sources::Salvaged;

/// Number of rows compared with the tree at once; they take about 200 MiB.
const ROW_COUNT_MAX: usize = 4 << 20;

/// Size of the node cache for single lookups, in bytes.
const CACHE_BYTES: usize = 8 << 20;

/// Number of bytes read at once of a file that may be all zeros.
const ZEROS_READ_BYTES: usize = 1 << 20;

/// A problem found in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// The keys it touches.
    pub touched: Touched,
    /// It may as well be the rest of a write that was never acknowledged, left by a crash; then opening the
    /// store removes it.
    pub is_doubtful: bool,
}

/// Which keys a problem touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// None: the damaged part can be rebuilt from the rest.
    Nothing,
    /// Unknown, or named by other problems.
    Unknown,
    /// A version of this key. If it is the newest, another problem says so.
    OldVersion(Vec<u8>),
    /// A version of this key that may be its newest.
    Key(Vec<u8>),
    /// Index entries of the keys from the first up to, not including, the second, or to the last key: lookups
    /// fail, and the values are still in the segments.
    IndexOf(Vec<u8>, Option<Vec<u8>>),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}: {}", self.path.display(), self.offset, self.what)
    }
}

/// An event of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckEvent {
    /// Bytes checked, and bytes to check in all; both may grow.
    Progress(u64, u64),
    /// A problem was found.
    Problem(Problem),
}

/// Counts of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckSummary {
    /// Files read.
    pub file_count: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Records in the segments, replaced ones included.
    pub record_count: u64,
    /// Entries of the index on disk.
    pub entry_count: u64,
    /// The store's last record.
    pub last_seq: u64,
    /// Problems reported, doubtful ones included.
    pub problem_count: u64,
    /// Problems that a crash may have left.
    pub doubtful_count: u64,
}

/// Checks the store in `directory`, which no process may have open, and reports problems to `on_event` as
/// they are found. `options` must be those that the store is opened with, since its aggregates follow from
/// them.
///
/// # Errors
/// The system's error. Damage is reported and is no error.
pub async fn check(
    env: &Env,
    directory: &Path,
    options: &StoreOptions,
    mut on_event: impl FnMut(CheckEvent) + Send,
) -> Result<CheckSummary, StoreError> {
    let mut survey = Survey::new(env, directory, options, &mut on_event);
    survey.read_manifest().await?;
    survey.find_sources().await?;
    survey.open_tree().await?;
    survey.check_all().await?;
    Ok(survey.summary)
}

/// A segment's file, and what other files say of it.
struct SegmentSource {
    name: SegmentName,
    path: PathBuf,
    /// Whether it is the store's, no longer the log's.
    is_transferred: bool,
    /// Where its frames end.
    end: Option<u64>,
}

/// A check in progress.
pub(crate) struct Survey<'a> {
    pub(crate) context: StoreContext,
    on_event: &'a mut (dyn FnMut(CheckEvent) + Send),
    pub(crate) summary: CheckSummary,
    pub(crate) manifest: Option<Manifest>,
    /// In the order of the log.
    sources: Vec<SegmentSource>,
    segments: Segments,
    log_id: Option<[u8; 16]>,
    pub(crate) tree: Option<Tree<IndexAggregates>>,
    tree_number: u64,
    log_segments: Vec<u32>,
    facts: Option<CheckpointFacts>,
    done_bytes: u64,
    all_bytes: u64,
    /// Number, end of frames and checksum of the last log segment checked so far.
    log_end: Option<(u32, u64, u64)>,
    /// Unreadable records that may be the last of their keys, by `Seq`.
    pub(crate) lost: BTreeMap<u64, Vec<u8>>,
}

impl<'a> Survey<'a> {
    pub(crate) fn new(
        env: &Env,
        directory: &Path,
        options: &StoreOptions,
        on_event: &'a mut (dyn FnMut(CheckEvent) + Send),
    ) -> Survey<'a> {
        let mut options = options.clone();
        options.log.direct = false;
        let cache = Arc::new(NodeCache::new(CACHE_BYTES));
        Survey {
            context: StoreContext::new(env, directory, options, cache, None),
            on_event,
            summary: CheckSummary::default(),
            manifest: None,
            sources: Vec::new(),
            segments: Segments::default(),
            log_id: None,
            tree: None,
            tree_number: 0,
            log_segments: Vec::new(),
            facts: None,
            done_bytes: 0,
            all_bytes: 0,
            log_end: None,
            lost: BTreeMap::new(),
        }
    }

    fn report_problem(&mut self, problem: Problem) {
        self.summary.problem_count += 1;
        self.summary.doubtful_count += u64::from(problem.is_doubtful);
        (self.on_event)(CheckEvent::Problem(problem));
    }

    fn report(&mut self, path: &Path, offset: u64, what: impl Into<String>, touched: Touched) {
        let path = path.to_path_buf();
        self.report_problem(Problem { path, offset, what: what.into(), touched, is_doubtful: false });
    }

    fn advance(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        (self.on_event)(CheckEvent::Progress(self.done_bytes, self.all_bytes.max(self.done_bytes)));
    }

    /// Reads the manifest. If it is damaged, the file names are used instead.
    pub(crate) async fn read_manifest(&mut self) -> Result<(), StoreError> {
        let (env, directory) = (self.context.env.clone(), self.context.directory.clone());
        match Manifest::read(&env, &directory).await {
            Ok(manifest) => self.manifest = manifest,
            Err(StoreError::Damaged { path, offset, what }) => {
                let what = format!("{what}: the store can't be opened; its files are found by their names");
                self.report(&path, offset, what, Touched::Unknown);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Finds the segments: those that the manifest names, and the log's.
    pub(crate) async fn find_sources(&mut self) -> Result<(), StoreError> {
        let entries = directory::list(&*self.context.env.engine, &self.context.directory).await?;
        let is_there = |name: &str| entries.iter().any(|entry| entry.name == name);
        let first_of_log = self.manifest.as_ref().map_or(0, |manifest| manifest.first_log_segment);
        for name in self.manifest.iter().flat_map(|manifest| manifest.segments.clone()).collect::<Vec<_>>() {
            let path = self.context.directory.join(name.file_name());
            if !is_there(&name.file_name()) {
                self.report(&path, 0, "it is missing: the manifest names it", Touched::Unknown);
                continue;
            }
            let end = (name.generation == 0).then_some(name.bytes);
            self.sources.push(SegmentSource { name, path, is_transferred: true, end });
        }
        if self.manifest.is_none() {
            for entry in &entries {
                self.take_rewritten(&entry.name).await?;
            }
            self.drop_covered();
        }
        let mut of_log: Vec<u32> = entries.iter().filter_map(|entry| log_number(&entry.name)).collect();
        of_log
            .retain(|number| *number >= first_of_log && self.sources.iter().all(|one| !covers(one, *number)));
        self.take_log(of_log).await?;
        self.sources.sort_by_key(|source| source.name.first);
        for source in &self.sources {
            let segment = Segment::new(&self.context.env, &self.context.directory, source.name, false);
            if source.is_transferred {
                self.segments.insert(Arc::new(segment));
            } else {
                self.log_segments.push(source.name.first);
            }
        }
        Ok(())
    }

    /// Adds a rewritten segment by its name and trailer, if there is no manifest.
    async fn take_rewritten(&mut self, file_name: &str) -> Result<(), StoreError> {
        let Some(mut name) = rewritten_name(file_name) else { return Ok(()) };
        let path = self.context.directory.join(file_name);
        let file = Arc::new(File::open(&self.context.env.engine, &path, OpenMode::Read).await?);
        if let Ok(segment_index) = SegmentIndex::open_covering(file, name.first, name.last, name.epoch).await
        {
            name.bytes = segment_index.trailer().frames_end;
        }
        self.sources.push(SegmentSource { name, path, is_transferred: true, end: None });
        Ok(())
    }

    /// Of segments that cover the same numbers, keeps those of the newest generation.
    fn drop_covered(&mut self) {
        let names: Vec<SegmentName> = self.sources.iter().map(|source| source.name).collect();
        self.sources.retain(|source| {
            let own = source.name;
            !names.iter().any(|other| {
                other.generation > own.generation && other.first <= own.first && own.last <= other.last
            })
        });
    }

    /// Adds the log's segments, using their headers.
    async fn take_log(&mut self, numbers: Vec<u32>) -> Result<(), StoreError> {
        let mut found: Vec<(u32, u64, PathBuf, Result<SegmentHead, bool>)> = Vec::new();
        for number in numbers {
            let path = self.context.directory.join(format!("{number:010}.log"));
            let file = File::open(&self.context.env.engine, &path, OpenMode::Read).await?;
            let head = segment_head(&file).await?;
            found.push((number, file.length().await?, path, head));
        }
        // A preallocated segment without records. One with more than zeros after its header was begun.
        while let Some((_, length, path, Err(true))) = found.last()
            && is_all_zeros(&self.context.env, path, *length).await?
        {
            found.pop();
        }
        let heads = || found.iter().rev().filter_map(|(_, _, _, head)| head.as_ref().ok());
        self.log_id = heads().next().map(|head| head.log_id);
        let oldest = heads().next().map_or(0, |head| head.oldest);
        // A store writes its first manifest before it rewrites anything.
        let had_one = oldest > 1 || self.sources.iter().any(|source| source.is_transferred);
        if self.manifest.is_none() && self.summary.problem_count == 0 && had_one {
            let path = self.context.directory.join(MANIFEST_FILE);
            let what = "it is missing: the log has transferred segments to the store";
            self.report(&path, 0, what, Touched::Unknown);
        }
        // Older segments are not needed, and were left by a crash.
        found.retain(|(number, ..)| *number >= oldest || self.manifest.is_none());
        let first =
            self.manifest.as_ref().map_or(1, |manifest| manifest.first_log_segment).max(oldest).max(1);
        let mut expected = found.first().map_or(first, |(number, ..)| *number.min(&first));
        if found.is_empty() && self.manifest.as_ref().is_some_and(|manifest| manifest.number > 0) {
            let path = self.context.directory.join(format!("{first:010}.log"));
            self.report(&path, 0, "it is missing: the log continues there", Touched::Unknown);
        }
        for index in 0..found.len() {
            let (number, _, path, head) = found[index].clone();
            if number != expected && self.sources.iter().all(|one| !covers(one, expected)) {
                let missing = self.context.directory.join(format!("{expected:010}.log"));
                let what = format!("it is missing, and so may be others up to {}", number - 1);
                self.report(&missing, 0, what, Touched::Unknown);
            }
            expected = number + 1;
            let next =
                found.get(index + 1).and_then(|(next, _, _, head)| head.ok().filter(|_| *next == expected));
            let epoch = head.map_or(0, |head| head.epoch);
            let mut end = next.map(|next| next.previous_end);
            if end.is_none() && index + 1 < found.len() {
                end = self.end_by_trailer(&path, number, epoch).await?;
            }
            let name =
                SegmentName { first: number, last: number, generation: 0, epoch, bytes: 0, clean_to: 0 };
            self.sources.push(SegmentSource { name, path, is_transferred: false, end });
        }
        Ok(())
    }

    async fn end_by_trailer(
        &mut self,
        path: &Path,
        number: u32,
        epoch: u32,
    ) -> Result<Option<u64>, StoreError> {
        let file = Arc::new(File::open(&self.context.env.engine, path, OpenMode::Read).await?);
        let segment_index = SegmentIndex::open(file, number, epoch).await.ok();
        Ok(segment_index.map(|segment_index| segment_index.trailer().frames_end))
    }

    /// Opens the tree, and reports problems of its roots.
    pub(crate) async fn open_tree(&mut self) -> Result<(), StoreError> {
        let mut number = self.manifest.as_ref().and_then(|manifest| manifest.tree);
        if self.manifest.is_none() {
            let entries = directory::list(&*self.context.env.engine, &self.context.directory).await?;
            number = entries.iter().filter_map(|entry| entry.name.strip_suffix(".tree")?.parse().ok()).max();
        }
        let Some(number) = number else { return Ok(()) };
        self.tree_number = number;
        let path = self.context.directory.join(tree_name(number));
        let mut options = self.context.tree_options(&[0; 16]);
        options.incarnation = self.manifest.as_ref().map(|manifest| manifest.incarnation);
        let aggregates = IndexAggregates(self.context.options.aggregate);
        let all_index = || Touched::IndexOf(Vec::new(), None);
        let tree = match Tree::open(&self.context.env, &path, options, aggregates).await {
            Ok(tree) => tree,
            Err(TreeError::Io(error)) if error.is_not_found() => {
                let what = "it is missing: the manifest names it; opening the store rebuilds it";
                self.report(&path, 0, what, all_index());
                return Ok(());
            }
            Err(TreeError::Io(error)) => return Err(error.into()),
            Err(error) => {
                let offset = if let TreeError::Damaged { offset, .. } = &error { *offset } else { 0 };
                let what = format!("{error}; opening the store rebuilds it");
                self.report(&path, offset, what, all_index());
                return Ok(());
            }
        };
        if tree.is_torn() {
            let what = "a slot holds no whole root: a crash interrupted its commit, or it is damaged";
            let (touched, what) = (Touched::Nothing, what.to_owned());
            let offset = settee_tree::HEAD_SIZE / 3;
            self.report_problem(Problem { path: path.clone(), offset, what, touched, is_doubtful: true });
        }
        match tree.root().attachment().await {
            Ok(attachment) => {
                self.facts = CheckpointFacts::decode(&attachment);
                if self.facts.is_none() {
                    let what = "the segment table in its root is invalid";
                    self.report(&path, 0, what, Touched::Nothing);
                }
            }
            Err(TreeError::Io(error)) => return Err(error.into()),
            // Reported when the tree is checked.
            Err(_) => {}
        }
        self.summary.file_count += 1;
        self.summary.bytes += tree.file_bytes();
        self.tree = Some(tree);
        Ok(())
    }

    /// Checks everything, some segments at a time.
    pub(crate) async fn check_all(&mut self) -> Result<(), StoreError> {
        self.all_bytes = self.tree.as_ref().map_or(0, |tree| tree.root().live_bytes());
        for source in &self.sources {
            let file = File::open(&self.context.env.engine, &source.path, OpenMode::Read).await?;
            self.all_bytes += file.length().await?;
        }
        let mut suspects = index::Suspects::default();
        let mut rows = Vec::new();
        let mut is_first = true;
        let sources = std::mem::take(&mut self.sources);
        let mut first_number = 0;
        for (index, source) in sources.iter().enumerate() {
            self.take_source(source, &mut rows, None).await?;
            let is_last = index + 1 == sources.len();
            if rows.len() >= ROW_COUNT_MAX || is_last {
                let numbers = first_number..=if is_last { u32::MAX } else { source.name.last };
                self.check_index(&mut rows, numbers, is_first, &mut suspects).await?;
                (is_first, first_number) = (false, source.name.last + 1);
                rows.clear();
            }
        }
        if sources.is_empty() {
            self.check_index(&mut rows, 0..=u32::MAX, true, &mut suspects).await?;
        }
        self.sources = sources;
        self.check_suspects(suspects).await?;
        if let Some(tree) = &self.tree
            && tree.root().seq() > self.summary.last_seq
        {
            let what = format!(
                "the log ends at update {}, and the index at {}: a part of the log is missing",
                self.summary.last_seq,
                tree.root().seq()
            );
            let directory = self.context.directory.clone();
            self.report(&directory, 0, what, Touched::Unknown);
        }
        Ok(())
    }

    /// Number of segments.
    pub(crate) fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// The readable records of one segment.
    pub(crate) async fn salvage_source(&mut self, index: usize) -> Result<Vec<Salvaged>, StoreError> {
        let sources = std::mem::take(&mut self.sources);
        let mut salvaged = Vec::new();
        let taken = self.take_source(&sources[index], &mut Vec::new(), Some(&mut salvaged)).await;
        self.sources = sources;
        taken?;
        salvaged.sort_by_key(|record: &Salvaged| record.seq);
        salvaged.dedup_by_key(|record| record.seq);
        Ok(salvaged)
    }

    /// The last record in the tree.
    pub(crate) fn checkpoint_seq(&self) -> u64 {
        self.tree.as_ref().map_or(0, |tree| tree.root().seq())
    }
}

fn covers(source: &SegmentSource, number: u32) -> bool {
    (source.name.first..=source.name.last).contains(&number)
}

fn log_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".log")?;
    digits.parse().ok().filter(|number| digits.len() == 10 && *number > 0)
}

fn rewritten_name(name: &str) -> Option<SegmentName> {
    let mut parts = name.strip_suffix(".seg")?.split('-');
    let mut number = || parts.next()?.parse::<u32>().ok();
    let (first, last, generation) = (number()?, number()?, number()?);
    let name = SegmentName { first, last, generation, epoch: generation, bytes: 0, clean_to: 0 };
    (parts.next().is_none() && first <= last).then_some(name)
}

/// Hash of a key, by which rows and entries are matched.
fn key_hash(key: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(key)
}

fn meta_hash(meta: &[u8]) -> u32 {
    twox_hash::XxHash3_64::oneshot(meta) as u32
}

/// Whether a file holds only zeros.
async fn is_all_zeros(env: &Env, path: &Path, length: u64) -> Result<bool, StoreError> {
    let file = File::open(&env.engine, path, OpenMode::Read).await?;
    let mut at = 0;
    while at < length {
        let bytes = file.read_at(at, ZEROS_READ_BYTES).await?;
        if bytes.is_empty() || bytes.iter().any(|byte| *byte != 0) {
            return Ok(bytes.is_empty());
        }
        at += bytes.len() as u64;
    }
    Ok(true)
}
