//! The executor: one thread, tasks picked by the seed, time that jumps.
//!
//! A step makes due events happen, then polls one of the ready tasks. Where none is ready, time
//! jumps to the next event. Each poll takes some virtual nanoseconds, so that completions fall
//! between the polls of tasks that are busy, too.
//!
//! Invariants:
//! 1. Whatever is picked is picked by the seed: nothing depends on addresses, hashes or threads.
//! 2. After a power loss no task is polled.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use settee_io::{BufferPool, Clock, Env, PoolOptions, Random, Sleep, Spawn, Task};
use tokio::sync::Semaphore;

use crate::disk::SimDisk;
use crate::engine::SimEngine;
use crate::machine::{Event, EventKey, Machine};

/// Polls that one [`Sim::run`] may take, unless told otherwise.
pub const STEP_COUNT_MAX: u64 = 10_000_000;

/// The longest that a poll takes, in virtual nanoseconds.
const POLL_NS_MAX: u64 = 2_000;

/// The calendar's time at which a simulation starts: 2026-01-01 00:00:00 UTC.
const UNIX_US_AT_START: u64 = 1_767_225_600_000_000;

type TaskId = u64;

/// A seeded world: runs a program's tasks on a [`SimDisk`], in one thread and in virtual time.
/// Dropping it ends the program as SIGKILL does: what it had written is seen by the next `Sim`
/// on the same disk; of what was in flight, each operation takes effect or doesn't.
#[derive(Debug)]
pub struct Sim {
    disk: SimDisk,
    tasks: Arc<Tasks>,
    step_count_max: u64,
}

impl Sim {
    /// A world with an empty disk.
    pub fn new(seed: u64) -> Sim {
        Sim::with_disk(&SimDisk::new(seed))
    }

    /// A world on a disk, whose seed is the world's.
    pub fn with_disk(disk: &SimDisk) -> Sim {
        Sim { disk: disk.clone(), tasks: Arc::default(), step_count_max: STEP_COUNT_MAX }
    }

    /// Limits the polls of one [`Sim::run`], in place of [`STEP_COUNT_MAX`].
    pub fn step_count_max(mut self, count: u64) -> Sim {
        self.step_count_max = count;
        self
    }

    /// The disk.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// The environment to hand to the program.
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
        }
    }

    /// Runs `future`, and the tasks spawned through the environment, until `future` is done.
    /// The other tasks wait for the next call then. `None` where the power went before it was
    /// done; nothing runs after that.
    ///
    /// # Panics
    /// With the seed in the message: when nothing is ready and nothing is due (a deadlock), and
    /// when the limit of polls is reached. A panic of a task goes through; the seed is printed.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let seed = self.disk.seed();
        let _seed_printer = SeedPrinter(seed);
        let mut future = pin!(future);
        let main = self.tasks.start();
        for _ in 0..self.step_count_max {
            self.disk.0.happen();
            if self.disk.is_power_lost() {
                return None;
            }
            let Some(id) = self.pick() else {
                let jumped = self.disk.0.state().jump();
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

    /// Takes one of the ready tasks, and lets some time pass.
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
        self.disk.0.state().end_flight();
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

/// The tasks that a program spawned. Those being polled are not in the map.
#[derive(Default)]
struct Tasks {
    ready: Arc<Ready>,
    waiting: Mutex<BTreeMap<TaskId, (&'static str, Task)>>,
    id_last: AtomicU64,
    stopped: AtomicBool,
}

impl Tasks {
    /// A new task's id, which is ready.
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

    /// Polls a task; one that has ended may have been woken late.
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

    /// Drops all tasks, and whatever is spawned from now on.
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Dropped outside of the lock: a task may do anything as it goes.
        let tasks = std::mem::take(&mut *self.waiting());
        drop(tasks);
    }
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").field("waiting", &self.names()).finish_non_exhaustive()
    }
}

/// The ready tasks. Its lock is the innermost: wakers are called from anywhere.
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

/// A timer; it goes when it is dropped, so that time doesn't jump to where nobody waits.
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
