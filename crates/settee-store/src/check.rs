//! Verification: every byte of a store that something protects, and everything that one part of it
//! says of another.
//!
//! The segments are read one after another, frames or records, each with its directory. Of each record
//! a row of a few dozen bytes is kept: what it is, where it lies, and hashes of its key and meta. Once
//! there are many rows, or no more segments, the tree is read whole, and compared: each entry with the
//! rows it points to, each row with what the tree has of its key. So memory is bounded, and a store
//! of some million records costs one pass over each of its files. The same walk gives, to who salvages
//! (`repair.rs`), every record that can be read.
//!
//! Nothing is changed, cut or locked: whoever checks a store keeps others from writing to it.
//!
//! Invariants:
//! 1. Damage ends nothing: what can be read behind it is checked too.
//! 2. A problem names what it touches as far as anything that is left tells.
//! 3. What a crash may leave isn't told as damage, but as what may be either.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_io::{Env, File, OpenMode, folder};
use settee_log::{Directory, SegmentHead, segment_head};
use settee_tree::{NodeCache, Tree, TreeError};

use crate::checkpoint::Facts;
use crate::error::StoreError;
use crate::manifest::{MANIFEST_FILE, Manifest, SegmentName, tree_name};
use crate::segments::{Segment, Segments};
use crate::state::IndexSums;
use crate::store::{Place, StoreOptions};

mod index;
mod sources;

pub use sources::Salvaged;

/// So many rows are compared with the tree at once: they take some 200 MiB.
const ROW_COUNT_MAX: usize = 4 << 20;

/// Nodes of the tree that are kept for single lookups, in bytes.
const CACHE_BYTES: usize = 8 << 20;

/// So much of a file that may be zeros is read at once.
const ZEROS_READ_BYTES: usize = 1 << 20;

/// Something that is wrong with a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// Where in it, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// What it touches.
    pub touched: Touched,
    /// It may as well be what a crash left of a write that nobody was told of: opening the store puts
    /// it right.
    pub is_doubtful: bool,
}

/// Which keys a problem touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// No value: what is damaged can be made anew from the rest.
    Nothing,
    /// Those that other problems name, or nobody can tell.
    Unknown,
    /// A version of this key; if it is the one that counts, another problem says so.
    OldVersion(Vec<u8>),
    /// A version of this key that may be its newest.
    Key(Vec<u8>),
    /// The index of the keys from the first on, up to the other, or to the last: lookups fail there,
    /// and the values are still in the segments.
    IndexOf(Vec<u8>, Option<Vec<u8>>),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}: {}", self.path.display(), self.offset, self.what)
    }
}

/// What is told while a store is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckEvent {
    /// So many bytes are done, of so many; both may grow.
    Progress(u64, u64),
    /// Something is wrong.
    Problem(Problem),
}

/// What a check went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckSummary {
    /// Files that were read.
    pub file_count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records in the segments, those included that were replaced.
    pub record_count: u64,
    /// Entries of the index on disk.
    pub entry_count: u64,
    /// The last record of the store.
    pub last_seq: u64,
    /// Problems that were told, the doubtful ones included.
    pub problem_count: u64,
    /// Those of them that a crash may have left.
    pub doubtful_count: u64,
}

/// Checks the store in `folder`, which nobody may have open: see the module. `options` are those that
/// it is opened with, since its sums follow from them. What is wrong is told as it is found.
///
/// # Errors
/// What the system says. Damage is no error.
pub async fn check(
    env: &Env,
    folder: &Path,
    options: &StoreOptions,
    mut told: impl FnMut(CheckEvent) + Send,
) -> Result<CheckSummary, StoreError> {
    let mut survey = Survey::new(env, folder, options, &mut told);
    survey.read_manifest().await?;
    survey.find_sources().await?;
    survey.open_tree().await?;
    survey.check_all().await?;
    Ok(survey.summary)
}

/// A segment's file, and what is known of it from elsewhere.
struct Source {
    name: SegmentName,
    path: PathBuf,
    /// The store's, and not the log's any more.
    is_handed_over: bool,
    /// Where its frames end.
    end: Option<u64>,
}

/// A store that is being looked through.
pub(crate) struct Survey<'a> {
    pub(crate) place: Place,
    told: &'a mut (dyn FnMut(CheckEvent) + Send),
    pub(crate) summary: CheckSummary,
    pub(crate) manifest: Option<Manifest>,
    /// In the order of the log.
    sources: Vec<Source>,
    segments: Segments,
    log_id: Option<[u8; 16]>,
    pub(crate) tree: Option<Tree<IndexSums>>,
    tree_number: u64,
    log_segments: Vec<u32>,
    facts: Option<Facts>,
    done_bytes: u64,
    all_bytes: u64,
    /// Of the last of the log's segments so far: its number, where its frames end, and their checksum.
    log_end: Option<(u32, u64, u64)>,
    /// Records that can't be read, and that may be the last of their keys.
    pub(crate) lost: BTreeMap<u64, Vec<u8>>,
}

