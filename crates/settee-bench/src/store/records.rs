//! Large data sets: loads, reads, and opening after a kill.
//!
//! The disk holds one engine's data set at a time, so the engines run one after the other; the reads of each
//! are repeated in rounds.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::bench::{Bench, EngineRuns};
use super::runs::{EngineId, Run};
use super::table::{figure_row, ratio_row, setup, table};
use super::work::data::{KEY_BYTES, Order};
use super::work::{Operation, Spec};
use crate::control_group::ControlGroup;
use crate::io::data_file::{self, load_average};
use crate::io::fio::Fio;
use crate::report::{Bound, Row};
use crate::rounds::Series;
use crate::stats::proc_field;
use crate::{Error, Result};

/// Divisor of the data's size for the memory of runs with too little memory.
const MEMORY_DIVISOR: u64 = 10;

/// Memory of a process besides its engine: its code, and the expected values.
const PROCESS_BYTES: u64 = 48 << 20;

/// Minimum memory of an engine in bytes.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Number of concurrent reads of rows with many readers.
const MANY: usize = 32;

/// Divisor of the number of records for the cold reads of a single reader.
const COLD_DIVISOR: u64 = 500;

/// Divisor of the number of records for the cold reads of many readers.
const COLD_MANY_DIVISOR: u64 = 100;

/// Divisor of the number of records for the reads before measured cold ones, which fill the memory.
const COLD_WARM_DIVISOR: u64 = 10;

/// Divisor of the number of records for the keys of a scan with values.
const SCAN_DIVISOR: u64 = 10;

/// Maximum bytes of the file that `fio` reads.
const FIO_BYTES_MAX: u64 = 4 << 30;

/// The measurements of a data set, in the table's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Load,
    Cached(usize),
    PageCache,
    Cold(usize),
    ScanKeys,
    ScanValues,
    ReadInOrder,
}

const STEPS: [Step; 9] = [
    Step::Load,
    Step::Cached(1),
    Step::Cached(MANY),
    Step::PageCache,
    Step::Cold(1),
    Step::Cold(MANY),
    Step::ScanKeys,
    Step::ScanValues,
    Step::ReadInOrder,
];

/// A data set.
struct DataSet<'a> {
    bench: &'a Bench,
    value_bytes: usize,
    /// Bytes of all keys and values.
    bytes: u64,
    /// The control group of the runs with memory for a tenth, or the reason why there is none.
    group: std::result::Result<ControlGroup, String>,
}

impl DataSet<'_> {
    fn memory_bytes(&self) -> u64 {
        (self.bytes / MEMORY_DIVISOR).max(MEMORY_BYTES_MIN)
    }

    fn spec(&self, step: Step) -> Spec {
        let records = self.bench.sizes.records;
        let spec = self.bench.spec(Operation::Read, self.value_bytes, records);
        let most = self.bench.sizes.read_count;
        let of = |count: u64, lanes: usize| count.clamp(1, most).next_multiple_of(lanes as u64);
        let small = Spec { memory_bytes: self.memory_bytes(), ..spec.clone() };
        match step {
            Step::Load => {
                Spec { operation: Operation::Ingest, order: Order::Random, write_out: true, ..spec }
            }
            // Twice the data for the cache: an engine uses half of its memory for other purposes.
            Step::Cached(lanes) => Spec {
                lanes,
                count: of(most, lanes),
                warm: records.next_multiple_of(lanes as u64),
                memory_bytes: 4 * self.bytes.max(MEMORY_BYTES_MIN),
                ..spec
            },
            Step::PageCache => Spec { count: of(most, 1), warm: of(records / 10, 1), ..small },
            Step::Cold(lanes) => {
                let divisor = if lanes == 1 { COLD_DIVISOR } else { COLD_MANY_DIVISOR };
                let group = self.group.as_ref().ok().map(|group| group.directory.clone());
                // Half of the process's memory is the page cache's.
                let memory_bytes = self.memory_bytes() / 2;
                let count = of(records / divisor, lanes);
                let warm = of(records / COLD_WARM_DIVISOR, MANY);
                Spec { lanes, count, warm, memory_bytes, direct: true, group, ..small }
            }
            Step::ScanKeys => Spec { operation: Operation::ScanKeys, ..small },
            Step::ScanValues => {
                Spec { operation: Operation::ScanValues, count: of(records / SCAN_DIVISOR, 1), ..small }
            }
            Step::ReadInOrder => {
                Spec { operation: Operation::ReadInOrder, count: of(records / SCAN_DIVISOR, 1), ..small }
            }
        }
    }

    fn name(&self, step: Step) -> String {
        let spec = self.spec(step);
        let data = format!("{} of {} B", spec.records, self.value_bytes);
        let lanes = |lanes| if lanes == 1 { "one by one".to_owned() } else { format!("{lanes} at once") };
        match step {
            Step::Load => format!("load {data}, random keys, written out"),
            Step::Cached(count) => format!("read of {data}, cached, {}", lanes(count)),
            Step::PageCache => format!("read of {data}, from the page cache, one by one"),
            Step::Cold(count) => format!("read of {data}, memory for a tenth, {}", lanes(count)),
            Step::ScanKeys => format!("scan of the keys of {data}"),
            Step::ScanValues => format!("scan of {} keys and values of {data}, cold", spec.count),
            Step::ReadInOrder => format!("the same {} keys read one by one, cold", spec.count),
        }
    }

    /// Whether an engine runs a step.
    fn has(&self, step: Step, engine_id: EngineId) -> bool {
        match (step, engine_id) {
            (Step::PageCache, EngineId::Bare) => true,
            (_, EngineId::Bare) => false,
            // To find the keys, most peers also read the values, which would be cached then.
            (Step::ReadInOrder, _) => engine_id == EngineId::Ours,
            _ => true,
        }
    }

    /// The reason why a step can't be measured on this machine, if there is one.
    fn obstacle(&self, step: Step) -> Option<String> {
        match step {
            // The engine uses half of its memory, and the page cache holds the files as well.
            Step::Cached(_) if 3 * self.bytes > machine_memory_bytes() => Some(
                "the machine hasn't the memory for it twice, in a cache and in the page cache".to_owned(),
            ),
            _ => None,
        }
    }

    /// Runs a step, after evicting the files from the page cache or reading them into it.
    fn run(
        &self,
        engine_id: EngineId,
        directory: &Path,
        step: Step,
    ) -> Result<std::result::Result<Run, String>> {
        if matches!(step, Step::Cold(_) | Step::ScanValues | Step::ReadInOrder) {
            for path in files(directory)? {
                data_file::evict(&path, 1)?;
            }
        }
        if matches!(step, Step::PageCache | Step::ScanKeys) {
            files(directory)?.iter().try_for_each(|path| warm(path))?;
        }
        Ok(self.bench.programs.run(engine_id, directory, &self.spec(step)))
    }
}

