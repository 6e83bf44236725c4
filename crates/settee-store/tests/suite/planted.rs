//! Goal: the tests of the store can fail: each of ten faults that a store, or a disk, could have is
//! caught by them.
//! Method: plant one, and run what `power_loss` runs, seed after seed, until it is noticed. The checks
//! are the same ones, and know nothing of what was planted; without it the same seeds pass.

use crate::common::trial;

use settee_store::Planted;
use trial::{CONFIG_COUNT, Event, Setup, Tally, events, run_trial};

/// Seeds after which a fault counts as unnoticed: each configuration has had its turn, many times.
const SEED_COUNT_MAX: u64 = 20 * CONFIG_COUNT;

/// Of a seed's events one in so many is tried: other seeds tell more than more of the same.
const EVENT_STRIDE: usize = 23;

/// What the tests find under one seed.
fn check(setup: &Setup) -> Result<Tally, String> {
    let mut tally = Tally::default();
    for event in events(setup)?.into_iter().skip(setup.seed as usize % EVENT_STRIDE).step_by(EVENT_STRIDE) {
        tally.add(run_trial(setup, event)?);
    }
    Ok(tally)
}

/// Looks for the first seed under which the fault is noticed; the message says which trial it was. That
/// trial passes without the fault.
fn caught(name: &str, plant: impl Fn(Setup) -> Setup) {
    for seed in 0..SEED_COUNT_MAX {
        let Err(problem) = check(&plant(Setup::new(seed))) else { continue };
        let (problem, replay) = problem.split_once('\n').unwrap_or((&problem, ""));
        println!("{name}: caught by seed {seed} (1 of {}): {problem}", seed + 1);
        let event = replay.rsplit_once("SETTEE_EVENT=").map(|(_, event)| event.parse::<Event>());
        let event = event.expect("the trial is named").unwrap();
        assert!(run_trial(&plant(Setup::new(seed)), event).is_err());
        run_trial(&Setup::new(seed), event).unwrap_or_else(|problem| panic!("without {name}: {problem}"));
        return;
    }
    panic!("{name}: not noticed with {SEED_COUNT_MAX} seeds");
}

fn planted(name: &str, fault: Planted) {
    caught(name, |setup| Setup { planted: Some(fault), ..setup });
}

#[test]
fn a_root_before_its_nodes_is_caught() {
    caught("a root written before its nodes are synced", |setup| Setup { ignores_tree_syncs: true, ..setup });
}

#[test]
fn a_file_removed_too_early_is_caught() {
    planted("a file removed too early", Planted::FileRemovedEarly);
}

#[test]
fn a_remap_that_is_lost_is_caught() {
    planted("a remap lost", Planted::RemapLost);
}

#[test]
fn an_update_that_compaction_loses_is_caught() {
    planted("an update lost to compaction", Planted::UpdateLost);
}

#[test]
fn a_tombstone_gone_too_soon_is_caught() {
    planted("a tombstone gone too soon", Planted::TombstoneTooSoon);
}

#[test]
fn a_snapshots_file_that_is_recycled_is_caught() {
    planted("a snapshot's file recycled", Planted::SnapshotFileRecycled);
}

#[test]
fn a_superseded_record_that_is_shown_is_caught() {
    planted("a superseded record shown", Planted::SupersededShown);
}

#[test]
fn a_live_record_that_is_skipped_is_caught() {
    planted("a live record skipped", Planted::LiveSkipped);
}

#[test]
fn a_wrong_reduction_is_caught() {
    planted("a wrong reduction", Planted::WrongReduction);
}

#[test]
fn a_stale_cached_chunk_is_caught() {
    planted("a stale cached chunk after a rewrite", Planted::StaleCache);
}
