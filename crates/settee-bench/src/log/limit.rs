//! A stream under a memory limit, where the page cache must write back: its rate, and how long it delays a
//! task on the same thread.
//!
//! It runs in a separate process, since the limit is that of a [`ControlGroup`]. There one executor thread
//! runs a task that wakes every millisecond, beside each of the phases in turn: the log, the log in direct
//! mode, nothing, and a writer that calls write(2) on that thread. A delay is the time by which the task wakes
//! late.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use settee_io::{EngineKind, Env};
use settee_log::{Batch, Flags, LogOptions, Stage};
use tokio::runtime::Runtime;

use super::bench::Bench;
use super::peers;
use super::row::{Better, LogAim, LogRow, median, rounds_text};
use super::stream::{fio_rate, rate};
use super::test_log::{open, random_bytes, refused, remove_directory, start_engine, stream_options};
use crate::control_group::ControlGroup;
use crate::io::row::figure;
use crate::stats::Samples;
use crate::{Error, Result};

/// The memory limit in bytes.
const LIMIT_BYTES: u64 = 256 << 20;

/// Number of rounds, each in a separate process.
const ROUND_COUNT: usize = 3;

/// Bytes of each value.
const VALUE_BYTES: usize = 8 << 10;

/// Number of values of a batch. The writer yields after each batch.
const BATCH_COUNT: usize = 16;

/// Bytes of random values that are written cyclically. They count against the limit.
const SOURCE_BYTES: usize = 16 << 20;

/// Interval at which the other task wakes.
const TICK: Duration = Duration::from_millis(1);

/// The result of one phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Phase {
    /// The name: `idle`, `log`, `log, direct` or `std`.
    pub name: String,
    /// MB/s until all is on stable storage; 0 for `idle`.
    pub rate: f64,
    /// The longest delay in milliseconds.
    pub longest_ms: f64,
    /// The 99th percentile of delays in milliseconds.
    pub p99_ms: f64,
}

const IDLE: &str = "idle";
const LOG: &str = "log";
const LOG_DIRECT: &str = "log, direct";
const STD: &str = "std";

