//! Edits of the list of files: each writes a manifest, and then makes the next set.
//!
//! An edit is a delta. It is applied under a lock that is held only while the manifest is written; no append,
//! no new segment and no reader waits for it.
//!
//! Invariants:
//! 1. A failure before the manifest is renamed changes nothing. After one from the rename on, it is unknown
//!    which manifest is durable: no file is removed and none gets a name until the log is opened again, while
//!    appends and reads go on. If it was the sync of the directory that failed, the log stops: names of
//!    segments may be lost that no later sync covers.
//! 2. Once the manifest is replaced, nothing can fail before the new set is installed.
//! 3. Files are marked as removed only after that.

use std::sync::Arc;

use settee_io::OperationKind;
use tokio::sync::MutexGuard;

use crate::error::{EditError, is_no_space};
use crate::manifest::{Manifest, ManifestState};
use crate::read_view::ReadView;
use crate::segment_set::{Segment, SegmentSet};
use crate::shared::Shared;
use crate::state::LogState;
use crate::types::Seq;

/// Makes the next lines of the log's user from the present ones.
pub type UserLines<'a> = Box<dyn FnOnce(&str) -> String + Send + 'a>;

/// A change of the list of files.
#[derive(Default)]
pub struct Edit<'a> {
    /// Lists the sealed segments that have no record after this one.
    pub list_to: Option<Seq>,
    /// Listed segments to remove, which are in the set.
    pub removed: Vec<Arc<Segment>>,
    /// A segment to add, whose file and name are on stable storage. It covers no others than `removed`.
    pub added: Option<Arc<Segment>>,
    /// The lines of the log's user. If there is nothing to list, an edit with `list_to` leaves them.
    pub user: Option<UserLines<'a>>,
}

/// What an edit does to the set.
struct Delta {
    listed: Vec<Arc<Segment>>,
    removed: Vec<Arc<Segment>>,
    added: Option<Arc<Segment>>,
    listed_to: u32,
}

impl Delta {
    /// Changes the set.
    fn apply(&self, set: &mut SegmentSet) {
        for segment in &self.listed {
            set.remove(segment.name.last);
            set.insert(segment.clone());
        }
        for segment in &self.removed {
            let removed = set.remove(segment.name.last);
            assert!(removed.is_some_and(|removed| Arc::ptr_eq(&removed, segment)), "only an edit removes it");
        }
        self.added.iter().for_each(|segment| set.insert(segment.clone()));
        set.set_listed_to(self.listed_to);
    }
}

impl Shared {
    /// See [`crate::Log::edit`].
    pub(crate) async fn edit(
        &self,
        edit: Edit<'_>,
        keep_trying: impl Fn(&settee_io::Error) -> bool,
    ) -> Result<bool, EditError> {
        let Edit { list_to, removed, added, user } = edit;
        if let Some(seq) = list_to {
            self.find_digests(seq).await?;
        }
        let mut manifest = self.manifest.lock().await;
        let set = self.read_view.load().set.clone();
        let (listed, listed_to) = match list_to {
            Some(seq) => self.sealed_segments(&set, seq),
            None => (Vec::new(), set.listed_to()),
        };
        let user = user.map_or_else(|| manifest.user.clone(), |user| user(&manifest.user));
        let delta = Delta { listed, removed, added, listed_to };
        let changes_set = listed_to != set.listed_to() || !delta.removed.is_empty() || delta.added.is_some();
        let is_change = changes_set || (list_to.is_none() && user != manifest.user);
        if !is_change {
            return self.check_editable().map(|()| false);
        }
        let unneeded = delta.removed.clone();
        self.write_manifest(&mut manifest, &set, delta, user, keep_trying).await?;
        unneeded.iter().for_each(|segment| segment.stored_file().remove());
        Ok(true)
    }

    /// Removes the segments below this one from the log, and returns them; their files stay.
    pub(crate) async fn edit_out(&self, below: u32) -> Result<Vec<Arc<Segment>>, EditError> {
        let mut manifest = self.manifest.lock().await;
        let set = self.read_view.load().set.clone();
        let removed: Vec<_> = set.iter().filter(|segment| segment.name.last < below).cloned().collect();
        let delta =
            Delta { listed: Vec::new(), removed: removed.clone(), added: None, listed_to: below.max(1) - 1 };
        let user = manifest.user.clone();
        self.write_manifest(&mut manifest, &set, delta, user, |_| !self.is_ending()).await?;
        Ok(removed)
    }

