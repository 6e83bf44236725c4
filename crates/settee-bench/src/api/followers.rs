//! Continuous changes: many followers, one writer.
//!
//! A follower is one connection and one task. What comes is decoded in a buffer that all share, so
//! that the client's own memory and time stay small beside the server's. Two stretches are
//! measured: one change every [`PACE`], for the latency from a write to its arrival; then writes
//! one after the other without pause, for what the server can hand out.
//!
//! Invariants:
//! 1. A follower counts a change once, by its document's number; a stretch ends well only when
//!    every follower has seen every change. One that misses any fails the row.
//! 2. Latencies count from before a write is sent: the writer's own wait is in them.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::ready;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use memchr::memmem;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::clients::{ID_DIGITS, sequential_id};
use super::plan::{DOCUMENT_BYTES, FOLLOWERS, Plan};
use super::{Bench, directory, follower_count, row};
use crate::documents::Generator;
use crate::drive::Outcome;
use crate::error::{Error, Result};
use crate::http::{Chunked, Connection, Server};
use crate::report::{Bound, Row};
use crate::stats::{Samples, Stopwatch};

/// Fewest followers at a small scale.
pub(super) const COUNT_MIN: u64 = 20;

/// Time between two changes of the first stretch.
const PACE: Duration = Duration::from_millis(250);

/// Fewest changes of the first stretch.
const PACED_COUNT_MIN: u64 = 4;

/// Changes of the second stretch, and the fewest at a small scale.
const BURST_COUNT: u64 = 200;
const BURST_COUNT_MIN: u64 = 10;

/// Changes that are there before anyone follows: every follower begins with them.
const FIRST_COUNT: u64 = 8;

/// Connections that are opened at once.
const OPENING_COUNT: usize = 64;

/// Longest waits: for all followers to be answered, and for changes to reach them all.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(60);
const SEEN_WAIT_MAX: Duration = Duration::from_secs(120);

/// Longest wait for the server to close its ends once the followers are gone.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Time between two looks at what has been seen.
const LOOK: Duration = Duration::from_millis(2);

/// Descriptors that are needed besides the followers'.
const DESCRIPTORS_SPARE: u64 = 200;

/// Size in bytes of the buffer that all followers read with.
const BUFFER_BYTES: usize = 64 << 10;

/// Longest row that a follower takes, in bytes.
const ROW_BYTES_MAX: usize = 64 << 10;

/// Most that a follower may take of the server's memory, in KiB.
const FOLLOWER_KIB_MAX: f64 = 16.0;

/// What the followers share.
#[derive(Debug)]
struct Board {
    buffer: Mutex<Vec<u8>>,
    /// When each change was sent, where that is measured.
    sent: Mutex<Vec<Option<Instant>>>,
    latencies: Mutex<Samples>,
    /// Changes seen, of all followers, each once.
    seen_count: AtomicU64,
    /// Changes that came to a follower again.
    again_count: AtomicU64,
    /// What went wrong first.
    failed: Mutex<Option<String>>,
}

impl Board {
    fn new(change_count: u64) -> Arc<Board> {
        Arc::new(Board {
            buffer: Mutex::new(vec![0; BUFFER_BYTES]),
            sent: Mutex::new(vec![None; change_count as usize]),
            latencies: Mutex::default(),
            seen_count: AtomicU64::new(0),
            again_count: AtomicU64::new(0),
            failed: Mutex::default(),
        })
    }

    fn fail(&self, reason: String) {
        lock(&self.failed).get_or_insert(reason);
    }

