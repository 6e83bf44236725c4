//! Benchmark of the store, compared with other engines and with the machine's limits.
//!
//! - Loads without a sync, after Neon's `bench_ingest`: small and large values, keys in order and at random,
//!   with and without writing the index to disk, alone and beside a reader.
//! - Loads of many records, and reads of them: cached, from the page cache, cold with memory for a tenth of
//!   the data, in order; loads of increasing numbers of records, compared with the smallest.
//! - Durable single writes; overwriting all records while they are read; opening after a kill.
//!
//! Every run is a separate process, of this program ([`run_here`]) or of the peers' (the `peers` directory of
//! the source tree). Both compile the same source of the workloads, `work`. The engines run alternately, and
//! each round begins with another one; except for large data sets, of which the disk holds one at a time.
//! Figures are medians of the rounds; ratios are medians of the rounds' ratios to the peer with the best
//! median. Values are random bytes of a fixed seed; nothing is compressed.

use std::cell::Cell;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use settee_io::EngineKind;

use crate::io::data_file;
use crate::io::row::{IoRow, RatioAim, Series};
use crate::{Error, Result, space};

mod bare;
mod durable;
mod ingest;
mod ours;
mod overwrite;
mod records;
mod runs;
mod work;

pub use runs::PEERS;

use runs::{EngineId, Programs, Run};
use work::{Operation, Order, Spec};

/// Pause before each part, since a disk may still process earlier writes and removals.
const PART_PAUSE: Duration = Duration::from_secs(3);

/// Number of records of a batch.
const BATCH_COUNT: usize = 16;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Loads after Neon's `bench_ingest`.
    Ingest,
    /// A load of 1 KiB records, and reads and scans of them.
    Large,
    /// A load of 100 B records, and reads and scans of them.
    Small,
    /// Loads of increasing numbers of records.
    Growth,
    /// Durable single writes.
    Durable,
    /// Overwriting while reading.
    Overwrite,
    /// Opening after a kill.
    Open,
}

impl Part {
    /// All parts, in the table's order.
    pub const ALL: [Part; 7] =
        [Part::Ingest, Part::Large, Part::Small, Part::Growth, Part::Durable, Part::Overwrite, Part::Open];
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory for the files.
    pub directory: PathBuf,
    /// The binary of the peers' crate. None: rows have no ratio to a peer.
    pub peers: Option<PathBuf>,
    /// The peers to run, of [`PEERS`].
    pub peer_names: Vec<&'static str>,
    /// This program: `PROGRAM bench store-run WHO DIRECTORY SPEC ENGINE` calls [`run_here`].
    pub program: PathBuf,
    /// The I/O engine of the store.
    pub engine: EngineKind,
    /// The parts to run.
    pub parts: Vec<Part>,
    /// Bytes of values of each load after `bench_ingest`.
    pub ingest_bytes: u64,
    /// Number of records of the large data sets.
    pub records: u64,
    /// The engines' memory in bytes while records are loaded, and for the loads after `bench_ingest`.
    pub memory_bytes: u64,
    /// Maximum number of reads of a measurement. Cold ones are fewer.
    pub read_count: u64,
    /// Number of durable writes of a single writer. Many writers do ten times as many.
    pub durable_count: u64,
    /// Number of rounds. Large data sets are loaded only once.
    pub rounds: usize,
    /// Duration of the reads of `fio`.
    pub fio_time: Duration,
    /// Pause before each part.
    pub pause: Duration,
}

