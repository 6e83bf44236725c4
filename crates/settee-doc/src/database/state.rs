//! An open database: the state that its reads, writes, uploads and settings share.
//!
//! This file also opens and closes it, reports its health, converts positions in its changes from and to text
//! (`seq_text`, `parse_since`), and finds uploads that a crash left unreferenced.
//!
//! The holder of the store's writer ([`Updater`](super::update::Updater)) is the only one to use `validation`
//! and to write documents. The other fields are atomic, have locks of their own, or don't change once the
//! database is open.

use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use settee_io::Env;
use settee_store::{Backup, BackupFiles, Batch, Compaction, EarlierBackup, Seq, Stage, Store, StoreOptions};

use super::counters::{Counter, DatabaseCounters};
use super::snapshot::Snapshot;
use super::subscribers::Subscribers;
use crate::attachments::{UnreferencedUpload, UnreferencedUploads};
use crate::design_functions::Validator;
use crate::documents::keys::{INTENT, chunk_key, decode_intent_key};
use crate::documents::leaf_value::leaf_bytes_max;
use crate::documents::{check_document_id, check_partitioned_id};
use crate::events::UpdateNotifier;
use crate::rules::Rules;
use crate::sequence::Sequence;
use crate::stats::DatabaseStats;
use crate::{Error, ErrorKind, Result};

/// A database's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Documents that aren't deleted.
    pub doc_count: u64,
    /// Deleted documents.
    pub doc_del_count: u64,
    /// The `Seq` of the last change.
    pub update_seq: Seq,
    /// Number of purges.
    pub purge_seq: u64,
    /// Size of its files in bytes.
    pub file_bytes: u64,
    /// Bytes of the live records.
    pub active_bytes: u64,
    /// Equal to `active_bytes`: bodies are not compressed.
    pub external_bytes: u64,
}

/// A database's identity in the catalogue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) created_us: u64,
    pub(crate) incarnation: [u8; 16],
    pub(crate) is_partitioned: bool,
}

/// The result of the scan for validation functions (`validate_doc_update`).
#[derive(Clone, Default)]
pub(crate) enum Validation {
    /// No scan since a design document was written.
    #[default]
    Unknown,
    None,
    By(Arc<dyn Validator>),
}

/// Called once after the first write, with the stage that it has reached.
pub(crate) type OnFirstWrite = Box<dyn Fn(Stage) + Send + Sync>;

/// An open database, usable from many tasks at once.
pub struct Database {
    name: String,
    created_us: u64,
    is_partitioned: bool,
    incarnation: [u8; 16],
    sequence: Sequence,
    pub(super) store: Store,
    pub(super) counters: DatabaseCounters,
    subscribers: Subscribers,
    /// Reference-counts the snapshots.
    snapshots: Arc<()>,
    is_deleted: AtomicBool,
    is_compacting: AtomicBool,
    /// Notifies `_db_updates` subscribers.
    pub(crate) update_notifier: UpdateNotifier,
    pub(crate) rules: Arc<Rules>,
    /// The cached scan result; only the updater uses it.
    pub(crate) validation: Mutex<Validation>,
    pub(crate) env: Env,
    /// The queue of unreferenced uploads.
    pub(crate) unreferenced: UnreferencedUploads,
    /// `None` if the database wasn't empty when it was opened.
    pub(super) on_first_write: Option<OnFirstWrite>,
    pub(super) was_written: AtomicBool,
    /// Largest batch of its log in bytes.
    pub(super) batch_bytes_max: usize,
    /// Largest leaf's value in bytes, without its encoding byte.
    pub(super) leaf_bytes_max: usize,
}

impl Database {
    pub(crate) async fn open(
        env: &Env,
        directory: &Path,
        name: &str,
        identity: Identity,
        options: StoreOptions,
    ) -> Result<Database> {
        let batch_bytes_max = options.log.batch_bytes_max;
        let (store, recovery) = Store::open(env, directory, options).await?;
        tracing::debug!(database = name, ?recovery, "opened");
        let Identity { created_us, incarnation, is_partitioned } = identity;
        let sequence = Sequence::new(&incarnation);
        let counters = DatabaseCounters::read(&store.snapshot()).await?;
        let (snapshots, is_deleted) = (Arc::default(), AtomicBool::new(false));
        let is_compacting = AtomicBool::new(false);
        let unreferenced = UnreferencedUploads::default();
        let env = env.clone();
        let database = Database {
            name: name.into(),
            created_us,
            is_partitioned,
            incarnation,
            sequence,
            store,
            counters,
            subscribers: Subscribers::default(),
            snapshots,
            is_deleted,
            is_compacting,
            update_notifier: UpdateNotifier::default(),
            rules: Arc::new(Rules::default()),
            validation: Mutex::default(),
            env,
            unreferenced,
            on_first_write: None,
            was_written: AtomicBool::new(false),
            batch_bytes_max,
            leaf_bytes_max: leaf_bytes_max(batch_bytes_max),
        };
        database.find_unreferenced().await?;
        Ok(database)
    }

