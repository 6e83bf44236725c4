//! The log's tests, in one program: each module's head gives its goal and its method.

mod common;
mod direct;
mod ending;
mod faults;
mod handing_over;
mod hostile;
mod options;
mod panics;
mod planted;
mod power_loss;
mod recovery;
mod refusals;
mod room;
mod start;
mod streams;
mod waiting;
