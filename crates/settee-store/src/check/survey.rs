//! The state of a check: the files, what has been found in them, and reporting problems.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_io::Env;
use settee_log::{ReadFormat, SegmentName, SegmentSet, Timelines};
use settee_tree::{NodeCache, Tree};

use super::problem::{CheckEvent, CheckSummary, Problem, Touched};
use crate::index::IndexAggregates;
use crate::manifest::StoreManifest;
use crate::options::StoreOptions;
use crate::shared::StoreContext;
use crate::version::CheckpointFacts;

/// Size of the node cache for single lookups, in bytes.
const CACHE_BYTES: usize = 8 << 20;

/// A segment's file, and what other files say of it.
pub(super) struct SegmentSource {
    pub(super) name: SegmentName,
    pub(super) path: PathBuf,
    /// Whether the manifest lists it.
    pub(super) is_listed: bool,
    /// Where its frames end.
    pub(super) end: Option<u64>,
}

/// Where the frames of a segment end, to be compared with the next segment.
pub(super) struct LogEnd {
    pub(super) path: PathBuf,
    pub(super) number: u32,
    pub(super) epoch: Option<u32>,
    pub(super) end: u64,
    /// Checksum of the last frame.
    pub(super) checksum: u64,
    /// Whether the rest of the last frame's block isn't zeros.
    pub(super) is_padding_written: bool,
}

/// A check in progress.
pub(crate) struct Survey<'a> {
    pub(crate) context: StoreContext,
    pub(crate) format: ReadFormat,
    pub(super) on_event: &'a mut (dyn FnMut(CheckEvent) + Send),
    pub(crate) summary: CheckSummary,
    pub(crate) manifest: Option<StoreManifest>,
    /// In the order of the log.
    pub(super) sources: Vec<SegmentSource>,
    pub(super) segments: SegmentSet,
    /// The log's timelines; those of the headers if there is no manifest.
    pub(super) timelines: Timelines,
    pub(crate) tree: Option<Tree<IndexAggregates>>,
    pub(super) tree_number: u32,
    pub(super) log_segments: Vec<u32>,
    pub(super) facts: Option<CheckpointFacts>,
    pub(super) done_bytes: u64,
    pub(super) all_bytes: u64,
    /// Of the last log segment checked so far.
    pub(super) log_end: Option<LogEnd>,
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
            format: ReadFormat::Present,
            on_event,
            summary: CheckSummary::default(),
            manifest: None,
            sources: Vec::new(),
            segments: SegmentSet::default(),
            timelines: Timelines::default(),
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

    pub(super) fn report_problem(&mut self, problem: Problem) {
        self.summary.problem_count += 1;
        self.summary.doubtful_count += u64::from(problem.is_doubtful);
        (self.on_event)(CheckEvent::Problem(problem));
    }

    pub(super) fn report(&mut self, path: &Path, offset: u64, what: impl Into<String>, touched: Touched) {
        let path = path.to_path_buf();
        self.report_problem(Problem { path, offset, what: what.into(), touched, is_doubtful: false });
    }

    pub(super) fn advance(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        (self.on_event)(CheckEvent::Progress(self.done_bytes, self.all_bytes.max(self.done_bytes)));
    }

    /// The keys touched by a damaged record: the index may point to it, or it comes after the checkpoint.
    /// Without an index it is uncertain whether it was its key's last.
    pub(super) fn touched_by(&mut self, seq: u64, key: Vec<u8>) -> Touched {
        if seq <= self.checkpoint_seq() {
            return Touched::OldVersion(key);
        }
        self.lost.insert(seq, key.clone());
        Touched::Key(key)
    }

    /// The last record in the tree.
    pub(crate) fn checkpoint_seq(&self) -> u64 {
        self.tree.as_ref().map_or(0, |tree| tree.root().seq())
    }
}