impl<'a> Survey<'a> {
    pub(crate) fn new(
        env: &Env,
        folder: &Path,
        options: &StoreOptions,
        told: &'a mut (dyn FnMut(CheckEvent) + Send),
    ) -> Survey<'a> {
        let mut options = options.clone();
        options.log.direct = false;
        let cache = Arc::new(NodeCache::new(CACHE_BYTES));
        Survey {
            place: Place::new(env, folder, options, cache, None),
            told,
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

    fn tell(&mut self, problem: Problem) {
        self.summary.problem_count += 1;
        self.summary.doubtful_count += u64::from(problem.is_doubtful);
        (self.told)(CheckEvent::Problem(problem));
    }

    fn report(&mut self, path: &Path, offset: u64, what: impl Into<String>, touched: Touched) {
        let path = path.to_path_buf();
        self.tell(Problem { path, offset, what: what.into(), touched, is_doubtful: false });
    }

    fn advance(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        (self.told)(CheckEvent::Progress(self.done_bytes, self.all_bytes.max(self.done_bytes)));
    }

    /// The manifest, or what the names of the files say where it is damaged.
    pub(crate) async fn read_manifest(&mut self) -> Result<(), StoreError> {
        let (env, folder) = (self.place.env.clone(), self.place.folder.clone());
        match Manifest::read(&env, &folder).await {
            Ok(manifest) => self.manifest = manifest,
            Err(StoreError::Damaged { path, offset, what }) => {
                let what =
                    format!("{what}: the store can't be opened; its files are checked as they are named");
                self.report(&path, offset, what, Touched::Unknown);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Finds the segments: those that the manifest names, and the log's.
    pub(crate) async fn find_sources(&mut self) -> Result<(), StoreError> {
        let entries = folder::list(&*self.place.env.engine, &self.place.folder).await?;
        let is_there = |name: &str| entries.iter().any(|entry| entry.name == name);
        let first_of_log = self.manifest.as_ref().map_or(0, |manifest| manifest.first_log_segment);
        for name in self.manifest.iter().flat_map(|manifest| manifest.segments.clone()).collect::<Vec<_>>() {
            let path = self.place.folder.join(name.file_name());
            if !is_there(&name.file_name()) {
                self.report(&path, 0, "it is missing: the manifest names it", Touched::Unknown);
                continue;
            }
            let end = (name.generation == 0).then_some(name.bytes);
            self.sources.push(Source { name, path, is_handed_over: true, end });
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
            let segment = Segment::new(&self.place.env, &self.place.folder, source.name, false);
            if source.is_handed_over {
                self.segments.insert(Arc::new(segment));
            } else {
                self.log_segments.push(source.name.first);
            }
        }
        Ok(())
    }

    /// A rewritten segment, from its name and its trailer, where there is no manifest.
    async fn take_rewritten(&mut self, file_name: &str) -> Result<(), StoreError> {
        let Some(mut name) = rewritten_name(file_name) else { return Ok(()) };
        let path = self.place.folder.join(file_name);
        let file = Arc::new(File::open(&self.place.env.engine, &path, OpenMode::Read).await?);
        if let Ok(directory) = Directory::open_covering(file, name.first, name.last, name.epoch).await {
            name.bytes = directory.trailer().frames_end;
        }
        self.sources.push(Source { name, path, is_handed_over: true, end: None });
        Ok(())
    }

    /// Of segments that cover the same numbers the newest generation counts.
    fn drop_covered(&mut self) {
        let names: Vec<SegmentName> = self.sources.iter().map(|source| source.name).collect();
        self.sources.retain(|source| {
            let own = source.name;
            !names.iter().any(|other| {
                other.generation > own.generation && other.first <= own.first && own.last <= other.last
            })
        });
    }

    /// The log's segments, as their headers say.
    async fn take_log(&mut self, numbers: Vec<u32>) -> Result<(), StoreError> {
        let mut found: Vec<(u32, u64, PathBuf, Result<SegmentHead, bool>)> = Vec::new();
        for number in numbers {
            let path = self.place.folder.join(format!("{number:010}.log"));
            let file = File::open(&self.place.env.engine, &path, OpenMode::Read).await?;
            let head = segment_head(&file).await?;
            found.push((number, file.length().await?, path, head));
        }
        // Made ahead, and not begun. One that has more than its header's zeros was.
        while let Some((_, length, path, Err(true))) = found.last()
            && is_all_zeros(&self.place.env, path, *length).await?
        {
            found.pop();
        }
        let heads = || found.iter().rev().filter_map(|(_, _, _, head)| head.as_ref().ok());
        self.log_id = heads().next().map(|head| head.log_id);
        let oldest = heads().next().map_or(0, |head| head.oldest);
        // A store writes its first manifest before it rewrites anything.
        let had_one = oldest > 1 || self.sources.iter().any(|source| source.is_handed_over);
        if self.manifest.is_none() && self.summary.problem_count == 0 && had_one {
            let path = self.place.folder.join(MANIFEST_FILE);
            let what = "it is missing: the log has handed segments over to the store";
            self.report(&path, 0, what, Touched::Unknown);
        }
        // Not needed any more, and left by a crash.
        found.retain(|(number, ..)| *number >= oldest || self.manifest.is_none());
        let first =
            self.manifest.as_ref().map_or(1, |manifest| manifest.first_log_segment).max(oldest).max(1);
        let mut expected = found.first().map_or(first, |(number, ..)| *number.min(&first));
        if found.is_empty() && self.manifest.as_ref().is_some_and(|manifest| manifest.number > 0) {
            let path = self.place.folder.join(format!("{first:010}.log"));
            self.report(&path, 0, "it is missing: the log goes on there", Touched::Unknown);
        }
        for index in 0..found.len() {
            let (number, _, path, head) = found[index].clone();
            if number != expected && self.sources.iter().all(|one| !covers(one, expected)) {
                let missing = self.place.folder.join(format!("{expected:010}.log"));
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
            self.sources.push(Source { name, path, is_handed_over: false, end });
        }
        Ok(())
    }

    async fn end_by_trailer(
        &mut self,
        path: &Path,
        number: u32,
        epoch: u32,
    ) -> Result<Option<u64>, StoreError> {
        let file = Arc::new(File::open(&self.place.env.engine, path, OpenMode::Read).await?);
        let directory = Directory::open(file, number, epoch).await.ok();
        Ok(directory.map(|directory| directory.trailer().frames_end))
    }

    /// Opens the tree, and says what is wrong with its roots.
    pub(crate) async fn open_tree(&mut self) -> Result<(), StoreError> {
        let mut number = self.manifest.as_ref().and_then(|manifest| manifest.tree);
        if self.manifest.is_none() {
            let entries = folder::list(&*self.place.env.engine, &self.place.folder).await?;
            number = entries.iter().filter_map(|entry| entry.name.strip_suffix(".tree")?.parse().ok()).max();
        }
        let Some(number) = number else { return Ok(()) };
        self.tree_number = number;
        let path = self.place.folder.join(tree_name(number));
        let mut options = self.place.tree_options(&[0; 16]);
        options.incarnation = self.manifest.as_ref().map(|manifest| manifest.incarnation);
        let sums = IndexSums(self.place.options.measure);
        let all_index = || Touched::IndexOf(Vec::new(), None);
        let tree = match Tree::open(&self.place.env, &path, options, sums).await {
            Ok(tree) => tree,
            Err(TreeError::Io(error)) if error.is_not_found() => {
                let what = "it is missing: the manifest names it; opening the store makes it anew";
                self.report(&path, 0, what, all_index());
                return Ok(());
            }
            Err(TreeError::Io(error)) => return Err(error.into()),
            Err(error) => {
                let offset = if let TreeError::Damaged { offset, .. } = &error { *offset } else { 0 };
                let what = format!("{error}; opening the store makes it anew");
                self.report(&path, offset, what, all_index());
                return Ok(());
            }
        };
        if tree.is_torn() {
            let what = "a root's slot holds no whole root: a crash cut its commit short, or it is damaged";
            let (touched, what) = (Touched::Nothing, what.to_owned());
            let offset = settee_tree::HEAD_SIZE / 3;
            self.tell(Problem { path: path.clone(), offset, what, touched, is_doubtful: true });
        }
        match tree.root().attachment().await {
            Ok(attachment) => {
                self.facts = Facts::decode(&attachment);
                if self.facts.is_none() {
                    let what = "what its root says of the segments makes no sense";
                    self.report(&path, 0, what, Touched::Nothing);
                }
            }
            Err(TreeError::Io(error)) => return Err(error.into()),
            // Told when the tree is checked.
            Err(_) => {}
        }
        self.summary.file_count += 1;
        self.summary.bytes += tree.file_bytes();
        self.tree = Some(tree);
        Ok(())
    }

    /// Reads all, some segments at a time.
    pub(crate) async fn check_all(&mut self) -> Result<(), StoreError> {
        self.all_bytes = self.tree.as_ref().map_or(0, |tree| tree.root().live_bytes());
        for source in &self.sources {
            let file = File::open(&self.place.env.engine, &source.path, OpenMode::Read).await?;
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
                "the log ends at update {}, and the index goes on to {}: a part of the log was lost",
                self.summary.last_seq,
                tree.root().seq()
            );
            let folder = self.place.folder.clone();
            self.report(&folder, 0, what, Touched::Unknown);
        }
        Ok(())
    }

    /// How many segments there are.
    pub(crate) fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// What can be read of one segment.
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

    /// Up to here the index on disk goes.
    pub(crate) fn checkpoint_seq(&self) -> u64 {
        self.tree.as_ref().map_or(0, |tree| tree.root().seq())
    }
}

fn covers(source: &Source, number: u32) -> bool {
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

/// A hash of a key, by which rows and entries are brought together.
fn key_hash(key: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(key)
}

fn meta_hash(meta: &[u8]) -> u32 {
    twox_hash::XxHash3_64::oneshot(meta) as u32
}

/// Whether a file holds nothing but zeros.
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
