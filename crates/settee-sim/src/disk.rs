//! The simulated disk, as tests hold it: what it is to do, what it did, what it holds.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_io::OperationKind;

use crate::files::Files;
use crate::machine::{Failure, Machine, Plan, PowerCut};

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
    /// EMFILE: the process has no file descriptor left. Only operations that open something fail so.
    NoDescriptor,
}

/// A simulated disk, and the machine around it. Clones are the same disk, so that what a clone
/// is told holds for a run under way. What it does by itself: short reads and writes, now and
/// then, and delays of 10 µs to 2 ms, so that operations submitted together finish in any order.
///
/// Operations are counted from 0 in the order in which they take effect; `Sync`, `SyncFolder`
/// and `Write` with `sync` count as syncs. For one seed and one program the order is always the
/// same, up to the first planned failure or power loss.
#[derive(Debug, Clone)]
pub struct SimDisk(pub(crate) Arc<Machine>);

/// # Planning
impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> SimDisk {
        let plan = Plan {
            power_cut: None,
            failures: Vec::new(),
            short_reads: 0.05,
            short_writes: 0.05,
            delay_us: 10..=2_000,
            stalls: 0.0,
            stall_us: 50_000..=5_000_000,
            stalled: |_| true,
            capacity: None,
            refuses_writes: false,
            has_descriptors: true,
            powersafe_overwrite: false,
            ignore_syncs: false,
            ignore_syncs_of: None,
            ignore_folder_syncs: false,
        };
        SimDisk(Machine::new(seed, plan, Files::new()))
    }

    /// The power goes at the sync with this index, which makes nothing durable. (The write of a
    /// `Write` with `sync` is then one that was never synced.) An index that no sync has is
    /// no power cut.
    pub fn crash_at_sync(self, index: u64) -> SimDisk {
        self.plan(|plan| plan.power_cut = Some(PowerCut::AtSync(index)))
    }

    /// The power goes after the sync with this index: all that it covers is durable, but nobody
    /// was told.
    pub fn crash_after_sync(self, index: u64) -> SimDisk {
        self.plan(|plan| plan.power_cut = Some(PowerCut::AfterSync(index)))
    }

    /// The power goes while the operation with this index, of any kind, is under way: it may
    /// have happened, or a part of it, or nothing. A sync has made nothing durable.
    pub fn crash_at_operation(self, index: u64) -> SimDisk {
        self.plan(|plan| plan.power_cut = Some(PowerCut::AtOperation(index)))
    }

    /// The operation with this index fails. Several can be planned.
    ///
    /// A failed write leaves any part of its range written. What a failed sync should have
    /// covered is on the medium or not as the seed decides, and no later sync covers it.
    pub fn fail_operation(self, index: u64, fault: Fault) -> SimDisk {
        self.plan(|plan| plan.failures.push(Failure { kind: None, index, fault }))
    }

    /// The operation with this index among those of its kind fails, as
    /// [`SimDisk::fail_operation`] has it.
    pub fn fail(self, kind: OperationKind, index: u64, fault: Fault) -> SimDisk {
        self.plan(|plan| plan.failures.push(Failure { kind: Some(kind), index, fault }))
    }

    /// Reads give less than was asked for, but at least one byte, with this probability (0.05).
    pub fn short_reads(self, probability: f64) -> SimDisk {
        self.plan(|plan| plan.short_reads = probability)
    }

    /// Writes take less than was given, but at least one byte, with this probability (0.05). A
    /// short `Write` with `sync` syncs nothing.
    pub fn short_writes(self, probability: f64) -> SimDisk {
        self.plan(|plan| plan.short_writes = probability)
    }

    /// Each operation takes this many microseconds of virtual time (10 to 2,000).
    pub fn delays_us(self, range: RangeInclusive<u64>) -> SimDisk {
        self.plan(|plan| plan.delay_us = range)
    }

    /// An operation stalls with this probability (0): it takes 50 ms to 5 s longer, unless
    /// [`SimDisk::stalls_us`] says otherwise.
    pub fn stalls(self, probability: f64) -> SimDisk {
        self.plan(|plan| plan.stalls = probability)
    }

    /// A stall takes this many microseconds (50,000 to 5,000,000).
    pub fn stalls_us(self, range: RangeInclusive<u64>) -> SimDisk {
        self.plan(|plan| plan.stall_us = range)
    }

    /// Only operations of these kinds stall (all do).
    pub fn stalls_only(self, stalled: fn(OperationKind) -> bool) -> SimDisk {
        self.plan(|plan| plan.stalled = stalled)
    }

    /// Files, by their lengths, may take this many bytes in all: growing beyond fails with
    /// `StorageFull`, a write after it wrote what fits. Removing and cutting files gives room
    /// back. `None`, as at first, is no limit.
    pub fn capacity(self, bytes: Option<u64>) -> SimDisk {
        self.plan(|plan| plan.capacity = bytes)
    }

    /// Whether every write fails with `StorageFull`, after any part of it was written, while room can
    /// be reserved: as on a file system whose fallocate(2) promises nothing, once it is full.
    pub fn refuses_writes(self, refuses: bool) -> SimDisk {
        self.plan(|plan| plan.refuses_writes = refuses)
    }

    /// Whether the process has file descriptors left. Without any, whatever opens a file or a folder
    /// fails with EMFILE and does nothing.
    pub fn has_descriptors(self, has: bool) -> SimDisk {
        self.plan(|plan| plan.has_descriptors = has)
    }

    /// Whether a write is no danger to the other bytes of the sectors in which it begins and
    /// ends. Without it, as at first, such a sector may be garbled whole, the part that was
    /// synced long ago included; with it only the bytes written since.
    pub fn powersafe_overwrite(self, powersafe: bool) -> SimDisk {
        self.plan(|plan| plan.powersafe_overwrite = powersafe)
    }

    /// Planted fault: syncs of files succeed and make nothing durable. For showing that a test
    /// finds a missing sync.
    pub fn ignore_syncs(self, ignore: bool) -> SimDisk {
        self.plan(|plan| plan.ignore_syncs = ignore)
    }

    /// Planted fault: as [`SimDisk::ignore_syncs`], of those files alone whose path is one of these
    /// when they are opened; a write that syncs itself makes its own bytes durable.
    pub fn ignore_syncs_of(self, ignored: fn(&Path) -> bool) -> SimDisk {
        self.plan(|plan| plan.ignore_syncs_of = Some(ignored))
    }

    /// Planted fault: syncs of folders succeed and make nothing durable.
    pub fn ignore_folder_syncs(self, ignore: bool) -> SimDisk {
        self.plan(|plan| plan.ignore_folder_syncs = ignore)
    }

    fn plan(self, change: impl FnOnce(&mut Plan)) -> SimDisk {
        change(&mut self.0.state().plan);
        self
    }
}

