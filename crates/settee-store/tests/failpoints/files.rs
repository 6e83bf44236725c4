//! Faults in the files of rewritten segments.

use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, OpenMode};
use settee_log::Segment;

use crate::error::StoreError;
use crate::failpoints::Failpoint;
use crate::shared::Shared;

impl Shared {
    /// [`Failpoint::SnapshotFileRecycled`]: overwrites the file with arbitrary bytes.
    pub(crate) async fn recycle(&self, segment: &Segment) -> Result<(), StoreError> {
        if self.context.options.is_enabled(Failpoint::SnapshotFileRecycled) {
            let file = File::open(&self.context.env.engine, segment.path(), OpenMode::Write).await?;
            file.write_at(0, Bytes::from(vec![0xDB; segment.name.bytes as usize])).await?;
        }
        Ok(())
    }

    /// [`Failpoint::StaleCache`]: the new segment uses the chunks of the old one.
    pub(crate) fn with_stale_chunks(&self, new: Option<Arc<Segment>>, old: &Segment) -> Option<Arc<Segment>> {
        if !self.context.options.is_enabled(Failpoint::StaleCache) {
            return new;
        }
        let mut new = new.and_then(Arc::into_inner)?;
        new.share_chunks(old);
        Some(Arc::new(new))
    }
}
