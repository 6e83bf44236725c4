//! Goal: an acknowledged batch survives any power loss, and others survive whole or not at all; also on a
//! failing disk.
//! Method: the power fails at every operation of a seeded run (every sync, write and rename among them), and
//! after every sync; the process is killed; an operation fails. Then again, during recovery or soon after.
//! Each unsynced sector is kept, dropped or garbled. Each seed has one of the configurations of a matrix: see
//! `common/trial.rs`. The variables that control the search: see `settee_sim::trial`.

use settee_sim::trial::{Search, check_replay, search};

use crate::common::trial::LogTrial;

#[test]
fn acknowledged_batches_survive_power_loss_kills_and_errors() {
    search::<LogTrial>(&Search {
        crash_count: 25_000,
        covers: &[
            "recovery cut short",
            "kill",
            "error",
            "append refused or stopped",
            "torn tail",
            "first process's renames",
            "segment index",
        ],
    });
}

#[test]
fn the_same_seed_and_event_give_the_same_run() {
    check_replay::<LogTrial>();
}
