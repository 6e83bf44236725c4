//! One database: its documents, local documents and changes.

use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use settee_io::Env;
use settee_store::{Backup, BackupFiles, Batch, Compaction, EarlierBackup, Seq, Stage, Store, StoreOptions};

use crate::attachment::{Content, Orphan, Orphans, Upload, Uploading};
use crate::databases::Changed;
use crate::databases::check_checkpoints;
use crate::edit::{Edit, check_document_id};
use crate::followers::Followers;
use crate::keys::{UPLOAD, chunk_key, decode_upload_key};
use crate::numbers::{Number, Numbers, remove_notes};
use crate::partition::check_partitioned_id;
use crate::revision::Revision;
use crate::rules::Rules;
use crate::sequence::Sequence;
use crate::stats::Figures;
use crate::update::Updater;
use crate::view::View;
use crate::{Error, ErrorKind, Result};

/// A database's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Documents that aren't deleted.
    pub doc_count: u64,
    /// Deleted documents.
    pub doc_del_count: u64,
    /// The last change.
    pub update_seq: Seq,
    /// How often something was purged.
    pub purge_seq: u64,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Bytes of the records that live.
    pub active_bytes: u64,
    /// The same: bodies are not compressed.
    pub external_bytes: u64,
}

/// What the catalogue knows of a database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) created_us: u64,
    pub(crate) incarnation: [u8; 16],
    pub(crate) is_partitioned: bool,
}

/// What is known of functions that check writes (`validate_doc_update`).
#[derive(Debug, Clone, Default)]
pub(crate) enum Validation {
    /// Design documents haven't been looked at since one of them was written.
    #[default]
    Unknown,
    None,
    /// The id of a design document that has one.
    By(String),
}

/// Called once, when something was first stored, with the stage that it has reached.
pub(crate) type OnFirstWrite = Box<dyn Fn(Stage) + Send + Sync>;

/// An open database. Used from many tasks at once.
pub struct Database {
    name: String,
    created_us: u64,
    is_partitioned: bool,
    sequence: Sequence,
    store: Store,
    numbers: Numbers,
    followers: Followers,
    /// Counts the views that there are.
    views: Arc<()>,
    deleted: AtomicBool,
    compacting: AtomicBool,
    /// Tells those who follow all databases.
    pub(crate) changed: Changed,
    pub(crate) rules: Arc<Rules>,
    /// Whether writes would have to be checked; the updater alone reads and sets it.
    pub(crate) validation: Mutex<Validation>,
    env: Env,
    /// What was uploaded for nothing.
    pub(crate) orphans: Orphans,
    /// `None` where it held something when it was opened.
    on_first_write: Option<OnFirstWrite>,
    was_written: AtomicBool,
}

/// Of an edit's uploads so many bytes go to the log with it; the others before. They fit a batch beside
/// two of the largest documents.
const TOGETHER_BYTES_MAX: u64 = 256 << 10;

impl Database {
    pub(crate) async fn open(
        env: &Env,
        folder: &Path,
        name: &str,
        identity: Identity,
        options: StoreOptions,
    ) -> Result<Database> {
        let (store, recovery) = Store::open(env, folder, options).await?;
        tracing::debug!(database = name, ?recovery, "opened");
        let Identity { created_us, incarnation, is_partitioned } = identity;
        let sequence = Sequence::new(&incarnation);
        let numbers = Numbers::read(&store.snapshot()).await?;
        let (views, deleted) = (Arc::default(), AtomicBool::new(false));
        let compacting = AtomicBool::new(false);
        let orphans = Orphans::default();
        let env = env.clone();
        let database = Database {
            name: name.into(),
            created_us,
            is_partitioned,
            sequence,
            store,
            numbers,
            followers: Followers::default(),
            views,
            deleted,
            compacting,
            changed: Changed::default(),
            rules: Arc::new(Rules::new(false)),
            validation: Mutex::default(),
            env,
            orphans,
            on_first_write: None,
            was_written: AtomicBool::new(false),
        };
        database.find_orphans().await?;
        Ok(database)
    }

