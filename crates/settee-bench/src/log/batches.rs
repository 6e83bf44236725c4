//! Values of 100 B in batches of 16, against the write-ahead logs of other engines.
//!
//! They fill a memtable as well, which they can't be kept from; the log fills nothing. Each of
//! them runs both ways it knows: every batch in the system's hands, and collected in its memory
//! until the end. The better of all is what the log is held against.

use std::time::{Duration, Instant};

use bytes::Bytes;
use settee_log::{Batch, Flags, Log, LogOptions, Stage};

use super::peers::{self, ENGINES};
use super::row::{Aim, Better, Row, figure};
use super::stream::rate;
use super::{Bench, median, random_bytes, refused, rounds_text};
use crate::Result;

/// Bytes of each value, and values in a batch.
const VALUE_BYTES: usize = 100;
const BATCH_COUNT: usize = 16;

/// Rounds; a peer's round is a process of its own.
const ROUND_COUNT: usize = 3;

/// How the batches get to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// All before the clock stops.
    Buffered,
    /// Each before the next.
    Written,
}

impl Way {
    fn peer_workload(self) -> &'static str {
        match self {
            Way::Buffered => "batches-buffered",
            Way::Written => "batches-written",
        }
    }
}

/// One engine in one way.
struct Peer {
    engine: &'static str,
    way: Way,
    rates: Vec<f64>,
    setup: String,
}

pub(super) fn run(bench: &Bench, each: &mut dyn FnMut(Row)) -> Result<()> {
    let mib = bench.config.scaled(128, 1);
    let values = random_bytes(mib << 20);
    let mut ours = [(Way::Buffered, Vec::new()), (Way::Written, Vec::new())];
    let mut peers = Vec::new();
    for engine in ENGINES {
        for way in [Way::Buffered, Way::Written] {
            peers.push(Peer { engine, way, rates: Vec::new(), setup: String::new() });
        }
    }
    for _ in 0..ROUND_COUNT {
        for (way, rates) in &mut ours {
            rates.push(rate(values.len() / VALUE_BYTES * VALUE_BYTES, append(bench, &values, *way)?));
        }
        for peer in &mut peers {
            let Some(program) = &bench.config.peers else { continue };
            let run = peers::run(program, peer.engine, peer.way.peer_workload(), bench.path(), mib)?;
            peer.rates.push(run.rate());
            peer.setup = run.setup;
        }
    }
    let [(_, buffered), (_, written)] = &ours;
    let name = format!("append {mib} MiB of 100 B values, batches of 16");
    let row = Row::new(name.clone(), "written", "MB/s", median(buffered))
        .aim(Aim::RatioAtLeast(2.0))
        .note("no sync; timed: until all is in the system's hands; peers fill a memtable, the log fills none")
        .note(format!("rounds: {}", rounds_text(buffered)));
    each(against_best(row, &peers, None));
    let row = Row::new(format!("{name}, one by one"), "written", "MB/s", median(written))
        .note("no sync; each batch in the system's hands before the next; no aim")
        .note(format!("rounds: {}", rounds_text(written)));
    each(against_best(row, &peers, Some(Way::Written)));
    Ok(())
}

/// The row against the best of the peers that went this `way`, or any.
fn against_best(mut row: Row, peers: &[Peer], way: Option<Way>) -> Row {
    let peers = peers.iter().filter(|peer| way.is_none_or(|way| way == peer.way));
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

fn append(bench: &Bench, values: &Bytes, way: Way) -> Result<Duration> {
    let subject = bench.open(&bench.default_env(), LogOptions::default())?;
    let (log, values) = (subject.log.clone(), values.clone());
    let taken = bench.in_task(async move { append_all(&log, &values, way).await })?;
    bench.remove(subject)?;
    Ok(taken)
}

async fn append_all(log: &Log, values: &[u8], way: Way) -> Result<Duration> {
    let (values, _) = values.as_chunks::<VALUE_BYTES>();
    let stage = match way {
        Way::Buffered => Stage::Accepted,
        Way::Written => Stage::Written,
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
        if way == Way::Written {
            log.wait(appended.last_seq, stage).await.map_err(refused)?;
        }
        last = Some(appended.last_seq);
    }
    log.wait(last.expect("there is a batch"), Stage::Written).await.map_err(refused)?;
    Ok(start.elapsed())
}
