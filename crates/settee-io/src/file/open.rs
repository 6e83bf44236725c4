//! An open file: its descriptors, and which of them a request takes.
//!
//! The buffered descriptor goes through the page cache. The direct one is opened when direct mode is first
//! switched on. A request takes one of the two by the mode at that moment and by its own alignment.
//!
//! Invariants:
//! 1. The direct descriptor is set once and stays open as long as the file.
//! 2. Each descriptor is counted as an open file until it is closed.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};

use crate::engine::descriptors::{DescriptorPermit, Descriptors};
use crate::engine::operation::{Descriptor, OpenMode, Operation, OperationKind, Outcome};
use crate::engine::request::{Engine, stopped, submit};
use crate::{Alignment, Error, OFFSET_MAX, Result};

/// How a handle reads and writes; the result of [`File::set_direct`](crate::File::set_direct).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectMode {
    /// Through the page cache, as requested.
    Buffered,
    /// With direct I/O, for requests whose offset and length are multiples of this alignment.
    Direct(Alignment),
    /// Through the page cache, because direct I/O isn't available for this file, for this reason.
    Refused(String),
}

/// An open file: its descriptors, and whether it is in direct mode.
pub(crate) struct OpenFile {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) path: Arc<Path>,
    pub(crate) descriptor: Arc<Descriptor>,
    /// The result of [`Engine::reads_in_place`].
    pub(crate) reads_in_place: bool,
    /// The direct descriptor. Set once and kept, since after a change of the mode requests on it may be in
    /// flight.
    direct: OnceLock<Direct>,
    /// Whether new requests use it.
    is_direct: AtomicBool,
    /// Whether its descriptors may come from the reserve.
    uses_reserve: bool,
    /// Counts `descriptor` as an open file.
    _permit: Option<DescriptorPermit>,
}

struct Direct {
    descriptor: Arc<Descriptor>,
    alignment: Alignment,
    /// Counts `descriptor` as an open file.
    _permit: Option<DescriptorPermit>,
}

impl OpenFile {
    /// Opens `path`, in buffered mode. With `uses_reserve`, its descriptors may come from the reserve.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn open(
        engine: &Arc<dyn Engine>,
        path: &Path,
        mode: OpenMode,
        uses_reserve: bool,
    ) -> Result<OpenFile> {
        let acquire = |descriptors: &Arc<Descriptors>| descriptors.acquire(uses_reserve);
        let permit = engine.descriptors().map(acquire).transpose();
        let permit = permit.map_err(|error| Error::io(OperationKind::Open, path, error))?;
        let operation = Operation::Open { path: path.to_path_buf(), mode };
        let Outcome::Opened(descriptor) = submit(&**engine, path, operation).await? else {
            unreachable!("open returns a descriptor");
        };
        Ok(OpenFile {
            engine: engine.clone(),
            path: path.into(),
            descriptor: Arc::new(descriptor),
            reads_in_place: engine.reads_in_place(),
            direct: OnceLock::new(),
            is_direct: AtomicBool::new(false),
            uses_reserve,
            _permit: permit,
        })
    }

    /// Switches later requests to direct or to buffered mode; see
    /// [`File::set_direct`](crate::File::set_direct).
    ///
    /// # Errors
    /// A system error that doesn't concern direct I/O; the mode is then unchanged.
    pub(crate) async fn set_direct(&self, direct: bool) -> Result<DirectMode> {
        if direct && self.direct.get().is_none() {
            // A new segment needs both of its descriptors, so this one may come from the reserve too.
            let acquire = |descriptors: &Arc<Descriptors>| descriptors.acquire(self.uses_reserve);
            let permit = self.engine.descriptors().map(acquire).transpose();
            let permit = permit.map_err(|error| Error::io(OperationKind::OpenDirect, &self.path, error))?;
            let open = Operation::OpenDirect { file: self.descriptor.clone() };
            match submit(&*self.engine, &self.path, open).await {
                Ok(Outcome::OpenedDirect { descriptor, alignment }) => {
                    // If another task was first, this descriptor is dropped unused.
                    let _ = self.direct.set(Direct {
                        descriptor: Arc::new(descriptor),
                        alignment,
                        _permit: permit,
                    });
                }
                Ok(_) => unreachable!("open for direct I/O returns a descriptor"),
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::Unsupported => {
                    let why = source.to_string();
                    self.log_refusal(&why);
                    return Ok(DirectMode::Refused(why));
                }
                Err(error) => return Err(error),
            }
        }
        self.is_direct.store(direct, Ordering::Relaxed);
        Ok(self.direct().map_or(DirectMode::Buffered, DirectMode::Direct))
    }

    /// The alignment of direct mode; `None` in buffered mode.
    pub(crate) fn direct(&self) -> Option<Alignment> {
        // Relaxed: a request that sees an older mode takes the other descriptor, which serves as well.
        if !self.is_direct.load(Ordering::Relaxed) {
            return None;
        }
        self.direct.get().map(|direct| direct.alignment)
    }

    /// Returns the alignment of direct mode if the range is aligned to it and ends within [`OFFSET_MAX`].
    pub(crate) fn direct_for(&self, offset: u64, length: usize) -> Option<Alignment> {
        let is_in_files = offset.checked_add(length as u64).is_some_and(|end| end <= OFFSET_MAX);
        self.direct()
            .filter(|alignment| is_in_files && alignment.divides(offset) && alignment.divides(length as u64))
    }

    /// Returns the descriptor for direct I/O.
    ///
    /// # Panics
    /// If direct mode was never on.
    pub(crate) fn direct_descriptor(&self) -> Arc<Descriptor> {
        self.direct.get().expect("direct mode has a descriptor").descriptor.clone()
    }

    /// Whether the error of a direct request means that the file system has no direct I/O, at least for this
    /// request. If so, switches the handle to buffered mode.
    pub(crate) fn is_refusal(&self, error: &io::Error) -> bool {
        let refused = matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported);
        if refused {
            self.is_direct.store(false, Ordering::Relaxed);
            self.log_refusal(&error.to_string());
        }
        refused
    }

    fn log_refusal(&self, why: &str) {
        static FIRST: Once = Once::new();
        FIRST.call_once(|| {
            tracing::warn!(path = %self.path.display(), why, "no direct I/O for this file: it goes through the page cache");
        });
        tracing::debug!(path = %self.path.display(), why, "no direct I/O");
    }

    /// The error of a request of this kind whose engine was dropped.
    pub(crate) fn stopped(&self, kind: OperationKind) -> Error {
        Error::io(kind, &self.path, stopped())
    }
}
