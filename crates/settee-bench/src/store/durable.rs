//! Durable single writes, by one writer and by many.

use super::ingest::setup;
use super::work::{Operation, Spec};
use super::{Bench, Contender, load_text, table};
use crate::Result;
use crate::io::row::{Aim, Row};

/// Bytes of the values.
const VALUE_BYTES: usize = 1 << 10;

/// Records that are there before.
const RECORDS_BEFORE: u64 = 1_000;

/// No engine gets more time for them: those that don't share syncs would take minutes.
const SECONDS_MAX: u64 = 15;

/// Writers at once; many of them write so many times as much as one.
const WRITER_COUNTS: [(usize, u64); 2] = [(1, 1), (50, 10)];

pub(super) fn measure(bench: &Bench, each: &mut dyn FnMut(Row)) -> Result<()> {
    for (lanes, times) in WRITER_COUNTS {
        let before = bench.spec(Operation::Ingest, VALUE_BYTES, RECORDS_BEFORE);
        let before = Spec { write_out: true, ..before };
        let count = bench.config.durable_count * times;
        let durable =
            Spec { operation: Operation::Durable, lanes, count, seconds_max: SECONDS_MAX, ..before.clone() };
        let load = load_text();
        let contenders = bench.rounds(&bench.everyone(), &[before, durable])?;
        let name = format!("durable writes of 1 KiB, random keys, {lanes} writer(s)");
        let note = |contender: &Contender| format!("{}; {load}", setup(contender));
        let aim = Some(Aim::AtLeast(1.0));
        table(&name, "w/s", |_| 1.0, &contenders, aim, note).into_iter().for_each(&mut *each);
    }
    Ok(())
}
