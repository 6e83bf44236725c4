//! The engine of the simulation: executes operations, and makes them fail as planned.
//!
//! A submitted operation takes effect and completes at one moment, after a random delay; operations in flight
//! together do so in any order. The set of changes that a sync covers is determined when it is submitted.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use settee_io::{
    AlignedBuffer, Alignment, Descriptor, Engine, OpenMode, Operation, OperationKind, Outcome, Request,
    SyncFailed,
};

use crate::content::SECTOR_SIZE;
use crate::files::{File, write_within};
use crate::machine::{Event, Machine, MachineState};
use crate::names::NodeId;
use crate::plan::Fault;
use crate::random::Generator;

/// An open file of the simulation.
struct SimHandle {
    machine: Arc<()>,
    node: NodeId,
    is_writable: bool,
    /// Whether requests must be aligned, as with O_DIRECT.
    is_direct: bool,
    /// Whether its syncs make nothing durable, by a failpoint.
    is_never_synced: bool,
    /// Identifies the owner of the file's lock; dropped with the descriptor.
    lock_token: Arc<()>,
    /// Number of the file's failed syncs that were reported by this descriptor. Each descriptor reports each
    /// failure once, as in Linux (fsync(2), errseq).
    reported_failures: AtomicU64,
}

impl SimHandle {
    /// If a direct request isn't aligned, which a real file system would refuse.
    fn check_aligned(&self, offset: u64, length: usize, memory: *const u8) {
        if self.is_direct {
            let all = [offset, length as u64, memory.addr() as u64];
            assert!(
                all.iter().all(|at| alignment().divides(*at)),
                "unaligned direct request: {offset}+{length}"
            );
        }
    }
}

/// The alignment for direct I/O: a sector.
fn alignment() -> Alignment {
    Alignment::new(SECTOR_SIZE as usize).expect("a power of two")
}

/// Runs operations on a simulated machine.
#[derive(Debug)]
pub(crate) struct SimEngine(pub(crate) Arc<Machine>);

impl Engine for SimEngine {
    fn name(&self) -> &'static str {
        "simulation"
    }

    fn submit(&self, request: Request) {
        let mut state = self.0.state();
        let Request { operation, completion } = request;
        if state.power_lost {
            return completion.abandon();
        }
        let due_ns = state.now_ns + state.draw_delay_ns(operation.kind());
        let covered = state.files.seq();
        state.schedule(due_ns, Event::Operation { operation, completion, covered });
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        let mut state = self.0.state();
        let covered = state.files.seq();
        if !state.power_lost {
            state.now_ns += state.draw_delay_ns(operation.kind());
        }
        state
            .perform(&self.0, operation, covered)
            .unwrap_or_else(|| Err(io::Error::other("the power is lost")))
    }

    fn read_cached(
        &self,
        file: &Descriptor,
        offset: u64,
        buffer: &mut AlignedBuffer,
    ) -> Option<io::Result<()>> {
        let mut state = self.0.state();
        let is_cached = state.plan.cached_reads;
        if state.power_lost || !state.random.chance(is_cached) {
            return None;
        }
        let result = state.read(file, offset, buffer.whole_mut());
        Some(result.map(|count| buffer.set_len(count)))
    }
}

fn is_sync(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Sync { .. } | Operation::SyncDirectory { .. } | Operation::Write { sync: true, .. }
    )
}

/// Removes the sync from a write; returns any other operation unchanged.
fn unsynced(operation: Operation) -> Operation {
    match operation {
        Operation::Write { file, offset, buffer, .. } => {
            Operation::Write { file, offset, buffer, sync: false }
        }
        operation => operation,
    }
}

/// Whether an operation needs a free file descriptor.
fn opens(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Open { .. }
            | Operation::OpenDirect { .. }
            | Operation::SyncDirectory { .. }
            | Operation::List { .. }
    )
}

impl MachineState {
    fn draw_delay_ns(&mut self, kind: OperationKind) -> u64 {
        let stall_us = if self.random.chance(self.plan.stalls) && (self.plan.stalled)(kind) {
            self.random.within(self.plan.stall_us.clone())
        } else {
            0
        };
        (self.random.within(self.plan.delay_us.clone()) + stall_us) * 1000
    }