/// The machine's memory in bytes (proc(5)). 0 if the system doesn't report it.
fn machine_memory_bytes() -> u64 {
    proc_field("/proc/meminfo", "MemTotal:").unwrap_or(0) << 10
}

/// The files below a directory that have more than 4 KiB.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = directories.pop() {
        let failed = |error| Error::file(&directory, error);
        for entry in std::fs::read_dir(&directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let metadata = std::fs::metadata(&path).map_err(failed)?;
            match metadata.is_dir() {
                true => directories.push(path),
                false if metadata.len() > 4096 => found.push(path),
                false => {}
            }
        }
    }
    Ok(found)
}

/// Reads a file from its beginning, as many bytes as it takes on disk: an engine that maps its file makes it
/// far longer than its content.
fn warm(path: &Path) -> Result<()> {
    let failed = |error| Error::file(path, error);
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.blocks() * 512;
    let read = io::copy(&mut file.take(bytes), &mut io::sink());
    read.map(drop).map_err(failed)
}

/// Runs all steps on a data set of each engine and reports the rows.
pub(super) fn measure(bench: &Bench, value_bytes: usize, each: &mut dyn FnMut(Row)) -> Result<()> {
    let bytes = bench.sizes.records * (value_bytes + KEY_BYTES) as u64;
    let limit = (bytes / MEMORY_DIVISOR).max(MEMORY_BYTES_MIN) + PROCESS_BYTES;
    let set = DataSet { bench, value_bytes, bytes, group: ControlGroup::create(limit) };
    let load = load_average();
    let mut all_engines = bench.all_engines();
    all_engines.push(EngineId::Bare);
    let mut results: Vec<Vec<EngineRuns>> = STEPS.iter().map(|_| Vec::new()).collect();
    for engine_id in all_engines {
        let directory = bench.new_directory();
        let taken = STEPS.iter().filter(|step| set.has(**step, engine_id) && set.obstacle(**step).is_none());
        for step in taken {
            let mut engine_runs = EngineRuns::new(engine_id);
            let rounds = if *step == Step::Load { 1 } else { bench.sizes.rounds };
            for _ in 0..rounds {
                if engine_runs.failure.is_none() {
                    std::fs::create_dir_all(&directory).map_err(|error| Error::file(&directory, error))?;
                    engine_runs.take(bench, set.run(engine_id, &directory, *step)?);
                }
            }
            let index = STEPS.iter().position(|other| other == step).expect("it is one of them");
            results[index].push(engine_runs);
        }
        bench.remove(&directory)?;
    }
    let fio = fio_rates(bench, &set)?;
    for (step, all_runs) in STEPS.iter().zip(&results) {
        match set.obstacle(*step) {
            Some(reason) => each(Row::missing(set.name(*step), "op/s", reason)),
            None => report(&set, *step, all_runs, &results, &fio, &load, each),
        }
    }
    Ok(())
}

