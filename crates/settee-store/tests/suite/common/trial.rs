//! Trials: a seeded run of a store with one event, and the recovery from it.
//!
//! A trial opens a store on a simulated disk. Two tasks commit in every way there is, one takes snapshots and
//! reads from them until the end, and one makes checkpoints and rewrites segments. Then the same process
//! opens the store again, at times without its tree. One [`Event`] happens during all that. The store is then
//! opened again, with a power loss at some operation of that open (so often during recovery), once or more;
//! then used, with checkpoints and compaction; and opened a last time. Each open compares everything with
//! what was committed and acknowledged ([`Model`]).
//!
//! The seed alone decides the configuration, the workload and the disk; seed and event together decide the
//! rest. A failure's message therefore replays it: see [`run_trial`].

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, join3, select};
use settee_io::{Env, OperationKind, directory};
use settee_sim::{Fault, Sim, SimDisk};
use settee_store::{
    AppendError, Batch, ChunkCache, CommitError, Failpoint, LogOptions, NodeCache, OpenError, Seq, Snapshot,
    Stage, Store, StoreError, StoreOptions,
};

use super::versions::{Change, Model, Problem, Version, aggregate, check, merge_operator};

const DIRECTORY: &str = "/data/store";

/// Number of keys loaded first in the wide workload.
const LOADED_COUNT: usize = 50;

/// Largest number of consecutive opens that a power loss interrupts.
const OPENINGS_CUT_SHORT_MAX: u64 = 2;

/// Largest number of operations of such an open before the power is cut.
const SECOND_CUT_OPERATIONS_MAX: u64 = 60;

/// A run that has not ended by then hangs.
const LIFE_MAX: Duration = Duration::from_secs(120);

/// What happens to the machine in the store's first run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The power is cut during the operation with this index.
    PowerLossAt(u64),
    /// The power is cut when the sync with this index has taken effect.
    PowerLossAfterSync(u64),
    /// The process is killed after this many microseconds; the system goes on.
    KillAt(u64),
    /// The operation with this index fails with EIO or ENOSPC.
    IoErrorAt(u64),
    NoSpaceAt(u64),
    /// The operation with this number finds no file descriptor, if it needs one.
    NoDescriptorAt(u64),
    /// The sync with this index fails.
    SyncErrorAt(u64),
}

type Named = (&'static str, fn(u64) -> Event);

const NAMES: [Named; 7] = [
    ("power-loss-at", Event::PowerLossAt),
    ("power-loss-after-sync", Event::PowerLossAfterSync),
    ("kill-at", Event::KillAt),
    ("io-error-at", Event::IoErrorAt),
    ("no-space-at", Event::NoSpaceAt),
    ("sync-error-at", Event::SyncErrorAt),
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
            Event::NoDescriptorAt(at) => (6, at),
            Event::SyncErrorAt(at) => (5, at),
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
    /// The fault of the store or of the disk.
    pub(crate) failpoint: Option<Failpoint>,
    pub(crate) ignores_tree_syncs: bool,
}

impl Setup {
    pub(crate) fn new(seed: u64) -> Setup {
        Setup { seed, failpoint: None, ignores_tree_syncs: false }
    }
}

/// The kind of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Few keys with large values: much garbage.
    Narrow,
    /// Many keys with large metas: a tree of several leaves.
    Wide,
}

/// When background checkpoints are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limits {
    Often,
    Never,
    /// So little memory that writers wait for them.
    LittleMemory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operands {
    No,
    Merged,
    Unmerged,
}

/// One of the configurations of the matrix.
#[derive(Debug, Clone, Copy)]
struct Config {
    shape: Shape,
    limits: Limits,
    operands: Operands,
    direct: bool,
    measured: bool,
    versions_max: usize,
    garbage_percent_max: u64,
    cache_bytes: usize,
    /// Whether there is a chunk cache.
    has_chunks: bool,
    loses_tree: bool,
}

/// Number of configurations, random choices excluded: as many consecutive seeds have one each.
pub(crate) const CONFIG_COUNT: u64 = 2 * 3 * 3;

