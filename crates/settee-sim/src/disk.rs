//! The simulated disk as tests use it: its planned faults, its counters and its files.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_io::OperationKind;

use crate::files::Files;
use crate::machine::Machine;
use crate::plan::{Fault, Plan, PlannedFailure, PowerCut};

/// A simulated disk, and the machine around it. Clones share the same disk, so settings made on a clone
/// affect a run in progress. By itself the disk produces occasional short reads and writes, and delays of 10
/// µs to 2 ms, so operations in flight together finish in any order.
///
/// Operations are counted from 0 in the order in which they take effect. `Sync`, `SyncDirectory` and `Write`
/// with `sync` count as syncs. For one seed and one program the order is always the same, up to the first
/// planned failure or power loss.
#[derive(Debug, Clone)]
pub struct SimDisk(pub(crate) Arc<Machine>);

/// # Planning
impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> SimDisk {
        let plan = Plan {
            power_cut: None,
            failures: Vec::new(),
            unopenable: BTreeMap::new(),
            cached_reads: 0.5,
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
            ignore_directory_syncs: false,
        };
        SimDisk(Machine::new(seed, plan, Files::new()))
    }

    /// Cuts the power at the sync with this index, which makes nothing durable. (If it is a `Write` with
    /// `sync`, its write was never synced.) If no sync has this index the power is not cut.
    pub fn crash_at_sync(self, index: u64) -> SimDisk {
        self.plan(|plan| plan.power_cut = Some(PowerCut::AtSync(index)))
    }

    /// Cuts the power after the sync with this index: everything that it covers is durable, but its
    /// completion is not reported.
    pub fn crash_after_sync(self, index: u64) -> SimDisk {
        self.plan(|plan| plan.power_cut = Some(PowerCut::AfterSync(index)))
    }

    /// Cuts the power during the operation with this index, of any kind: the operation took effect
    /// completely, partly or not at all. A sync has made nothing durable.
    pub fn crash_at_operation(self, index: u64) -> SimDisk {
        self.plan(|plan| plan.power_cut = Some(PowerCut::AtOperation(index)))
    }

    /// Makes the operation with this index fail. Several failures can be planned.
    ///
    /// A failed write leaves any part of its range written. The seed decides which of the changes that a
    /// failed sync should have covered reach the medium; no later sync covers them.
    pub fn fail_operation(self, index: u64, fault: Fault) -> SimDisk {
        self.plan(|plan| plan.failures.push(PlannedFailure { kind: None, index, fault }))
    }

    /// Makes the operation with this index among those of its kind fail, as [`SimDisk::fail_operation`] does.
    pub fn fail(self, kind: OperationKind, index: u64, fault: Fault) -> SimDisk {
        self.plan(|plan| plan.failures.push(PlannedFailure { kind: Some(kind), index, fault }))
    }

    /// Makes the next opening of the file fail.
    pub fn fail_next_open(self, path: impl Into<PathBuf>, fault: Fault) -> SimDisk {
        self.plan(|plan| _ = plan.unopenable.insert(path.into(), fault))
    }

    /// Whether the file's next opening will fail.
    pub fn fails_to_open(&self, path: impl AsRef<Path>) -> bool {
        self.0.state().plan.unopenable.contains_key(path.as_ref())
    }

    /// Sets the probability that the page cache holds what a buffered read asks for. Default: 0.5.
    pub fn cached_reads(self, probability: f64) -> SimDisk {
        self.plan(|plan| plan.cached_reads = probability)
    }

    /// Sets the probability that a read returns fewer bytes than requested, but at least one. Default: 0.05.
    pub fn short_reads(self, probability: f64) -> SimDisk {
        self.plan(|plan| plan.short_reads = probability)
    }

    /// Sets the probability that a write accepts fewer bytes than given, but at least one. A short `Write`
    /// with `sync` syncs nothing. Default: 0.05.
    pub fn short_writes(self, probability: f64) -> SimDisk {
        self.plan(|plan| plan.short_writes = probability)
    }

    /// Sets the virtual time that each operation takes, in microseconds. Default: 10 to 2,000.
    pub fn delays_us(self, range: RangeInclusive<u64>) -> SimDisk {
        self.plan(|plan| plan.delay_us = range)
    }

    /// Sets the probability that an operation stalls, which makes it longer by the time of
    /// [`SimDisk::stalls_us`]. Default: 0.
    pub fn stalls(self, probability: f64) -> SimDisk {
        self.plan(|plan| plan.stalls = probability)
    }

    /// Sets the duration of a stall in microseconds. Default: 50,000 to 5,000,000.
    pub fn stalls_us(self, range: RangeInclusive<u64>) -> SimDisk {
        self.plan(|plan| plan.stall_us = range)
    }

    /// Restricts stalls to operations of these kinds. Default: all kinds.
    pub fn stalls_only(self, stalled: fn(OperationKind) -> bool) -> SimDisk {
        self.plan(|plan| plan.stalled = stalled)
    }

    /// Sets the capacity of the disk in bytes, for the lengths of all files together. An operation that would
    /// exceed it fails with `StorageFull`; a write first writes the part that fits. Removing and truncating
    /// files frees their bytes. `None`, the default, is no limit.
    pub fn capacity(self, bytes: Option<u64>) -> SimDisk {
        self.plan(|plan| plan.capacity = bytes)
    }

    /// Sets whether every write fails with `StorageFull`, after any part of it was written, while space can
    /// still be reserved: like a full file system whose fallocate(2) guarantees nothing. Default: false.
    pub fn refuses_writes(self, refuses: bool) -> SimDisk {
        self.plan(|plan| plan.refuses_writes = refuses)
    }

    /// Sets whether the process has file descriptors left. If not, every operation that opens a file or a
    /// directory fails with EMFILE and has no effect. Default: true.
    pub fn has_descriptors(self, has: bool) -> SimDisk {
        self.plan(|plan| plan.has_descriptors = has)
    }

    /// Sets whether an unsynced write endangers only the bytes that it writes. If false, a power loss may
    /// garble the whole sectors in which it begins and ends, including bytes synced long before. Default:
    /// false.
    pub fn powersafe_overwrite(self, powersafe: bool) -> SimDisk {
        self.plan(|plan| plan.powersafe_overwrite = powersafe)
    }

    /// Failpoint: syncs of files succeed and make nothing durable. Used to show that a test finds a missing
    /// sync.
    pub fn ignore_syncs(self, ignore: bool) -> SimDisk {
        self.plan(|plan| plan.ignore_syncs = ignore)
    }

    /// Failpoint: as [`SimDisk::ignore_syncs`], only for files for whose path `ignored` returns true when
    /// they are opened. A write that syncs itself makes its own bytes durable.
    pub fn ignore_syncs_of(self, ignored: fn(&Path) -> bool) -> SimDisk {
        self.plan(|plan| plan.ignore_syncs_of = Some(ignored))
    }

    /// Failpoint: syncs of directories succeed and make nothing durable.
    pub fn ignore_directory_syncs(self, ignore: bool) -> SimDisk {
        self.plan(|plan| plan.ignore_directory_syncs = ignore)
    }

    fn plan(self, change: impl FnOnce(&mut Plan)) -> SimDisk {
        change(&mut self.0.state().plan);
        self
    }
}

