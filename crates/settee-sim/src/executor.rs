//! The executor of the simulation: a single thread, tasks picked by the seed, and virtual time.
//!
//! A step runs the due events, then polls one of the ready tasks. If none is ready, time jumps to the next
//! event. Each poll takes some virtual nanoseconds, so completions can also fall between the polls of busy
//! tasks.
//!
//! Invariants:
//! 1. The seed makes every choice: nothing depends on addresses, hashes or threads.
//! 2. After a power loss no task is polled.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use settee_io::{
    BufferPool, Clock, Env, IDLE_HANDLES_MAX, IdleHandles, PoolOptions, Random, Sleep, Spawn, Task,
};
use tokio::sync::Semaphore;

use crate::disk::SimDisk;
use crate::engine::SimEngine;
use crate::machine::{Event, EventKey, Machine};

/// Default limit on the polls of one [`Sim::run`].
pub const STEP_COUNT_MAX: u64 = 10_000_000;

/// Longest duration of a poll, in virtual nanoseconds.
const POLL_NS_MAX: u64 = 2_000;

/// Wall-clock time at the start of a simulation: 2026-01-01 00:00:00 UTC.
const UNIX_US_AT_START: u64 = 1_767_225_600_000_000;

type TaskId = u64;

/// A seeded simulation: runs a program's tasks on a [`SimDisk`], in one thread and in virtual time. Dropping
/// it ends the program as SIGKILL does: the next `Sim` on the same disk sees what the program had written.
/// The seed decides which of the operations in flight take effect.
#[derive(Debug)]
pub struct Sim {
    disk: SimDisk,
    tasks: Arc<Tasks>,
    step_count_max: u64,
}

impl Sim {
    /// Returns a simulation with an empty disk.
    pub fn new(seed: u64) -> Sim {
        Sim::with_disk(&SimDisk::new(seed))
    }

    /// Returns a simulation on `disk`, with the disk's seed.
    pub fn with_disk(disk: &SimDisk) -> Sim {
        Sim { disk: disk.clone(), tasks: Arc::default(), step_count_max: STEP_COUNT_MAX }
    }

    /// Sets the limit on the polls of one [`Sim::run`]. Default: [`STEP_COUNT_MAX`].
    pub fn step_count_max(mut self, count: u64) -> Sim {
        self.step_count_max = count;
        self
    }

    /// Returns the disk.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Returns the environment for the program.
    pub fn env(&self) -> Env {
        let machine = &self.disk.0;
        Env {
            engine: Arc::new(SimEngine(machine.clone())),
            clock: Arc::new(SimClock(machine.clone())),
            spawn: Arc::new(SimSpawn(self.tasks.clone())),
            random: Arc::new(SimRandom(machine.clone())),
            buffers: BufferPool::new(PoolOptions::default()),
            background: Arc::new(Semaphore::new(settee_io::BACKGROUND_COUNT)),
            compaction: Arc::new(Semaphore::new(settee_io::COMPACTION_COUNT)),
            idle_handles: IdleHandles::new(IDLE_HANDLES_MAX),
        }
    }

    /// Runs `future`, and the tasks spawned through the environment, until `future` is done. The remaining
    /// tasks continue in the next call. Returns `None` if the power was lost before `future` was done;
    /// nothing runs after that.
    ///
    /// # Panics
    /// If no task is ready and no event is due (a deadlock), and if the limit on polls is reached; the
    /// message contains the seed. A task's panic propagates; the seed is printed.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let seed = self.disk.seed();
        let _seed_printer = SeedPrinter(seed);
        let mut future = pin!(future);
        let main = self.tasks.start();
        for _ in 0..self.step_count_max {
            self.disk.0.run_due_events();
            if self.disk.is_power_lost() {
                return None;
            }
            let Some(id) = self.pick() else {
                let jumped = self.disk.0.state().advance_to_next_event();
                assert!(
                    jumped,
                    "deadlock, seed {seed}: nothing is ready or due; waiting: {}",
                    self.tasks.names()
                );
                continue;
            };
            if id != main {
                self.tasks.poll(id);
            } else if let Poll::Ready(value) =
                future.as_mut().poll(&mut Context::from_waker(&self.tasks.waker(main)))
            {
                return Some(value).filter(|_| !self.disk.is_power_lost());
            }
        }
        panic!("no end after {} steps, seed {seed}; waiting: {}", self.step_count_max, self.tasks.names());
    }

    /// Picks one of the ready tasks, and advances the time a little.
    fn pick(&self) -> Option<TaskId> {
        let mut ready = self.tasks.ready.lock();
        if ready.is_empty() {
            return None;
        }
        let mut state = self.disk.0.state();
        state.now_ns += state.random.within(0..=POLL_NS_MAX);
        let id = *ready.iter().nth(state.random.index(ready.len())).expect("an index below the count");
        ready.remove(&id);
        Some(id)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.tasks.stop();
        self.disk.0.state().end_in_flight();
    }
}

