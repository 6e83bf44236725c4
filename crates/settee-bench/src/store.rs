//! What the store reaches, against other engines and what the machine gives.
//!
//! - Loads without a sync, after Neon's `bench_ingest`: small and large values, keys in order and
//!   at random, with and without writing the index out, alone and beside a reader.
//! - Loads of many records, and what is read of them afterwards: cached, from the page cache, cold
//!   with memory for a tenth, in order; loads of ever more records against their first.
//! - Durable single writes; overwriting everything while it is read; opening after a kill.
//!
//! Every run is a process of its own, ours ([`run_here`]) as the peers' (the `peers` directory of
//! the source tree), and all do what `work` says: the same source, compiled into both. What is compared
//! runs in turn, each round beginning with another engine, but for what is done to large data
//! sets, of which the disk holds one at a time. Figures are medians of the rounds; ratios are
//! medians of the rounds' ratios to the peer with the best median. Values are random bytes of a
//! fixed seed; nothing is compressed.

use std::cell::Cell;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use settee_io::EngineKind;

use crate::io::row::{Aim, Row, Series};
use crate::io::subject;
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

use runs::{Programs, Run, Who};
use work::{Operation, Order, Spec};

/// A pause before each part: a disk goes on with what it was given before, removed files too.
const PART_PAUSE: Duration = Duration::from_secs(3);

/// Records of a batch.
const BATCH_COUNT: usize = 16;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Loads after Neon's `bench_ingest`.
    Ingest,
    /// A load of 1 KiB records, and reads and scans of them.
    Large,
    /// The same of 100 B records.
    Small,
    /// Loads of more and more records.
    Growth,
    /// Durable single writes.
    Durable,
    /// Overwriting while reading.
    Overwrite,
    /// Opening after a kill.
    Open,
}

impl Part {
    /// All, in the table's order.
    pub const ALL: [Part; 7] =
        [Part::Ingest, Part::Large, Part::Small, Part::Growth, Part::Durable, Part::Overwrite, Part::Open];
}

/// What is measured, where, and how large.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the files are made.
    pub directory: PathBuf,
    /// The binary of the peers' crate; without it nothing has a ratio to a peer.
    pub peers: Option<PathBuf>,
    /// Which of [`PEERS`].
    pub peer_names: Vec<&'static str>,
    /// This program: `PROGRAM bench store-run WHO DIRECTORY SPEC ENGINE` calls [`run_here`].
    pub program: PathBuf,
    /// Which engine does the store's I/O.
    pub engine: EngineKind,
    /// Which parts.
    pub parts: Vec<Part>,
    /// Bytes of values of each load after `bench_ingest`.
    pub ingest_bytes: u64,
    /// Records of the large data sets.
    pub records: u64,
    /// The engines' memory while records are loaded, and for the loads after `bench_ingest`.
    pub memory_bytes: u64,
    /// Reads of a measurement, at most; fewer of cold ones.
    pub read_count: u64,
    /// Durable writes of a lone writer; many writers do ten times as many.
    pub durable_count: u64,
    /// Rounds, where data sets are small enough to be made anew for each.
    pub rounds: usize,
    /// How long `fio` reads.
    pub fio_time: Duration,
    /// How long it rests before each part.
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

    /// The small form: seconds in all, too short for figures to rely on.
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

    /// What is measured where, in words.
    pub fn title(&self) -> String {
        format!(
            "the store in {}, random values, {} MiB of memory for each engine; {} round(s) of small data sets, {} \
             records in large ones\n{}; peers: {}",
            self.directory.display(),
            self.memory_bytes >> 20,
            self.rounds,
            self.records,
            subject::machine(&self.directory),
            match &self.peers {
                Some(path) => format!("{} of {}", self.peer_names.join(", "), path.display()),
                None => "none, see --peers".to_owned(),
            }
        )
    }
}

/// Measures, and hands out each row as it comes. Its files are gone afterwards. Blocks.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`]; [`Error::Wrong`] at the end
/// where a run failed: its row says why.
pub fn run(config: &Config, mut each: impl FnMut(Row)) -> Result<()> {
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

/// Runs one spec in this process, and prints what it tells: one JSON value a line. `settee` runs
/// the store, `bare` a lookup in memory and pread(2). It ends with the thread that started the
/// process.
///
/// # Errors
/// [`Error::Wrong`] with whatever went wrong.
pub fn run_here(who: &str, directory: &Path, spec: &str, engine: EngineKind) -> Result<()> {
    // Who started it may be killed: nobody would want its results, and it would go on for long.
    // Where that can't be asked for, it does.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let print = |told| {
        let line = serde_json::to_string(&told).expect("what is told is plain data");
        // Nobody has to be reading.
        writeln!(std::io::stdout(), "{line}").ok();
    };
    runs::run_here(who, directory, spec, engine, print)
        .map_err(|error| Error::wrong("bench store-run", error.to_string()))
}

