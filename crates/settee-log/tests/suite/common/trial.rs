//! A trial: a seeded life of a log with one event, and the recovery after it.
//!
//! A trial opens a log on a simulated disk, appends from two tasks in all possible ways, and injects one
//! [`Event`]. Then the log is opened again, with a power loss at some operation of that (so mostly during
//! recovery), once or more; then it is opened to append more, and a last time. Each opening compares all
//! records with what was submitted and acknowledged ([`Model`]).
//!
//! The seed alone decides the configuration, the workload and the disk; seed and event together decide the
//! rest. So the message of a failure is enough to replay it: see [`run_trial`].

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, join, select};
use settee_io::{Env, OperationKind};
use settee_log::{AppendError, Appended, Batch, Failpoint, Flags, Log, LogOptions, Seq, Stage};
use settee_sim::{Fault, Sim, SimDisk};

use super::model::{Found, Model, Submitted, key};

const DIRECTORY: &str = "/data/log";

/// Largest number of consecutive openings that are cut short by a power loss.
const OPENINGS_CUT_SHORT_MAX: u64 = 3;

/// A power loss during such an opening comes within this many operations.
const SECOND_CUT_OPERATIONS_MAX: u64 = 30;

/// The event in the log's first life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A power loss while the operation with this index is in flight.
    PowerLossAt(u64),
    /// A power loss when the sync with this index has taken effect.
    PowerLossAfterSync(u64),
    /// The process is killed after this many microseconds; the system continues.
    KillAt(u64),
    /// The operation with this index fails, with EIO or ENOSPC.
    IoErrorAt(u64),
    NoSpaceAt(u64),
    /// The operation with this index finds no file descriptor, if it needs one.
    NoDescriptorAt(u64),
    /// The read with this index fails during the second opening.
    ReadErrorAt(u64),
    /// The disk has this many bytes, also during the second opening.
    FullDiskAt(u64),
}

