//! Building: brings the indexes of a design document up to the database's state.
//!
//! One scan over the changes reads the documents with their bodies, in the order of the log. Groups of them are
//! mapped in parallel by background tasks, in batches that are small where documents emit much; what they emit is
//! collected, sorted, and merged into each index in one update. After each merge the index has all changes up to some
//! `Seq`, so that a build continues there after a crash, and readers may read what has been built.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use settee_doc::{Database, DocumentRow, Extras, Revision, Seq, Snapshot, Winner};
use settee_io::Env;
use tokio::sync::mpsc;

use crate::design::Design;
use crate::error::{Result, ViewError};
use crate::index::{Building, IndexList};
use crate::mapper::{Mapped, order_rows};
use crate::mappers::Mappers;
use crate::merge::MappedDocument;
use crate::progress::Progress;

/// Documents of a group that is mapped at once, and bytes of them.
const GROUP_COUNT_MAX: usize = 256;
const GROUP_BYTES_MAX: usize = 512 << 10;

/// Groups that are being mapped, or wait for being merged.
const GROUPS_IN_FLIGHT_MAX: usize = 4;

/// Mapped batches of a group that wait for being taken: all of them, while documents emit little.
const BATCHES_WAITING_MAX: usize = GROUP_COUNT_MAX / BATCH_COUNT_MAX;

/// Documents of a group that are mapped at once: at first, and at most.
const BATCH_COUNT_FIRST: usize = 8;
const BATCH_COUNT_MAX: usize = 64;

/// Bytes of mapped rows that a batch should give at most.
const BATCH_OUTPUT_BYTES: usize = 2 << 20;

/// Time after which what was mapped is merged however little it is: a crash costs no more of a slow build, and queries
/// that don't wait see it. The rows of an index don't depend on when they were merged.
const MERGE_INTERVAL: Duration = Duration::from_secs(10);

/// Number of log lines about exceptions of a build's map functions.
const LOGGED_MAX: u64 = 20;

/// What a build needs.
pub(crate) struct Build {
    pub(crate) env: Env,
    pub(crate) database: Arc<Database>,
    pub(crate) design: Arc<Design>,
    pub(crate) indexes: IndexList,
    pub(crate) mappers: Arc<Mappers>,
    pub(crate) progress: Arc<Progress>,
    /// Bytes of mapped rows, and keys, that are merged at once.
    pub(crate) merge_bytes: usize,
    /// The design document's revision.
    pub(crate) revision: Revision,
    /// Requests that wait for the build.
    pub(crate) waiting: Arc<AtomicU64>,
    /// Documents of the next batch: small while documents emit much, so that their rows are handed over early.
    pub(crate) batch_count: Arc<BatchCount>,
}

/// The number of documents of a group that are mapped at once.
#[derive(Debug)]
pub(crate) struct BatchCount(AtomicUsize);

impl Default for BatchCount {
    fn default() -> BatchCount {
        BatchCount(AtomicUsize::new(BATCH_COUNT_FIRST))
    }
}

impl BatchCount {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes what a batch emitted.
    fn adjust(&self, count: usize, bytes: usize) {
        let next = match bytes {
            _ if bytes > BATCH_OUTPUT_BYTES => count * BATCH_OUTPUT_BYTES / bytes,
            _ if bytes < BATCH_OUTPUT_BYTES / 2 && count >= self.get() => 2 * count,
            _ => return,
        };
        let next = next.clamp(1, BATCH_COUNT_MAX);
        self.0.store(next, Ordering::Relaxed);
    }
}

/// A group that is being mapped: its batches, in order.
struct GroupInFlight {
    batches: mpsc::Receiver<Result<MappedGroup>>,
    /// Documents that weren't received yet.
    left: u64,
}

/// A document to be mapped. Without text it is deleted, or isn't mapped.
struct Input {
    id: String,
    seq: Seq,
    json: Option<Vec<u8>>,
}

/// What some documents of a group emit, for each index.
struct MappedGroup {
    last_seq: Seq,
    count: u64,
    by_index: Vec<Vec<MappedDocument>>,
    stopped: Vec<Option<ViewError>>,
    dropped: Vec<String>,
}

