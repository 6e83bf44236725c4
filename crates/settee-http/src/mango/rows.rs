//! Rows of JSON indexes.

use std::sync::Arc;

use settee_doc::{Database, Snapshot};
use settee_view::mango::{Bookmark, IndexDefinition, KeyRange};
use settee_view::{MapRows, ViewErrorKind, ViewRow, Views};

use crate::error::ApiError;

/// The rows of an index that a search reads.
pub(super) struct IndexScan {
    pub(super) views: Arc<Views>,
    pub(super) database: Arc<Database>,
    /// The state that the search was planned for.
    pub(super) snapshot: Snapshot,
    pub(super) definition: Arc<IndexDefinition>,
    /// Ascending and disjoint, also if the scan descends.
    pub(super) ranges: Vec<KeyRange>,
    pub(super) descending: bool,
    /// The row after which the scan begins, by key and id; it may be gone.
    pub(super) after: Option<Bookmark>,
    /// The partition whose rows are read.
    pub(super) partition: Option<String>,
    /// Whether the index is brought up to date first.
    pub(super) update: bool,
}

/// A row of an index.
pub(super) struct IndexRow {
    pub(super) id: String,
    /// The key, JSON text.
    pub(super) key: String,
}

/// An open scan of an index: its rows by key in the order of views, then by id; descending, the reverse.
pub(super) trait IndexRows: Sized + Send {
    /// Opens a scan, after bringing the index up to date if the scan asks for that. `None` if its design
    /// document is another one than in the scan's snapshot.
    fn open(scan: IndexScan) -> impl Future<Output = Result<Option<Self>, ApiError>> + Send;

    /// The next row; None at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<IndexRow>, ApiError>> + Send;
}

/// Rows of an index of a design document.
pub(super) struct ViewRows(MapRows);

impl IndexRows for ViewRows {
    async fn open(scan: IndexScan) -> Result<Option<ViewRows>, ApiError> {
        let IndexScan { views, database, snapshot, definition, ranges, .. } = scan;
        let IndexScan { descending, after, partition, update, .. } = scan;
        let design = match views.design(&database, &definition.ddoc).await {
            Err(error) if error.kind == ViewErrorKind::NotFound => return Ok(None),
            design => design?,
        };
        let planned = snapshot.find(&definition.ddoc).await?;
        if planned.is_none_or(|planned| planned.revision != *design.revision()) {
            return Ok(None);
        }
        if update {
            design.build(&database, database.snapshot().update_seq()).await?;
        }
        let view = design.view(&definition.name)?;
        let (index, space) = (design.snapshot(view)?, design.space(view, partition.as_deref()));
        let mut row_ranges =
            space.between(ranges.iter().map(|range| (range.low.sort_key(), range.high.sort_key())));
        if let Some(Bookmark { id, key: Some(key) }) = &after {
            for range in &mut row_ranges {
                *range = space.after(range, key, id, descending)?;
            }
        }
        if descending {
            row_ranges.reverse();
        }
        Ok(Some(ViewRows(MapRows::new(index, row_ranges, descending, 0, u64::MAX))))
    }

    async fn next(&mut self) -> Result<Option<IndexRow>, ApiError> {
        let row = self.0.next().await?;
        Ok(row.map(|ViewRow { id, key, .. }| IndexRow { id, key }))
    }
}
