//! The trials of a store: its configurations, and one process of it.
//!
//! In a process two tasks commit in every way there is, one takes snapshots and reads from them until the end,
//! and one makes checkpoints and rewrites segments. The first process then opens the store
//! again, at times without its tree. Each open compares everything with what was committed and acknowledged
//! ([`Model`]).

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join, join3};
use settee_io::{OperationKind, directory};
use settee_sim::SimDisk;
use settee_sim::trial::{Event, EventKind, PROCESS_TIME_MAX, Process, Random, Subject};
use settee_store::{
    AppendError, Batch, ChunkCache, CommitError, Failpoint, LogOptions, NodeCache, OpenError, Seq, Snapshot,
    Stage, Store, StoreError, StoreOptions,
};

use super::versions::{Change, Model, Problem, Version, aggregate, check, merge_operator};

const DIRECTORY: &str = "/data/store";

/// Number of keys loaded first in the wide workload.
const LOADED_COUNT: usize = 50;

/// A fault that is planted in the store or the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Store(Failpoint),
    IgnoredTreeSyncs,
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
    /// Whether little garbage is enough for work at pauses and for the early end of a segment.
    reclaims_little: bool,
}

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
            reclaims_little: random.one_in(2),
        }
    }

    fn options(&self, fault: Option<Fault>) -> StoreOptions {
        let failpoint = match fault {
            Some(Fault::Store(failpoint)) => Some(failpoint),
            Some(Fault::IgnoredTreeSyncs) | None => None,
        };
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
            immutable_memtables_max: 2,
            checkpoint_entries_min: few,
            checkpoint_entries_max: few,
            garbage_percent_max: self.garbage_percent_max,
            garbage_idle_percent_max: if self.reclaims_little { 10 } else { 100 },
            reclaim_bytes_min: if self.reclaims_little { 4 << 10 } else { 1 << 20 },
            idle_delay_ms: 100,
            cache: Some(Arc::new(NodeCache::new(self.cache_bytes))),
            chunks: self.has_chunks.then(|| Arc::new(ChunkCache::new(1 << 20))),
            failpoint,
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

/// A store with its model.
pub(crate) struct StoreTrial {
    seed: u64,
    config: Config,
    options: StoreOptions,
    ignores_tree_syncs: bool,
    model: RefCell<Model>,
}

impl Subject for StoreTrial {
    type Fault = Fault;

    /// Random choices excluded.
    const CONFIG_COUNT: u64 = 2 * 3 * 3;
    /// Batches of each of the two tasks.
    const STEP_COUNT: u64 = 9;
    const KILL_COUNT: u64 = 14;
    const CUT_COUNT_MAX: u64 = 2;
    const CUT_OPERATIONS_MAX: u64 = 60;

    fn new(seed: u64, fault: Option<Fault>) -> StoreTrial {
        let config = Config::of(seed);
        let ignores_tree_syncs = fault == Some(Fault::IgnoredTreeSyncs);
        StoreTrial {
            seed,
            config,
            options: config.options(fault),
            ignores_tree_syncs,
            model: RefCell::default(),
        }
    }

    fn config(&self) -> String {
        format!("{:?}", self.config)
    }

    fn disk(&self) -> SimDisk {
        let disk = SimDisk::new(self.seed);
        match self.ignores_tree_syncs {
            true => disk.ignore_syncs_of(|path| path.extension().is_some_and(|name| name == "tree")),
            false => disk,
        }
    }

    fn more_events(&self, disk: &SimDisk) -> Vec<Event> {
        let syncs = (self.seed % 4..disk.count_of(OperationKind::Sync)).step_by(4);
        syncs.map(|at| Event::new(EventKind::SyncError, at)).collect()
    }

    async fn run_process(&self, process: &Process<'_>) -> Result<(), String> {
        let work = Work { trial: self, config: self.config, process, model: &self.model };
        work.run_process().await
    }
}

/// What the tasks of a process share.
struct Work<'a> {
    trial: &'a StoreTrial,
    config: Config,
    process: &'a Process<'a>,
    model: &'a RefCell<Model>,
}