impl Build {
    /// Builds until the indexes have all changes that the database has at the beginning.
    ///
    /// # Errors
    /// If a document can't be read, or an index not be written; what was merged until then stays.
    pub(crate) async fn run(&self) -> Result<()> {
        let mut order: Vec<usize> = (0..self.indexes.len()).collect();
        // Builds of different design documents that share indexes take them in the same order.
        order.sort_by_key(|index| self.indexes[*index].definition.signature);
        let mut building: Vec<Option<Building<'_>>> = self.indexes.iter().map(|_| None).collect();
        for index in order {
            if self.indexes[index].failure().is_none() {
                building[index] = Some(self.indexes[index].begin().await?);
            }
        }
        let snapshot = self.database.snapshot();
        let target = snapshot.update_seq();
        self.take_purges(&snapshot, &mut building).await?;
        let since = building.iter().flatten().map(|building| building.reached().0).min().unwrap_or(target);
        if since >= target {
            return Ok(());
        }
        let _running = self.progress.begin(snapshot.pending(since).await?);
        let merged_at = self.env.clock.now();
        let pending = self.indexes.iter().map(|_| Vec::new()).collect();
        let mut run = Run { build: self, building, pending, pending_bytes: 0, merged_at, logged: 0 };
        run.scan(&snapshot, since, target).await
    }

    /// Removes the rows of purged documents. If a purge left revisions of a document, it has a new `Seq`, so that the
    /// scan maps it again.
    async fn take_purges(&self, snapshot: &Snapshot, building: &mut [Option<Building<'_>>]) -> Result<()> {
        // As of the snapshot: with a later purge the index would claim what the scan still shows.
        let newest = snapshot.purge_seq().await?;
        for index in building.iter_mut().flatten() {
            let (seq, purge_seq) = index.reached();
            let mut documents = Vec::new();
            let is_ahead = seq > snapshot.update_seq() || purge_seq > newest;
            if !is_ahead && purge_seq == newest {
                continue;
            }
            let ids = if is_ahead { None } else { purged_ids(snapshot, purge_seq, newest).await? };
            match ids {
                _ if seq == Seq(0) => {}
                Some(ids) => {
                    documents.extend(ids.into_iter().map(|id| MappedDocument { id, rows: Vec::new() }));
                }
                // It is ahead of its database, or infos of older purges are gone.
                None => index.reset().await?,
            }
            let (seq, _) = index.reached();
            index.merge(documents, seq, newest).await?;
            index.commit().await?;
        }
        Ok(())
    }

    /// The text that map functions get.
    async fn text(
        &self,
        snapshot: &Snapshot,
        document: settee_doc::Document,
        (has_conflicts, seq): (bool, Seq),
    ) -> Result<Vec<u8>> {
        let document = snapshot.read_whole(document).await?;
        let mut extras = Extras::default();
        if has_conflicts {
            for leaf in snapshot.leaves(&document.id).await?.into_iter().skip(1) {
                let list = if leaf.deleted { &mut extras.deleted_conflicts } else { &mut extras.conflicts };
                list.push(leaf.revision);
            }
        }
        if self.design.local_seq {
            extras.local_seq = Some(seq.0);
        }
        let mut json = Vec::new();
        document.write_json(&extras, &mut json);
        Ok(json)
    }

    async fn input(&self, snapshot: &Snapshot, id: String, winner: Winner) -> Result<Input> {
        let (seq, has_conflicts) = (winner.summary.seq, winner.summary.has_conflicts);
        let is_mapped =
            !winner.summary.deleted && (self.design.include_design || !id.starts_with("_design/"));
        if !is_mapped {
            return Ok(Input { id, seq, json: None });
        }
        let document = snapshot.read_winner(&id, winner).await?;
        let json = Some(self.text(snapshot, document, (has_conflicts, seq)).await?);
        Ok(Input { id, seq, json })
    }

    /// Maps documents in a background task.
    fn start_mapping(&self, inputs: Vec<Input>) -> GroupInFlight {
        let (sender, batches) = mpsc::channel(BATCHES_WAITING_MAX);
        let left = inputs.len() as u64;
        let (mappers, design) = (self.mappers.clone(), self.design.clone());
        let batch_count = self.batch_count.clone();
        self.env.spawn_background("view map", async move {
            let mut inputs = VecDeque::from(inputs);
            while !inputs.is_empty() {
                let count = batch_count.get().min(inputs.len());
                let mapped = map_group(&mappers, &design, inputs.drain(..count).collect());
                if let Ok(mapped) = &mapped {
                    batch_count.adjust(count, mapped.bytes());
                }
                let has_failed = mapped.is_err();
                if sender.send(mapped).await.is_err() || has_failed {
                    break;
                }
            }
        });
        GroupInFlight { batches, left }
    }

    /// Whether the design document was edited or deleted since, and nobody waits for the build.
    async fn is_obsolete(&self) -> Result<bool> {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return Ok(false);
        }
        let present = self.database.snapshot().find(&self.design.id).await?;
        Ok(present.is_none_or(|present| present.deleted || present.revision != self.revision))
    }
}

