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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use settee_io::{Completion, Operation, Outcome};

use crate::files::Files;
use crate::plan::{Counts, Plan};
use crate::random::Generator;

/// The random streams of a seed.
const RUN: u64 = 1;
const PROGRAM: u64 = 2;
const POWER_LOSS: u64 = 3;
const NEXT_SEED: u64 = 4;

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
        let plan =
            Plan { power_cut: None, failures: Vec::new(), unopenable: BTreeMap::new(), ..state.plan.clone() };
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
