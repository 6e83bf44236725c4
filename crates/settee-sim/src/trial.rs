//! Trials: a seeded run of a durable program with one event, and the recovery from it.
//!
//! A trial runs its [`Subject`] (a log or a store, with the test's model of it) on a simulated disk, with one
//! [`Event`] during the first process. The subject is then opened again, once or more, each time with a power
//! loss soon after the start, so mostly during recovery. Then it is opened and used without an event, and
//! opened a last time to compare. Each process compares everything with what was submitted and acknowledged
//! before. [`search`] tries all events of consecutive seeds; [`detect`] shows that the same trials detect a
//! planted fault.
//!
//! The seed alone decides the configuration, the workload and the disk; seed and event together decide the
//! rest. So the message of a failure is enough to replay it: `SETTEE_SEED` makes [`search`] try only that
//! seed, and `SETTEE_EVENT` only that event of it. `SETTEE_CRASHES` is the minimal number of power losses,
//! `SETTEE_SEED_FIRST` the first seed.

mod event;
mod process;
mod run;
mod search;
mod tally;

pub use crate::random::Random;
pub use event::{Event, EventKind, Tolerance};
pub use process::{PROCESS_TIME_MAX, Process, ProcessPlan};
pub use run::{Subject, events, run_trial};
pub use search::{Search, check_replay, detect, search};
pub use tally::Tally;