/// Runs every phase once with `bytes` each, on the calling thread, after the process has joined the control
/// group in the directory `group`, if any. Calls `each` with the result of each phase.
///
/// # Errors
/// [`Error::File`] and [`Error::Wrong`].
pub fn measure_delays(
    directory: &Path,
    bytes: usize,
    engine: EngineKind,
    group: Option<&Path>,
    mut each: impl FnMut(Phase),
) -> Result<()> {
    if let Some(group) = group {
        let path = group.join("cgroup.procs");
        fs::write(&path, std::process::id().to_string()).map_err(|error| Error::file(&path, error))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
    let engine = start_engine(engine)?;
    let env = Env::with_engine(runtime.handle().clone(), engine);
    let values = random_bytes(SOURCE_BYTES.min(bytes));
    let mut report = |name: &str, taken: Duration, bytes: usize, ticks: &Samples| {
        let percentiles = ticks.percentiles([0.99, 1.0]).unwrap_or_default();
        let [p99_ms, longest_ms] = percentiles.map(|time| time.as_secs_f64() * 1e3);
        each(Phase { name: name.to_owned(), rate: rate(bytes, taken), longest_ms, p99_ms });
    };
    let mut longest = Duration::ZERO;
    for (name, direct) in [(LOG, false), (LOG_DIRECT, true)] {
        let path = directory.join("delay-log");
        let (taken, ticks) =
            beside_ticks(&runtime, write_log(&env, &path, stream_options(direct), values.clone(), bytes))?;
        remove_directory(&path)?;
        longest = longest.max(taken);
        report(name, taken, bytes, &ticks);
    }
    // As long as the log's phases: in a longer phase, longer delays would occur.
    let (taken, ticks) = beside_ticks(&runtime, async {
        tokio::time::sleep(longest).await;
        Ok(())
    })?;
    report(IDLE, taken, 0, &ticks);
    let path = directory.join("delay-std");
    let (taken, ticks) = beside_ticks(&runtime, write_std(&path, values, bytes))?;
    fs::remove_file(&path).map_err(|error| Error::file(&path, error))?;
    report(STD, taken, bytes, &ticks);
    Ok(())
}

/// Runs `work` beside the ticking task. Returns the duration, and the delay of each tick.
fn beside_ticks(runtime: &Runtime, work: impl Future<Output = Result<()>>) -> Result<(Duration, Samples)> {
    let over = Rc::new(std::cell::Cell::new(false));
    let local = tokio::task::LocalSet::new();
    local.block_on(runtime, async {
        let ticker = tokio::task::spawn_local(tick(over.clone()));
        let start = Instant::now();
        work.await?;
        let taken = start.elapsed();
        over.set(true);
        let ticks = ticker.await.map_err(refused)?;
        Ok((taken, ticks))
    })
}

async fn tick(over: Rc<std::cell::Cell<bool>>) -> Samples {
    let mut late = Samples::default();
    while !over.get() {
        let due = tokio::time::Instant::now() + TICK;
        tokio::time::sleep_until(due).await;
        late.push(due.elapsed());
    }
    late
}

async fn write_log(
    env: &Env,
    directory: &Path,
    options: LogOptions,
    values: Bytes,
    bytes: usize,
) -> Result<()> {
    let log = open(env, directory, options).await?;
    for start in (0..bytes).step_by(VALUE_BYTES * BATCH_COUNT) {
        let mut batch = Batch::new();
        for index in 0..BATCH_COUNT {
            let start = (start + index * VALUE_BYTES) % values.len();
            let value = values.slice(start..(start + VALUE_BYTES).min(values.len()));
            batch.push_bytes(Flags::none(), &(start as u64).to_be_bytes(), &[], value);
        }
        log.append(&batch, Stage::Accepted).await.map_err(refused)?;
        tokio::task::yield_now().await;
    }
    log.close().await.map_err(refused)
}

async fn write_std(path: &Path, values: Bytes, bytes: usize) -> Result<()> {
    let failed = |error| Error::file(path, error);
    let mut file = fs::File::create_new(path).map_err(failed)?;
    for start in (0..bytes).step_by(VALUE_BYTES * BATCH_COUNT) {
        let start = start % values.len();
        let end = (start + VALUE_BYTES * BATCH_COUNT).min(values.len());
        file.write_all(&values[start..end]).map_err(failed)?;
        tokio::task::yield_now().await;
    }
    file.sync_data().map_err(failed)
}

pub(super) fn run(bench: &Bench, each: &mut dyn FnMut(LogRow)) -> Result<()> {
    let bytes = bench.config.scaled(2 << 30, 8 << 20).next_multiple_of(1 << 20);
    let group = ControlGroup::create(LIMIT_BYTES);
    let (mut rounds, mut disk) = (Vec::new(), Vec::new());
    for _ in 0..ROUND_COUNT {
        let mut command = Command::new(&bench.config.program);
        command.args(["bench", "log-delay"]).arg(bench.path());
        command.args([bytes.to_string(), bench.config.engine.to_string()]);
        if let Ok(group) = &group {
            command.arg(&group.directory);
        }
        let phases = peers::output(&mut command).and_then(|text| parse(&text));
        rounds.push(phases.map_err(|reason| Error::wrong("a stream under a memory limit", reason))?);
        disk.push(fio_rate(bench, bytes as u64)?);
    }
    let disk: Result<Vec<f64>, String> = disk.into_iter().collect();
    let limit = match &group {
        Ok(group) => Ok(format!("limit of {} MiB by {}", LIMIT_BYTES >> 20, group.kind)),
        Err(reason) => Err(reason.clone()),
    };
    report(bytes, &rounds, &disk, &limit).into_iter().for_each(each);
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Phase>, String> {
    text.lines()
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{error} in {line:?}")))
        .collect()
}

/// The rows. `limit` describes the memory limit, or is the reason why there was none.
fn report(
    bytes: usize,
    rounds: &[Vec<Phase>],
    disk: &Result<Vec<f64>, String>,
    limit: &Result<String, String>,
) -> Vec<LogRow> {
    let figures = |name: &str, of: fn(&Phase) -> f64| -> Vec<f64> {
        rounds.iter().flatten().filter(|phase| phase.name == name).map(of).collect()
    };
    let longest = |name: &str| figures(name, |phase| phase.longest_ms);
    let most = |name: &str| longest(name).into_iter().fold(0.0, f64::max);
    let limit_text = limit.clone().unwrap_or_else(|reason| format!("NO LIMIT, and so no aim: {reason}"));
    let aimed = |row: LogRow, aim: LogAim| if limit.is_ok() { row.aim(aim) } else { row };
    let name = |what: &str| format!("append {} MiB under a memory limit, {what}", bytes >> 20);
    let mut rows = Vec::new();
    for (phase, mode) in [(LOG, "buffered"), (LOG_DIRECT, "direct")] {
        let row = LogRow::new(name(&format!("delay, {mode}")), "persisted", "ms", most(phase))
            .against(Better::Multiple, "idle", most(IDLE))
            .note(format!(
                "longest of all rounds ({}) against idle ({}) and a std writer on the thread ({}); {limit_text}",
                rounds_text(&longest(phase)),
                rounds_text(&longest(IDLE)),
                rounds_text(&longest(STD))
            ))
            .note(format!("p99 of delays: {}", rounds_text(&figures(phase, |phase| phase.p99_ms))));
        rows.push(aimed(row, LogAim::ExcessAtMost(5.0)));
        let rates = figures(phase, |phase| phase.rate);
        let row = LogRow::new(name(mode), "persisted", "MB/s", median(&rates)).note(format!(
            "one executor thread; timed: until all is persisted; rounds: {}; a std writer: {}",
            rounds_text(&rates),
            figure(median(&figures(STD, |phase| phase.rate)))
        ));
        let row = aimed(row, LogAim::RatioAtLeast(0.9));
        rows.push(match disk {
            Ok(disk) => row
                .against(Better::Higher, "fio, direct, 4 × 1 MiB", median(disk))
                .note(format!("fio has no limit; rounds: {}", rounds_text(disk))),
            Err(reason) => row.note(format!("no rate of fio: {reason}")),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(idle_ms: f64, log_ms: f64) -> Vec<Phase> {
        let phase =
            |name: &str, rate, longest_ms| Phase { name: name.to_owned(), rate, longest_ms, p99_ms: 1.0 };
        vec![
            phase(LOG, 950.0, log_ms),
            phase(LOG_DIRECT, 800.0, 1.0),
            phase(IDLE, 0.0, idle_ms),
            phase(STD, 500.0, 90.0),
        ]
    }

    #[test]
    fn the_longest_delay_of_all_rounds_counts_and_the_median_rate() {
        let limit = Ok("a limit".to_owned());
        let rows = report(2 << 30, &[round(1.0, 2.0), round(1.5, 6.6)], &Ok(vec![1000.0]), &limit);
        let judged: Vec<_> = rows.iter().map(|row| (row.ours, row.met)).collect();
        let expected = [(6.6, Some(false)), (950.0, Some(true)), (1.0, Some(true)), (800.0, Some(false))];
        assert_eq!(judged, expected);
    }

    #[test]
    fn without_a_limit_or_fio_nothing_is_judged_and_the_rows_have_the_reason() {
        let rows =
            report(2 << 30, &[round(1.0, 2.0)], &Err("none".to_owned()), &Err("not allowed".to_owned()));
        assert!(rows.iter().all(|row| row.met.is_none()), "{rows:?}");
        let text: String = rows.iter().map(LogRow::lines).collect();
        assert!(
            text.contains("NO LIMIT, and so no aim: not allowed") && text.contains("no rate of fio: none")
        );
    }

    #[test]
    fn every_phase_runs_and_its_output_is_parsed() {
        let directory = tempfile::tempdir().unwrap();
        let mut output = String::new();
        let each = |phase: Phase| output += &(serde_json::to_string(&phase).unwrap() + "\n");
        measure_delays(directory.path(), 4 << 20, EngineKind::Auto, None, each).unwrap();
        let phases = parse(&output).unwrap();
        let names: Vec<&str> = phases.iter().map(|phase| &*phase.name).collect();
        assert_eq!(names, [LOG, LOG_DIRECT, IDLE, STD]);
        assert!(phases.iter().all(|phase| (phase.rate > 0.0) == (phase.name != IDLE)), "{phases:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
