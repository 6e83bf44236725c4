//! Overwriting everything again and again, while a reader reads: what space and reads do over
//! time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::data::{KEY_BYTES, Source, mix};
use super::meter::{Latencies, Stretch, disk_bytes};
use super::{Failure, Operation, Reader, Report, Second, Spec, Subject, Told, pairs};

/// Reads in one view.
const VIEW_READ_COUNT: u64 = 64;

/// How often the run is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A run shorter than that is looked at once all the same.
const LOOK_STEP: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Shared {
    writes: AtomicU64,
    reads: AtomicU64,
    /// The reader's latencies since the last look.
    recent: Mutex<Latencies>,
    is_over: AtomicBool,
}

/// Writes each record `count` times over, after it was loaded; in an order of its own each time.
pub(super) async fn overwrite<S: Subject>(
    subject: &Arc<S>,
    spec: &Spec,
    directory: &Path,
    tell: &mut (impl FnMut(Told) + Send),
) -> Result<Report, Failure> {
    assert_eq!(spec.operation, Operation::Overwrite);
    let source = Source::get();
    let shared = Arc::new(Shared::default());
    let (of_lanes, spec_of_lanes, directory) = (shared.clone(), spec.clone(), directory.to_owned());
    // Lanes may be threads: what they tell goes through a channel, and is told at the end.
    let (teller, told) = mpsc::channel();
    let stretch = Stretch::start();
    let lanes = subject
        .lanes(3, move |subject, lane| {
            let (shared, spec, source) = (of_lanes.clone(), spec_of_lanes.clone(), source.clone());
            let (directory, teller) = (directory.clone(), teller.clone());
            async move {
                match lane {
                    0 => {
                        let wrote = write_over(&*subject, &spec, &source, &shared).await;
                        shared.is_over.store(true, Ordering::Relaxed);
                        wrote.map(|()| Latencies::default())
                    }
                    1 => read_meanwhile(&*subject, &spec, &source, &shared).await,
                    _ => look(&*subject, &spec, directory, &shared, &teller)
                        .await
                        .map(|()| Latencies::default()),
                }
            }
        })
        .await?;
    let mut report = stretch.end();
    told.try_iter().for_each(|second| tell(Told::Second(second)));
    let mut latencies = Latencies::default();
    lanes.into_iter().for_each(|lane| latencies.append(lane));
    (report.p50_us, report.p99_us) = latencies.percentiles();
    report.operations = spec.records * spec.count;
    report.bytes = report.operations * (KEY_BYTES + spec.value_bytes) as u64;
    report.beside_reads = shared.reads.load(Ordering::Relaxed);
    report.beside_found = report.beside_reads;
    Ok(report)
}

async fn write_over<S: Subject>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    shared: &Shared,
) -> Result<(), Failure> {
    let mut batch = Vec::with_capacity(spec.batch);
    for version in 1..=spec.count {
        for from in (0..spec.records).step_by(spec.batch) {
            let to = spec.records.min(from + spec.batch as u64);
            pairs(source, spec, from, to, version, &mut batch);
            subject.write(&batch, false).await?;
            shared.writes.fetch_add(to - from, Ordering::Relaxed);
        }
    }
    subject.write_out().await
}

/// Reads at random until the writer is done; any version will do, no other value.
async fn read_meanwhile<S: Subject>(
    subject: &S,
    spec: &Spec,
    source: &Source,
    shared: &Shared,
) -> Result<Latencies, Failure> {
    let mut all = Latencies::default();
    let mut turn = 0;
    while !shared.is_over.load(Ordering::Relaxed) {
        let mut reader = subject.reader()?;
        let mut recent = Latencies::default();
        for _ in 0..VIEW_READ_COUNT {
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
        shared.recent.lock().unwrap_or_else(PoisonError::into_inner).append(recent);
        shared.reads.fetch_add(VIEW_READ_COUNT, Ordering::Relaxed);
        drop(reader);
        subject.breathe().await;
    }
    Ok(all)
}

async fn look<S: Subject>(
    subject: &S,
    spec: &Spec,
    directory: PathBuf,
    shared: &Shared,
    teller: &mpsc::Sender<Second>,
) -> Result<(), Failure> {
    let live_bytes = spec.records * (KEY_BYTES + spec.value_bytes) as u64;
    let (mut writes, mut reads) = (0, 0);
    for second in 1.. {
        let start = Instant::now();
        while start.elapsed() < LOOK_EVERY && !shared.is_over.load(Ordering::Relaxed) {
            subject.pause(LOOK_STEP).await;
        }
        let mut recent = std::mem::take(&mut *shared.recent.lock().unwrap_or_else(PoisonError::into_inner));
        let (p50, p99) = recent.percentiles();
        let now = (shared.writes.load(Ordering::Relaxed), shared.reads.load(Ordering::Relaxed));
        let told = Second {
            second,
            writes: now.0 - writes,
            reads: now.1 - reads,
            read_p50_us: p50.unwrap_or(0.0),
            read_p99_us: p99.unwrap_or(0.0),
            disk_bytes: disk_bytes(&directory)?,
            live_bytes,
            engine: subject.counters(),
        };
        (writes, reads) = now;
        // Nobody listens any more where another lane failed.
        let _ = teller.send(told);
        if shared.is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
    unreachable!("seconds don't run out")
}
