//! Goal: what a store acknowledged or showed survives any power loss, and the rest is a prefix of its
//! batches, each whole. Checkpoints, compaction, a lost tree and a failing disk don't change that. A tree
//! that a manifest names is whole: it is rebuilt only if it was removed.
//! Method: cut the power at every operation of a seeded run (every sync, write, rename and removal among
//! them), and after every sync; kill the process; make an operation fail. Then do so again during recovery or
//! soon after. Each unsynced sector is kept, dropped or garbled. Each seed has one of the configurations of a
//! matrix: see `common/trial.rs`.
//!
//! `SETTEE_CRASHES` is the least number of power losses to try, `SETTEE_SEED_FIRST` the first seed.
//! `SETTEE_SEED` tries only that seed, and `SETTEE_EVENT` only this event of it.

use crate::common::trial;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use settee_sim::seeds;
use trial::{CONFIG_COUNT, Event, Setup, Tally, events, run_trial};

/// Default number of power losses.
const CRASH_COUNT: u64 = 30_000;

/// Number of power losses between two lines of progress.
const REPORT_COUNT: u64 = 50_000;

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value:?}")))
}

/// Runs all trials of a seed, or the one that `SETTEE_EVENT` names.
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
    /// Tries seeds until there are enough power losses, or one fails.
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
fn what_was_shown_survives_power_loss_kills_and_errors() {
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
        // Every configuration was tried.
        assert!(seeds.end - seeds.start >= CONFIG_COUNT, "{seeds:?}");
        let Tally { during_recovery, kills, errors, touched, whole, rewritten, rebuilt, .. } = tally;
        let all = [
            ("recovery", during_recovery),
            ("kill", kills),
            ("error", errors),
            ("checkpoint by touched leaves", touched),
            ("whole checkpoint", whole),
            ("segment rewritten", rewritten),
            ("tree rebuilt", rebuilt),
        ];
        for (what, count) in all {
            assert!(count > wanted / 200, "{what}: {count}");
        }
    }
}

/// A seed far beyond those tried each time: a compaction that had waited for another, and could not tell
/// whether its manifest had been replaced, overwrote a file that the manifest named.
#[test]
fn a_file_that_a_manifest_may_name_is_not_overwritten() {
    run_seed(5_000_321).unwrap_or_else(|problem| panic!("{problem}"));
}

/// The log's sync of the directory failed while a compaction's succeeded: the manifest's rename was lost,
/// with the files that the previous manifest named.
#[test]
fn a_sync_of_the_directory_that_succeeds_beside_a_failed_one_counts_for_nothing() {
    let problem = |problem| panic!("{problem}");
    run_trial(&Setup::new(505), Event::IoErrorAt(210)).unwrap_or_else(problem);
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
    // Other events give other traces.
    assert!(traces.len() as u64 > CONFIG_COUNT * 9 / 10 || traces.len() == 1, "{}", traces.len());
}
