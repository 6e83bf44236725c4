//! The workload of CouchDB's `fabric_bench`, in its order and with its sizes.
//!
//! Documents are added in batches under the ids 1 to N, read one by one at random, listed without and with
//! their bodies, and read as changes. Finally, single new documents are put.
//! (`src/fabric/src/fabric_bench.erl` in apache/couchdb, version 1 of the table.)
//!
//! The workload runs in this process, on the API of `settee-doc`, or over HTTP against any server compatible
//! with CouchDB. Generating the documents isn't part of any latency.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use settee_doc::{Databases, Stage};
use settee_io::{Env, ThreadOptions};
use tokio::task::JoinSet;

use crate::couch::Couch;
use crate::documents::{DocumentSize, Generator};
use crate::error::{Error, Result};
use crate::http::Server;
use crate::report::Row;
use crate::space;
use crate::stats::{Samples, Stopwatch};

mod peer;

pub(crate) use peer::durability_query;
use peer::{Peer, Scan};

/// Default number of documents; for large ones [`LARGE_DOCUMENT_COUNT_DEFAULT`].
pub const DOCUMENT_COUNT_DEFAULT: u64 = 100_000;

/// Default number of large documents.
pub const LARGE_DOCUMENT_COUNT_DEFAULT: u64 = 5_000;

/// Default number of documents of a batch.
pub const BATCH_COUNT_DEFAULT: u64 = 1_000;

/// Default number of single documents put at the end.
pub const UPDATE_COUNT_DEFAULT: u64 = 1_000;

/// Seed of the first client; each further client's is one higher.
const SEED: u64 = 0x5e77ee;

/// The database server that the workload uses.
#[derive(Debug, Clone)]
pub enum Backend {
    /// The engine in this process.
    Process {
        /// An empty directory for the data.
        directory: PathBuf,
    },
    /// A server, over HTTP.
    Server {
        /// The server's address.
        server: Server,
        /// The process whose processor time is counted. None: not counted.
        pid: Option<u32>,
    },
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The database server.
    pub backend: Backend,
    /// Size of the documents.
    pub size: DocumentSize,
    /// Number of documents that are added.
    pub documents: u64,
    /// Number of documents of a batch.
    pub batch: u64,
    /// Number of tasks, or connections, that add, get and put. One reads the listings.
    pub clients: u64,
    /// Number of single documents that are put.
    pub updates: u64,
    /// Stage that writes have reached when they are acknowledged.
    pub durability: Stage,
}

/// Runs the workload and calls `on_row` with each row as it is measured. Its database is deleted at the end,
/// also after an error.
///
/// # Errors
/// Any [`Error`].
pub async fn run(config: &Config, mut on_row: impl FnMut(Row)) -> Result<()> {
    if let Backend::Process { directory } = &config.backend {
        space::check(directory, (config.documents + config.updates) * config.size.bytes() as u64)?;
    }
    let host = Host::open(config).await?;
    let measured = measure(config, &host, &mut on_row).await;
    let closed = host.close().await;
    measured.and(closed)
}

/// The database of a run and the connection to its server.
struct Host {
    database: String,
    inner: HostKind,
}

enum HostKind {
    Process(Arc<Databases>),
    Server(Server),
}

impl Host {
    async fn open(config: &Config) -> Result<Host> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let database = format!("settee-bench-{}", now.as_micros());
        let inner = match &config.backend {
            Backend::Process { directory } => {
                let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
                let databases = Databases::open(env, directory).await?;
                databases.create(&database).await?;
                HostKind::Process(databases)
            }
            Backend::Server { server, .. } => {
                Couch::new(server.clone()).create_database(&database).await?;
                HostKind::Server(server.clone())
            }
        };
        Ok(Host { database, inner })
    }

    async fn peer(&self, durability: Stage) -> Result<Peer> {
        match &self.inner {
            HostKind::Process(databases) => {
                Ok(Peer::process(databases.get(&self.database).await?, durability))
            }
            HostKind::Server(server) => Peer::server(server, &self.database, durability).await,
        }
    }

    /// Waits until all acknowledged writes are persisted and visible.
    async fn barrier(&self) -> Result<()> {
        match &self.inner {
            HostKind::Process(databases) => Ok(databases.get(&self.database).await?.barrier().await?),
            HostKind::Server(server) => Ok(Couch::new(server.clone()).barrier(&self.database).await?),
        }
    }

    async fn close(self) -> Result<()> {
        match self.inner {
            HostKind::Process(databases) => {
                databases.delete(&self.database).await?;
                Ok(databases.close().await?)
            }
            HostKind::Server(server) => Ok(Couch::new(server).delete_database(&self.database).await?),
        }
    }
}

