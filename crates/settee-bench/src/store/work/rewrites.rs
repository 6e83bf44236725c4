//! Overwriting all records repeatedly beside a reader: disk space and latencies of reads over time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::data::{Source, mix};
use super::engine::{Failure, Reader, TestEngine};
use super::message::{Message, Report, Second};
use super::meter::{Meter, disk_bytes};
use super::spec::{Operation, Spec};
use crate::stats::Samples;

/// Number of reads in one snapshot.
const SNAPSHOT_READ_COUNT: u64 = 64;

/// Interval between two samples. A shorter run has one sample at its end.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two checks for the end of the run.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Default)]
struct OverwriteProgress {
    writes: AtomicU64,
    reads: AtomicU64,
    /// The reader's latencies since the last sample.
    recent: Mutex<Samples>,
    is_over: AtomicBool,
}

/// Overwrites each record `count` times, in the order of the load, beside a reader.
pub(super) async fn overwrite<S: TestEngine>(
    subject: &Arc<S>,
    spec: &Spec,
    directory: &Path,
    send: &mut (impl FnMut(Message) + Send),
) -> Result<Report, Failure> {
    assert_eq!(spec.operation, Operation::Overwrite);
    let source = Source::get();
    let progress = Arc::new(OverwriteProgress::default());
    let (lane_progress, lane_spec, directory) = (progress.clone(), spec.clone(), directory.to_owned());
    // Lanes may be threads, so the samples pass through a channel and are sent at the end.
    let (sender, receiver) = mpsc::channel();
    let meter = Meter::start();
    let lanes = subject
        .lanes(3, move |subject, lane| {
            let (progress, spec, source) = (lane_progress.clone(), lane_spec.clone(), source.clone());
            let (directory, sender) = (directory.clone(), sender.clone());
            async move {
                match lane {
                    0 => {
                        let wrote = write_over(&*subject, &spec, &source, &progress).await;
                        progress.is_over.store(true, Ordering::Relaxed);
                        wrote.map(|()| Samples::default())
                    }
                    1 => read_meanwhile(&*subject, &spec, &source, &progress).await,
                    _ => sample(&*subject, &spec, directory, &progress, &sender)
                        .await
                        .map(|()| Samples::default()),
                }
            }
        })
        .await?;
    let (latencies, operations): (Samples, u64) = (lanes.into_iter().collect(), spec.records * spec.count);
    let mut report = meter.end(operations, spec.bytes_of(operations), &latencies);
    receiver.try_iter().for_each(|second| send(Message::Second(second)));
    report.beside_reads = progress.reads.load(Ordering::Relaxed);
    report.beside_found = report.beside_reads;
    Ok(report)
}

async fn write_over<S: TestEngine>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    progress: &OverwriteProgress,
) -> Result<(), Failure> {
    let mut batch = Vec::with_capacity(spec.batch);
    for version in 1..=spec.count {
        for from in (0..spec.records).step_by(spec.batch) {
            let to = spec.records.min(from + spec.batch as u64);
            spec.pairs(source, (from, to), version, &mut batch);
            subject.write(&batch, false).await?;
            progress.writes.fetch_add(to - from, Ordering::Relaxed);
        }
    }
    subject.write_out().await
}

/// Reads at random until the writer has finished. A value may be of any version of its record.
async fn read_meanwhile<S: TestEngine>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    progress: &OverwriteProgress,
) -> Result<Samples, Failure> {
    let mut all = Samples::default();
    let mut turn = 0;
    while !progress.is_over.load(Ordering::Relaxed) {
        let mut reader = subject.reader()?;
        let mut recent = Samples::default();
        for _ in 0..SNAPSHOT_READ_COUNT {
            turn += 1;
            let record = mix(turn ^ 0x0e0e) % spec.records;
            let mut is_right = false;
            let check = |value: &[u8]| {
                let mut versions = 0..=spec.count;
                is_right = versions.any(|version| source.is_value(value, record, version, spec.value_bytes));
            };
            let before = Instant::now();
            reader.get(&spec.order.key(record), check).await?;
            recent.push(before.elapsed());
            if !is_right {
                return Err(format!("record {record} is none of its versions").into());
            }
        }
        all.append(recent.clone());
        progress.recent.lock().unwrap_or_else(PoisonError::into_inner).append(recent);
        progress.reads.fetch_add(SNAPSHOT_READ_COUNT, Ordering::Relaxed);
        drop(reader);
        subject.yield_now().await;
    }
    Ok(all)
}

async fn sample<S: TestEngine>(
    subject: &S,
    spec: &Spec,
    directory: PathBuf,
    progress: &OverwriteProgress,
    sender: &mpsc::Sender<Second>,
) -> Result<(), Failure> {
    let live_bytes = spec.bytes_of(spec.records);
    let (mut writes, mut reads) = (0, 0);
    for second in 1.. {
        let start = Instant::now();
        while start.elapsed() < SAMPLE_INTERVAL && !progress.is_over.load(Ordering::Relaxed) {
            subject.pause(POLL_INTERVAL).await;
        }
        let recent = std::mem::take(&mut *progress.recent.lock().unwrap_or_else(PoisonError::into_inner));
        let [read_p50_us, read_p99_us] = recent.percentiles([0.5, 0.99]).unwrap_or_default();
        let now = (progress.writes.load(Ordering::Relaxed), progress.reads.load(Ordering::Relaxed));
        let sampled = Second {
            second,
            writes: now.0 - writes,
            reads: now.1 - reads,
            read_p50_us,
            read_p99_us,
            disk_bytes: disk_bytes(&directory)?,
            live_bytes,
            engine: subject.counters(),
        };
        (writes, reads) = now;
        // Fails if another lane has failed.
        let _ = sender.send(sampled);
        if progress.is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
    unreachable!("seconds don't run out")
}
