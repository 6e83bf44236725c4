//! Durable appends of 1 KiB by many concurrent writers, which share syncs.
//!
//! Each writer is a task that repeatedly appends and waits until the append is persisted. The processor time
//! is the whole process's and includes the writers' own work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use settee_log::{Log, LogOptions, LogStats, Stage};

use super::bench::Bench;
use super::durable::{RawFile, SOURCE_BYTES, batch, micros};
use super::row::{Better, LogAim, LogRow};
use super::test_log::{random_bytes, refused};
use crate::Result;
use crate::io::row::figure;
use crate::stats::{Elapsed, Samples, Stopwatch};

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

/// Bytes of the file for the raw syncs.
const RAW_BYTES: u64 = 32 << 20;

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

pub(super) fn run(bench: &Bench, each: &mut dyn FnMut(LogRow)) -> Result<()> {
    let values = random_bytes(SOURCE_BYTES);
    let mut raw = RawFile::create(bench.path(), RAW_BYTES)?;
    let mut before: Option<(usize, f64)> = None;
    for count in WRITER_COUNTS {
        let measured = measure(bench, &values, count)?;
        let group_bytes = measured.each_sync(measured.written_bytes) as usize;
        let group = random_bytes(group_bytes.clamp(1, RAW_BYTES as usize / 2));
        let burst = raw.burst(&group, bench.config.scaled(RAW_COUNT, 8))?;
        let [sync_us] = burst.sync.percentiles([0.5]).expect("there are syncs").map(micros);
        each(rate_row(count, &measured, before));
        each(latency_row(count, &measured, sync_us, group.len()));
        before = Some((count, measured.rate()));
    }
    Ok(())
}

/// The result of the measured period.
struct Measured {
    latencies: Samples,
    elapsed: Elapsed,
    sync_count: u64,
    written_bytes: u64,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.wall.as_secs_f64().max(1e-9)
    }

    fn each_sync(&self, sum: u64) -> f64 {
        sum as f64 / self.sync_count.max(1) as f64
    }

    /// The share of all processors' time that this process used.
    fn busy(&self) -> f64 {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        self.elapsed.client_cpu.as_secs_f64() / self.elapsed.wall.as_secs_f64().max(1e-9) / processors
    }
}

fn rate_row(count: usize, measured: &Measured, before: Option<(usize, f64)>) -> LogRow {
    let commits = measured.latencies.count().max(1) as f64;
    let mut row = LogRow::new(
        format!("durable appends of 1 KiB, {}", writers(count)),
        "persisted",
        "commits/s",
        measured.rate(),
    )
    .note(format!(
        "{:.4} syncs a commit; {} µs of processor time a commit; {:.0} % of all processors busy",
        measured.sync_count as f64 / commits,
        figure(micros(measured.elapsed.client_cpu) / commits),
        measured.busy() * 100.0
    ));
    let Some((fewer, rate)) = before else { return row.note("no aim: the first of the series") };
    row = row.against(Better::Higher, writers(fewer), rate);
    match measured.busy() >= BUSY_SHARE {
        true => row.note("the processors are the limit: it need not grow"),
        false => row.aim(LogAim::RatioAtLeast(1.0)),
    }
}

fn latency_row(count: usize, measured: &Measured, sync_us: f64, group_bytes: usize) -> LogRow {
    let [p50, p99] = measured.latencies.percentiles([0.5, 0.99]).unwrap_or_default().map(micros);
    let cpu_us = micros(measured.elapsed.client_cpu) / measured.sync_count.max(1) as f64;
    LogRow::new(format!("the same, p99 of {}", writers(count)), "persisted", "µs", p99)
        .against(Better::Multiple, "sync + group's CPU", sync_us + cpu_us)
        .aim(LogAim::RatioAtMost(3.0))
        .note(format!(
            "p50 {} µs; {} µs fdatasync behind a write of {group_bytes} B, a group's mean, on a prefilled \
             file; {} µs of processor time a group",
            figure(p50),
            figure(sync_us),
            figure(cpu_us)
        ))
}

fn writers(count: usize) -> String {
    format!("{count} writer{}", if count == 1 { "" } else { "s" })
}

fn measure(bench: &Bench, values: &Bytes, count: usize) -> Result<Measured> {
    let test_log = bench.open(&bench.default_env(), LogOptions::default())?;
    let (log, values) = (test_log.log.clone(), values.clone());
    let (warm, time) = (WARM_TIME.mul_f64(bench.config.scale), MEASURE_TIME.mul_f64(bench.config.scale));
    let measured = bench.in_task(async move {
        let period = Arc::new(Period::default());
        let mut writers = tokio::task::JoinSet::new();
        for index in 0..count {
            writers.spawn(write(log.clone(), values.clone(), index, period.clone()));
        }
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
        let (elapsed, after): (Elapsed, LogStats) = (stopwatch.read(), log.stats());
        let mut latencies = Samples::default();
        while let Some(writer) = writers.join_next().await {
            latencies.append(writer.map_err(refused)??);
        }
        Ok(Measured {
            latencies,
            elapsed,
            sync_count: after.sync_count - before.sync_count,
            written_bytes: after.written_bytes - before.written_bytes,
        })
    })?;
    bench.remove(test_log)?;
    Ok(measured)
}

/// Appends until the period ends. An append counts if it is persisted within the period.
async fn write(log: Arc<Log>, values: Bytes, index: usize, period: Arc<Period>) -> Result<Samples> {
    let mut samples = Samples::default();
    loop {
        let start = Instant::now();
        let appended = log.append(&batch(&values, index), Stage::Persisted).await.map_err(refused)?;
        log.wait(appended.last_seq, Stage::Persisted).await.map_err(refused)?;
        match period.state.load(Ordering::Relaxed) {
            WARMING => {}
            MEASURING => {
                samples.push(start.elapsed());
                period.commit_count.fetch_add(1, Ordering::Relaxed);
            }
            _ => return Ok(samples),
        }
    }
}