type Named = (&'static str, fn(u64) -> Event);

const NAMES: [Named; 8] = [
    ("power-loss-at", Event::PowerLossAt),
    ("power-loss-after-sync", Event::PowerLossAfterSync),
    ("kill-at", Event::KillAt),
    ("io-error-at", Event::IoErrorAt),
    ("no-space-at", Event::NoSpaceAt),
    ("read-error-at", Event::ReadErrorAt),
    ("full-disk-at", Event::FullDiskAt),
    ("no-descriptor-at", Event::NoDescriptorAt),
];

impl Event {
    fn parts(self) -> (usize, u64) {
        match self {
            Event::PowerLossAt(at) => (0, at),
            Event::PowerLossAfterSync(at) => (1, at),
            Event::KillAt(at) => (2, at),
            Event::IoErrorAt(at) => (3, at),
            Event::NoSpaceAt(at) => (4, at),
            Event::NoDescriptorAt(at) => (7, at),
            Event::ReadErrorAt(at) => (5, at),
            Event::FullDiskAt(bytes) => (6, bytes),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, at) = self.parts();
        write!(f, "{}-{at}", NAMES[name].0)
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(text: &str) -> Result<Event, String> {
        let parts = text.rsplit_once('-').and_then(|(name, at)| Some((name, at.parse().ok()?)));
        let event = parts.and_then(|(name, at): (&str, u64)| {
            NAMES.iter().find(|(known, _)| *known == name).map(|(_, event)| event(at))
        });
        event.ok_or_else(|| format!("{text:?} is no event"))
    }
}

/// The parameters of a trial.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// The faults enabled in the log and in the disk.
    pub(crate) failpoint: Option<Failpoint>,
    pub(crate) ignores_syncs: bool,
    pub(crate) ignores_directory_syncs: bool,
}

impl Setup {
    pub(crate) fn new(seed: u64) -> Setup {
        Setup { seed, failpoint: None, ignores_syncs: false, ignores_directory_syncs: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direct {
    Never,
    Always,
    /// It changes with each opening and during the run.
    Changes,
}

/// One of the configurations of the matrix.
#[derive(Debug, Clone, Copy)]
struct Config {
    direct: Direct,
    writes_in_flight_max: usize,
    /// Values that aren't copied, each with a write of its own.
    bypass: bool,
    /// Small segments that are sealed, truncated and recycled.
    truncates: bool,
    large_buffers: bool,
    short_io: f64,
    stalls: f64,
}

/// Number of configurations, without the disk's variants; as many consecutive seeds cover each once.
pub(crate) const CONFIG_COUNT: u64 = 3 * 3 * 2 * 2 * 2;

impl Config {
    fn of(seed: u64) -> Config {
        // The disk's variant is independent of the log's configuration.
        let disk = Random::new(seed, 0).next();
        let mut rest = seed;
        let mut digit = |count: u64| {
            let digit = rest % count;
            rest /= count;
            digit as usize
        };
        Config {
            direct: [Direct::Never, Direct::Always, Direct::Changes][digit(3)],
            writes_in_flight_max: [2, 1, 4][digit(3)],
            bypass: digit(2) == 0,
            truncates: digit(2) == 0,
            large_buffers: digit(2) == 1,
            short_io: [0.05, 0.3][(disk % 2) as usize],
            stalls: [0.0, 0.0, 0.02][(disk / 2 % 3) as usize],
        }
    }

    fn options(&self, setup: &Setup, opening: usize) -> LogOptions {
        let (segment_bytes_max, batch_bytes_max) =
            if self.truncates { (12 << 10, 4 << 10) } else { (256 << 10, 64 << 10) };
        let (buffer_bytes_min, buffer_bytes_max) =
            if self.large_buffers { (256 << 10, 1 << 20) } else { (4 << 10, 64 << 10) };
        LogOptions {
            batch_bytes_max,
            segment_bytes_max,
            buffer_bytes_min,
            buffer_bytes_max,
            writes_in_flight_max: self.writes_in_flight_max,
            bypass_bytes_min: match self.bypass {
                true => self.value_bytes_max() as usize / 2,
                false => 256 << 10,
            },
            direct: match self.direct {
                Direct::Never => false,
                Direct::Always => true,
                Direct::Changes => opening.is_multiple_of(2),
            },
            spare_percent_max: 100,
            failpoint: setup.failpoint,
            ..LogOptions::default()
        }
    }

    /// The largest value in bytes.
    fn value_bytes_max(&self) -> u64 {
        if self.truncates { 1_000 } else { 18_000 }
    }
}

/// SplitMix64.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ stream.rotate_left(40));
        random.0 = random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// Random bytes; values are parts of them.
static BYTES: LazyLock<Bytes> = LazyLock::new(|| {
    let mut random = Random::new(0, 0);
    (0..16 << 10).flat_map(|_| random.next().to_le_bytes()).collect::<Vec<u8>>().into()
});

/// Counters of what was tried.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Power losses during a run, after which the log was opened and compared.
    pub(crate) power_losses: u64,
    /// Power losses after all operations had completed.
    pub(crate) at_end: u64,
    /// Power losses while a log was being opened.
    pub(crate) during_recovery: u64,
    pub(crate) kills: u64,
    /// I/O errors, and appends refused for lack of disk space.
    pub(crate) errors: u64,
    /// Openings that found a torn tail.
    pub(crate) torn_tails: u64,
    /// Segments whose files were recycled.
    pub(crate) recycled: u64,
    /// Segment indexes that were read.
    pub(crate) segment_indexes: u64,
    /// A hash over all operations on the disks.
    pub(crate) trace: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.power_losses += other.power_losses;
        self.at_end += other.at_end;
        self.during_recovery += other.during_recovery;
        self.kills += other.kills;
        self.errors += other.errors;
        self.torn_tails += other.torn_tails;
        self.recycled += other.recycled;
        self.segment_indexes += other.segment_indexes;
        self.trace = self.trace.rotate_left(1) ^ other.trace;
    }
}

/// The errors that the log may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// None: nothing fails.
    None,
    /// Refusals for lack of disk space.
    Refusals,
    /// It may also have stopped, and reads may fail.
    Stops,
}

/// How a life begins and ends.
#[derive(Debug, Clone, Copy)]
struct Life {
    opening: usize,
    /// Appends of each of the two tasks.
    step_count: u64,
    /// The previous process was killed, and its written bytes are still there.
    after_kill: bool,
    patience: Patience,
    kill_at: Option<Duration>,
}

/// How a life ended.
struct End {
    opened: bool,
    /// How long it took.
    time: Duration,
}

/// Runs a trial. A panic counts as a failure.
///
/// # Errors
/// The problem, and the two variables that make the test `power_loss` run this trial alone.
pub(crate) fn run_trial(setup: &Setup, event: Event) -> Result<Tally, String> {
    let result = catch_unwind(AssertUnwindSafe(|| Trial::new(setup, event).run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    });
    result.map_err(|problem| {
        let (seed, config) = (setup.seed, Config::of(setup.seed));
        format!("{problem}\n{config:?}\nreplay with SETTEE_SEED={seed} SETTEE_EVENT={event}")
    })
}

/// Longer than the longest operation of the disk.
const KILLED_FOR_MAX: Duration = Duration::from_secs(20);

/// Every event of a seed's first life: a power loss at each operation and after each sync, kills, and
/// failures of some operations.
///
/// # Errors
/// As [`run_trial`], from a first life without an event.
pub(crate) fn events(setup: &Setup) -> Result<Vec<Event>, String> {
    let disk = disk(setup);
    let mut trial = Trial::new(setup, Event::PowerLossAt(u64::MAX));
    let end = trial.live(&disk, Life::first(None, Patience::None))?;
    let length = |path| disk.read_file(path).map_or(0, |bytes| bytes.len() as u64);
    let used: u64 = disk.paths().into_iter().map(length).sum();
    let (operations, time_us) = (disk.operation_count(), end.time.as_micros() as u64);
    let mut events = Vec::new();
    events.extend((0..operations).map(Event::PowerLossAt));
    events.extend((0..disk.sync_count()).map(Event::PowerLossAfterSync));
    events.extend((1..=6).map(|part| Event::KillAt(time_us * part / 7)));
    for at in (setup.seed % 5..operations).step_by(5) {
        events.push(if at % 2 == 0 { Event::IoErrorAt(at) } else { Event::NoSpaceAt(at) });
        if at % 3 == 0 {
            events.push(Event::NoDescriptorAt(at));
        }
    }
    events.extend((0..3).map(Event::ReadErrorAt));
    events.extend((1..=4).map(|part| Event::FullDiskAt(used * part / 5)));
    Ok(events)
}

fn disk(setup: &Setup) -> SimDisk {
    let config = Config::of(setup.seed);
    SimDisk::new(setup.seed)
        .short_reads(config.short_io)
        .short_writes(config.short_io)
        .stalls(config.stalls)
        .ignore_syncs(setup.ignores_syncs)
        .ignore_directory_syncs(setup.ignores_directory_syncs)
}

impl Life {
    fn first(kill_at: Option<Duration>, patience: Patience) -> Life {
        Life { opening: 0, step_count: 6, after_kill: false, patience, kill_at }
    }
}

struct Trial<'a> {
    setup: &'a Setup,
    config: Config,
    event: Event,
    model: Model,
    tally: Tally,
}

