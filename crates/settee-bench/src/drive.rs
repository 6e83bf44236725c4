//! Closed-loop clients of a server: each sends its next request when it has the response to the last.
//!
//! Each client has one task and one connection. Rendering requests and checking responses is cheap and not
//! part of a latency, but it counts for the rate, as for any client that shares the server's machine.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use settee_client::{Answer, Connection, Request, Server};

use crate::error::{Error, Result};
use crate::rounds::{Window, join_all};
use crate::stats::{Samples, Stopwatch};

/// Share of a core below which a server counts as idle.
const IDLE_SHARE: f64 = 0.05;

/// Longest wait before a row for an idle server.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Interval over which the processor time of a server that should become idle is measured.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// A server and its process.
#[derive(Debug, Clone)]
pub struct Target {
    /// The server's address.
    pub server: Server,
    /// The process whose processor time is counted. None: not counted.
    pub pid: Option<u32>,
}

/// Stage that writes have reached when they are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// In the server's memory.
    Accepted,
    /// Written to the kernel.
    Written,
    /// On stable storage: the servers' default.
    Persisted,
}

impl Durability {
    /// The query string that requests it; empty for the default.
    pub(crate) fn query(self) -> &'static str {
        match self {
            Durability::Accepted => "?durability=accepted",
            Durability::Written => "?durability=written",
            Durability::Persisted => "",
        }
    }
}

/// The requests of one client and the checks of its responses.
pub(crate) trait Client: Send + 'static {
    /// The next request. None if none is left.
    fn next(&mut self) -> Option<Request<'_>>;

    /// Checks the response. Returns its number of operations, or the reason why it is wrong.
    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String>;
}

/// Runs `clients` concurrently and returns them with their window, in any order: until their last request, or
/// for `time`. Each sends at least one request.
pub(crate) async fn drive<C: Client>(
    workload: &str,
    Target { server, pid }: &Target,
    clients: Vec<C>,
    time: Option<Duration>,
) -> Result<(Window, Vec<C>)> {
    let mut connected = Vec::with_capacity(clients.len());
    for client in clients {
        let connection = Connection::open(server).await;
        connected.push((client, connection.map_err(|error| Error::wrong(workload, error.to_string()))?));
    }
    let stopwatch = Stopwatch::start(*pid);
    let deadline = time.map(|time| Instant::now() + time);
    let runs = connected.into_iter().map(|(client, connection)| {
        let workload = workload.to_owned();
        async move {
            let run = run_client(client, connection, deadline).await;
            run.map_err(|reason| Error::wrong(&workload, reason))
        }
    });
    let (mut operations, mut latencies, mut clients) = (0, Samples::default(), Vec::new());
    for (client, done, samples) in join_all(runs).await? {
        operations += done;
        latencies.append(samples);
        clients.push(client);
    }
    Ok((Window::new(operations, latencies, stopwatch.read()), clients))
}

/// Waits until the server has finished its background work, at most for `wait_max` or [`IDLE_WAIT_MAX`]. Without
/// a known process it doesn't wait.
pub(crate) async fn settle(target: &Target, wait_max: Duration) {
    let wait_max = IDLE_WAIT_MAX.min(wait_max);
    let interval = IDLE_INTERVAL.min(wait_max / 4);
    let started = Instant::now();
    while target.pid.is_some() && started.elapsed() < wait_max {
        let stopwatch = Stopwatch::start(target.pid);
        tokio::time::sleep(interval).await;
        let elapsed = stopwatch.read();
        if elapsed.server_cpu.unwrap_or_default() < elapsed.wall.mul_f64(IDLE_SHARE) {
            return;
        }
    }
}

async fn run_client<C: Client>(
    mut client: C,
    mut connection: Connection,
    deadline: Option<Instant>,
) -> Result<(C, u64, Samples), String> {
    let (mut operations, mut latencies) = (0, Samples::default());
    while let Some(request) = client.next() {
        let sent = Instant::now();
        let answer = connection.exchange(request).await.map_err(|error| error.to_string())?;
        let answered = Instant::now();
        latencies.push(answered - sent);
        operations += client.check(answer)?;
        if deadline.is_some_and(|deadline| answered >= deadline) {
            break;
        }
    }
    Ok((client, operations, latencies))
}

/// Reads a streamed response to its end. Returns the number of occurrences of each needle, and the length.
pub(crate) async fn scan_stream<const N: usize>(
    mut connection: Connection,
    needles: [&[u8]; N],
) -> Result<([u64; N], u64)> {
    let mut counters = needles.map(Counter::new);
    let mut bytes = 0;
    while let Some(chunk) = connection.chunk().await? {
        bytes += chunk.len() as u64;
        counters.iter_mut().for_each(|counter| counter.take(chunk));
    }
    Ok((counters.map(|counter| counter.count), bytes))
}

/// Counts occurrences in a text that arrives in pieces.
struct Counter<'a> {
    finder: memchr::memmem::Finder<'a>,
    /// The end of the text so far, one byte shorter than the needle.
    tail: Vec<u8>,
    count: u64,
}

impl<'a> Counter<'a> {
    fn new(needle: &'a [u8]) -> Counter<'a> {
        Counter { finder: memchr::memmem::Finder::new(needle), tail: Vec::new(), count: 0 }
    }

    fn take(&mut self, chunk: &[u8]) {
        let overlap = self.finder.needle().len() - 1;
        self.tail.extend_from_slice(&chunk[..chunk.len().min(overlap)]);
        // An occurrence across the boundary begins in the tail, which is shorter than the needle, so that
        // each occurrence is counted once.
        self.count += self.finder.find_iter(&self.tail).count() as u64;
        self.count += self.finder.find_iter(chunk).count() as u64;
        if chunk.len() >= overlap {
            self.tail.clear();
            self.tail.extend_from_slice(&chunk[chunk.len() - overlap..]);
        } else {
            let excess = self.tail.len().saturating_sub(overlap);
            self.tail.drain(..excess);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn occurrences_are_counted_once_wherever_the_pieces_end(
            text in "(\"id\":|id|\"|:|\"i|x){0,30}",
            sizes in prop::collection::vec(1_usize..9, 1..4),
        ) {
            let needle = b"\"id\":";
            let mut counter = Counter::new(needle);
            let (mut rest, mut turn) = (text.as_bytes(), 0);
            while !rest.is_empty() {
                let (piece, others) = rest.split_at(sizes[turn % sizes.len()].min(rest.len()));
                counter.take(piece);
                (rest, turn) = (others, turn + 1);
            }
            prop_assert_eq!(counter.count, text.matches("\"id\":").count() as u64);
        }
    }
}
