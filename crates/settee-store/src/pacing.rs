//! Pacing of writers: while garbage is made faster than background work frees it, commits are delayed.
//!
//! Each batch has a delay in proportion to its bytes and to the excess: how far the garbage has got from the soft
//! limit, at which compaction begins, to the hard one. At the soft limit the delay is 0, at the hard one
//! [`PACED_BYTES_PER_SECOND_MIN`] are committed per second. In between writers and background work find a
//! balance; there is no limit at which writes stop (as in RocksDB's write stalls, without the stop condition). A
//! batch's delay is served by the batch after it, before that takes the writer's lock, so nothing else waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::space::{Space, garbage_max};

/// Bytes per second that are committed at least, whatever the garbage.
pub(crate) const PACED_BYTES_PER_SECOND_MIN: u64 = 4 << 20;

/// Longest delay of a batch.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(500);

/// Garbage in bytes below which no batch is delayed, and smallest distance of the two limits: what a checkpoint
/// and a compaction of a small store need to keep up with a fast writer.
const PACED_GARBAGE_MIN: u64 = 8 << 20;
const PACED_RANGE_MIN: u64 = 8 << 20;

/// The soft and the hard limit, in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacingLimits {
    pub soft_percent: u64,
    pub hard_percent: u64,
}

impl PacingLimits {
    /// How far the garbage has got from the soft limit to the hard one: 0 to 1. Garbage that can't be freed counts
    /// for neither.
    pub(crate) fn excess(self, space: Space, unreclaimable: u64) -> f64 {
        // Without a soft limit there is no excess either.
        if self.hard_percent >= 100 || self.soft_percent >= 100 {
            return 0.0;
        }
        let soft = garbage_max(space.live, self.soft_percent).max(unreclaimable).max(PACED_GARBAGE_MIN);
        let hard = garbage_max(space.live, self.hard_percent).max(soft.saturating_add(PACED_RANGE_MIN));
        let range = (hard - soft) as f64;
        (space.garbage.saturating_sub(soft) as f64 / range).min(1.0)
    }
}

/// The state of a store's pacing.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    /// The clock's time in microseconds before which the next batch waits.
    until_us: AtomicU64,
    /// Held by the writer that waits, so that writers continue in the order in which they came.
    pub turn: tokio::sync::Mutex<()>,
    delayed_us: AtomicU64,
    bytes_per_second: AtomicU64,
}

impl Pacing {
    /// Charges a batch that was committed at `now`, at an excess from 0 to 1. Returns the delay that it adds.
    pub(crate) fn charge(&self, now: Duration, bytes: u64, excess: f64) -> Duration {
        if excess <= 0.0 {
            self.bytes_per_second.store(0, Ordering::Relaxed);
            return Duration::ZERO;
        }
        let per_second = PACED_BYTES_PER_SECOND_MIN as f64 / excess;
        self.bytes_per_second.store(per_second as u64, Ordering::Relaxed);
        let delay = Duration::from_secs_f64(bytes as f64 / per_second).min(DELAY_MAX);
        // Writers that waited for the same moment add up.
        let until = Duration::from_micros(self.until_us.load(Ordering::Relaxed)).max(now) + delay;
        self.until_us.store(until.min(now + DELAY_MAX).as_micros() as u64, Ordering::Relaxed);
        delay
    }

    /// How long the next batch waits at `now`.
    pub(crate) fn delay(&self, now: Duration) -> Duration {
        Duration::from_micros(self.until_us.load(Ordering::Relaxed)).saturating_sub(now).min(DELAY_MAX)
    }

    /// Ends the present delay.
    pub(crate) fn end(&self) {
        self.until_us.store(0, Ordering::Relaxed);
        self.bytes_per_second.store(0, Ordering::Relaxed);
    }

    /// Adds to the time that batches were delayed.
    pub(crate) fn count(&self, delayed: Duration) {
        self.delayed_us.fetch_add(delayed.as_micros() as u64, Ordering::Relaxed);
    }

    /// Microseconds for which batches were delayed.
    pub(crate) fn delayed_us(&self) -> u64 {
        self.delayed_us.load(Ordering::Relaxed)
    }

    /// The present rate in bytes per second; 0 if batches are not delayed.
    pub(crate) fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PacingLimits = PacingLimits { soft_percent: 30, hard_percent: 50 };
    const LIVE: u64 = 100 << 20;

    #[test]
    fn the_delay_grows_from_nothing_without_a_step_and_ends_at_its_maximum() {
        let delay = |garbage| {
            let excess = LIMITS.excess(Space { live: LIVE, garbage }, 0);
            Pacing::default().charge(Duration::from_secs(9), 1 << 20, excess)
        };
        let (soft, hard) = (garbage_max(LIVE, 30), garbage_max(LIVE, 50));
        assert_eq!(delay(soft), Duration::ZERO);
        let delays: Vec<Duration> = (0..=100).map(|part| delay(soft + (hard - soft) / 100 * part)).collect();
        assert!(delays.is_sorted(), "{delays:?}");
        let step_max = delays.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(step_max <= Duration::from_millis(3), "{step_max:?}");
        let most = delay(u64::MAX);
        assert_eq!(most, Duration::from_millis(250), "1 MiB at the least rate");
        assert_eq!(Pacing::default().charge(Duration::ZERO, u64::MAX, 1.0), DELAY_MAX);
    }

    #[test]
    fn a_small_store_and_garbage_that_stays_delay_nothing() {
        let excess = |live, garbage, unreclaimable| LIMITS.excess(Space { live, garbage }, unreclaimable);
        assert_eq!(excess(0, PACED_GARBAGE_MIN, 0), 0.0);
        assert!(excess(0, PACED_GARBAGE_MIN + (1 << 19), 0) < 0.1);
        assert_eq!(excess(LIVE, LIVE, LIVE), 0.0);
        assert!(excess(LIVE, LIVE + (8 << 20), LIVE) > 0.0);
        let never = PacingLimits { soft_percent: 30, hard_percent: 100 };
        assert_eq!(never.excess(Space { live: 0, garbage: u64::MAX - 1 }, 0), 0.0);
        let unlimited = PacingLimits { soft_percent: 100, hard_percent: 40 };
        assert_eq!(unlimited.excess(Space { live: LIVE, garbage: u64::MAX - 1 }, 0), 0.0);
    }

    #[test]
    fn a_delay_ends_with_its_time() {
        let (pacing, now) = (Pacing::default(), Duration::from_secs(5));
        let delay = pacing.charge(now, 1 << 20, 0.5);
        assert_eq!((pacing.delay(now), pacing.delay(now + delay)), (delay, Duration::ZERO));
        pacing.charge(now, 1 << 10, 0.1);
        assert!(pacing.delay(now) > delay, "a small batch doesn't end a large one's delay");
        for _ in 0..100 {
            pacing.charge(now, 1 << 20, 1.0);
        }
        assert_eq!(pacing.delay(now), DELAY_MAX);
        pacing.end();
        assert_eq!((pacing.delay(now), pacing.bytes_per_second()), (Duration::ZERO, 0));
    }
}
