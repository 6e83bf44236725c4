//! Converting one database: copies its records to a new store, in the order of their updates, and gives its
//! leaves and their paths the present form.
//!
//! A leaf of a generation up to [`PREVIOUS_CHUNK_COUNT`] has its whole path in its meta, and gets the present form
//! when it is copied. Longer paths continue in path chunks, which later records may have replaced: their leaves
//! are copied as they are, and encoded anew once all records are there. What is needed until then, and for the
//! comparison after it, is under keys of its own ([`SCRATCH`]), which are removed in the end.
//!
//! The new store remembers how many segments were copied, and whether all was compared. Its log keeps a prefix of
//! what was accepted, so an interrupted conversion continues there; doing a part again changes nothing.
//!
//! Invariants:
//! 1. The old store is only read.
//! 2. Each key ends with its newest version: records are copied in the order of the log.
//! 3. A leaf in the present form has its path chunks: they are stored before it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Bound;

use bytes::Bytes;
use settee_store::{Batch, Entry, Flags, Salvage, Salvaged, Snapshot as StoreSnapshot, Stage, Store, Value};

use crate::database::stored_revs_limit;
use crate::documents::keys::{
    CHUNK, CONFLICT, COUNTER, DOCUMENT, INTENT, LOCAL, LeafMeta, PATH, PREVIOUS_CHUNK_COUNT, PURGE,
    conflict_prefix, decode_number, document_key, encode_number, path_key,
};
use crate::documents::leaf_value::encode_leaf;
use crate::documents::path::{PATH_CHUNK_COUNT, decode_chunk, encode_chunk};
use crate::documents::rev_tree::{TreeLeaf, needs_chunk};
use crate::documents::{Revision, RevisionId};
use crate::{Error, Result};

/// Approximate number of bytes per commit.
const BATCH_BYTES: usize = 256 << 10;

/// First byte of the keys that only a conversion uses; no other record has it.
const SCRATCH: u8 = b'o';
/// The key of the number of segments that were copied, or of [`COMPARED`].
const SCRATCH_DONE: [u8; 2] = [SCRATCH, b'z'];
/// Prefix of the keys of previous path chunks, before the rest of their previous keys.
const SCRATCH_PATH: [u8; 2] = [SCRATCH, b'p'];
/// Prefix of the keys of documents whose paths have to be encoded anew, before their ids.
const SCRATCH_DOCUMENT: [u8; 2] = [SCRATCH, b'd'];

/// Instead of the number of segments, once all records were compared.
const COMPARED: u64 = u64::MAX;

/// The store that a database is converted to, and the next batch for it.
pub(super) struct Conversion<'a> {
    store: &'a Store,
    batch: Batch,
}

impl<'a> Conversion<'a> {
    pub(super) fn new(store: &'a Store) -> Conversion<'a> {
        Conversion { store, batch: Batch::new() }
    }

    /// Whether all records were compared already.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn was_compared(&self) -> Result<bool> {
        Ok(self.done().await? == COMPARED)
    }