impl Config {
    /// All parts at full size, without peers.
    pub fn new(directory: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Config {
        Config {
            directory: directory.into(),
            peers: None,
            peer_names: PEERS.to_vec(),
            program: program.into(),
            engine: EngineKind::Auto,
            parts: Part::ALL.to_vec(),
            ingest_bytes: 128 << 20,
            records: 10_000_000,
            memory_bytes: 512 << 20,
            read_count: 2_000_000,
            durable_count: 2_000,
            rounds: 3,
            fio_time: Duration::from_secs(5),
            pause: PART_PAUSE,
        }
    }

    /// The small form, which takes seconds; its figures aren't reliable.
    pub fn small(self) -> Config {
        Config {
            ingest_bytes: 64 << 10,
            records: 2_000,
            memory_bytes: 64 << 20,
            read_count: 2_000,
            durable_count: 5,
            rounds: 1,
            fio_time: Duration::from_millis(50),
            pause: Duration::ZERO,
            ..self
        }
    }

    /// A description of the run for the table's head.
    pub fn title(&self) -> String {
        format!(
            "the store in {}, random values, {} MiB of memory for each engine; {} round(s) of small data sets, {} \
             records in large ones\n{}; peers: {}",
            self.directory.display(),
            self.memory_bytes >> 20,
            self.rounds,
            self.records,
            data_file::machine(&self.directory),
            match &self.peers {
                Some(path) => format!("{} of {}", self.peer_names.join(", "), path.display()),
                None => "none, see --peers".to_owned(),
            }
        )
    }
}

/// Runs the benchmark, calls `each` with each row as it is measured, and removes its files. Blocks.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`]; [`Error::Wrong`] at the end if a run failed,
/// whose row has the reason.
pub fn run(config: &Config, mut each: impl FnMut(IoRow)) -> Result<()> {
    if config.records == 0 || config.rounds == 0 || config.ingest_bytes == 0 || config.durable_count == 0 {
        return Err(Error::wrong("bench store", "records, rounds and bytes are one at least"));
    }
    space::check(&config.directory, config.ingest_bytes.max(largest_bytes(config)))?;
    let bench = Bench {
        directory: space::Directory::new(Some(&config.directory))?,
        programs: Programs {
            ours: config.program.clone(),
            peers: config.peers.clone(),
            engine: config.engine,
        },
        config: config.clone(),
        directory_count: Cell::new(0),
        failure_count: Cell::new(0),
    };
    for part in Part::ALL.into_iter().filter(|part| config.parts.contains(part)) {
        std::thread::sleep(config.pause);
        match part {
            Part::Ingest => ingest::cases(&bench, &mut each)?,
            Part::Large => records::measure(&bench, 1 << 10, &mut each)?,
            Part::Small => records::measure(&bench, 100, &mut each)?,
            Part::Growth => ingest::growth(&bench, &mut each)?,
            Part::Durable => durable::measure(&bench, &mut each)?,
            Part::Overwrite => overwrite::measure(&bench, &mut each)?,
            Part::Open => records::open_after_kill(&bench, &mut each)?,
        }
    }
    match bench.failure_count.get() {
        0 => Ok(()),
        count => Err(Error::wrong("bench store", format!("{count} run(s) failed: see their rows"))),
    }
}

/// Bytes of the values of the largest data set.
fn largest_bytes(config: &Config) -> u64 {
    let of = |part| match part {
        Part::Large => config.records << 10,
        Part::Growth => config.records * 300,
        Part::Overwrite => config.records * 200,
        Part::Ingest | Part::Durable => config.ingest_bytes,
        Part::Small | Part::Open => config.records * 100,
    };
    config.parts.iter().copied().map(of).max().unwrap_or(0)
}

/// Runs one spec in this process and prints its messages, one JSON value per line. The engine `settee` is the
/// store, `bare` a lookup in memory and pread(2). The process is killed when the thread that started it ends.
///
/// # Errors
/// [`Error::Wrong`] with the reason.
pub fn run_here(engine_id: &str, directory: &Path, spec: &str, engine: EngineKind) -> Result<()> {
    // Without its parent, this process would run on for long without a use. Errors are ignored: then it does.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let print = |message| {
        let line = serde_json::to_string(&message).expect("a message is plain data");
        // Errors are ignored: the parent may have stopped reading.
        writeln!(std::io::stdout(), "{line}").ok();
    };
    runs::run_here(engine_id, directory, spec, engine, print)
        .map_err(|error| Error::wrong("bench store-run", error.to_string()))
}

/// The state that the parts of a run share.
struct Bench {
    config: Config,
    programs: Programs,
    directory: space::Directory,
    directory_count: Cell<usize>,
    failure_count: Cell<usize>,
}

impl Bench {
    /// The store first, then the selected peers.
    fn all_engines(&self) -> Vec<EngineId> {
        let peers = self.config.peers.iter().flat_map(|_| &self.config.peer_names);
        std::iter::once(EngineId::Ours).chain(peers.map(|name| EngineId::Peer(name))).collect()
    }

    /// The path of a new directory, which isn't created yet.
    fn new_directory(&self) -> PathBuf {
        let number = self.directory_count.replace(self.directory_count.get() + 1);
        self.directory.path().join(format!("data-{number}"))
    }

    /// Removes a directory and, unless pauses are off, syncs the file system, so that this work doesn't
    /// affect the next measurement.
    fn remove(&self, directory: &Path) -> Result<()> {
        let failed = |error| Error::file(directory, error);
        match std::fs::remove_dir_all(directory) {
            // A run that failed may not have created it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed)?,
        }
        if self.config.pause.is_zero() {
            return Ok(());
        }
        let parent = std::fs::File::open(self.directory.path()).map_err(failed)?;
        rustix::fs::syncfs(parent).map_err(|error| failed(error.into()))
    }

    /// A spec with the usual parameters.
    fn spec(&self, operation: Operation, value_bytes: usize, records: u64) -> Spec {
        Spec {
            operation,
            order: Order::Random,
            records,
            value_bytes,
            batch: BATCH_COUNT,
            count: 0,
            warm: 0,
            seconds_max: 0,
            lanes: 1,
            memory_bytes: self.config.memory_bytes,
            write_out: false,
            compaction: true,
            direct: false,
            group: None,
        }
    }