/// Random reads by `fio`, one and many at a time, or the reason why there are none.
type FioRates = [(usize, std::result::Result<Series, String>); 2];

fn fio_rates(bench: &Bench, set: &DataSet<'_>) -> Result<FioRates> {
    let path = bench.new_directory();
    let bytes = set.bytes.clamp(1 << 20, FIO_BYTES_MAX);
    data_file::create(&path, bytes, 7)?;
    let rates = [1, MANY].map(|depth| {
        let fio = Fio::find().ok_or_else(|| "no fio".to_owned());
        let window = fio.and_then(|fio| fio.random_reads(&path, bytes, depth, bench.sizes.fio_time));
        (depth, window.map(|window| Series(vec![window])))
    });
    std::fs::remove_file(&path).map_err(|error| Error::file(&path, error))?;
    Ok(rates)
}

fn report(
    set: &DataSet<'_>,
    step: Step,
    all_runs: &[EngineRuns],
    all: &[Vec<EngineRuns>],
    fio: &FioRates,
    load: &str,
    each: &mut dyn FnMut(Row),
) {
    let name = set.name(step);
    let aim = match step {
        Step::Load => Some(Bound::AtLeast(2.0)),
        Step::Cold(MANY) | Step::ScanKeys => Some(Bound::AtLeast(1.0)),
        _ => None,
    };
    let note = |engine_runs: &EngineRuns| format!("{}; {load}", note(step, engine_runs));
    table(&name, "op/s", 1.0, all_runs, aim, note).into_iter().for_each(&mut *each);
    let Some(ours) = all_runs
        .iter()
        .find(|engine_runs| engine_runs.engine_id == EngineId::Ours && !engine_runs.runs.is_empty())
    else {
        return;
    };
    match step {
        Step::Load => load_rows(set, all_runs, each),
        Step::Cached(1) => cached_rows(ours, all_runs, each),
        Step::PageCache => {
            let bare = all_runs.iter().find(|engine_runs| engine_runs.engine_id == EngineId::Bare);
            versus(ours, bare, "  over a bare lookup and pread", Bound::AtLeast(0.8), each);
        }
        Step::Cold(lanes) => cold_rows(set, lanes, ours, fio, each),
        Step::ReadInOrder => {
            let scans = STEPS.iter().position(|step| *step == Step::ScanValues).expect("it is one of them");
            let scan = all[scans].iter().find(|engine_runs| engine_runs.engine_id == EngineId::Ours);
            if let Some(scan) = scan.filter(|scan| !scan.runs.is_empty()) {
                versus(scan, Some(ours), "  the scan over a loop of single reads", Bound::AtLeast(4.0), each);
            }
        }
        Step::Cached(_) | Step::ScanKeys | Step::ScanValues => {}
    }
}

fn note(step: Step, engine_runs: &EngineRuns) -> String {
    let Some(run) = engine_runs.runs.last() else { return String::new() };
    let report = &run.report;
    let mib = |bytes: u64| bytes >> 20;
    match step {
        Step::Load => format!(
            "{:.2} bytes written for each given, {} MiB of memory at most, {} MiB on disk, {}",
            report.written_bytes_in_all as f64 / report.bytes.max(1) as f64,
            mib(report.peak_bytes),
            mib(report.disk_bytes),
            setup(engine_runs)
        ),
        Step::Cold(_) | Step::ScanValues | Step::ReadInOrder => format!(
            "{:.2} device reads and {:.0} B fetched each, opened in {:.0} ms, {}",
            report.device_reads as f64 / report.operations.max(1) as f64,
            report.fetched_bytes as f64 / report.operations.max(1) as f64,
            report.open_seconds * 1e3,
            setup(engine_runs)
        ),
        _ => format!(
            "{} MiB of memory at most, opened in {:.0} ms, {}",
            mib(report.peak_bytes),
            report.open_seconds * 1e3,
            setup(engine_runs)
        ),
    }
}

/// Reports bytes written and memory, of the store with aims, of the peers without.
fn load_rows(set: &DataSet<'_>, all_runs: &[EngineRuns], each: &mut dyn FnMut(Row)) {
    for engine_runs in all_runs {
        let is_ours = engine_runs.engine_id == EngineId::Ours;
        let of = |what: &str| match is_ours {
            true => format!("  {what}"),
            false => format!("    {}", engine_runs.engine_id.name()),
        };
        let aim = |most| is_ours.then_some(Bound::AtMost(most));
        let written = engine_runs.median(|run| run.report.written_bytes_in_all as f64 / f64::from(1 << 20));
        let given = engine_runs.median(|run| run.report.bytes as f64 / f64::from(1 << 20)).unwrap_or(0.0);
        let name = of("bytes written for bytes given");
        each(figure_row(name, "MiB", written, ("given", given), aim(1.6)));
        let peak = engine_runs.median(|run| run.report.peak_bytes as f64 / f64::from(1 << 20));
        let limit = (set.bench.sizes.memory_bytes >> 20) as f64;
        each(figure_row(of("memory at most"), "MiB", peak, ("the limit", limit), aim(1.0)));
    }
}

