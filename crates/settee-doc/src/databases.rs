//! The server's databases: a catalogue from names to directories, itself a store.
//!
//! Creating or deleting a database is one commit in the catalogue (`catalogue`). A database's directory is
//! created with its first write. A deletion leaves a tombstone with the directory's number in the catalogue,
//! which is removed after the directory. A database is opened on request and closed when it is idle
//! (`opening`): there may be many more than are open. `slots` holds the part of this state that is in
//! memory.
//!
//! Invariants:
//! 1. A database exists if and only if the catalogue's persisted state names it.
//! 2. A directory is removed only if a tombstone records that its database was deleted: directories that the
//!    catalogue merely doesn't name, since it is damaged or old, stay.
//! 3. The number of a directory is not reused while that directory or its tombstone exists.
//! 4. A directory is used by one opening of its database at a time, and removed after the last.

mod backup;
mod catalogue;
mod catalogue_entry;
mod data_directory;
mod event_feed;
mod limits;
mod names;
mod offline;
mod offline_catalogue;
mod opening;
mod options;
mod restore;
mod runs;
mod salvage;
mod server;
mod slots;
mod spool;
mod state;
mod tasks;
mod upgrade;

pub use backup::{BackupProgress, BackupSummary};
pub use limits::StoreLimits;
pub use names::{NAME_SIZE_MAX, NameRange, check_database_name};
pub use offline::{OfflineDatabases, OfflineEvent};
pub use options::DatabasesOptions;
pub use restore::{RestoreSummary, restore};
pub use runs::FailedDatabase;
pub use server::Databases;
pub use spool::{Spool, SpoolError, Spools};
pub use tasks::CompactionTask;
pub use upgrade::{UpgradeEvent, UpgradeStep, UpgradeSummary, upgrade};
