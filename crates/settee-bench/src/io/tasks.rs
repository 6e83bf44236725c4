//! Work in other threads and tasks of the runtime.

use tokio::task;

use crate::{Error, Result};

/// Runs blocking work in a separate thread, so that the command can be interrupted.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    task::spawn_blocking(work).await.map_err(ended)?
}

/// Converts the error of a task that panicked or was cancelled.
pub(crate) fn ended(error: task::JoinError) -> Error {
    Error::wrong("measuring", error.to_string())
}
