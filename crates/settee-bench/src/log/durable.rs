//! Durable appends of 1 KiB by one writer, compared with write(2) and fdatasync(2) in a loop.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use settee_log::{Batch, Flags, Log, LogOptions, Stage};

use super::bench::Bench;
use super::peers::{self, ENGINES};
use super::row::{Better, LogAim, LogRow, median};
use super::test_log::{TestLog, random_bytes, refused};
use crate::io::row::figure;
use crate::stats::Samples;
use crate::{Error, Result};

/// Bytes of each value.
pub(super) const VALUE_BYTES: usize = 1 << 10;

/// Number of rounds: many short ones, so that other load on the machine affects all workloads alike.
const ROUND_COUNT: usize = 20;

/// Number of rounds in which the peers run, each in a separate process.
const PEER_ROUND_COUNT: usize = 5;

/// Number of durable writes of each workload in a round.
const BURST_COUNT: usize = 50;

/// Pause before each workload, so that it isn't slowed by the work that the one before left to the system.
const SETTLE_TIME: Duration = Duration::from_millis(20);

/// Bytes of the values that the writers use cyclically.
pub(super) const SOURCE_BYTES: usize = 1 << 20;

/// Alignment of raw writes in bytes, that of the log's synced groups.
const RAW_STRIDE: u64 = 4096;

pub(super) fn run(bench: &Bench, each: &mut dyn FnMut(LogRow)) -> Result<()> {
    let count = bench.config.scaled(BURST_COUNT, 2);
    let values = random_bytes(SOURCE_BYTES);
    let mut raw_file = RawFile::create(bench.path(), ((ROUND_COUNT + 1) * count) as u64 * RAW_STRIDE)?;
    let test_log = bench.open(&bench.default_env(), LogOptions::default())?;
    let (mut raw, mut blocking, mut task) = (Samples::default(), Samples::default(), Samples::default());
    let mut peers = ENGINES.map(|engine| (engine, Vec::new(), String::new()));
    for round in 0..=ROUND_COUNT {
        // In the first round the log preallocates its segments; it doesn't count.
        let counts = round > 0;
        for turn in 0..3 {
            std::thread::sleep(SETTLE_TIME);
            let (samples, burst) = match (round + turn) % 3 {
                0 => (&mut raw, raw_file.burst(&values[..VALUE_BYTES], count)?.whole),
                1 => (&mut blocking, burst_blocking(&test_log.log, &values, count)?),
                _ => (&mut task, burst_in_task(bench, &test_log, &values, count)?),
            };
            if counts {
                samples.append(burst);
            }
        }
        let Some(program) = bench.config.peers.as_ref().filter(|_| round < PEER_ROUND_COUNT) else {
            continue;
        };
        for (engine, medians, setup) in &mut peers {
            let run =
                peers::run(program, engine, "durable", bench.path(), count * ROUND_COUNT / PEER_ROUND_COUNT)?;
            medians.extend(run.p50_us);
            *setup = run.setup;
        }
    }
    bench.remove(test_log)?;
    let [raw, blocking, task] = [raw, blocking, task].map(|samples| Latency::of(&samples));
    let row = |how: &str, latency: &Latency| {
        let row =
            LogRow::new(format!("durable append of 1 KiB, 1 writer, {how}"), "persisted", "µs", latency.p50);
        row.note(latency.text())
    };
    let name = "write, fdatasync";
    each(
        row("blocking", &blocking)
            .against(Better::Lower, name, raw.p50)
            .aim(LogAim::RatioAtLeast(0.9))
            .note(format!("raw, into a file of zeros that was synced: {}", raw.text())),
    );
    each(row("through a task", &task).against(Better::Lower, name, raw.p50).aim(LogAim::RatioAtLeast(0.7)));
    let mut beside = row("blocking", &blocking).note("no aim");
    let measured: Vec<_> = peers.iter().filter(|(_, medians, _)| !medians.is_empty()).collect();
    let best = measured.iter().map(|(engine, medians, _)| (engine, median(medians)));
    if let Some((engine, best)) = best.min_by(|one, other| one.1.total_cmp(&other.1)) {
        beside = beside.against(Better::Lower, *engine, best);
    }
    for (_, medians, setup) in measured {
        beside = beside.note(format!("p50 {} µs: {setup}", figure(median(medians))));
    }
    each(beside);
    Ok(())
}

