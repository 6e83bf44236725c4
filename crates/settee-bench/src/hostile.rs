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
mod config;

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

pub use self::attacks::Attack;
pub use self::config::Config;
use self::config::DATABASE;
use crate::couch::Couch;
use crate::error::{Error, Result};
use crate::process::ServerProcess;

/// Largest latency of `_up` in milliseconds that isn't a miss.
pub const UP_MS_MAX: u64 = 100;

/// Largest latency of another client's write in milliseconds that isn't a miss.
pub const WRITE_MS_MAX: u64 = 1_000;

/// Longest time for which a probe repeats a request.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(30);

/// Pause between two requests of a probe.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// Pause between a failed request of a probe and its repetition.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Bytes of the documents that the probe writes.
const DOCUMENT_BYTES: usize = 20_000;

/// The result of an attack.
#[derive(Debug, Clone)]
pub struct Report {
    /// The attack. None: the time before the first one.
    pub attack: Option<Attack>,
    /// Requests of `_up`.
    pub up: ProbeStats,
    /// Another client's writes.
    pub writes: ProbeStats,
    /// Peak resident memory of the server's process in bytes, if known.
    pub peak_bytes: Option<u64>,
    /// Number of connections, requests or streams that the attack began.
    pub begun: u64,
}

/// Statistics of a probe.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProbeStats {
    /// Number of successful requests.
    pub count: u64,
    /// Number of failed requests, which were repeated.
    pub failed: u64,
    /// The longest time until a request succeeded, in milliseconds.
    pub longest_ms: u64,
}

impl Report {
    /// A description of each limit that was exceeded.
    pub fn misses(&self) -> Vec<String> {
        let kinds = [("_up", &self.up, UP_MS_MAX), ("a write", &self.writes, WRITE_MS_MAX)];
        let missed = kinds.into_iter().filter(|(_, stats, limit_ms)| stats.longest_ms > *limit_ms);
        missed
            .map(|(name, stats, limit_ms)| {
                format!("{name} took {} ms, more than {limit_ms}", stats.longest_ms)
            })
            .collect()
    }

    /// A line of the table.
    pub fn line(&self) -> String {
        let name = self.attack.map_or("none", Attack::name);
        let columns =
            |stats: &ProbeStats| format!("{:>7} {:>6} {:>8}", stats.count, stats.failed, stats.longest_ms);
        let peak = self.peak_bytes.map_or("?".to_owned(), |bytes| (bytes >> 20).to_string());
        format!("{name:<22} {:>9}  {}  {}  {peak:>8}", self.begun, columns(&self.up), columns(&self.writes))
    }
}

/// The heading of the table of [`Report::line`].
pub fn heading() -> String {
    let kind = |name| format!("{name:>7} {:>6} {:>8}", "again", "most ms");
    format!("{:<22} {:>9}  {}  {}  {:>8}", "attack", "begun", kind("_up"), kind("writes"), "peak MiB")
}

/// Runs the probes without an attack and then beside each of `attacks`. Calls `on_report` with each report.
///
/// # Errors
/// [`Error::Wrong`] if a probe's request didn't succeed within 30 s; the server may no longer respond then.
pub async fn run(config: &Config, attacks: &[Attack], mut on_report: impl FnMut(&Report)) -> Result<()> {
    let mut couch = Couch::new(config.admin.clone());
    couch.call("PUT", &format!("/{DATABASE}"), None).await?;
    for attack in std::iter::once(None).chain(attacks.iter().copied().map(Some)) {
        if let Some(pid) = config.pid {
            ServerProcess::reset_peak(pid);
        }
        let begun = attacks::Begun::default();
        let mut attackers = JoinSet::new();
        if let Some(attack) = attack {
            attack.begin(config, &begun, &mut attackers)?;
        }
        let (up, writes) = tokio::join!(probe_up(config), probe_writes(config));
        let peak_bytes = config.pid.and_then(ServerProcess::peak_bytes);
        attackers.shutdown().await;
        on_report(&Report { attack, up: up?, writes: writes?, peak_bytes, begun: begun.count() });
    }
    couch.call("DELETE", &format!("/{DATABASE}"), None).await?;
    Ok(())
}

/// Runs `request` repeatedly for `time`; a failed one is repeated until it succeeds.
async fn probe(
    time: Duration,
    name: &str,
    mut request: impl AsyncFnMut(u64) -> Result<(), String>,
) -> Result<ProbeStats> {
    let (started, mut stats) = (Instant::now(), ProbeStats::default());
    while started.elapsed() < time {
        let sent = Instant::now();
        loop {
            let left = PROBE_WAIT_MAX.saturating_sub(sent.elapsed());
            match tokio::time::timeout(left, request(stats.count)).await {
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
        stats.count += 1;
        stats.longest_ms =
            stats.longest_ms.max(u64::try_from(sent.elapsed().as_millis()).unwrap_or(u64::MAX));
        tokio::time::sleep(PROBE_PAUSE).await;
    }
    Ok(stats)
}

async fn probe_up(config: &Config) -> Result<ProbeStats> {
    let request = async |_| {
        let mut couch = Couch::new(config.anonymous.clone());
        couch.call("GET", "/_up", None).await.map(drop).map_err(|error| error.to_string())
    };
    probe(config.time, "_up", request).await
}

async fn probe_writes(config: &Config) -> Result<ProbeStats> {
    let mut couch = Couch::new(config.admin.clone());
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(DOCUMENT_BYTES));
    let request = async |_| {
        let target = format!("/{DATABASE}");
        couch.call("POST", &target, Some(body.as_bytes())).await.map(drop).map_err(|error| error.to_string())
    };
    probe(config.time, "a write", request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_over_its_limit_is_a_miss_with_its_name() {
        let stats = |longest_ms| ProbeStats { count: 1, failed: 0, longest_ms };
        let report = |up, writes| Report {
            attack: None,
            up: stats(up),
            writes: stats(writes),
            peak_bytes: None,
            begun: 0,
        };
        assert!(report(UP_MS_MAX, WRITE_MS_MAX).misses().is_empty());
        let missed = report(UP_MS_MAX + 1, WRITE_MS_MAX + 1).misses();
        assert!(missed.len() == 2 && missed[0].starts_with("_up") && missed[1].starts_with("a write"));
    }
}
