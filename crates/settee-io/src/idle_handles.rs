//! A limit on the open files that are opened again when they are needed.
//!
//! Files that are read again and again stay open: a use leaves a mark, and beyond the limit the handle that was
//! opened first is closed, unless it has a mark. Then the mark is removed, and it counts as opened last ("second
//! chance", as in the clock algorithm for pages).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Largest number of handles that [`IdleHandles`] keeps open, unless it was created with another.
pub const IDLE_HANDLES_MAX: usize = 4096;

/// Something that holds a file's handle, and can open the file again.
pub trait IdleHandle: Send + Sync {
    /// Whether the handle was used since the last call.
    fn take_used(&self) -> bool;

    /// Closes the handle, once nobody uses it any more.
    fn close(&self);
}

/// The handles that may be closed. Used from many threads at once.
pub struct IdleHandles {
    handles_max: usize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// In the order in which they were opened, or lost their mark. Some may be closed, or gone.
    handles: VecDeque<Weak<dyn IdleHandle>>,
    /// Handles added since those that are gone were removed.
    added_count: usize,
}

impl IdleHandles {
    /// Keeps at most `handles_max` handles open, besides those in use.
    pub fn new(handles_max: usize) -> Arc<IdleHandles> {
        Arc::new(IdleHandles { handles_max, queue: Mutex::default() })
    }

    /// Takes a handle that was opened, and closes those that exceed the limit.
    pub fn add(&self, handle: Weak<dyn IdleHandle>) {
        let (mut excess, mut kept) = (Vec::new(), Vec::new());
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let Queue { handles, added_count } = &mut *queue;
            handles.push_back(handle);
            *added_count += 1;
            if handles.len() > self.handles_max && *added_count > self.handles_max / 8 {
                handles.retain(|handle| handle.strong_count() > 0);
                *added_count = 0;
            }
            let mut second_chances = handles.len();
            while handles.len() > self.handles_max
                && let Some(first) = handles.pop_front()
            {
                let Some(handle) = first.upgrade() else { continue };
                if second_chances > 0 && handle.take_used() {
                    second_chances -= 1;
                    handles.push_back(first);
                    kept.push(handle);
                } else {
                    excess.push(handle);
                }
            }
        }
        // Without the lock, as the end of `kept`: this may be a handle's last user.
        excess.iter().for_each(|handle| handle.close());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct Handle {
        is_used: AtomicBool,
        is_closed: AtomicBool,
    }

    impl IdleHandle for Handle {
        fn take_used(&self) -> bool {
            self.is_used.swap(false, Ordering::Relaxed)
        }

        fn close(&self) {
            self.is_closed.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn beyond_the_limit_the_oldest_unused_handle_is_closed() {
        let handles: Vec<Arc<Handle>> = (0..6).map(|_| Arc::default()).collect();
        let idle = IdleHandles::new(3);
        let add = |index: usize| idle.add(Arc::<Handle>::downgrade(&handles[index]) as Weak<dyn IdleHandle>);
        let closed = || -> Vec<usize> {
            let is_closed = |index: &usize| handles[*index].is_closed.load(Ordering::Relaxed);
            (0..handles.len()).filter(is_closed).collect()
        };
        (0..3).for_each(add);
        assert_eq!(closed(), []);
        handles[0].is_used.store(true, Ordering::Relaxed);
        add(3);
        assert_eq!(closed(), [1], "the first is in use");
        add(4);
        assert_eq!(closed(), [1, 2]);
        handles.iter().for_each(|handle| handle.is_used.store(true, Ordering::Relaxed));
        add(5);
        assert_eq!(closed().len(), 3, "one goes although all are in use");
        drop(handles);
        let more: Vec<Arc<Handle>> = (0..3).map(|_| Arc::default()).collect();
        more.iter().for_each(|handle| idle.add(Arc::<Handle>::downgrade(handle) as Weak<dyn IdleHandle>));
        assert!(
            more.iter().all(|handle| !handle.is_closed.load(Ordering::Relaxed)),
            "handles that are gone don't count"
        );
    }
}