    /// Records that all records were compared.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn set_compared(&mut self) -> Result<()> {
        self.batch.put(&SCRATCH_DONE, &encode_number(COMPARED), Bytes::new(), false);
        self.commit().await
    }

    async fn done(&self) -> Result<u64> {
        let entry = self.store.snapshot().get(&SCRATCH_DONE).await?;
        entry.map_or(Ok(0), |entry| decode_number(&entry.meta))
    }

    /// Copies the records that weren't copied yet. Calls `report` with the number of segments done, after each.
    ///
    /// # Errors
    /// The stores' errors; `Internal` for a record that the version before didn't write. Then a part was copied.
    pub(super) async fn copy(
        &mut self,
        previous: &mut Salvage<'_>,
        mut report: impl FnMut(usize),
    ) -> Result<()> {
        let copied = self.done().await? as usize;
        previous.seek(copied);
        for count in copied + 1..=previous.segment_count() {
            let Some(records) = previous.next().await? else { break };
            for record in records {
                self.copy_record(record).await?;
            }
            self.batch.put(&SCRATCH_DONE, &encode_number(count as u64), Bytes::new(), false);
            self.commit().await?;
            report(count);
        }
        Ok(())
    }

    async fn copy_record(&mut self, record: Salvaged) -> Result<()> {
        let Salvaged { flags, key, meta, value, .. } = record;
        self.limit_batch(key.len() + meta.len() + value.len()).await?;
        let key = key_until_converted(&key).into_owned();
        if flags.has(Flags::TOMBSTONE) {
            self.batch.delete(&key);
            return Ok(());
        }
        let kind = key.first().filter(|_| !flags.has(Flags::OPERAND));
        let in_seq_index = flags.has(Flags::IN_SEQ_INDEX);
        match kind {
            Some(&DOCUMENT | &CONFLICT) => self.copy_leaf(&key, &meta, value, in_seq_index),
            Some(&SCRATCH | &CHUNK | &INTENT | &LOCAL | &COUNTER | &PURGE) => {
                self.batch.put(&key, &meta, value, in_seq_index);
                Ok(())
            }
            _ => Err(Error::damaged("a record is of no kind that the version before had")),
        }
    }

    fn copy_leaf(&mut self, key: &[u8], meta: &[u8], value: Bytes, in_seq_index: bool) -> Result<()> {
        if value.is_empty() {
            return Err(Error::damaged("a leaf has no value"));
        }
        let leaf = LeafMeta::decode_previous(meta)?;
        let generation = leaf.revision.generation;
        if generation <= PREVIOUS_CHUNK_COUNT {
            let (meta, value) = encode_leaf(generation, &leaf.path(), leaf.state, &Value::new(value));
            self.batch.put_value(key, &meta, value, in_seq_index);
        } else {
            self.batch.put(key, meta, value, in_seq_index);
            let document = [&SCRATCH_DOCUMENT, id_of_leaf(key)?].concat();
            self.batch.put(&document, &[], Bytes::new(), false);
        }
        Ok(())
    }

    /// Gives the leaves that were copied as they are the present form, with their paths.
    ///
    /// # Errors
    /// The store's error; `Internal` for a malformed leaf or path chunk. Then a part has the present form.
    pub(super) async fn convert_paths(&mut self) -> Result<()> {
        self.store.flush().await?;
        let snapshot = self.store.snapshot();
        let revs_limit = stored_revs_limit(&snapshot).await?;
        let end = [SCRATCH_DOCUMENT[0], SCRATCH_DOCUMENT[1] + 1];
        let mut scan = snapshot.scan(Bound::Included(&SCRATCH_DOCUMENT), Bound::Excluded(&end), false);
        while let Some(entry) = scan.next().await? {
            let key = entry.key.to_vec();
            let id = std::str::from_utf8(&key[SCRATCH_DOCUMENT.len()..]);
            let id = id.map_err(|_| Error::damaged("an id is not UTF-8"))?;
            self.convert_document(&snapshot, id, revs_limit).await?;
            self.batch.delete(&key);
        }
        self.commit().await?;
        Ok(self.store.flush().await?)
    }

    async fn convert_document(&mut self, snapshot: &StoreSnapshot, id: &str, revs_limit: u32) -> Result<()> {
        let keys = leaf_keys(snapshot, id).await?;
        // Leaves share ancestors; some know more of them than others.
        let mut lengths: HashMap<Revision, usize> = HashMap::new();
        for key in &keys {
            let Some(entry) = previous_leaf(snapshot, key).await? else { continue };
            let leaf = LeafMeta::decode_previous(&entry.meta)?;
            let path = previous_path(snapshot, id, &leaf, u32::MAX).await?;
            let generation = leaf.revision.generation;
            let leaf = TreeLeaf::new(leaf.revision, path, leaf.state, Value::new(Bytes::new()), Vec::new());
            for (revision, ancestors) in leaf.chunks() {
                if !needs_chunk(generation, revision.generation, revs_limit) {
                    break;
                }
                let ancestors = &ancestors[..ancestors.len().min(revs_limit as usize - 1)];
                let key = path_key(id, &revision);
                let length = lengths.entry(revision).or_default();
                if *length < ancestors.len() {
                    *length = ancestors.len();
                    let (meta, value) = encode_chunk(ancestors);
                    self.limit_batch(value.len()).await?;
                    self.batch.put(&key, &meta, value.into(), false);
                }
            }
        }
        for key in &keys {
            let Some(entry) = previous_leaf(snapshot, key).await? else { continue };
            let leaf = LeafMeta::decode_previous(&entry.meta)?;
            let path = previous_path(snapshot, id, &leaf, PATH_CHUNK_COUNT).await?;
            let content = Value::new(snapshot.read(entry.location).await?.value());
            self.limit_batch(content.bytes().len()).await?;
            let (meta, value) = encode_leaf(leaf.revision.generation, &path, leaf.state, &content);
            self.batch.put_value(key, &meta, value, entry.in_seq_index);
        }
        Ok(())
    }

    /// Removes what was needed only for the conversion and the comparison, but not the record that both were made.
    ///
    /// # Errors
    /// The store's error; then a part is still there.
    pub(super) async fn remove_scratch(&mut self) -> Result<()> {
        self.store.flush().await?;
        let snapshot = self.store.snapshot();
        let mut scan = snapshot.scan(Bound::Included(&[SCRATCH]), Bound::Excluded(&SCRATCH_DONE), false);
        while let Some(entry) = scan.next().await? {
            let key = entry.key.to_vec();
            self.limit_batch(key.len()).await?;
            self.batch.delete(&key);
        }
        self.commit().await
    }

    /// Removes that record: the conversion has ended.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn end(&mut self) -> Result<()> {
        self.batch.delete(&SCRATCH_DONE);
        self.commit().await
    }

    /// Commits the batch if as many bytes would make it too large.
    async fn limit_batch(&mut self, bytes: usize) -> Result<()> {
        if self.batch.size() + bytes > BATCH_BYTES { self.commit().await } else { Ok(()) }
    }

    async fn commit(&mut self) -> Result<()> {
        if !self.batch.is_empty() {
            let batch = std::mem::take(&mut self.batch);
            self.store.writer().await.commit(&batch, Stage::Accepted).await?;
        }
        Ok(())
    }
}

