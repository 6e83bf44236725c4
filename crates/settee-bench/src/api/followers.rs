//! Continuous changes feeds: many followers, one writer.
//!
//! A follower is one connection and one task. Two phases are measured: one change every [`PACE`], for the latency
//! from a write to its arrival; then writes without a pause, for the server's throughput.
//!
//! Invariants:
//! 1. A follower counts a change once, by its document's number. A phase succeeds only if every follower has
//!    received every change; otherwise the row fails.
//! 2. A latency begins before the write is sent, so it includes the write itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use memchr::memmem;
use settee_client::{Connection, Couch, CouchError};
use tokio::task::JoinSet;

use super::bench::{Bench, directory, row};
use super::clients::{ID_DIGITS, sequential_id};
use super::plan::{DOCUMENT_BYTES, FOLLOWERS, Plan};
use crate::documents::Generator;
use crate::error::{Error, Result};
use crate::process::{Usage, raise_descriptor_limit};
use crate::report::{Bound, Row};
use crate::rounds::Window;
use crate::stats::{Samples, Stopwatch};

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

/// Longest row that a follower accepts, in bytes.
const ROW_BYTES_MAX: usize = 64 << 10;

/// Goal: maximum memory of the server per follower, in KiB.
const FOLLOWER_KIB_MAX: f64 = 16.0;

/// The state that all followers of a run share.
#[derive(Debug)]
struct Progress {
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
    /// The beginning of a row that hasn't arrived whole.
    line: Vec<u8>,
    /// One bit per change, set when it is received.
    received: Vec<u64>,
    progress: Arc<Progress>,
}

impl Follower {
    fn new(progress: Arc<Progress>) -> Follower {
        let words = lock(&progress.sent).len().div_ceil(64);
        Follower { line: Vec::new(), received: vec![0; words], progress }
    }

