//! Sleeps of microseconds. Tokio's timers have a resolution of a millisecond, ten times the 100 µs for which
//! a commit group waits.
//!
//! One thread, started by the first short sleep, waits for the earliest deadline and wakes the tasks whose
//! deadline has passed. A sleep costs a map entry, and a wake-up of the thread if its deadline is the
//! earliest. The timer refuses long sleeps, and those beyond its limit; the caller then uses tokio.
//!
//! Invariants:
//! 1. A sleep is in the map from its creation until it is over or dropped.
//! 2. Wakers are called in the order of the deadlines, never early, and never under the mutex.
//! 3. The thread ends when the timer was dropped and the remaining sleeps are over, which takes at most
//!    [`SHORT_SLEEP_MAX`].

use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Only sleeps shorter than this are served. For longer ones a millisecond more or less is small.
pub(crate) const SHORT_SLEEP_MAX: Duration = Duration::from_millis(2);

/// Largest number of short sleeps at any time.
pub(crate) const SHORT_SLEEP_COUNT_MAX: usize = 4_096;

/// Timer slack of the thread in nanoseconds: how late the kernel may wake it in order to combine wake-ups.
/// The system's default is 50 µs.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// Serves short sleeps with a thread of its own.
#[derive(Default)]
pub(crate) struct ShortTimer {
    /// Empty before the first short sleep; `None` if the thread could not be started.
    shared: OnceLock<Option<Arc<TimerShared>>>,
}

impl ShortTimer {
    /// Returns a future that completes once `duration` has passed from now on. Returns `None` if `duration`
    /// is not short, if the number of sleeps has reached its limit, or if the thread could not be started.
    pub(crate) fn sleep(&self, duration: Duration) -> Option<ShortSleep> {
        if duration >= SHORT_SLEEP_MAX {
            return None;
        }
        let shared = self.shared.get_or_init(start).as_ref()?;
        let mut state = shared.lock();
        if state.sleeps.len() >= SHORT_SLEEP_COUNT_MAX {
            return None;
        }
        // The clock is read under the mutex, so no later deadline has been served yet.
        let key = (Instant::now() + duration, state.next_number);
        state.next_number += 1;
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
            // Does not join the thread: this may run in that very thread, called by a waker.
            shared.lock().is_stopped = true;
            shared.changed.notify_one();
        }
    }
}

/// A short sleep; see [`ShortTimer::sleep`]. Dropping it removes it from the map.
pub(crate) struct ShortSleep {
    shared: Arc<TimerShared>,
    key: SleepKey,
}

impl Future for ShortSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.key.0 {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let mut state = self.shared.lock();
        let Some(entry) = state.sleeps.get_mut(&self.key) else { return Poll::Ready(()) };
        let replaced = entry.replace(waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for ShortSleep {
    fn drop(&mut self) {
        // The waker is dropped after the mutex is released.
        let removed = self.shared.lock().sleeps.remove(&self.key);
        drop(removed);
    }
}

/// The deadline of a sleep, and its number.
type SleepKey = (Instant, u64);

struct TimerShared {
    state: Mutex<TimerState>,
    /// Signalled when there is an earlier deadline or the timer was dropped.
    changed: Condvar,
}

struct TimerState {
    sleeps: BTreeMap<SleepKey, Option<Waker>>,
    next_number: u64,
    is_stopped: bool,
}

impl TimerShared {
    fn lock(&self) -> MutexGuard<'_, TimerState> {
        // Nothing under the mutex panics in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start() -> Option<Arc<TimerShared>> {
    let state = TimerState { sleeps: BTreeMap::new(), next_number: 0, is_stopped: false };
    let shared = Arc::new(TimerShared { state: Mutex::new(state), changed: Condvar::new() });
    let threads = shared.clone();
    match thread::Builder::new().name("settee-timer".to_owned()).spawn(move || run(&threads)) {
        Ok(_) => Some(shared),
        Err(error) => {
            tracing::warn!(%error, "short sleeps have no thread: they last a millisecond or more");
            None
        }
    }
}

/// The thread's loop: wakes the tasks whose deadline has passed, then waits for the next deadline.
fn run(shared: &TimerShared) {
    // Without it sleeps end later, but never early.
    if let Err(error) = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS)) {
        tracing::debug!(%error, "the timer slack could not be set");
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
    //! Goal: short sleeps end in the order of their deadlines, never early and not much late; a dropped one
    //! leaves nothing behind.
    //! Method: many sleeps at once with wakers that record their calls; a loop that measures.

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::{Clock, SystemClock};

    /// Records when it was woken.
    struct RecordingWaker {
        deadline: Instant,
        woken: Arc<Mutex<Vec<(Instant, Instant)>>>,
    }

    impl Wake for RecordingWaker {
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
            assert!(begin.elapsed() < Duration::from_secs(20), "timed out waiting for: {what}");
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
                let recorder = RecordingWaker { deadline: sleep.key.0, woken: woken.clone() };
                let waker = Waker::from(Arc::new(recorder));
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
    fn dropped_sleeps_do_not_accumulate_and_wake_no_task() {
        let (timer, woken) = (ShortTimer::default(), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..5 * SHORT_SLEEP_COUNT_MAX {
            let mut sleep = Box::pin(timer.sleep(Duration::from_micros(1_900)).expect("below the limit"));
            let recorder = RecordingWaker { deadline: sleep.key.0, woken: woken.clone() };
            let _ = sleep.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(recorder))));
            drop(sleep);
            assert_eq!(sleep_count(&timer), 0);
        }
        thread::sleep(SHORT_SLEEP_MAX);
        // If this thread is delayed by 1.9 ms between poll and drop, a few of them may be woken.
        assert!(woken.lock().unwrap().len() < SHORT_SLEEP_COUNT_MAX / 4);
    }

    #[test]
    fn long_sleeps_and_those_beyond_the_limit_are_refused() {
        let timer = ShortTimer::default();
        assert!(timer.sleep(SHORT_SLEEP_MAX).is_none());
        assert!(timer.sleep(Duration::MAX).is_none());
        assert!(timer.shared.get().is_none(), "started a thread that it does not need");
        let longest = SHORT_SLEEP_MAX - Duration::from_nanos(1);
        // Finished sleeps leave the map, so slow machines need a few more attempts.
        let mut sleeps = Vec::new();
        let full = (0..100 * SHORT_SLEEP_COUNT_MAX).any(|_| match timer.sleep(longest) {
            Some(sleep) => {
                sleeps.push(sleep);
                assert!(sleep_count(&timer) <= SHORT_SLEEP_COUNT_MAX);
                false
            }
            None => true,
        });
        assert!(full, "{} at once", sleep_count(&timer));
        drop(sleeps);
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
        // Loaded machines are late; tokio's timers are always late, by 900 µs.
        assert!(overshoots[0] < 500.0, "at best {} µs late", overshoots[0]);
        let long = overshoots_us(&clock, SHORT_SLEEP_MAX, 3).await;
        assert_eq!(long.len(), 3);
    }
}
