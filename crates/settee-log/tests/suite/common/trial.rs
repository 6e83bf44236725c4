//! The trials of a log: its configurations, and one process of it.
//!
//! A process opens the log, compares all records with what was submitted and acknowledged ([`Model`]), appends
//! from two tasks in all possible ways, and closes or drops the log. If it closed it, it may open it again and
//! do the same once more.

use std::cell::RefCell;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, join, select};
use settee_log::{
    AppendError, Appended, Batch, Failpoint, Flags, Log, LogOptions, OpenError, RecordRef, Seq, Stage,
};
use settee_sim::SimDisk;
use settee_sim::trial::{Event, EventKind, Process, Random, Subject, Tolerance};

use super::model::{Found, Model, Submitted, key};

const DIRECTORY: &str = "/data/log";

/// Longer than the longest operation of the disk.
const KILLED_FOR_MAX: Duration = Duration::from_secs(20);

/// What a process's second log adds to the streams of random numbers.
const SECOND_LOG_STREAM: u64 = 100;

/// A fault that is planted in the log or the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Log(Failpoint),
    IgnoredSyncs,
    IgnoredDirectorySyncs,
}

impl Fault {
    pub(crate) fn failpoint(self) -> Option<Failpoint> {
        match self {
            Fault::Log(failpoint) => Some(failpoint),
            Fault::IgnoredSyncs | Fault::IgnoredDirectorySyncs => None,
        }
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

    fn options(&self, fault: Option<Fault>, opening: u64) -> LogOptions {
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
            recycled_percent_max: 100,
            failpoint: fault.and_then(Fault::failpoint),
            ..LogOptions::default()
        }
    }

    /// The largest value in bytes.
    fn value_bytes_max(&self) -> u64 {
        if self.truncates { 1_000 } else { 18_000 }
    }
}

/// A log with its model.
pub(crate) struct LogTrial {
    seed: u64,
    fault: Option<Fault>,
    config: Config,
    model: RefCell<Model>,
}

impl Subject for LogTrial {
    type Fault = Fault;

    /// Without the disk's variants.
    const CONFIG_COUNT: u64 = 3 * 3 * 2 * 2 * 2;
    const STEP_COUNT: u64 = 6;
    const KILL_COUNT: u64 = 6;
    const CUT_COUNT_MAX: u64 = 3;
    const CUT_OPERATIONS_MAX: u64 = 30;

    fn new(seed: u64, fault: Option<Fault>) -> LogTrial {
        LogTrial { seed, fault, config: Config::of(seed), model: RefCell::default() }
    }

    fn config(&self) -> String {
        format!("{:?}", self.config)
    }

    fn disk(&self) -> SimDisk {
        SimDisk::new(self.seed)
            .short_reads(self.config.short_io)
            .short_writes(self.config.short_io)
            .stalls(self.config.stalls)
            .ignore_syncs(self.fault == Some(Fault::IgnoredSyncs))
            .ignore_directory_syncs(self.fault == Some(Fault::IgnoredDirectorySyncs))
    }

    fn more_events(&self, disk: &SimDisk) -> Vec<Event> {
        let length = |path| disk.read_file(path).map_or(0, |bytes| bytes.len() as u64);
        let used: u64 = disk.paths().into_iter().map(length).sum();
        let read_errors = (0..3).map(|at| Event::new(EventKind::ReadError, at));
        let full_disks = (1..=4).map(|part| Event::new(EventKind::FullDisk, used * part / 5));
        read_errors.chain(full_disks).collect()
    }

    async fn run_process(&self, process: &Process<'_>) -> Result<(), String> {
        let stream = 2 * process.number;
        let Some(log) = self.open(process, false).await? else { return Ok(()) };
        if !self.use_log(&log, process, stream).await? || Random::new(self.seed, stream).one_in(2) {
            return Ok(());
        }
        // The next log of the same process finds the close mark, and writes over it.
        drop(log);
        let is_mark_expected = process.tolerance == Tolerance::None && self.model.borrow().accepted > 0;
        let Some(log) = self.open(process, is_mark_expected).await? else { return Ok(()) };
        self.use_log(&log, process, stream + SECOND_LOG_STREAM).await.map(drop)
    }
}

impl LogTrial {
    /// Appends to the log, and compares it with the model. Returns whether it was closed.
    async fn use_log(&self, log: &Log, process: &Process<'_>, stream: u64) -> Result<bool, String> {
        let work = Work { log, config: self.config, process, model: &self.model };
        work.read_again().await?;
        work.read_segment_indexes().await?;
        let first = work.append_all(Random::new(self.seed, stream + 1));
        let second = work.append_all(Random::new(self.seed, stream + 2));
        let (first, second) = join(first, second).await;
        first.and(second)?;
        work.finish(Random::new(self.seed, stream)).await
    }