impl<'a> Trial<'a> {
    fn new(setup: &'a Setup, event: Event) -> Trial<'a> {
        let config = Config::of(setup.seed);
        Trial { setup, config, event, model: Model::default(), tally: Tally::default() }
    }

    fn run(mut self) -> Result<Tally, String> {
        let (kind, at) = self.event.parts();
        let mut random = Random::new(self.setup.seed, at << 8 | kind as u64);
        let mut disk = disk(self.setup);
        let (mut kill_at, mut patience) = (None, Patience::None);
        match self.event {
            Event::PowerLossAt(at) => disk = disk.crash_at_operation(at),
            Event::PowerLossAfterSync(at) => disk = disk.crash_after_sync(at),
            Event::KillAt(us) => kill_at = Some(Duration::from_micros(us)),
            Event::IoErrorAt(at) => (disk, patience) = (disk.fail_operation(at, Fault::Io), Patience::Stops),
            Event::NoSpaceAt(at) => {
                (disk, patience) = (disk.fail_operation(at, Fault::NoSpace), Patience::Stops)
            }
            Event::NoDescriptorAt(at) => {
                (disk, patience) = (disk.fail_operation(at, Fault::NoDescriptor), Patience::Stops)
            }
            Event::FullDiskAt(bytes) => (disk, patience) = (disk.capacity(Some(bytes)), Patience::Refusals),
            Event::ReadErrorAt(_) => {}
        }
        self.live(&disk, Life::first(kill_at, patience))?;
        self.tally.recycled += disk.count_of(OperationKind::Rename);
        let mut after_kill = kill_at.is_some();
        match after_kill {
            true => self.tally.kills += 1,
            false => disk = self.lose_power(&disk),
        }
        let second = Life { opening: 1, step_count: 2, after_kill, patience: Patience::None, kill_at: None };
        if matches!(self.event, Event::ReadErrorAt(_) | Event::FullDiskAt(_)) {
            disk = self.open_under_fault(disk, second)?;
            after_kill = false;
        }

        for _ in 0..1 + random.below(OPENINGS_CUT_SHORT_MAX) {
            let cut_at = disk.operation_count() + random.below(SECOND_CUT_OPERATIONS_MAX);
            disk = disk.crash_at_operation(cut_at);
            let end = self.live(&disk, Life { after_kill, ..second })?;
            self.tally.during_recovery += u64::from(!end.opened && disk.is_power_lost());
            disk = self.lose_power(&disk);
            after_kill = false;
        }
        let third = Life { opening: 2, after_kill, ..second };
        self.live(&disk, third)?;
        disk = self.lose_power(&disk);
        self.live(&disk, Life { opening: 3, step_count: 0, ..third })?;
        self.tally.trace ^= disk.trace_hash();
        Ok(self.tally)
    }

    /// Opens the log while a read fails, or while the disk is still full. Returns the disk after that,
    /// without the fault.
    fn open_under_fault(&mut self, disk: SimDisk, life: Life) -> Result<SimDisk, String> {
        let (disk, patience) = match self.event {
            Event::ReadErrorAt(at) => {
                let index = disk.count_of(OperationKind::Read) + at;
                (disk.fail(OperationKind::Read, index, Fault::Io), Patience::Stops)
            }
            _ => (disk, Patience::Refusals),
        };
        self.live(&disk, Life { step_count: 1, patience, ..life })?;
        self.tally.errors += u64::from(patience == Patience::Stops);
        Ok(self.lose_power(&disk).capacity(None))
    }

    fn lose_power(&mut self, disk: &SimDisk) -> SimDisk {
        match disk.is_power_lost() {
            true => self.tally.power_losses += 1,
            false => self.tally.at_end += 1,
        }
        self.tally.trace = self.tally.trace.rotate_left(1) ^ disk.trace_hash();
        disk.after_power_loss()
    }

    /// Opens the log, compares, appends, and ends in one of several ways.
    fn live(&mut self, disk: &SimDisk, life: Life) -> Result<End, String> {
        let sim = Sim::with_disk(disk);
        let env = sim.env();
        let options = self.config.options(self.setup, life.opening);
        let mut found = Vec::new();
        let opened = sim.run(async {
            let until = env.clock.now() + KILLED_FOR_MAX;
            loop {
                found.clear();
                let replay =
                    |location, record: settee_log::RecordRef<'_>| found.push(Found::new(location, record));
                match Log::open(&env, Path::new(DIRECTORY), options, replay).await {
                    // The system completes operations that a process had in flight when it was killed.
                    Err(settee_log::OpenError::InUse { .. })
                        if life.after_kill && env.clock.now() < until =>
                    {
                        env.clock.sleep(Duration::from_millis(1)).await;
                    }
                    opened => return opened,
                }
            }
        });
        let start = env.clock.now();
        let (log, recovery) = match opened {
            None => return Ok(End { opened: false, time: Duration::ZERO }),
            Some(Ok(opened)) => opened,
            Some(Err(settee_log::OpenError::Io(_))) if life.patience == Patience::Stops => {
                self.tally.errors += 1;
                return Ok(End { opened: false, time: Duration::ZERO });
            }
            Some(Err(error)) => return Err(format!("opening {}: {error}", life.opening)),
        };
        self.tally.torn_tails += u64::from(recovery.cut_bytes > 0);
        let opening = life.opening;
        self.model
            .recover(&found, life.after_kill, log.persisted().0)
            .map_err(|problem| format!("opening {opening}: {problem}"))?;
        let model = RefCell::new(std::mem::take(&mut self.model));
        let (config, tally) = (self.config, RefCell::new(self.tally));
        let work = Work { log: &log, env: &env, config, life, model: &model, tally: &tally };
        let (seed, stream) = (self.setup.seed, 2 * opening as u64);
        let ended = sim.run(async {
            let tasks = pin!(async {
                work.read_again().await?;
                work.read_segment_indexes().await?;
                let first = work.append_all(Random::new(seed, stream + 1));
                let second = work.append_all(Random::new(seed, stream + 2));
                let (first, second) = join(first, second).await;
                first.and(second)?;
                work.finish(Random::new(seed, stream)).await
            });
            match life.kill_at {
                None => tasks.await,
                Some(after) => match select(tasks, env.clock.sleep(after)).await {
                    Either::Left((ended, _)) => ended,
                    Either::Right(_) => Ok(()),
                },
            }
        });
        self.tally = tally.into_inner();
        self.model = model.into_inner();
        ended.unwrap_or(Ok(())).map_err(|problem| format!("life {opening}: {problem}"))?;
        Ok(End { opened: true, time: env.clock.now() - start })
    }
}

/// State shared by the tasks of a life.
struct Work<'a> {
    log: &'a Log,
    env: &'a Env,
    config: Config,
    life: Life,
    model: &'a RefCell<Model>,
    tally: &'a RefCell<Tally>,
}

