//! Callers that wait for a watermark.

use tokio::sync::oneshot;

use crate::types::Stage;
use crate::watermark::Watermark;

/// The callers that wait until something is written, and those that wait until it is persisted.
#[derive(Default)]
pub(super) struct Waiters {
    written: Queue,
    persisted: Queue,
}

impl Waiters {
    /// Adds a caller, which is notified when `wanted` has been written, or persisted.
    pub(super) fn add(&mut self, wanted: Watermark, stage: Stage) -> oneshot::Receiver<()> {
        match stage {
            Stage::Persisted => self.persisted.add(wanted),
            _ => self.written.add(wanted),
        }
    }

    /// Removes and returns the waiters for written bytes that `reached` covers; they are notified after
    /// unlocking.
    pub(super) fn take_written(&mut self, reached: Watermark) -> Vec<oneshot::Sender<()>> {
        self.written.take(reached)
    }

    /// As [`Waiters::take_written`], for persisted bytes.
    pub(super) fn take_persisted(&mut self, reached: Watermark) -> Vec<oneshot::Sender<()>> {
        self.persisted.take(reached)
    }
}

/// The waiters of one watermark, each with the value that it waits for.
#[derive(Default)]
struct Queue {
    waiting: Vec<(Watermark, oneshot::Sender<()>)>,
    prune_at: usize,
}

impl Queue {
    fn add(&mut self, wanted: Watermark) -> oneshot::Receiver<()> {
        // Cancelled waiters are removed when the number has doubled: amortized constant cost per waiter.
        if self.waiting.len() >= self.prune_at {
            self.waiting.retain(|(_, waiter)| !waiter.is_closed());
            self.prune_at = self.waiting.len() * 2 + 64;
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push((wanted, sender));
        receiver
    }

    fn take(&mut self, reached: Watermark) -> Vec<oneshot::Sender<()>> {
        let waiters = self.waiting.extract_if(.., |(wanted, _)| reached.reaches(*wanted));
        waiters.map(|(_, waiter)| waiter).collect()
    }
}
