//! The store's tests, in one program: each module's head gives its goal and its method.

mod backup;
mod check;
mod checkpoints;
mod common;
mod failures;
mod handing_over;
mod merges;
mod model;
mod opening;
mod panics;
mod planted;
mod power_loss;
mod repair;
mod scans;
mod space;
mod values;
