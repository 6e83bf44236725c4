//! Benchmark of the HTTP API of any server compatible with CouchDB: rate, latency, and the server's processor
//! time per operation.
//!
//! Each row is compared with the figures recorded of CouchDB 3.5.0 ([`RECORDED_SOURCE`]). Reads, durable
//! writes of one client and attachments are also compared with the limits of the machine ([`crate::limits`]),
//! which are measured alternately with the row, so that other load on the machine affects both. Loads run
//! until all documents are stored; all other rows run for a given time. All clients share one thread of this
//! process, since server and client share the machine.
//!
//! Invariants:
//! 1. Every response is checked. An error or an unexpected content makes the row a failed one, without
//!    figures. The rows after it are measured all the same.
//! 2. A row and its limit are measured the same way: the same clients, the same number of bytes, a process
//!    each.
//! 3. The databases that are created are deleted, also after an error.

use crate::error::Result;
use crate::report::Row;

mod attachments;
pub(crate) mod bench;
mod bulk_updates;
pub(crate) mod clients;
mod cold;
mod config;
mod followers;
mod plan;
pub(crate) mod reads;
mod writes;

use bench::Bench;
pub use config::{Config, Setup, row_names};
pub use plan::{DOCUMENT_BYTES, RECORDED_SOURCE};
use plan::{Kind, Plan};

/// Runs the selected rows and calls `each` with each row. Returns the number of failed rows.
///
/// # Errors
/// Any [`Error`](crate::Error) from deleting databases; `each` has been called for all rows by then.
pub async fn run(config: &Config, setup: &Setup, each: &mut dyn FnMut(Row)) -> Result<u64> {
    let mut bench = Bench::new(config, setup);
    let mut failed_count = 0;
    let mut cleaned = Ok(());
    for plan in config.plans() {
        bench.settle().await;
        match measure(&mut bench, plan).await {
            Ok(rows) => rows.into_iter().for_each(&mut *each),
            Err(error) => {
                failed_count += 1;
                let row = Row::missing(plan.workload, "", format!("FAILED: {error}"));
                each(Row { name: plan.name, ..row });
            }
        }
        cleaned = cleaned.and(bench.clean(true).await);
    }
    cleaned.and(bench.clean(false).await)?;
    Ok(failed_count)
}

/// Measures a plan's rows.
async fn measure(bench: &mut Bench<'_>, plan: &Plan) -> Result<Vec<Row>> {
    let row = match plan.kind {
        Kind::Load(load) => bench.load_row(plan, load).await?,
        Kind::Put { clients } => bench.put(plan, clients).await?,
        Kind::Update { clients } => bench.update(plan, clients).await?,
        Kind::BulkUpdates => return bench.bulk_updates().await,
        Kind::History => bench.history(plan).await?,
        Kind::Get { clients, one } => bench.get(plan, clients, one).await?,
        Kind::Beside => return bench.beside(plan).await,
        Kind::List { target, documents } => bench.list(plan, target, documents).await?,
        Kind::BulkGet { clients } => bench.bulk_get(plan, clients).await?,
        Kind::Cold { read, clients } => bench.cold(plan, read, clients).await?,
        Kind::AttachmentPut { clients } => bench.attachment_put(plan, clients).await?,
        Kind::AttachmentGet { clients } => bench.attachment_get(plan, clients).await?,
        Kind::Followers => return bench.followers(plan).await,
    };
    Ok(vec![row])
}