    /// Has somebody told when something is first stored in this database, which is empty.
    pub(crate) fn on_first_write(&mut self, told: OnFirstWrite) {
        self.on_first_write = Some(told);
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it was created, in microseconds since 1970: `instance_start_time`.
    pub fn created_us(&self) -> u64 {
        self.created_us
    }

    /// Whether its documents' ids are `partition:id`.
    pub fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    /// Checks a document's id by CouchDB's rules, and by those of partitions where it has any.
    ///
    /// # Errors
    /// `IllegalDocId`, `IllegalPartition`.
    pub fn check_id(&self, id: &str) -> Result<()> {
        check_document_id(id)?;
        if self.is_partitioned { check_partitioned_id(id) } else { Ok(()) }
    }

    /// The newest persisted state. Never waits.
    pub fn view(&self) -> View {
        View::new(self.store.snapshot(), self.path_limit(), self.views.clone())
    }

    /// Whether nothing that it ever held is persisted.
    pub(crate) fn is_empty(&self) -> bool {
        self.store.snapshot().seq() == Seq(0)
    }

    /// Whether there is a view, or a scan of one. Exact, since who calls it has the database for
    /// itself.
    pub(crate) fn has_views(&mut self) -> bool {
        Arc::get_mut(&mut self.views).is_none()
    }

    /// Its figures, of the newest persisted state.
    pub fn info(&self) -> Info {
        let view = self.view();
        let live = view.live_bytes();
        Info {
            doc_count: view.doc_count(),
            doc_del_count: view.doc_del_count(),
            update_seq: view.update_seq(),
            purge_seq: self.number(Number::PurgeSeq),
            file_bytes: self.store.stats().file_bytes,
            active_bytes: live,
            external_bytes: live,
        }
    }

    /// The log's counters since the database was opened.
    pub fn log_stats(&self) -> settee_store::LogStats {
        self.store.stats()
    }

    /// The log's counters and the store's since the database was opened.
    pub(crate) fn figures(&self) -> Figures {
        Figures { log: self.store.stats(), store: self.store.store_stats() }
    }

    /// One interactive edit: checks the revision that it replaces, makes the new one, and
    /// returns it once `stage` is reached. Dropping the future may leave the edit done.
    ///
    /// # Errors
    /// `Conflict` where the edit's revision isn't a leaf; `NoSpace`; `Stopped`: whether the
    /// edit survives is then unknown.
    pub async fn update(&self, edit: Edit, stage: Stage) -> Result<Revision> {
        let mut outcomes = self.update_all(vec![edit], stage).await?;
        outcomes.pop().expect("an outcome for each edit")
    }

    /// Interactive edits, each decided by itself, in order; returns once all that succeeded
    /// have reached `stage`.
    ///
    /// # Errors
    /// Inside, why an edit was refused. Outside, `NoSpace` or `Stopped`: the edits before the
    /// one that failed may have been stored, each whole.
    pub async fn update_all(&self, mut edits: Vec<Edit>, stage: Stage) -> Result<Vec<Result<Revision>>> {
        self.check_partitions(&edits)?;
        self.upload_inline(&mut edits).await?;
        let mut updater = self.updater(stage).await?;
        let mut outcomes = Vec::with_capacity(edits.len());
        for edit in &edits {
            outcomes.push(updater.update(edit).await.map_err(|error| self.explain(error))?);
        }
        self.finish(updater, stage).await?;
        Ok(outcomes)
    }

    /// Replicated edits (`new_edits=false`), merged into the revision trees; never a conflict.
    ///
    /// # Errors
    /// As [`Database::update_all`].
    pub async fn replicate_all(&self, mut edits: Vec<Edit>, stage: Stage) -> Result<Vec<Result<Revision>>> {
        self.check_partitions(&edits)?;
        self.upload_inline(&mut edits).await?;
        let mut updater = self.updater(stage).await?;
        let mut outcomes = Vec::with_capacity(edits.len());
        for edit in &edits {
            outcomes.push(updater.replicate(edit).await.map_err(|error| self.explain(error))?);
        }
        self.finish(updater, stage).await?;
        Ok(outcomes)
    }

    /// Removes revisions for good, as far as they are leaves, and all that no other leaf has of what
    /// they had; returns once that is persisted, for each document the leaves that went. Each is
    /// a purge of its own.
    ///
    /// # Errors
    /// `IllegalDocId` or `IllegalPartition`: nothing was changed. `NoSpace` or `Stopped`: the
    /// documents before the one that failed may have been purged, each whole.
    pub async fn purge(&self, requests: &[(String, Vec<Revision>)]) -> Result<Vec<Vec<Revision>>> {
        requests.iter().try_for_each(|(id, _)| self.check_id(id))?;
        let notes_max = self.number(Number::PurgedInfosLimit);
        let mut updater = self.updater(Stage::Persisted).await?;
        let mut gone = Vec::with_capacity(requests.len());
        for (id, revisions) in requests {
            let purged = updater.purge(id, revisions, notes_max).await;
            gone.push(purged.map_err(|error| self.explain(error))?);
        }
        self.finish(updater, Stage::Persisted).await?;
        Ok(gone)
    }

    /// How many revisions of each leaf's path are kept and shown.
    pub fn revs_limit(&self) -> u64 {
        self.number(Number::RevsLimit)
    }

    /// Sets [`Database::revs_limit`], for what is read from now on; what is stored follows with the
    /// updates of each document. Returns once it is persisted.
    ///
    /// # Errors
    /// `BadRequest` for 0; `NoSpace`; `Stopped`.
    pub async fn set_revs_limit(&self, limit: u64) -> Result<()> {
        if limit == 0 {
            return Err(Error::bad_request("`revs_limit` must be positive integer"));
        }
        let _changing = self.numbers.changing.lock().await;
        self.put_number(Number::RevsLimit, limit).await
    }

    /// The shards that the database reports: it has one, whatever that says.
    pub fn shard_count(&self) -> u64 {
        self.number(Number::ShardCount)
    }

    /// Sets [`Database::shard_count`]. Returns once it is persisted.
    ///
    /// # Errors
    /// `NoSpace`; `Stopped`.
    pub async fn set_shard_count(&self, count: u64) -> Result<()> {
        let _changing = self.numbers.changing.lock().await;
        self.put_number(Number::ShardCount, count).await
    }

    /// How many notes of purges are kept.
    pub fn purged_infos_limit(&self) -> u64 {
        self.number(Number::PurgedInfosLimit)
    }

    /// Sets [`Database::purged_infos_limit`], and removes the notes that are too many. Returns once that
    /// is persisted.
    ///
    /// # Errors
    /// `BadRequest` for 0; `NoSpace`; `Stopped`.
    pub async fn set_purged_infos_limit(&self, limit: u64) -> Result<()> {
        if limit == 0 {
            return Err(Error::bad_request("`purged_infos_limit` must be positive integer"));
        }
        let _changing = self.numbers.changing.lock().await;
        self.put_number(Number::PurgedInfosLimit, limit).await?;
        let up_to = self.number(Number::PurgeSeq).saturating_sub(limit);
        let mut has_more = true;
        while has_more {
            let mut batch = Batch::new();
            has_more = remove_notes(&self.store.snapshot(), up_to, &mut batch).await?;
            batch.use_reserve();
            self.commit_whole(batch).await?;
        }
        Ok(())
    }

    async fn put_number(&self, number: Number, value: u64) -> Result<()> {
        let mut batch = Batch::new();
        number.put(value, &mut batch);
        let seq = self.commit(&batch, Stage::Persisted).await?;
        self.accept_number(seq, number, value);
        self.barrier().await
    }

    fn number(&self, number: Number) -> u64 {
        self.numbers.get(number, || self.store.snapshot().seq())
    }

    /// How many revisions of a leaf's path are kept and shown.
    pub(crate) fn path_limit(&self) -> u32 {
        u32::try_from(self.number(Number::RevsLimit)).unwrap_or(u32::MAX)
    }

    /// See [`Numbers::accept`].
    pub(crate) fn accept_number(&self, seq: Seq, number: Number, value: u64) {
        self.numbers.accept(seq, number, value, self.store.snapshot().seq());
    }

    /// Commits and persists records that aren't a document's.
    async fn commit_whole(&self, batch: Batch) -> Result<()> {
        if !batch.is_empty() {
            self.commit(&batch, Stage::Persisted).await?;
            self.barrier().await?;
        }
        Ok(())
    }

    /// In a partitioned database one bad id is all edits' error, as in CouchDB.
    fn check_partitions(&self, edits: &[Edit]) -> Result<()> {
        match self.is_partitioned {
            true => edits.iter().try_for_each(|edit| self.check_id(&edit.id)),
            false => Ok(()),
        }
    }

    /// Writes or deletes a local document; `edit.id` is `_local/…`. As in CouchDB nothing is
    /// checked against what is there: the new revision is the one after the edit's. Returns
    /// that revision, `0-N`, once `stage` is reached.
    ///
    /// # Errors
    /// `NotFound` for deleting what isn't there; `IllegalDocId`; `NoSpace`; `Stopped`.
    pub async fn put_local(&self, edit: Edit, stage: Stage) -> Result<String> {
        check_document_id(&edit.id)?;
        let id = edit.id.strip_prefix("_local/");
        let id =
            id.ok_or_else(|| Error::new(ErrorKind::IllegalDocId, "Local documents begin with _local/"))?;
        let mut updater = self.updater(stage).await?;
        let outcome = updater.update_local(id, &edit).await.map_err(|error| self.explain(error))?;
        self.finish(updater, stage).await?;
        outcome.map(|number| format!("0-{number}"))
    }

    /// Returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// `Stopped`, or `NotFound` where the database was deleted.
    pub async fn barrier(&self) -> Result<()> {
        self.store.flush().await.map_err(|stopped| self.explain(stopped.into()))
    }

    /// As [`Database::barrier`], but returns false where a write finds no room on the disk meanwhile.
    pub(crate) async fn try_barrier(&self) -> Result<bool> {
        self.store.try_flush().await.map_err(|stopped| self.explain(stopped.into()))
    }

    /// Returns once a view shows a change later than `seq`. Dropping the future changes nothing; but
    /// it must be polled or dropped when it is woken: of all who wait one waits for the others as well.
    ///
    /// # Errors
    /// `NotFound` where the database was deleted, `Stopped` where it was closed or its log
    /// stopped.
    pub async fn changed_after(&self, seq: Seq) -> Result<()> {
        let changed = self.followers.changed_after(&self.store, seq);
        changed.await.map_err(|stopped| self.explain(stopped.into()))
    }

    /// A position in the changes as text: `N-opaque`. Equal positions give equal text.
    pub fn seq_text(&self, seq: Seq) -> String {
        self.sequence.text(seq)
    }

    /// Appends [`Database::seq_text`] to `out`.
    pub fn write_seq(&self, seq: Seq, out: &mut Vec<u8>) {
        self.sequence.write(seq, out);
    }

    /// The position that a client's text means: `0`, `now`, `N-opaque`, also in JSON's quotes.
    /// One of another incarnation of the database, or of another server, means the start; and so does one
    /// past the end, which was given out before the database's files were replaced by older ones.
    ///
    /// # Errors
    /// `BadRequest` for anything else.
    pub fn parse_since(&self, text: &str) -> Result<Seq> {
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text) {
            "now" => Ok(self.view().update_seq()),
            text => {
                let seq = self.sequence.parse(text)?;
                Ok(if seq > self.store.snapshot().seq() { Seq(0) } else { seq })
            }
        }
    }

