//! Hostile clients, and whether the server goes on serving the others.
//!
//! One attack after the other runs for a while. Meanwhile one client asks for `_up` on a new connection each
//! time, and another writes documents of 20 KB as the administrator. A request that fails is sent again, and its
//! time runs on: how long it took until it succeeded is what counts.
//!
//! Invariants:
//! 1. An attack never ends by itself: what the server closes or refuses is begun anew.
//! 2. The attack is over, and its connections are closed, before the next begins.

mod attacks;

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

pub use self::attacks::Attack;
use crate::couch::Couch;
use crate::error::{Error, Result};
use crate::http::Server;
use crate::process::ServerProcess;

/// Longest time that `_up` may take.
pub const UP_MS_MAX: u64 = 100;

/// Longest time that another client's write may take.
pub const WRITE_MS_MAX: u64 = 1_000;

/// Longest time for which a probe tries.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(30);

/// Time between two probes of a kind.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// Time between a failed probe and its repetition.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Bytes of the documents that are written meanwhile.
const DOCUMENT_BYTES: usize = 20_000;

/// The database that they are written to.
const DATABASE: &str = "hostile";

/// What runs against which server.
#[derive(Debug, Clone)]
pub struct Config {
    /// As an anonymous client reaches it.
    pub anonymous: Server,
    /// As the administrator reaches it.
    pub admin: Server,
    /// Its process, where its memory is to be read.
    pub pid: Option<u32>,
    /// How long each attack lasts.
    pub time: Duration,
    /// Multiplies connections and sizes.
    pub scale: f64,
}

/// What the other clients met during an attack.
#[derive(Debug, Clone)]
pub struct Report {
    /// The attack; None for the time before the first one.
    pub attack: Option<Attack>,
    /// Of `_up`.
    pub up: Probed,
    /// Of another client's writes.
    pub writes: Probed,
    /// The most memory that the process had, where it is known, in bytes.
    pub peak_bytes: Option<u64>,
    /// What the attack did: connections, requests or streams that it began.
    pub begun: u64,
}

/// Requests of a kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Probed {
    /// That succeeded.
    pub count: u64,
    /// That failed and were sent again.
    pub failed: u64,
    /// The longest time until one succeeded, in milliseconds.
    pub longest_ms: u64,
}

impl Report {
    /// Which limits were passed; empty where none was.
    pub fn misses(&self) -> Vec<String> {
        let kinds = [("_up", &self.up, UP_MS_MAX), ("a write", &self.writes, WRITE_MS_MAX)];
        let missed = kinds.into_iter().filter(|(_, probed, limit_ms)| probed.longest_ms > *limit_ms);
        missed
            .map(|(name, probed, limit_ms)| {
                format!("{name} took {} ms, more than {limit_ms}", probed.longest_ms)
            })
            .collect()
    }

    /// A line of the table.
    pub fn line(&self) -> String {
        let name = self.attack.map_or("none", Attack::name);
        let probed =
            |probed: &Probed| format!("{:>7} {:>6} {:>8}", probed.count, probed.failed, probed.longest_ms);
        let peak = self.peak_bytes.map_or("?".to_owned(), |bytes| (bytes >> 20).to_string());
        format!("{name:<22} {:>9}  {}  {}  {peak:>8}", self.begun, probed(&self.up), probed(&self.writes))
    }
}

/// What stands above the lines of [`Report::line`].
pub fn heading() -> String {
    let kind = |name| format!("{name:>7} {:>6} {:>8}", "again", "most ms");
    format!("{:<22} {:>9}  {}  {}  {:>8}", "attack", "begun", kind("_up"), kind("writes"), "peak MiB")
}

/// Runs each of `attacks`, after a while without any; `done` gets each report as it is made.
///
/// # Errors
/// [`Error::Wrong`] where a probe didn't succeed at all in time; the server may be of no use then.
pub async fn run(config: &Config, attacks: &[Attack], mut done: impl FnMut(&Report)) -> Result<()> {
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
        done(&Report { attack, up: up?, writes: writes?, peak_bytes, begun: begun.count() });
    }
    couch.call("DELETE", &format!("/{DATABASE}"), None).await?;
    Ok(())
}

/// Repeats `request` until it succeeds, and then the next.
async fn probe(
    time: Duration,
    name: &str,
    mut request: impl AsyncFnMut(u64) -> Result<(), String>,
) -> Result<Probed> {
    let (begun, mut probed) = (Instant::now(), Probed::default());
    while begun.elapsed() < time {
        let sent = Instant::now();
        loop {
            let left = PROBE_WAIT_MAX.saturating_sub(sent.elapsed());
            match tokio::time::timeout(left, request(probed.count)).await {
                Ok(Ok(())) => break,
                Ok(Err(reason)) if sent.elapsed() >= PROBE_WAIT_MAX => {
                    return Err(Error::wrong(name, reason));
                }
                Ok(Err(_)) => {}
                Err(_) => return Err(Error::wrong(name, format!("no answer in {PROBE_WAIT_MAX:?}"))),
            }
            probed.failed += 1;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        probed.count += 1;
        probed.longest_ms =
            probed.longest_ms.max(u64::try_from(sent.elapsed().as_millis()).unwrap_or(u64::MAX));
        tokio::time::sleep(PROBE_PAUSE).await;
    }
    Ok(probed)
}

async fn probe_up(config: &Config) -> Result<Probed> {
    let request = async |_| {
        let mut couch = Couch::new(config.anonymous.clone());
        couch.call("GET", "/_up", None).await.map(drop).map_err(|error| error.to_string())
    };
    probe(config.time, "_up", request).await
}

async fn probe_writes(config: &Config) -> Result<Probed> {
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
    fn what_takes_longer_than_its_limit_is_a_miss_that_names_it() {
        let probed = |longest_ms| Probed { count: 1, failed: 0, longest_ms };
        let report = |up, writes| Report {
            attack: None,
            up: probed(up),
            writes: probed(writes),
            peak_bytes: None,
            begun: 0,
        };
        assert!(report(UP_MS_MAX, WRITE_MS_MAX).misses().is_empty());
        let missed = report(UP_MS_MAX + 1, WRITE_MS_MAX + 1).misses();
        assert!(missed.len() == 2 && missed[0].starts_with("_up") && missed[1].starts_with("a write"));
    }
}