/// Percentiles in microseconds.
struct Latency {
    p50: f64,
    p99: f64,
    count: usize,
}

impl Latency {
    fn of(samples: &Samples) -> Latency {
        let [p50, p99] = samples.percentiles([0.5, 0.99]).expect("a round is measured").map(micros);
        Latency { p50, p99, count: samples.count() }
    }

    fn text(&self) -> String {
        format!("p50 {} µs, p99 {} µs of {}", figure(self.p50), figure(self.p99), self.count)
    }
}

/// A time in microseconds.
pub(super) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A batch of one value of [`VALUE_BYTES`], the `index`th of `values`, cyclically.
pub(super) fn batch(values: &Bytes, index: usize) -> Batch {
    let start = index * VALUE_BYTES % values.len();
    let mut batch = Batch::new();
    let value = values.slice(start..start + VALUE_BYTES);
    batch.push_bytes(Flags::none(), &(index as u64).to_be_bytes(), &[], value);
    batch
}

fn burst_blocking(log: &Log, values: &Bytes, count: usize) -> Result<Samples> {
    let mut samples = Samples::default();
    for index in 0..count {
        let start = Instant::now();
        log.append_blocking(&batch(values, index)).map_err(refused)?;
        samples.push(start.elapsed());
    }
    Ok(samples)
}

fn burst_in_task(bench: &Bench, test_log: &TestLog, values: &Bytes, count: usize) -> Result<Samples> {
    let (log, values) = (test_log.log.clone(), values.clone());
    bench.in_task(async move {
        let mut samples = Samples::default();
        for index in 0..count {
            let start = Instant::now();
            let appended = log.append(&batch(&values, index), Stage::Persisted).await.map_err(refused)?;
            log.wait(appended.last_seq, Stage::Persisted).await.map_err(refused)?;
            samples.push(start.elapsed());
        }
        Ok(samples)
    })
}

/// The machine's limit: a synced file of zeros that is written and synced in a loop.
pub(super) struct RawFile {
    file: File,
    offset: u64,
    bytes: u64,
}

/// The latencies of a burst.
#[derive(Default)]
pub(super) struct Burst {
    /// Latencies of writes with their syncs.
    pub whole: Samples,
    /// Latencies of the syncs alone.
    pub sync: Samples,
}

impl RawFile {
    /// Creates the file in `directory`, of at least `bytes`, and removes its name at once.
    pub(super) fn create(directory: &Path, bytes: u64) -> Result<RawFile> {
        let path = directory.join("raw");
        let make = || -> io::Result<File> {
            let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            let zeros = vec![0; 1 << 20];
            for offset in (0..bytes).step_by(zeros.len()) {
                file.write_all_at(&zeros, offset)?;
            }
            file.sync_all()?;
            Ok(file)
        };
        let file = make().map_err(|error| Error::file(&path, error))?;
        Ok(RawFile { file, offset: 0, bytes: bytes.next_multiple_of(1 << 20) })
    }

    /// Writes `value` `count` times, one after the other, each synced before the next. At the end of the file
    /// it continues at the beginning.
    pub(super) fn burst(&mut self, value: &[u8], count: usize) -> Result<Burst> {
        let mut burst = Burst::default();
        for _ in 0..count {
            if self.offset + value.len() as u64 > self.bytes {
                self.offset = 0;
            }
            let start = Instant::now();
            let written = self.file.write_all_at(value, self.offset).map(|()| Instant::now());
            let synced = written.and_then(|at| self.file.sync_data().map(|()| at));
            let written_at = synced.map_err(|error| Error::wrong("raw writes", error.to_string()))?;
            burst.whole.push(start.elapsed());
            burst.sync.push(written_at.elapsed());
            self.offset += (value.len() as u64).next_multiple_of(RAW_STRIDE);
        }
        Ok(burst)
    }
}
