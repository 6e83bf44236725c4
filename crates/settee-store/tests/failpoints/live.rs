//! The live bytes of each segment, by the last checkpoint and by its tree.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::error::ReadError;
use crate::index::{BY_KEY, decode};
use crate::store::Store;
use crate::version::{CheckpointTree, Live};

/// Live bytes and records by segment number.
pub type LiveTable = BTreeMap<u32, (u64, u64)>;

impl Store {
    /// The live bytes of each segment as the last checkpoint recorded them, and as its tree yields them.
    ///
    /// # Errors
    /// See [`ReadError`].
    #[doc(hidden)]
    pub async fn live_tables(&self) -> Result<(LiveTable, LiveTable), ReadError> {
        let checkpoint = self.shared.versions.accepted.lock().await.checkpoint.clone();
        let table = |live: &BTreeMap<u32, Live>| {
            live.iter().map(|(number, live)| (*number, (live.bytes, live.count))).collect()
        };
        let mut found: BTreeMap<u32, Live> = BTreeMap::new();
        if let Some(CheckpointTree { root, .. }) = &checkpoint.tree {
            let range = (Bound::Included(&[BY_KEY][..]), Bound::Excluded(&[BY_KEY + 1][..]));
            let mut scan = root.scan(range, false);
            while let Some((_, value)) = scan.next().await? {
                for pointer in decode(value)?.pointers() {
                    let live = found.entry(pointer.location.segment).or_default();
                    live.bytes += u64::from(pointer.location.length);
                    live.count += 1;
                }
            }
        }
        Ok((table(&checkpoint.live), table(&found)))
    }
}
