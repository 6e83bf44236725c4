//! Overwriting all records repeatedly while they are read: disk space and reads over time.

use super::bench::{Bench, EngineRuns};
use super::runs::{EngineId, Run};
use super::table::{figure_row, setup};
use super::work::message::Second;
use super::work::{Operation, Spec};
use crate::Result;
use crate::io::data_file::load_average;
use crate::report::{Bound, Row};
use crate::rounds::{Series, median};

/// Bytes of the values, each with the divisor of the number of records.
const SIZES: [(usize, u64); 2] = [(100, 1), (1024, 10)];

/// Number of times that all records are overwritten with compaction.
const TIMES: u64 = 10;

/// Number of times without compaction, when the disk holds all versions.
const TIMES_WITHOUT: u64 = 2;

pub(super) fn measure(bench: &Bench, each: &mut dyn FnMut(Row)) -> Result<()> {
    for (value_bytes, divisor) in SIZES {
        size(bench, value_bytes, (bench.sizes.records / divisor).max(1), each)?;
    }
    Ok(())
}

fn size(bench: &Bench, value_bytes: usize, records: u64, each: &mut dyn FnMut(Row)) -> Result<()> {
    let before = bench.spec(Operation::Ingest, value_bytes, records);
    let before = Spec { write_out: true, ..before };
    let overwrite = Spec { operation: Operation::Overwrite, ..before.clone() };
    let with = [before.clone(), Spec { count: TIMES, ..overwrite.clone() }];
    let without = [before, Spec { count: TIMES_WITHOUT, compaction: false, ..overwrite }];
    let load = load_average();
    let Some(with) = run(bench, "with compaction", &with, each)? else { return Ok(()) };
    let Some(without) = run(bench, "without compaction", &without, each)? else { return Ok(()) };
    let space: Vec<f64> = steady(&with).iter().map(|(disk, live, _)| disk / live).collect();
    let most = space.iter().copied().reduce(f64::max);
    each(
        figure_row(
            "  space over live bytes, most in the steady state",
            "×",
            most,
            ("live bytes", 1.0),
            Some(Bound::AtMost(1.5)),
        )
        .note(format!("the steady state: the second half of the seconds; {load}")),
    );
    let p99 = |run: &Run| median(steady(run).iter().map(|(_, _, p99)| *p99));
    let limit = ("without compaction", p99(&without).unwrap_or(0.0));
    each(figure_row("  read p99 in the steady state", "µs", p99(&with), limit, Some(Bound::AtMost(2.0))));
    Ok(())
}

/// For each second of the run's second half: bytes on disk, live bytes, and the p99 of reads in microseconds.
fn steady(run: &Run) -> Vec<(f64, f64, f64)> {
    let half = run.seconds.len() / 2;
    let figures =
        |second: &Second| (second.disk_bytes as f64, second.live_bytes.max(1) as f64, second.read_p99_us);
    run.seconds[half..].iter().map(figures).collect()
}

fn run(bench: &Bench, how: &str, specs: &[Spec; 2], each: &mut dyn FnMut(Row)) -> Result<Option<Run>> {
    let [_, overwrite] = specs;
    let Spec { records, value_bytes, count, .. } = overwrite;
    let name = format!("overwrite {records} of {value_bytes} B {count} times, {how}");
    let mut engine_runs = EngineRuns::new(EngineId::Ours);
    let directory = bench.new_directory();
    let loaded = bench.programs.run(EngineId::Ours, &directory, &specs[0]);
    let run = loaded.and_then(|_| bench.programs.run(EngineId::Ours, &directory, overwrite));
    bench.remove(&directory)?;
    engine_runs.take(bench, run);
    let Some(run) = engine_runs.runs.last().cloned() else {
        each(Row::missing(name, "w/s", engine_runs.failure.unwrap_or_default()));
        return Ok(None);
    };
    let series = Series(vec![run.report.window(1.0)]);
    let reads = run.report.beside_reads as f64 / run.report.seconds.max(1e-9);
    let note = format!("latencies are the reader's, of {reads:.0} reads/s; {}", setup(&engine_runs));
    each(Row::new(name, "w/s", &series).note(note));
    for second in &run.seconds {
        let row = Row::figure(format!("  second {}", second.second), "w/s", second.writes as f64);
        let (p50_us, p99_us) = (Some(second.read_p50_us), Some(second.read_p99_us));
        let space = second.disk_bytes as f64 / second.live_bytes.max(1) as f64;
        let row = Row { operations: second.writes, p50_us, p99_us, ..row };
        let row = row.compare("× live bytes", Some(space), None);
        each(row.note(format!("{} reads/s; {}", second.reads, second.engine)));
    }
    Ok(Some(run))
}