impl MappedGroup {
    /// Size in memory, roughly, in bytes.
    fn bytes(&self) -> usize {
        self.by_index.iter().flatten().map(MappedDocument::bytes).sum()
    }
}

/// Calls the map functions, and makes the sort keys.
fn map_group(mappers: &Mappers, design: &Design, inputs: Vec<Input>) -> Result<MappedGroup> {
    let mut group = MappedGroup {
        last_seq: inputs.last().map_or(Seq(0), |input| input.seq),
        count: inputs.len() as u64,
        by_index: design.maps.iter().map(|_| Vec::with_capacity(inputs.len())).collect(),
        stopped: design.maps.iter().map(|_| None).collect(),
        dropped: Vec::new(),
    };
    let texts: Vec<&[u8]> = inputs.iter().filter_map(|input| input.json.as_deref()).collect();
    let mut mapped = if texts.is_empty() { Vec::new() } else { mappers.map(&texts)? }.into_iter();
    for Input { id, json, .. } in inputs {
        let mut outcomes = json.and_then(|_| mapped.next()).unwrap_or_default().into_iter();
        let partition =
            if design.is_partitioned { id.split_once(':').map(|(partition, _)| partition) } else { None };
        for (index, map) in design.maps.iter().enumerate() {
            let rows = match outcomes.next() {
                Some(Mapped::Rows(rows)) => order_rows(rows, partition, map.collation),
                Some(Mapped::Dropped(message)) => {
                    if (group.dropped.len() as u64) < LOGGED_MAX {
                        group.dropped.push(format!("{id}: {message}"));
                    }
                    Vec::new()
                }
                Some(Mapped::Stopped(error)) => {
                    group.stopped[index].get_or_insert(error);
                    Vec::new()
                }
                None => Vec::new(),
            };
            group.by_index[index].push(MappedDocument { id: id.clone(), rows });
        }
    }
    Ok(group)
}

/// A build in progress.
struct Run<'a> {
    build: &'a Build,
    building: Vec<Option<Building<'a>>>,
    /// Mapped documents that aren't merged yet, for each index.
    pending: Vec<Vec<MappedDocument>>,
    pending_bytes: usize,
    /// When the last merge was, by the environment's clock.
    merged_at: Duration,
    logged: u64,
}

