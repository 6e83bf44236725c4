//! Loads without a sync: the cases of Neon's `bench_ingest`, and loads of increasing numbers of records.

use super::bench::{Bench, EngineRuns};
use super::runs::EngineId;
use super::table::{ratio_row, setup, table};
use super::work::data::Order;
use super::work::{Operation, Spec};
use crate::Result;
use crate::io::data_file::load_average;
use crate::report::{Bound, Row};

/// Sizes of values in bytes.
const VALUE_SIZES: [usize; 2] = [100, 8192];

/// Sizes of the growing loads, in tenths of the records.
const GROWTH_TENTHS: [u64; 4] = [1, 3, 10, 30];

/// Bytes of the values of the growing loads.
const GROWTH_VALUE_BYTES: usize = 100;

fn order_text(order: Order) -> &'static str {
    match order {
        Order::Sequential => "keys in order",
        Order::Random => "random keys",
        Order::Reuse => "1,024 keys again and again",
    }
}

pub(super) fn cases(bench: &Bench, each: &mut dyn FnMut(Row)) -> Result<()> {
    for value_bytes in VALUE_SIZES {
        for order in [Order::Sequential, Order::Random, Order::Reuse] {
            for write_out in [false, true] {
                let records = bench.sizes.ingest_bytes.div_ceil(value_bytes as u64);
                let alone = bench.spec(Operation::Ingest, value_bytes, records);
                case(bench, Spec { order, write_out, ..alone }, each)?;
            }
        }
    }
    Ok(())
}

/// One load, alone and beside a reader.
fn case(bench: &Bench, alone: Spec, each: &mut dyn FnMut(Row)) -> Result<()> {
    let end = if alone.write_out { "written out" } else { "handed over" };
    let name = format!("ingest {} B, {}, {end}", alone.value_bytes, order_text(alone.order));
    let load = load_average();
    let weight = alone.value_bytes as f64 / f64::from(1 << 20);
    let without = bench.rounds(&bench.all_engines(), std::slice::from_ref(&alone))?;
    let aim = Some(Bound::AtLeast(2.0));
    let note = |engine_runs: &EngineRuns| match engine_runs.engine_id {
        EngineId::Ours => format!("latencies are of batches of 16; {load}; {}", setup(engine_runs)),
        _ => setup(engine_runs),
    };
    table(&name, "MiB/s", weight, &without, aim, note).into_iter().for_each(&mut *each);
    let beside = Spec { operation: Operation::IngestBesideReader, ..alone.clone() };
    let with = bench.rounds(&bench.all_engines(), &[beside])?;
    let name = format!("{name}, beside a reader");
    let reader = |engine_runs: &EngineRuns| {
        let rate = engine_runs.median(|run| run.report.beside_reads as f64 / run.report.seconds.max(1e-9));
        let lag = engine_runs.median(|run| run.report.beside_lag).unwrap_or(0.0);
        let missed = engine_runs.median(|run| (run.report.beside_reads - run.report.beside_found) as f64);
        format!(
            "reader of the newest 32 keys: {:.0} reads/s, {:.0} of nothing yet, {lag:.0} records behind the writer on \
             average",
            rate.unwrap_or(0.0),
            missed.unwrap_or(0.0)
        )
    };
    let mut rows = table(&name, "MiB/s", weight, &with, aim, reader);
    let (ours, ours_alone) = (with[0].series(weight), without[0].series(weight));
    if !ours.0.is_empty() && !ours_alone.0.is_empty() {
        let name = "  the writer beside a reader, over the writer alone";
        rows.push(ratio_row(name, "MiB/s", &ours, ("alone", &ours_alone), Bound::AtLeast(0.8)));
    }
    rows.into_iter().for_each(each);
    Ok(())
}

/// Measures loads of increasing numbers of records by the store, each compared with the first.
pub(super) fn growth(bench: &Bench, each: &mut dyn FnMut(Row)) -> Result<()> {
    let mut first = None;
    for tenths in GROWTH_TENTHS {
        let records = (bench.sizes.records * tenths / 10).max(1);
        let spec = bench.spec(Operation::Ingest, GROWTH_VALUE_BYTES, records);
        let load = load_average();
        let ours = bench.rounds(&[EngineId::Ours], &[Spec { write_out: true, ..spec }])?.remove(0);
        let name = format!("load {records} of {GROWTH_VALUE_BYTES} B, random keys, written out");
        if ours.runs.is_empty() {
            each(Row::missing(name, "rec/s", ours.failure.unwrap_or_default()));
            continue;
        }
        let series = ours.series(1.0);
        let mut row = Row::new(name, "rec/s", &series);
        match &first {
            None => first = Some(series),
            Some(first) => {
                let is_last = tenths == *GROWTH_TENTHS.last().expect("there are sizes");
                row = row.against("the first", &series, Some(first), is_last.then_some(Bound::AtLeast(0.7)));
            }
        }
        let written = ours.median(|run| run.report.written_bytes_in_all as f64 / run.report.bytes as f64);
        let peak = ours.median(|run| run.report.peak_bytes as f64 / f64::from(1 << 20)).unwrap_or(0.0);
        each(row.note(format!(
            "{:.2} bytes written for each given, {peak:.0} MiB of memory at most, {load}; {}",
            written.unwrap_or(0.0),
            setup(&ours)
        )));
    }
    Ok(())
}
