//! Continuous changes feeds: many followers, one writer.
//!
//! A follower is one connection and one task. All followers decode in one shared buffer, so that the client's
//! memory and time stay small compared to the server's. Two phases are measured: one change every [`PACE`],
//! for the latency from a write to its arrival; then writes without a pause, for the server's throughput.
//!
//! Invariants:
//! 1. A follower counts a change once, by its document's number. A phase succeeds only if every follower has
//!    received every change; otherwise the row fails.
//! 2. A latency begins before the write is sent, so it includes the write itself.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::ready;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use memchr::memmem;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::bench::{Bench, directory, row};
use super::clients::{ID_DIGITS, sequential_id};
use super::config::scaled;
use super::plan::{DOCUMENT_BYTES, FOLLOWER_COUNT, FOLLOWERS, Plan};
use crate::descriptors;
use crate::documents::Generator;
use crate::drive::Outcome;
use crate::error::{Error, Result};
use crate::http::{Chunked, Connection, Server};
use crate::report::{Bound, Row};
use crate::stats::{Samples, Stopwatch};

/// Minimum number of followers at a small scale.
const COUNT_MIN: u64 = 20;

/// Interval between two changes of the first phase.
const PACE: Duration = Duration::from_millis(250);

/// Minimum number of changes of the first phase.
const PACED_COUNT_MIN: u64 = 4;

/// Number of changes of the second phase.
const BURST_COUNT: u64 = 200;

/// Minimum of [`BURST_COUNT`] at a small scale.
const BURST_COUNT_MIN: u64 = 10;

/// Number of changes before the feeds begin; every follower receives them first.
const FIRST_COUNT: u64 = 8;

/// Number of connections opened concurrently.
const OPENING_COUNT: usize = 64;

/// Longest wait for the responses to all followers.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(60);

/// Longest wait for changes to reach all followers.
const RECEIVE_WAIT_MAX: Duration = Duration::from_secs(120);

/// Longest wait for the server to close its connections after the followers have closed theirs.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Interval between two checks of the received changes.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Number of file descriptors needed besides the followers'.
const DESCRIPTORS_SPARE: u64 = 200;

/// Size in bytes of the buffer that all followers share.
const BUFFER_BYTES: usize = 64 << 10;

/// Longest row that a follower accepts, in bytes.
const ROW_BYTES_MAX: usize = 64 << 10;

/// Goal: maximum memory of the server per follower, in KiB.
const FOLLOWER_KIB_MAX: f64 = 16.0;

/// Number of followers of the changes feed at a scale.
pub fn follower_count(scale: f64) -> u64 {
    scaled(scale, FOLLOWER_COUNT, COUNT_MIN)
}

/// The state that all followers of a run share.
#[derive(Debug)]
struct Progress {
    buffer: Mutex<Vec<u8>>,
    /// The time when each change was sent, if its latency is measured.
    sent: Mutex<Vec<Option<Instant>>>,
    latencies: Mutex<Samples>,
    /// Number of changes received by all followers, without repeated ones.
    received_count: AtomicU64,
    /// Number of changes that a follower received again.
    repeated_count: AtomicU64,
    /// The first failure.
    failed: Mutex<Option<String>>,
}

impl Progress {
    fn new(change_count: u64) -> Arc<Progress> {
        Arc::new(Progress {
            buffer: Mutex::new(vec![0; BUFFER_BYTES]),
            sent: Mutex::new(vec![None; change_count as usize]),
            latencies: Mutex::default(),
            received_count: AtomicU64::new(0),
            repeated_count: AtomicU64::new(0),
            failed: Mutex::default(),
        })
    }

    fn fail(&self, reason: String) {
        lock(&self.failed).get_or_insert(reason);
    }

