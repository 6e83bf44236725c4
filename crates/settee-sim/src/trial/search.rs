//! Searches: the trials of one seed after another, in several threads, and the search for a planted fault.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::event::Event;
use super::run::{Subject, events, run_trial};
use super::tally::Tally;
use crate::{seeds, variable};

/// Number of power losses between progress reports.
const REPORT_COUNT: u64 = 50_000;

/// In a search of full length, each count that it must cover exceeds the number of power losses divided by
/// this.
const COVER_INTERVAL: u64 = 200;

/// How long a search runs, and what it must cover.
pub struct Search {
    /// Number of power losses to try, unless `SETTEE_CRASHES` says otherwise.
    pub crash_count: u64,
    /// Names of the counts that must not be small at the end: see `COVER_INTERVAL`.
    pub covers: &'static [&'static str],
}

/// All trials of a seed, or the one that `SETTEE_EVENT` names.
///
/// # Errors
/// As [`run_trial`].
fn try_seed<S: Subject>(seed: u64) -> Result<Tally, String> {
    let events = match std::env::var("SETTEE_EVENT") {
        Ok(event) => vec![event.parse()?],
        Err(_) => events::<S>(seed, None)?,
    };
    let mut tally = Tally::default();
    for event in events {
        tally.add(run_trial::<S>(seed, None, event)?);
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
    /// Tries one seed after another until there are enough power losses, or one fails.
    fn work<S: Subject>(&self) {
        loop {
            let is_over =
                self.so_far.lock().unwrap().as_ref().map_or(true, |tally| tally.power_losses >= self.wanted);
            if is_over {
                return;
            }
            let tried = try_seed::<S>(self.next_seed.fetch_add(1, Ordering::Relaxed));
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

/// Tries consecutive seeds until there are enough power losses, and prints the counts.
///
/// # Panics
/// If a trial fails; or if the search is as long as `plan` says and hasn't covered all configurations and
/// counts.
pub fn search<S: Subject>(plan: &Search) {
    let (first, wanted) = match variable("SETTEE_SEED") {
        Some(seed) => (seed, 1),
        None => (
            variable("SETTEE_SEED_FIRST").unwrap_or(0),
            variable("SETTEE_CRASHES").unwrap_or(plan.crash_count),
        ),
    };
    let progress =
        Progress { wanted, next_seed: AtomicU64::new(first), so_far: Mutex::new(Ok(Tally::default())) };
    // Simulations are single-threaded; several run side by side.
    let thread_count =
        if wanted == 1 { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    std::thread::scope(|scope| {
        for _ in 0..thread_count {
            scope.spawn(|| progress.work::<S>());
        }
    });
    let seeds = first..progress.next_seed.into_inner();
    let tally = progress.so_far.into_inner().unwrap().unwrap_or_else(|problem| panic!("{problem}"));
    println!("crash points tried: {}, lost 0 (seeds {seeds:?}; {tally:?})", tally.power_losses);
    assert!(tally.power_losses >= wanted);
    if wanted >= plan.crash_count {
        assert!(seeds.end - seeds.start >= S::CONFIG_COUNT, "not all configurations were tried: {seeds:?}");
        for what in plan.covers {
            let count = tally.counts.get(what).copied().unwrap_or(0);
            assert!(count > wanted / COVER_INTERVAL, "{what}: {count}");
        }
    }
}

/// Checks that the same seed and event give the same run, and that most others give different runs.
///
/// # Panics
/// If they don't.
pub fn check_replay<S: Subject>() {
    let mut traces = BTreeSet::new();
    for seed in seeds(S::CONFIG_COUNT) {
        let events = events::<S>(seed, None).unwrap();
        let event = events[seed as usize * 7_919 % events.len()];
        let first = run_trial::<S>(seed, None, event).unwrap();
        assert_eq!(first, run_trial::<S>(seed, None, event).unwrap(), "seed={seed} event={event}");
        traces.insert(first.trace);
        assert_eq!(event.to_string().parse(), Ok(event));
    }
    // One trace: `SETTEE_SEED` selects a single seed.
    assert!(
        traces.len() as u64 > S::CONFIG_COUNT * 9 / 10 || traces.len() == 1,
        "{} different traces",
        traces.len()
    );
}

/// Finds the first seed under which `check` detects a fault. Without the fault the checks of that seed and of
/// those before it pass; the trial that the message names fails again with it, and passes without.
///
/// # Panics
/// If none of `seed_count` seeds detects it.
pub fn detect<S: Subject>(
    name: &str,
    fault: S::Fault,
    seed_count: u64,
    check: impl Fn(u64, Option<S::Fault>) -> Result<Tally, String>,
) {
    let mut tally = Tally::default();
    for seed in 0..seed_count {
        tally.add(check(seed, None).unwrap_or_else(|problem| panic!("without {name}: {problem}")));
        let Err(problem) = check(seed, Some(fault)) else { continue };
        let (problem, replay) = problem.split_once('\n').unwrap_or((&problem, ""));
        println!("{name}: detected by seed {seed} (1 of {}): {problem}", seed + 1);
        if let Some((_, event)) = replay.rsplit_once("SETTEE_EVENT=") {
            let event: Event = event.parse().expect("the message names the trial");
            assert!(run_trial::<S>(seed, Some(fault), event).is_err(), "{event} doesn't fail again");
            run_trial::<S>(seed, None, event).unwrap_or_else(|problem| panic!("without {name}: {problem}"));
        }
        return;
    }
    panic!("{name}: not detected with {seed_count} seeds, which pass without it: {tally:?}");
}
