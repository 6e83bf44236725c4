//! One trial: the processes of a subject, with the event in the first, and the power losses between them.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use settee_io::OperationKind;

use super::event::{Event, EventKind, Tolerance};
use super::process::{PROCESS_TIME_MAX, Process, ProcessPlan};
use super::tally::Tally;
use crate::disk::SimDisk;
use crate::executor::Sim;
use crate::plan::Fault;
use crate::random::Random;

/// What is tested: a durable program and its model.
pub trait Subject: Sized {
    /// A fault that can be planted in the program or the disk.
    type Fault: Copy;

    /// Number of configurations; as many consecutive seeds cover each once.
    const CONFIG_COUNT: u64;
    /// Steps in the first process.
    const STEP_COUNT: u64;
    /// Number of kills among the events of a seed.
    const KILL_COUNT: u64;
    /// Largest number of consecutive openings that are cut short by a power loss.
    const CUT_COUNT_MAX: u64;
    /// A power loss during such an opening comes within this many operations.
    const CUT_OPERATIONS_MAX: u64;

    /// The subject that a seed and a planted fault configure.
    fn new(seed: u64, fault: Option<Self::Fault>) -> Self;

    /// The configuration, for messages.
    fn config(&self) -> String;

    /// A new disk.
    fn disk(&self) -> SimDisk;

    /// Events besides those that every subject has, given the disk after a first process without an event.
    fn more_events(&self, disk: &SimDisk) -> Vec<Event>;

    /// Opens the program, compares its contents with the model, runs `process.step_count` steps, and ends in one
    /// of several ways. The future may be dropped at any await.
    ///
    /// # Errors
    /// A description of the problem.
    fn run_process(&self, process: &Process<'_>) -> impl Future<Output = Result<(), String>>;
}

/// Runs a trial. A panic counts as a failure.
///
/// # Errors
/// The problem in one line, the configuration, and the two variables that make [`search`](super::search) run this
/// trial alone.
pub fn run_trial<S: Subject>(seed: u64, fault: Option<S::Fault>, event: Event) -> Result<Tally, String> {
    replayable::<S, _>(seed, event, || Trial::<S>::new(seed, fault, event).run())
}

/// Every event of a seed's first process: a power loss at each operation and after each sync, kills, failures of
/// some operations, and the subject's own.
///
/// # Errors
/// As [`run_trial`], from a first process without an event.
pub fn events<S: Subject>(seed: u64, fault: Option<S::Fault>) -> Result<Vec<Event>, String> {
    let none = Event::new(EventKind::PowerLoss, u64::MAX);
    let trial = Trial::<S>::new(seed, fault, none);
    let disk = trial.subject.disk();
    let (_, time) = replayable::<S, _>(seed, none, || trial.run_process(&disk, trial.first()))?;
    let (operations, time_us) = (disk.operation_count(), time.as_micros() as u64);
    let mut events = Vec::new();
    events.extend((0..operations).map(|at| Event::new(EventKind::PowerLoss, at)));
    events.extend((0..disk.sync_count()).map(|at| Event::new(EventKind::PowerLossAfterSync, at)));
    let kill = |part| Event::new(EventKind::Kill, time_us * part / (S::KILL_COUNT + 1));
    events.extend((1..=S::KILL_COUNT).map(kill));
    for at in (seed % 5..operations).step_by(5) {
        let kind = if at % 2 == 0 { EventKind::IoError } else { EventKind::NoSpace };
        events.push(Event::new(kind, at));
        if at % 3 == 0 {
            events.push(Event::new(EventKind::NoDescriptor, at));
        }
    }
    events.extend(trial.subject.more_events(&disk));
    Ok(events)
}

/// Catches panics of `trial`, and adds to the problem how to replay it.
fn replayable<S: Subject, T>(
    seed: u64,
    event: Event,
    trial: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    let result = catch_unwind(AssertUnwindSafe(trial)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    });
    result.map_err(|problem| {
        let config = S::new(seed, None).config();
        format!("{problem}\n{config}\nreplay with SETTEE_SEED={seed} SETTEE_EVENT={event}")
    })
}

struct Trial<S> {
    seed: u64,
    subject: S,
    event: Event,
    tally: RefCell<Tally>,
}

impl<S: Subject> Trial<S> {
    fn new(seed: u64, fault: Option<S::Fault>, event: Event) -> Trial<S> {
        Trial { seed, subject: S::new(seed, fault), event, tally: RefCell::default() }
    }