    /// Counts the operation and executes it, or makes it fail, as planned. Returns `None` if the power is
    /// lost before, during or after it.
    pub(crate) fn perform(
        &mut self,
        machine: &Machine,
        operation: Operation,
        covered: u64,
    ) -> Option<io::Result<Outcome>> {
        if self.power_lost {
            return None;
        }
        let description = self.describe(&operation);
        let position = self.counts.count(operation.kind(), is_sync(&operation));
        let unopenable = match &operation {
            Operation::Open { path, .. } => self.plan.unopenable.remove(path),
            _ => None,
        };
        if self.plan.is_cut_at(&position) {
            self.trace(machine, &description, None);
            let _ = self.execute_unsynced(operation, covered);
            self.cut_power();
            return None;
        }
        let result = match self.fault_of(&operation, self.plan.fault_at(&position).or(unopenable)) {
            Some(Fault::NoDescriptor) => Err(Fault::NoDescriptor.error()),
            // The sync of a refused write is not begun.
            Some(fault) if self.plan.refuses_writes && matches!(operation, Operation::Write { .. }) => {
                Err(self.fail(unsynced(operation), covered, fault.error()))
            }
            Some(fault) => Err(self.fail(operation, covered, fault.error())),
            None => self.execute(operation, covered),
        };
        self.trace(machine, &description, Some(&result));
        if self.plan.is_cut_after(&position) {
            self.cut_power();
            return None;
        }
        Some(result)
    }

    /// Returns the fault of an operation: a planned one, or one that follows from the disk's settings.
    fn fault_of(&self, operation: &Operation, planned: Option<Fault>) -> Option<Fault> {
        let opens = opens(operation);
        let from_settings = match operation {
            _ if opens && !self.plan.has_descriptors => Some(Fault::NoDescriptor),
            Operation::Write { .. } if self.plan.refuses_writes => Some(Fault::NoSpace),
            _ => None,
        };
        planned.filter(|fault| *fault != Fault::NoDescriptor || opens).or(from_settings)
    }

    /// Executes the operation without its sync.
    fn execute_unsynced(&mut self, operation: Operation, covered: u64) -> io::Result<Outcome> {
        match unsynced(operation) {
            operation if is_sync(&operation) => Ok(Outcome::Done),
            operation => self.execute(operation, covered),
        }
    }

    /// Executes the operation.
    pub(crate) fn execute(&mut self, operation: Operation, covered: u64) -> io::Result<Outcome> {
        match operation {
            Operation::Open { path, mode } => {
                let node = self.files.open(&path, mode)?;
                let is_writable = mode != OpenMode::Read;
                let (machine, lock_token) = (self.identity.clone(), Arc::default());
                let reported_failures = self.files.file(node).failed_sync_count.into();
                let is_never_synced = self.plan.ignore_syncs_of.is_some_and(|ignored| ignored(&path));
                let handle = SimHandle {
                    machine,
                    node,
                    is_writable,
                    is_direct: false,
                    is_never_synced,
                    lock_token,
                    reported_failures,
                };
                Ok(Outcome::Opened(Descriptor::Simulated(Box::new(handle))))
            }
            Operation::OpenDirect { file } => {
                let (SimHandle { machine, node, is_writable, is_never_synced, lock_token, .. }, opened) =
                    self.file(&file)?;
                let handle = SimHandle {
                    machine: machine.clone(),
                    node: *node,
                    is_writable: *is_writable,
                    is_direct: true,
                    is_never_synced: *is_never_synced,
                    lock_token: lock_token.clone(),
                    reported_failures: opened.failed_sync_count.into(),
                };
                let descriptor = Descriptor::Simulated(Box::new(handle));
                Ok(Outcome::OpenedDirect { descriptor, alignment: alignment() })
            }
            Operation::Read { file, offset, mut buffer } => {
                let memory = buffer.whole_mut();
                self.file(&file)?.0.check_aligned(offset, memory.len(), memory.as_ptr());
                let count = self.read(&file, offset, memory)?;
                buffer.set_len(count);
                Ok(Outcome::Read { buffer })
            }
            Operation::Write { file, offset, buffer, sync } => {
                self.file(&file)?.0.check_aligned(offset, buffer.len(), buffer.as_ptr());
                self.write(&file, offset, buffer, sync, covered)
            }
            Operation::Sync { file } => {
                self.sync(&file, covered, None)?;
                Ok(Outcome::Done)
            }
            Operation::Allocate { file, offset, length } => {
                let end = offset.checked_add(length).ok_or(ErrorKind::InvalidInput)?;
                self.set_length(&file, |length| length.max(end))
            }
            Operation::SetLength { file, length } => self.set_length(&file, |_| length),
            Operation::Length { file } => Ok(Outcome::Count(self.file(&file)?.1.content.length())),
            Operation::LinkCount { file } => {
                let node = self.file(&file)?.0.node;
                Ok(Outcome::Count(self.files.link_count(node)))
            }
            Operation::Identity { file } => Ok(Outcome::Identity(self.file(&file)?.1.identity())),
            Operation::Lock { file } => {
                let (handle, file) = self.file(&file)?;
                file.lock(&handle.lock_token).map(|()| Outcome::Done)
            }
            Operation::CreateDirectory { path } => self.files.create_directory(&path).map(|()| Outcome::Done),
            Operation::List { path } => self.files.list(&path).map(Outcome::Entries),
            Operation::SyncDirectory { path } => {
                // An ignored sync covers nothing, but fails where a real one would.
                let covered = if self.plan.ignore_directory_syncs { 0 } else { covered };
                self.files.sync_directory(&path, covered).map(|()| Outcome::Done)
            }
            Operation::Remove { path } => self.files.remove(&path).map(|()| Outcome::Done),
            Operation::RemoveDirectory { path } => self.files.remove_directory(&path).map(|()| Outcome::Done),
            Operation::Rename { from, to } => self.files.rename(&from, &to).map(|()| Outcome::Done),
            Operation::Link { from, to } => self.files.link(&from, &to).map(|()| Outcome::Done),
        }
    }

