//! Durable appends of 1 KiB by many concurrent writers, which share syncs.
//!
//! Each writer is a task that repeatedly appends and waits until the append is persisted. The processor time
//! is the whole process's and includes the writers' own work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use settee_log::{Log, LogOptions};

use super::bench::{Bench, in_task, random_bytes};
use super::durable::{SOURCE_BYTES, append_durably, batch};
use crate::Result;
use crate::limits::{RAW_FILE_BYTES, RawFile};
use crate::report::{Bound, Row, figure};
use crate::rounds::{Series, Window, join_all, micros};
use crate::stats::{Samples, Stopwatch};

/// Numbers of writers.
const WRITER_COUNTS: [usize; 5] = [1, 10, 50, 200, 2000];

/// How long the writers run before the measured period.
const WARM_TIME: Duration = Duration::from_millis(500);

/// Duration of the measured period. It is extended until there is a commit.
const MEASURE_TIME: Duration = Duration::from_secs(2);

/// Interval between two checks for the first commit, after the end of the period.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum number of such checks.
const POLL_COUNT_MAX: usize = 2000;

/// Number of raw syncs that measure the machine's limit.
const RAW_COUNT: usize = 100;

/// Share of all processors' time from which on the processors count as the limit.
const BUSY_SHARE: f64 = 0.9;

/// The measured period, shared with the writers.
#[derive(Default)]
struct Period {
    /// [`WARMING`], [`MEASURING`] or [`STOPPING`].
    state: AtomicU8,
    /// Number of appends that were persisted within the period.
    commit_count: AtomicU64,
}

const WARMING: u8 = 0;
const MEASURING: u8 = 1;
const STOPPING: u8 = 2;

pub(super) async fn run(bench: &Bench<'_>, each: &mut dyn FnMut(Row)) -> Result<()> {
    let values = random_bytes(SOURCE_BYTES);
    let mut raw = RawFile::create(bench.directory)?;
    let mut before: Option<(usize, f64)> = None;
    for count in WRITER_COUNTS {
        let Measured { window, sync_count, written_bytes } = measure(bench, &values, count).await?;
        let group_bytes = (written_bytes / sync_count.max(1)).clamp(1, RAW_FILE_BYTES / 2);
        let group = random_bytes(group_bytes as usize);
        let mut syncs = Samples::default();
        for _ in 0..bench.scaled(RAW_COUNT, 8) {
            syncs.push(raw.write(&group)?.1.elapsed());
        }
        let [sync_us] = syncs.percentiles([0.5]).expect("there are syncs");
        let cpu_us = micros(window.elapsed.client_cpu) / sync_count.max(1) as f64;
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let busy = micros(window.elapsed.client_cpu) / micros(window.elapsed.wall).max(1.0) / processors;
        let (rate, commits) = (window.rate(), window.operations.max(1) as f64);
        let p99 = window.percentiles().map(|[_, p99]| p99 / (sync_us + cpu_us));
        let mut row = Row::new(
            format!("durable appends of 1 KiB, {count} writer(s), persisted"),
            "commits/s",
            &Series(vec![window]),
        );
        if let Some((fewer, fewer_rate)) = before {
            // If the processors are the limit, the rate need not grow.
            let aim = (busy < BUSY_SHARE).then_some(Bound::AtLeast(1.0));
            row = row.compare(format!("× {fewer} writer(s)"), Some(rate / fewer_rate), aim);
        }
        let row = row.compare("× sync + group's CPU: p99", p99, Bound::AtMost(3.0)).note(format!(
            "{:.4} syncs a commit; {:.0} % of all processors busy; {} µs fdatasync behind a write of {} B, a \
             group's mean, on a prefilled file; {} µs of processor time a group",
            sync_count as f64 / commits,
            busy * 100.0,
            figure(sync_us),
            group.len(),
            figure(cpu_us)
        ));
        each(row);
        before = Some((count, rate));
    }
    Ok(())
}

/// The result of the measured period.
struct Measured {
    window: Window,
    sync_count: u64,
    written_bytes: u64,
}

async fn measure(bench: &Bench<'_>, values: &Bytes, count: usize) -> Result<Measured> {
    let test_log = bench.open(&bench.env(None), LogOptions::default()).await?;
    let (log, values) = (test_log.log.clone(), values.clone());
    let (warm, time) = (WARM_TIME.mul_f64(bench.config.scale), MEASURE_TIME.mul_f64(bench.config.scale));
    let measured = in_task(async move {
        let period = Arc::new(Period::default());
        let of = |index| write(log.clone(), values.clone(), index, period.clone());
        let writers = tokio::spawn(join_all((0..count).map(of).collect::<Vec<_>>()));
        tokio::time::sleep(warm).await;
        let (stopwatch, before) = (Stopwatch::start(None), log.stats());
        period.state.store(MEASURING, Ordering::Relaxed);
        tokio::time::sleep(time).await;
        // A period without a commit has no figures, so it waits for one.
        for _ in 0..POLL_COUNT_MAX {
            if period.commit_count.load(Ordering::Relaxed) > 0 {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        period.state.store(STOPPING, Ordering::Relaxed);
        let (elapsed, after) = (stopwatch.read(), log.stats());
        let latencies = writers.await.map_err(crate::rounds::failed)??;
        Ok(Measured {
            window: Window::of(latencies.into_iter().collect(), elapsed),
            sync_count: after.sync_count - before.sync_count,
            written_bytes: after.written_bytes - before.written_bytes,
        })
    })
    .await?;
    bench.remove(test_log).await?;
    Ok(measured)
}

/// Appends until the period ends. An append counts if it is persisted within the period.
async fn write(log: Arc<Log>, values: Bytes, index: usize, period: Arc<Period>) -> Result<Samples> {
    let mut samples = Samples::default();
    loop {
        let taken = append_durably(&log, &batch(&values, index)).await?;
        match period.state.load(Ordering::Relaxed) {
            WARMING => {}
            MEASURING => {
                samples.push(taken);
                period.commit_count.fetch_add(1, Ordering::Relaxed);
            }
            _ => return Ok(samples),
        }
    }
}