    fn first(&self) -> ProcessPlan {
        let is_kill = self.event.kind == EventKind::Kill;
        ProcessPlan {
            number: 0,
            step_count: S::STEP_COUNT,
            after_kill: false,
            tolerance: self.event.tolerance(),
            kill_at: is_kill.then(|| Duration::from_micros(self.event.at)),
        }
    }

    fn run(self) -> Result<Tally, String> {
        let Event { kind, at } = self.event;
        let mut random = Random::new(self.seed, at << 8 | kind as u64);
        let mut disk = self.event.plan(self.subject.disk());
        let first = self.first();
        self.run_process(&disk, first)?;
        self.count("first process's renames", disk.count_of(OperationKind::Rename));
        let mut after_kill = first.kill_at.is_some();
        match after_kill {
            true => self.count("kill", 1),
            false => disk = self.lose_power(&disk),
        }
        let second =
            ProcessPlan { number: 1, step_count: 2, after_kill, tolerance: Tolerance::None, kill_at: None };
        if matches!(kind, EventKind::ReadError | EventKind::FullDisk) {
            disk = self.open_under_fault(disk, second)?;
            after_kill = false;
        }
        for _ in 0..1 + random.below(S::CUT_COUNT_MAX) {
            let cut_at = disk.operation_count() + random.below(S::CUT_OPERATIONS_MAX);
            disk = disk.crash_at_operation(cut_at);
            let (opened, _) = self.run_process(&disk, ProcessPlan { after_kill, ..second })?;
            self.count("recovery cut short", u64::from(!opened && disk.is_power_lost()));
            disk = self.lose_power(&disk);
            after_kill = false;
        }
        let third = ProcessPlan { number: 2, after_kill, ..second };
        self.run_process(&disk, third)?;
        disk = self.lose_power(&disk);
        self.run_process(&disk, ProcessPlan { number: 3, step_count: 0, ..third })?;
        let mut tally = self.tally.into_inner();
        tally.trace ^= disk.trace_hash();
        Ok(tally)
    }

    /// Opens the subject while a read fails, or while the disk is still full. Returns the disk after that,
    /// without the fault.
    fn open_under_fault(&self, disk: SimDisk, plan: ProcessPlan) -> Result<SimDisk, String> {
        let (disk, tolerance) = match self.event.kind {
            EventKind::ReadError => {
                let index = disk.count_of(OperationKind::Read) + self.event.at;
                (disk.fail(OperationKind::Read, index, Fault::Io), Tolerance::Stops)
            }
            _ => (disk, Tolerance::Refusals),
        };
        self.run_process(&disk, ProcessPlan { step_count: 1, tolerance, ..plan })?;
        Ok(self.lose_power(&disk).capacity(None))
    }

    fn lose_power(&self, disk: &SimDisk) -> SimDisk {
        let mut tally = self.tally.borrow_mut();
        match disk.is_power_lost() {
            true => tally.power_losses += 1,
            false => tally.count("power loss at the end", 1),
        }
        tally.trace = tally.trace.rotate_left(1) ^ disk.trace_hash();
        disk.after_power_loss()
    }

    /// Returns whether the subject was opened, and the time that the process took.
    fn run_process(&self, disk: &SimDisk, plan: ProcessPlan) -> Result<(bool, Duration), String> {
        let sim = Sim::with_disk(disk);
        let env = &sim.env();
        let process =
            Process { plan, env, disk, event: self.event, tally: &self.tally, is_opened: Cell::new(false) };
        let start = env.clock.now();
        let ended = sim.run(async {
            let all = pin!(self.subject.run_process(&process));
            match select(all, env.clock.sleep(plan.kill_at.unwrap_or(PROCESS_TIME_MAX))).await {
                Either::Left((ended, _)) => ended,
                Either::Right(_) if plan.kill_at.is_some() => Ok(()),
                Either::Right(_) => Err(format!("it hasn't ended after {PROCESS_TIME_MAX:?}")),
            }
        });
        ended.unwrap_or(Ok(())).map_err(|problem| format!("process {}: {problem}", plan.number))?;
        Ok((process.is_opened.get(), env.clock.now() - start))
    }

    fn count(&self, what: &'static str, count: u64) {
        self.tally.borrow_mut().count(what, count);
    }
}
