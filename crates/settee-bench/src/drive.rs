//! Closed loops: each client sends its next request when it has the answer to the last.
//!
//! One task and one connection a client. What a client does besides (rendering, checking) is
//! kept cheap and outside the latency, but counts for the rate, as it does for any client that
//! shares the machine.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::http::{Answer, Connection, HttpError, Server};
use crate::stats::{Elapsed, Samples, Stopwatch};

/// What one client does.
pub(crate) trait Client: Send + 'static {
    /// Appends its next request to `request`, which is empty; false where it has done its share.
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool;

    /// Checks the answer: how many operations it stands for, or what is wrong with it.
    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String>;
}

/// When clients stop: at the end of their share, or once so much time has passed. Each sends at
/// least one request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Done,
    Passed(Duration),
}

/// What a group of clients did.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) latencies: Samples,
    pub(crate) elapsed: Elapsed,
}

/// Runs `clients` side by side. `server_pid` names whose processor time is counted.
pub(crate) async fn drive<C: Client>(
    workload: &str,
    server: &Server,
    server_pid: Option<u32>,
    clients: Vec<C>,
    until: Until,
) -> Result<Outcome> {
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
        tasks.spawn(async move { one(&workload, &server, client, connection, deadline).await });
    }
    let mut outcome = Outcome::default();
    while let Some(joined) = tasks.join_next().await {
        let (operations, latencies) = joined.map_err(|error| Error::wrong(workload, error.to_string()))??;
        outcome.operations += operations;
        outcome.latencies.append(latencies);
    }
    outcome.elapsed = stopwatch.read();
    Ok(outcome)
}

fn broken(workload: &str, error: &HttpError) -> Error {
    Error::wrong(workload, error.to_string())
}

async fn one<C: Client>(
    workload: &str,
    server: &Server,
    mut client: C,
    mut connection: Connection,
    deadline: Option<Instant>,
) -> Result<(u64, Samples)> {
    let (mut operations, mut latencies) = (0, Samples::default());
    let mut request = Vec::new();
    loop {
        request.clear();
        if !client.render(server, &mut request) {
            return Ok((operations, latencies));
        }
        let sent = Instant::now();
        let answer = connection.exchange(&request).await.map_err(|error| broken(workload, &error))?;
        let answered = Instant::now();
        latencies.push(answered - sent);
        operations += client.check(answer).map_err(|reason| Error::wrong(workload, reason))?;
        if deadline.is_some_and(|deadline| answered >= deadline) {
            return Ok((operations, latencies));
        }
    }
}

/// Reads a streamed answer to its end: how often `needle` occurs in it.
pub(crate) async fn count_in_stream(mut connection: Connection, needle: &[u8]) -> Result<u64> {
    let mut counter = Counter { finder: memchr::memmem::Finder::new(needle), joint: Vec::new(), count: 0 };
    while let Some(chunk) = connection.chunk().await? {
        counter.take(chunk);
    }
    Ok(counter.count)
}

/// Counts occurrences in a text that comes in pieces.
struct Counter<'a> {
    finder: memchr::memmem::Finder<'a>,
    /// The end of the last piece: shorter than what is looked for.
    joint: Vec<u8>,
    count: u64,
}

impl Counter<'_> {
    fn take(&mut self, chunk: &[u8]) {
        let overlap = self.finder.needle().len() - 1;
        self.joint.extend_from_slice(&chunk[..chunk.len().min(overlap)]);
        // What lies across the joint begins in the old end, and is found nowhere else.
        self.count += self.finder.find_iter(&self.joint).count() as u64;
        self.count += self.finder.find_iter(chunk).count() as u64;
        if chunk.len() >= overlap {
            self.joint.clear();
            self.joint.extend_from_slice(&chunk[chunk.len() - overlap..]);
        } else {
            let excess = self.joint.len().saturating_sub(overlap);
            self.joint.drain(..excess);
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
            let mut counter = Counter { finder: memchr::memmem::Finder::new(needle), joint: Vec::new(), count: 0 };
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