    /// Opens the log and compares. `None` if it can't be opened, and the event allows that.
    async fn open(&self, process: &Process<'_>, is_mark_expected: bool) -> Result<Option<Log>, String> {
        let clock = &process.env.clock;
        let options = self.config.options(self.fault, process.number);
        let until = clock.now() + KILLED_FOR_MAX;
        let mut found = Vec::new();
        let opened = loop {
            found.clear();
            let replay = |location, record: RecordRef<'_>| found.push(Found::new(location, record));
            match Log::open(process.env, Path::new(DIRECTORY), options, replay).await {
                // The system completes operations that a process had in flight when it was killed.
                Err(OpenError::InUse { .. }) if process.after_kill && clock.now() < until => {
                    clock.sleep(Duration::from_millis(1)).await;
                }
                opened => break opened,
            }
        };
        let (log, recovery) = match opened {
            Ok(opened) => opened,
            Err(OpenError::Io(_)) if process.may_stop() => {
                process.count("error", 1);
                return Ok(None);
            }
            Err(error) => return Err(format!("opening: {error}")),
        };
        process.set_opened();
        process.count("torn tail", u64::from(recovery.cut_bytes > 0));
        process.count("close mark", u64::from(recovery.was_closed));
        if is_mark_expected && !recovery.was_closed {
            return Err("opening: a log that was closed has no close mark".into());
        }
        self.model
            .borrow_mut()
            .recover(&found, process.after_kill, log.persisted().0)
            .map_err(|problem| format!("opening: {problem}"))?;
        Ok(Some(log))
    }
}

/// State shared by the tasks of a process.
struct Work<'a> {
    log: &'a Log,
    config: Config,
    process: &'a Process<'a>,
    model: &'a RefCell<Model>,
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
        let step_count = self.process.step_count * if self.config.truncates { 2 } else { 1 };
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
                1 => self.process.env.clock.sleep(Duration::from_micros(random.below(3_000))).await,
                2 => {
                    let flushed = self.log.flush().await;
                    self.process.unless_failed(flushed)?;
                }
                3 | 4 if self.config.truncates => self.truncate(),
                // Long enough for sealing, which waits for a pause.
                6 if self.config.truncates => self.process.env.clock.sleep(Duration::from_millis(250)).await,
                5 if self.config.direct == Direct::Changes => {
                    let changed = self.log.set_direct(random.one_in(2)).await;
                    self.process.unless_failed(changed)?;
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
            let leave = self.process.env.clock.sleep(Duration::from_micros(random.below(2_000)));
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
        random.slice(size)
    }

    /// Refusals and stops are allowed only in processes in which something fails.
    fn outcome_of(&self, result: Result<Appended, AppendError>) -> Result<AppendOutcome, String> {
        let error = match result {
            Ok(appended) => return Ok(AppendOutcome::Accepted(appended)),
            Err(error) => error,
        };
        self.process.count("append refused or stopped", 1);
        match error {
            AppendError::NoSpace { .. } if self.process.tolerance != Tolerance::None => {
                Ok(AppendOutcome::Refused)
            }
            AppendError::NoDescriptor { .. } if self.process.may_stop() => Ok(AppendOutcome::Refused),
            AppendError::Stopped(_) if self.process.may_stop() => Ok(AppendOutcome::Stopped),
            error => Err(format!("append: {error}")),
        }
    }

    /// Returns whether the stage was reached.
    async fn wait(&self, seq: Seq, stage: Stage) -> Result<bool, String> {
        let arrived = self.log.wait(seq, stage).await;
        if self.process.unless_failed(arrived)?.is_none() {
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
            self.process.count("segment index", 1);
            let mut scan = segment_index.scan_seq(Seq(0));
            loop {
                let next = match scan.next().await {
                    Err(_) if self.process.may_stop() => return Ok(()),
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
                Err(error) if !self.process.may_stop() && is_needed => {
                    return Err(format!("reading batch {number}: {error}"));
                }
                Ok(true) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Checks the log in the end, then closes it or leaves it. Returns whether it was closed.
    async fn finish(&self, mut random: Random) -> Result<bool, String> {
        if let Err(stopped) = self.log.health() {
            if !self.process.may_stop() {
                return Err(stopped.to_string());
            }
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"late", b"", b"");
            if self.log.append(&batch, Stage::Accepted).await.is_ok() {
                return Err("a log that had stopped took a batch".into());
            }
            return self.read_again().await.map(|()| false);
        }
        let closed = if random.one_in(2) { Some(self.log.close().await) } else { None };
        let is_closed = match closed {
            Some(closed) => self.process.unless_failed(closed)?.is_some(),
            None => false,
        };
        if is_closed {
            let accepted = self.model.borrow().accepted;
            self.model.borrow_mut().see_persisted(accepted)?;
        }
        Ok(is_closed)
    }
}
