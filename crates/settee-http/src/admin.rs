//! The server's own endpoints: its welcome and state, sessions, the node and its configuration, figures, tasks,
//! backups.

pub(crate) mod backup;
pub(crate) mod cluster;
pub(crate) mod node;
mod prometheus;
pub(crate) mod root;
pub(crate) mod session;
mod stats;
pub(crate) mod tasks;
