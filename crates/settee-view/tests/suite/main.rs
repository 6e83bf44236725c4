//! The crate's tests, in one program. Each module's header states its goal and its method.

mod builds;
mod common;
mod faults;
mod model;
mod open_indexes;
mod power_loss;
