//! Scans over documents, local documents and purge infos. Each holds its snapshot.

use std::sync::Arc;

use bytes::Bytes;
use settee_store::{EntryRef, Scan, Snapshot as StoreSnapshot};

use super::summary::{BodyRef, FoundLeaf, Summary, row};
use crate::Result;
use crate::documents::keys::{LeafMeta, decode_number, decode_purge_key, document_id};

/// A scan over documents; it holds its snapshot.
pub struct Rows {
    pub(super) scan: Scan,
    pub(super) skip_deleted: bool,
    pub(super) _user: Arc<()>,
}

/// A document in a scan, from the index.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    /// The document's id.
    pub id: &'a str,
    /// Its winning leaf.
    pub summary: Summary,
    /// The location of its body, for [`Snapshot::read`](crate::Snapshot::read).
    pub body: BodyRef,
}

impl Rows {
    /// The next row, or `None` at the end. Reads only the index; dropping the future loses no row.
    ///
    /// # Errors
    /// `Internal` for damage, or if the index can't be read.
    pub async fn next(&mut self) -> Result<Option<Row<'_>>> {
        let Some(entry) = self.next_entry().await? else { return Ok(None) };
        let id = document_id(entry.key)?;
        let (summary, body) = row(entry.meta, entry.location)?;
        Ok(Some(Row { id, summary, body }))
    }

    /// As [`Rows::next`], with the leaf's entry.
    pub(super) async fn next_found(&mut self) -> Result<Option<(&str, FoundLeaf)>> {
        let Some(entry) = self.next_entry().await? else { return Ok(None) };
        let found = FoundLeaf { location: entry.location, meta: entry.meta.to_vec() };
        Ok(Some((document_id(entry.key)?, found)))
    }

    async fn next_entry(&mut self) -> Result<Option<EntryRef<'_>>> {
        let skip_deleted = self.skip_deleted;
        Ok(self.scan.next_where(|entry| !skip_deleted || !is_deleted(entry)).await?)
    }
}

/// Whether an entry is a deleted document; the reader of the row reports damage.
fn is_deleted(entry: &EntryRef<'_>) -> bool {
    LeafMeta::decode(entry.meta).is_ok_and(|meta| meta.state.deleted)
}

/// A scan over local documents; it holds its snapshot.
pub struct LocalRows {
    pub(super) scan: Scan,
    pub(super) skip: u64,
    pub(super) _user: Arc<()>,
}

/// A local document in a scan, from the index.
#[derive(Debug, Clone, Copy)]
pub struct LocalRow<'a> {
    /// Its id without `_local/`.
    pub name: &'a str,
    /// The N of its revision, `0-N`.
    pub number: u64,
    /// The location of its body, for [`Snapshot::read_local`](crate::Snapshot::read_local).
    pub body: BodyRef,
}

impl LocalRows {
    /// The next row, or `None` at the end. Reads only the index; dropping the future loses no row.
    ///
    /// # Errors
    /// `Internal` for damage, or if the index can't be read.
    pub async fn next(&mut self) -> Result<Option<LocalRow<'_>>> {
        while self.skip > 0 {
            if self.scan.next().await?.is_none() {
                return Ok(None);
            }
            self.skip -= 1;
        }
        let Some(entry) = self.scan.next().await? else { return Ok(None) };
        let (name, number) = (document_id(entry.key)?, decode_number(entry.meta)?);
        let body = BodyRef { location: entry.location, out_of_line_bytes: 0 };
        Ok(Some(LocalRow { name, number, body }))
    }
}

/// A scan over purge infos; it holds its snapshot.
pub struct Purges {
    pub(super) scan: Scan,
    pub(super) store: StoreSnapshot,
    pub(super) _user: Arc<()>,
}

/// A purge info.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purge {
    /// Number of the purge; the first is 1.
    pub number: u64,
    /// `{"id":…,"revs":[…]}`: the document and the requested revisions.
    pub text: Bytes,
}

impl Purges {
    /// The next purge info, or `None` at the end.
    ///
    /// # Errors
    /// `Internal` for damage, or if it can't be read.
    pub async fn next(&mut self) -> Result<Option<Purge>> {
        let Some(entry) = self.scan.next().await? else { return Ok(None) };
        let (number, location) = (decode_purge_key(entry.key)?, entry.location);
        let text = self.store.read(location).await?.value();
        Ok(Some(Purge { number, text }))
    }
}
