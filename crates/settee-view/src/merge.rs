//! Merges what documents emit into an index: their former rows go, the new ones come, in one update of the tree.
//!
//! What each document emitted is in the tree as well, so that its former rows are found without the document as it
//! was. One lookup, sorted, finds it for all documents of a group.

use std::collections::BTreeMap;
use std::ops::Bound;

use settee_collate::{Collation, write_sort_key};
use settee_tree::{Change, Root};

use crate::error::{Result, ViewError};
use crate::index_file::IndexFile;
use crate::reduce::IndexReduction;
use crate::row::{
    EmittedRow, Overflow, VALUE_SIZE_MAX, chunk_key, decode_emitted, decode_emitted_value, emitted_key,
    emitted_value, encode_emitted, encode_overflow, encode_rows, key_part, overflow_of, row_key,
    row_key_of_part,
};

/// What a document emits; nothing if it is deleted.
#[derive(Debug)]
pub(crate) struct MappedDocument {
    pub(crate) id: String,
    pub(crate) rows: Vec<EmittedRow>,
}

impl MappedDocument {
    /// Size in memory, roughly, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let rows = self.rows.iter().map(|row| row.sort_key.len() + row.key.len() + row.value.len() + 96);
        self.id.len() + 48 + rows.sum::<usize>()
    }
}

/// The changes of a group of documents, by key; `None` removes an entry.
#[derive(Default)]
struct Changes {
    entries: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    next_overflow: u64,
}

