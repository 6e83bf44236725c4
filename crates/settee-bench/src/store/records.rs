//! Large data sets: loading them, what is read of them afterwards, and opening after a kill.
//!
//! The disk holds one engine's data set at a time, so that here engine goes after engine; the
//! reads of one are repeated in rounds.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::ingest::setup;
use super::runs::{Run, Who};
use super::work::{Operation, Order, Spec};
use super::{Bench, Contender, figure_row, load_text, table};
use crate::io::fio::Fio;
use crate::io::row::{Aim, Row, Series};
use crate::io::subject;
use crate::log::limit::Group;
use crate::{Error, Result};

/// The share of the data for which there is memory, where there isn't enough.
const MEMORY_DIVISOR: u64 = 10;

/// What a process has besides its engine: its code, and the values that are compared.
const PROCESS_BYTES: u64 = 48 << 20;

/// Least memory of an engine.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Reads at once.
const MANY: usize = 32;

/// Of all records: cold reads of a lone reader, and of many; keys that a scan with values takes.
const COLD_DIVISOR: u64 = 500;
const COLD_MANY_DIVISOR: u64 = 100;

/// Of all records: reads before cold ones are counted, so that what there is memory for is in it.
const COLD_WARM_DIVISOR: u64 = 10;
const SCAN_DIVISOR: u64 = 10;

/// Most bytes of the file that `fio` reads.
const FIO_BYTES_MAX: u64 = 4 << 30;

/// What is done to a data set, in the table's order.
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
struct Set<'a> {
    bench: &'a Bench,
    value_bytes: usize,
    /// Bytes of its keys and values.
    bytes: u64,
    /// The control group of the runs that have memory for a tenth, or why there is none.
    group: std::result::Result<Group, String>,
}

