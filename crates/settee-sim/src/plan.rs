//! The plan of a disk: its settings, the failures and the power cut, and the counts of operations by which
//! these are placed.
//!
//! Invariant: an operation is counted once, when it takes effect; its indices start at 0.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use settee_io::OperationKind;

/// The error with which an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
    /// EMFILE: the process has no file descriptor left. Only operations that open something fail with it.
    NoDescriptor,
}

impl Fault {
    /// The error that the operation returns.
    pub(crate) fn error(self) -> io::Error {
        // Linux's error numbers; their kinds follow from them.
        io::Error::from_raw_os_error(match self {
            Fault::Io => 5,
            Fault::NoSpace => 28,
            Fault::NoDescriptor => 24,
        })
    }
}

/// When the power is cut. Indices start at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PowerCut {
    AtSync(u64),
    AfterSync(u64),
    AtOperation(u64),
}

/// A planned failure: of the operation with this index among its kind, or among all if `kind` is `None`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedFailure {
    pub(crate) kind: Option<OperationKind>,
    pub(crate) index: u64,
    pub(crate) fault: Fault,
}

/// The disk's settings and planned faults; see the methods of [`crate::SimDisk`].
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) power_cut: Option<PowerCut>,
    pub(crate) failures: Vec<PlannedFailure>,
    /// Files whose next opening fails.
    pub(crate) unopenable: BTreeMap<PathBuf, Fault>,
    pub(crate) cached_reads: f64,
    pub(crate) short_reads: f64,
    pub(crate) short_writes: f64,
    pub(crate) delay_us: RangeInclusive<u64>,
    pub(crate) stalls: f64,
    pub(crate) stall_us: RangeInclusive<u64>,
    pub(crate) stalled: fn(OperationKind) -> bool,
    pub(crate) capacity: Option<u64>,
    pub(crate) refuses_writes: bool,
    pub(crate) has_descriptors: bool,
    pub(crate) powersafe_overwrite: bool,
    pub(crate) ignore_syncs: bool,
    pub(crate) ignore_syncs_of: Option<fn(&Path) -> bool>,
    pub(crate) ignore_directory_syncs: bool,
}

impl Plan {
    pub(crate) fn is_cut_at(&self, position: &Position) -> bool {
        match self.power_cut {
            Some(PowerCut::AtSync(index)) => position.sync_index == Some(index),
            Some(PowerCut::AtOperation(index)) => position.index == index,
            Some(PowerCut::AfterSync(_)) | None => false,
        }
    }

    pub(crate) fn is_cut_after(&self, position: &Position) -> bool {
        matches!(self.power_cut, Some(PowerCut::AfterSync(index)) if position.sync_index == Some(index))
    }

    pub(crate) fn fault_at(&self, position: &Position) -> Option<Fault> {
        let is_at = |failure: &&PlannedFailure| match failure.kind {
            Some(kind) => kind == position.kind && failure.index == position.kind_index,
            None => failure.index == position.index,
        };
        self.failures.iter().find(is_at).map(|failure| failure.fault)
    }
}

/// Numbers of the operations that took effect so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) all: u64,
    pub(crate) syncs: u64,
    pub(crate) by_kind: BTreeMap<OperationKind, u64>,
}

/// The index of an operation among all, among its kind, and among the syncs if it is one.
#[derive(Debug)]
pub(crate) struct Position {
    index: u64,
    kind: OperationKind,
    kind_index: u64,
    sync_index: Option<u64>,
}

impl Counts {
    pub(crate) fn count(&mut self, kind: OperationKind, is_sync: bool) -> Position {
        let of_kind = self.by_kind.entry(kind).or_default();
        let sync_index = is_sync.then_some(self.syncs);
        let position = Position { index: self.all, kind, kind_index: *of_kind, sync_index };
        self.all += 1;
        self.syncs += u64::from(is_sync);
        *of_kind += 1;
        position
    }
}
