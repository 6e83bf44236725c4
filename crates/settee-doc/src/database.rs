//! One database: its documents, local documents and changes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use settee_io::Env;
use settee_store::{Backup, Compaction, Seq, Stage, Store, StoreOptions};

use crate::edit::{Edit, check_document_id};
use crate::revision::Revision;
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
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Bytes of the records that live.
    pub active_bytes: u64,
    /// The same: bodies are not compressed.
    pub external_bytes: u64,
}

/// Called once, when something was first stored, with the stage that it has reached.
pub(crate) type OnFirstWrite = Box<dyn Fn(Stage) + Send + Sync>;

/// An open database. Used from many tasks at once.
pub struct Database {
    name: String,
    created_us: u64,
    sequence: Sequence,
    store: Store,
    /// Counts the views that there are.
    views: Arc<()>,
    deleted: AtomicBool,
    compacting: AtomicBool,
    /// `None` where it held something when it was opened.
    on_first_write: Option<OnFirstWrite>,
    was_written: AtomicBool,
}

impl Database {
    pub(crate) async fn open(
        env: &Env,
        folder: &Path,
        name: &str,
        created_us: u64,
        incarnation: &[u8; 16],
        options: StoreOptions,
    ) -> Result<Database> {
        let (store, recovery) = Store::open(env, folder, options).await?;
        tracing::debug!(database = name, ?recovery, "opened");
        let sequence = Sequence::new(incarnation);
        let (views, deleted) = (Arc::default(), AtomicBool::new(false));
        Ok(Database {
            name: name.into(),
            created_us,
            sequence,
            store,
            views,
            deleted,
            compacting: AtomicBool::new(false),
            on_first_write: None,
            was_written: AtomicBool::new(false),
        })
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

    /// The newest persisted state. Never waits.
    pub fn view(&self) -> View {
        View::new(self.store.snapshot(), self.views.clone())
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
    pub async fn update_all(&self, edits: Vec<Edit>, stage: Stage) -> Result<Vec<Result<Revision>>> {
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
    pub async fn replicate_all(&self, edits: Vec<Edit>, stage: Stage) -> Result<Vec<Result<Revision>>> {
        let mut updater = self.updater(stage).await?;
        let mut outcomes = Vec::with_capacity(edits.len());
        for edit in &edits {
            outcomes.push(updater.replicate(edit).await.map_err(|error| self.explain(error))?);
        }
        self.finish(updater, stage).await?;
        Ok(outcomes)
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

    /// Returns once a view shows a change later than `seq`.
    ///
    /// # Errors
    /// `NotFound` where the database was deleted, `Stopped` where it was closed or its log
    /// stopped.
    pub async fn changed_after(&self, seq: Seq) -> Result<()> {
        loop {
            let snapshot = self.store.snapshot();
            if snapshot.last_listed() > seq {
                return Ok(());
            }
            self.store.changed_after(snapshot.seq()).await.map_err(|stopped| self.explain(stopped.into()))?;
        }
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
    /// One of another incarnation of the database, or of another server, means the start.
    ///
    /// # Errors
    /// `BadRequest` for anything else.
    pub fn parse_since(&self, text: &str) -> Result<Seq> {
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text) {
            "now" => Ok(self.view().update_seq()),
            text => self.sequence.parse(text),
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
    pub(crate) async fn backup(&self, to: &Path, previous: Option<&Path>) -> Result<Backup> {
        self.store.backup(to, previous).await.map_err(|error| self.explain(error.into()))
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

    async fn updater(&self, stage: Stage) -> Result<Updater<'_>> {
        self.health()?;
        Ok(Updater::new(self.store.writer().await, stage))
    }

    async fn finish(&self, updater: Updater<'_>, stage: Stage) -> Result<()> {
        let finish = async {
            let seq = updater.finish().await?;
            Ok(self.store.wait(seq, stage).await?)
        };
        finish.await.map_err(|error| self.explain(error))?;
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
