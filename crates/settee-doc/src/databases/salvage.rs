//! The last step of a repair, after the records were salvaged one by one: documents with attachments of which
//! a chunk is lost. Without this step such documents could be neither read nor replicated.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;

use bytes::Bytes;
use settee_io::Env;
use settee_store::{Batch, Snapshot as StoreSnapshot, Stage, Store, StoreOptions};

use crate::Result;
use crate::attachments::Attachment;
use crate::documents::keys::{conflict_prefix, document_key, without_attachments};
use crate::documents::leaf_value::{BODY_NAME, ENCODING_PLAIN, LeafValue, decode_table, encode_table};

/// Removes incomplete attachments from the leaves of these documents, in the salvaged store in `directory`. A
/// leaf keeps its revision, and its change is listed. Calls `report` with the document's id and the
/// attachment's name. A lost out-of-line body stays lost, and reading it fails.
///
/// # Errors
/// The store's error: some documents may have been mended.
pub(super) async fn drop_cut_attachments(
    env: &Env,
    directory: &Path,
    options: StoreOptions,
    ids: &BTreeSet<String>,
    mut report: impl FnMut(&str, &str) + Send,
) -> Result<()> {
    let (store, _) = Store::open(env, directory, options).await?;
    for id in ids {
        let snapshot = store.snapshot();
        let mut batch = Batch::new();
        for key in leaf_keys(&snapshot, id).await? {
            let Some(entry) = snapshot.get(&key).await? else { continue };
            let value = LeafValue::decode(&snapshot.read(entry.location).await?.value())?;
            if value.encoding == ENCODING_PLAIN {
                continue;
            }
            let (mut attachments, body) = decode_table(&value.rest)?;
            let count = attachments.len();
            let mut kept = Vec::with_capacity(count);
            for attachment in attachments.drain(..) {
                if attachment.name == BODY_NAME || is_complete(&snapshot, id, &attachment).await? {
                    kept.push(attachment);
                } else {
                    report(id, &attachment.name);
                }
            }
            if kept.len() < count {
                let (meta, value) = encode(&entry.meta, &value, &kept, &body);
                batch.put(&key, &meta, value, entry.in_seq_index);
            }
        }
        if !batch.is_empty() {
            store.writer().await.commit(&batch, Stage::Accepted).await?;
        }
    }
    Ok(store.close().await?)
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

async fn is_complete(snapshot: &StoreSnapshot, id: &str, attachment: &Attachment) -> Result<bool> {
    for key in attachment.chunk_keys(id) {
        if snapshot.get(&key).await?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Encodes a leaf's meta and value with only these attachments, and with its tail.
fn encode(meta: &[u8], value: &LeafValue, attachments: &[Attachment], body: &[u8]) -> (Vec<u8>, Bytes) {
    if attachments.is_empty() {
        let content = [&[ENCODING_PLAIN], body].concat();
        return (without_attachments(meta), value.with_content(&content));
    }
    (meta.to_vec(), value.with_content(&encode_table(attachments, body, value.encoding)))
}
