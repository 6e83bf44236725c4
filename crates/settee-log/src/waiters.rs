//! Those who wait until the log has got somewhere.

use tokio::sync::oneshot;

use crate::mark::Mark;

/// Those who wait for a mark to reach a place.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Vec<(Mark, oneshot::Sender<()>)>,
    prune_at: usize,
}

impl Waiters {
    pub(crate) fn add(&mut self, wanted: Mark) -> oneshot::Receiver<()> {
        // Those who gave up are dropped now and then, at a cost shared by those who come.
        if self.waiting.len() >= self.prune_at {
            self.waiting.retain(|(_, waiter)| !waiter.is_closed());
            self.prune_at = self.waiting.len() * 2 + 64;
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push((wanted, sender));
        receiver
    }

    /// Takes out those whose time has come, to be woken without the lock.
    pub(crate) fn take_reached(&mut self, mark: Mark) -> Vec<oneshot::Sender<()>> {
        self.waiting.extract_if(.., |(wanted, _)| mark.reaches(*wanted)).map(|(_, waiter)| waiter).collect()
    }
}
