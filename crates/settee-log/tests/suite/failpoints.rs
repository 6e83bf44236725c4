//! Goal: the tests of the log can fail: they detect each of ten faults that a log or a disk could have.
//! Method: enable one fault, and run the checks of `power_loss` and `waiting`, seed after seed, until one
//! fails. The checks know nothing of the fault; without it the same seeds pass.

use settee_log::{Failpoint, LogOptions};
use settee_sim::trial::{Subject, Tally, detect, events, run_trial};

use crate::common::readers::readers_never_wait;
use crate::common::trial::{Fault, LogTrial};

/// Runs the tests with one seed.
fn check(seed: u64, fault: Option<Fault>) -> Result<Tally, String> {
    let failpoint = fault.and_then(Fault::failpoint);
    readers_never_wait(seed, LogOptions { failpoint, ..LogOptions::default() })?;
    let mut tally = Tally::default();
    for event in events::<LogTrial>(seed, fault)? {
        tally.add(run_trial::<LogTrial>(seed, fault, event)?);
    }
    Ok(tally)
}

/// A fault counts as undetected after as many seeds as cover each configuration once.
fn detected(name: &str, fault: Fault) {
    detect::<LogTrial>(name, fault, LogTrial::CONFIG_COUNT, check);
}

fn failpoint(name: &str, failpoint: Failpoint) {
    detected(name, Fault::Log(failpoint));
}

#[test]
fn an_omitted_sync_is_detected() {
    detected("an omitted sync", Fault::IgnoredSyncs);
}

#[test]
fn an_omitted_directory_sync_is_detected() {
    detected("an omitted directory sync", Fault::IgnoredDirectorySyncs);
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
