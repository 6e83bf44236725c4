//! Goal: a log whose state violates an invariant stops.
//! Method: change the state under its lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use settee_sim::Sim;

use super::Log;
use crate::format::{Batch, Flags};
use crate::options::LogOptions;
use crate::state::LogState;
use crate::types::Stage;
use crate::watermark::Position;

#[test]
fn a_violated_invariant_stops_the_log() {
    let violations: [fn(&mut LogState); 4] = [
        |state| state.written.seq = state.accepted.seq + 1,
        |state| state.persisted.seq = state.written.seq + 1,
        |state| state.persisted.at = state.written.at.plus(1),
        |state| state.next = Position::new(1, 1),
    ];
    for (number, violate) in violations.into_iter().enumerate() {
        let sim = Sim::new(number as u64);
        let env = sim.env();
        sim.run(async {
            let directory = Path::new("/data/log");
            let (log, _) = Log::open(&env, directory, LogOptions::default(), |_, _| {}).await.unwrap();
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"key", b"", b"value");
            let first = log.append(&batch, Stage::Persisted).await.unwrap();
            log.wait(first.last_seq, Stage::Persisted).await.unwrap();
            log.append(&batch, Stage::Accepted).await.unwrap();
            let shared = &log.shared;
            let released = catch_unwind(AssertUnwindSafe(|| violate(&mut shared.lock())));
            assert!(released.is_err(), "violation {number}");
            assert!(log.health().is_err(), "violation {number}");
            assert!(log.append(&batch, Stage::Accepted).await.is_err(), "violation {number}");
        })
        .unwrap();
    }
}
