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

use std::time::Duration;

use crate::error::Result;
use crate::report::{Failed, Reported, Row};

mod attachments;
mod bench;
mod clients;
mod config;
mod followers;
mod plan;
mod reads;
mod writes;

use bench::Bench;
use clients::Content;
pub use config::{Config, Target};
use config::{SCALED_COUNT_MIN, scaled};
pub use followers::follower_count;
pub use plan::{ATTACHMENT_BYTES, DOCUMENT_BYTES, DOCUMENT_COUNT, FOLLOWER_COUNT, RECORDED_SOURCE};
use plan::{Kind, PLANS, Plan};

/// Upper bound of the bytes of JSON that a row of documents writes per second.
const WRITTEN_BYTES_PER_SECOND: f64 = 200e6;

/// The names of the rows, for `--rows`.
pub fn row_names() -> impl Iterator<Item = &'static str> {
    PLANS.iter().map(|plan| plan.name)
}

/// Upper bound of the bytes of JSON and attachments that the rows store at the same time. A row that writes
/// for a time counts with the throughput of a fast disk.
pub fn written_bytes(rows: &[String], scale: f64, row_time: Duration) -> u64 {
    let sizes = PLANS.iter().filter(|plan| wanted(rows, plan)).map(|plan| match plan.kind {
        Kind::Load { content: Content::Random(bytes), documents, .. } => {
            scaled(scale, documents, SCALED_COUNT_MIN) * bytes as u64
        }
        Kind::Put { .. } | Kind::Update { .. } | Kind::History | Kind::Beside => {
            (row_time.as_secs_f64() * WRITTEN_BYTES_PER_SECOND) as u64
        }
        Kind::AttachmentPut { .. } => attachments::put_count(scale) * ATTACHMENT_BYTES as u64,
        _ => scaled(scale, DOCUMENT_COUNT, SCALED_COUNT_MIN) * DOCUMENT_BYTES as u64,
    });
    // Each row's database is deleted after it, except for the main one: the largest counts twice.
    2 * sizes.max().unwrap_or(0)
}

/// Runs the selected rows and calls `on_row` with each result or failure. Returns the number of failed rows.
///
/// # Errors
/// Any [`Error`](crate::Error) from deleting databases; `on_row` has been called for all rows by then.
pub async fn run(config: &Config, mut on_row: impl FnMut(Reported)) -> Result<u64> {
    let mut bench = Bench::new(config);
    let mut failed_count = 0;
    let mut cleaned = Ok(());
    for plan in PLANS.iter().filter(|plan| wanted(&config.rows, plan)) {
        bench.settle().await;
        match measure(&mut bench, plan).await {
            Ok(rows) => rows.into_iter().for_each(|row| on_row(Reported::Measured(Box::new(row)))),
            Err(error) => {
                failed_count += 1;
                let (name, workload) = (plan.name, plan.workload.to_owned());
                on_row(Reported::Failed(Failed { name, workload, failed: error.to_string() }));
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
        Kind::Load { .. } => bench.load_row(plan).await?,
        Kind::Put { clients } => bench.put(plan, clients).await?,
        Kind::Update { clients } => bench.update(plan, clients).await?,
        Kind::History => bench.history(plan).await?,
        Kind::Get { clients, one } => bench.get(plan, clients, one).await?,
        Kind::Beside => return bench.beside(plan).await,
        Kind::List { target, documents } => bench.list(plan, target, documents).await?,
        Kind::BulkGet { clients } => bench.bulk_get(plan, clients).await?,
        Kind::AttachmentPut { clients } => bench.attachment_put(plan, clients).await?,
        Kind::AttachmentGet { clients } => bench.attachment_get(plan, clients).await?,
        Kind::Followers => return bench.followers(plan).await,
    };
    Ok(vec![row])
}

fn wanted(rows: &[String], plan: &Plan) -> bool {
    rows.is_empty() || rows.iter().any(|part| plan.name.contains(part.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_names_are_unique_and_parts_of_names_select_rows() {
        let mut names: Vec<&str> = row_names().collect();
        let parts = ["attachment".to_owned()];
        assert_eq!(PLANS.iter().filter(|plan| wanted(&parts, plan)).count(), 4);
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn counts_scale_down_to_their_minimum() {
        assert_eq!(follower_count(1.0), 10_000);
        assert_eq!(scaled(0.001, DOCUMENT_COUNT, SCALED_COUNT_MIN), SCALED_COUNT_MIN);
        let all = written_bytes(&[], 1.0, Duration::from_secs(5));
        assert!(all >= 2 * 1_000_000_000, "attachments or puts decide: {all}");
        assert!(written_bytes(&["get-1".to_owned()], 1.0, Duration::from_secs(5)) < all);
    }
}