/// Reports the ratio of the store's rate to another's, if that was measured.
fn versus(ours: &EngineRuns, other: Option<&EngineRuns>, name: &str, aim: Bound, each: &mut dyn FnMut(Row)) {
    let Some(other) = other else { return };
    let (series, its_series) = (ours.series(1.0), other.series(1.0));
    if its_series.0.is_empty() {
        return;
    }
    let engine_id = if other.engine_id == EngineId::Ours { "single reads" } else { other.engine_id.name() };
    each(ratio_row(name, "op/s", &series, (engine_id, &its_series), aim));
}

/// Reports the ratios of cached reads. Engines with memtables have another aim than those that map their
/// pages.
fn cached_rows(ours: &EngineRuns, all_runs: &[EngineRuns], each: &mut dyn FnMut(Row)) {
    for other in all_runs {
        let aim = match other.engine_id {
            EngineId::Peer("fjall" | "rocksdb") => Bound::AtLeast(2.0),
            EngineId::Peer(_) => Bound::AtLeast(0.5),
            EngineId::Ours | EngineId::Bare => continue,
        };
        versus(ours, Some(other), &format!("  cached, over {}", other.engine_id.name()), aim, each);
    }
}

fn cold_rows(set: &DataSet<'_>, lanes: usize, ours: &EngineRuns, fio: &FioRates, each: &mut dyn FnMut(Row)) {
    let limit = match &set.group {
        Ok(group) => format!("memory for a tenth of the data, and the process itself, by {}", group.kind),
        Err(reason) => format!("NO LIMIT of memory: {reason}"),
    };
    if lanes == 1 {
        let most = if set.value_bytes < 1 << 10 { 2.1 } else { 1.1 };
        let reads = ours.median(|run| run.report.device_reads as f64 / run.report.operations.max(1) as f64);
        let row =
            figure_row("  device reads for each", "reads", reads, ("a read", 1.0), Some(Bound::AtMost(most)));
        each(row.note(format!("all reads of the device, by any process; {limit}")));
    }
    let rates = fio.iter().find(|(depth, _)| *depth == lanes).expect("each depth is measured");
    let series = ours.series(1.0);
    let row = Row::new(format!("  over fio, 4 KiB, {lanes} outstanding"), "op/s", &series);
    let aim = (lanes == MANY).then_some(Bound::AtLeast(0.9));
    each(match &rates.1 {
        Ok(rates) => {
            let rate = rates.rate().unwrap_or(0.0);
            // fio runs once; each round is compared with that.
            let rates = Series(vec![rates.0[0].clone(); series.0.len()]);
            row.against("fio", &series, Some(&rates), aim).note(format!("fio: {rate:.0} reads/s"))
        }
        Err(reason) => row.against("fio", &series, None, aim).note(reason.clone()),
    });
}

/// Loads records with each engine, kills it, and measures the next opening.
pub(super) fn open_after_kill(bench: &Bench, each: &mut dyn FnMut(Row)) -> Result<()> {
    const VALUE_BYTES: usize = 100;
    let load = bench.spec(Operation::LoadAndHold, VALUE_BYTES, bench.sizes.records);
    let open = Spec { operation: Operation::Open, ..load.clone() };
    let average = load_average();
    for engine_id in bench.all_engines() {
        let directory = bench.new_directory();
        let killed = bench.programs.kill_when_loaded(engine_id, &directory, &load);
        let mut engine_runs = EngineRuns::new(engine_id);
        engine_runs.take(bench, killed.and_then(|()| bench.programs.run(engine_id, &directory, &open)));
        bench.remove(&directory)?;
        let is_ours = engine_id == EngineId::Ours;
        let name = match is_ours {
            true => format!("open after SIGKILL, {} of {VALUE_BYTES} B, and read one", load.records),
            false => format!("  {}", engine_id.name()),
        };
        let Some(run) = engine_runs.runs.last() else {
            each(Row::missing(name, "ms", engine_runs.failure.unwrap_or_default()));
            continue;
        };
        let milliseconds = (run.report.open_seconds + run.report.seconds) * 1e3;
        let aim = is_ours.then_some(Bound::AtMost(1.0));
        let row = figure_row(name, "ms", Some(milliseconds), ("a second", 1000.0), aim);
        each(row.note(format!("files in the page cache; {}; {average}", setup(&engine_runs))));
    }
    Ok(())
}