    /// Reads the feed until it ends, which is a failure.
    async fn run(mut self, mut connection: Connection) {
        let reason = loop {
            let taken = match connection.chunk().await {
                Ok(Some(data)) => self.rows(data),
                Ok(None) => Err("the feed has ended".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) = taken {
                break reason;
            }
        };
        self.progress.fail(format!("a follower's feed ended: {reason}"));
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

/// All followers of a database.
struct FollowerGroup {
    count: u64,
    progress: Arc<Progress>,
    tasks: JoinSet<()>,
    directory: String,
    query: &'static str,
    /// The server's usage before the first follower connected.
    before: Option<Usage>,
}

impl Bench<'_> {
    pub(super) async fn followers(&mut self, plan: &Plan) -> Result<Vec<Row>> {
        let wrong = |reason: String| Error::wrong(plan.name, reason);
        let count = self.config.follower_count();
        raise_descriptor_limit(count + DESCRIPTORS_SPARE).map_err(wrong)?;
        let paced = ((2 * self.config.row_time()).as_millis() / PACE.as_millis()) as u64;
        let paced = paced.max(PACED_COUNT_MIN);
        let burst = self.config.scaled(BURST_COUNT, BURST_COUNT_MIN);
        let mut group = self.start_followers(plan, count, FIRST_COUNT + paced + burst).await?;
        let usage = |bench: &Self| bench.setup.target.pid.and_then(Usage::of);
        self.settle().await;
        let idle = usage(self);
        let first = self.write_phase(plan, &group, FIRST_COUNT..FIRST_COUNT + paced, PACE).await?;
        let after_paced = usage(self);
        let numbers = FIRST_COUNT + paced..FIRST_COUNT + paced + burst;
        let second = self.write_phase(plan, &group, numbers, Duration::ZERO).await?;
        let after_burst = usage(self);
        group.tasks.abort_all();
        while group.tasks.join_next().await.is_some() {}
        let descriptors_note = self.descriptors_note(group.before).await;
        let [paced_plan, burst_plan] = &FOLLOWERS;
        let name = |plan: &Plan| format!("{count} continuous followers, {}", plan.workload);
        let row_paced = Row { workload: name(paced_plan), ..row(paced_plan, "arrivals/s", first, None) };
        let row_burst = Row { workload: name(burst_plan), ..row(burst_plan, "arrivals/s", second, None) };
        let repeated = group.progress.repeated_count.load(Ordering::Relaxed);
        let row_paced = judged_by_memory(row_paced, count, group.before, [idle, after_paced, after_burst])
            .note(format!(
                "every follower received each of {} changes; {repeated} were repeated",
                FIRST_COUNT + paced + burst
            ))
            .note(descriptors_note);
        Ok(vec![row_paced, row_burst])
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
            query: self.setup.durability.query(),
            before: None,
        };
        for number in 0..FIRST_COUNT {
            self.write(&group, number).await?;
        }
        self.couch.barrier(&database).await?;
        self.settle().await;
        group.before = self.setup.target.pid.and_then(Usage::of);
        // Not `since=now`: a server may delay the response's head until it has a row.
        let target = format!("{}/_changes?feed=continuous&since=0&heartbeat=60000", group.directory);
        let client = Couch::new(self.setup.target.server.clone());
        let progress = &group.progress;
        let opening = stream::iter(0..count)
            .map(|_| client.stream(&target))
            .buffer_unordered(OPENING_COUNT)
            .try_for_each(|connection| {
                group.tasks.spawn(Follower::new(progress.clone()).run(connection));
                std::future::ready(Ok::<_, CouchError>(()))
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
    ) -> Result<Window> {
        let (operations, end) = ((numbers.end - numbers.start) * group.count, numbers.end);
        let stopwatch = Stopwatch::start(self.setup.target.pid);
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
        Ok(Window::new(operations, latencies, stopwatch.read()))
    }

    /// Waits until the server has closed the followers' connections, at most [`CLOSE_WAIT_MAX`]. Returns a
    /// note on its descriptors.
    async fn descriptors_note(&self, before: Option<Usage>) -> String {
        let started = Instant::now();
        loop {
            let Some((before, now)) = before.zip(self.setup.target.pid.and_then(Usage::of)) else {
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

/// Adds to a row the server's memory per follower, idle and after both phases.
fn judged_by_memory(row: Row, count: u64, before: Option<Usage>, after: [Option<Usage>; 3]) -> Row {
    let kib = |usage: Usage| usage.resident_bytes as f64 / 1024.0;
    let each = after.map(|usage| Some((kib(usage?) - kib(before?)) / count as f64));
    let most = each.into_iter().flatten().max_by(f64::total_cmp);
    let row = row.compare("KiB of the server's memory a follower", most, Bound::AtMost(FOLLOWER_KIB_MAX));
    let [Some(idle), Some(paced), Some(burst)] = each else {
        return row;
    };
    let before = before.map_or(0, |usage| usage.resident_bytes >> 20);
    row.note(format!(
        "resident memory a follower: {idle:.1} KiB idle, {paced:.1} after paced changes, \
         {burst:.1} after the burst; {before} MiB before the first follower"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::Series;

    fn follower() -> Follower {
        Follower::new(Progress::new(100))
    }

    #[test]
    fn a_row_counts_once_whatever_its_pieces() {
        let row = format!("{{\"seq\":\"9-x\",\"id\":\"{}\",\"changes\":[]}}\n\n", sequential_id(65));
        for size in 1..row.len() {
            let mut follower = follower();
            for piece in row.as_bytes().chunks(size).chain(row.as_bytes().chunks(size)) {
                follower.rows(piece).unwrap();
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
            assert!(follower().rows(bad.as_bytes()).unwrap_err().contains("unexpected row"), "{bad}");
        }
        assert!(follower().rows(&vec![b'x'; ROW_BYTES_MAX + 1]).unwrap_err().contains("too long"));
    }

    #[test]
    fn the_largest_memory_per_follower_is_judged() {
        let usage = |kib: u64| Some(Usage { resident_bytes: kib << 10, ..Usage::default() });
        let empty_row = || Row::new("f", "arrivals/s", &Series::default());
        let row = judged_by_memory(empty_row(), 100, usage(1000), [usage(1500), usage(2700), usage(2600)]);
        assert_eq!((row.compared[0].figure, row.compared[0].met), (Some(17.0), Some(false)));
        let row = judged_by_memory(empty_row(), 100, None, [None, None, None]);
        assert_eq!((row.compared[0].figure, row.compared[0].met), (None, None));
    }
}
