//! The options of a server's databases.

use settee_store::LogOptions;

use super::limits::StoreLimits;

/// How databases are opened.
#[derive(Debug, Clone, Copy)]
pub struct DatabasesOptions {
    /// The limits of each database's log. They also apply to the catalogue's log, which never uses direct
    /// mode: each of its few small commits would take a block.
    pub log: LogOptions,
    /// Largest number of open databases, at least 1; default 1000. Opening another one closes the least
    /// recently used idle database; if none is idle, the limit is exceeded.
    pub open_databases_max: usize,
    /// Time in seconds after which an idle database is closed, at least 1; default 60.
    pub database_idle_s: u64,
    /// The limits of the databases' indexes and background jobs.
    pub store: StoreLimits,
}

impl Default for DatabasesOptions {
    fn default() -> DatabasesOptions {
        DatabasesOptions {
            log: LogOptions::DEFAULT,
            open_databases_max: 1000,
            database_idle_s: 60,
            store: StoreLimits::default(),
        }
    }
}