/// # Power
impl SimDisk {
    /// The power goes now. Operations in flight take effect, unsynced, or don't, as the seed
    /// decides; nothing runs on this disk any more.
    pub fn cut_power(&self) {
        self.0.state().cut_power();
    }

    /// The disk after the power came back, on which nothing is open and all is durable. It
    /// behaves as this one does, but no failure and no power cut is planned, and its seed is
    /// another. Cuts the power where it isn't lost yet. Always gives the same for the same run.
    pub fn after_power_loss(&self) -> SimDisk {
        SimDisk(self.0.after_power_loss())
    }

    /// Whether the power was cut.
    pub fn is_power_lost(&self) -> bool {
        self.0.state().power_lost
    }
}

/// # What happened
impl SimDisk {
    /// The seed.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Syncs so far.
    pub fn sync_count(&self) -> u64 {
        self.0.state().counts.syncs
    }

    /// Operations of any kind so far.
    pub fn operation_count(&self) -> u64 {
        self.0.state().counts.all
    }

    /// Operations of one kind so far. (Not every `Write` is a sync: see
    /// [`SimDisk::sync_count`].)
    pub fn count_of(&self, kind: OperationKind) -> u64 {
        self.0.state().counts.by_kind.get(&kind).copied().unwrap_or(0)
    }

    /// A hash over every operation so far, its time and its result. Two runs of one program with
    /// one seed have the same, unless the program depends on something outside the simulation.
    pub fn trace_hash(&self) -> u64 {
        self.0.state().trace_hash
    }
}

/// # The files, behind the program's back
impl SimDisk {
    /// The paths of all files, without the leading `/`, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.state().files.paths()
    }

    /// What a file holds, as a program sees it.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.0.state().files.read(path.as_ref()).map(<[u8]>::to_vec)
    }

    /// Replaces what a file holds, or creates it with the folders above it; the file's bytes and
    /// all names on the disk are durable at once. For damaging files between two runs.
    ///
    /// # Panics
    /// Where the path is a folder, or leads through a file.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) {
        let path = path.as_ref();
        let result = self.0.state().files.replace(path, bytes.into());
        result.unwrap_or_else(|error| panic!("no file can be at {}: {error}", path.display()));
    }

    /// Changes a file's bytes in place, durably.
    ///
    /// # Panics
    /// Where there is no such file.
    pub fn damage_file(&self, path: impl AsRef<Path>, damage: impl FnOnce(&mut Vec<u8>)) {
        let path = path.as_ref();
        let mut bytes = self.read_file(path).unwrap_or_else(|| panic!("no file is at {}", path.display()));
        damage(&mut bytes);
        self.write_file(path, bytes);
    }
}
