//! Work that would delay the other tasks of its thread.

use hyper::StatusCode;

use crate::error::ApiError;

/// Runs work on a blocking thread. If the future is dropped, the work is done anyway, so it holds the permits of
/// its memory itself.
///
/// # Errors
/// 500 if it panics.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string())
    })
}
