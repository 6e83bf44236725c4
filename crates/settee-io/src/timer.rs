//! Sleeps of microseconds. Tokio's timers count in milliseconds; a group of commits that is to
//! wait for 100 µs can't wait ten times as long.
//!
//! One thread, started by the first short sleep, waits for the earliest deadline and wakes
//! whoever has reached theirs. A sleep costs a map entry, and a system call to the thread where
//! it is the earliest. Long sleeps are not for it, nor are more than it has room for: who asks
//! turns to tokio then.
//!
//! Invariants:
//! 1. A sleep is in the map from its creation until it is over or dropped.
//! 2. Wakers are called in the order of the deadlines, never early, never under the mutex.
//! 3. The thread ends when the timer is dropped and the sleeps that it left are over, which
//!    takes [`SHORT_SLEEP_MAX`] at most.

use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Sleeps shorter than this are short. Above it a millisecond more or less is small.
pub(crate) const SHORT_SLEEP_MAX: Duration = Duration::from_millis(2);

/// How many short sleeps there are at most at any time.
pub(crate) const SHORT_SLEEP_COUNT_MAX: usize = 4_096;

/// How late the kernel may wake the thread in order to wake others with it, in nanoseconds.
/// The system's default is 50 µs.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// Serves short sleeps by a thread of its own.
#[derive(Default)]
pub(crate) struct ShortTimer {
    /// Empty before the first short sleep; `None` where the system gave no thread.
    shared: OnceLock<Option<Arc<Shared>>>,
}

impl ShortTimer {
    /// A future that completes once `duration` has passed from now on. `None` where that is not
    /// short, where there are as many sleeps as there may be, or where the thread couldn't be
    /// started.
    pub(crate) fn sleep(&self, duration: Duration) -> Option<ShortSleep> {
        if duration >= SHORT_SLEEP_MAX {
            return None;
        }
        let shared = self.shared.get_or_init(start).as_ref()?;
        let mut state = shared.lock();
        if state.sleeps.len() >= SHORT_SLEEP_COUNT_MAX {
            return None;
        }
        // Read under the mutex: nothing later has been served yet.
        let key = (Instant::now() + duration, state.next_ticket);
        state.next_ticket += 1;
        state.sleeps.insert(key, None);
        let is_first = state.sleeps.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if is_first {
            shared.changed.notify_one();
        }
        Some(ShortSleep { shared: shared.clone(), key })
    }
}

impl Drop for ShortTimer {
    fn drop(&mut self) {
        if let Some(Some(shared)) = self.shared.get() {
            // The thread is not joined: it may be the one that is here, by way of a waker.
            shared.lock().is_stopped = true;
            shared.changed.notify_one();
        }
    }
}

/// A short sleep; see [`ShortTimer::sleep`]. Dropped, it is forgotten.
pub(crate) struct ShortSleep {
    shared: Arc<Shared>,
    key: Key,
}