/// Merges documents, each of which occurs once, into the newest root of the file, and returns the new root. Nothing
/// is durable before [`IndexFile::commit`].
///
/// # Errors
/// The tree's. Its newest root may have these documents' rows; merging them again has the same effect as once.
pub(crate) async fn merge(
    file: &mut IndexFile,
    mut documents: Vec<MappedDocument>,
) -> Result<Root<IndexReduction>> {
    documents.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    let root = file.tree.root();
    let former = former_rows(&root, &documents).await?;
    let mut changes = Changes { entries: Vec::new(), next_overflow: file.facts.next_overflow };
    for (document, former) in documents.into_iter().zip(former) {
        changes.add(document, former);
    }
    let Changes { mut entries, next_overflow } = changes;
    entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut freed = Vec::new();
    let root = file
        .tree
        .update(&root, entries, |key, change, present| {
            let is_replaced = match (&change, present) {
                (Some(change), Some(present)) => change != present,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if is_replaced && let Some(overflow) = present.and_then(|present| overflow_of(key, present)) {
                freed.push(overflow);
            }
            match change {
                Some(value) if is_replaced || present.is_none() => Change::Put(value),
                None if is_replaced => Change::Remove,
                _ => Change::Keep,
            }
        })
        .await?;
    file.facts.next_overflow = next_overflow;
    file.freed.extend(freed);
    if file.freed.is_empty() {
        return Ok(root);
    }
    let mut keys: Vec<Vec<u8>> = file.freed.iter().flat_map(chunk_keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let removals = keys.into_iter().map(|key| (key, ()));
    let remove = |_: &[u8], (): (), present: Option<&[u8]>| match present {
        Some(_) => Change::Remove,
        None => Change::Keep,
    };
    let root = file.tree.update(&root, removals, remove).await?;
    file.freed.clear();
    Ok(root)
}

fn chunk_keys(overflow: &Overflow) -> impl Iterator<Item = Vec<u8>> {
    let number = overflow.number;
    (0..overflow.chunk_count()).map(move |chunk| chunk_key(number, chunk))
}

/// The lists of what the documents emitted before, as the tree has them.
async fn former_rows(root: &Root<IndexReduction>, documents: &[MappedDocument]) -> Result<Vec<Vec<u8>>> {
    let mut former = vec![Vec::new(); documents.len()];
    if root.is_empty() {
        return Ok(former);
    }
    let keys: Vec<Vec<u8>> = documents.iter().map(|document| emitted_key(&document.id)).collect();
    let mut overflows = Vec::new();
    let mut is_damaged = false;
    root.get_many(&keys, |index, value| match value.map(decode_emitted_value) {
        None => {}
        Some(Some(Ok(list))) => {
            former[index] = list.to_vec();
            is_damaged |= decode_emitted(list).is_none();
        }
        Some(Some(Err(overflow))) => overflows.push((index, overflow)),
        Some(None) => is_damaged = true,
    })
    .await?;
    for (index, overflow) in overflows {
        former[index] = read_overflow(root, &overflow).await?;
        is_damaged |= decode_emitted(&former[index]).is_none();
    }
    // Without it, former rows would stay for ever.
    if is_damaged {
        root.report_damage();
        return Err(ViewError::damaged("a list of emitted rows is malformed"));
    }
    Ok(former)
}

/// Reads a value that is in chunks.
///
/// # Errors
/// The tree's, or damage.
pub(crate) async fn read_overflow(root: &Root<IndexReduction>, overflow: &Overflow) -> Result<Vec<u8>> {
    let (first, last) = (chunk_key(overflow.number, 0), chunk_key(overflow.number, u32::MAX));
    let mut scan = root.scan((Bound::Included(&first), Bound::Included(&last)), false);
    let mut bytes = Vec::new();
    while let Some((_, chunk)) = scan.next().await? {
        bytes.extend_from_slice(chunk);
    }
    if bytes.len() as u64 != overflow.bytes {
        root.report_damage();
        return Err(ViewError::damaged("a large value lacks a chunk"));
    }
    Ok(bytes)
}

impl Changes {
    fn add(&mut self, document: MappedDocument, former: Vec<u8>) {
        let MappedDocument { id, rows } = document;
        let mut groups: BTreeMap<&[u8], Vec<&EmittedRow>> = BTreeMap::new();
        for row in &rows {
            groups.entry(&row.sort_key).or_default().push(row);
        }
        let mut parts: Vec<_> = groups.keys().map(|sort_key| key_part(sort_key)).collect();
        // Hashes of long keys aren't in the order of the keys.
        parts.sort_unstable();
        for part in decode_emitted(&former).expect("it was decoded before") {
            if parts.binary_search_by(|own| own.as_ref().cmp(part)).is_err() {
                self.entries.push((row_key_of_part(part, &id), None));
            }
        }
        let list = encode_emitted(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        let key = emitted_key(&id);
        if list.is_empty() {
            self.entries.push((key, None));
        } else if list != former {
            let value = match self.overflow(&list, 0, 1) {
                Some(overflow) => emitted_value(&[], Some(&overflow)),
                None => emitted_value(&list, None),
            };
            self.entries.push((key, Some(value)));
        }
        for (sort_key, mut rows) in groups {
            if rows.len() > 1 {
                rows.sort_by_cached_key(|row| raw_key(&row.value));
            }
            let (head, body) = encode_rows(sort_key, &id, &rows);
            let value = match self.overflow(&body, rows.len() as u64, head.len()) {
                Some(overflow) => encode_overflow(head, &overflow),
                None => [head, body].concat(),
            };
            self.entries.push((row_key(sort_key, &id), Some(value)));
        }
    }

    /// Adds the chunks of a value that doesn't fit into an entry beside `head_size` bytes; `None` if it does.
    fn overflow(&mut self, body: &[u8], row_count: u64, head_size: usize) -> Option<Overflow> {
        if head_size + body.len() <= VALUE_SIZE_MAX {
            return None;
        }
        let number = self.next_overflow;
        self.next_overflow += 1;
        for (index, chunk) in body.chunks(VALUE_SIZE_MAX).enumerate() {
            self.entries.push((chunk_key(number, index as u32), Some(chunk.to_vec())));
        }
        Some(Overflow { row_count, number, bytes: body.len() as u64 })
    }
}

/// The order of a document's rows with equal keys: by value, in Erlang's order of terms, as in CouchDB.
fn raw_key(json: &str) -> Vec<u8> {
    let mut key = Vec::new();
    // A value that nests too deep for a sort key comes first.
    let _ = write_sort_key(json, Collation::Raw, &mut key);
    key
}
