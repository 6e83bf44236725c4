//! The state of a server's databases, which all operations on them share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use settee_io::{Env, File};
use settee_store::Store;

use super::data_directory::directory_of;
use super::limits::StoreResources;
use super::options::DatabasesOptions;
use super::slots::Slots;
use super::spool::Spools;
use super::tasks::Tasks;
use crate::events::Updates;
use crate::rules::Rules;
use crate::stats::{DatabaseStats, Stats};
use crate::{ErrorKind, Result};

/// The databases' slots, their catalogue, and what they share.
pub(super) struct DatabasesInner {
    pub(super) env: Env,
    pub(super) directory: PathBuf,
    pub(super) options: DatabasesOptions,
    pub(super) resources: StoreResources,
    pub(super) rules: Arc<Rules>,
    pub(super) catalogue: Store,
    pub(super) slots: Mutex<Slots>,
    pub(super) updates: Updates,
    pub(super) tasks: Tasks,
    pub(super) spools: Arc<Spools>,
    /// Held during a backup.
    pub(super) backup: tokio::sync::Mutex<()>,
    /// The data directory's lock, held until drop.
    pub(super) _lock: File,
}

impl DatabasesInner {
    pub(super) fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of the database with this number.
    pub(super) fn database_directory(&self, number: u64) -> PathBuf {
        directory_of(&self.directory, number)
    }

    pub(super) fn stats(&self) -> Stats {
        // Under one lock hold, so that a database's counters are among the open or the closed ones, not both.
        let (database_count, open, closed_stats) = {
            let slots = self.lock();
            (slots.names.len(), slots.open_databases(), slots.closed_stats())
        };
        let catalogue = DatabaseStats {
            log: self.catalogue.stats(),
            store: self.catalogue.store_stats(),
            snapshot_count: 0,
        };
        let of_catalogue = (catalogue, self.catalogue.health().is_err());
        let is_stopped = |health: Result<()>| health.is_err_and(|error| error.kind() != ErrorKind::NotFound);
        let of_databases =
            open.iter().map(|database| (database.database_stats(), is_stopped(database.health())));
        let logs = std::iter::once(of_catalogue).chain(of_databases);
        let (engine, buffers) = (self.env.engine.name(), self.env.buffers.stats());
        let stats = Stats::new(engine, buffers, closed_stats, logs);
        let index_memory_bytes_max = self.options.store.index_memory_bytes_max as u64;
        Stats { database_count, open_count: open.len(), index_memory_bytes_max, ..stats }
    }
}