impl Config {
    fn of(seed: u64) -> Config {
        let mut random = Random::new(seed, 1);
        Config {
            shape: [Shape::Narrow, Shape::Wide][(seed % 2) as usize],
            limits: [Limits::Often, Limits::Never, Limits::LittleMemory][(seed / 2 % 3) as usize],
            operands: [Operands::Merged, Operands::No, Operands::Unmerged][(seed / 6 % 3) as usize],
            direct: random.one_in(2),
            measured: !random.one_in(3),
            versions_max: [0, 3][random.below(2) as usize],
            garbage_percent_max: [10, 40][random.below(2) as usize],
            // With no cache, the wide workload would only read.
            cache_bytes: [if seed.is_multiple_of(2) { 0 } else { 8 << 10 }, 1 << 20]
                [random.below(2) as usize],
            has_chunks: random.one_in(2),
            loses_tree: random.one_in(3),
        }
    }

    fn options(&self, setup: &Setup) -> StoreOptions {
        let few = match self.limits {
            Limits::Often => 12,
            Limits::Never | Limits::LittleMemory => 1 << 20,
        };
        StoreOptions {
            log: LogOptions {
                batch_bytes_max: 16 << 10,
                segment_bytes_min: 20 << 10,
                segment_bytes_max: 34 << 10,
                direct: self.direct,
                ..LogOptions::DEFAULT
            },
            aggregate: self.measured.then_some(aggregate),
            merge_operator: (self.operands == Operands::Merged).then_some(merge_operator),
            versions_max: self.versions_max,
            memory_bytes_max: if self.limits == Limits::LittleMemory { 6 << 10 } else { 4 << 20 },
            frozen_layers_max: 2,
            checkpoint_entries_min: few,
            checkpoint_entries_max: few,
            garbage_percent_max: self.garbage_percent_max,
            cache: Some(Arc::new(NodeCache::new(self.cache_bytes))),
            chunks: self.has_chunks.then(|| Arc::new(ChunkCache::new(1 << 20))),
            failpoint: setup.failpoint,
            ..StoreOptions::DEFAULT
        }
    }

    fn key_count(&self) -> u64 {
        if self.shape == Shape::Wide { 70 } else { 5 }
    }
}

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("k{number:02}").into_bytes()
}

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ stream.rotate_left(40));
        random.0 = random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Some random bytes.
    pub(crate) fn slice(&mut self, size: u64) -> Bytes {
        let start = self.below(BYTES.len() as u64 - size) as usize;
        BYTES.slice(start..start + size as usize)
    }
}

/// Random bytes; values and metas are slices of them.
static BYTES: LazyLock<Bytes> = LazyLock::new(|| {
    let mut random = Random::new(0, 0);
    (0..8 << 10).flat_map(|_| random.next().to_le_bytes()).collect::<Vec<u8>>().into()
});

/// What was tried.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Power losses during a run, after which the store was opened and compared.
    pub(crate) power_losses: u64,
    /// Power losses after the last operation.
    pub(crate) at_end: u64,
    /// Power losses while a store was being opened.
    pub(crate) during_recovery: u64,
    pub(crate) kills: u64,
    /// Operations of the store that failed because of the event.
    pub(crate) errors: u64,
    /// Checkpoints on demand that changed the tree's leaves.
    pub(crate) touched: u64,
    /// Checkpoints on demand that wrote a new tree file.
    pub(crate) whole: u64,
    /// Segments rewritten by compactions on demand.
    pub(crate) rewritten: u64,
    /// Trees that were removed and rebuilt.
    pub(crate) rebuilt: u64,
    /// Snapshots that were compared with the model.
    pub(crate) snapshots: u64,
    /// Segments found at opens.
    pub(crate) segments: u64,
    /// A hash over everything that happened on the disks.
    pub(crate) trace: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.power_losses += other.power_losses;
        self.at_end += other.at_end;
        self.during_recovery += other.during_recovery;
        self.kills += other.kills;
        self.errors += other.errors;
        self.touched += other.touched;
        self.whole += other.whole;
        self.rewritten += other.rewritten;
        self.rebuilt += other.rebuilt;
        self.snapshots += other.snapshots;
        self.segments += other.segments;
        self.trace = self.trace.rotate_left(1) ^ other.trace;
    }
}

