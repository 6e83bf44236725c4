//! What the last checkpoint left: the tree, and how much of each segment is live.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use settee_io::Env;
use settee_log::StoredFile;
use settee_tree::{Root, Tree};

use crate::error::ReadError;
use crate::index::{BY_KEY, IndexAggregates, Reader, push_number};
use crate::memtable::Aggregates;

/// Live bytes and records of a segment, as of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub bytes: u64,
    pub count: u64,
}

/// The durable part of a version: all records up to `seq`, none of which is in a memtable.
#[derive(Clone)]
pub(crate) struct CheckpointState {
    pub tree: Option<CheckpointTree>,
    /// The checkpoint's last record.
    pub seq: u64,
    /// The last record up to `seq` that was ever in the seq index.
    pub last_in_seq_index: u64,
    /// The aggregate over all keys.
    pub aggregates: Aggregates,
    /// Live bytes and records by segment number, as the log assigned it.
    pub live: Arc<BTreeMap<u32, Live>>,
    /// Live bytes of all segments.
    pub live_bytes: u64,
}

impl CheckpointState {
    pub(crate) async fn new(
        tree: Option<CheckpointTree>,
        facts: &CheckpointFacts,
    ) -> Result<CheckpointState, ReadError> {
        let live = Arc::new(facts.live.clone());
        let (seq, aggregates) = match &tree {
            None => (0, Aggregates::default()),
            Some(CheckpointTree { root, .. }) => {
                let all = (Bound::Included(&[BY_KEY][..]), Bound::Excluded(&[BY_KEY + 1][..]));
                (root.seq(), root.summary_in(all).await?)
            }
        };
        let last_in_seq_index = facts.last_in_seq_index;
        let live_bytes = live.values().map(|live| live.bytes).sum();
        Ok(CheckpointState { tree, seq, last_in_seq_index, aggregates, live, live_bytes })
    }

    /// Live bytes of all segments.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
}

/// The tree's file, and its root as of a checkpoint.
#[derive(Clone)]
pub(crate) struct CheckpointTree {
    pub number: u32,
    /// The file by its name, which goes with the last version that reads it.
    pub file: Arc<StoredFile>,
    pub tree: Arc<Tree<IndexAggregates>>,
    pub root: Root<IndexAggregates>,
}

impl CheckpointTree {
    /// The newest root of an open tree.
    pub(crate) fn new(
        env: &Env,
        number: u32,
        path: PathBuf,
        tree: Arc<Tree<IndexAggregates>>,
    ) -> CheckpointTree {
        let (file, root) = (Arc::new(StoredFile::new(env, path, false)), tree.root());
        CheckpointTree { number, file, tree, root }
    }
}

/// A root's attachment: the store's own data as of that checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CheckpointFacts {
    pub last_in_seq_index: u64,
    pub live: BTreeMap<u32, Live>,
}

impl CheckpointFacts {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_number(self.last_in_seq_index, &mut bytes);
        for (segment, live) in &self.live {
            push_number((*segment).into(), &mut bytes);
            push_number(live.bytes, &mut bytes);
            push_number(live.count, &mut bytes);
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<CheckpointFacts> {
        let mut reader = Reader(bytes);
        let mut facts = CheckpointFacts { last_in_seq_index: reader.number()?, live: BTreeMap::new() };
        while !reader.0.is_empty() {
            let segment = u32::try_from(reader.number()?).ok()?;
            let live = Live { bytes: reader.number()?, count: reader.number()? };
            facts.live.insert(segment, live);
        }
        Some(facts)
    }
}