    /// Waits until so many changes have been seen.
    async fn seen(&self, expected: u64, wait_max: Duration) -> Result<(), String> {
        let started = Instant::now();
        loop {
            if let Some(reason) = lock(&self.failed).clone() {
                return Err(reason);
            }
            let seen = self.seen_count.load(Ordering::Relaxed);
            if seen >= expected {
                return Ok(());
            }
            if started.elapsed() > wait_max {
                return Err(format!(
                    "{seen} changes of {expected} were seen within {} s",
                    wait_max.as_secs()
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere ends the measurement by itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One follower's end.
#[derive(Debug)]
struct Follower {
    chunked: Chunked,
    /// A row whose end hasn't come yet.
    line: Vec<u8>,
    /// A bit for each change seen.
    seen: Vec<u64>,
    board: Arc<Board>,
}

impl Follower {
    fn new(chunked: Chunked, board: Arc<Board>) -> Follower {
        let words = lock(&board.sent).len().div_ceil(64);
        Follower { chunked, line: Vec::new(), seen: vec![0; words], board }
    }

    /// Follows until the connection ends, which is a failure.
    async fn run(mut self, mut stream: TcpStream, first: Vec<u8>) {
        let mut outcome = self.take(&first);
        let board = self.board.clone();
        while outcome.is_ok() {
            outcome = std::future::poll_fn(|context| {
                let mut buffer = lock(&board.buffer);
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
        board.fail(format!("a follower's feed ended: {}", outcome.unwrap_err()));
    }

    /// Takes what came of the chunked answer.
    fn take(&mut self, mut input: &[u8]) -> Result<(), String> {
        while !input.is_empty() {
            let (consumed, data) = self.chunked.decode(input).map_err(|error| error.to_string())?;
            self.rows(&input[data])?;
            input = &input[consumed..];
            if consumed == 0 {
                return Err("the feed is over".to_owned());
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

    /// One row, or the empty line of a heartbeat.
    fn row(&mut self, line: &[u8]) -> Result<(), String> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let number = change_number(line).filter(|&number| number / 64 < self.seen.len());
        let Some(number) = number else {
            return Err(format!("strange row {}", String::from_utf8_lossy(line)));
        };
        let (word, bit) = (&mut self.seen[number / 64], 1 << (number % 64));
        if *word & bit != 0 {
            self.board.again_count.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        *word |= bit;
        self.board.seen_count.fetch_add(1, Ordering::Relaxed);
        if let Some(sent) = lock(&self.board.sent)[number] {
            lock(&self.board.latencies).push(sent.elapsed());
        }
        Ok(())
    }
}

/// The number of the document that a row of changes tells of.
fn change_number(line: &[u8]) -> Option<usize> {
    let start = memmem::find(line, b"\"id\":\"")? + b"\"id\":\"".len();
    let digits = line.get(start..start + ID_DIGITS)?;
    let is_whole = line.get(start + ID_DIGITS) == Some(&b'"') && digits.iter().all(u8::is_ascii_digit);
    is_whole.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}

/// What the server's process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    resident_kib: u64,
    descriptors: u64,
}

impl Held {
    fn now(pid: Option<u32>) -> Option<Held> {
        let pid = pid?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some(Held { resident_kib: parse_resident(&status)?, descriptors })
    }
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Makes sure that this process may hold so many descriptors.
pub(crate) fn raise_descriptors(needed: u64) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(limit.current) {
        return Ok(());
    }
    let maximum = if enough(limit.maximum) { limit.maximum } else { Some(needed) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|error| {
        let granted = limit.maximum.map_or("unlimited".to_owned(), |limit| limit.to_string());
        format!("{needed} descriptors are needed and {granted} granted ({error}): see ulimit -Hn, or take a smaller --scale")
    })
}

/// The followers of a database, and what the server held along the way.
struct Crowd {
    count: u64,
    board: Arc<Board>,
    tasks: JoinSet<()>,
    directory: String,
    query: &'static str,
    before: Option<Held>,
}

impl Bench<'_> {
    pub(super) async fn followers(&mut self, plan: &Plan) -> Result<Vec<Row>> {
        let wrong = |reason: String| Error::wrong(plan.name, reason);
        let count = follower_count(self.config.scale);
        raise_descriptors(count + DESCRIPTORS_SPARE).map_err(wrong)?;
        let paced = ((2 * self.config.row_time).as_millis() / PACE.as_millis()) as u64;
        let paced = paced.max(PACED_COUNT_MIN);
        let burst = self.scaled(BURST_COUNT, BURST_COUNT_MIN);
        let pid = self.config.target.pid;
        let mut crowd = self.gather(plan, count, FIRST_COUNT + paced + burst).await?;
        self.settle().await;
        let idle = Held::now(pid);
        let first = self.stretch(plan, &crowd, FIRST_COUNT..FIRST_COUNT + paced, PACE).await?;
        let after_paced = Held::now(pid);
        let numbers = FIRST_COUNT + paced..FIRST_COUNT + paced + burst;
        let second = self.stretch(plan, &crowd, numbers, Duration::ZERO).await?;
        let after_burst = Held::now(pid);
        crowd.tasks.abort_all();
        while crowd.tasks.join_next().await.is_some() {}
        let left = self.descriptors_left(crowd.before).await;
        let [paced_plan, burst_plan] = &FOLLOWERS;
        let mut row_paced = row(paced_plan, "arrivals", &first);
        let mut row_burst = row(burst_plan, "arrivals", &second);
        row_paced.workload = format!("{count} continuous followers, {}", paced_plan.workload);
        row_burst.workload = format!("{count} continuous followers, {}", burst_plan.workload);
        let again = crowd.board.again_count.load(Ordering::Relaxed);
        let row_paced = judged_by_memory(row_paced, count, crowd.before, [idle, after_paced, after_burst])
            .note(format!(
                "every follower saw each of {} changes; {again} came again",
                FIRST_COUNT + paced + burst
            ))
            .note(left);
        Ok(vec![row_paced.judged(paced_plan.goals), row_burst.judged(burst_plan.goals)])
    }

    /// Makes a database with a few changes and has everyone follow it.
    async fn gather(&mut self, plan: &Plan, count: u64, change_count: u64) -> Result<Crowd> {
        let wrong = |reason: String| Error::wrong(plan.name, reason);
        let database = self.create().await?;
        let mut crowd = Crowd {
            count,
            board: Board::new(change_count),
            tasks: JoinSet::new(),
            directory: directory(&database),
            query: self.durability_query(),
            before: None,
        };
        for number in 0..FIRST_COUNT {
            self.write(&crowd, number).await?;
        }
        self.couch.barrier(&database).await?;
        self.settle().await;
        crowd.before = Held::now(self.config.target.pid);
        // Not from now on: a server may keep an answer's head until it has a row.
        let target = format!("{}/_changes?feed=continuous&since=0&heartbeat=60000", crowd.directory);
        let server = &self.config.target.server;
        let board = &crowd.board;
        let opening = stream::iter(0..count)
            .map(|_| open(server, &target, board))
            .buffer_unordered(OPENING_COUNT)
            .try_for_each(|(follower, stream, first)| {
                crowd.tasks.spawn(follower.run(stream, first));
                std::future::ready(Ok(()))
            });
        let opened = tokio::time::timeout(OPEN_WAIT_MAX, opening).await;
        opened.map_err(|_| {
            let answered = crowd.tasks.len();
            let waited = OPEN_WAIT_MAX.as_secs();
            wrong(format!(
                "{answered} followers of {count} were answered within {waited} s: the server's limit on connections may be lower"
            ))
        })??;
        crowd.board.seen(count * FIRST_COUNT, SEEN_WAIT_MAX).await.map_err(wrong)?;
        Ok(crowd)
    }

    async fn write(&mut self, crowd: &Crowd, number: u64) -> Result<()> {
        let mut document = Vec::new();
        let id = sequential_id(number);
        Generator::numbered_document(&id, number, DOCUMENT_BYTES, &mut document);
        let target = format!("{}/{id}{}", crowd.directory, crowd.query);
        self.couch.call("PUT", &target, Some(&document)).await?;
        Ok(())
    }

    /// Writes changes, one every `pace`, and waits until everyone has seen them.
    async fn stretch(
        &mut self,
        plan: &Plan,
        crowd: &Crowd,
        numbers: std::ops::Range<u64>,
        pace: Duration,
    ) -> Result<Outcome> {
        let (operations, end) = ((numbers.end - numbers.start) * crowd.count, numbers.end);
        let stopwatch = Stopwatch::start(self.config.target.pid);
        let mut next = tokio::time::Instant::now();
        for number in numbers {
            tokio::time::sleep_until(next).await;
            next += pace;
            lock(&crowd.board.sent)[number as usize] = Some(Instant::now());
            self.write(crowd, number).await?;
        }
        let expected = end * crowd.count;
        let seen = crowd.board.seen(expected, SEEN_WAIT_MAX).await;
        seen.map_err(|reason| Error::wrong(plan.name, reason))?;
        let latencies = std::mem::take(&mut *lock(&crowd.board.latencies));
        Ok(Outcome { operations, latencies, elapsed: stopwatch.read() })
    }

    /// How many descriptors the server holds once the followers have gone, in words.
    async fn descriptors_left(&self, before: Option<Held>) -> String {
        let started = Instant::now();
        loop {
            let Some((before, now)) = before.zip(Held::now(self.config.target.pid)) else {
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

/// Connects one follower, up to its answer's head.
async fn open(server: &Server, target: &str, board: &Arc<Board>) -> Result<(Follower, TcpStream, Vec<u8>)> {
    let mut connection = Connection::open(server).await?;
    let mut request = Vec::new();
    server.render("GET", target, None, &mut request);
    let status = connection.begin(&request).await?;
    if status != 200 {
        return Err(Error::wrong("followers", format!("a feed was answered with status {status}")));
    }
    let (stream, chunked, first) = connection.into_chunked()?;
    Ok((Follower::new(chunked, board.clone()), stream, first))
}

/// The row with the memory that each follower took, idle and after changes.
fn judged_by_memory(row: Row, count: u64, before: Option<Held>, after: [Option<Held>; 3]) -> Row {
    let each = after.map(|held| {
        let grown = held
            .zip(before)
            .map(|(held, before)| i128::from(held.resident_kib) - i128::from(before.resident_kib));
        grown.map(|kib| kib as f64 / count as f64)
    });
    let most = each.into_iter().flatten().max_by(f64::total_cmp);
    let row = row.aim("KiB of the server's memory a follower", Bound::AtMost(FOLLOWER_KIB_MAX), most);
    let [Some(idle), Some(paced), Some(burst)] = each else {
        return row;
    };
    let before = before.map_or(0, |held| held.resident_kib >> 10);
    row.note(format!(
        "resident memory a follower: {idle:.1} KiB idle, {paced:.1} after paced changes, \
         {burst:.1} after the burst; {before} MiB before anyone followed"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower() -> Follower {
        // In a chunk that doesn't end.
        let mut chunked = Chunked::new();
        chunked.decode(b"fffffff\r\n").unwrap();
        Follower::new(chunked, Board::new(100))
    }

    #[test]
    fn a_row_counts_once_however_it_is_cut() {
        let row = format!("{{\"seq\":\"9-x\",\"id\":\"{}\",\"changes\":[]}}\n\n", sequential_id(65));
        for size in 1..row.len() {
            let mut follower = follower();
            for piece in row.as_bytes().chunks(size).chain(row.as_bytes().chunks(size)) {
                follower.take(piece).unwrap();
            }
            let board = &follower.board;
            let counts =
                (board.seen_count.load(Ordering::Relaxed), board.again_count.load(Ordering::Relaxed));
            assert_eq!(counts, (1, 1), "pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_change_ends_a_follower() {
        for bad in ["{\"last_seq\":\"9-x\",\"pending\":0}\n", "{\"id\":\"0000000000000900\"}\n", "junk\n"] {
            assert!(follower().take(bad.as_bytes()).unwrap_err().contains("strange row"), "{bad}");
        }
        assert!(follower().take(&vec![b'x'; ROW_BYTES_MAX + 1]).unwrap_err().contains("too long"));
    }

    #[test]
    fn memory_is_read_from_the_processs_status() {
        let status = "Name:\tx\nVmHWM:\t   99 kB\nVmRSS:\t   12345 kB\n";
        assert_eq!(parse_resident(status), Some(12345));
        assert_eq!(parse_resident("Name:\tx\n"), None);
        assert!(Held::now(Some(std::process::id())).unwrap().resident_kib > 0);
    }

    #[test]
    fn the_largest_of_the_memories_is_judged() {
        let held = |resident_kib| Some(Held { resident_kib, descriptors: 1 });
        let bare = || Row::new("f", "arrivals", 1, &Default::default(), &Samples::default());
        let row = judged_by_memory(bare(), 100, held(1000), [held(1500), held(2700), held(2600)]);
        assert_eq!((row.aims[0].reached, row.aims[0].met), (Some(17.0), Some(false)));
        let row = judged_by_memory(bare(), 100, None, [None, None, None]);
        assert_eq!((row.aims[0].reached, row.aims[0].met), (None, None));
    }

    #[test]
    fn more_descriptors_than_the_system_has_are_refused_with_both_figures() {
        let refused = raise_descriptors(1 << 40).unwrap_err();
        assert!(refused.contains("1099511627776 descriptors are needed"), "{refused}");
    }
}