    /// Applies the effects of a failing operation, and returns its error.
    fn fail(&mut self, operation: Operation, covered: u64, error: io::Error) -> io::Error {
        let mut random = Generator::new(self.random.next(), self.counts.all);
        match operation {
            // The write succeeds and its sync fails.
            Operation::Write { file, offset, buffer, sync: true } if random.coin() => {
                let written = self.write(&file, offset, buffer, false, covered);
                let own = written.is_ok().then_some(self.files.seq());
                self.fail_sync(&file, covered, own, &mut random);
                return SyncFailed::wrap(error);
            }
            Operation::Write { file, offset, buffer, .. } => {
                let start = random.within(0..=buffer.len() as u64);
                let end = random.within(start..=buffer.len() as u64);
                let part = buffer.slice(start as usize..end as usize);
                let _ = self.write(&file, offset + start, part, false, covered);
            }
            Operation::Sync { file } => self.fail_sync(&file, covered, None, &mut random),
            Operation::SyncDirectory { path } => self.files.fail_sync_directory(&path, covered, &mut random),
            Operation::Allocate { file, offset, length } => {
                let part = random.within(0..=length);
                let _ = self.set_length(&file, |length| length.max(offset + part));
            }
            _ => {}
        }
        error
    }

    fn read(&mut self, file: &Descriptor, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let (handle, content) = self.file(file)?;
        let is_direct = handle.is_direct;
        let available = content.content.available(offset, buffer.len());
        let count = self.shorten(available, self.plan.short_reads, is_direct);
        let bytes = self.file(file)?.1.content.bytes();
        if count > 0 {
            buffer[..count].copy_from_slice(&bytes[offset as usize..offset as usize + count]);
        }
        Ok(count)
    }

    fn write(
        &mut self,
        file: &Descriptor,
        offset: u64,
        buffer: bytes::Bytes,
        sync: bool,
        covered: u64,
    ) -> io::Result<Outcome> {
        let length = buffer.len();
        if length == 0 {
            return Ok(Outcome::Count(0));
        }
        let is_direct = self.file(file)?.0.is_direct;
        let part = buffer.slice(..self.shorten(length, self.plan.short_writes, is_direct));
        let free_bytes = self.free_bytes();
        let seq = self.files.next_seq();
        let count = write_within(&mut self.writable(file)?.content, seq, offset, part, free_bytes)?;
        // The caller submits the rest of a short write as another request, with its own sync.
        if sync && count == length as u64 {
            self.sync(file, covered, Some(seq)).map_err(SyncFailed::wrap)?;
        }
        Ok(Outcome::Count(count))
    }

    fn sync(&mut self, file: &Descriptor, covered: u64, own: Option<u64>) -> io::Result<()> {
        let is_ignored = self.plan.ignore_syncs;
        let (handle, file) = self.file(file)?;
        if !is_ignored {
            let covered = if handle.is_never_synced { 0 } else { covered };
            file.content.sync(covered, own);
        }
        match handle.reported_failures.swap(file.failed_sync_count, Ordering::Relaxed)
            == file.failed_sync_count
        {
            true => Ok(()),
            false => Err(Fault::Io.error()),
        }
    }

