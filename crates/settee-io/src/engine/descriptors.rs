//! The number of open files, and its limit.
//!
//! A process's limit on file descriptors covers its files and its connections, so either could exhaust it for
//! the other. Files therefore have a limit of their own, below the process's. The last part of that limit
//! ([`Descriptors::reserve`]) is only for the next segments of logs
//! ([`File::create_reserved`](crate::File::create_reserved)): an open log can start its next segment even
//! when nothing else can be opened. Opening a directory in order to sync it uses a descriptor for a short
//! time, is not counted, and needs descriptors beyond the limit.
//!
//! Invariant: `count` is the number of live [`DescriptorPermit`]s.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

/// Largest reserve, in descriptors. With a small limit the reserve is a quarter of it.
const RESERVE_COUNT_MAX: usize = 32;

/// Counts the open files of an engine. Used from many threads at once.
#[derive(Debug)]
pub struct Descriptors {
    count: AtomicUsize,
    count_max: usize,
}

/// Permission to have one file open; released on drop.
#[derive(Debug)]
pub(crate) struct DescriptorPermit(Arc<Descriptors>);

impl Descriptors {
    /// Allows at most `count_max` files to be open at once.
    pub fn new(count_max: usize) -> Arc<Descriptors> {
        Arc::new(Descriptors { count: AtomicUsize::new(0), count_max })
    }

    /// Number of open files.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Largest number of open files.
    pub fn count_max(&self) -> usize {
        self.count_max
    }

    /// Number of descriptors that only [`File::create_reserved`](crate::File::create_reserved) may take.
    pub fn reserve(&self) -> usize {
        RESERVE_COUNT_MAX.min(self.count_max / 4)
    }

    /// Whether more than three quarters of the unreserved descriptors are in use. Callers should then close
    /// files that nobody uses.
    pub fn is_scarce(&self) -> bool {
        let unreserved = self.count_max - self.reserve();
        self.count() > unreserved - unreserved / 4
    }

    /// Counts one more open file. With `uses_reserve` it may be one of the reserve.
    ///
    /// # Errors
    /// EMFILE, the system's own error number, if the limit is reached.
    pub(crate) fn acquire(self: &Arc<Self>, uses_reserve: bool) -> io::Result<DescriptorPermit> {
        let limit = self.count_max - if uses_reserve { 0 } else { self.reserve() };
        let acquired = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < limit).then_some(count + 1));
        acquired.map(|_| DescriptorPermit(self.clone())).map_err(|_| Errno::MFILE.into())
    }
}

impl Drop for DescriptorPermit {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reserved_opens_take_from_the_reserve() {
        let descriptors = Descriptors::new(8);
        let mut permits: Vec<_> = std::iter::from_fn(|| descriptors.acquire(false).ok()).collect();
        assert_eq!((permits.len(), descriptors.is_scarce()), (6, true));
        permits.extend(std::iter::from_fn(|| descriptors.acquire(true).ok()));
        assert_eq!(descriptors.count(), 8);
        let refused = descriptors.acquire(true).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
        drop(permits);
        assert_eq!((descriptors.count(), descriptors.is_scarce()), (0, false));
        assert!(descriptors.acquire(false).is_ok());
    }
}
