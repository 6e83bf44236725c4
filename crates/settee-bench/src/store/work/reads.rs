//! Reads: at random, in the order of keys, and one after opening.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::data::{KEY_BYTES, Key, Order, Source, mix};
use super::engine::{Failure, Reader, TestEngine};
use super::message::Report;
use super::meter::Meter;
use super::spec::{Operation, Spec};
use crate::stats::Samples;

/// Number of reads between two yields.
const YIELD_INTERVAL: u64 = 64;

/// One of this many cached reads is timed, since reading the clock costs a tenth of a cached read.
const TIMED_EVERY: u64 = 8;

/// Number of lanes of the reads before the measured time.
const WARM_LANES: usize = 32;

/// Reads `count` records at random, split among the lanes.
pub(super) async fn random<S: TestEngine>(
    subject: &Arc<S>,
    spec: &Spec,
    directory: &Path,
) -> Result<Report, Failure> {
    let source = Source::get();
    if spec.warm > 0 {
        let warm = Spec { count: spec.warm, lanes: WARM_LANES, ..spec.clone() };
        read(subject, warm, &source, 0x3a3a).await?;
    }
    let meter = Meter::with_reads(directory);
    let latencies = read(subject, spec.clone(), &source, 0x7b7b).await?;
    let operations = spec.count / spec.lanes as u64 * spec.lanes as u64;
    Ok(meter.end(operations, spec.bytes_of(operations), &latencies))
}

async fn read<S: TestEngine>(
    subject: &Arc<S>,
    spec: Spec,
    source: &Source,
    seed: u64,
) -> Result<Samples, Failure> {
    let source = source.clone();
    let lanes = subject
        .lanes(spec.lanes, move |subject, lane| {
            let (source, spec) = (source.clone(), spec.clone());
            async move { read_lane(&*subject, &spec, &source, mix(seed + lane as u64)).await }
        })
        .await?;
    Ok(lanes.into_iter().collect())
}

async fn read_lane<S: TestEngine>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    seed: u64,
) -> Result<Samples, Failure> {
    let mut latencies = Samples::default();
    let mut reader = subject.reader()?;
    let timed_every = if spec.warm > 0 && !spec.direct { TIMED_EVERY } else { 1 };
    for turn in 0..spec.count / spec.lanes as u64 {
        let record = spec.order.record(mix(seed ^ turn) % spec.records);
        let before = turn.is_multiple_of(timed_every).then(Instant::now);
        one(&mut reader, spec, source, record, &spec.order.key(record)).await?;
        if let Some(before) = before {
            latencies.push(before.elapsed());
        }
        if turn % YIELD_INTERVAL == 0 {
            subject.yield_now().await;
        }
    }
    Ok(latencies)
}

async fn one<R: Reader>(
    reader: &mut R,
    spec: &Spec,
    source: &Source,
    record: u64,
    key: &Key,
) -> Result<(), Failure> {
    let mut is_right = false;
    reader.get(key, |value| is_right = source.is_value(value, record, 0, spec.value_bytes)).await?;
    match is_right {
        true => Ok(()),
        false => Err(format!("record {record} isn't what was written").into()),
    }
}

/// Scans all keys, or `count` of them with their values from the middle.
pub(super) async fn scan<S: TestEngine>(
    subject: &Arc<S>,
    spec: &Spec,
    directory: &Path,
) -> Result<Report, Failure> {
    let values = spec.operation == Operation::ScanValues;
    let (start, count) = match values {
        true => (middle(spec), spec.count),
        false => (Key::default(), spec.records),
    };
    let value_bytes = if values { spec.value_bytes } else { 0 };
    let mut last = Vec::new();
    let mut is_right = true;
    let mut reader = subject.reader()?;
    let meter = Meter::with_reads(directory);
    let found = reader
        .scan(&start, count, values, |key, value| {
            is_right &= key > &last[..] && value.len() == value_bytes;
            last.clear();
            last.extend_from_slice(key);
        })
        .await?;
    let report = meter.end(count, count * (KEY_BYTES + value_bytes) as u64, &Samples::default());
    if !is_right || found != count {
        return Err(format!("a scan of {count} keys found {found}, in order and whole: {is_right}").into());
    }
    Ok(report)
}

/// A key near the middle, after which there are enough keys for a scan.
fn middle(spec: &Spec) -> Key {
    match spec.order {
        Order::Sequential => spec.order.key(spec.records / 2),
        Order::Random | Order::Reuse => {
            let mut key = Key::default();
            key[0] = 0x60;
            key
        }
    }
}

/// Reads one by one the values of the keys that a scan with values returns. Finding the keys isn't part of
/// the measured time.
pub(super) async fn in_order<S: TestEngine>(
    subject: &Arc<S>,
    spec: &Spec,
    directory: &Path,
) -> Result<Report, Failure> {
    let mut keys: Vec<Key> = Vec::with_capacity(spec.count as usize);
    let mut reader = subject.reader()?;
    reader.scan(&middle(spec), spec.count, false, |key, _| keys.extend(<Key>::try_from(key))).await?;
    let mut is_right = keys.len() as u64 == spec.count;
    let mut latencies = Samples::default();
    let meter = Meter::with_reads(directory);
    for key in &keys {
        let before = Instant::now();
        is_right &= reader.get(key, |_| {}).await?;
        latencies.push(before.elapsed());
    }
    let report = meter.end(spec.count, spec.bytes_of(spec.count), &latencies);
    if !is_right {
        return Err(format!("{} keys in order, not all found", keys.len()).into());
    }
    Ok(report)
}

/// Reads the last record, which shows that the database is complete.
pub(super) async fn first<S: TestEngine>(subject: &Arc<S>, spec: &Spec) -> Result<Report, Failure> {
    let source = Source::get();
    let meter = Meter::start();
    let record = spec.order.record(spec.records - 1);
    one(&mut subject.reader()?, spec, &source, record, &spec.order.key(record)).await?;
    Ok(meter.end(1, 0, &Samples::default()))
}
