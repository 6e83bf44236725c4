//! Rows that read documents from the disk: the index is in memory, and the documents aren't in the page cache.
//!
//! Before each slice the segments that the server has open are dropped from the page cache (`posix_fadvise(2)`,
//! `POSIX_FADV_DONTNEED`); where clients read random documents, also several times a second meanwhile, since they
//! would soon have brought all of them into it. A listing reads each document once. The limit is fio in slices between:
//! random reads of 4 KiB of the same files, 32 in flight, past the page cache. If it isn't installed or fails, the
//! rows have no limit.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memchr::memmem;
use rustix::fs::{Advice, fadvise};
use settee_client::{Answer, Request};

use super::bench::{Bench, Limit, ROUND_COUNT, directory, is_target_turn, row};
use super::clients::{Documents, generators, scattered_id, unexpected};
use super::config::SCALED_COUNT_MIN;
use super::plan::{COLD_COUNT, ColdRead, DOCUMENT_BYTES, Load, Plan};
use super::reads::list_once;
use crate::documents::Generator;
use crate::drive::{Client, drive};
use crate::error::{Error, Result};
use crate::io::fio::Fio;
use crate::report::Row;
use crate::rounds::Window;

/// Number of ids of a request.
const IDS: u64 = 100;

/// Number of ids of a request that brings the index into memory.
const WARM_IDS: u64 = 1_000;

/// Interval at which the segments are dropped from the page cache.
const DROP_INTERVAL: Duration = Duration::from_millis(100);

/// Number of reads that fio has in flight.
const FIO_DEPTH: usize = 32;

impl Bench<'_> {
    pub(super) async fn cold(&mut self, plan: &Plan, read: ColdRead, clients: u64) -> Result<Row> {
        let Some(pid) = self.setup.target.pid else {
            return Ok(Row::missing(plan.workload, "docs/s", "the server's files aren't known"));
        };
        let database = self.cold_database(plan.name).await?;
        let count = self.cold_count();
        let target = format!("{}/{}", directory(&database), read.endpoint());
        let getter =
            |generator| ColdGetter { target: target.clone(), read, count, generator, body: Vec::new() };
        let mut getters: Vec<ColdGetter> = generators(clients).map(getter).collect();
        let time = self.config.row_time() / ROUND_COUNT;
        let (mut sum, mut fio_sum) = (Window::default(), Window::default());
        let fio = Fio::find();
        for turn in 0..2 * ROUND_COUNT {
            let segments = open_segments(pid);
            if segments.is_empty() {
                return Err(Error::wrong(plan.name, "the server has no segments open"));
            }
            if !is_target_turn(turn) {
                let window =
                    fio.as_ref().and_then(|fio| fio.random_reads_of(&segments, FIO_DEPTH, time).ok());
                window.into_iter().for_each(|window| fio_sum.append(window));
                continue;
            }
            let dropping = Dropping::start(segments, read != ColdRead::List);
            let window = match read {
                ColdRead::List => {
                    let listing = list_once(&self.setup.target, &target).await?;
                    if (listing.rows, listing.documents) != (count, count) {
                        let (rows, with) = (listing.rows, listing.documents);
                        let reason = format!("{rows} rows, {with} with documents, of {count}");
                        return Err(Error::wrong(plan.name, reason));
                    }
                    listing.window
                }
                ColdRead::BulkGet | ColdRead::Keys => {
                    let window;
                    (window, getters) = drive(plan.name, &self.setup.target, getters, Some(time)).await?;
                    window
                }
            };
            dropping.end();
            sum.append(window);
        }
        let name = format!("fio, 4 KiB, {FIO_DEPTH} in flight");
        let has_limit = fio_sum.operations > 0;
        let limit = has_limit.then(|| Limit { name, rate: fio_sum.rate(), cpu_us: None });
        Ok(row(plan, "docs/s", sum, limit))
    }

    fn cold_count(&self) -> u64 {
        self.config.scaled(COLD_COUNT, SCALED_COUNT_MIN)
    }

    /// Returns the database of the cold rows, and loads it first if necessary. Its index is in memory.
    async fn cold_database(&mut self, name: &str) -> Result<String> {
        if let Some(database) = &self.cold {
            return Ok(database.clone());
        }
        let database = self.create().await?;
        let documents = Documents::Scattered(DOCUMENT_BYTES);
        let load = Load { documents, batch: 500, writers: 10, count: COLD_COUNT };
        self.load(name, &database, load).await?;
        self.settle().await;
        let target = format!("{}/_all_docs", directory(&database));
        for first in (0..self.cold_count()).step_by(WARM_IDS as usize) {
            let ids = (first..self.cold_count().min(first + WARM_IDS)).map(scattered_id);
            let body = render(ColdRead::Keys, ids);
            self.couch.send(Request::json("POST", &target, &body)).await?;
        }
        self.cold = Some(database.clone());
        Ok(database)
    }
}

impl ColdRead {
    fn endpoint(self) -> &'static str {
        match self {
            ColdRead::BulkGet => "_bulk_get",
            ColdRead::Keys | ColdRead::List => "_all_docs?include_docs=true",
        }
    }
}

/// The body of a request for documents.
fn render(read: ColdRead, ids: impl Iterator<Item = String>) -> Vec<u8> {
    let (name, before, after) = match read {
        ColdRead::BulkGet => ("docs", "{\"id\":", "}"),
        ColdRead::Keys | ColdRead::List => ("keys", "", ""),
    };
    let mut body = format!("{{\"{name}\":[").into_bytes();
    for (index, id) in ids.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(body, "{comma}{before}\"{id}\"{after}").expect("writing to memory");
    }
    body.extend_from_slice(b"]}");
    body
}

/// Gets random documents, many with each request.
#[derive(Debug)]
struct ColdGetter {
    target: String,
    read: ColdRead,
    count: u64,
    generator: Generator,
    body: Vec<u8>,
}

impl Client for ColdGetter {
    fn next(&mut self) -> Option<Request<'_>> {
        let (generator, count) = (&mut self.generator, self.count);
        self.body = render(self.read, (0..IDS).map(|_| scattered_id(generator.below(count))));
        Some(Request::json("POST", &self.target, &self.body))
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let found = memmem::find_iter(answer.body, b"\"rest\":\"").count() as u64;
        if answer.status == 200 && found == IDS { Ok(IDS) } else { Err(unexpected(answer)) }
    }
}

/// The segments that a server has open.
fn open_segments(pid: u32) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let is_segment =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log" || extension == "seg");
    let mut segments: Vec<PathBuf> =
        links.filter(is_segment).filter(|path| path.parent().is_some_and(is_database)).collect();
    segments.sort_unstable();
    segments.dedup();
    segments
}

/// Whether a directory is a database's, and not the catalogue's.
fn is_database(directory: &Path) -> bool {
    directory.parent().and_then(Path::file_name).is_some_and(|name| name == "databases")
}

/// A thread that keeps files out of the page cache.
struct Dropping {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Dropping {
    /// Drops the files once, and with `repeats` at intervals.
    fn start(paths: Vec<PathBuf>, repeats: bool) -> Dropping {
        let files: Vec<File> = paths.iter().filter_map(|path| File::open(path).ok()).collect();
        let drop_all = move || {
            for file in &files {
                // Advice: a failure means that the row is faster than it should be, and the ratio shows it.
                let _ = fadvise(file, 0, None, Advice::DontNeed);
            }
        };
        drop_all();
        let is_over = Arc::new(AtomicBool::new(!repeats));
        let over = is_over.clone();
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(DROP_INTERVAL);
                drop_all();
            }
        });
        Dropping { is_over, thread }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}
