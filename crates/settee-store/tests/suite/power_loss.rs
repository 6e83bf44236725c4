//! Goal: what a store acknowledged or showed survives any power loss, and the rest is a prefix of its
//! batches, each whole. Checkpoints, compaction, a lost tree and a failing disk don't change that. A tree
//! that a manifest names is whole: it is rebuilt only if it was removed.
//! Method: cut the power at every operation of a seeded run (every sync, write, rename and removal among
//! them), and after every sync; kill the process; make an operation fail. Then do so again during recovery or
//! soon after. Each unsynced sector is kept, dropped or garbled. Each seed has one of the configurations of a
//! matrix: see `common/trial.rs`.
//! The variables that control the search: see `settee_sim::trial`.

use settee_sim::trial::{Event, EventKind, Search, check_replay, events, run_trial, search};

use crate::common::trial::StoreTrial;

#[test]
fn what_was_shown_survives_power_loss_kills_and_errors() {
    search::<StoreTrial>(&Search {
        crash_count: 30_000,
        covers: &[
            "recovery cut short",
            "kill",
            "error",
            "checkpoint by touched leaves",
            "whole checkpoint",
            "segment rewritten",
            "tree rebuilt",
            "digest",
        ],
    });
}

/// A seed far beyond those tried each time: a compaction that had waited for another, and could not tell
/// whether its manifest had been replaced, overwrote a file that the manifest named.
#[test]
fn a_file_that_a_manifest_may_name_is_not_overwritten() {
    let seed = 5_000_321;
    let errors = |event: &Event| matches!(event.kind, EventKind::IoError | EventKind::SyncError);
    for event in events::<StoreTrial>(seed, None).unwrap().into_iter().filter(errors) {
        run_trial::<StoreTrial>(seed, None, event).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

/// The log's sync of the directory failed while a compaction's succeeded: the manifest's rename was lost,
/// with the files that the previous manifest named.
#[test]
fn a_sync_of_the_directory_that_succeeds_beside_a_failed_one_counts_for_nothing() {
    let event = Event::new(EventKind::IoError, 210);
    run_trial::<StoreTrial>(505, None, event).unwrap_or_else(|problem| panic!("{problem}"));
}

#[test]
fn the_same_seed_and_event_give_the_same_run() {
    check_replay::<StoreTrial>();
}