/// What happens in a run.
#[derive(Debug, Clone, Copy)]
struct Life {
    number: u64,
    /// Batches of each of the two tasks.
    step_count: u64,
    /// The previous process was killed, and its writes are still in the page cache.
    after_kill: bool,
    /// Something fails: the store may report it.
    is_patient: bool,
    kill_at: Option<Duration>,
    /// Whether the store is opened a second time.
    reopens: bool,
}

impl Life {
    fn first(kill_at: Option<Duration>, is_patient: bool) -> Life {
        Life { number: 0, step_count: 9, after_kill: false, is_patient, kill_at, reopens: true }
    }
}

/// How a run ended.
struct End {
    opened: bool,
    /// How long it took.
    time: Duration,
}

/// Runs a trial. A panic counts as a failure.
///
/// # Errors
/// What went wrong, and the two variables that make the test `power_loss` run only this trial.
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

/// Every event of a seed's first run: a power loss at each operation and after each sync, kills, and failures
/// of some operations and syncs.
///
/// # Errors
/// As [`run_trial`], from a first run without an event.
pub(crate) fn events(setup: &Setup) -> Result<Vec<Event>, String> {
    let disk = disk(setup);
    let event = Event::PowerLossAt(u64::MAX);
    let lived =
        catch_unwind(AssertUnwindSafe(|| Trial::new(setup, event).live(&disk, Life::first(None, false))));
    let end = match lived {
        Ok(Ok(end)) => end,
        // Reports the failure.
        _ => return run_trial(setup, event).and(Err("it doesn't fail again".into())),
    };
    let (operations, time_us) = (disk.operation_count(), end.time.as_micros() as u64);
    let mut events = Vec::new();
    events.extend((0..operations).map(Event::PowerLossAt));
    events.extend((0..disk.sync_count()).map(Event::PowerLossAfterSync));
    events.extend((1..=14).map(|part| Event::KillAt(time_us * part / 15)));
    for at in (setup.seed % 5..operations).step_by(5) {
        events.push(if at % 2 == 0 { Event::IoErrorAt(at) } else { Event::NoSpaceAt(at) });
        if at % 3 == 0 {
            events.push(Event::NoDescriptorAt(at));
        }
    }
    events.extend((setup.seed % 4..disk.count_of(OperationKind::Sync)).step_by(4).map(Event::SyncErrorAt));
    Ok(events)
}