    /// Gives back the space of what was replaced and removed, as far as it lies in segments that were
    /// left; returns when that is done. Others go on meanwhile.
    ///
    /// # Errors
    /// Why it couldn't go on: what was not rewritten is as it was. `NotFound` where the database was
    /// deleted.
    pub async fn compact(&self) -> Result<Compaction> {
        self.store.compact().await.map_err(|error| self.explain(error.into()))
    }

    /// See [`Store::backup`].
    pub(crate) async fn backup(
        &self,
        to: &Path,
        earlier: Option<EarlierBackup<'_>>,
    ) -> Result<(Backup, BackupFiles)> {
        self.store.backup(to, earlier).await.map_err(|error| self.explain(error.into()))
    }

    /// Whether a compaction that was asked for is under way.
    pub fn is_compacting(&self) -> bool {
        self.compacting.load(Ordering::Acquire)
    }

    /// Returns whether none was under way.
    pub(crate) fn begin_compaction(&self) -> bool {
        !self.compacting.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn end_compaction(&self) {
        self.compacting.store(false, Ordering::Release);
    }

    pub(crate) fn health(&self) -> Result<()> {
        self.store.health().map_err(|stopped| self.explain(stopped.into()))
    }

    pub(crate) fn check_checkpoints(&self) -> Result<()> {
        check_checkpoints(&self.store).map_err(|error| self.explain(error))
    }

    /// Ends the database: what was accepted is persisted, whoever follows it is told.
    pub(crate) async fn close(&self) -> Result<()> {
        Ok(self.store.close().await?)
    }

    /// As [`Database::close`], for a database that is gone: its users learn that.
    pub(crate) async fn close_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
        // What its log says no longer matters to anyone.
        let _ = self.store.close().await;
    }

