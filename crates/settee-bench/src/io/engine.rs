//! The engine and the files under test: starting one, opening the others in direct mode.

use std::io;
use std::path::Path;
use std::sync::Arc;

use settee_io::{DirectMode, Engine, EngineKind, EngineOptions, File, OpenMode, RingUse};

use crate::{Error, Result};

/// Starts an engine, or returns the reason why it can't be started.
pub(crate) fn start_engine(kind: EngineKind, ring_use: Option<RingUse>) -> Result<Arc<dyn Engine>, String> {
    let mut options = EngineOptions { kind, ..EngineOptions::default() };
    if let Some(ring_use) = ring_use {
        options.uring.ring_use = ring_use;
    }
    options.start().map_err(|error: io::Error| format!("no {kind} engine: {error}"))
}

/// Opens a file in direct mode, or returns the reason why the file system refuses it.
pub(crate) async fn open_direct(engine: &Arc<dyn Engine>, path: &Path) -> Result<Result<File, String>> {
    let file = File::open(engine, path, OpenMode::Read).await.map_err(failed)?;
    Ok(set_direct(&file).await?.map(|()| file))
}

/// Switches a file to direct mode, or returns the reason why that fails.
pub(crate) async fn set_direct(file: &File) -> Result<Result<(), String>> {
    Ok(match file.set_direct(true).await.map_err(failed)? {
        DirectMode::Direct(_) => Ok(()),
        DirectMode::Buffered => Err("the file stayed buffered".to_owned()),
        DirectMode::Refused(reason) => Err(format!("no direct mode: {reason}")),
    })
}

/// Converts an error of the engine or the files.
pub(crate) fn failed(error: impl std::fmt::Display) -> Error {
    Error::wrong("bench io", error.to_string())
}
