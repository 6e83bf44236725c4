//! Durable single writes, by one writer and by many.

use super::bench::{Bench, EngineRuns};
use super::table::{setup, table};
use super::work::{Operation, Spec};
use crate::Result;
use crate::io::data_file::load_average;
use crate::report::{Bound, Row};

/// Bytes of the values.
const VALUE_BYTES: usize = 1 << 10;

/// Number of records that are loaded before.
const RECORDS_BEFORE: u64 = 1_000;

/// Longest time of a run in seconds: engines that don't share syncs would take minutes.
const SECONDS_MAX: u64 = 15;

/// Numbers of concurrent writers, each with the factor for the number of writes.
const WRITER_COUNTS: [(usize, u64); 2] = [(1, 1), (50, 10)];

pub(super) fn measure(bench: &Bench, each: &mut dyn FnMut(Row)) -> Result<()> {
    for (lanes, times) in WRITER_COUNTS {
        let before = bench.spec(Operation::Ingest, VALUE_BYTES, RECORDS_BEFORE);
        let before = Spec { write_out: true, ..before };
        let count = bench.sizes.durable_count * times;
        let durable =
            Spec { operation: Operation::Durable, lanes, count, seconds_max: SECONDS_MAX, ..before.clone() };
        let load = load_average();
        let all_runs = bench.rounds(&bench.all_engines(), &[before, durable])?;
        let name = format!("durable writes of 1 KiB, random keys, {lanes} writer(s)");
        let note = |engine_runs: &EngineRuns| format!("{}; {load}", setup(engine_runs));
        let aim = Some(Bound::AtLeast(1.0));
        table(&name, "w/s", 1.0, &all_runs, aim, note).into_iter().for_each(&mut *each);
    }
    Ok(())
}