/// Prints the seed when a task panics.
struct SeedPrinter(u64);

impl Drop for SeedPrinter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation's seed: {}", self.0);
        }
    }
}

/// The tasks that a program spawned. A task that is being polled is not in the map.
#[derive(Default)]
struct Tasks {
    ready: Arc<Ready>,
    waiting: Mutex<BTreeMap<TaskId, (&'static str, Task)>>,
    id_last: AtomicU64,
    stopped: AtomicBool,
}

impl Tasks {
    /// Returns the id of a new task, and marks it ready.
    fn start(&self) -> TaskId {
        let id = self.id_last.fetch_add(1, Ordering::Relaxed) + 1;
        self.ready.lock().insert(id);
        id
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<TaskId, (&'static str, Task)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waker(&self, id: TaskId) -> Waker {
        Waker::from(Arc::new(TaskWaker { id, ready: self.ready.clone() }))
    }

    /// Polls a task. Does nothing if it has ended, since wakers may be called late.
    fn poll(&self, id: TaskId) {
        let Some((name, mut task)) = self.waiting().remove(&id) else {
            return;
        };
        if task.as_mut().poll(&mut Context::from_waker(&self.waker(id))).is_pending() {
            self.waiting().insert(id, (name, task));
        }
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.waiting().values().map(|(name, _)| *name).collect();
        format!("the main future, {names:?}")
    }

    /// Drops all tasks, and those that are spawned later.
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // The tasks are dropped without the lock, since a task's drop may run arbitrary code.
        let tasks = std::mem::take(&mut *self.waiting());
        drop(tasks);
    }
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").field("waiting", &self.names()).finish_non_exhaustive()
    }
}

/// The ready tasks. Its lock is the innermost, since wakers are called from anywhere.
#[derive(Debug, Default)]
struct Ready(Mutex<BTreeSet<TaskId>>);

impl Ready {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<TaskId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    id: TaskId,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.lock().insert(self.id);
    }
}

struct SimSpawn(Arc<Tasks>);

impl Spawn for SimSpawn {
    fn spawn(&self, name: &'static str, task: Task) {
        if !self.0.stopped.load(Ordering::Relaxed) {
            let id = self.0.start();
            self.0.waiting().insert(id, (name, task));
        }
    }
}

struct SimRandom(Arc<Machine>);

impl Random for SimRandom {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.state().program_random.fill(bytes);
    }
}

struct SimClock(Arc<Machine>);

impl Clock for SimClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.state().now_ns)
    }

    fn unix_us(&self) -> u64 {
        UNIX_US_AT_START + self.0.state().now_ns / 1000
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = self.0.state().now_ns.saturating_add(duration_ns);
        Box::pin(SimSleep { machine: self.0.clone(), due_ns, event: None })
    }
}

/// A timer. Dropping it removes its event, so that time doesn't jump to a moment that no task waits for.
struct SimSleep {
    machine: Arc<Machine>,
    due_ns: u64,
    event: Option<EventKey>,
}

impl Future for SimSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let machine = self.machine.clone();
        let mut state = machine.state();
        if state.now_ns >= self.due_ns {
            return Poll::Ready(());
        }
        let event = Event::Wake(context.waker().clone());
        match self.event {
            Some(key) => state.reschedule(key, event),
            None => self.event = Some(state.schedule(self.due_ns, event)),
        }
        Poll::Pending
    }
}

impl Drop for SimSleep {
    fn drop(&mut self) {
        if let Some(key) = self.event {
            self.machine.state().unschedule(key);
        }
    }
}
