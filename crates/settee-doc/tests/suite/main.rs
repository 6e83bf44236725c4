//! The documents' tests, in one program: each module's head states its goal and its method.

mod ahead_cost;
mod attachments;
mod backup;
mod backup_runs;
mod backup_timelines;
mod broken_off;
mod common;
mod descriptors;
mod documents;
mod idle_races;
mod many;
mod out_of_line;
mod path_bytes;
mod power_loss;
mod purge;
mod read_ahead;
mod replaced;
mod revision_ids;
mod revs_limit;
mod subscribers;
mod tails;
mod upgrade;
mod validation;
