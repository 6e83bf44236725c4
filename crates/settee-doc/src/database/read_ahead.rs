//! Documents whose bodies are read ahead: those of a range of ids, of a list of ids, or of the changes.
//!
//! The store reads the bodies in windows: see [`ReadAhead`]. The ids of a list are looked up a window at a time,
//! each window in one pass over the index. An out-of-line body is read when its row's document is asked for,
//! and one of several chunks only by its reader, so that large documents aren't in memory together.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::vec;

use bytes::Bytes;
use settee_io::yield_now;
use settee_store::{
    Entry, Location, READ_AHEAD_ROWS_MAX, ReadAhead, ReadRow, RowSource, Seq, Snapshot as StoreSnapshot,
};

use super::rows::Rows;
use super::snapshot::{LeafContent, Snapshot};
use super::summary::{FoundLeaf, Summary, row};
use crate::documents::keys::document_key;
use crate::documents::{Document, ID_SIZE_MAX};
use crate::{Error, Result};

/// Number of rows that don't pass a filter between two yields to other tasks.
const ROWS_PER_YIELD: u32 = 256;

/// Decides by a document's id whether its row is wanted.
pub type IdFilter = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// What identifies a document in a list that [`Snapshot::documents`] takes: an id, or a value that contains
/// one.
pub trait DocumentKey: Send + 'static {
    /// The document's id; `None` if no document can have this key.
    fn document_id(&self) -> Option<Cow<'_, str>>;

    /// Whether the body of the document's winning leaf is read.
    fn needs_body(&self, _winner: &Summary) -> bool {
        true
    }
}

impl<K: DocumentKey> DocumentKey for Box<K> {
    fn document_id(&self) -> Option<Cow<'_, str>> {
        (**self).document_id()
    }

    fn needs_body(&self, winner: &Summary) -> bool {
        (**self).needs_body(winner)
    }
}

impl DocumentKey for String {
    fn document_id(&self) -> Option<Cow<'_, str>> {
        Some(self.as_str().into())
    }
}

/// A sequence of documents whose bodies are read ahead. It holds its snapshot.
pub struct Documents<S: RowSource> {
    ahead: ReadAhead<S>,
    _snapshot: Snapshot,
}

/// A document of a sequence.
#[derive(Debug)]
pub struct DocumentRow<K> {
    /// The key that the caller requested it by; in a range or in the changes, its id.
    pub key: K,
    /// Its winning leaf, which may be deleted; `None` if there is no such document.
    pub winner: Option<Winner>,
}

/// A document's winning leaf, deleted or not, whose body was read ahead.
#[derive(Debug)]
pub struct Winner {
    /// The leaf.
    pub summary: Summary,
    pub(super) found: FoundLeaf,
    /// The value of its record; `None` if bodies aren't read.
    pub(super) value: Option<Result<Bytes>>,
}

/// The source of [`Snapshot::documents`].
pub struct ListedDocuments<K> {
    snapshot: StoreSnapshot,
    keys: vec::IntoIter<K>,
    /// The next keys, with their entries.
    looked_up: VecDeque<(K, Option<Entry>)>,
    reads_bodies: bool,
}

/// The source of [`Snapshot::read_ahead`] and [`Snapshot::changed_documents`].
pub enum OrderedDocuments {
    /// Rows of a scan.
    Rows {
        /// The scan.
        rows: Box<Rows>,
        /// Which of them are wanted. `None`: all.
        filter: Option<IdFilter>,
        /// Number of rows still to return.
        rows_left: u64,
        /// Whether the rows are so few that the chunks read for them are worth caching.
        keeps_chunks: bool,
    },
    /// Entries that were looked up.
    Entries {
        /// The ids and their entries.
        entries: vec::IntoIter<(String, Entry)>,
        /// Whether bodies are read.
        reads_bodies: bool,
    },
}

impl Snapshot {
    /// The documents of the next `limit` rows whose ids pass the filter. The rows must be of this snapshot.
    pub fn read_ahead(
        &self,
        rows: Rows,
        limit: u64,
        filter: Option<IdFilter>,
    ) -> Documents<OrderedDocuments> {
        // Without a limit, or with a filter, the number of rows isn't known.
        let expected = match filter {
            None => usize::try_from(limit).ok().filter(|limit| *limit <= READ_AHEAD_ROWS_MAX),
            Some(_) => None,
        };
        let keeps_chunks = limit <= READ_AHEAD_ROWS_MAX as u64;
        let rows = Box::new(rows);
        let source = OrderedDocuments::Rows { rows, filter, rows_left: limit, keeps_chunks };
        Documents::new(self.clone(), source, expected.unwrap_or(1))
    }

    /// The documents with these keys, in their order, and with `reads_bodies` their bodies. A document may
    /// occur several times.
    pub fn documents<K: DocumentKey>(
        &self,
        keys: Vec<K>,
        reads_bodies: bool,
    ) -> Documents<ListedDocuments<K>> {
        let (snapshot, expected) = (self.store().clone(), keys.len());
        let (keys, looked_up) = (keys.into_iter(), VecDeque::new());
        let source = ListedDocuments { snapshot, keys, looked_up, reads_bodies };
        Documents::new(self.clone(), source, expected)
    }

