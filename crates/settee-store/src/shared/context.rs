//! A store's directory, environment, options and caches: what exists before its log is open.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use settee_io::Env;
use settee_io::directory::{self, DirectorySyncs};
use settee_log::{ChunkCache, FileNumbers};
use settee_tree::{NodeCache, TreeOptions};

use crate::budget::ReadAheadBudget;
use crate::options::StoreOptions;

/// Bytes read ahead by the scans of a store that was given no budget.
const OWN_READ_AHEAD_BYTES: u64 = 16 << 20;

/// A store's directory, environment, options and caches.
pub(crate) struct StoreContext {
    pub env: Env,
    pub directory: PathBuf,
    pub options: StoreOptions,
    pub cache: Arc<NodeCache>,
    pub chunks: Option<Arc<ChunkCache>>,
    pub read_ahead: Arc<ReadAheadBudget>,
    /// See [`StoreStats::rebuild_count`](crate::StoreStats::rebuild_count).
    pub rebuild_count: AtomicU64,
    /// See [`StoreStats::write_lookup_count`](crate::StoreStats::write_lookup_count).
    pub write_lookup_count: Arc<AtomicU64>,
    /// Syncs of the store's directory, shared with the log once the log is locked.
    pub syncs: OnceLock<Arc<DirectorySyncs>>,
    /// Numbers of new files, shared with the log.
    pub file_numbers: OnceLock<Arc<FileNumbers>>,
}

impl StoreContext {
    pub(crate) fn new(
        env: &Env,
        directory: &Path,
        options: StoreOptions,
        cache: Arc<NodeCache>,
        chunks: Option<Arc<ChunkCache>>,
    ) -> StoreContext {
        let (env, directory) = (env.clone(), directory.to_path_buf());
        let (rebuild_count, syncs) = (AtomicU64::new(0), OnceLock::new());
        let write_lookup_count = Arc::default();
        let own = || Arc::new(ReadAheadBudget::new(OWN_READ_AHEAD_BYTES));
        let read_ahead = options.read_ahead.clone().unwrap_or_else(own);
        StoreContext {
            env,
            directory,
            options,
            cache,
            chunks,
            read_ahead,
            rebuild_count,
            write_lookup_count,
            syncs,
            file_numbers: OnceLock::new(),
        }
    }

    /// A number for the name of a new file.
    pub(crate) fn new_file_number(&self) -> u32 {
        self.file_numbers.get_or_init(Arc::default).next()
    }

    pub(crate) fn syncs(&self) -> Arc<DirectorySyncs> {
        self.syncs.get_or_init(|| Arc::new(DirectorySyncs::new(&self.directory))).clone()
    }

    /// Puts the directory's entries on stable storage.
    pub(crate) async fn sync_directory(&self) -> settee_io::Result<()> {
        self.syncs().sync(&*self.env.engine).await
    }

    pub(crate) fn tree_options(&self, incarnation: &[u8; 16]) -> TreeOptions {
        TreeOptions {
            incarnation: Some(*incarnation),
            direct: self.options.log.direct,
            ..TreeOptions::new(self.cache.clone())
        }
    }

    /// Removes a file that no manifest names. If that fails, the next open removes it.
    pub(crate) async fn remove_file(&self, path: &Path) {
        match directory::remove(&*self.env.engine, path).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(%error, "an unneeded file could not be removed; the next open removes it");
            }
            _ => {}
        }
    }
}