    /// Registers a callback for the first write to this empty database.
    pub(crate) fn on_first_write(&mut self, callback: OnFirstWrite) {
        self.on_first_write = Some(callback);
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its creation time in microseconds since 1970: `instance_start_time`.
    pub fn created_us(&self) -> u64 {
        self.created_us
    }

    /// Whether its documents' ids are `partition:id`.
    pub fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    /// Random bytes that tell this database from an earlier one of the same name: see [`Database::seq_text`].
    pub fn incarnation(&self) -> [u8; 16] {
        self.incarnation
    }

    /// Checks a document's id against CouchDB's rules, and in a partitioned database against those of
    /// partitions.
    ///
    /// # Errors
    /// `IllegalDocId`, `IllegalPartition`.
    pub fn check_id(&self, id: &str) -> Result<()> {
        check_document_id(id)?;
        if self.is_partitioned { check_partitioned_id(id) } else { Ok(()) }
    }

    /// A snapshot of the newest persisted state. Never waits.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.store.snapshot(), self.path_limit(), self.snapshots.clone())
    }

    /// Whether nothing was ever persisted in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.store.snapshot().seq() == Seq(0)
    }

    /// Whether there is a snapshot, or a scan of one. Exact, since the caller has the only reference to the
    /// database.
    pub(crate) fn has_snapshots(&mut self) -> bool {
        Arc::get_mut(&mut self.snapshots).is_none()
    }

    /// Statistics of the newest persisted state.
    pub fn info(&self) -> Info {
        let snapshot = self.snapshot();
        let live = snapshot.live_bytes();
        Info {
            doc_count: snapshot.doc_count(),
            doc_del_count: snapshot.doc_del_count(),
            update_seq: snapshot.update_seq(),
            purge_seq: self.counter(Counter::PurgeSeq),
            file_bytes: self.store.stats().file_bytes,
            active_bytes: live,
            external_bytes: live,
        }
    }

    /// The log's statistics since the database was opened.
    pub fn log_stats(&self) -> settee_store::LogStats {
        self.store.stats()
    }

    /// The statistics of log and store since the database was opened.
    pub(crate) fn database_stats(&self) -> DatabaseStats {
        let snapshot_count = Arc::strong_count(&self.snapshots) - 1;
        DatabaseStats { log: self.store.stats(), store: self.store.store_stats(), snapshot_count }
    }

    pub(super) fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter, || self.store.snapshot().seq())
    }

    /// Number of revisions of a leaf's path that are kept and shown.
    pub(crate) fn path_limit(&self) -> u32 {
        u32::try_from(self.counter(Counter::RevsLimit)).unwrap_or(u32::MAX)
    }

    /// See [`DatabaseCounters::accept`].
    pub(crate) fn accept_counter(&self, seq: Seq, counter: Counter, value: u64) {
        self.counters.accept(seq, counter, value, self.store.snapshot().seq());
    }

    /// Whether the database was deleted: its users get `NotFound`.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// Returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// `Stopped`, or `NotFound` if the database was deleted.
    pub async fn barrier(&self) -> Result<()> {
        self.store.flush().await.map_err(|stopped| self.not_found_if_deleted(stopped.into()))
    }

    /// As [`Database::barrier`], but returns false if a write finds no disk space meanwhile.
    pub(crate) async fn try_barrier(&self) -> Result<bool> {
        self.store.try_flush().await.map_err(|stopped| self.not_found_if_deleted(stopped.into()))
    }

    /// Returns once a snapshot shows a change later than `seq`. Dropping the future changes nothing. A woken
    /// future must be polled or dropped, since one of the waiting tasks waits for the others as well.
    ///
    /// # Errors
    /// `NotFound` if the database was deleted, `Stopped` if it was closed or its log stopped.
    pub async fn changed_after(&self, seq: Seq) -> Result<()> {
        let changed = self.subscribers.changed_after(&self.store, seq);
        changed.await.map_err(|stopped| self.not_found_if_deleted(stopped.into()))
    }

    /// A position in the changes as text: `N-opaque`. Equal positions give equal text.
    pub fn seq_text(&self, seq: Seq) -> String {
        self.sequence.text(seq)
    }

    /// Appends [`Database::seq_text`] to `out`.
    pub fn write_seq(&self, seq: Seq, out: &mut Vec<u8>) {
        self.sequence.write(seq, out);
    }

    /// Parses a client's position: `0`, `now`, `N-opaque`, optionally in JSON's quotes. A position of another
    /// incarnation or server means the start, and so does one past the end, which was issued before the
    /// database's files were replaced by older ones.
    ///
    /// # Errors
    /// `BadRequest` for anything else.
    pub fn parse_since(&self, text: &str) -> Result<Seq> {
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text) {
            "now" => Ok(self.snapshot().update_seq()),
            text => {
                let seq = self.sequence.parse(text)?;
                Ok(if seq > self.store.snapshot().seq() { Seq(0) } else { seq })
            }
        }
    }

    /// Reclaims the space of replaced and removed records in closed segments; returns when that is done.
    /// Reads and writes continue meanwhile. From then on the bodies of revisions that were replaced before can't
    /// be read, not even those in the segment that is still open.
    ///
    /// # Errors
    /// Why it ended early: segments not rewritten are unchanged. `NotFound` if the database was deleted.
    pub async fn compact(&self) -> Result<Compaction> {
        let done = self.store.compact().await.map_err(|error| self.not_found_if_deleted(error.into()))?;
        self.end_compaction_at_now().await.map(|()| done)
    }

    /// See [`Store::backup`].
    pub(crate) async fn backup(
        &self,
        to: &Path,
        earlier: Option<EarlierBackup<'_>>,
    ) -> Result<(Backup, BackupFiles)> {
        self.store.backup(to, earlier).await.map_err(|error| self.not_found_if_deleted(error.into()))
    }

    /// Whether a requested compaction is in progress.
    pub fn is_compacting(&self) -> bool {
        self.is_compacting.load(Ordering::Acquire)
    }

    /// Registers a compaction; returns false if one is in progress already.
    pub(crate) fn begin_compaction(&self) -> bool {
        !self.is_compacting.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn end_compaction(&self) {
        self.is_compacting.store(false, Ordering::Release);
    }

    pub(crate) fn health(&self) -> Result<()> {
        self.store.health().map_err(|stopped| self.not_found_if_deleted(stopped.into()))
    }

    pub(crate) fn check_checkpoints(&self) -> Result<()> {
        check_checkpoints(&self.store).map_err(|error| self.not_found_if_deleted(error))
    }

    /// Persists everything accepted, and closes the database; its subscribers get an error.
    pub(crate) async fn close(&self) -> Result<()> {
        Ok(self.store.close().await?)
    }

    /// As [`Database::close`], for a deleted database: its users get `NotFound`.
    pub(crate) async fn close_deleted(&self) {
        self.is_deleted.store(true, Ordering::Release);
        // Errors of its log no longer matter.
        let _ = self.store.close().await;
    }

    /// Commits records that don't belong to a document.
    pub(crate) async fn commit(&self, batch: &Batch, stage: Stage) -> Result<Seq> {
        self.health()?;
        let committed = self.store.writer().await.commit(batch, stage).await;
        committed.map_err(|error| self.not_found_if_deleted(error.into()))
    }

    /// Finds the uploads and removals that were in progress when the database was closed or crashed.
    async fn find_unreferenced(&self) -> Result<()> {
        let snapshot = self.store.snapshot();
        let range = (Bound::Included(&[INTENT][..]), Bound::Excluded(&[INTENT + 1][..]));
        let mut intents = snapshot.scan(range.0, range.1, false);
        while let Some(intent) = intents.next().await? {
            let (id, upload) = decode_intent_key(intent.key)?;
            if UnreferencedUpload::is_list(intent.meta) {
                let list = snapshot.read(intent.location).await.map_err(Error::from);
                match list.and_then(|list| UnreferencedUpload::from_list(id, upload, &list.value())) {
                    Ok(unreferenced) => self.unreferenced.push(unreferenced),
                    // Documents don't need it: they stay usable, and the listed uploads stay on disk.
                    Err(error) => {
                        tracing::warn!(database = self.name, %error, "an upload intent is unreadable; its chunks stay")
                    }
                }
                continue;
            }
            let mut count = 0;
            while snapshot.get(&chunk_key(&id, &upload, count)).await?.is_some() {
                count += 1;
            }
            self.unreferenced.push(UnreferencedUpload::new(id, upload, count));
        }
        Ok(())
    }

    /// Replaces any error of a deleted database by `NotFound`.
    pub(super) fn not_found_if_deleted(&self, error: Error) -> Error {
        match self.is_deleted() {
            true => Error::no_database(),
            false => error,
        }
    }
}

/// Whether the last checkpoint of a store failed, for another reason than missing disk space or file
/// descriptors.
pub(crate) fn check_checkpoints(store: &Store) -> Result<()> {
    let reason = "a checkpoint failed and is retried: see the log";
    store.checkpoint_error().map_or(Ok(()), |_| Err(Error::new(ErrorKind::Internal, reason)))
}