impl Future for ShortSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.key.0 {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let mut state = self.shared.lock();
        let Some(place) = state.sleeps.get_mut(&self.key) else { return Poll::Ready(()) };
        let replaced = place.replace(waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for ShortSleep {
    fn drop(&mut self) {
        let left = self.shared.lock().sleeps.remove(&self.key);
        drop(left);
    }
}

/// When a sleep ends, and its number.
type Key = (Instant, u64);

struct Shared {
    state: Mutex<State>,
    /// There is an earlier deadline, or the timer was dropped.
    changed: Condvar,
}

struct State {
    sleeps: BTreeMap<Key, Option<Waker>>,
    next_ticket: u64,
    is_stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the mutex panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start() -> Option<Arc<Shared>> {
    let state = State { sleeps: BTreeMap::new(), next_ticket: 0, is_stopped: false };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    let threads = shared.clone();
    match thread::Builder::new().name("settee-timer".to_owned()).spawn(move || run(&threads)) {
        Ok(_) => Some(shared),
        Err(error) => {
            tracing::warn!(%error, "no thread for short sleeps: they last a millisecond and more");
            None
        }
    }
}

/// The thread: wakes who is due, then waits for the next to be.
fn run(shared: &Shared) {
    // Without it, sleeps end later and are as correct.
    if let Err(error) = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS)) {
        tracing::debug!(%error, "the timer's slack stays as it is");
    }
    let mut due = Vec::new();
    let mut state = shared.lock();
    loop {
        let now = Instant::now();
        let mut next = None;
        while let Some(first) = state.sleeps.first_entry() {
            if first.key().0 > now {
                next = Some(first.key().0 - now);
                break;
            }
            due.extend(first.remove());
        }
        if !due.is_empty() {
            drop(state);
            due.drain(..).for_each(Waker::wake);
            state = shared.lock();
            continue;
        }
        state = match next {
            Some(duration) => {
                shared.changed.wait_timeout(state, duration).unwrap_or_else(PoisonError::into_inner).0
            }
            None if state.is_stopped => return,
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

#[cfg(test)]
mod tests {
    //! Goal: short sleeps end in their order, never early and not much late; those that are
    //! dropped leave nothing behind.
    //! Method: many sleeps at once with wakers that take notes; a loop that measures.

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::{Clock, SystemClock};

    /// Writes down when it was woken.
    struct Note {
        deadline: Instant,
        woken: Arc<Mutex<Vec<(Instant, Instant)>>>,
    }

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.woken.lock().unwrap().push((self.deadline, Instant::now()));
        }
    }

    fn sleep_count(timer: &ShortTimer) -> usize {
        timer.shared.get().and_then(Option::as_ref).map_or(0, |shared| shared.lock().sleeps.len())
    }

    /// Waits until `condition` holds; fails when it takes far too long.
    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < Duration::from_secs(20), "in vain: {what}");
            thread::sleep(Duration::from_micros(100));
        }
    }

    #[test]
    fn sleeps_end_in_the_order_of_their_deadlines_and_never_early() {
        let (timer, woken) = (ShortTimer::default(), Arc::new(Mutex::new(Vec::new())));
        let mut pending_count = 0;
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut sleeps = Vec::new();
            for _ in 0..300 {
                let duration = Duration::from_nanos(random.random_range(0..2_000_000));
                let mut sleep = Box::pin(timer.sleep(duration).unwrap());
                let note = Note { deadline: sleep.key.0, woken: woken.clone() };
                let waker = Waker::from(Arc::new(note));
                if sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                    pending_count += 1;
                    sleeps.push(sleep);
                }
            }
            wait_until("all are woken", || woken.lock().unwrap().len() == pending_count);
            for mut sleep in sleeps {
                assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
            }
            assert_eq!(sleep_count(&timer), 0);
        }
        let woken = woken.lock().unwrap();
        assert!(pending_count > 1_000, "{pending_count} sleeps of 6,000 were not over at once");
        assert!(woken.iter().all(|(deadline, at)| at >= deadline), "woken early");
        assert!(woken.is_sorted_by_key(|(deadline, _)| *deadline), "woken out of order");
    }

    #[test]
    fn dropped_sleeps_do_not_accumulate_and_wake_nobody() {
        let (timer, woken) = (ShortTimer::default(), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..5 * SHORT_SLEEP_COUNT_MAX {
            let mut sleep = Box::pin(timer.sleep(Duration::from_micros(1_900)).expect("there is room"));
            let note = Note { deadline: sleep.key.0, woken: woken.clone() };
            let _ = sleep.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(note))));
            drop(sleep);
            assert_eq!(sleep_count(&timer), 0);
        }
        thread::sleep(SHORT_SLEEP_MAX);
        // Held up for 1.9 ms between poll and drop, a few of them may be woken.
        assert!(woken.lock().unwrap().len() < SHORT_SLEEP_COUNT_MAX / 4);
    }

    #[test]
    fn what_is_long_or_too_much_is_left_to_others() {
        let timer = ShortTimer::default();
        assert!(timer.sleep(SHORT_SLEEP_MAX).is_none());
        assert!(timer.sleep(Duration::MAX).is_none());
        assert!(timer.shared.get().is_none(), "a thread for nothing");
        let longest = SHORT_SLEEP_MAX - Duration::from_nanos(1);
        // Sleeps that are over leave the map, so that slow machines need a few more attempts.
        let mut held = Vec::new();
        let full = (0..100 * SHORT_SLEEP_COUNT_MAX).any(|_| match timer.sleep(longest) {
            Some(sleep) => {
                held.push(sleep);
                assert!(sleep_count(&timer) <= SHORT_SLEEP_COUNT_MAX);
                false
            }
            None => true,
        });
        assert!(full, "{} at once", sleep_count(&timer));
        drop(held);
        assert!(timer.sleep(longest).is_some());
    }

    #[test]
    fn the_thread_ends_with_the_timer_but_after_its_last_sleep() {
        let timer = ShortTimer::default();
        let sleep = timer.sleep(Duration::from_micros(1_900)).unwrap();
        let shared = Arc::downgrade(&sleep.shared);
        let count = Arc::new(AtomicUsize::new(0));
        struct Count(Arc<AtomicUsize>);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut sleep = Box::pin(sleep);
        let waker = Waker::from(Arc::new(Count(count.clone())));
        let was_pending = sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        drop(timer);
        wait_until("woken", || !was_pending || count.load(Ordering::Relaxed) == 1);
        assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        drop(sleep);
        wait_until("the thread ends", || shared.strong_count() == 0);
    }

    /// How much longer than `duration` each of `count` sleeps took, in microseconds, sorted.
    async fn overshoots_us(clock: &impl Clock, duration: Duration, count: usize) -> Vec<f64> {
        let mut overshoots = Vec::new();
        for _ in 0..count {
            let begin = Instant::now();
            clock.sleep(duration).await;
            let elapsed = begin.elapsed();
            assert!(elapsed >= duration, "early: {elapsed:?} of {duration:?}");
            overshoots.push((elapsed - duration).as_secs_f64() * 1e6);
        }
        overshoots.sort_by(f64::total_cmp);
        overshoots
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_sleep_of_microseconds_does_not_last_a_millisecond() {
        let clock = SystemClock::new();
        let duration = Duration::from_micros(100);
        let overshoots = overshoots_us(&clock, duration, 1_000).await;
        let [median, p99] = [500, 990].map(|index| overshoots[index]);
        eprintln!("a sleep of {duration:?} lasts {median:.0} µs more (p50), {p99:.0} µs (p99)");
        // Loaded machines are late; tokio's timers always are, by 900 µs.
        assert!(overshoots[0] < 500.0, "at best {} µs late", overshoots[0]);
        let long = overshoots_us(&clock, SHORT_SLEEP_MAX, 3).await;
        assert_eq!(long.len(), 3);
    }
}
