//! Goal: a log whose state violates an invariant stops, acknowledges nothing more, and can be closed.
//! Method: change the state under its lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use settee_sim::Sim;

use super::Log;
use crate::format::{Batch, Flags};
use crate::options::LogOptions;
use crate::state::tests::{VIOLATION_COUNT, violate};
use crate::types::Stage;

#[test]
fn a_violated_invariant_stops_the_log_which_acknowledges_nothing_more_and_closes() {
    for number in 0..VIOLATION_COUNT {
        let sim = Sim::new(number as u64);
        let env = sim.env();
        sim.run(async {
            let directory = Path::new("/data/log");
            let (log, _) = Log::open(&env, directory, LogOptions::default(), |_, _| {}).await.unwrap();
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"key", b"", b"value");
            let first = log.append(&batch, Stage::Persisted).await.unwrap();
            log.wait(first.last_seq, Stage::Persisted).await.unwrap();
            let second = log.append(&batch, Stage::Accepted).await.unwrap();
            violate(&mut log.shared.lock(), number);
            // A counter that is derived from what is wrong now causes no panic.
            log.stats();
            let submitted = catch_unwind(AssertUnwindSafe(|| log.shared.submit_ready()));
            assert!(submitted.is_err(), "violation {number}");
            assert!(log.health().is_err(), "violation {number}");
            assert!(log.append(&batch, Stage::Accepted).await.is_err(), "violation {number}");
            for stage in [Stage::Written, Stage::Persisted] {
                assert!(log.wait(second.last_seq, stage).await.is_err(), "violation {number}");
            }
            // It returns although the log stopped within a transition.
            assert!(log.close().await.is_err(), "violation {number}");
        })
        .unwrap();
    }
}
