//! The update of one request: collects the records of its edits and commits them.
//!
//! `edits` and `purge` decide what is changed and make the records, which `commit` of this file writes as one
//! batch. `finish` ends the update and releases the store's writer; its caller then waits for durability.

use std::collections::{HashMap, HashSet};

use settee_store::{Batch, Lookup, Seq, Snapshot as StoreSnapshot, Stage, Writer};

use super::check::{StoppedFunction, Validated};
use super::records::Records;
use crate::database::Database;
use crate::documents::rev_tree::TreeLeaf;
use crate::documents::{Edit, RevisionId};
use crate::events::UpdateNotifier;
use crate::{Error, ErrorKind, Result};

/// Edits of a request are committed together up to this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Bytes of deletions of unreferenced uploads that one removal commits; the next removal continues.
const REMOVED_BYTES_MAX: usize = 16 << 20;

/// The update of one request. It holds the store's writer, so a database has at most one at a time.
pub(crate) struct Updater<'a> {
    pub(super) database: &'a Database,
    pub(super) writer: Writer<'a>,
    stage: Stage,
    /// Number of revisions kept per path.
    pub(super) revs_limit: u32,
    pub(super) records: Records,
    /// Ids whose edits are among the records, and therefore not in the index yet.
    pub(super) uncommitted_ids: HashSet<String>,
    /// See [`ReadBefore`].
    tails: HashMap<Seq, Vec<RevisionId>>,
    /// Whether every edit is a deletion without a body, or a purge of a whole document; such a batch may use
    /// the disk reserve.
    pub(super) frees_space: bool,
    /// Set once a validation function has exceeded a limit.
    pub(super) stopped: Option<StoppedFunction>,
    /// Whether an edit left unreferenced uploads to be removed.
    is_removal_due: bool,
    /// The last `Seq` of its commits.
    committed: Option<Seq>,
    notification: NotifyOnDrop<'a>,
}

/// What was read for edits before the writer was waited for.
#[derive(Default)]
pub(crate) struct ReadBefore {
    /// The tree's entries of the edits' documents; `None` if they couldn't be read.
    pub(crate) lookup: Option<Lookup>,
    /// The tails of leaves that the edits replace, each by the `Seq` of its record. A record never changes, so
    /// a tail is right whatever has been accepted since.
    pub(crate) tails: HashMap<Seq, Vec<RevisionId>>,
    /// Why design documents among the edits can't be stored, by the edit's index: a function doesn't compile.
    pub(crate) uncompilable: HashMap<usize, Error>,
    /// The outcomes of validations, by the edit's index.
    pub(crate) validated: HashMap<usize, Validated>,
    /// Set if a validation function exceeded a limit for an earlier edit of the request.
    pub(crate) stopped: Option<StoppedFunction>,
}

/// Notifies `_db_updates` subscribers of an accepted change on drop, so also when the writer is cancelled.
pub(crate) struct NotifyOnDrop<'a> {
    changed: &'a UpdateNotifier,
    is_due: bool,
}

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        if self.is_due {
            self.changed.register();
        }
    }
}

/// The decision on an edit.
pub(super) struct Decided<T> {
    pub(super) outcome: T,
    pub(super) records: Records,
}

/// Inner: why one edit was refused. Outer: a commit failed; later edits weren't tried.
pub(super) type Outcome<T> = Result<Result<T>>;