    fn fail_sync(&mut self, file: &Descriptor, covered: u64, own: Option<u64>, random: &mut Generator) {
        let powersafe = self.plan.powersafe_overwrite;
        if let Ok((handle, file)) = self.file(file) {
            file.content.fail_sync(covered, own, random, powersafe);
            file.failed_sync_count += 1;
            handle.reported_failures.store(file.failed_sync_count, Ordering::Relaxed);
        }
    }

    fn set_length(&mut self, file: &Descriptor, to: impl FnOnce(u64) -> u64) -> io::Result<Outcome> {
        let free_bytes = self.free_bytes();
        let seq = self.files.next_seq();
        let content = &mut self.writable(file)?.content;
        let (before, after) = (content.length(), to(content.length()));
        if after.saturating_sub(before) > free_bytes {
            return Err(ErrorKind::StorageFull.into());
        }
        if after != before {
            content.set_length(seq, after);
        }
        Ok(Outcome::Done)
    }

    /// Bytes that are free on the disk.
    fn free_bytes(&self) -> u64 {
        self.plan.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.files.used_bytes()))
    }

    /// Returns how many of `count` bytes are transferred: with direct I/O whole sectors, unless there are
    /// fewer.
    fn shorten(&mut self, count: usize, probability: f64, is_direct: bool) -> usize {
        if count <= 1 || !self.random.chance(probability) {
            return count;
        }
        let short = 1 + self.random.index(count - 1);
        match is_direct {
            true => alignment().down(short as u64).max(SECTOR_SIZE).min(count as u64) as usize,
            false => short,
        }
    }

    fn file<'a>(&'a mut self, descriptor: &'a Descriptor) -> io::Result<(&'a SimHandle, &'a mut File)> {
        let handle = handle(descriptor);
        if !Arc::ptr_eq(&handle.machine, &self.identity) {
            return Err(io::Error::other("the descriptor is from before the power loss"));
        }
        Ok((handle, self.files.file(handle.node)))
    }

    fn writable<'a>(&'a mut self, descriptor: &'a Descriptor) -> io::Result<&'a mut File> {
        let (handle, file) = self.file(descriptor)?;
        if !handle.is_writable {
            return Err(ErrorKind::PermissionDenied.into());
        }
        file.change_count += 1;
        Ok(file)
    }

    fn describe(&self, operation: &Operation) -> String {
        let node = |file: &Descriptor| handle(file).node;
        match operation {
            Operation::Open { path, mode } => format!("open {} {mode:?}", path.display()),
            Operation::OpenDirect { file } => format!("open {} for direct I/O", node(file)),
            Operation::Read { file, offset, buffer } => {
                format!("read {} at {offset}+{}", node(file), buffer.capacity())
            }
            Operation::Write { file, offset, buffer, sync } => {
                let sync = if *sync { " and sync" } else { "" };
                format!("write{sync} {} at {offset}+{}", node(file), buffer.len())
            }
            Operation::Sync { file } => format!("sync {}", node(file)),
            Operation::Allocate { file, offset, length } => {
                format!("allocate {} at {offset}+{length}", node(file))
            }
            Operation::SetLength { file, length } => format!("set length {} to {length}", node(file)),
            Operation::Length { file } => format!("length {}", node(file)),
            Operation::LinkCount { file } => format!("link count {}", node(file)),
            Operation::Identity { file } => format!("identity {}", node(file)),
            Operation::Lock { file } => format!("lock {}", node(file)),
            Operation::Rename { from, to } => format!("rename {} to {}", from.display(), to.display()),
            Operation::Link { from, to } => format!("link {} to {}", from.display(), to.display()),
            Operation::CreateDirectory { path }
            | Operation::List { path }
            | Operation::SyncDirectory { path }
            | Operation::Remove { path }
            | Operation::RemoveDirectory { path } => format!("{} {}", operation.kind(), path.display()),
        }
    }
}

fn handle(descriptor: &Descriptor) -> &SimHandle {
    match descriptor {
        Descriptor::Simulated(handle) => handle.downcast_ref().expect("a descriptor of this simulation"),
        Descriptor::System(_) | Descriptor::Direct { .. } => {
            panic!("a file of the operating system was passed to the simulation")
        }
    }
}