    /// Waits until the followers have received `expected` changes in all.
    async fn wait_for(&self, expected: u64, wait_max: Duration) -> Result<(), String> {
        let started = Instant::now();
        loop {
            if let Some(reason) = lock(&self.failed).clone() {
                return Err(reason);
            }
            let received = self.received_count.load(Ordering::Relaxed);
            if received >= expected {
                return Ok(());
            }
            if started.elapsed() > wait_max {
                return Err(format!(
                    "{received} changes of {expected} were received within {} s",
                    wait_max.as_secs()
                ));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic in another task ends the measurement anyway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client of one changes feed.
#[derive(Debug)]
struct Follower {
    chunked: Chunked,
    /// The beginning of a row that hasn't arrived whole.
    line: Vec<u8>,
    /// One bit per change, set when it is received.
    received: Vec<u64>,
    progress: Arc<Progress>,
}

impl Follower {
    fn new(chunked: Chunked, progress: Arc<Progress>) -> Follower {
        let words = lock(&progress.sent).len().div_ceil(64);
        Follower { chunked, line: Vec::new(), received: vec![0; words], progress }
    }

    /// Reads the feed until the connection ends, which is a failure. `first` is the part of the body that
    /// arrived with the head.
    async fn run(mut self, mut stream: TcpStream, first: Vec<u8>) {
        let mut outcome = self.take(&first);
        let progress = self.progress.clone();
        while outcome.is_ok() {
            outcome = std::future::poll_fn(|context| {
                let mut buffer = lock(&progress.buffer);
                let mut read = ReadBuf::new(&mut buffer);
                let polled = ready!(Pin::new(&mut stream).poll_read(context, &mut read));
                std::task::Poll::Ready(match polled {
                    Err(error) => Err(error.to_string()),
                    Ok(()) if read.filled().is_empty() => Err("the server closed the connection".to_owned()),
                    Ok(()) => self.take(read.filled()),
                })
            })
            .await;
        }
        progress.fail(format!("a follower's feed ended: {}", outcome.unwrap_err()));
    }

    /// Decodes a piece of the chunked response.
    fn take(&mut self, mut input: &[u8]) -> Result<(), String> {
        while !input.is_empty() {
            let (consumed, data) = self.chunked.decode(input).map_err(|error| error.to_string())?;
            self.rows(&input[data])?;
            input = &input[consumed..];
            if consumed == 0 {
                return Err("the feed has ended".to_owned());
            }
        }
        Ok(())
    }

    fn rows(&mut self, mut data: &[u8]) -> Result<(), String> {
        while let Some(end) = memchr::memchr(b'\n', data) {
            if self.line.is_empty() {
                self.row(&data[..end])?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&data[..end]);
                self.row(&line)?;
            }
            data = &data[end + 1..];
        }
        if self.line.len() + data.len() > ROW_BYTES_MAX {
            return Err("a row is too long".to_owned());
        }
        self.line.extend_from_slice(data);
        Ok(())
    }

    /// Counts one row. An empty line is a heartbeat.
    fn row(&mut self, line: &[u8]) -> Result<(), String> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let number = change_number(line).filter(|&number| number / 64 < self.received.len());
        let Some(number) = number else {
            return Err(format!("unexpected row {}", String::from_utf8_lossy(line)));
        };
        let (word, bit) = (&mut self.received[number / 64], 1 << (number % 64));
        if *word & bit != 0 {
            self.progress.repeated_count.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        *word |= bit;
        self.progress.received_count.fetch_add(1, Ordering::Relaxed);
        if let Some(sent) = lock(&self.progress.sent)[number] {
            lock(&self.progress.latencies).push(sent.elapsed());
        }
        Ok(())
    }
}

/// The number of the document in a row of the feed.
fn change_number(line: &[u8]) -> Option<usize> {
    let start = memmem::find(line, b"\"id\":\"")? + b"\"id\":\"".len();
    let digits = line.get(start..start + ID_DIGITS)?;
    let is_whole = line.get(start + ID_DIGITS) == Some(&b'"') && digits.iter().all(u8::is_ascii_digit);
    is_whole.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}

/// Memory and descriptors of the server's process.
#[derive(Debug, Clone, Copy)]
struct ProcessUsage {
    resident_kib: u64,
    descriptors: u64,
}

impl ProcessUsage {
    fn now(pid: Option<u32>) -> Option<ProcessUsage> {
        let pid = pid?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some(ProcessUsage { resident_kib: parse_resident(&status)?, descriptors })
    }
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// All followers of a database.
struct FollowerGroup {
    count: u64,
    progress: Arc<Progress>,
    tasks: JoinSet<()>,
    directory: String,
    query: &'static str,
    /// The server's usage before the first follower connected.
    before: Option<ProcessUsage>,
}

impl Bench<'_> {
    pub(super) async fn followers(&mut self, plan: &Plan) -> Result<Vec<Row>> {
        let wrong = |reason: String| Error::wrong(plan.name, reason);
        let count = follower_count(self.config.scale);
        descriptors::raise_limit(count + DESCRIPTORS_SPARE).map_err(wrong)?;
        let paced = ((2 * self.config.row_time).as_millis() / PACE.as_millis()) as u64;
        let paced = paced.max(PACED_COUNT_MIN);
        let burst = self.scaled(BURST_COUNT, BURST_COUNT_MIN);
        let pid = self.config.target.pid;
        let mut group = self.start_followers(plan, count, FIRST_COUNT + paced + burst).await?;
        self.settle().await;
        let idle = ProcessUsage::now(pid);
        let first = self.write_phase(plan, &group, FIRST_COUNT..FIRST_COUNT + paced, PACE).await?;
        let after_paced = ProcessUsage::now(pid);
        let numbers = FIRST_COUNT + paced..FIRST_COUNT + paced + burst;
        let second = self.write_phase(plan, &group, numbers, Duration::ZERO).await?;
        let after_burst = ProcessUsage::now(pid);
        group.tasks.abort_all();
        while group.tasks.join_next().await.is_some() {}
        let descriptors_note = self.descriptors_note(group.before).await;
        let [paced_plan, burst_plan] = &FOLLOWERS;
        let mut row_paced = row(paced_plan, "arrivals", &first);
        let mut row_burst = row(burst_plan, "arrivals", &second);
        row_paced.workload = format!("{count} continuous followers, {}", paced_plan.workload);
        row_burst.workload = format!("{count} continuous followers, {}", burst_plan.workload);
        let repeated = group.progress.repeated_count.load(Ordering::Relaxed);
        let row_paced = judged_by_memory(row_paced, count, group.before, [idle, after_paced, after_burst])
            .note(format!(
                "every follower received each of {} changes; {repeated} were repeated",
                FIRST_COUNT + paced + burst
            ))
            .note(descriptors_note);
        Ok(vec![row_paced.judged(paced_plan.goals), row_burst.judged(burst_plan.goals)])
    }

    /// Creates a database with a few changes and starts its followers. Returns when all have received them.
    async fn start_followers(&mut self, plan: &Plan, count: u64, change_count: u64) -> Result<FollowerGroup> {
        let wrong = |reason: String| Error::wrong(plan.name, reason);
        let database = self.create().await?;
        let mut group = FollowerGroup {
            count,
            progress: Progress::new(change_count),
            tasks: JoinSet::new(),
            directory: directory(&database),
            query: self.durability_query(),
            before: None,
        };
        for number in 0..FIRST_COUNT {
            self.write(&group, number).await?;
        }
        self.couch.barrier(&database).await?;
        self.settle().await;
        group.before = ProcessUsage::now(self.config.target.pid);
        // Not `since=now`: a server may delay the response's head until it has a row.
        let target = format!("{}/_changes?feed=continuous&since=0&heartbeat=60000", group.directory);
        let server = &self.config.target.server;
        let progress = &group.progress;
        let opening = stream::iter(0..count)
            .map(|_| open(server, &target, progress))
            .buffer_unordered(OPENING_COUNT)
            .try_for_each(|(follower, stream, first)| {
                group.tasks.spawn(follower.run(stream, first));
                std::future::ready(Ok(()))
            });
        let opened = tokio::time::timeout(OPEN_WAIT_MAX, opening).await;
        opened.map_err(|_| {
            let answered = group.tasks.len();
            let waited = OPEN_WAIT_MAX.as_secs();
            wrong(format!(
                "{answered} of {count} followers got a response within {waited} s: \
                 the server's limit on connections may be lower"
            ))
        })??;
        group.progress.wait_for(count * FIRST_COUNT, RECEIVE_WAIT_MAX).await.map_err(wrong)?;
        Ok(group)
    }

    async fn write(&mut self, group: &FollowerGroup, number: u64) -> Result<()> {
        let mut document = Vec::new();
        let id = sequential_id(number);
        Generator::numbered_document(&id, number, DOCUMENT_BYTES, &mut document);
        let target = format!("{}/{id}{}", group.directory, group.query);
        self.couch.call("PUT", &target, Some(&document)).await?;
        Ok(())
    }

    /// Writes changes, one every `pace`, and waits until every follower has received them.
    async fn write_phase(
        &mut self,
        plan: &Plan,
        group: &FollowerGroup,
        numbers: std::ops::Range<u64>,
        pace: Duration,
    ) -> Result<Outcome> {
        let (operations, end) = ((numbers.end - numbers.start) * group.count, numbers.end);
        let stopwatch = Stopwatch::start(self.config.target.pid);
        let mut next = tokio::time::Instant::now();
        for number in numbers {
            tokio::time::sleep_until(next).await;
            next += pace;
            lock(&group.progress.sent)[number as usize] = Some(Instant::now());
            self.write(group, number).await?;
        }
        let expected = end * group.count;
        let received = group.progress.wait_for(expected, RECEIVE_WAIT_MAX).await;
        received.map_err(|reason| Error::wrong(plan.name, reason))?;
        let latencies = std::mem::take(&mut *lock(&group.progress.latencies));
        Ok(Outcome { operations, latencies, elapsed: stopwatch.read() })
    }

    /// Waits until the server has closed the followers' connections, at most [`CLOSE_WAIT_MAX`]. Returns a
    /// note on its descriptors.
    async fn descriptors_note(&self, before: Option<ProcessUsage>) -> String {
        let started = Instant::now();
        loop {
            let Some((before, now)) = before.zip(ProcessUsage::now(self.config.target.pid)) else {
                return "the server's process isn't known: no memory, no descriptors".to_owned();
            };
            if now.descriptors <= before.descriptors || started.elapsed() > CLOSE_WAIT_MAX {
                let (before, now) = (before.descriptors, now.descriptors);
                return format!("the server's descriptors: {before} before the followers, {now} after them");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Connects one follower. Returns it, once the response's head has arrived, with its stream and the part of
/// the body that arrived with the head.
async fn open(
    server: &Server,
    target: &str,
    progress: &Arc<Progress>,
) -> Result<(Follower, TcpStream, Vec<u8>)> {
    let mut connection = Connection::open(server).await?;
    let mut request = Vec::new();
    server.render("GET", target, None, &mut request);
    let status = connection.begin(&request).await?;
    if status != 200 {
        return Err(Error::wrong("followers", format!("a feed was answered with status {status}")));
    }
    let (stream, chunked, first) = connection.into_chunked()?;
    Ok((Follower::new(chunked, progress.clone()), stream, first))
}

/// Adds to a row the server's memory per follower, idle and after both phases.
fn judged_by_memory(
    row: Row,
    count: u64,
    before: Option<ProcessUsage>,
    after: [Option<ProcessUsage>; 3],
) -> Row {
    let each = after.map(|usage| {
        let grown = usage
            .zip(before)
            .map(|(usage, before)| i128::from(usage.resident_kib) - i128::from(before.resident_kib));
        grown.map(|kib| kib as f64 / count as f64)
    });
    let most = each.into_iter().flatten().max_by(f64::total_cmp);
    let row = row.aim("KiB of the server's memory a follower", Bound::AtMost(FOLLOWER_KIB_MAX), most);
    let [Some(idle), Some(paced), Some(burst)] = each else {
        return row;
    };
    let before = before.map_or(0, |usage| usage.resident_kib >> 10);
    row.note(format!(
        "resident memory a follower: {idle:.1} KiB idle, {paced:.1} after paced changes, \
         {burst:.1} after the burst; {before} MiB before the first follower"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower() -> Follower {
        // In the middle of a large chunk.
        let mut chunked = Chunked::new();
        chunked.decode(b"fffffff\r\n").unwrap();
        Follower::new(chunked, Progress::new(100))
    }

    #[test]
    fn a_row_counts_once_whatever_its_pieces() {
        let row = format!("{{\"seq\":\"9-x\",\"id\":\"{}\",\"changes\":[]}}\n\n", sequential_id(65));
        for size in 1..row.len() {
            let mut follower = follower();
            for piece in row.as_bytes().chunks(size).chain(row.as_bytes().chunks(size)) {
                follower.take(piece).unwrap();
            }
            let progress = &follower.progress;
            let counts = (
                progress.received_count.load(Ordering::Relaxed),
                progress.repeated_count.load(Ordering::Relaxed),
            );
            assert_eq!(counts, (1, 1), "pieces of {size}");
        }
    }

    #[test]
    fn a_row_that_is_no_change_fails_a_follower() {
        for bad in ["{\"last_seq\":\"9-x\",\"pending\":0}\n", "{\"id\":\"0000000000000900\"}\n", "junk\n"] {
            assert!(follower().take(bad.as_bytes()).unwrap_err().contains("unexpected row"), "{bad}");
        }
        assert!(follower().take(&vec![b'x'; ROW_BYTES_MAX + 1]).unwrap_err().contains("too long"));
    }

    #[test]
    fn resident_memory_is_parsed_from_proc_status() {
        let status = "Name:\tx\nVmHWM:\t   99 kB\nVmRSS:\t   12345 kB\n";
        assert_eq!(parse_resident(status), Some(12345));
        assert_eq!(parse_resident("Name:\tx\n"), None);
        assert!(ProcessUsage::now(Some(std::process::id())).unwrap().resident_kib > 0);
    }

    #[test]
    fn the_largest_memory_per_follower_is_judged() {
        let usage = |resident_kib| Some(ProcessUsage { resident_kib, descriptors: 1 });
        let empty_row = || Row::new("f", "arrivals", 1, &Default::default(), &Samples::default());
        let row = judged_by_memory(empty_row(), 100, usage(1000), [usage(1500), usage(2700), usage(2600)]);
        assert_eq!((row.aims[0].reached, row.aims[0].met), (Some(17.0), Some(false)));
        let row = judged_by_memory(empty_row(), 100, None, [None, None, None]);
        assert_eq!((row.aims[0].reached, row.aims[0].met), (None, None));
    }
}
