//! Goal: an acknowledged batch survives any power loss, and others survive whole or not at all; also on a
//! failing disk.
//! Method: the power fails at every operation of a seeded run (every sync, write and rename among them), and
//! after every sync; the process is killed; an operation fails. Then again, during recovery or soon after.
//! Each unsynced sector is kept, dropped or garbled. Each seed has one of the configurations of a matrix: see
//! `common/trial.rs`.
//!
//! `SETTEE_CRASHES` is the minimal number of power losses, `SETTEE_SEED_FIRST` the first seed. `SETTEE_SEED`
//! tries only that seed, and `SETTEE_EVENT` only that event of it.

use crate::common::trial;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use settee_sim::seeds;
use trial::{CONFIG_COUNT, Event, Setup, Tally, events, run_trial};

/// Number of power losses to try, unless configured otherwise.
const CRASH_COUNT: u64 = 40_000;

/// Number of power losses between progress reports.
const REPORT_COUNT: u64 = 50_000;

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value:?}")))
}

/// All trials of a seed, or the one that `SETTEE_EVENT` names.
fn run_seed(seed: u64) -> Result<Tally, String> {
    let setup = Setup::new(seed);
    let events = match std::env::var("SETTEE_EVENT") {
        Ok(event) => vec![event.parse::<Event>()?],
        Err(_) => events(&setup)?,
    };
    let mut tally = Tally::default();
    for event in events {
        tally.add(run_trial(&setup, event)?);
    }
    Ok(tally)
}

/// What all threads have tried so far.
struct Progress {
    wanted: u64,
    next_seed: AtomicU64,
    so_far: Mutex<Result<Tally, String>>,
}

impl Progress {
    /// Tries one seed after another until there are enough, or one fails.
    fn work(&self) {
        loop {
            let is_over =
                self.so_far.lock().unwrap().as_ref().map_or(true, |tally| tally.power_losses >= self.wanted);
            if is_over {
                return;
            }
            let tried = run_seed(self.next_seed.fetch_add(1, Ordering::Relaxed));
            let mut so_far = self.so_far.lock().unwrap();
            match (tried, &mut *so_far) {
                (Ok(tried), Ok(tally)) => {
                    let before = tally.power_losses;
                    tally.add(tried);
                    if before / REPORT_COUNT != tally.power_losses / REPORT_COUNT {
                        println!("{} of {} power losses tried", tally.power_losses, self.wanted);
                    }
                }
                (Err(problem), so_far) => *so_far = Err(problem),
                (Ok(_), Err(_)) => {}
            }
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "simulations side by side: each is in one thread")]
fn acknowledged_batches_survive_power_loss_kills_and_errors() {
    let (first, wanted) = match variable("SETTEE_SEED") {
        Some(seed) => (seed, 1),
        None => {
            (variable("SETTEE_SEED_FIRST").unwrap_or(0), variable("SETTEE_CRASHES").unwrap_or(CRASH_COUNT))
        }
    };
    let progress =
        Progress { wanted, next_seed: AtomicU64::new(first), so_far: Mutex::new(Ok(Tally::default())) };
    if wanted == 1 {
        progress.work();
    } else {
        let thread_count = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..thread_count {
                scope.spawn(|| progress.work());
            }
        });
    }
    let seeds = first..progress.next_seed.into_inner();
    let tally = progress.so_far.into_inner().unwrap().unwrap_or_else(|problem| panic!("{problem}"));
    println!("crash points tried: {}, lost 0 (seeds {seeds:?}; {tally:?})", tally.power_losses);
    assert!(tally.power_losses >= wanted);
    if wanted >= CRASH_COUNT {
        // All configurations were covered.
        assert!(seeds.end - seeds.start >= CONFIG_COUNT, "{seeds:?}");
        let Tally { during_recovery, kills, errors, torn_tails, recycled, segment_indexes, .. } = tally;
        for (what, count) in
            [("recovery", during_recovery), ("kill", kills), ("error", errors), ("torn tail", torn_tails)]
        {
            assert!(count > wanted / 200, "{what}: {count}");
        }
        assert!(recycled > 0 && segment_indexes > 0);
    }
}

#[test]
fn the_same_seed_and_event_give_the_same_run() {
    let mut traces = std::collections::BTreeSet::new();
    for seed in seeds(CONFIG_COUNT) {
        let setup = Setup::new(seed);
        let events = events(&setup).unwrap();
        let event = events[seed as usize * 7_919 % events.len()];
        let first = run_trial(&setup, event).unwrap();
        assert_eq!(first, run_trial(&setup, event).unwrap(), "seed={seed} event={event}");
        traces.insert(first.trace);
        assert_eq!(event.to_string().parse(), Ok(event));
    }
    // Other seeds give other traces.
    assert!(traces.len() as u64 > CONFIG_COUNT * 9 / 10 || traces.len() == 1, "{}", traces.len());
}