impl Run<'_> {
    async fn scan(&mut self, snapshot: &Snapshot, since: Seq, target: Seq) -> Result<()> {
        let mut documents = snapshot.read_ahead(snapshot.changes(since, false), u64::MAX, None);
        let mut in_flight: VecDeque<GroupInFlight> = VecDeque::new();
        let mut inputs: Vec<Input> = Vec::new();
        let mut input_bytes = 0;
        let mut is_end = false;
        while !is_end {
            match documents.next().await? {
                Some(DocumentRow { key: id, winner }) => {
                    let winner = winner.ok_or_else(|| ViewError::damaged("a change has no document"))?;
                    let input = self.build.input(snapshot, id, winner).await?;
                    input_bytes += input.id.len() + input.json.as_ref().map_or(0, Vec::len);
                    inputs.push(input);
                }
                None => is_end = true,
            }
            let is_full = inputs.len() >= GROUP_COUNT_MAX || input_bytes >= GROUP_BYTES_MAX;
            if is_full || is_end && !inputs.is_empty() {
                input_bytes = 0;
                in_flight.push_back(self.build.start_mapping(std::mem::take(&mut inputs)));
            }
            while in_flight.len() >= GROUPS_IN_FLIGHT_MAX || is_end && !in_flight.is_empty() {
                let mut group = in_flight.pop_front().expect("it isn't empty");
                let last_seq = self.take_group(&mut group).await?;
                if self.build.database.is_deleted() {
                    return Err(ViewError::not_found("Database does not exist."));
                }
                if self.build.is_obsolete().await? {
                    self.flush(last_seq).await?;
                    return Err(ViewError::not_found("the design document was changed"));
                }
            }
        }
        self.flush(target).await
    }

    /// Takes all batches of a group; returns its last `Seq`.
    async fn take_group(&mut self, group: &mut GroupInFlight) -> Result<Seq> {
        loop {
            let aborted = || ViewError::damaged("a build was aborted");
            let batch = group.batches.recv().await.ok_or_else(aborted)??;
            let last_seq = batch.last_seq;
            group.left = group.left.saturating_sub(batch.count);
            self.take(batch).await?;
            if group.left == 0 {
                return Ok(last_seq);
            }
        }
    }

    async fn take(&mut self, group: MappedGroup) -> Result<()> {
        let MappedGroup { last_seq, count, by_index, stopped, dropped } = group;
        for message in dropped {
            self.logged += 1;
            if self.logged <= LOGGED_MAX {
                let (database, design) = (self.build.database.name(), &self.build.design.id);
                tracing::warn!(database, design, "a map function failed for document {message}");
            }
        }
        for (index, documents) in by_index.into_iter().enumerate() {
            if let Some(error) = &stopped[index]
                && let Some(building) = self.building[index].take()
            {
                building.index().fail(error.clone());
            }
            if self.building[index].is_some() {
                self.pending_bytes += documents.iter().map(MappedDocument::bytes).sum::<usize>();
                self.pending[index].extend(documents);
            }
        }
        self.build.progress.advance(count);
        let is_due = self.build.env.clock.now().saturating_sub(self.merged_at) >= MERGE_INTERVAL;
        let is_full = self.pending_bytes >= self.build.merge_bytes;
        if is_full || is_due { self.flush(last_seq).await } else { Ok(()) }
    }

    /// Merges what is pending. The indexes then have all changes up to `seq`.
    async fn flush(&mut self, seq: Seq) -> Result<()> {
        self.pending_bytes = 0;
        for (building, pending) in self.building.iter_mut().zip(&mut self.pending) {
            let documents = std::mem::take(pending);
            let Some(building) = building else { continue };
            let (reached, purge_seq) = building.reached();
            // Another build may have brought a shared index further.
            if reached < seq {
                building.merge(documents, seq, purge_seq).await?;
                building.commit().await?;
            }
        }
        self.merged_at = self.build.env.clock.now();
        Ok(())
    }
}

/// The documents of the purges after one, in order and once each; `None` if not all infos are there.
async fn purged_ids(snapshot: &Snapshot, after: u64, newest: u64) -> Result<Option<BTreeSet<String>>> {
    let mut purges = snapshot.purges(after);
    let mut last = after;
    let mut ids = BTreeSet::new();
    while let Some(purge) = purges.next().await? {
        if purge.number != last + 1 {
            return Ok(None);
        }
        last = purge.number;
        ids.extend(purged_id(&purge.text));
    }
    Ok((last == newest).then_some(ids))
}

/// The document of a purge info.
fn purged_id(json: &[u8]) -> Option<String> {
    let info: serde_json::Value = serde_json::from_slice(json).ok()?;
    info.get("id")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_small_while_documents_emit_much() {
        let batches = BatchCount::default();
        assert_eq!(batches.get(), BATCH_COUNT_FIRST);
        for _ in 0..20 {
            batches.adjust(batches.get(), 100);
        }
        assert_eq!(batches.get(), BATCH_COUNT_MAX);
        // A group's last documents say nothing of larger batches.
        batches.adjust(1, 100);
        assert_eq!(batches.get(), BATCH_COUNT_MAX);
        batches.adjust(64, 64 << 20);
        assert_eq!(batches.get(), 2);
        batches.adjust(2, 8 << 20);
        assert_eq!(batches.get(), 1);
        batches.adjust(1, 1 << 10);
        assert_eq!(batches.get(), 2);
    }
}
