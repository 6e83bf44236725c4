//! Who waits for a database's next change.
//!
//! Of all who wait one waits at the store, and tells the others. So a commit finds one waiter at the
//! log, however many follow it: the others are woken in their own time, and take no lock that a
//! writer takes. Who waits at the store is whoever has the turn; when he goes, the next has it.
//!
//! So whoever waits polls or drops what he waits with: who keeps it and does something else keeps the
//! turn, and the others wait for him.
//!
//! Invariant: while anybody waits, somebody has the turn, or is about to be given it. For none of
//! them waits without asking for it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use settee_store::{Seq, Stopped, Store};
use tokio::sync::{Semaphore, watch};

/// Those who wait for changes of one database.
pub(crate) struct Followers {
    /// The last change that they were told of.
    told: watch::Sender<u64>,
    /// One permit: the turn to wait at the store.
    turn: Semaphore,
}

impl Default for Followers {
    fn default() -> Followers {
        Followers { told: watch::Sender::new(0), turn: Semaphore::new(1) }
    }
}

impl Followers {
    /// Returns once the store shows a change later than `seq` in its feed. Dropping the future
    /// changes nothing.
    ///
    /// # Errors
    /// The store was closed, or its log stopped.
    pub(crate) async fn changed_after(&self, store: &Store, seq: Seq) -> Result<(), Stopped> {
        let mut told = self.told.subscribe();
        loop {
            told.borrow_and_update();
            if store.snapshot().last_listed() > seq {
                return Ok(());
            }
            let turn = {
                let mut change = pin!(told.changed());
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

    /// Waits for a change later than `seq`, in whoever's turn it is, and tells the others of each
    /// change that there is.
    async fn wait_at(&self, store: &Store, seq: Seq) -> Result<(), Stopped> {
        loop {
            let snapshot = store.snapshot();
            let listed = snapshot.last_listed();
            let is_news = |told: &mut u64| std::mem::replace(told, listed.0) < listed.0;
            self.told.send_if_modified(is_news);
            if listed > seq {
                return Ok(());
            }
            let shown = snapshot.seq();
            // Who waits holds no snapshot: it would keep files that nobody needs.
            drop(snapshot);
            store.changed_after(shown).await?;
        }
    }
}
