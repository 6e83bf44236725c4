//! The disk space of a database whose documents are overwritten, second by second, while it is written and after.
//!
//! What lives is the documents' bytes and 16 bytes for each revision that the database keeps; all else that the
//! files take is garbage, indexes and reserved space. The directory's allocated blocks are counted, as `du` does.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memchr::memmem;
use settee_client::{Answer, Couch, Request};

use crate::documents::Generator;
use crate::drive::{Client, Durability, Target, drive};
use crate::error::{Error, Result};
use crate::report::{Bound, Row};

/// Size of a document's JSON text in bytes.
pub const DOCUMENT_BYTES: usize = 1024;

/// Bytes that a kept revision takes at least: its hash.
const REVISION_BYTES: u64 = 16;

/// Aims: largest ratio of the allocated bytes to what lives while documents are written, and after the idle time.
const WORST_MAX: f64 = 2.5;
const END_MAX: f64 = 1.5;

/// Bytes that may be allocated for a small database whatever it holds; without them its ratio says nothing.
const JUDGED_LIVE_BYTES_MIN: u64 = 8 << 20;

const DATABASE: &str = "bench-footprint";

/// Parameters of a run.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Number of documents
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub documents: u64,

    /// Number of times that each document is overwritten
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub rounds: u64,

    /// Number of clients, each with its own documents
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub clients: u64,

    /// Documents of a request
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub batch: u64,

    /// Overwrite random documents instead of one after another
    #[arg(long)]
    pub random: bool,

    /// Seconds without requests after the last write
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = idle_seconds)]
    pub idle_seconds: f64,

    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = sample_seconds)]
    pub sample_seconds: f64,
}

fn idle_seconds(text: &str) -> Result<f64, String> {
    crate::number(text, 0.0, 3600.0)
}

fn sample_seconds(text: &str) -> Result<f64, String> {
    crate::number(text, 0.05, 60.0)
}

impl Config {
    /// Upper bound of the bytes of JSON that are stored at once.
    pub fn written_bytes(&self) -> u64 {
        4 * self.documents * DOCUMENT_BYTES as u64
    }

    /// Bytes that live once `written` documents were written.
    fn live_bytes(&self, written: u64) -> u64 {
        written.min(self.documents) * DOCUMENT_BYTES as u64 + written * REVISION_BYTES
    }
}

/// The database's allocated bytes at a time.
#[derive(Debug, Clone, Copy)]
struct Sample {
    seconds: f64,
    written: u64,
    allocated: u64,
    live: u64,
}

impl Sample {
    fn ratio(self) -> f64 {
        self.allocated as f64 / self.live.max(1) as f64
    }
}