/// The outcome of an append.
enum AppendOutcome {
    Accepted(Appended),
    Refused,
    Stopped,
}

impl Work<'_> {
    async fn append_all(&self, mut random: Random) -> Result<(), String> {
        // Small segments need more steps to fill several of them.
        let step_count = self.life.step_count * if self.config.truncates { 2 } else { 1 };
        for _ in 0..step_count {
            let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][random.below(3) as usize];
            let appended = match self.append(&mut random, stage).await? {
                AppendOutcome::Accepted(appended) => appended,
                AppendOutcome::Refused => continue,
                AppendOutcome::Stopped => return Ok(()),
            };
            if !random.one_in(3) && !self.wait(appended.last_seq, stage).await? {
                return Ok(());
            }
            match random.below(8) {
                0 => self.read_one(&mut random).await?,
                1 => self.env.clock.sleep(Duration::from_micros(random.below(3_000))).await,
                2 => {
                    let flushed = self.log.flush().await;
                    self.unless_failed(flushed)?;
                }
                3 | 4 if self.config.truncates => self.truncate(),
                // Long enough for sealing, which waits for a pause.
                6 if self.config.truncates => self.env.clock.sleep(Duration::from_millis(250)).await,
                5 if self.config.direct == Direct::Changes => {
                    let changed = self.log.set_direct(random.one_in(2)).await;
                    self.unless_failed(changed)?;
                }
                _ => {}
            }
            let shown = self.log.persisted().0;
            self.model.borrow_mut().see_persisted(shown)?;
        }
        Ok(())
    }

    /// Appends a batch; sometimes the append is cancelled before the batch is accepted.
    async fn append(&self, random: &mut Random, stage: Stage) -> Result<AppendOutcome, String> {
        let count = 1 + random.below(3);
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.value(random));
        }
        let number = self.model.borrow_mut().submit(values.clone());
        let mut batch = Batch::new();
        for (index, value) in values.iter().enumerate() {
            let key = key(number, index, values.len());
            let (flags, meta) = if random.one_in(3) {
                (Flags::none(), &b""[..])
            } else {
                (Flags::IN_SEQ_INDEX, &b"meta"[..])
            };
            batch.push_bytes(flags, &key, meta, value.clone());
        }
        let append = pin!(self.log.append(&batch, stage));
        let result = if random.one_in(8) {
            let leave = self.env.clock.sleep(Duration::from_micros(random.below(2_000)));
            match select(append, leave).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => {
                    self.model.borrow_mut().refused(number);
                    return Ok(AppendOutcome::Refused);
                }
            }
        } else {
            append.await
        };
        let outcome = self.outcome_of(result)?;
        match &outcome {
            AppendOutcome::Accepted(appended) => {
                self.model.borrow_mut().accepted(number, appended.clone())?
            }
            AppendOutcome::Refused | AppendOutcome::Stopped => self.model.borrow_mut().refused(number),
        }
        Ok(outcome)
    }

    fn value(&self, random: &mut Random) -> Bytes {
        let most = self.config.value_bytes_max();
        let size = match random.below(4) {
            0 => random.below(60),
            1 => random.below(most),
            _ => random.below(most / 4),
        };
        let start = random.below(BYTES.len() as u64 - size) as usize;
        BYTES.slice(start..start + size as usize)
    }

    /// Refusals and stops are allowed only in lives in which something fails.
    fn outcome_of(&self, result: Result<Appended, AppendError>) -> Result<AppendOutcome, String> {
        let error = match result {
            Ok(appended) => return Ok(AppendOutcome::Accepted(appended)),
            Err(error) => error,
        };
        self.tally.borrow_mut().errors += 1;
        match error {
            AppendError::NoSpace { .. } if self.life.patience != Patience::None => Ok(AppendOutcome::Refused),
            AppendError::NoDescriptor { .. } if self.life.patience == Patience::Stops => {
                Ok(AppendOutcome::Refused)
            }
            AppendError::Stopped(_) if self.life.patience == Patience::Stops => Ok(AppendOutcome::Stopped),
            error => Err(format!("append: {error}")),
        }
    }

    fn unless_failed<E: fmt::Display>(&self, result: Result<(), E>) -> Result<bool, String> {
        match result {
            Ok(()) => Ok(true),
            Err(_) if self.life.patience == Patience::Stops => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns whether the stage was reached.
    async fn wait(&self, seq: Seq, stage: Stage) -> Result<bool, String> {
        let arrived = self.log.wait(seq, stage).await;
        if !self.unless_failed(arrived)? {
            return Ok(false);
        }
        let mut model = self.model.borrow_mut();
        match stage {
            Stage::Accepted => {}
            Stage::Written => model.see_written(seq.0),
            Stage::Persisted => {
                let persisted = seq.0.max(model.persisted);
                model.see_persisted(persisted)?;
            }
        }
        Ok(true)
    }

    /// Truncates all but the last few records.
    fn truncate(&self) {
        let mut model = self.model.borrow_mut();
        model.floor = model.floor.max(model.persisted.saturating_sub(3));
        self.log.truncate_before(Seq(model.floor));
    }

    /// Reads everything that is still needed, at its reported location.
    async fn read_again(&self) -> Result<(), String> {
        let numbers: Vec<u32> = self.model.borrow().batches.keys().copied().collect();
        for number in numbers {
            self.read_batch(number).await?;
        }
        Ok(())
    }

    /// Checks the segment indexes of sealed segments, including those whose sealing was interrupted.
    async fn read_segment_indexes(&self) -> Result<(), String> {
        for segment in self.log.segments() {
            // It may have none, or an incomplete one.
            let Ok(segment_index) = self.log.segment_index(segment).await else { continue };
            self.tally.borrow_mut().segment_indexes += 1;
            let mut scan = segment_index.scan_seq(Seq(0));
            loop {
                let next = match scan.next().await {
                    Err(_) if self.life.patience == Patience::Stops => return Ok(()),
                    next => next.map_err(|error| error.to_string())?,
                };
                let Some((entry, _)) = next else { break };
                let (seq, location) = (entry.seq, entry.location);
                let model = self.model.borrow();
                let mut batches = model.batches.values().filter_map(|batch| batch.appended.as_ref());
                let Some(batch) = batches.find(|batch| batch.first_seq <= seq && seq <= batch.last_seq)
                else {
                    return Err(format!(
                        "the segment index of segment {segment} has a Seq {} of its own",
                        seq.0
                    ));
                };
                if batch.locations[(seq.0 - batch.first_seq.0) as usize] != location {
                    return Err(format!(
                        "the segment index of segment {segment} has Seq {} elsewhere",
                        seq.0
                    ));
                }
            }
        }
        Ok(())
    }

    async fn read_one(&self, random: &mut Random) -> Result<(), String> {
        let count = self.model.borrow().batches.len() as u64;
        let nth = random.below(count.max(1)) as usize;
        let number = self.model.borrow().batches.keys().nth(nth).copied();
        match number {
            Some(number) => self.read_batch(number).await,
            None => Ok(()),
        }
    }

    async fn read_batch(&self, number: u32) -> Result<(), String> {
        let (values, appended) = {
            let model = self.model.borrow();
            match model.batches.get(&number) {
                Some(Submitted { values, appended: Some(appended), .. }) if model.is_needed(number) => {
                    (values.clone(), appended.clone())
                }
                _ => return Ok(()),
            }
        };
        for (value, location) in values.iter().zip(&appended.locations) {
            let same = self.log.read(*location).await.map(|record| record.value() == value);
            // It may have been truncated meanwhile.
            let is_needed = self.model.borrow().is_needed(number);
            match same {
                Ok(false) => return Err(format!("batch {number} at {location:?} reads as something else")),
                Err(error) if self.life.patience != Patience::Stops && is_needed => {
                    return Err(format!("reading batch {number}: {error}"));
                }
                Ok(true) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Checks the log at the end of a life, then closes or drops it.
    async fn finish(&self, mut random: Random) -> Result<(), String> {
        if let Err(stopped) = self.log.health() {
            if self.life.patience != Patience::Stops {
                return Err(stopped.to_string());
            }
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"late", b"", b"");
            if self.log.append(&batch, Stage::Accepted).await.is_ok() {
                return Err("a log that had stopped took a batch".into());
            }
            return self.read_again().await;
        }
        if random.one_in(2) {
            let closed = self.log.close().await;
            if self.unless_failed(closed)? {
                let accepted = self.model.borrow().accepted;
                self.model.borrow_mut().see_persisted(accepted)?;
            }
        }
        Ok(())
    }
}
