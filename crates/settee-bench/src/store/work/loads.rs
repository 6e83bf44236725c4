//! Writes: in batches without a sync, alone or beside a reader, and durable single ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::data::Source;
use super::engine::{Failure, Reader, TestEngine};
use super::message::Report;
use super::meter::Meter;
use super::spec::{Operation, Spec};
use crate::stats::Samples;

/// Number of the newest keys, which the reader beside a load reads.
const NEWEST_COUNT: u64 = 32;

/// The load's progress, shared by the writer and the reader beside it.
#[derive(Default)]
struct LoadProgress {
    written: AtomicU64,
    is_over: AtomicBool,
}

/// Statistics of the reader.
#[derive(Default)]
struct ReaderStats {
    reads: u64,
    found: u64,
    passes: u64,
    lag: u64,
}

enum Lane {
    Wrote(Box<Report>),
    Read(ReaderStats),
}

/// Writes all records, beside a reader if the spec has one. The latencies are those of batches.
pub(super) async fn ingest<S: TestEngine>(subject: &Arc<S>, spec: &Spec) -> Result<Report, Failure> {
    let source = Source::get();
    let progress = Arc::new(LoadProgress::default());
    let lane_count = if spec.operation == Operation::IngestBesideReader { 2 } else { 1 };
    let (captured, lane_spec) = (source.clone(), spec.clone());
    let lanes = subject
        .lanes(lane_count, move |subject, lane| {
            let (progress, source, spec) = (progress.clone(), captured.clone(), lane_spec.clone());
            async move {
                if lane == 1 {
                    return Ok(Lane::Read(read_newest(&*subject, &spec, &source, &progress).await?));
                }
                let wrote = write_all(&*subject, &spec, &source, &progress).await;
                progress.is_over.store(true, Ordering::Relaxed);
                Ok(Lane::Wrote(Box::new(wrote?)))
            }
        })
        .await?;
    let (mut report, mut beside) = (Report::default(), ReaderStats::default());
    for lane in lanes {
        match lane {
            Lane::Wrote(wrote) => report = *wrote,
            Lane::Read(read) => beside = read,
        }
    }
    report.beside_reads = beside.reads;
    report.beside_found = beside.found;
    report.beside_lag = beside.lag as f64 / beside.passes.max(1) as f64;
    // Not part of the measured time, but background work counts for the bytes written.
    if spec.write_out {
        subject.settle().await?;
    }
    Ok(report)
}

async fn write_all<S: TestEngine>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    progress: &LoadProgress,
) -> Result<Report, Failure> {
    let mut batch = Vec::with_capacity(spec.batch);
    let mut latencies = Samples::default();
    let meter = Meter::start();
    let mut from = 0;
    while from < spec.records {
        let to = spec.records.min(from + spec.batch as u64);
        spec.pairs(source, (from, to), 0, &mut batch);
        let before = Instant::now();
        subject.write(&batch, false).await?;
        latencies.push(before.elapsed());
        from = to;
        progress.written.store(to, Ordering::Release);
    }
    match spec.write_out {
        true => subject.write_out().await?,
        false => subject.flush_to_kernel().await?,
    }
    Ok(meter.end(spec.records, spec.bytes_of(spec.records), &latencies))
}

/// Reads the newest visible keys, each time in a new snapshot, until the writer has finished.
async fn read_newest<S: TestEngine>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    progress: &LoadProgress,
) -> Result<ReaderStats, Failure> {
    let mut beside = ReaderStats::default();
    while !progress.is_over.load(Ordering::Relaxed) {
        let written = progress.written.load(Ordering::Acquire);
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
        subject.yield_now().await;
    }
    Ok(beside)
}

/// Writes `count` further records, each on stable storage before its lane's next, until all are written or
/// the time has passed.
pub(super) async fn durable<S: TestEngine>(subject: &Arc<S>, spec: &Spec) -> Result<Report, Failure> {
    let source = Source::get();
    let next = Arc::new(AtomicU64::new(spec.records));
    let end = spec.records + spec.count;
    let lane_spec = spec.clone();
    let time = if spec.seconds_max == 0 { Duration::MAX } else { Duration::from_secs(spec.seconds_max) };
    let meter = Meter::start();
    let start = Instant::now();
    let lanes = subject
        .lanes(spec.lanes, move |subject, _| {
            let (next, source, spec) = (next.clone(), source.clone(), lane_spec.clone());
            async move {
                let mut latencies = Samples::default();
                let mut one = Vec::with_capacity(1);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= end || start.elapsed() >= time {
                        return Ok(latencies);
                    }
                    spec.pairs(&source, (index, index + 1), 0, &mut one);
                    let before = Instant::now();
                    subject.write(&one, true).await?;
                    latencies.push(before.elapsed());
                }
            }
        })
        .await?;
    let latencies: Samples = lanes.into_iter().collect();
    Ok(meter.end(latencies.count(), spec.bytes_of(latencies.count()), &latencies))
}
