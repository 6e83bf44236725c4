//! Closed-loop clients: each sends its next request when it has the response to the last.
//!
//! Each client has one task and one connection. Rendering requests and checking responses is cheap and not
//! part of a latency, but it counts for the rate, as for any client that shares the server's machine.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::http::{Answer, Connection, HttpError, Server};
use crate::stats::{Elapsed, Samples, Stopwatch};

/// The requests of one client and the checks of its responses.
pub(crate) trait Client: Send + 'static {
    /// Appends the next request to `request`, which is empty. Returns false if none is left.
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool;

    /// The rest of the request just rendered: a body too large to copy.
    fn body(&self) -> &[u8] {
        &[]
    }

    /// Checks the response. Returns its number of operations, or the reason why it is wrong.
    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String>;
}

/// When clients stop: after their last request, or after a time. Each sends at least one request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Done,
    Passed(Duration),
}

/// The result of a group of clients.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) latencies: Samples,
    pub(crate) elapsed: Elapsed,
}

impl Outcome {
    /// Adds the outcome of a later slice of the same workload.
    pub(crate) fn append(&mut self, other: Outcome) {
        self.operations += other.operations;
        self.latencies.append(other.latencies);
        self.elapsed.add(other.elapsed);
    }

    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        let seconds = self.elapsed.wall.as_secs_f64();
        if seconds > 0.0 { self.operations as f64 / seconds } else { 0.0 }
    }

    /// The server's processor time per operation in microseconds, if the server's process is known.
    pub(crate) fn server_cpu_us(&self) -> Option<f64> {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.operations.max(1) as f64;
        self.elapsed.server_cpu.map(each)
    }
}

/// Adds the outcome of one more slice to the sum of those before it.
pub(crate) fn add_outcome(sum: &mut Option<Outcome>, next: Outcome) {
    match sum {
        Some(sum) => sum.append(next),
        None => *sum = Some(next),
    }
}

/// Runs `clients` concurrently and returns them with their outcome, in any order. `server_pid` is the process
/// whose processor time is counted.
pub(crate) async fn drive<C: Client>(
    workload: &str,
    server: &Server,
    server_pid: Option<u32>,
    clients: Vec<C>,
    until: Until,
) -> Result<(Outcome, Vec<C>)> {
    let mut connected = Vec::with_capacity(clients.len());
    for client in clients {
        let connection = Connection::open(server).await.map_err(|error| broken(workload, &error))?;
        connected.push((client, connection));
    }
    let stopwatch = Stopwatch::start(server_pid);
    let deadline = match until {
        Until::Done => None,
        Until::Passed(duration) => Some(Instant::now() + duration),
    };
    let mut tasks = JoinSet::new();
    for (client, connection) in connected {
        let (workload, server) = (workload.to_owned(), server.clone());
        tasks.spawn(async move { run_client(&workload, &server, client, connection, deadline).await });
    }
    let (mut outcome, mut clients) = (Outcome::default(), Vec::new());
    while let Some(joined) = tasks.join_next().await {
        let (client, operations, latencies) =
            joined.map_err(|error| Error::wrong(workload, error.to_string()))??;
        outcome.operations += operations;
        outcome.latencies.append(latencies);
        clients.push(client);
    }
    outcome.elapsed = stopwatch.read();
    Ok((outcome, clients))
}

fn broken(workload: &str, error: &HttpError) -> Error {
    Error::wrong(workload, error.to_string())
}

async fn run_client<C: Client>(
    workload: &str,
    server: &Server,
    mut client: C,
    mut connection: Connection,
    deadline: Option<Instant>,
) -> Result<(C, u64, Samples)> {
    let (mut operations, mut latencies) = (0, Samples::default());
    let mut request = Vec::new();
    loop {
        request.clear();
        if !client.render(server, &mut request) {
            return Ok((client, operations, latencies));
        }
        let sent = Instant::now();
        let answer = connection
            .exchange_parts(&request, client.body())
            .await
            .map_err(|error| broken(workload, &error))?;
        let answered = Instant::now();
        latencies.push(answered - sent);
        operations += client.check(answer).map_err(|reason| Error::wrong(workload, reason))?;
        if deadline.is_some_and(|deadline| answered >= deadline) {
            return Ok((client, operations, latencies));
        }
    }
}

/// Reads a streamed response to its end. Returns the number of occurrences of `needle`.
pub(crate) async fn count_in_stream(connection: Connection, needle: &[u8]) -> Result<u64> {
    let ([count], _) = scan_stream(connection, [needle]).await?;
    Ok(count)
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

    #[test]
    fn slices_add_up_to_one_outcome() {
        let slice = |operations, seconds| {
            let wall = Duration::from_secs(seconds);
            let server_cpu = Some(Duration::from_millis(operations));
            Outcome {
                operations,
                latencies: Samples::default(),
                elapsed: Elapsed { wall, server_cpu, ..Elapsed::default() },
            }
        };
        let mut sum = None;
        add_outcome(&mut sum, slice(10, 1));
        add_outcome(&mut sum, slice(50, 3));
        let sum = sum.unwrap();
        assert_eq!((sum.operations, sum.rate(), sum.server_cpu_us()), (60, 15.0, Some(1000.0)));
    }

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