/// Writes the documents, and reports a row for each sample, then the worst and the last ratio. `data` is the
/// server's data directory.
///
/// # Errors
/// The server refused a request, or the directory can't be read.
pub async fn run(
    config: &Config,
    target: &Target,
    data: &Path,
    durability: Durability,
    each: &mut (dyn FnMut(Row) + Send),
) -> Result<()> {
    let mut couch = Couch::new(target.server.clone());
    couch.create_database(DATABASE).await?;
    let written = Arc::new(AtomicU64::new(0));
    let clients = (0..config.clients).map(|number| Overwriter::new(config, number, durability, &written));
    let clients: Vec<_> = clients.collect();
    let interval = Duration::from_secs_f64(config.sample_seconds);
    let begun = tokio::time::Instant::now();
    let sample = || {
        let written = written.load(Ordering::Relaxed);
        let (allocated, live) = (allocated_bytes(data)?, config.live_bytes(written));
        Ok::<_, Error>(Sample { seconds: begun.elapsed().as_secs_f64(), written, allocated, live })
    };
    let mut samples: Vec<Sample> = Vec::new();
    let mut window = None;
    {
        let mut writing = std::pin::pin!(drive("footprint", target, clients, None));
        let mut ticks = tokio::time::interval_at(begun + interval, interval);
        let mut idle_until = None;
        loop {
            tokio::select! {
                driven = &mut writing, if idle_until.is_none() => {
                    window = Some(driven?.0);
                    idle_until = Some(tokio::time::Instant::now() + Duration::from_secs_f64(config.idle_seconds));
                }
                _ = ticks.tick() => {}
            }
            let now = sample()?;
            each(row(now, samples.last().copied(), idle_until.is_none()));
            samples.push(now);
            if idle_until.is_some_and(|until| tokio::time::Instant::now() >= until) {
                break;
            }
        }
    }
    let window = window.expect("the loop ends after it");
    couch.delete_database(DATABASE).await?;
    let judged = samples.iter().filter(|sample| sample.live >= JUDGED_LIVE_BYTES_MIN);
    let worst = judged.map(|sample| sample.ratio()).reduce(f64::max);
    let last = samples.last().filter(|last| last.live >= JUDGED_LIVE_BYTES_MIN).map(|last| last.ratio());
    let rate = window.rate();
    let total = Row { operations: window.operations, ..Row::figure("all documents written", "docs/s", rate) };
    each(total.compare("× what lives at the worst moment", worst, Bound::AtMost(WORST_MAX)).compare(
        format!("× what lives {} s after the last write", config.idle_seconds),
        last,
        Bound::AtMost(END_MAX),
    ));
    Ok(())
}

fn row(sample: Sample, last: Option<Sample>, is_writing: bool) -> Row {
    let state = if is_writing { "writing" } else { "idle" };
    let row = Row::figure(format!("{:.1} s, {state}", sample.seconds), "MB", sample.allocated as f64 / 1e6);
    let (before, since) = last.map_or((0, 0.0), |last| (last.written, last.seconds));
    let rate = (sample.written - before) as f64 / (sample.seconds - since).max(1e-3);
    row.compare("× what lives", Some(sample.ratio()), None)
        .compare("MB live", Some(sample.live as f64 / 1e6), None)
        .compare("docs/s", Some(rate), None)
}

/// Allocated bytes of all files below a directory. A file that is removed meanwhile doesn't count.
fn allocated_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    let entries = std::fs::read_dir(directory).map_err(|error| Error::file(directory, error))?;
    for entry in entries {
        let Ok(entry) = entry else { continue };
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += match metadata.is_dir() {
            true => allocated_bytes(&entry.path()).unwrap_or(0),
            false => metadata.blocks() * 512,
        };
    }
    Ok(bytes)
}

/// Writes its own documents, and then overwrites each of them in each round.
struct Overwriter {
    target: String,
    first: u64,
    revisions: Vec<String>,
    /// Documents still to be written, all rounds together.
    left: u64,
    batch: u64,
    is_random: bool,
    generator: Generator,
    /// The order of a round, and the position in it.
    order: Vec<usize>,
    next: usize,
    sent: Vec<usize>,
    document: Vec<u8>,
    body: Vec<u8>,
    written: Arc<AtomicU64>,
}

impl Overwriter {
    fn new(config: &Config, number: u64, durability: Durability, written: &Arc<AtomicU64>) -> Overwriter {
        let bound = |number: u64| config.documents * number / config.clients;
        let (first, count) = (bound(number), bound(number + 1) - bound(number));
        Overwriter {
            target: format!("/{DATABASE}/_bulk_docs{}", durability.query()),
            first,
            revisions: vec![String::new(); count as usize],
            left: count * (config.rounds + 1),
            batch: config.batch,
            is_random: config.random,
            generator: Generator::new(number),
            order: (0..count as usize).collect(),
            next: 0,
            sent: Vec::new(),
            document: Vec::new(),
            body: Vec::new(),
            written: written.clone(),
        }
    }