impl<'a> Updater<'a> {
    pub(crate) fn new(database: &'a Database, writer: Writer<'a>, stage: Stage) -> Updater<'a> {
        Updater {
            database,
            writer,
            stage,
            revs_limit: database.path_limit(),
            records: Records::default(),
            uncommitted_ids: HashSet::new(),
            tails: HashMap::new(),
            frees_space: true,
            stopped: None,
            is_removal_due: false,
            committed: None,
            notification: NotifyOnDrop { changed: &database.update_notifier, is_due: false },
        }
    }

    /// The validation function that exceeded a limit for one of the edits, if any.
    pub(crate) fn stopped_function(&self) -> Option<StoppedFunction> {
        self.stopped.clone()
    }

    /// Removes unreferenced uploads. Called before and after a request's edits. A failure doesn't affect the
    /// edits; the next update tries again.
    pub(crate) async fn remove_unreferenced_uploads(&mut self) {
        if let Err(error) = self.try_remove_unreferenced_uploads().await {
            // Only at debug level, since each update would repeat it; the failure's cause is logged by its
            // origin.
            tracing::debug!(
                database = self.database.name(),
                %error,
                "uploads that no document refers to could not be removed yet"
            );
        }
    }

    async fn try_remove_unreferenced_uploads(&mut self) -> Result<()> {
        let mut removed_bytes = 0;
        while removed_bytes < REMOVED_BYTES_MAX {
            let mut taken = self.database.unreferenced.take();
            let (mut batch, mut rest) = (Batch::new(), None);
            while batch.size() < BATCH_BYTES
                && let Some(unreferenced) = taken.next()
            {
                match self.writer.get(&unreferenced.intent_key()).await? {
                    Some(_) => rest = unreferenced.clone().remove(BATCH_BYTES, &mut batch),
                    // A document refers to it now, or the update that wrote the intent wasn't accepted.
                    None => taken.discard_last(),
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            batch.use_reserve();
            self.writer.commit(&batch, self.stage).await?;
            taken.confirm_removed(rest);
            removed_bytes += batch.size();
        }
        Ok(())
    }

    /// Commits the remaining records, if `made` says that the edits were made. Returns whether that succeeded, and what
    /// has been accepted, also before an error: a `Seq` and the notification. The caller waits until that `Seq` has
    /// reached its stage, and then drops the notification.
    ///
    /// The `Seq` is the last one accepted by any updater; after an error this updater's last one, so that a refusal
    /// doesn't wait for others. `None` if there is none.
    pub(crate) async fn finish(mut self, made: Result<()>) -> (Result<()>, Option<Seq>, NotifyOnDrop<'a>) {
        let made = match made {
            Ok(()) => self.commit().await,
            Err(error) => Err(error),
        };
        if made.is_err() {
            return (made, self.committed, self.notification);
        }
        if self.is_removal_due {
            self.remove_unreferenced_uploads().await;
        }
        (Ok(()), Some(self.writer.last_seq()), self.notification)
    }

    /// Uses what was read for the next edits. Commits the earlier ones first, since the entries that they
    /// replace are in the lookup before.
    pub(super) async fn use_read(&mut self, ReadBefore { lookup, tails, .. }: ReadBefore) -> Result<()> {
        self.commit().await?;
        self.tails = tails;
        if let Some(lookup) = lookup {
            // If the keys can't be looked up again, each edit reads the index, and reports the error.
            let _ = self.writer.set_lookup(lookup).await;
        }
        Ok(())
    }

    /// Reads the tail of a leaf that an edit replaces, unless it was read before.
    pub(super) async fn read_tail(&mut self, latest: &StoreSnapshot, leaf: &mut TreeLeaf) -> Result<()> {
        match self.tails.remove(&leaf.location().seq()).filter(|_| leaf.has_unread_tail) {
            Some(tail) => leaf.use_tail(&tail),
            None => leaf.read_tail(latest).await,
        }
    }

    /// Commits earlier edits of the same request to this document, so that this edit sees them.
    pub(super) async fn prepare(&mut self, edit: &Edit) -> Result<()> {
        if self.uncommitted_ids.contains(&edit.id) { self.commit().await } else { Ok(()) }
    }

    /// Adds an edit's records to those that will be committed.
    pub(super) async fn add<T>(&mut self, edit: &Edit, decided: Result<Decided<T>>) -> Outcome<T> {
        let Decided { outcome, records } = match decided {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        if records.batch.size() > self.database.batch_bytes_max {
            // The log would refuse it together with the rest of the request.
            return Ok(Err(Error::new(ErrorKind::TooLarge, edit.id.clone())));
        }
        if self.records.batch.size() + records.batch.size() > BATCH_BYTES {
            self.commit().await?;
        }
        self.frees_space &= edit.deleted && edit.body().is_empty();
        self.uncommitted_ids.insert(edit.id.clone());
        self.records.extend(records);
        Ok(Ok(outcome))
    }

    /// Commits the collected records as one batch, and returns once it is accepted.
    pub(super) async fn commit(&mut self) -> Result<()> {
        let mut records = std::mem::take(&mut self.records);
        self.uncommitted_ids.clear();
        let frees_space = std::mem::replace(&mut self.frees_space, true);
        if records.batch.is_empty() {
            return Ok(());
        }
        if frees_space {
            records.batch.use_reserve();
        }
        // Before the commit, whose future may be dropped: without their intents they are removed from the
        // queue again.
        self.is_removal_due |= !records.unreferenced.is_empty();
        records.unreferenced.drain(..).for_each(|unreferenced| self.database.unreferenced.push(unreferenced));
        if records.has_design {
            self.invalidate_validation();
        }
        let seq = self.writer.commit(&records.batch, self.stage).await?;
        self.committed = Some(seq);
        records.guards.iter().for_each(|guard| guard.confirm());
        self.notification.is_due |= records.notifies_db_updates;
        if let Some((number, value)) = records.number {
            self.database.accept_counter(seq, number, value);
        }
        Ok(())
    }
}
