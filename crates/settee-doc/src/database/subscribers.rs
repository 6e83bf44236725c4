//! Subscribers: tasks that wait for a database's next change.
//!
//! One of them holds the turn: it waits at the store and notifies the others. So a commit wakes one waiter at
//! the log, however many subscribers there are; the others are woken later, and take no lock that a writer
//! takes. When the subscriber with the turn leaves, the next one gets it.
//!
//! Therefore a subscriber must poll or drop its future: one that keeps the future without polling it keeps
//! the turn, and the others wait for it.
//!
//! Invariant: while any subscriber waits, one has the turn or is about to get it, since each of them asks for
//! the turn while it waits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use settee_store::{Seq, Stopped, Store};
use tokio::sync::{Semaphore, watch};

/// The subscribers of one database.
pub(crate) struct Subscribers {
    /// The last change they were notified of.
    notified: watch::Sender<u64>,
    /// One permit: the turn to wait at the store.
    turn: Semaphore,
}

impl Default for Subscribers {
    fn default() -> Subscribers {
        Subscribers { notified: watch::Sender::new(0), turn: Semaphore::new(1) }
    }
}

impl Subscribers {
    /// Returns once the store has a change later than `seq` in its seq index. Dropping the future changes
    /// nothing.
    ///
    /// # Errors
    /// The store was closed, or its log has stopped.
    pub(crate) async fn changed_after(&self, store: &Store, seq: Seq) -> Result<(), Stopped> {
        let mut notified = self.notified.subscribe();
        loop {
            notified.borrow_and_update();
            if store.snapshot().last_in_seq_index() > seq {
                return Ok(());
            }
            let turn = {
                let mut change = pin!(notified.changed());
                let mut turn = pin!(self.turn.acquire());
                poll_fn(|context| match change.as_mut().poll(context) {
                    Poll::Ready(_) => Poll::Ready(None),
                    Poll::Pending => turn.as_mut().poll(context).map(Some),
                })
                .await
            };
            if let Some(turn) = turn {
                let _turn = turn.expect("nobody closes it");
                self.wait_at(store, seq).await?;
            }
        }
    }

    /// Waits for a change later than `seq` while holding the turn, and notifies the others of each change.
    async fn wait_at(&self, store: &Store, seq: Seq) -> Result<(), Stopped> {
        loop {
            let snapshot = store.snapshot();
            let last = snapshot.last_in_seq_index();
            let is_new = |notified: &mut u64| std::mem::replace(notified, last.0) < last.0;
            self.notified.send_if_modified(is_new);
            if last > seq {
                return Ok(());
            }
            let shown = snapshot.seq();
            // No snapshot is held while waiting: it would pin files that nobody needs.
            drop(snapshot);
            store.changed_after(shown).await?;
        }
    }
}
