//! The store's tests, in one program. Each module's header states its goal and its method.

mod backup;
mod check;
mod checkpoints;
mod common;
mod failpoints;
mod failures;
mod flips;
mod listing;
mod lookups;
mod merges;
mod model;
mod opening;
mod panics;
mod power_loss;
mod reclaim;
mod repair;
mod replaced;
mod scans;
mod space;
mod timelines;
mod values;
