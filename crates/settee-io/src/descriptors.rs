//! The number of files that are open, and its limit.
//!
//! The limit on a process's descriptors is shared by its files and its connections, and whoever takes
//! the last one makes the others fail. So the files have a share of their own, which connections don't
//! get, and the last part of it ([`Descriptors::reserve`]) is kept for the next segments of logs
//! ([`File::create_reserved`](crate::File::create_reserved)): an open log goes on to its next segment, though nothing else can be opened any more. Opening a folder in
//! order to sync it takes a descriptor for a moment, isn't counted, and needs room beside the limit.
//!
//! Invariant: `count` is the number of [`Ticket`]s that there are.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

/// Most descriptors that are kept for next segments; of a small share it is a quarter.
const RESERVE_COUNT_MAX: usize = 32;

/// Counts the open files of an engine. Used from many threads at once.
#[derive(Debug)]
pub struct Descriptors {
    count: AtomicUsize,
    count_max: usize,
}

/// One open file, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Descriptors>);

impl Descriptors {
    /// At most `count_max` files may be open at once.
    pub fn new(count_max: usize) -> Arc<Descriptors> {
        Arc::new(Descriptors { count: AtomicUsize::new(0), count_max })
    }

    /// How many files are open.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many may be.
    pub fn count_max(&self) -> usize {
        self.count_max
    }

    /// How many of them are kept for [`File::create_reserved`](crate::File::create_reserved).
    pub fn reserve(&self) -> usize {
        RESERVE_COUNT_MAX.min(self.count_max / 4)
    }

    /// Whether more than three quarters of what is not reserved is taken: whoever has files open that
    /// nobody uses should close them.
    pub fn is_scarce(&self) -> bool {
        let open = self.count_max - self.reserve();
        self.count() > open - open / 4
    }

    /// Counts one more, of the reserve where `uses_reserve` says so and nothing else is left.
    ///
    /// # Errors
    /// EMFILE, as the system gives it, where there are too many.
    pub(crate) fn take(self: &Arc<Self>, uses_reserve: bool) -> io::Result<Ticket> {
        let most = self.count_max - if uses_reserve { 0 } else { self.reserve() };
        let taken = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < most).then_some(count + 1));
        taken.map(|_| Ticket(self.clone())).map_err(|_| Errno::MFILE.into())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_for_those_who_may_use_it() {
        let descriptors = Descriptors::new(8);
        let mut tickets: Vec<_> = std::iter::from_fn(|| descriptors.take(false).ok()).collect();
        assert_eq!((tickets.len(), descriptors.is_scarce()), (6, true));
        tickets.extend(std::iter::from_fn(|| descriptors.take(true).ok()));
        assert_eq!(descriptors.count(), 8);
        let refused = descriptors.take(true).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
        drop(tickets);
        assert_eq!((descriptors.count(), descriptors.is_scarce()), (0, false));
        assert!(descriptors.take(false).is_ok());
    }
}
