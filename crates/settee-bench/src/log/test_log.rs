//! The log under test: its engine, options, values and directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{Engine, EngineKind, EngineOptions, Env};
use settee_log::{Log, LogOptions};

use crate::{Error, Result, space};

/// A log under test.
pub(super) struct TestLog {
    pub(super) log: Arc<Log>,
    pub(super) directory: PathBuf,
}

/// Opens a log in `directory`, which is created if necessary.
pub(super) async fn open(env: &Env, directory: &Path, options: LogOptions) -> Result<Log> {
    std::fs::create_dir_all(directory).map_err(|error| Error::file(directory, error))?;
    let (log, _) = Log::open(env, directory, options, |_, _| {}).await.map_err(refused)?;
    Ok(log)
}

/// Starts the engine for the log's I/O.
pub(super) fn start_engine(kind: EngineKind) -> Result<Arc<dyn Engine>> {
    EngineOptions { kind, ..EngineOptions::default() }
        .start()
        .map_err(|error| Error::wrong("engine", error.to_string()))
}

/// Options of a log for a stream. From the start its segments are as large as those of a log of 1 GiB and
/// more, since the peer's file is preallocated.
pub(super) fn stream_options(direct: bool) -> LogOptions {
    let options = LogOptions::default();
    LogOptions { direct, segment_bytes_min: options.segment_bytes_max, ..options }
}

/// Removes a directory and syncs the file system, so that this work doesn't affect the next measurement.
pub(super) fn remove_directory(directory: &Path) -> Result<()> {
    let failed = |error| Error::file(directory, error);
    std::fs::remove_dir_all(directory).map_err(failed)?;
    space::sync_file_system(directory.parent().unwrap_or(directory))
}

/// Random bytes of a fixed seed.
pub(super) fn random_bytes(bytes: usize) -> Bytes {
    crate::random::random_bytes(1, bytes).into()
}

/// Converts an error of the log.
pub(super) fn refused(error: impl std::fmt::Display) -> Error {
    Error::wrong("bench log", error.to_string())
}
