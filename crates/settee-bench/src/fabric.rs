//! The workload of CouchDB's `fabric_bench`, in its order and with its sizes, over HTTP.
//!
//! Documents are added in batches under the ids 1 to N, read one by one at random, listed without and with
//! their bodies, and read as changes. Finally, single new documents are put.
//! (`src/fabric/src/fabric_bench.erl` in apache/couchdb, version 1 of the table.)
//!
//! Generating the documents isn't part of any latency.

use settee_client::{Answer, Couch, JSON, Request};

use crate::api::bench::{directory, new_database_name};
use crate::api::clients::{Documents, Loader, NumberRange, generators, unexpected};
use crate::api::reads::list_once;
use crate::documents::{DocumentSize, Generator};
use crate::drive::{Client, Durability, Target, drive};
use crate::error::{Error, Result};
use crate::report::Row;
use crate::rounds::{Series, Window};

/// Default number of documents; for large ones [`LARGE_DOCUMENT_COUNT`].
const DOCUMENT_COUNT: u64 = 100_000;

const LARGE_DOCUMENT_COUNT: u64 = 5_000;

/// Parameters of a run.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Number of documents to add [default: 100000, or 5000 large ones]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub docs: Option<u64>,

    /// Size of the documents
    #[arg(long, value_name = "SIZE", default_value = "small")]
    pub doc_size: DocumentSize,

    /// Number of documents in a batch
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub batch: u64,

    /// Number of connections that add, get and put
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub clients: u64,

    /// Number of single documents to put at the end
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub updates: u64,
}

impl Config {
    /// Number of documents that are added.
    pub fn documents(&self) -> u64 {
        self.docs.unwrap_or(match self.doc_size {
            DocumentSize::Large => LARGE_DOCUMENT_COUNT,
            _ => DOCUMENT_COUNT,
        })
    }

    /// Bytes of JSON that are written.
    pub fn written_bytes(&self) -> u64 {
        (self.documents().saturating_add(self.updates)).saturating_mul(self.doc_size.bytes() as u64)
    }
}

/// Runs the workload and calls `each` with each row as it is measured. Its database is deleted at the end, also
/// after an error.
///
/// # Errors
/// Any [`Error`].
pub async fn run(
    config: &Config,
    target: &Target,
    durability: Durability,
    each: &mut dyn FnMut(Row),
) -> Result<()> {
    let mut couch = Couch::new(target.server.clone());
    let database = new_database_name();
    couch.create_database(&database).await?;
    let measured = measure(config, target, durability, &database, each).await;
    let deleted = couch.delete_database(&database).await;
    measured.and(Ok(deleted?))
}

async fn measure(
    config: &Config,
    target: &Target,
    durability: Durability,
    database: &str,
    each: &mut dyn FnMut(Row),
) -> Result<()> {
    let (size, documents, path) = (config.doc_size, config.documents(), directory(database));
    let row = |name: String, unit, window| {
        let name = if config.clients == 1 { name } else { format!("{name}, {} clients", config.clients) };
        Row::new(name, unit, &Series(vec![window]))
    };
    let numbers = NumberRange::new(1..documents + 1);
    let bulk = format!("{path}/_bulk_docs{}", durability.query());
    let loaders = Loader::group(&bulk, config.clients, &numbers, config.batch, Documents::Fabric(size));
    let name = format!("add {documents} {} documents, batch {}", size.name(), config.batch);
    let (added, _) = drive(&name, target, loaders, None).await?;
    each(row(name, "docs/s", added));
    Couch::new(target.server.clone()).barrier(database).await?;
    let singles = async |name: &str, put: bool, count| -> Result<Window> {
        let numbers = NumberRange::new(0..count);
        let single = |generator| Single {
            directory: path.clone(),
            query: durability.query(),
            size: put.then_some(size),
            numbers: numbers.clone(),
            documents,
            generator,
            target: String::new(),
            body: Vec::new(),
        };
        Ok(drive(name, target, generators(config.clients).map(single).collect(), None).await?.0)
    };
    let name = format!("get random document × {documents}");
    each(row(name.clone(), "docs/s", singles(&name, false, documents).await?));
    for (name, listing) in [
        ("all docs", "_all_docs"),
        ("all docs with include_docs", "_all_docs?include_docs=true"),
        ("changes", "_changes"),
    ] {
        let listing = list_once(target, &format!("{path}/{listing}")).await?;
        if listing.rows != documents {
            return Err(Error::wrong(name, format!("{} rows of {documents}", listing.rows)));
        }
        each(Row::new(name, "rows/s", &Series(vec![listing.window])));
    }
    let name = format!("put single new document × {}", config.updates);
    each(row(name.clone(), "docs/s", singles(&name, true, config.updates).await?));
    Ok(())
}

/// Gets random documents, or puts new ones under random ids.
struct Single {
    directory: String,
    query: &'static str,
    /// Size of the documents that are put. None: documents are read.
    size: Option<DocumentSize>,
    /// One for each request of all clients.
    numbers: NumberRange,
    /// Number of documents to choose from.
    documents: u64,
    generator: Generator,
    target: String,
    body: Vec<u8>,
}

impl Client for Single {
    fn next(&mut self) -> Option<Request<'_>> {
        self.numbers.take(1)?;
        let Some(size) = self.size else {
            self.target = format!("{}/{}", self.directory, self.generator.below(self.documents) + 1);
            return Some(Request::get(&self.target));
        };
        let id = self.generator.random_id();
        self.target = format!("{}/{id}{}", self.directory, self.query);
        self.body.clear();
        self.generator.fabric_document(size, &id, &mut self.body);
        Some(Request { method: "PUT", target: &self.target, content: Some((JSON, &self.body)) })
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        if (200..300).contains(&answer.status) { Ok(1) } else { Err(unexpected(answer)) }
    }
}