    /// Runs the specs in a new directory for each engine, alternately, round by round.
    fn rounds(&self, all_engines: &[EngineId], specs: &[Spec]) -> Result<Vec<EngineRuns>> {
        let mut all_runs: Vec<EngineRuns> =
            all_engines.iter().map(|engine_id| EngineRuns::new(*engine_id)).collect();
        for round in 0..self.config.rounds {
            for turn in 0..all_runs.len() {
                let engine_runs = &mut all_runs[(round + turn) % all_engines.len()];
                if engine_runs.failure.is_some() {
                    continue;
                }
                let directory = self.new_directory();
                let mut last = Err("there are no specs".to_owned());
                for spec in specs {
                    last = self.programs.run(engine_runs.engine_id, &directory, spec);
                    if last.is_err() {
                        break;
                    }
                }
                self.remove(&directory)?;
                engine_runs.take(self, last);
            }
        }
        Ok(all_runs)
    }
}

/// The runs of one workload by one engine, one per round.
#[derive(Debug, Clone)]
struct EngineRuns {
    engine_id: EngineId,
    runs: Vec<Run>,
    failure: Option<String>,
}

impl EngineRuns {
    fn new(engine_id: EngineId) -> EngineRuns {
        EngineRuns { engine_id, runs: Vec::new(), failure: None }
    }

    fn take(&mut self, bench: &Bench, run: Result<Run, String>) {
        match run {
            Ok(run) => self.runs.push(run),
            Err(reason) => {
                bench.failure_count.set(bench.failure_count.get() + 1);
                self.failure = Some(reason);
            }
        }
    }

    fn series(&self, weight: impl Fn(&Run) -> f64) -> Series {
        Series(self.runs.iter().map(|run| run.report.window(weight(run))).collect())
    }

    fn median(&self, of: impl Fn(&Run) -> f64) -> Option<f64> {
        crate::io::row::median(self.runs.iter().map(of).collect())
    }
}

/// The store's row, compared with the best of the peers, then a row for each peer. `weight` is the number of
/// the row's units per operation.
fn table(
    name: &str,
    unit: &'static str,
    weight: impl Fn(&Run) -> f64,
    all_runs: &[EngineRuns],
    aim: Option<RatioAim>,
    note: impl Fn(&EngineRuns) -> String,
) -> Vec<IoRow> {
    let series: Vec<Series> = all_runs.iter().map(|engine_runs| engine_runs.series(&weight)).collect();
    let rate = |series: &Series| series.median(|window| Some(window.rate()));
    let peers = all_runs
        .iter()
        .zip(&series)
        .filter(|(engine_runs, _)| matches!(engine_runs.engine_id, EngineId::Peer(_)));
    let measured = peers.filter_map(|(engine_runs, series)| Some((engine_runs, series, rate(series)?)));
    let best = measured.max_by(|one, other| one.2.total_cmp(&other.2));
    let mut rows = Vec::new();
    for (engine_runs, series) in all_runs.iter().zip(&series) {
        let is_ours = engine_runs.engine_id == EngineId::Ours;
        let name = if is_ours { name.to_owned() } else { format!("  {}", engine_runs.engine_id.name()) };
        if engine_runs.runs.is_empty() {
            let reason = engine_runs.failure.clone().unwrap_or_else(|| "not run".to_owned());
            rows.push(IoRow::missing(name, unit, reason));
            continue;
        }
        let mut row = IoRow::new(name, unit, series);
        if let (true, Some((peer, its_series, _))) = (is_ours, &best) {
            row = row.against(peer.engine_id.name(), series, Some(its_series));
        }
        if let (true, Some(aim)) = (is_ours, aim) {
            row = row.with_aim(aim);
        }
        let mut note = note(engine_runs);
        if let Some(reason) = &engine_runs.failure {
            note = format!("A ROUND FAILED: {reason}; {note}");
        }
        rows.push(if note.is_empty() { row } else { row.with_note(note) });
    }
    rows
}

/// A row of one figure, compared with `limit`.
fn figure_row(
    name: String,
    unit: &'static str,
    figure: Option<f64>,
    limit: (&str, f64),
    aim: Option<RatioAim>,
) -> IoRow {
    let Some(figure) = figure else { return IoRow::missing(name, unit, "not measured") };
    let mut row = IoRow::missing(name, unit, "");
    row.note = None;
    row.rate = Some(figure);
    row.operations = 1;
    if limit.1 > 0.0 {
        row = row.with_ratio(limit.0, figure / limit.1);
    }
    match aim {
        Some(aim) => row.with_aim(aim),
        None => row,
    }
}

/// The system's load average, for a note.
fn load_text() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load average {}", load.split_ascii_whitespace().next().unwrap_or("unknown"))
}

#[cfg(test)]
mod tests;
