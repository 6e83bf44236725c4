//! Hostile clients, and the server's latency for other clients beside them.
//!
//! The attacks run one after the other, each for a given time. Meanwhile one probe requests `_up` on a new
//! connection each time, and another writes documents of 20 KB as the administrator. A request that fails is
//! repeated; its latency is the time until it succeeds.
//!
//! Invariants:
//! 1. An attack never ends by itself: its clients repeat a connection or request that the server closes or
//!    refuses.
//! 2. An attack has ended, and its connections are closed, before the next begins.

mod attacks;
mod victim;

use std::time::{Duration, Instant};

use clap::ValueEnum;
use tokio::task::JoinSet;

use settee_client::Couch;

pub use self::attacks::Attack;
use self::victim::DATABASE;
pub use self::victim::Victim;
use crate::error::{Error, Result};
use crate::process::{Usage, reset_peak};
use crate::report::{Bound, Row};
use crate::rounds::{Series, Window};
use crate::stats::{Elapsed, Samples};

/// Largest latency of `_up` in milliseconds that isn't a miss.
const UP_MS_MAX: f64 = 100.0;

/// Largest latency of another client's write in milliseconds that isn't a miss.
const WRITE_MS_MAX: f64 = 1_000.0;

/// Longest time for which a probe repeats a request.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(30);

/// Pause between two requests of a probe.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// Pause between a failed request of a probe and its repetition.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Bytes of the documents that the probe writes.
const DOCUMENT_BYTES: usize = 20_000;

/// Parameters of a run.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Attacks to run, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub attacks: Vec<Attack>,

    /// Factor for connections and sizes
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = crate::scale)]
    pub scale: f64,

    /// Duration of each attack in seconds
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    crate::number(text, 0.1, 3600.0)
}

/// Statistics of a probe.
#[derive(Debug, Clone, Default)]
struct ProbeStats {
    /// Times until requests succeeded.
    latencies: Samples,
    /// Number of failed requests, which were repeated.
    failed: u64,
}

/// The rows of an attack: of each probe, whose longest time until a request succeeded has an aim.
fn rows(name: &str, up: ProbeStats, writes: ProbeStats, notes: [String; 2], time: Duration) -> [Row; 2] {
    let elapsed = Elapsed { wall: time, ..Elapsed::default() };
    let row = |what: &str, ProbeStats { latencies, failed }, max| {
        let longest = latencies.percentiles([1.0]).map(|[longest]| longest / 1e3);
        let series = Series(vec![Window::of(latencies, elapsed)]);
        Row::new(format!("{name}: {what}"), "requests/s", &series)
            .compare("ms at most", longest, Bound::AtMost(max))
            .note(format!("{failed} requests were repeated"))
    };
    let [begun, peak] = notes;
    [row("_up", up, UP_MS_MAX).note(begun), row("another client's writes", writes, WRITE_MS_MAX).note(peak)]
}

/// Runs the probes without an attack and then beside each attack. Calls `each` with the rows.
///
/// # Errors
/// [`Error::Wrong`] if a probe's request didn't succeed within 30 s; the server may no longer respond then.
pub async fn run(config: &Config, victim: &Victim, each: &mut dyn FnMut(Row)) -> Result<()> {
    let mut couch = Couch::new(victim.admin.clone());
    couch.create_database(DATABASE).await?;
    let all = if config.attacks.is_empty() { Attack::value_variants() } else { &config.attacks };
    let time = Duration::from_secs_f64(config.seconds);
    for attack in std::iter::once(None).chain(all.iter().map(Some)) {
        victim.pid.inspect(|pid| reset_peak(*pid));
        let begun = attacks::Begun::default();
        let mut attackers = JoinSet::new();
        if let Some(attack) = attack {
            attack.begin(victim, config.scale, &begun, &mut attackers)?;
        }
        let (up, writes) = tokio::join!(probe_up(victim, time), probe_writes(victim, time));
        let peak = victim.pid.and_then(Usage::of).map(|usage| usage.peak_bytes >> 20);
        attackers.shutdown().await;
        let notes = [
            format!("{} connections, requests or streams begun by the attack", begun.count()),
            peak.map_or("the server's memory isn't known".to_owned(), |mib| {
                format!("{mib} MiB of the server's memory at most")
            }),
        ];
        let name = attack.map_or("no attack".to_owned(), |attack| attack.name());
        rows(&name, up?, writes?, notes, time).into_iter().for_each(&mut *each);
    }
    Ok(couch.delete_database(DATABASE).await?)
}

/// Runs `request` repeatedly for `time`; a failed one is repeated until it succeeds.
async fn probe(
    time: Duration,
    name: &str,
    mut request: impl AsyncFnMut() -> Result<(), String>,
) -> Result<ProbeStats> {
    let (started, mut stats) = (Instant::now(), ProbeStats::default());
    while started.elapsed() < time {
        let sent = Instant::now();
        loop {
            let left = PROBE_WAIT_MAX.saturating_sub(sent.elapsed());
            match tokio::time::timeout(left, request()).await {
                Ok(Ok(())) => break,
                Ok(Err(reason)) if sent.elapsed() >= PROBE_WAIT_MAX => {
                    return Err(Error::wrong(name, reason));
                }
                Ok(Err(_)) => {}
                Err(_) => return Err(Error::wrong(name, format!("no response in {PROBE_WAIT_MAX:?}"))),
            }
            stats.failed += 1;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        stats.latencies.push(sent.elapsed());
        tokio::time::sleep(PROBE_PAUSE).await;
    }
    Ok(stats)
}

async fn probe_up(victim: &Victim, time: Duration) -> Result<ProbeStats> {
    let request = async || {
        let mut couch = Couch::new(victim.anonymous.clone());
        couch.call("GET", "/_up", None).await.map(drop).map_err(|error| error.to_string())
    };
    probe(time, "_up", request).await
}

async fn probe_writes(victim: &Victim, time: Duration) -> Result<ProbeStats> {
    let mut couch = Couch::new(victim.admin.clone());
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(DOCUMENT_BYTES));
    let request = async || {
        let target = format!("/{DATABASE}");
        couch.call("POST", &target, Some(body.as_bytes())).await.map(drop).map_err(|error| error.to_string())
    };
    probe(time, "a write", request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_over_its_limit_is_a_miss_with_its_name() {
        let stats = |longest_ms: f64| {
            let mut latencies = Samples::default();
            latencies.push(Duration::from_secs_f64(longest_ms / 1e3));
            ProbeStats { latencies, failed: 0 }
        };
        let met = |up, writes| {
            let time = Duration::from_secs(1);
            let rows = rows("idle", stats(up), stats(writes), Default::default(), time);
            rows.map(|row| row.compared[0].met)
        };
        assert_eq!(met(UP_MS_MAX, WRITE_MS_MAX), [Some(true), Some(true)]);
        assert_eq!(met(UP_MS_MAX + 1.0, WRITE_MS_MAX), [Some(false), Some(true)]);
        assert_eq!(met(UP_MS_MAX, WRITE_MS_MAX + 1.0), [Some(true), Some(false)]);
    }
}
