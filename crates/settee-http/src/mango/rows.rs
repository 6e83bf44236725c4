//! Rows of JSON indexes.

use std::sync::Arc;

use settee_doc::Database;
use settee_view::mango::{Bookmark, IndexDefinition, KeyRange};

use crate::error::ApiError;

/// The rows of an index that a search reads.
pub(super) struct IndexScan {
    pub(super) database: Arc<Database>,
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
    /// Opens a scan, after bringing the index up to date if the scan asks for that.
    fn open(scan: IndexScan) -> impl Future<Output = Result<Self, ApiError>> + Send;

    /// The next row; None at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<IndexRow>, ApiError>> + Send;
}

/// Rows of an index that isn't built.
pub(super) enum UnbuiltRows {}

impl IndexRows for UnbuiltRows {
    async fn open(scan: IndexScan) -> Result<UnbuiltRows, ApiError> {
        let IndexScan { database, definition, ranges, descending, after, partition, update } = scan;
        tracing::debug!(
            database = database.name(),
            index = definition.name,
            ranges = ranges.len(),
            descending,
            resumed = after.is_some(),
            partition = partition.is_some(),
            update,
            "a search needs an index"
        );
        Err(ApiError::not_implemented(format!("The index {} is not built yet.", definition.name)))
    }

    async fn next(&mut self) -> Result<Option<IndexRow>, ApiError> {
        match *self {}
    }
}