/// # Power
impl SimDisk {
    /// Cuts the power now. The seed decides which operations in flight take effect, unsynced. Nothing runs on
    /// this disk afterwards.
    pub fn cut_power(&self) {
        self.0.state().cut_power();
    }

    /// Returns the disk after power is restored: no file is open and everything on it is durable. It has the
    /// settings of this disk, but no planned failure or power cut, and another seed. Cuts the power if it is
    /// still on. The same run always returns the same disk.
    pub fn after_power_loss(&self) -> SimDisk {
        SimDisk(self.0.after_power_loss())
    }

    /// Returns whether the power was cut.
    pub fn is_power_lost(&self) -> bool {
        self.0.state().power_lost
    }
}

/// # Counters
impl SimDisk {
    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Returns the number of syncs so far.
    pub fn sync_count(&self) -> u64 {
        self.0.state().counts.syncs
    }

    /// Returns the number of operations of any kind so far.
    pub fn operation_count(&self) -> u64 {
        self.0.state().counts.all
    }

    /// Returns the number of operations of one kind so far. (Not every `Write` is a sync: see
    /// [`SimDisk::sync_count`].)
    pub fn count_of(&self, kind: OperationKind) -> u64 {
        self.0.state().counts.by_kind.get(&kind).copied().unwrap_or(0)
    }

    /// Returns a hash over every operation so far, its time and its result. Two runs of one program with one
    /// seed have the same hash, unless the program depends on something outside the simulation.
    pub fn trace_hash(&self) -> u64 {
        self.0.state().trace_hash
    }
}

/// # Direct access to the files
impl SimDisk {
    /// Returns the paths of all files, without the leading `/`, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.state().files.paths()
    }

    /// Returns a file's contents as a program sees them.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.0.state().files.read(path.as_ref()).map(<[u8]>::to_vec)
    }

    /// Replaces a file's contents, or creates the file and its missing parent directories. The file's bytes
    /// and all names on the disk become durable at once. For damaging files between two runs.
    ///
    /// # Panics
    /// If the path is a directory, or leads through a file.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) {
        let path = path.as_ref();
        let result = self.0.state().files.replace(path, bytes.into());
        result.unwrap_or_else(|error| panic!("cannot write a file at {}: {error}", path.display()));
    }

    /// Changes a file's bytes in place, durably.
    ///
    /// # Panics
    /// If the file doesn't exist.
    pub fn damage_file(&self, path: impl AsRef<Path>, damage: impl FnOnce(&mut Vec<u8>)) {
        let path = path.as_ref();
        let mut bytes =
            self.read_file(path).unwrap_or_else(|| panic!("there is no file at {}", path.display()));
        damage(&mut bytes);
        self.write_file(path, bytes);
    }
}
