//! The simulated machine: the medium, the time, and the pending events.
//!
//! One lock guards all of it and is never held while a task runs or is woken. The machine outlives the
//! [`crate::Sim`]s that run on it, as a real one outlives its processes.
//!
//! Invariants:
//! 1. Time never goes backwards, and an event happens at its time or later.
//! 2. Once the power is lost nothing changes any more.
//! 3. A plan draws nothing from the run's random stream: up to the power loss or the failure that it causes,
//!    the run is the same as without it.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use settee_io::{Completion, Operation, OperationKind, Outcome};

use crate::disk::Fault;
use crate::files::Files;
use crate::random::Generator;

/// The random streams of a seed.
const RUN: u64 = 1;
const PROGRAM: u64 = 2;
const POWER_LOSS: u64 = 3;
const NEXT_SEED: u64 = 4;

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

/// An event at a later time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A timer expires.
    Wake(Waker),
    /// An operation takes effect and completes. A sync covers the changes up to `covered`.
    Operation { operation: Operation, completion: Completion, covered: u64 },
}

/// The time at which an event is due, in nanoseconds, and its number.
pub(crate) type EventKey = (u64, u64);

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) seed: u64,
    pub(crate) is_traced: bool,
    state: Mutex<MachineState>,
}

#[derive(Debug)]
pub(crate) struct MachineState {
    pub(crate) plan: Plan,
    pub(crate) files: Files,
    /// Distinguishes this machine's descriptors from those opened before a power loss.
    pub(crate) identity: Arc<()>,
    pub(crate) power_lost: bool,
    pub(crate) counts: Counts,
    /// Makes the choices of the run.
    pub(crate) random: Generator,
    /// The program's random numbers.
    pub(crate) program_random: Generator,
    /// Decides the effects of a power loss.
    pub(crate) loss_random: Generator,
    pub(crate) now_ns: u64,
    pub(crate) trace_hash: u64,
    events: BTreeMap<EventKey, Event>,
    event_count: u64,
}

impl Machine {
    pub(crate) fn new(seed: u64, plan: Plan, files: Files) -> Arc<Machine> {
        let state = MachineState {
            plan,
            files,
            identity: Arc::new(()),
            power_lost: false,
            counts: Counts::default(),
            random: Generator::new(seed, RUN),
            program_random: Generator::new(seed, PROGRAM),
            loss_random: Generator::new(seed, POWER_LOSS),
            now_ns: 0,
            trace_hash: 0xcbf2_9ce4_8422_2325,
            events: BTreeMap::new(),
            event_count: 0,
        };
        let is_traced = std::env::var_os("SETTEE_SIM_TRACE").is_some();
        Arc::new(Machine { seed, is_traced, state: Mutex::new(state) })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the events that are due.
    pub(crate) fn run_due_events(&self) {
        loop {
            let mut state = self.state();
            let now_ns = state.now_ns;
            let Some(entry) = state.events.first_entry().filter(|entry| entry.key().0 <= now_ns) else {
                return;
            };
            match entry.remove() {
                Event::Wake(waker) => {
                    drop(state);
                    waker.wake();
                }
                Event::Operation { operation, completion, covered } => {
                    let result = state.perform(self, operation, covered);
                    drop(state);
                    match result {
                        Some(result) => completion.complete(result),
                        None => completion.abandon(),
                    }
                }
            }
        }
    }

    /// Returns the machine after power is restored.
    pub(crate) fn after_power_loss(&self) -> Arc<Machine> {
        let mut state = self.state();
        state.cut_power();
        let mut random = state.loss_random.clone();
        let files = state.files.survive(&mut random, state.plan.powersafe_overwrite);
        let seed = Generator::new(random.next(), NEXT_SEED).next();
        let plan = Plan { power_cut: None, failures: Vec::new(), ..state.plan.clone() };
        Machine::new(seed, plan, files)
    }
}

impl MachineState {
    /// Adds an event and returns its key.
    pub(crate) fn schedule(&mut self, due_ns: u64, event: Event) -> EventKey {
        self.event_count += 1;
        let key = (due_ns, self.event_count);
        self.events.insert(key, event);
        key
    }

    pub(crate) fn reschedule(&mut self, key: EventKey, event: Event) {
        self.events.insert(key, event);
    }

    pub(crate) fn unschedule(&mut self, key: EventKey) {
        self.events.remove(&key);
    }

    /// Advances the time to the next event; returns false if there is none.
    pub(crate) fn advance_to_next_event(&mut self) -> bool {
        match self.events.first_key_value() {
            Some((key, _)) => {
                self.now_ns = self.now_ns.max(key.0);
                true
            }
            None => false,
        }
    }

    /// Stops the machine permanently.
    pub(crate) fn cut_power(&mut self) {
        if !self.power_lost {
            self.loss_random = Generator::new(self.loss_random.next(), self.counts.all);
            self.end_in_flight();
            self.power_lost = true;
        }
    }

    /// Ends the operations in flight when the program ends: each takes effect or doesn't, and none is
    /// reported.
    pub(crate) fn end_in_flight(&mut self) {
        for event in std::mem::take(&mut self.events).into_values() {
            if let Event::Operation { operation, completion, covered } = event {
                completion.abandon();
                if self.loss_random.coin() {
                    let _ = self.execute(operation, covered);
                }
            }
        }
    }

    pub(crate) fn trace(&mut self, machine: &Machine, what: &str, result: Option<&io::Result<Outcome>>) {
        let result = match result {
            Some(Ok(Outcome::Read { buffer })) => format!("read {}", buffer.len()),
            Some(Ok(Outcome::Opened(_) | Outcome::OpenedDirect { .. })) => "opened".into(),
            Some(result) => format!("{result:?}"),
            None => "power lost".into(),
        };
        let line = format!("{} us: {what}: {result}", self.now_ns / 1000);
        // FNV-1a, 64 bits.
        for byte in line.bytes() {
            self.trace_hash = (self.trace_hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if machine.is_traced {
            eprintln!("[{}] {line}", machine.seed);
        }
    }
}