    /// Begins the next round, in a random order if that is wanted.
    fn begin_round(&mut self) {
        self.next = 0;
        if self.is_random {
            for index in (1..self.order.len()).rev() {
                let other = self.generator.below(index as u64 + 1) as usize;
                self.order.swap(index, other);
            }
        }
    }
}

impl Client for Overwriter {
    fn next(&mut self) -> Option<Request<'_>> {
        if self.left == 0 {
            return None;
        }
        if self.next == self.order.len() {
            self.begin_round();
        }
        let end = (self.next + self.batch as usize).min(self.order.len());
        self.sent.clear();
        self.sent.extend_from_slice(&self.order[self.next..end]);
        self.next = end;
        self.left -= self.sent.len() as u64;
        self.body.clear();
        self.body.extend_from_slice(b"{\"docs\":[");
        for (index, number) in self.sent.iter().enumerate() {
            self.document.clear();
            let id = format!("{:08}", self.first + *number as u64);
            self.generator.document(&id, DOCUMENT_BYTES, &mut self.document);
            let comma = if index > 0 { "," } else { "" };
            let revision = &self.revisions[*number];
            match revision.is_empty() {
                true => write!(self.body, "{comma}{{"),
                false => write!(self.body, "{comma}{{\"_rev\":\"{revision}\","),
            }
            .expect("writing to memory");
            self.body.extend_from_slice(&self.document[1..]);
        }
        self.body.extend_from_slice(b"]}");
        Some(Request::json("POST", &self.target, &self.body))
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let text = String::from_utf8_lossy(answer.body);
        let unexpected = || format!("{}: {}", answer.status, text.chars().take(200).collect::<String>());
        if !matches!(answer.status, 201 | 202) {
            return Err(unexpected());
        }
        const NAME: &[u8] = b"\"rev\":\"";
        let revisions: Vec<&str> = memmem::find_iter(answer.body, NAME)
            .filter_map(|at| {
                let text = &answer.body[at + NAME.len()..];
                std::str::from_utf8(&text[..memchr::memchr(b'"', text)?]).ok()
            })
            .collect();
        if revisions.len() != self.sent.len() {
            return Err(unexpected());
        }
        for (number, revision) in self.sent.iter().zip(&revisions) {
            self.revisions[*number] = (*revision).to_owned();
        }
        self.written.fetch_add(revisions.len() as u64, Ordering::Relaxed);
        Ok(revisions.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            documents: 10,
            rounds: 2,
            clients: 3,
            batch: 3,
            random: true,
            idle_seconds: 0.0,
            sample_seconds: 1.0,
        }
    }

    #[test]
    fn every_document_is_written_once_in_each_round() {
        let (config, written) = (config(), Arc::default());
        let mut counts = vec![0; config.documents as usize];
        for number in 0..config.clients {
            let mut client = Overwriter::new(&config, number, Durability::Persisted, &written);
            while client.next().is_some() {
                let reply: Vec<String> =
                    client.sent.iter().map(|one| format!("{{\"rev\":\"1-{one}\"}}")).collect();
                client.sent.iter().for_each(|one| counts[client.first as usize + one] += 1);
                let body = format!("[{}]", reply.join(","));
                assert_eq!(
                    client.check(Answer { status: 201, body: body.as_bytes() }),
                    Ok(client.sent.len() as u64)
                );
                assert!(client.check(Answer { status: 201, body: b"[]" }).is_err());
            }
        }
        assert_eq!(counts, vec![3; 10]);
        assert_eq!(written.load(Ordering::Relaxed), 30);
        assert_eq!(config.live_bytes(30), 10 * 1024 + 30 * 16);
    }

    #[test]
    fn allocated_bytes_are_those_of_all_files_below_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("one")).unwrap();
        std::fs::write(directory.path().join("one/file"), vec![1; 100_000]).unwrap();
        std::fs::write(directory.path().join("file"), [1]).unwrap();
        let bytes = allocated_bytes(directory.path()).unwrap();
        assert!((100_000..400_000).contains(&bytes), "{bytes}");
    }
}
