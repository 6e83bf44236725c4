//! Durable appends of 1 KiB by one writer, compared with write(2) and fdatasync(2) in a loop.

use std::time::{Duration, Instant};

use bytes::Bytes;
use settee_log::{Batch, Flags, Log, LogOptions, Stage};

use super::bench::{Bench, in_task, random_bytes};
use crate::limits::RawFile;
use crate::report::{Bound, Row};
use crate::rounds::{Series, Window, failed, run_blocking};
use crate::stats::{Samples, Stopwatch};
use crate::{Error, Result};

/// Bytes of each value.
const VALUE_BYTES: usize = 1 << 10;

/// Number of rounds: many short ones, so that other load on the machine affects all workloads alike.
const ROUND_COUNT: usize = 20;

/// Number of durable writes of each workload in a round.
const BURST_COUNT: usize = 50;

/// Pause before each workload, so that it isn't slowed by the work that the one before left to the system.
const SETTLE_TIME: Duration = Duration::from_millis(20);

/// Bytes of the values that the writers use cyclically.
pub(super) const SOURCE_BYTES: usize = 1 << 20;

pub(super) async fn run(bench: &Bench<'_>, each: &mut dyn FnMut(Row)) -> Result<()> {
    let count = bench.scaled(BURST_COUNT, 2);
    let values = random_bytes(SOURCE_BYTES);
    let mut raw_file = RawFile::create(bench.directory)?;
    let test_log = bench.open(&bench.env(None), LogOptions::default()).await?;
    let mut windows = [const { None::<Window> }; 3];
    for round in 0..=ROUND_COUNT {
        for turn in 0..3 {
            tokio::time::sleep(SETTLE_TIME).await;
            let kind = (round + turn) % 3;
            let (log, values, stopwatch) = (test_log.log.clone(), values.clone(), Stopwatch::start(None));
            let samples = match kind {
                0 => {
                    let written;
                    (raw_file, written) = run_blocking(move || {
                        let mut samples = Samples::default();
                        for _ in 0..count {
                            samples.push(raw_file.write(&values[..VALUE_BYTES])?.0.elapsed());
                        }
                        Ok((raw_file, samples))
                    })
                    .await?;
                    written
                }
                1 => run_blocking(move || append_blocking(&log, &values, count)).await?,
                _ => in_task(async move { append(&log, &values, count).await }).await?,
            };
            // In the first round the log preallocates its segments; it doesn't count.
            if round > 0 {
                windows[kind].get_or_insert_default().append(Window::of(samples, stopwatch.read()));
            }
        }
    }
    bench.remove(test_log).await?;
    let [raw, blocking, task] = windows.map(|window| Series(vec![window.expect("there is a round")]));
    let name = |how: &str| format!("durable write of 1 KiB, 1 writer, {how}");
    let p50 = |series: &Series| series.median(|window| window.percentiles().map(|both| both[0]));
    let judged = |how: &str, series: &Series, least| {
        let ratio = p50(&raw).zip(p50(series)).map(|(raw, ours)| raw / ours);
        let row = Row::new(name(how), "writes/s", series);
        row.compare("× write, fdatasync, by medians", ratio, Bound::AtLeast(least))
    };
    each(
        Row::new(name("write, fdatasync"), "writes/s", &raw)
            .note("raw, into a file of zeros that was synced"),
    );
    each(judged("the log, blocking", &blocking, 0.9));
    each(judged("the log, through a task", &task, 0.7));
    Ok(())
}

/// A batch of one value of [`VALUE_BYTES`], the `index`th of `values`, cyclically.
pub(super) fn batch(values: &Bytes, index: usize) -> Batch {
    let start = index * VALUE_BYTES % values.len();
    let mut batch = Batch::new();
    let value = values.slice(start..start + VALUE_BYTES);
    batch.push_bytes(Flags::none(), &(index as u64).to_be_bytes(), &[], value);
    batch
}

fn append_blocking(log: &Log, values: &Bytes, count: usize) -> Result<Samples> {
    let mut samples = Samples::default();
    for index in 0..count {
        let start = Instant::now();
        log.append_blocking(&batch(values, index)).map_err(failed)?;
        samples.push(start.elapsed());
    }
    Ok(samples)
}

async fn append(log: &Log, values: &Bytes, count: usize) -> Result<Samples> {
    let mut samples = Samples::default();
    for index in 0..count {
        samples.push(append_durably(log, &batch(values, index)).await?);
    }
    Ok::<_, Error>(samples)
}

/// Appends a batch and waits until it is persisted. Returns the time that it took.
pub(super) async fn append_durably(log: &Log, batch: &Batch) -> Result<Duration> {
    let start = Instant::now();
    let appended = log.append(batch, Stage::Persisted).await.map_err(failed)?;
    log.wait(appended.last_seq, Stage::Persisted).await.map_err(failed)?;
    Ok(start.elapsed())
}