    /// Those of the documents that changed after `since`, in the order of the changes, and with `reads_bodies`
    /// their bodies.
    ///
    /// # Errors
    /// `Internal` for damage, or if the index can't be read.
    pub async fn changed_documents(
        &self,
        mut ids: Vec<String>,
        since: Seq,
        descending: bool,
        reads_bodies: bool,
    ) -> Result<Documents<OrderedDocuments>> {
        ids.retain(|id| id.len() <= ID_SIZE_MAX);
        ids.sort_unstable();
        let mut changed = Vec::new();
        for ids in ids.chunks(READ_AHEAD_ROWS_MAX) {
            // Lookups in memory never yield.
            yield_now().await;
            let keys: Vec<Vec<u8>> = ids.iter().map(|id| document_key(id)).collect();
            let found = self.store().get_many(&keys).await?;
            let found = ids.iter().cloned().zip(found).filter_map(|(id, entry)| Some((id, entry?)));
            changed.extend(found.filter(|(_, entry)| entry.seq() > since));
        }
        changed.sort_unstable_by_key(|(_, entry)| entry.seq());
        if descending {
            changed.reverse();
        }
        let source = OrderedDocuments::Entries { entries: changed.into_iter(), reads_bodies };
        Ok(Documents::new(self.clone(), source, 1))
    }

    /// The winning revision of a row of [`Documents`] with its body, unless that is large: see
    /// [`Document::large_body`].
    ///
    /// # Errors
    /// `Internal` if it can't be read.
    pub async fn read_winner(&self, id: &str, winner: Winner) -> Result<Document> {
        let Winner { summary: Summary { revision, deleted, .. }, found, value } = winner;
        let value = match value {
            Some(value) => value?,
            // Bodies weren't wanted for the whole sequence.
            None => self.store().read(found.location).await?.value(),
        };
        let LeafContent { attachments, body, large_body } = self.content_of(id, &value).await?;
        Ok(Document { id: id.to_owned(), revision, deleted, body, attachments, large_body })
    }
}

impl<K, S: RowSource<Row = (K, Option<FoundLeaf>), Error = Error>> Documents<S> {
    fn new(snapshot: Snapshot, source: S, expected: usize) -> Documents<S> {
        Documents { ahead: ReadAhead::new(snapshot.store(), source, expected), _snapshot: snapshot }
    }

    /// The next document, or `None` at the end. Dropping the future loses none.
    ///
    /// # Errors
    /// `Internal` for damage, or if the index can't be read. A body that can't be read is reported by
    /// [`Snapshot::read_winner`].
    pub async fn next(&mut self) -> Result<Option<DocumentRow<K>>> {
        let Some(ReadRow { row: (key, found), records }) = self.ahead.next().await? else {
            return Ok(None);
        };
        let winner = match found {
            None => None,
            Some(found) => {
                let (summary, _) = row(&found.meta, found.location)?;
                let value = match records {
                    Ok(records) => records.first().map(|record| Ok(record.value())),
                    Err(error) => Some(Err(Error::from(error.clone()))),
                };
                Some(Winner { summary, found, value })
            }
        };
        Ok(Some(DocumentRow { key, winner }))
    }
}

impl RowSource for OrderedDocuments {
    type Row = (String, Option<FoundLeaf>);
    type Error = Error;

    async fn next(&mut self, locations: &mut Vec<Location>) -> Result<Option<Self::Row>> {
        match self {
            OrderedDocuments::Rows { rows_left: 0, .. } => Ok(None),
            OrderedDocuments::Rows { rows, filter, rows_left, .. } => {
                let mut skipped_count = 0;
                while let Some((id, found)) = rows.next_found().await? {
                    if filter.as_ref().is_none_or(|passes| passes(id)) {
                        *rows_left -= 1;
                        locations.push(found.location);
                        return Ok(Some((id.to_owned(), Some(found))));
                    }
                    skipped_count += 1;
                    if skipped_count % ROWS_PER_YIELD == 0 {
                        yield_now().await;
                    }
                }
                Ok(None)
            }
            OrderedDocuments::Entries { entries, reads_bodies } => {
                let Some((id, entry)) = entries.next() else { return Ok(None) };
                if *reads_bodies {
                    locations.push(entry.location);
                }
                Ok(Some((id, Some(entry.into()))))
            }
        }
    }

    fn keeps_chunks(&self) -> bool {
        match self {
            OrderedDocuments::Rows { keeps_chunks, .. } => *keeps_chunks,
            OrderedDocuments::Entries { .. } => true,
        }
    }
}

/// The key of a document in the index; `None` for an id that no document can have.
fn document_key_of(key: &impl DocumentKey) -> Option<Vec<u8>> {
    let id = key.document_id().filter(|id| id.len() <= ID_SIZE_MAX)?;
    Some(document_key(&id))
}

impl<K: DocumentKey> RowSource for ListedDocuments<K> {
    type Row = (K, Option<FoundLeaf>);
    type Error = Error;

    async fn next(&mut self, locations: &mut Vec<Location>) -> Result<Option<Self::Row>> {
        if self.looked_up.is_empty() {
            let next = &self.keys.as_slice()[..self.keys.len().min(READ_AHEAD_ROWS_MAX)];
            let ids: Vec<Option<Vec<u8>>> = next.iter().map(document_key_of).collect();
            let is_id: Vec<bool> = ids.iter().map(Option::is_some).collect();
            let ids: Vec<Vec<u8>> = ids.into_iter().flatten().collect();
            let mut entries = self.snapshot.get_many(&ids).await?.into_iter();
            self.looked_up.reserve(is_id.len());
            for is_id in is_id {
                let entry = if is_id { entries.next().flatten() } else { None };
                self.looked_up.extend(self.keys.next().map(|key| (key, entry)));
            }
        }
        let Some((key, entry)) = self.looked_up.pop_front() else { return Ok(None) };
        if let Some(Entry { meta, location, .. }) = entry.as_ref().filter(|_| self.reads_bodies)
            && key.needs_body(&row(meta, *location)?.0)
        {
            locations.push(*location);
        }
        Ok(Some((key, entry.map(FoundLeaf::from))))
    }

    fn keeps_chunks(&self) -> bool {
        true
    }
}