/// What the parts share.
struct Bench {
    config: Config,
    programs: Programs,
    directory: space::Directory,
    directory_count: Cell<usize>,
    failure_count: Cell<usize>,
}

impl Bench {
    /// Ourselves first, then the peers that are there.
    fn everyone(&self) -> Vec<Who> {
        let peers = self.config.peers.iter().flat_map(|_| &self.config.peer_names);
        std::iter::once(Who::Ours).chain(peers.map(|name| Who::Peer(name))).collect()
    }

    /// A directory that isn't there yet.
    fn new_directory(&self) -> PathBuf {
        let number = self.directory_count.replace(self.directory_count.get() + 1);
        self.directory.path().join(format!("data-{number}"))
    }

    /// Removes it, and lets the file system take note where there are pauses for that, so that it
    /// doesn't during what comes next.
    fn remove(&self, directory: &Path) -> Result<()> {
        let failed = |error| Error::file(directory, error);
        match std::fs::remove_dir_all(directory) {
            // A run that failed may not have made it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed)?,
        }
        if self.config.pause.is_zero() {
            return Ok(());
        }
        let parent = std::fs::File::open(self.directory.path()).map_err(failed)?;
        rustix::fs::syncfs(parent).map_err(|error| failed(error.into()))
    }

    /// What most runs begin with.
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

    /// Runs the spec in a new directory for each of `everyone`, in turn, round by round.
    fn rounds(&self, everyone: &[Who], specs: &[Spec]) -> Result<Vec<Contender>> {
        let mut contenders: Vec<Contender> = everyone.iter().map(|who| Contender::new(*who)).collect();
        for round in 0..self.config.rounds {
            for turn in 0..contenders.len() {
                let contender = &mut contenders[(round + turn) % everyone.len()];
                if contender.failure.is_some() {
                    continue;
                }
                let directory = self.new_directory();
                let mut last = Err("nothing was to be run".to_owned());
                for spec in specs {
                    last = self.programs.run(contender.who, &directory, spec);
                    if last.is_err() {
                        break;
                    }
                }
                self.remove(&directory)?;
                contender.take(self, last);
            }
        }
        Ok(contenders)
    }
}

/// One engine's rounds of one workload.
#[derive(Debug, Clone)]
struct Contender {
    who: Who,
    runs: Vec<Run>,
    failure: Option<String>,
}

impl Contender {
    fn new(who: Who) -> Contender {
        Contender { who, runs: Vec::new(), failure: None }
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

/// Our row against the best of the peers, then a row for each of these. A round counts
/// `weight` of the row's unit for each operation.
fn table(
    name: &str,
    unit: &'static str,
    weight: impl Fn(&Run) -> f64,
    contenders: &[Contender],
    aim: Option<Aim>,
    note: impl Fn(&Contender) -> String,
) -> Vec<Row> {
    let series: Vec<Series> = contenders.iter().map(|contender| contender.series(&weight)).collect();
    let rate = |series: &Series| series.median(|window| Some(window.rate()));
    let peers = contenders.iter().zip(&series).filter(|(contender, _)| matches!(contender.who, Who::Peer(_)));
    let measured = peers.filter_map(|(contender, series)| Some((contender, series, rate(series)?)));
    let best = measured.max_by(|one, other| one.2.total_cmp(&other.2));
    let mut rows = Vec::new();
    for (contender, series) in contenders.iter().zip(&series) {
        let is_ours = contender.who == Who::Ours;
        let name = if is_ours { name.to_owned() } else { format!("  {}", contender.who.name()) };
        if contender.runs.is_empty() {
            let reason = contender.failure.clone().unwrap_or_else(|| "not run".to_owned());
            rows.push(Row::missing(name, unit, reason));
            continue;
        }
        let mut row = Row::new(name, unit, series);
        if let (true, Some((peer, its_series, _))) = (is_ours, &best) {
            row = row.against(peer.who.name(), series, Some(its_series));
        }
        if let (true, Some(aim)) = (is_ours, aim) {
            row = row.with_aim(aim);
        }
        let mut note = note(contender);
        if let Some(reason) = &contender.failure {
            note = format!("A ROUND FAILED: {reason}; {note}");
        }
        rows.push(if note.is_empty() { row } else { row.with_note(note) });
    }
    rows
}

/// A row of one figure that is held against `limit`.
fn figure_row(
    name: String,
    unit: &'static str,
    figure: Option<f64>,
    limit: (&str, f64),
    aim: Option<Aim>,
) -> Row {
    let Some(figure) = figure else { return Row::missing(name, unit, "not measured") };
    let mut row = Row::missing(name, unit, "");
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

/// The system's load average now, in words.
fn load_text() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load average {}", load.split_ascii_whitespace().next().unwrap_or("unknown"))
}

#[cfg(test)]
mod tests;
