//! Goal: the tests of the log can fail: each of ten faults that a log, or a disk, could have is
//! caught by them.
//! Method: plant one, and run what `power_loss` and `waiting` run, seed after seed, until it is
//! noticed. The checks are the same ones, and know nothing of what was planted; without it the
//! same seeds pass.

use crate::common::readers;
use crate::common::trial;

use readers::readers_never_wait;
use settee_log::{LogOptions, Planted};
use trial::{CONFIG_COUNT, Event, Setup, Tally, events, run_trial};

/// Seeds after which a fault counts as unnoticed: each configuration has had its turn.
const SEED_COUNT_MAX: u64 = CONFIG_COUNT;

/// What the tests find under one seed.
fn check(setup: &Setup) -> Result<Tally, String> {
    readers_never_wait(setup.seed, LogOptions { planted: setup.planted, ..LogOptions::default() })?;
    let mut tally = Tally::default();
    for event in events(setup)? {
        tally.add(run_trial(setup, event)?);
    }
    Ok(tally)
}

/// Looks for the first seed under which the fault is noticed.
fn caught(name: &str, plant: impl Fn(Setup) -> Setup) {
    let mut tally = Tally::default();
    for seed in 0..SEED_COUNT_MAX {
        let sound = check(&Setup::new(seed)).unwrap_or_else(|problem| panic!("without {name}: {problem}"));
        tally.add(sound);
        if let Err(problem) = check(&plant(Setup::new(seed))) {
            let (problem, replay) = problem.split_once('\n').unwrap_or((&problem, ""));
            println!("{name}: caught by seed {seed} (1 of {}): {problem}", seed + 1);
            // The message says which trial it was, so that it can be looked at by itself.
            let event = replay.rsplit_once("SETTEE_EVENT=").map(|(_, event)| event.parse::<Event>());
            assert!(event.is_none_or(|event| run_trial(&plant(Setup::new(seed)), event.unwrap()).is_err()));
            return;
        }
    }
    panic!("{name}: not noticed with {SEED_COUNT_MAX} seeds, which pass without it: {tally:?}");
}

fn planted(name: &str, fault: Planted) {
    caught(name, |setup| Setup { planted: Some(fault), ..setup });
}

#[test]
fn a_sync_left_out_is_caught() {
    caught("a sync left out", |setup| Setup { ignores_syncs: true, ..setup });
}

#[test]
fn a_folder_sync_left_out_is_caught() {
    caught("a folder's sync left out", |setup| Setup { ignores_folder_syncs: true, ..setup });
}

#[test]
fn an_acknowledgement_before_the_sync_is_caught() {
    planted("an acknowledgement before the sync", Planted::EarlyAcknowledgement);
}

#[test]
fn marks_that_advance_past_a_hole_are_caught() {
    planted("marks that advance past a hole", Planted::MarkPastHole);
}

#[test]
fn a_batch_appended_behind_a_cut_is_caught() {
    planted("a batch appended behind a cut", Planted::AppendBehindCut);
}

#[test]
fn a_recycled_frame_that_is_accepted_is_caught() {
    planted("a recycled frame accepted", Planted::RecycledFrame);
}

#[test]
fn a_failed_sync_that_is_retried_is_caught() {
    planted("a failed sync retried", Planted::SyncRetried);
}

#[test]
fn an_error_taken_for_the_end_of_a_file_is_caught() {
    planted("an I/O error taken for the end of the file", Planted::ErrorAsEnd);
}

#[test]
fn a_buffer_freed_in_flight_is_caught() {
    planted("a buffer freed in flight", Planted::BufferFreedInFlight);
}

#[test]
fn a_reader_that_waits_for_a_buffer_is_caught() {
    planted("a reader that waits for a buffer", Planted::ReaderWaits);
}