    /// Reads the sealed segments whose digests aren't known: an earlier process sealed them. They are those that
    /// [`Shared::sealed_segments`] lists next; the list isn't locked meanwhile.
    async fn find_digests(&self, seq: Seq) -> Result<(), EditError> {
        self.check_editable()?;
        let set = self.read_view.load().set.clone();
        let infos = self.lock().segment_infos();
        for info in infos.iter().take_while(|info| info.is_sealed && info.last_seq <= seq) {
            if let Some(segment) = set.get(info.number).filter(|segment| segment.name.generation == 0) {
                if self.is_ending() {
                    break;
                }
                if let Err(error) = segment.find_digest().await {
                    // What is before it is listed nevertheless, and what is listed can be rewritten.
                    tracing::warn!(%error, path = %segment.path().display(), "a segment can't be listed");
                    break;
                }
            }
        }
        Ok(())
    }

    /// The sealed segments after the listed ones that have no record after `seq` and whose digests are known,
    /// and the last of their numbers.
    fn sealed_segments(&self, set: &SegmentSet, seq: Seq) -> (Vec<Arc<Segment>>, u32) {
        let (mut listed, mut listed_to) = (Vec::new(), set.listed_to());
        for info in self.lock().segment_infos() {
            if info.last_seq > seq || !info.is_sealed {
                break;
            }
            let Some(segment) = set.get(info.number) else { break };
            let Some(digest) = segment.known_digest() else { break };
            let segment = segment.sealed(info.frame_bytes, digest).with_chunks(self.chunks.as_ref());
            listed_to = info.number;
            listed.push(Arc::new(segment));
        }
        (listed, listed_to)
    }

    /// Writes the next manifest, and installs the set that it describes.
    async fn write_manifest(
        &self,
        manifest: &mut MutexGuard<'_, ManifestState>,
        set: &SegmentSet,
        delta: Delta,
        user: String,
        keep_trying: impl Fn(&settee_io::Error) -> bool,
    ) -> Result<(), EditError> {
        self.check_editable()?;
        let names = {
            let mut next = set.clone();
            delta.apply(&mut next);
            next.names()
        };
        assert!(delta.listed_to >= set.listed_to(), "a listed segment becomes an unlisted one");
        let next = Manifest {
            number: manifest.number + 1,
            next_file: self.file_numbers.peek(),
            listed_to: delta.listed_to,
            timelines: self.timelines.clone(),
            segments: names,
            user,
        };
        if let Some(what) = next.violated_invariant() {
            panic!("the next manifest is invalid: {what}");
        }
        manifest.end_reserving().await;
        let prepared = match next.prepare(&self.env, &self.directory).await {
            // The preallocated segment's space is enough for a manifest.
            Err(EditError::Io(error)) if is_no_space(&error) && self.free_preallocated().await => {
                next.prepare(&self.env, &self.directory).await
            }
            prepared => prepared,
        };
        let size = match prepared {
            Err(EditError::Io(error)) if error.operation() == Some(OperationKind::Remove) => {
                // The file is there whose sync failed.
                let _ = self.edit_error.set(error.clone().into());
                return Err(error.into());
            }
            prepared => prepared?,
        };
        // A sync of the directory may have failed meanwhile.
        self.check_editable()?;
        let _stop = self.stop_on_panic();
        let replaced =
            Manifest::replace(&self.env, &self.directory, &self.directory_syncs, keep_trying).await;
        if let Err(error) = replaced {
            let _ = self.edit_error.set(error.clone().into());
            if error.operation() == Some(OperationKind::SyncDirectory) && !error.is_no_descriptor() {
                self.stop(error.clone());
            }
            return Err(error.into());
        }
        {
            let mut state = self.lock();
            state.segments.release_below(delta.listed_to + 1);
            self.change_set(&mut state, |set| delta.apply(set));
        }
        // Nothing is written to them any more.
        delta.listed.iter().chain(&delta.added).for_each(|segment| segment.stored_file().close_when_idle());
        (manifest.number, manifest.user) = (next.number, next.user);
        // The previous manifest's space has just become free.
        manifest.begin_reserving(&self.env, &self.directory, size);
        manifest.end_reserving().await;
        Ok(())
    }

    /// Checks that the list of files may be changed. It may not once the log has stopped: if a sync of the
    /// directory failed, names may be lost that the next manifest would rely on.
    pub(crate) fn check_editable(&self) -> Result<(), EditError> {
        self.lock().health()?;
        self.edit_error.get().cloned().map_or(Ok(()), Err)
    }

    /// Removes the preallocated segment to free its space. Returns whether there was one.
    async fn free_preallocated(&self) -> bool {
        let mut reservation = self.reservation.lock().await;
        let had_one = reservation.next.is_some();
        had_one && self.remove_preallocated(&mut reservation).await.is_ok()
    }

    /// Changes the set that readers see, and returns what `change` returns.
    pub(crate) fn change_set<T>(&self, state: &mut LogState, change: impl FnOnce(&mut SegmentSet) -> T) -> T {
        let mut set = (*self.read_view.load().set).clone();
        let changed = change(&mut set);
        self.read_view.store(Arc::new(ReadView::new(Arc::new(set), state.chunks())));
        state.take_stale();
        changed
    }
}