fn disk(setup: &Setup) -> SimDisk {
    let disk = SimDisk::new(setup.seed);
    match setup.ignores_tree_syncs {
        true => disk.ignore_syncs_of(|path| path.extension().is_some_and(|name| name == "tree")),
        false => disk,
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
        let (mut kill_at, mut is_patient) = (None, false);
        match self.event {
            Event::PowerLossAt(at) => disk = disk.crash_at_operation(at),
            Event::PowerLossAfterSync(at) => disk = disk.crash_after_sync(at),
            Event::KillAt(us) => kill_at = Some(Duration::from_micros(us)),
            Event::IoErrorAt(at) => (disk, is_patient) = (disk.fail_operation(at, Fault::Io), true),
            Event::NoSpaceAt(at) => (disk, is_patient) = (disk.fail_operation(at, Fault::NoSpace), true),
            Event::NoDescriptorAt(at) => {
                (disk, is_patient) = (disk.fail_operation(at, Fault::NoDescriptor), true);
            }
            Event::SyncErrorAt(at) => {
                (disk, is_patient) = (disk.fail(OperationKind::Sync, at, Fault::Io), true);
            }
        }
        self.live(&disk, Life::first(kill_at, is_patient))?;
        let mut after_kill = kill_at.is_some();
        match after_kill {
            true => self.tally.kills += 1,
            false => disk = self.lose_power(&disk),
        }
        let second =
            Life { number: 1, step_count: 2, after_kill, is_patient: false, kill_at: None, reopens: false };
        for _ in 0..1 + random.below(OPENINGS_CUT_SHORT_MAX) {
            let cut_at = disk.operation_count() + random.below(SECOND_CUT_OPERATIONS_MAX);
            disk = disk.crash_at_operation(cut_at);
            let end = self.live(&disk, Life { after_kill, ..second })?;
            self.tally.during_recovery += u64::from(!end.opened && disk.is_power_lost());
            disk = self.lose_power(&disk);
            after_kill = false;
        }
        let third = Life { number: 2, after_kill, ..second };
        self.live(&disk, third)?;
        disk = self.lose_power(&disk);
        self.live(&disk, Life { number: 3, step_count: 0, ..third })?;
        self.tally.trace ^= disk.trace_hash();
        Ok(self.tally)
    }

    fn lose_power(&mut self, disk: &SimDisk) -> SimDisk {
        match disk.is_power_lost() {
            true => self.tally.power_losses += 1,
            false => self.tally.at_end += 1,
        }
        self.tally.trace = self.tally.trace.rotate_left(1) ^ disk.trace_hash();
        disk.after_power_loss()
    }

    /// Opens the store, compares, works, and ends in one way or another.
    fn live(&mut self, disk: &SimDisk, life: Life) -> Result<End, String> {
        let sim = Sim::with_disk(disk);
        let env = sim.env();
        let (model, tally) = (RefCell::new(std::mem::take(&mut self.model)), RefCell::new(self.tally));
        let options = self.config.options(self.setup);
        let opened = RefCell::new(false);
        let work = Work {
            env: &env,
            config: self.config,
            options,
            seed: self.setup.seed,
            life,
            model: &model,
            tally: &tally,
            opened: &opened,
            disk,
            event: self.event,
        };
        let start = env.clock.now();
        let ended = sim.run(async {
            let all = pin!(work.live());
            let end = env.clock.sleep(life.kill_at.unwrap_or(LIFE_MAX));
            match select(all, end).await {
                Either::Left((ended, _)) => ended,
                Either::Right(_) if life.kill_at.is_some() => Ok(()),
                Either::Right(_) => Err("it comes to no end".into()),
            }
        });
        let time = env.clock.now() - start;
        drop(work);
        self.tally = tally.into_inner();
        self.model = model.into_inner();
        ended.unwrap_or(Ok(())).map_err(|problem| format!("life {}: {problem}", life.number))?;
        Ok(End { opened: opened.into_inner(), time })
    }
}

/// What the tasks of a run share.
struct Work<'a> {
    env: &'a Env,
    config: Config,
    options: StoreOptions,
    seed: u64,
    life: Life,
    model: &'a RefCell<Model>,
    tally: &'a RefCell<Tally>,
    opened: &'a RefCell<bool>,
    disk: &'a SimDisk,
    event: Event,
}

/// An operation was refused in a run in which that may happen: the task goes on, or ends.
struct Refused;