impl Set<'_> {
    fn memory_bytes(&self) -> u64 {
        (self.bytes / MEMORY_DIVISOR).max(MEMORY_BYTES_MIN)
    }

    fn spec(&self, step: Step) -> Spec {
        let records = self.bench.config.records;
        let spec = self.bench.spec(Operation::Read, self.value_bytes, records);
        let most = self.bench.config.read_count;
        let of = |count: u64, lanes: usize| count.clamp(1, most).next_multiple_of(lanes as u64);
        let small = Spec { memory_bytes: self.memory_bytes(), ..spec.clone() };
        match step {
            Step::Load => {
                Spec { operation: Operation::Ingest, order: Order::Random, write_out: true, ..spec }
            }
            // Twice the data: an engine keeps half of its memory for other things than its cache.
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

    /// Who takes part.
    fn has(&self, step: Step, who: Who) -> bool {
        match (step, who) {
            (Step::PageCache, Who::Bare) => true,
            (_, Who::Bare) => false,
            // To find the keys, most peers read the values too: nothing would be cold.
            (Step::ReadInOrder, _) => who == Who::Ours,
            _ => true,
        }
    }

    /// Why the step can't be measured here.
    fn obstacle(&self, step: Step) -> Option<String> {
        match step {
            // An engine uses half of it, and the page cache has the files as well.
            Step::Cached(_) if 3 * self.bytes > memory_of_the_machine() => Some(
                "the machine hasn't the memory for it twice, in a cache and in the page cache".to_owned(),
            ),
            _ => None,
        }
    }

    /// One run of the step, with the files as warm as it wants them.
    fn run(&self, who: Who, directory: &Path, step: Step) -> Result<std::result::Result<Run, String>> {
        if matches!(step, Step::Cold(_) | Step::ScanValues | Step::ReadInOrder) {
            for path in files(directory)? {
                subject::chill(&path, 1)?;
            }
        }
        if matches!(step, Step::PageCache | Step::ScanKeys) {
            files(directory)?.iter().try_for_each(|path| warm(path))?;
        }
        Ok(self.bench.programs.run(who, directory, &self.spec(step)))
    }
}

/// The whole memory, in bytes; 0 where the system doesn't tell (proc(5)).
fn memory_of_the_machine() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or_default();
    line.split_ascii_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The files below a directory that hold something.
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

/// Reads as much of the file's front as it takes on the disk: an engine that maps its file makes it
/// far longer than what is in it.
fn warm(path: &Path) -> Result<()> {
    let failed = |error| Error::file(path, error);
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.blocks() * 512;
    let read = io::copy(&mut file.take(bytes), &mut io::sink());
    read.map(drop).map_err(failed)
}

/// Loads a data set with each engine, reads it in every way, and compares.
pub(super) fn measure(bench: &Bench, value_bytes: usize, each: &mut dyn FnMut(Row)) -> Result<()> {
    let bytes = bench.config.records * (value_bytes + super::work::data::KEY_BYTES) as u64;
    let limit = (bytes / MEMORY_DIVISOR).max(MEMORY_BYTES_MIN) + PROCESS_BYTES;
    let set = Set { bench, value_bytes, bytes, group: Group::make(limit) };
    let load = load_text();
    let mut everyone = bench.everyone();
    everyone.push(Who::Bare);
    let mut results: Vec<Vec<Contender>> = STEPS.iter().map(|_| Vec::new()).collect();
    for who in everyone {
        let directory = bench.new_directory();
        let taken = STEPS.iter().filter(|step| set.has(**step, who) && set.obstacle(**step).is_none());
        for step in taken {
            let mut contender = Contender::new(who);
            let rounds = if *step == Step::Load { 1 } else { bench.config.rounds };
            for _ in 0..rounds {
                if contender.failure.is_none() {
                    std::fs::create_dir_all(&directory).map_err(|error| Error::file(&directory, error))?;
                    contender.take(bench, set.run(who, &directory, *step)?);
                }
            }
            let index = STEPS.iter().position(|other| other == step).expect("it is one of them");
            results[index].push(contender);
        }
        bench.remove(&directory)?;
    }
    let fio = fio_rates(bench, &set)?;
    for (step, contenders) in STEPS.iter().zip(&results) {
        match set.obstacle(*step) {
            Some(reason) => each(Row::missing(set.name(*step), "op/s", reason)),
            None => report(&set, *step, contenders, &results, &fio, &load, each),
        }
    }
    Ok(())
}

/// Random reads by `fio`, one by one and many at once; or why there are none.
type FioRates = [(usize, std::result::Result<Series, String>); 2];

fn fio_rates(bench: &Bench, set: &Set<'_>) -> Result<FioRates> {
    let path = bench.new_directory();
    let bytes = set.bytes.clamp(1 << 20, FIO_BYTES_MAX);
    subject::create(&path, bytes, 7)?;
    let rates = [1, MANY].map(|depth| {
        let fio = Fio::find().ok_or_else(|| "no fio".to_owned());
        let window = fio.and_then(|fio| fio.random_reads(&path, bytes, depth, bench.config.fio_time));
        (depth, window.map(|window| Series(vec![window])))
    });
    std::fs::remove_file(&path).map_err(|error| Error::file(&path, error))?;
    Ok(rates)
}

fn report(
    set: &Set<'_>,
    step: Step,
    contenders: &[Contender],
    all: &[Vec<Contender>],
    fio: &FioRates,
    load: &str,
    each: &mut dyn FnMut(Row),
) {
    let name = set.name(step);
    let aim = match step {
        Step::Load => Some(Aim::AtLeast(2.0)),
        Step::Cold(MANY) | Step::ScanKeys => Some(Aim::AtLeast(1.0)),
        _ => None,
    };
    let note = |contender: &Contender| format!("{}; {load}", note(step, contender));
    table(&name, "op/s", |_| 1.0, contenders, aim, note).into_iter().for_each(&mut *each);
    let Some(ours) =
        contenders.iter().find(|contender| contender.who == Who::Ours && !contender.runs.is_empty())
    else {
        return;
    };
    match step {
        Step::Load => load_rows(set, contenders, each),
        Step::Cached(1) => cached_rows(ours, contenders, each),
        Step::PageCache => {
            let bare = contenders.iter().find(|contender| contender.who == Who::Bare);
            versus(ours, bare, "  over a bare lookup and pread", Aim::AtLeast(0.8), each);
        }
        Step::Cold(lanes) => cold_rows(set, lanes, ours, fio, each),
        Step::ReadInOrder => {
            let scans = STEPS.iter().position(|step| *step == Step::ScanValues).expect("it is one of them");
            let scan = all[scans].iter().find(|contender| contender.who == Who::Ours);
            if let Some(scan) = scan.filter(|scan| !scan.runs.is_empty()) {
                versus(scan, Some(ours), "  the scan over a loop of single reads", Aim::AtLeast(4.0), each);
            }
        }
        Step::Cached(_) | Step::ScanKeys | Step::ScanValues => {}
    }
}

fn note(step: Step, contender: &Contender) -> String {
    let Some(run) = contender.runs.last() else { return String::new() };
    let report = &run.report;
    let mib = |bytes: u64| bytes >> 20;
    match step {
        Step::Load => format!(
            "{:.2} bytes written for each given, {} MiB of memory at most, {} MiB on disk, {}",
            report.written_bytes_in_all as f64 / report.bytes.max(1) as f64,
            mib(report.peak_bytes),
            mib(report.disk_bytes),
            setup(contender)
        ),
        Step::Cold(_) | Step::ScanValues | Step::ReadInOrder => format!(
            "{:.2} device reads and {:.0} B fetched each, opened in {:.0} ms, {}",
            report.device_reads as f64 / report.operations.max(1) as f64,
            report.fetched_bytes as f64 / report.operations.max(1) as f64,
            report.open_seconds * 1e3,
            setup(contender)
        ),
        _ => format!(
            "{} MiB of memory at most, opened in {:.0} ms, {}",
            mib(report.peak_bytes),
            report.open_seconds * 1e3,
            setup(contender)
        ),
    }
}

/// Bytes written and memory, ours with aims, the peers' without.
fn load_rows(set: &Set<'_>, contenders: &[Contender], each: &mut dyn FnMut(Row)) {
    for contender in contenders {
        let is_ours = contender.who == Who::Ours;
        let of = |what: &str| match is_ours {
            true => format!("  {what}"),
            false => format!("    {}", contender.who.name()),
        };
        let aim = |most| is_ours.then_some(Aim::AtMost(most));
        let written = contender.median(|run| run.report.written_bytes_in_all as f64 / f64::from(1 << 20));
        let given = contender.median(|run| run.report.bytes as f64 / f64::from(1 << 20)).unwrap_or(0.0);
        let name = of("bytes written for bytes given");
        each(figure_row(name, "MiB", written, ("given", given), aim(1.6)));
        let peak = contender.median(|run| run.report.peak_bytes as f64 / f64::from(1 << 20));
        let limit = (set.bench.config.memory_bytes >> 20) as f64;
        each(figure_row(of("memory at most"), "MiB", peak, ("the limit", limit), aim(1.0)));
    }
}

/// Ours over another's, where that was measured.
fn versus(ours: &Contender, other: Option<&Contender>, name: &str, aim: Aim, each: &mut dyn FnMut(Row)) {
    let Some(other) = other else { return };
    let (series, its_series) = (ours.series(|_| 1.0), other.series(|_| 1.0));
    if its_series.0.is_empty() {
        return;
    }
    let who = if other.who == Who::Ours { "single reads" } else { other.who.name() };
    each(Row::new(name, "op/s", &series).against(who, &series, Some(&its_series)).with_aim(aim));
}

/// Cached reads have another aim for engines of memtables than for those that map their pages.
fn cached_rows(ours: &Contender, contenders: &[Contender], each: &mut dyn FnMut(Row)) {
    for other in contenders {
        let aim = match other.who {
            Who::Peer("fjall" | "rocksdb") => Aim::AtLeast(2.0),
            Who::Peer(_) => Aim::AtLeast(0.5),
            Who::Ours | Who::Bare => continue,
        };
        versus(ours, Some(other), &format!("  cached, over {}", other.who.name()), aim, each);
    }
}

fn cold_rows(set: &Set<'_>, lanes: usize, ours: &Contender, fio: &FioRates, each: &mut dyn FnMut(Row)) {
    let limit = match &set.group {
        Ok(group) => format!("memory for a tenth of the data, and the process itself, by {}", group.kind),
        Err(reason) => format!("NO LIMIT of memory: {reason}"),
    };
    if lanes == 1 {
        let most = if set.value_bytes < 1 << 10 { 2.1 } else { 1.1 };
        let reads = ours.median(|run| run.report.device_reads as f64 / run.report.operations.max(1) as f64);
        let row = figure_row(
            "  device reads for each".to_owned(),
            "reads",
            reads,
            ("a read", 1.0),
            Some(Aim::AtMost(most)),
        );
        each(row.with_note(format!("all of the device's, whoever asked; {limit}")));
    }
    let rates = fio.iter().find(|(depth, _)| *depth == lanes).expect("each depth is measured");
    let series = ours.series(|_| 1.0);
    let row = Row::new(format!("  over fio, 4 KiB, {lanes} outstanding"), "op/s", &series);
    let row = match &rates.1 {
        Ok(rates) => {
            // fio ran once: each round is held against that.
            let rates = Series(vec![rates.0[0].clone(); series.0.len()]);
            let row = row.against("fio", &series, Some(&rates));
            row.with_note(format!("fio: {:.0} reads/s", rates.0.first().map_or(0.0, |window| window.rate())))
        }
        Err(reason) => row.with_note(reason.clone()),
    };
    each(if lanes == MANY { row.with_aim(Aim::AtLeast(0.9)) } else { row });
}

/// Loads, kills, and opens again.
pub(super) fn open_after_kill(bench: &Bench, each: &mut dyn FnMut(Row)) -> Result<()> {
    const VALUE_BYTES: usize = 100;
    let load = bench.spec(Operation::LoadAndHold, VALUE_BYTES, bench.config.records);
    let open = Spec { operation: Operation::Open, ..load.clone() };
    let average = load_text();
    for who in bench.everyone() {
        let directory = bench.new_directory();
        let killed = bench.programs.kill_when_held(who, &directory, &load);
        let mut contender = Contender::new(who);
        contender.take(bench, killed.and_then(|()| bench.programs.run(who, &directory, &open)));
        bench.remove(&directory)?;
        let is_ours = who == Who::Ours;
        let name = match is_ours {
            true => format!("open after SIGKILL, {} of {VALUE_BYTES} B, and read one", load.records),
            false => format!("  {}", who.name()),
        };
        let Some(run) = contender.runs.last() else {
            each(Row::missing(name, "ms", contender.failure.unwrap_or_default()));
            continue;
        };
        let milliseconds = (run.report.open_seconds + run.report.seconds) * 1e3;
        let aim = is_ours.then_some(Aim::AtMost(1.0));
        let row = figure_row(name, "ms", Some(milliseconds), ("a second", 1000.0), aim);
        each(row.with_note(format!("files in the page cache; {}; {average}", setup(&contender))));
    }
    Ok(())
}
