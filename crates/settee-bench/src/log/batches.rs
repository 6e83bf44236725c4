//! Values of 100 B in batches of 16, compared with the write-ahead logs of other engines.
//!
//! The other engines also fill a memtable, which can't be disabled; the log fills none. Each engine runs in
//! both modes: every batch written before the next, and batches buffered in memory until the end. The log is
//! compared with the fastest.

use std::time::{Duration, Instant};

use bytes::Bytes;
use settee_log::{Batch, Flags, Log, LogOptions, Stage};

use super::bench::Bench;
use super::peers::{self, ENGINES};
use super::row::{Better, LogAim, LogRow, median, rounds_text};
use super::stream::rate;
use super::test_log::{random_bytes, refused};
use crate::Result;
use crate::io::row::figure;

/// Bytes of each value.
const VALUE_BYTES: usize = 100;

/// Number of values of a batch.
const BATCH_COUNT: usize = 16;

/// Number of rounds. Each round of a peer is a separate process.
const ROUND_COUNT: usize = 3;

/// When batches are written to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteMode {
    /// All before the end of the measured time.
    Buffered,
    /// Each before the next.
    Written,
}

impl WriteMode {
    fn peer_workload(self) -> &'static str {
        match self {
            WriteMode::Buffered => "batches-buffered",
            WriteMode::Written => "batches-written",
        }
    }
}

/// The rounds of one engine in one mode.
struct Peer {
    engine: &'static str,
    mode: WriteMode,
    rates: Vec<f64>,
    setup: String,
}

pub(super) fn run(bench: &Bench, each: &mut dyn FnMut(LogRow)) -> Result<()> {
    let mib = bench.config.scaled(128, 1);
    let values = random_bytes(mib << 20);
    let mut ours = [(WriteMode::Buffered, Vec::new()), (WriteMode::Written, Vec::new())];
    let mut peers = Vec::new();
    for engine in ENGINES {
        for mode in [WriteMode::Buffered, WriteMode::Written] {
            peers.push(Peer { engine, mode, rates: Vec::new(), setup: String::new() });
        }
    }
    for _ in 0..ROUND_COUNT {
        for (mode, rates) in &mut ours {
            rates.push(rate(values.len() / VALUE_BYTES * VALUE_BYTES, append(bench, &values, *mode)?));
        }
        for peer in &mut peers {
            let Some(program) = &bench.config.peers else { continue };
            let run = peers::run(program, peer.engine, peer.mode.peer_workload(), bench.path(), mib)?;
            peer.rates.push(run.rate());
            peer.setup = run.setup;
        }
    }
    let [(_, buffered), (_, written)] = &ours;
    let name = format!("append {mib} MiB of 100 B values, batches of 16");
    let row = LogRow::new(name.clone(), "written", "MB/s", median(buffered))
        .aim(LogAim::RatioAtLeast(2.0))
        .note("no sync; timed: until all is in the system's hands; peers fill a memtable, the log fills none")
        .note(format!("rounds: {}", rounds_text(buffered)));
    each(against_best(row, &peers, None));
    let row = LogRow::new(format!("{name}, one by one"), "written", "MB/s", median(written))
        .note("no sync; each batch in the system's hands before the next; no aim")
        .note(format!("rounds: {}", rounds_text(written)));
    each(against_best(row, &peers, Some(WriteMode::Written)));
    Ok(())
}

/// Compares the row with the fastest peer, of those in mode `mode` or of all.
fn against_best(mut row: LogRow, peers: &[Peer], mode: Option<WriteMode>) -> LogRow {
    let peers = peers.iter().filter(|peer| mode.is_none_or(|mode| mode == peer.mode));
    let measured: Vec<&Peer> = peers.filter(|peer| !peer.rates.is_empty()).collect();
    let best = measured.iter().max_by(|one, other| median(&one.rates).total_cmp(&median(&other.rates)));
    if let Some(best) = best {
        row = row.against(Better::Higher, best.engine, median(&best.rates));
    }
    for peer in measured {
        let rate = figure(median(&peer.rates));
        row = row.note(format!("{rate} MB/s: {} (rounds: {})", peer.setup, rounds_text(&peer.rates)));
    }
    row
}

fn append(bench: &Bench, values: &Bytes, mode: WriteMode) -> Result<Duration> {
    let test_log = bench.open(&bench.default_env(), LogOptions::default())?;
    let (log, values) = (test_log.log.clone(), values.clone());
    let taken = bench.in_task(async move { append_all(&log, &values, mode).await })?;
    bench.remove(test_log)?;
    Ok(taken)
}

async fn append_all(log: &Log, values: &[u8], mode: WriteMode) -> Result<Duration> {
    let (values, _) = values.as_chunks::<VALUE_BYTES>();
    let stage = match mode {
        WriteMode::Buffered => Stage::Accepted,
        WriteMode::Written => Stage::Written,
    };
    let mut key = 0_u64;
    let mut last = None;
    let start = Instant::now();
    for chunk in values.chunks(BATCH_COUNT) {
        let mut batch = Batch::new();
        for value in chunk {
            batch.push(Flags::none(), &key.to_be_bytes(), &[], value);
            key += 1;
        }
        let appended = log.append(&batch, stage).await.map_err(refused)?;
        if mode == WriteMode::Written {
            log.wait(appended.last_seq, stage).await.map_err(refused)?;
        }
        last = Some(appended.last_seq);
    }
    log.wait(last.expect("there is a batch"), Stage::Written).await.map_err(refused)?;
    Ok(start.elapsed())
}
