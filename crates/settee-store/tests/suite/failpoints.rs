//! Goal: the store's tests can fail: they catch each of ten faults that a store or a disk could have.
//! Method: enable one failpoint, and run the checks of `power_loss` seed after seed until one fails. The
//! checks know nothing of the failpoint; without it the same seeds pass.

use settee_sim::trial::{Subject, Tally, detect, events, run_trial};
use settee_store::Failpoint;

use crate::common::trial::{Fault, StoreTrial};

/// Number of seeds after which a fault counts as not caught: each configuration is tried many times.
const SEED_COUNT_MAX: u64 = 20 * StoreTrial::CONFIG_COUNT;

/// One in this many events of a seed is tried: other seeds find more than more events of the same.
const EVENT_STRIDE: usize = 23;

/// The first failure under one seed.
fn check(seed: u64, fault: Option<Fault>) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let events = events::<StoreTrial>(seed, fault)?;
    for event in events.into_iter().skip(seed as usize % EVENT_STRIDE).step_by(EVENT_STRIDE) {
        tally.add(run_trial::<StoreTrial>(seed, fault, event)?);
    }
    Ok(tally)
}

fn caught(name: &str, fault: Fault) {
    detect::<StoreTrial>(name, fault, SEED_COUNT_MAX, check);
}

fn failpoint(name: &str, failpoint: Failpoint) {
    caught(name, Fault::Store(failpoint));
}

#[test]
fn a_root_before_its_nodes_is_caught() {
    caught("a root written before its nodes are synced", Fault::IgnoredTreeSyncs);
}

#[test]
fn a_file_removed_too_early_is_caught() {
    failpoint("a file removed too early", Failpoint::FileRemovedEarly);
}

#[test]
fn a_remap_that_is_lost_is_caught() {
    failpoint("a remap lost", Failpoint::RemapLost);
}

#[test]
fn an_update_that_compaction_loses_is_caught() {
    failpoint("an update lost to compaction", Failpoint::UpdateLost);
}

#[test]
fn a_tombstone_gone_too_soon_is_caught() {
    failpoint("a tombstone gone too soon", Failpoint::TombstoneTooSoon);
}

#[test]
fn a_snapshots_file_that_is_recycled_is_caught() {
    failpoint("a snapshot's file recycled", Failpoint::SnapshotFileRecycled);
}

#[test]
fn a_superseded_record_that_is_shown_is_caught() {
    failpoint("a superseded record shown", Failpoint::SupersededShown);
}

#[test]
fn a_live_record_that_is_skipped_is_caught() {
    failpoint("a live record skipped", Failpoint::LiveSkipped);
}

#[test]
fn a_wrong_reduction_is_caught() {
    failpoint("a wrong reduction", Failpoint::WrongReduction);
}

#[test]
fn a_stale_cached_chunk_is_caught() {
    failpoint("a stale cached chunk after a rewrite", Failpoint::StaleCache);
}