impl Work<'_> {
    async fn live(&self) -> Result<(), String> {
        let mut after_kill = self.life.after_kill;
        let passes = if self.life.reopens { 2 } else { 1 };
        for pass in 0..passes {
            let Some(store) = self.open(pass, after_kill).await? else { return Ok(()) };
            let stream = 8 * (2 * self.life.number + pass);
            let step_count = self.life.step_count >> pass;
            let kept = RefCell::new(Vec::new());
            let writers = async {
                let first = self.commit_all(&store, step_count, Random::new(self.seed, stream + 1));
                let second = self.commit_all(&store, step_count, Random::new(self.seed, stream + 2));
                let (first, second) = futures_util::future::join(first, second).await;
                first.and(second)
            };
            let reader = self.read(&store, &kept, Random::new(self.seed, stream + 3));
            let keeper = self.keep(&store, Random::new(self.seed, stream + 4));
            let (wrote, read, kept_house) = join3(writers, reader, keeper).await;
            wrote.and(read).and(kept_house)?;
            let mut random = Random::new(self.seed, stream + 5);
            self.finish(&store, &kept, &mut random).await?;
            drop((kept, store));
            // The second open finds what the first left, on a system that goes on.
            after_kill = true;
            if self.has_failed() {
                // What a failed sync should have covered is lost or not; only a restart of the machine tells.
                return Ok(());
            }
            if self.config.loses_tree && pass == 0 && passes == 2 {
                self.remove_tree().await?;
            }
        }
        Ok(())
    }

    /// Whether the operation that is to fail has failed.
    fn has_failed(&self) -> bool {
        match self.event {
            Event::IoErrorAt(at) | Event::NoSpaceAt(at) | Event::NoDescriptorAt(at) => {
                self.disk.operation_count() > at
            }
            Event::SyncErrorAt(at) => self.disk.count_of(OperationKind::Sync) > at,
            Event::PowerLossAt(_) | Event::PowerLossAfterSync(_) | Event::KillAt(_) => false,
        }
    }

    /// Opens the store and compares. `None` if it can't be opened, and the event allows that.
    async fn open(&self, pass: u64, after_kill: bool) -> Result<Option<Store>, String> {
        let until = self.env.clock.now() + LIFE_MAX / 4;
        let opened = loop {
            match Store::open(self.env, Path::new(DIRECTORY), self.options.clone()).await {
                // Background work has yet to see that the store was dropped.
                Err(StoreError::Log(OpenError::InUse { .. })) if self.env.clock.now() < until => {
                    self.env.clock.sleep(Duration::from_millis(1)).await;
                }
                opened => break opened,
            }
        };
        let store = match opened {
            Ok((store, _)) => store,
            Err(_) if self.life.is_patient => {
                self.tally.borrow_mut().errors += 1;
                return Ok(None);
            }
            Err(error) => return Err(format!("opening {pass}: {error}")),
        };
        *self.opened.borrow_mut() = true;
        if !self.config.loses_tree && store.store_stats().rebuild_count > 0 {
            return Err(format!("opening {pass}: the tree that the manifest names is lost or damaged"));
        }
        let snapshot = store.snapshot();
        let recovered = self.model.borrow_mut().recover(snapshot.seq().0, after_kill);
        let version = recovered.map_err(|problem| format!("opening {pass}: {problem}"))?;
        self.compare(&snapshot, &version, "opening").await?;
        self.compare_live(&store).await?;
        Ok(Some(store))
    }

    /// Checks that a snapshot shows what it should.
    async fn compare(&self, snapshot: &Snapshot, version: &Version, when: &str) -> Result<(), String> {
        match check(snapshot, version, self.config.measured).await {
            Ok(()) => {}
            Err(Problem::Unread(_)) if self.life.is_patient => self.tally.borrow_mut().errors += 1,
            Err(problem) => return Err(format!("{when}: {problem}")),
        }
        self.tally.borrow_mut().snapshots += 1;
        Ok(())
    }

    /// Checks that the live bytes recorded for the segments are those of the tree.
    async fn compare_live(&self, store: &Store) -> Result<(), String> {
        match store.live_tables().await {
            Ok((recorded, found)) if recorded == found => {
                self.tally.borrow_mut().segments += found.len() as u64;
                Ok(())
            }
            Ok((recorded, found)) => Err(format!("recorded as live: {recorded:?}, found: {found:?}")),
            Err(_) if self.life.is_patient => Ok(()),
            Err(error) => Err(format!("reading what lives: {error}")),
        }
    }

    async fn commit_all(&self, store: &Store, step_count: u64, mut random: Random) -> Result<(), String> {
        for _ in 0..step_count {
            let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][random.below(3) as usize];
            match self.commit(store, &mut random, stage).await? {
                Ok(seq) if !random.one_in(3) => {
                    let arrived = store.wait(Seq(seq), stage).await;
                    if self.unless_failed(arrived)?.is_ok() {
                        self.see(store, seq, stage)?;
                    }
                }
                _ => {}
            }
            match random.below(6) {
                0 => self.env.clock.sleep(Duration::from_micros(random.below(3_000))).await,
                1 => {
                    let flushed = store.flush().await;
                    let _ = self.unless_failed(flushed)?;
                }
                // Long enough for segments to be sealed.
                2 => self.env.clock.sleep(Duration::from_millis(random.below(300))).await,
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes that a batch reached the stage that the store reported.
    fn see(&self, store: &Store, seq: u64, stage: Stage) -> Result<(), String> {
        let mut model = self.model.borrow_mut();
        match stage {
            Stage::Accepted => {}
            Stage::Written => model.see_written(seq),
            Stage::Persisted => {
                model.see_persisted(seq);
                let shown = store.snapshot().seq().0;
                if shown < seq {
                    return Err(format!("Seq {seq} is persisted, and Seq {shown} is shown"));
                }
            }
        }
        Ok(())
    }

    /// Commits a batch; returns the `Seq` of its last record.
    async fn commit(
        &self,
        store: &Store,
        random: &mut Random,
        stage: Stage,
    ) -> Result<Result<u64, Refused>, String> {
        let mut writer = store.writer().await;
        let (newest, version) = self.model.borrow().newest();
        if writer.last_seq().0 != newest {
            return Err(format!("the writer is at Seq {}, and not at {newest}", writer.last_seq().0));
        }
        let changes = self.changes(&version, random);
        let mut batch = Batch::new();
        for (key, change) in &changes {
            match change {
                Change::Put { meta, value, in_seq_index } => {
                    batch.put(key, meta, value.clone(), *in_seq_index)
                }
                Change::Merge { meta, operand } => batch.merge(key, meta, operand.clone()),
                Change::Delete => batch.delete(key),
            }
        }
        let committed = writer.commit(&batch, stage).await;
        match committed {
            Ok(seq) => {
                self.model.borrow_mut().accept(seq.0, &changes)?;
                Ok(Ok(seq.0))
            }
            Err(CommitError::Append(
                AppendError::NoSpace { .. } | AppendError::NoDescriptor { .. } | AppendError::Stopped(_),
            ))
            | Err(CommitError::Read(_) | CommitError::Full { .. })
                if self.life.is_patient =>
            {
                self.tally.borrow_mut().errors += 1;
                Ok(Err(Refused))
            }
            Err(error) => Err(format!("commit: {error}")),
        }
    }

    fn changes(&self, version: &Version, random: &mut Random) -> Vec<(Vec<u8>, Change)> {
        let Config { shape, operands, measured, .. } = self.config;
        if shape == Shape::Wide && version.entries.len() < LOADED_COUNT {
            // A tree of several leaves.
            let first = version.entries.len() as u64;
            let meta = random.slice(450).to_vec();
            let put = |number| {
                let value = Bytes::from(key(number));
                (
                    key(number),
                    Change::Put { meta: meta.clone(), value, in_seq_index: measured && number % 3 == 0 },
                )
            };
            return (first..first + LOADED_COUNT as u64 / 2).map(put).collect();
        }
        let (meta_size, value_size) = match shape {
            Shape::Narrow => (30, 5_000),
            Shape::Wide => (450, 300),
        };
        let mut changes: Vec<(Vec<u8>, Change)> = Vec::new();
        for _ in 0..1 + random.below(if shape == Shape::Wide { 6 } else { 3 }) {
            let mut number = random.below(self.config.key_count());
            let is_merged = operands != Operands::No && random.one_in(2);
            if is_merged && !random.one_in(4) {
                // Operand chains grow.
                number %= 2;
            }
            let key = key(number);
            let (size, meta_size) = (random.below(value_size), random.below(meta_size));
            let meta = random.slice(meta_size).to_vec();
            let is_twice = changes.iter().any(|(other, _)| *other == key);
            let is_full = version.has_most_operands(&key) && (is_twice || operands == Operands::Unmerged);
            let change = if is_merged && !is_full && !is_twice {
                let operand = random.slice(size / 20);
                Change::Merge { meta, operand }
            } else if random.one_in(4) {
                Change::Delete
            } else {
                Change::Put { meta, value: random.slice(size), in_seq_index: measured && random.one_in(2) }
            };
            changes.push((key, change));
        }
        changes
    }

    /// Takes snapshots, keeps some, and reads from them.
    async fn read(
        &self,
        store: &Store,
        kept: &RefCell<Vec<(Snapshot, Arc<Version>)>>,
        mut random: Random,
    ) -> Result<(), String> {
        for _ in 0..self.life.step_count.min(4) {
            self.env.clock.sleep(Duration::from_millis(random.below(250))).await;
            let snapshot = store.snapshot();
            let version = self.model.borrow_mut().show(snapshot.seq().0)?;
            if random.one_in(3) {
                self.compare(&snapshot, &version, "reading").await?;
            }
            if !random.one_in(3) {
                kept.borrow_mut().push((snapshot, version));
            }
        }
        Ok(())
    }

    /// Makes checkpoints, and has segments rewritten.
    async fn keep(&self, store: &Store, mut random: Random) -> Result<(), String> {
        for _ in 0..self.life.step_count.min(5) {
            self.env.clock.sleep(Duration::from_millis(random.below(250))).await;
            if random.one_in(3) {
                let done = store.compact().await;
                if let Ok(done) = self.unless_failed(done)? {
                    self.tally.borrow_mut().rewritten += done.segment_count;
                }
            } else {
                let done = store.checkpoint().await;
                if let Ok(Some(done)) = self.unless_failed(done)? {
                    let mut tally = self.tally.borrow_mut();
                    *(if done.is_whole { &mut tally.whole } else { &mut tally.touched }) += 1;
                }
            }
        }
        Ok(())
    }

    /// Checks what must hold at the end; then closes the store, or leaves it as it is.
    async fn finish(
        &self,
        store: &Store,
        kept: &RefCell<Vec<(Snapshot, Arc<Version>)>>,
        random: &mut Random,
    ) -> Result<(), String> {
        if self.life.step_count > 0 && random.one_in(2) {
            let done = store.compact().await;
            if let Ok(done) = self.unless_failed(done)? {
                self.tally.borrow_mut().rewritten += done.segment_count;
            }
        }
        let flushed = store.flush().await;
        if self.unless_failed(flushed)?.is_ok() {
            let snapshot = store.snapshot();
            let (newest, version) = self.model.borrow().newest();
            self.model.borrow_mut().show(newest)?;
            if snapshot.seq().0 != newest {
                return Err(format!("Seq {} is shown at the end, and not {newest}", snapshot.seq().0));
            }
            self.compare(&snapshot, &version, "the end").await?;
            self.compare_live(store).await?;
        }
        for (snapshot, version) in kept.take() {
            self.compare(&snapshot, &version, "a snapshot that was kept").await?;
        }
        if !random.one_in(3) {
            let closed = store.close().await;
            let _ = self.unless_failed(closed)?;
        }
        Ok(())
    }

    /// Removes the tree, as if it were lost.
    async fn remove_tree(&self) -> Result<(), String> {
        let root = Path::new(DIRECTORY);
        let entries = directory::list(&*self.env.engine, root).await;
        let Ok(entries) = self.unless_failed(entries)? else { return Ok(()) };
        for entry in entries.iter().filter(|entry| entry.name.ends_with(".tree")) {
            let removed = directory::remove(&*self.env.engine, &root.join(&entry.name)).await;
            if self.unless_failed(removed)?.is_ok() {
                self.tally.borrow_mut().rebuilt += 1;
            }
        }
        Ok(())
    }

    /// An error fails the trial unless the run may fail.
    fn unless_failed<T, E: fmt::Display>(&self, result: Result<T, E>) -> Result<Result<T, Refused>, String> {
        match result {
            Ok(value) => Ok(Ok(value)),
            Err(_) if self.life.is_patient => {
                self.tally.borrow_mut().errors += 1;
                Ok(Err(Refused))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