impl Work<'_> {
    async fn run_process(&self) -> Result<(), String> {
        let mut after_kill = self.process.after_kill;
        let seed = self.trial.seed;
        let passes = if self.process.number == 0 { 2 } else { 1 };
        for pass in 0..passes {
            let Some(store) = self.open(pass, after_kill).await? else { return Ok(()) };
            let stream = 8 * (2 * self.process.number + pass);
            let step_count = self.process.step_count >> pass;
            let kept = RefCell::new(Vec::new());
            let writers = async {
                let first = self.commit_all(&store, step_count, Random::new(seed, stream + 1));
                let second = self.commit_all(&store, step_count, Random::new(seed, stream + 2));
                let (first, second) = join(first, second).await;
                first.and(second)
            };
            let reader = self.read(&store, &kept, Random::new(seed, stream + 3));
            let keeper = self.keep(&store, Random::new(seed, stream + 4));
            let (wrote, read, kept_house) = join3(writers, reader, keeper).await;
            wrote.and(read).and(kept_house)?;
            let mut random = Random::new(seed, stream + 5);
            self.finish(&store, &kept, &mut random).await?;
            drop((kept, store));
            // The second open finds what the first left, on a system that goes on.
            after_kill = true;
            if self.process.has_failed() {
                // What a failed sync should have covered is lost or not; only a restart of the machine tells.
                return Ok(());
            }
            if self.config.loses_tree && pass == 0 && passes == 2 {
                self.remove_tree().await?;
            }
        }
        Ok(())
    }

    /// Opens the store and compares. `None` if it can't be opened, and the event allows that.
    async fn open(&self, pass: u64, after_kill: bool) -> Result<Option<Store>, String> {
        let until = self.process.env.clock.now() + PROCESS_TIME_MAX / 4;
        let opened = loop {
            match Store::open(self.process.env, Path::new(DIRECTORY), self.trial.options.clone()).await {
                // Background work has yet to see that the store was dropped.
                Err(StoreError::Log(OpenError::InUse { .. })) if self.process.env.clock.now() < until => {
                    self.process.env.clock.sleep(Duration::from_millis(1)).await;
                }
                opened => break opened,
            }
        };
        let store = match opened {
            Ok((store, _)) => store,
            Err(_) if self.process.may_stop() => {
                self.process.count("error", 1);
                return Ok(None);
            }
            Err(error) => return Err(format!("opening {pass}: {error}")),
        };
        self.process.set_opened();
        if !self.config.loses_tree && store.store_stats().rebuild_count > 0 {
            return Err(format!("opening {pass}: the tree that the manifest names is lost or damaged"));
        }
        let snapshot = store.snapshot();
        let recovered = self.model.borrow_mut().recover(snapshot.seq().0, after_kill);
        let version = recovered.map_err(|problem| format!("opening {pass}: {problem}"))?;
        self.compare(&snapshot, &version, "opening").await?;
        self.compare_live(&store).await?;
        self.compare_digests()?;
        Ok(Some(store))
    }

    /// Checks that a snapshot shows what it should.
    async fn compare(&self, snapshot: &Snapshot, version: &Version, when: &str) -> Result<(), String> {
        match check(snapshot, version, self.config.measured).await {
            Ok(()) => {}
            Err(Problem::Unread(_)) if self.process.may_stop() => self.process.count("error", 1),
            Err(problem) => return Err(format!("{when}: {problem}")),
        }
        self.process.count("snapshot", 1);
        Ok(())
    }

    /// Checks that the live bytes recorded for the segments are those of the tree.
    async fn compare_live(&self, store: &Store) -> Result<(), String> {
        match store.live_tables().await {
            Ok((recorded, found)) if recorded == found => {
                self.process.count("segment", found.len() as u64);
                Ok(())
            }
            Ok((recorded, found)) => Err(format!("recorded as live: {recorded:?}, found: {found:?}")),
            Err(_) if self.process.may_stop() => Ok(()),
            Err(error) => Err(format!("reading what lives: {error}")),
        }
    }

    /// Checks that each listed file has the length and the checksum that the manifest has.
    fn compare_digests(&self) -> Result<(), String> {
        let read = |name: &str| self.process.disk.read_file(Path::new(DIRECTORY).join(name));
        let Some(manifest) = read("manifest") else { return Ok(()) };
        let text = String::from_utf8(manifest).map_err(|error| error.to_string())?;
        for line in text.lines().filter_map(|line| line.strip_prefix("segment ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let [first, last, generation, .., length, checksum] = words[..] else {
                return Err(format!("the manifest has the line {line:?}"));
            };
            let name = match generation {
                "0" => format!("{first:0>10}.log"),
                _ => format!("{first:0>10}-{last:0>10}-{generation}.seg"),
            };
            let bytes = read(&name).ok_or_else(|| format!("the manifest names {name}, which is missing"))?;
            let found = (bytes.len().to_string(), blake3::hash(&bytes).to_hex().to_string());
            if (&*found.0, &*found.1) != (length, checksum) {
                return Err(format!(
                    "{name} isn't what was sealed: {found:?}, and the manifest says {line:?}"
                ));
            }
            self.process.count("digest", 1);
        }
        Ok(())
    }

    async fn commit_all(&self, store: &Store, step_count: u64, mut random: Random) -> Result<(), String> {
        for _ in 0..step_count {
            let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][random.below(3) as usize];
            match self.commit(store, &mut random, stage).await? {
                Some(seq) if !random.one_in(3) => {
                    let arrived = store.wait(Seq(seq), stage).await;
                    if self.process.unless_failed(arrived)?.is_some() {
                        self.see(store, seq, stage)?;
                    }
                }
                _ => {}
            }
            match random.below(6) {
                0 => self.process.env.clock.sleep(Duration::from_micros(random.below(3_000))).await,
                1 => {
                    let flushed = store.flush().await;
                    self.process.unless_failed(flushed)?;
                }
                // Long enough for segments to be sealed.
                2 => self.process.env.clock.sleep(Duration::from_millis(random.below(300))).await,
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

    /// Commits a batch; returns the `Seq` of its last record, or `None` if the store refused it and may.
    async fn commit(&self, store: &Store, random: &mut Random, stage: Stage) -> Result<Option<u64>, String> {
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
                Ok(Some(seq.0))
            }
            Err(CommitError::Append(
                AppendError::NoSpace { .. } | AppendError::NoDescriptor { .. } | AppendError::Stopped(_),
            ))
            | Err(CommitError::Read(_) | CommitError::Full { .. })
                if self.process.may_stop() =>
            {
                self.process.count("error", 1);
                Ok(None)
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
        for _ in 0..self.process.step_count.min(4) {
            self.process.env.clock.sleep(Duration::from_millis(random.below(250))).await;
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
        for _ in 0..self.process.step_count.min(5) {
            self.process.env.clock.sleep(Duration::from_millis(random.below(250))).await;
            if random.one_in(3) {
                let done = store.compact().await;
                if let Some(done) = self.process.unless_failed(done)? {
                    self.process.count("segment rewritten", done.segment_count);
                }
            } else {
                let done = store.checkpoint().await;
                if let Some(Some(done)) = self.process.unless_failed(done)? {
                    let kind =
                        if done.is_whole { "whole checkpoint" } else { "checkpoint by touched leaves" };
                    self.process.count(kind, 1);
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
        if self.process.step_count > 0 && random.one_in(2) {
            let done = store.compact().await;
            if let Some(done) = self.process.unless_failed(done)? {
                self.process.count("segment rewritten", done.segment_count);
            }
        }
        let flushed = store.flush().await;
        if self.process.unless_failed(flushed)?.is_some() {
            let snapshot = store.snapshot();
            let (newest, version) = self.model.borrow().newest();
            self.model.borrow_mut().show(newest)?;
            if snapshot.seq().0 != newest {
                return Err(format!("Seq {} is shown at the end, and not {newest}", snapshot.seq().0));
            }
            self.compare(&snapshot, &version, "the end").await?;
            self.compare_live(store).await?;
            self.compare_digests()?;
        }
        for (snapshot, version) in kept.take() {
            self.compare(&snapshot, &version, "a snapshot that was kept").await?;
        }
        if !random.one_in(3) {
            let closed = store.close().await;
            self.process.unless_failed(closed)?;
        }
        Ok(())
    }

    /// Removes the tree, as if it were lost.
    async fn remove_tree(&self) -> Result<(), String> {
        let root = Path::new(DIRECTORY);
        let entries = directory::list(&*self.process.env.engine, root).await;
        let Some(entries) = self.process.unless_failed(entries)? else { return Ok(()) };
        for entry in entries.iter().filter(|entry| entry.name.ends_with(".tree")) {
            let removed = directory::remove(&*self.process.env.engine, &root.join(&entry.name)).await;
            // Its last reader has just removed it.
            if removed.as_ref().is_err_and(|error| error.is_not_found()) {
                continue;
            }
            if self.process.unless_failed(removed)?.is_some() {
                self.process.count("tree rebuilt", 1);
            }
        }
        Ok(())
    }
}