/// The document's id in the key of a leaf.
pub(super) fn id_of_leaf(key: &[u8]) -> Result<&[u8]> {
    let id = match key.split_first() {
        Some((&DOCUMENT, id)) => Some(id),
        Some((&CONFLICT, rest)) => id_with_size(rest),
        _ => None,
    };
    id.ok_or_else(|| Error::damaged("the key of a leaf is malformed"))
}

/// The id at the start of a key's rest, after its size.
fn id_with_size(rest: &[u8]) -> Option<&[u8]> {
    let (size, rest) = rest.split_first_chunk::<2>()?;
    rest.get(..u16::from_be_bytes(*size).into())
}

/// The keys of a document's leaves.
async fn leaf_keys(snapshot: &StoreSnapshot, id: &str) -> Result<Vec<Vec<u8>>> {
    let mut keys = vec![document_key(id)];
    let prefix = conflict_prefix(id);
    let mut scan = snapshot.scan(Bound::Included(&prefix), Bound::Unbounded, false);
    while let Some(entry) = scan.next().await?.filter(|entry| entry.key.starts_with(&prefix)) {
        keys.push(entry.key.to_vec());
    }
    Ok(keys)
}

/// The key under which a record of the version before is until the conversion has ended.
pub(super) fn key_until_converted(key: &[u8]) -> Cow<'_, [u8]> {
    match key.split_first() {
        Some((&PATH, rest)) => Cow::Owned([&SCRATCH_PATH, rest].concat()),
        _ => Cow::Borrowed(key),
    }
}

/// The entry of a leaf that has the form of the version before.
async fn previous_leaf(snapshot: &StoreSnapshot, key: &[u8]) -> Result<Option<Entry>> {
    Ok(snapshot.get(key).await?.filter(|entry| LeafMeta::is_previous(&entry.meta)))
}

/// The path of a leaf in the form of the version before, from the leaf itself as far as it is known, or with at
/// least `length` revisions.
pub(super) async fn previous_path(
    snapshot: &StoreSnapshot,
    id: &str,
    leaf: &LeafMeta<'_>,
    length: u32,
) -> Result<Vec<RevisionId>> {
    let mut path = leaf.path();
    while path.len() < length as usize {
        let back = path.len() as u32 - 1;
        let oldest = path.last().expect("a path has its leaf");
        let revision = Revision { generation: leaf.revision.generation - back, id: oldest.clone() };
        let key = path_key(id, &revision);
        let Some(chunk) = snapshot.get(&key_until_converted(&key)).await? else { break };
        let ancestors = decode_chunk(&chunk.meta, &snapshot.read(chunk.location).await?.value())?;
        if ancestors.len() >= revision.generation as usize {
            return Err(Error::damaged("a chunk of a revision path goes back before the first revision"));
        }
        path.extend(ancestors);
    }
    Ok(path)
}