async fn measure(config: &Config, host: &Host, on_row: &mut impl FnMut(Row)) -> Result<()> {
    let size = config.size.name();
    let name = format!("add {} {size} documents, batch {}", config.documents, config.batch);
    on_row(run_clients(config, host, &name, "docs", Operation::Add).await?);
    host.barrier().await?;
    let name = format!("get random document × {}", config.documents);
    on_row(run_clients(config, host, &name, "docs", Operation::Get).await?);
    for scan in [Scan::AllDocs, Scan::AllDocsWithDocuments, Scan::Changes] {
        on_row(list(config, host, scan).await?);
    }
    let name = format!("put single new document × {}", config.updates);
    on_row(run_clients(config, host, &name, "docs", Operation::Put).await?);
    Ok(())
}

/// The operation of a row, whose documents the clients take from a shared counter.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Add,
    Get,
    Put,
}

async fn run_clients(
    config: &Config,
    host: &Host,
    name: &str,
    unit: &'static str,
    operation: Operation,
) -> Result<Row> {
    let total = if matches!(operation, Operation::Put) { config.updates } else { config.documents };
    let mut peers = Vec::new();
    for _ in 0..config.clients {
        peers.push(host.peer(config.durability).await?);
    }
    let next = Arc::new(AtomicU64::new(0));
    let stopwatch = Stopwatch::start(server_pid(config));
    let mut tasks = JoinSet::new();
    for (seed, peer) in (SEED..).zip(peers) {
        let client = Client { peer, generator: Generator::new(seed), next: next.clone(), total };
        tasks.spawn(client.run(operation, config.size, config.batch, config.documents));
    }
    let mut latencies = Samples::default();
    while let Some(joined) = tasks.join_next().await {
        latencies.append(joined.map_err(|error| Error::wrong(name, error.to_string()))??);
    }
    let name = match config.clients {
        1 => name.to_owned(),
        clients => format!("{name}, {clients} clients"),
    };
    Ok(Row::new(name, unit, total, &stopwatch.read(), &latencies))
}

struct Client {
    peer: Peer,
    generator: Generator,
    next: Arc<AtomicU64>,
    total: u64,
}

impl Client {
    /// Takes document numbers from the counter and runs the operation until none are left.
    async fn run(
        mut self,
        operation: Operation,
        size: DocumentSize,
        batch: u64,
        documents: u64,
    ) -> Result<Samples> {
        let mut samples = Samples::default();
        let step = if matches!(operation, Operation::Add) { batch } else { 1 };
        let mut text = peer::Batch::default();
        loop {
            let first = self.next.fetch_add(step, Ordering::Relaxed);
            if first >= self.total {
                return Ok(samples);
            }
            let latency = match operation {
                Operation::Add => {
                    text.clear();
                    for number in first..(first + step).min(self.total) {
                        let id = (number + 1).to_string();
                        text.push(|out| self.generator.fabric_document(size, &id, out));
                    }
                    timed(self.peer.add(&mut text)).await?
                }
                Operation::Get => {
                    let id = (self.generator.below(documents) + 1).to_string();
                    timed(self.peer.get(&id)).await?
                }
                Operation::Put => {
                    let id = self.generator.random_id();
                    text.clear();
                    text.push(|out| self.generator.fabric_document(size, &id, out));
                    timed(self.peer.put(&id, &text)).await?
                }
            };
            samples.push(latency);
        }
    }
}

async fn timed(operation: impl Future<Output = Result<()>>) -> Result<Duration> {
    let started = Instant::now();
    operation.await?;
    Ok(started.elapsed())
}

async fn list(config: &Config, host: &Host, scan: Scan) -> Result<Row> {
    let mut peer = host.peer(config.durability).await?;
    let stopwatch = Stopwatch::start(server_pid(config));
    let rows = peer.scan(scan).await?;
    let elapsed = stopwatch.read();
    if rows != config.documents {
        return Err(Error::wrong(scan.name(), format!("{rows} rows of {}", config.documents)));
    }
    Ok(Row::new(scan.name(), "rows", rows, &elapsed, &Samples::default()))
}

fn server_pid(config: &Config) -> Option<u32> {
    match config.backend {
        Backend::Process { .. } => None,
        Backend::Server { pid, .. } => pid,
    }
}
