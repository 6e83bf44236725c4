//! Benchmark of views and Mango of any server compatible with CouchDB: builds of indexes, queries, and indexes that
//! follow writes.
//!
//! All parts but the last use one database of an archive of messages of 1 KiB (`crate::mail`), loaded
//! before the first of them. Each row is compared with the figure recorded of CouchDB 3.5.0, where there is one, on
//! the machine that [`crate::api::RECORDED_SOURCE`] describes. Documents and indexes are in the page cache: a build
//! reads documents that were read before, and a query is asked of an index that was read before. A build
//! begins with the first query of a view whose index is absent, and ends with its response. The archive's design
//! documents are not kept up in the background (`autoupdate`), so that nothing but the query builds them.
//!
//! Invariants:
//! 1. Every response is checked against the rows that the archive must have. An error or an unexpected content
//!    fails the part: the rest of its rows isn't measured. The parts after it are measured all the same.
//! 2. The databases that are created are deleted, also after an error.

use clap::ValueEnum;

use crate::drive::{Durability, Target};
use crate::error::Result;
use crate::report::Row;

mod archive;
mod asker;
mod bench;
mod builds;
mod config;
mod follow;
mod mailing_list;
mod mango;
mod reads;

use bench::Bench;
pub use config::{Config, DOCUMENT_BYTES, Part};

/// Runs the selected parts and calls `each` with each row. Returns the number of failed parts, each of which has a
/// row with the reason.
///
/// # Errors
/// Any [`Error`](crate::Error) from deleting databases; `each` has been called for all rows by then.
pub async fn run(
    config: &Config,
    target: &Target,
    durability: Durability,
    each: &mut (dyn FnMut(Row) + Send),
) -> Result<u64> {
    let mut bench = Bench::new(config, target, durability);
    let mut failed_count = 0;
    for part in config.parts() {
        let measured = match part {
            Part::Mail => bench.mailing_list(each).await,
            Part::Build => bench.builds(each).await,
            Part::Read => bench.reads(each).await,
            Part::Mango => bench.mango(each).await,
            Part::Follow => bench.follow(each).await,
        };
        if let Err(error) = measured {
            failed_count += 1;
            let name = part.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned());
            each(Row::missing(name, "", format!("FAILED: {error}")));
        }
    }
    bench.clean().await?;
    Ok(failed_count)
}
