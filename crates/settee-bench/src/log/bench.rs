//! The state that the parts of a run share: the runtime, the engine and the directory of the logs.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use settee_io::{BufferPool, Engine, Env, PoolOptions};
use settee_log::LogOptions;
use tokio::runtime::Runtime;

use super::config::Config;
use super::test_log::{TestLog, open, refused, remove_directory, start_engine};
use crate::{Error, Result, space};

/// The state that the parts of a run share.
pub(super) struct Bench {
    pub(super) config: Config,
    directory: space::Directory,
    runtime: Runtime,
    engine: Arc<dyn Engine>,
    log_count: Cell<usize>,
}

impl Bench {
    pub(super) fn start(config: Config) -> Result<Bench> {
        let directory = space::Directory::new(Some(&config.directory))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::file(&config.directory, error))?;
        let engine = start_engine(config.engine)?;
        Ok(Bench { config, directory, runtime, engine, log_count: Cell::new(0) })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// An environment with a pool of `pool_bytes` for accepted bytes that aren't written yet.
    pub(super) fn env(&self, pool_bytes: usize) -> Env {
        let env = Env::with_engine(self.runtime.handle().clone(), self.engine.clone());
        Env { buffers: BufferPool::new(PoolOptions { bytes_max: pool_bytes }), ..env }
    }

    /// An environment with the default pool.
    pub(super) fn default_env(&self) -> Env {
        Env::with_engine(self.runtime.handle().clone(), self.engine.clone())
    }

    /// Opens an empty log in a new directory.
    pub(super) fn open(&self, env: &Env, options: LogOptions) -> Result<TestLog> {
        let number = self.log_count.replace(self.log_count.get() + 1);
        let directory = self.path().join(format!("log-{number}"));
        let log = self.runtime.block_on(open(env, &directory, options))?;
        Ok(TestLog { log: Arc::new(log), directory })
    }

    /// Closes the log and removes its files.
    pub(super) fn remove(&self, test_log: TestLog) -> Result<()> {
        let closed = self.runtime.block_on(test_log.log.close());
        remove_directory(&test_log.directory)?;
        closed.map_err(refused)
    }

    /// Runs `task` as a task of the runtime, as a user's code would.
    pub(super) fn in_task<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = self.runtime.spawn(task);
        self.runtime.block_on(task).unwrap_or_else(|error| Err(refused(error)))
    }
}
