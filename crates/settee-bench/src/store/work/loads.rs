//! Writing: in batches without a sync, alone or beside a reader, and durably one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::data::{KEY_BYTES, Source};
use super::meter::{Latencies, Stretch};
use super::{Failure, Operation, Reader, Report, Spec, Subject, pairs};

/// Keys that the reader beside a load reads again and again: the newest.
const NEWEST_COUNT: u64 = 32;

/// What the writer and the reader beside it tell each other.
#[derive(Default)]
struct Shared {
    written: AtomicU64,
    is_over: AtomicBool,
}

/// What the reader did.
#[derive(Default)]
struct Beside {
    reads: u64,
    found: u64,
    passes: u64,
    lag: u64,
}

enum Lane {
    Wrote(Latencies, Box<Report>),
    Read(Beside),
}

/// Writes all records. The latencies are those of batches.
pub(super) async fn ingest<S: Subject>(subject: &Arc<S>, spec: &Spec) -> Result<Report, Failure> {
    let source = Source::get();
    let shared = Arc::new(Shared::default());
    let lane_count = if spec.operation == Operation::IngestBesideReader { 2 } else { 1 };
    let (captured, spec_of_lanes) = (source.clone(), spec.clone());
    let lanes = subject
        .lanes(lane_count, move |subject, lane| {
            let (shared, source, spec) = (shared.clone(), captured.clone(), spec_of_lanes.clone());
            async move {
                if lane == 1 {
                    return Ok(Lane::Read(read_newest(&*subject, &spec, &source, &shared).await?));
                }
                let wrote = write_all(&*subject, &spec, &source, &shared).await;
                shared.is_over.store(true, Ordering::Relaxed);
                let (latencies, report) = wrote?;
                Ok(Lane::Wrote(latencies, Box::new(report)))
            }
        })
        .await?;
    let mut report = Report::default();
    let mut beside = Beside::default();
    let mut latencies = Latencies::default();
    for lane in lanes {
        match lane {
            Lane::Wrote(taken, wrote) => (latencies, report) = (taken, *wrote),
            Lane::Read(read) => beside = read,
        }
    }
    (report.p50_us, report.p99_us) = latencies.percentiles();
    report.operations = spec.records;
    report.bytes = spec.records * (KEY_BYTES + spec.value_bytes) as u64;
    report.beside_reads = beside.reads;
    report.beside_found = beside.found;
    report.beside_lag = beside.lag as f64 / beside.passes.max(1) as f64;
    // After the clock has stopped: what the load left to be done counts as written by it.
    if spec.write_out {
        subject.settle().await?;
    }
    Ok(report)
}

async fn write_all<S: Subject>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    shared: &Shared,
) -> Result<(Latencies, Report), Failure> {
    let mut batch = Vec::with_capacity(spec.batch);
    let mut latencies = Latencies::default();
    let stretch = Stretch::start();
    let mut from = 0;
    while from < spec.records {
        let to = spec.records.min(from + spec.batch as u64);
        pairs(source, spec, from, to, 0, &mut batch);
        let before = Instant::now();
        subject.write(&batch, false).await?;
        latencies.push(before.elapsed());
        from = to;
        shared.written.store(to, Ordering::Release);
    }
    match spec.write_out {
        true => subject.write_out().await?,
        false => subject.hand_over().await?,
    }
    Ok((latencies, stretch.end()))
}

/// Reads the newest keys that its view shows, in a new view each time, until the writer is done.
async fn read_newest<S: Subject>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    shared: &Shared,
) -> Result<Beside, Failure> {
    let mut beside = Beside::default();
    while !shared.is_over.load(Ordering::Relaxed) {
        let written = shared.written.load(Ordering::Acquire);
        let mut reader = subject.reader()?;
        let visible = reader.visible().unwrap_or(written);
        beside.passes += 1;
        beside.lag += written.saturating_sub(visible);
        for index in visible.saturating_sub(NEWEST_COUNT)..visible.max(1) {
            let record = spec.order.record(index);
            let mut is_right = true;
            let check = |value: &[u8]| is_right = source.is_value(value, record, 0, spec.value_bytes);
            let found = reader.get(&spec.order.key(record), check).await?;
            if !is_right || (!found && index < visible) {
                return Err(format!("record {record} isn't what was written (of {visible})").into());
            }
            beside.reads += 1;
            beside.found += u64::from(found);
        }
        drop(reader);
        subject.breathe().await;
    }
    Ok(beside)
}

/// Writes records behind those that are there, each on stable storage before its lane's next, until
/// all are there or the time is over.
pub(super) async fn durable<S: Subject>(subject: &Arc<S>, spec: &Spec) -> Result<Report, Failure> {
    let source = Source::get();
    let next = Arc::new(AtomicU64::new(spec.records));
    let end = spec.records + spec.count;
    let of_lanes = spec.clone();
    let time = if spec.seconds_max == 0 { Duration::MAX } else { Duration::from_secs(spec.seconds_max) };
    let stretch = Stretch::start();
    let start = Instant::now();
    let lanes = subject
        .lanes(spec.lanes, move |subject, _| {
            let (next, source, spec) = (next.clone(), source.clone(), of_lanes.clone());
            async move {
                let mut latencies = Latencies::default();
                let mut one = Vec::with_capacity(1);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= end || start.elapsed() >= time {
                        return Ok(latencies);
                    }
                    pairs(&source, &spec, index, index + 1, 0, &mut one);
                    let before = Instant::now();
                    subject.write(&one, true).await?;
                    latencies.push(before.elapsed());
                }
            }
        })
        .await?;
    let mut report = stretch.end();
    let mut latencies = Latencies::default();
    lanes.into_iter().for_each(|lane| latencies.append(lane));
    (report.p50_us, report.p99_us) = latencies.percentiles();
    report.operations = latencies.count();
    report.bytes = report.operations * (KEY_BYTES + spec.value_bytes) as u64;
    Ok(report)
}
