//! Sends the rows of documents that pass a filter function, which runs on batches of documents.

use std::sync::Arc;

use settee_doc::{Document, DocumentRow, Documents, OrderedDocuments, Revision, Snapshot, Summary};

use super::Feed;
use crate::body::MemoryPermit;
use crate::changes::function_filter::FunctionFilter;
use crate::document::options::DocumentOptions;
use crate::document::whole::read_whole;
use crate::error::ApiError;
use crate::response::writer::ResponseWriter;

/// Largest number of documents that one call of a filter function gets, but for the leaves of the last one.
const BATCH_DOCUMENTS: usize = 128;

/// Bytes of documents from which on a batch is complete.
const BATCH_BYTES: usize = 1 << 20;

/// A change whose leaves are in a batch.
struct Candidate {
    summary: Summary,
    document: Document,
    /// The leaves, the winner first.
    revisions: Vec<Revision>,
}

/// Changes, and the texts of all their leaves.
#[derive(Default)]
struct Batch {
    candidates: Vec<Candidate>,
    texts: Vec<String>,
    bytes: usize,
    permits: Vec<MemoryPermit>,
}

impl Feed {
    /// Sends the rows of the documents that pass. A row has the leaves that pass.
    pub(super) async fn send_filtered(
        &mut self,
        snapshot: &Snapshot,
        filter: &Arc<FunctionFilter>,
        mut documents: Documents<OrderedDocuments>,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        while self.may_send() {
            let batch = self.next_batch(snapshot, &mut documents, out).await?;
            if batch.candidates.is_empty() {
                return Ok(());
            }
            let mut passed = self.run_filter(filter, batch.texts, out).await?.into_iter();
            for Candidate { summary, document, revisions } in batch.candidates {
                let count = revisions.len();
                let passing: Vec<Revision> = revisions
                    .into_iter()
                    .zip(passed.by_ref().take(count))
                    .filter_map(|(revision, passes)| passes.then_some(revision))
                    .collect();
                if !self.may_send() {
                    return Ok(());
                }
                match passing.is_empty() {
                    true => self.pass_over(summary.seq),
                    false => self.send_row(snapshot, &summary, document, &passing, out).await?,
                }
            }
        }
        Ok(())
    }

    /// Runs the function, and sends heartbeats meanwhile.
    async fn run_filter(
        &mut self,
        filter: &Arc<FunctionFilter>,
        texts: Vec<String>,
        out: &mut ResponseWriter,
    ) -> Result<Vec<bool>, ApiError> {
        let filter = filter.clone();
        let mut running = Box::pin(async move { filter.passes(texts).await });
        let Some(heartbeat) = self.heartbeat else { return running.await };
        loop {
            match tokio::time::timeout(heartbeat, &mut running).await {
                Ok(passed) => return passed,
                Err(_) => self.beat(out).await?,
            }
        }
    }

    /// Reads the next documents; none at the end.
    async fn next_batch(
        &mut self,
        snapshot: &Snapshot,
        documents: &mut Documents<OrderedDocuments>,
        out: &mut ResponseWriter,
    ) -> Result<Batch, ApiError> {
        let mut batch = Batch::default();
        while batch.texts.len() < BATCH_DOCUMENTS && batch.bytes < BATCH_BYTES {
            tokio::task::consume_budget().await;
            let Some(DocumentRow { key: id, winner }) = self.next_document(documents, out).await? else {
                break;
            };
            let winner = winner.expect("a change has a document");
            let summary = winner.summary.clone();
            let document = snapshot.read_winner(&id, winner).await?;
            let mut revisions = vec![summary.revision.clone()];
            self.add(snapshot, document.clone(), &mut batch).await?;
            if self.all_leaves && summary.has_conflicts {
                let leaves = snapshot.open_leaves(&id).await?;
                for (index, leaf) in leaves.iter().enumerate() {
                    if leaf.revision != summary.revision {
                        self.add(snapshot, leaves.document(index).await?, &mut batch).await?;
                        revisions.push(leaf.revision);
                    }
                }
            }
            batch.candidates.push(Candidate { summary, document, revisions });
        }
        Ok(batch)
    }

    /// Adds a leaf's text, with its history.
    async fn add(&self, snapshot: &Snapshot, document: Document, batch: &mut Batch) -> Result<(), ApiError> {
        let mut options = DocumentOptions::default();
        options.revs = true;
        let extras = options.extras(snapshot, &document).await?;
        let (document, permit) = read_whole(snapshot, document, &self.body_memory).await?;
        let mut json = Vec::new();
        document.write_json(&extras, &mut json);
        batch.bytes += json.len();
        batch.texts.push(String::from_utf8(json).map_err(|_| ApiError::bad_json())?);
        batch.permits.push(permit);
        Ok(())
    }
}
