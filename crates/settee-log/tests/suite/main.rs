//! The log's tests, in one program: the head of each module states its goal and method.

mod close_mark;
mod common;
mod direct;
mod early_end;
mod ending;
mod failpoints;
mod faults;
mod hostile;
mod listing;
mod options;
mod panics;
mod power_loss;
mod read_sizes;
mod recovery;
mod refusals;
mod reservation;
mod start;
mod streams;
mod timelines;
mod waiting;
