//! The only updater of a database, which collects the records of a request's edits and commits them.

use std::collections::HashSet;

use settee_store::{BATCH_SIZE_MAX, Batch, Seq, Stage, Writer};

use super::records::Records;
use crate::database::Database;
use crate::documents::Edit;
use crate::events::UpdateNotifier;
use crate::{Error, ErrorKind, Result};

/// Edits of a request are committed together up to this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Bytes of deletions of unreferenced uploads that one sweep commits; the next sweep continues.
const SWEPT_BYTES_MAX: usize = 16 << 20;

/// The only updater of a database, for the edits of one request.
pub(crate) struct Updater<'a> {
    pub(super) database: &'a Database,
    pub(super) writer: Writer<'a>,
    stage: Stage,
    /// Number of revisions kept per path.
    pub(super) revs_limit: u32,
    pub(super) records: Records,
    /// Ids whose edits are among the records, and therefore not in the index yet.
    pub(super) touched: HashSet<String>,
    /// Whether all of the records are deletions.
    pub(super) deletes_alone: bool,
    /// Whether an edit left unreferenced uploads to be removed.
    is_sweep_due: bool,
    notification: NotifyOnDrop<'a>,
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

/// The inner error refuses one edit; the outer error ends the whole request, since nothing more can be
/// accepted.
pub(super) type Outcome<T> = Result<Result<T>>;

impl<'a> Updater<'a> {
    pub(crate) fn new(database: &'a Database, writer: Writer<'a>, stage: Stage) -> Updater<'a> {
        Updater {
            database,
            writer,
            stage,
            revs_limit: database.path_limit(),
            records: Records::default(),
            touched: HashSet::new(),
            deletes_alone: true,
            is_sweep_due: false,
            notification: NotifyOnDrop { changed: &database.update_notifier, is_due: false },
        }
    }

    /// Removes unreferenced uploads, before any edit. A failure doesn't affect the edits; the next updater
    /// tries again.
    pub(crate) async fn sweep(&mut self) {
        if let Err(error) = self.try_sweep().await {
            // Only at debug level, since each update would repeat it; the failure's cause is logged by its
            // origin.
            tracing::debug!(
                database = self.database.name(),
                %error,
                "uploads that no document refers to could not be removed yet"
            );
        }
    }

    async fn try_sweep(&mut self) -> Result<()> {
        let mut swept_bytes = 0;
        while swept_bytes < SWEPT_BYTES_MAX {
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
            taken.removed(rest);
            swept_bytes += batch.size();
        }
        Ok(())
    }

    /// Commits the remaining records. Returns the last `Seq` accepted by any updater, which the caller must
    /// wait for, and the notification, which the caller drops then.
    pub(crate) async fn finish(mut self) -> Result<(Seq, NotifyOnDrop<'a>)> {
        self.commit().await?;
        if self.is_sweep_due {
            self.sweep().await;
        }
        Ok((self.writer.last_seq(), self.notification))
    }

    /// Commits earlier edits of the same request to this document, so that this edit sees them.
    pub(super) async fn prepare(&mut self, edit: &Edit) -> Result<()> {
        if self.touched.contains(&edit.id) { self.commit().await } else { Ok(()) }
    }

    /// Adds an edit's records to those that will be committed.
    pub(super) async fn add<T>(&mut self, edit: &Edit, decided: Result<Decided<T>>) -> Outcome<T> {
        let Decided { outcome, records } = match decided {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        if records.batch.size() > BATCH_SIZE_MAX {
            // The log would refuse it together with the rest of the request.
            return Ok(Err(Error::new(ErrorKind::TooLarge, edit.id.clone())));
        }
        if self.records.batch.size() + records.batch.size() > BATCH_BYTES {
            self.commit().await?;
        }
        self.deletes_alone &= edit.deleted && edit.body().is_empty();
        self.touched.insert(edit.id.clone());
        self.records.extend(records);
        Ok(Ok(outcome))
    }

    pub(super) async fn commit(&mut self) -> Result<()> {
        let mut records = std::mem::take(&mut self.records);
        self.touched.clear();
        let deletes_alone = std::mem::replace(&mut self.deletes_alone, true);
        if records.batch.is_empty() {
            return Ok(());
        }
        if deletes_alone {
            records.batch.use_reserve();
        }
        // Before the commit, whose future may be dropped: without their intents they are removed from the
        // queue again.
        self.is_sweep_due |= !records.unreferenced.is_empty();
        records.unreferenced.drain(..).for_each(|unreferenced| self.database.unreferenced.push(unreferenced));
        if records.has_design {
            self.invalidate_validation();
        }
        let seq = self.writer.commit(&records.batch, self.stage).await?;
        records.guards.iter().for_each(|guard| guard.confirm());
        self.notification.is_due |= records.is_change;
        if let Some((number, value)) = records.number {
            self.database.accept_counter(seq, number, value);
        }
        Ok(())
    }
}