    /// Begins an attachment of document `id`. Its bytes come by [`Uploading::write`]; what
    /// [`Uploading::finish`] gives goes into an edit of that document. `is_gzip`: what comes is
    /// compressed by gzip already, and stays so. At most `bytes_max` may come.
    pub fn upload(&self, id: &str, content_type: &str, is_gzip: bool, bytes_max: u64) -> Uploading<'_> {
        let upload = self.env.random_bytes();
        Uploading::new(self, id, content_type, is_gzip, self.orphans.clone(), upload, bytes_max)
    }

    /// See [`Upload::of_body`].
    pub(crate) async fn upload_body(&self, id: &str, body: &Bytes) -> Result<Upload> {
        Upload::of_body(self, id, body, self.orphans.clone(), self.env.random_bytes()).await
    }

    /// Uploads what edits carry themselves.
    async fn upload_inline(&self, edits: &mut [Edit]) -> Result<()> {
        for edit in edits {
            let Edit { id, attachments, .. } = edit;
            let mut together = 0;
            for attachment in attachments {
                if let Content::Inline(bytes) = &attachment.content {
                    let mut uploading = self.upload(id, &attachment.content_type, false, u64::MAX);
                    uploading.write(bytes).await?;
                    attachment.content = Content::Stored(uploading.finish(None).await?);
                }
                if let Content::Stored(upload) = &mut attachment.content {
                    together += upload.waiting_bytes();
                    if together > TOGETHER_BYTES_MAX {
                        upload.store(self).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Commits records that aren't a document's.
    pub(crate) async fn commit(&self, batch: &Batch, stage: Stage) -> Result<Seq> {
        self.health()?;
        let committed = self.store.writer().await.commit(batch, stage).await;
        committed.map_err(|error| self.explain(error.into()))
    }

    /// Finds what was being uploaded, or removed, when the database ended the last time.
    async fn find_orphans(&self) -> Result<()> {
        let snapshot = self.store.snapshot();
        let range = (Bound::Included(&[UPLOAD][..]), Bound::Excluded(&[UPLOAD + 1][..]));
        let mut marks = snapshot.scan(range.0, range.1, false);
        while let Some(mark) = marks.next().await? {
            let (id, upload) = decode_upload_key(mark.key)?;
            if Orphan::is_listed(mark.meta) {
                let list = snapshot.read(mark.location).await.map_err(Error::from);
                match list.and_then(|list| Orphan::from_list(id, upload, &list.value())) {
                    Ok(orphan) => self.orphans.push(orphan),
                    // Documents don't need it: they can be used, and what it lists stays.
                    Err(error) => tracing::warn!(database = self.name, %error, "a list of uploads is lost"),
                }
                continue;
            }
            let mut count = 0;
            while snapshot.get(&chunk_key(&id, &upload, count)).await?.is_some() {
                count += 1;
            }
            self.orphans.push(Orphan::new(id, upload, count));
        }
        Ok(())
    }

    async fn updater(&self, stage: Stage) -> Result<Updater<'_>> {
        self.health()?;
        let writer = self.store.writer().await;
        let mut updater = Updater::new(self, writer, stage);
        updater.sweep().await;
        Ok(updater)
    }

    async fn finish(&self, updater: Updater<'_>, stage: Stage) -> Result<()> {
        let finish = async {
            let (seq, news) = updater.finish().await?;
            self.store.wait(seq, stage).await?;
            Ok(news)
        };
        // Those who follow all databases are told when it goes.
        let _news = finish.await.map_err(|error| self.explain(error))?;
        if let Some(told) = &self.on_first_write
            && !self.was_written.load(Ordering::Relaxed)
            && !self.was_written.swap(true, Ordering::Relaxed)
        {
            told(stage);
        }
        Ok(())
    }

    /// What stopped a database that was deleted is that it was deleted.
    fn explain(&self, error: Error) -> Error {
        match self.deleted.load(Ordering::Acquire) {
            true => Error::no_database(),
            false => error,
        }
    }
}
