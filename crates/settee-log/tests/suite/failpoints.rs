//! Goal: the tests of the log can fail: they detect each of ten faults that a log or a disk could have.
//! Method: enable one fault, and run the checks of `power_loss` and `waiting`, seed after seed, until one
//! fails. The checks know nothing of the fault; without it the same seeds pass.

use crate::common::readers;
use crate::common::trial;

use readers::readers_never_wait;
use settee_log::{Failpoint, LogOptions};
use trial::{CONFIG_COUNT, Event, Setup, Tally, events, run_trial};

/// A fault counts as undetected after this many seeds, which cover each configuration once.
const SEED_COUNT_MAX: u64 = CONFIG_COUNT;

/// Runs the tests with one seed.
fn check(setup: &Setup) -> Result<Tally, String> {
    readers_never_wait(setup.seed, LogOptions { failpoint: setup.failpoint, ..LogOptions::default() })?;
    let mut tally = Tally::default();
    for event in events(setup)? {
        tally.add(run_trial(setup, event)?);
    }
    Ok(tally)
}

/// Searches for the first seed that detects the fault.
fn detected(name: &str, inject: impl Fn(Setup) -> Setup) {
    let mut tally = Tally::default();
    for seed in 0..SEED_COUNT_MAX {
        let sound = check(&Setup::new(seed)).unwrap_or_else(|problem| panic!("without {name}: {problem}"));
        tally.add(sound);
        if let Err(problem) = check(&inject(Setup::new(seed))) {
            let (problem, replay) = problem.split_once('\n').unwrap_or((&problem, ""));
            println!("{name}: detected by seed {seed} (1 of {}): {problem}", seed + 1);
            // The message names the trial, so that it can be repeated alone.
            let event = replay.rsplit_once("SETTEE_EVENT=").map(|(_, event)| event.parse::<Event>());
            assert!(event.is_none_or(|event| run_trial(&inject(Setup::new(seed)), event.unwrap()).is_err()));
            return;
        }
    }
    panic!("{name}: not detected with {SEED_COUNT_MAX} seeds, which pass without it: {tally:?}");
}

fn failpoint(name: &str, injected: Failpoint) {
    detected(name, |setup| Setup { failpoint: Some(injected), ..setup });
}

#[test]
fn an_omitted_sync_is_detected() {
    detected("an omitted sync", |setup| Setup { ignores_syncs: true, ..setup });
}

#[test]
fn an_omitted_directory_sync_is_detected() {
    detected("an omitted directory sync", |setup| Setup { ignores_directory_syncs: true, ..setup });
}

#[test]
fn an_acknowledgement_before_the_sync_is_detected() {
    failpoint("an acknowledgement before the sync", Failpoint::EarlyAcknowledgement);
}

#[test]
fn a_watermark_past_a_gap_is_detected() {
    failpoint("a watermark past a gap", Failpoint::WatermarkPastGap);
}

#[test]
fn a_batch_appended_after_a_torn_tail_is_detected() {
    failpoint("a batch appended after a torn tail", Failpoint::AppendAfterTornTail);
}

#[test]
fn an_accepted_recycled_frame_is_detected() {
    failpoint("a recycled frame accepted", Failpoint::RecycledFrame);
}

#[test]
fn a_retried_sync_is_detected() {
    failpoint("a retried sync", Failpoint::SyncRetried);
}

#[test]
fn an_error_treated_as_the_end_of_a_file_is_detected() {
    failpoint("an I/O error treated as the end of the file", Failpoint::ErrorAsEnd);
}

#[test]
fn a_buffer_freed_in_flight_is_detected() {
    failpoint("a buffer freed in flight", Failpoint::BufferFreedInFlight);
}

#[test]
fn a_reader_that_waits_for_a_buffer_is_detected() {
    failpoint("a reader that waits for a buffer", Failpoint::ReaderWaits);
}
