//! Callers that wait for a watermark.

use tokio::sync::oneshot;

use crate::watermark::Watermark;

/// The waiters of one watermark, each with the value that it waits for.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Vec<(Watermark, oneshot::Sender<()>)>,
    prune_at: usize,
}

impl Waiters {
    pub(crate) fn add(&mut self, wanted: Watermark) -> oneshot::Receiver<()> {
        // Cancelled waiters are removed when the number has doubled: amortized constant cost per waiter.
        if self.waiting.len() >= self.prune_at {
            self.waiting.retain(|(_, waiter)| !waiter.is_closed());
            self.prune_at = self.waiting.len() * 2 + 64;
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push((wanted, sender));
        receiver
    }

    /// Removes the waiters that `watermark` covers; the caller notifies them after unlocking.
    pub(crate) fn take_reached(&mut self, watermark: Watermark) -> Vec<oneshot::Sender<()>> {
        self.waiting
            .extract_if(.., |(wanted, _)| watermark.reaches(*wanted))
            .map(|(_, waiter)| waiter)
            .collect()
    }
}
