//! The rows of the table, CouchDB's recorded figures and the goals.
//!
//! The figures were recorded with CouchDB 3.5.0, parallel reads on, one node, `q=2`, on 2 cores with 24 GiB
//! and ext4 on a virtual disk, over HTTP on loopback with keep-alive, the client on the same 2 cores. They
//! are medians of three to five runs, which spread by about 15 %. On another machine they are only an
//! indication; for an exact comparison, run the table against a CouchDB there (`--url`). For attachments a
//! range of processor times was recorded, of which the lower end is used.

use super::clients::Documents::{self, Numbered, RandomIds};
use crate::report::Bound::{self, AtLeast, AtMost};

/// Where the recorded figures come from, for the table's head.
pub const RECORDED_SOURCE: &str = "CouchDB 3.5.0 on 2 cores, 24 GiB, ext4";

/// Size in bytes of the documents, unless a row has another.
pub const DOCUMENT_BYTES: usize = 1024;

/// Number of documents in the main database.
pub(super) const DOCUMENT_COUNT: u64 = 100_000;

/// Size in bytes of an attachment.
pub(super) const ATTACHMENT_BYTES: usize = 1 << 20;

/// Number of documents in the database of the cold rows.
pub(super) const COLD_COUNT: u64 = 600_000;

/// Number of documents of the large database of bulk updates.
pub(super) const LARGE_COUNT: u64 = 10_000_000;

/// Size in bytes of a document that is updated in bulk, without its revision: small, so that the index is what
/// grows.
pub(super) const UPDATED_BYTES: usize = 200;

/// Number of followers of the changes feed at full scale.
pub(super) const FOLLOWER_COUNT: u64 = 10_000;

/// Minimum number of followers at a small scale.
pub(super) const FOLLOWER_COUNT_MIN: u64 = 20;

/// Maximum number of attachments that a row puts, which bounds the disk space.
pub(super) const ATTACHMENT_PUT_COUNT: u64 = 2_000;

/// Minimum number of attachments at a small scale.
pub(super) const ATTACHMENT_COUNT_MIN: u64 = 16;

/// Figures recorded of CouchDB.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recorded {
    /// Operations per second.
    pub(super) rate: f64,
    /// Median and 99th percentile of the latency in milliseconds, if recorded.
    pub(super) p50_p99_ms: Option<(f64, f64)>,
    /// The server's processor time per operation in microseconds.
    pub(super) cpu_us: f64,
}

/// A figure of a row that may have an aim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// The rate divided by the recorded one.
    Rate,
    /// The recorded processor time divided by the server's.
    Cpu,
    /// The rate divided by the limit's.
    Share,
    /// The processor time divided by the limit's.
    CpuMultiple,
    /// The latency's 99th percentile in milliseconds.
    P99,
    /// The rate itself.
    PerSecond,
}

/// The aims of a row.
type Goals = &'static [(Figure, Bound)];

/// One row, or several that are measured together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// The name for `--rows`.
    pub(super) name: &'static str,
    pub(super) workload: &'static str,
    pub(super) kind: Kind,
    pub(super) recorded: Option<Recorded>,
    pub(super) goals: Goals,
}

impl Plan {
    /// The aim of a figure.
    pub(super) fn aim(&self, figure: Figure) -> Option<Bound> {
        self.goals.iter().find(|(of, _)| *of == figure).map(|(_, bound)| *bound)
    }
}

/// A load of a new database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) documents: Documents,
    pub(super) batch: u64,
    pub(super) writers: u64,
    /// Number of documents.
    pub(super) count: u64,
}

/// How documents are read from the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColdRead {
    /// `_bulk_get` of random ids.
    BulkGet,
    /// `_all_docs` with `include_docs` and `keys`, random ids.
    Keys,
    /// `_all_docs` with `include_docs`: all documents, in the order of their ids.
    List,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Loads a new database.
    Load(Load),
    /// Puts new documents.
    Put { clients: u64 },
    /// Updates documents in turn.
    Update { clients: u64 },
    /// Updates batches of random documents, in a small database and in a large one.
    BulkUpdates,
    /// Updates one document again and again.
    History,
    /// Gets random documents, or the same one.
    Get { clients: u64, one: bool },
    /// A writer of batches of tiny documents and readers of one document, each alone and then together.
    Beside,
    /// Lists all documents, with their bodies if `documents` is set.
    List { target: &'static str, documents: bool },
    /// Gets many documents with each request.
    BulkGet { clients: u64 },
    /// Gets documents that aren't in the page cache: many with each request, or all of them.
    Cold { read: ColdRead, clients: u64 },
    /// Puts attachments, each of another document.
    AttachmentPut { clients: u64 },
    /// Gets random attachments.
    AttachmentGet { clients: u64 },
    /// Many followers of a continuous changes feed, and one writer.
    Followers,
}

const fn recorded(rate: f64, p50_p99_ms: Option<(f64, f64)>, cpu_us: f64) -> Option<Recorded> {
    Some(Recorded { rate, p50_p99_ms, cpu_us })
}

const fn plan(
    name: &'static str,
    workload: &'static str,
    kind: Kind,
    recorded: Option<Recorded>,
    goals: Goals,
) -> Plan {
    Plan { name, workload, kind, recorded, goals }
}

const fn load(documents: Documents, batch: u64, writers: u64, count: u64) -> Kind {
    Kind::Load(Load { documents, batch, writers, count })
}

const GETS: Goals = &[
    (Figure::Rate, AtLeast(30.0)),
    (Figure::Cpu, AtLeast(40.0)),
    (Figure::Share, AtLeast(0.7)),
    (Figure::CpuMultiple, AtMost(1.7)),
];
/// Also of listings without documents and of bulk gets.
const LOADS: Goals = &[(Figure::Rate, AtLeast(10.0))];
/// Of durable writes.
const SINGLE_CLIENT: Goals = &[(Figure::Share, AtLeast(0.8))];
const MANY_CLIENTS: Goals = &[(Figure::Rate, AtLeast(15.0))];
const LISTS: Goals = LOADS;
const LISTS_WITH_DOCUMENTS: Goals = &[(Figure::Rate, AtLeast(20.0))];
const ATTACHMENTS: Goals = &[(Figure::Rate, AtLeast(8.0)), (Figure::Share, AtLeast(0.5))];

/// The rows of [`Kind::Beside`]: the writer alone, the readers alone, then writer and readers together, whose
/// processor time of the server is that of both.
#[rustfmt::skip]
pub(super) const BESIDE: [Plan; 4] = [
    plan("beside-writer-alone", "batches of 1,000 documents of 10 B, 1 writer alone",
        Kind::Beside, recorded(25_500.0, Some((38.0, 57.0)), 59.0), &[]),
    plan("beside-readers-alone", "readers of one document alone, 15 clients",
        Kind::Beside, recorded(2630.0, Some((5.1, 13.6)), 691.0), &[]),
    plan("beside-writer", "that writer beside those readers",
        Kind::Beside, recorded(3390.0, Some((295.0, 559.0)), 558.0), &[]),
    plan("beside-readers", "those readers beside that writer",
        Kind::Beside, recorded(2250.0, Some((6.1, 19.0)), 833.0), &[(Figure::P99, AtMost(5.0))]),
];

/// The rows of [`Kind::BulkUpdates`].
pub(super) const BULK_UPDATES: [Plan; 2] = [
    plan("bulk-updates-small", "bulk update, batch 500, 10 clients, over 100k", Kind::BulkUpdates, None, &[]),
    plan("bulk-updates-large", "  the same, over 10 million", Kind::BulkUpdates, None, &[]),
];

/// The rows of [`Kind::Followers`].
pub(super) const FOLLOWERS: [Plan; 2] = [
    plan("followers-paced", "one change each 250 ms", Kind::Followers, None, &[(Figure::P99, AtMost(200.0))]),
    plan("followers-burst", "one writer without pause", Kind::Followers, None, &[]),
];

/// Every row, in the table's order. Followers come first: their memory shows only in a server that has no
/// freed memory to use again.
#[rustfmt::skip]
pub(super) const PLANS: [Plan; 35] = [
    plan("followers", "continuous changes followers, one writer", Kind::Followers, None, &[]),
    plan("get-1", "get random of 100k, 1 client",
        Kind::Get { clients: 1, one: false }, recorded(1_190.0, Some((0.80, 1.7)), 1_445.0), GETS),
    plan("get-15", "get random of 100k, 15 clients",
        Kind::Get { clients: 15, one: false }, recorded(2_420.0, Some((5.8, 15.0)), 764.0), GETS),
    plan("get-64", "get random of 100k, 64 clients",
        Kind::Get { clients: 64, one: false }, recorded(3_010.0, Some((20.0, 44.0)), 620.0), GETS),
    plan("get-200", "get random of 100k, 200 clients",
        Kind::Get { clients: 200, one: false }, recorded(3_200.0, Some((48.0, 103.0)), 476.0), GETS),
    plan("get-one-15", "get one document, 15 clients",
        Kind::Get { clients: 15, one: true }, recorded(2_630.0, Some((5.4, 13.0)), 723.0), GETS),
    plan("get-one-200", "get one document, 200 clients",
        Kind::Get { clients: 200, one: true }, recorded(3_340.0, Some((54.0, 112.0)), 543.0), GETS),
    plan("load-sequential", "bulk load 100k, batch 500, 10 writers, sequential ids",
        load(Numbered(DOCUMENT_BYTES), 500, 10, DOCUMENT_COUNT), recorded(19_600.0, Some((232.0, 343.0)), 79.0), LOADS),
    plan("load-2560", "  the same, 2.5 KiB",
        load(Numbered(2560), 500, 10, DOCUMENT_COUNT), recorded(19_200.0, Some((256.0, 327.0)), 88.0), LOADS),
    plan("load-random", "  the same, 1 KiB, random ids",
        load(RandomIds(DOCUMENT_BYTES), 500, 10, DOCUMENT_COUNT), recorded(8_100.0, Some((622.0, 913.0)), 202.0), LOADS),
    plan("load-100x50", "bulk load 100k, batch 100, 50 writers",
        load(Numbered(DOCUMENT_BYTES), 100, 50, DOCUMENT_COUNT), recorded(22_400.0, Some((220.0, 281.0)), 69.0), LOADS),
    plan("load-10x50", "bulk load 100k, batch 10, 50 writers",
        load(Numbered(DOCUMENT_BYTES), 10, 50, DOCUMENT_COUNT), recorded(10_800.0, Some((43.0, 84.0)), 160.0), LOADS),
    plan("load-1x50", "bulk load 20k, batch 1, 50 writers",
        load(Numbered(DOCUMENT_BYTES), 1, 50, 20_000), recorded(2_000.0, Some((23.0, 68.0)), 823.0), LOADS),
    plan("put-1", "durable PUT of new documents, 1 client",
        Kind::Put { clients: 1 }, recorded(480.0, Some((2.0, 6.0)), 3_930.0), SINGLE_CLIENT),
    plan("put-50", "durable PUT of new documents, 50 clients",
        Kind::Put { clients: 50 }, recorded(2_030.0, Some((24.0, 44.0)), 871.0), MANY_CLIENTS),
    plan("update-1", "durable update, 1 client",
        Kind::Update { clients: 1 }, recorded(220.0, Some((4.3, 8.9)), 7_540.0), SINGLE_CLIENT),
    plan("update-10", "durable update, 10 clients",
        Kind::Update { clients: 10 }, recorded(520.0, Some((19.0, 36.0)), 3_700.0), &[]),
    plan("update-same", "durable update of one document, 2,000 times, 1 client",
        Kind::History, None, &[]),
    plan("beside", "readers of one document beside a bulk writer", Kind::Beside, None, &[]),
    plan("all-docs", "all docs",
        Kind::List { target: "_all_docs", documents: false }, recorded(126_000.0, None, 13.0), LISTS),
    plan("all-docs-with", "all docs with documents",
        Kind::List { target: "_all_docs?include_docs=true", documents: true }, recorded(22_200.0, None, 71.0), LISTS_WITH_DOCUMENTS),
    plan("changes", "changes",
        Kind::List { target: "_changes", documents: false }, recorded(60_400.0, None, 27.0), LISTS),
    plan("changes-with", "changes with documents",
        Kind::List { target: "_changes?include_docs=true", documents: true }, recorded(18_100.0, None, 87.0), LISTS_WITH_DOCUMENTS),
    plan("bulk-get-1", "bulk get, 100 ids a request, 1 client",
        Kind::BulkGet { clients: 1 }, recorded(8_900.0, Some((11.0, 19.0)), 180.0), LISTS),
    plan("bulk-get-10", "bulk get, 100 ids a request, 10 clients",
        Kind::BulkGet { clients: 10 }, recorded(16_900.0, Some((56.0, 85.0)), 107.0), LISTS),
    plan("cold-bulk-1", "cold: bulk get, 100 ids a request, 1 client",
        Kind::Cold { read: ColdRead::BulkGet, clients: 1 }, None, &[(Figure::Share, AtLeast(0.5))]),
    plan("cold-bulk-4", "cold: bulk get, 100 ids a request, 4 clients",
        Kind::Cold { read: ColdRead::BulkGet, clients: 4 }, None, &[(Figure::Share, AtLeast(0.7))]),
    plan("cold-keys-1", "cold: all docs with documents, 100 keys a request, 1 client",
        Kind::Cold { read: ColdRead::Keys, clients: 1 }, None, &[(Figure::Share, AtLeast(0.5))]),
    plan("cold-keys-4", "cold: all docs with documents, 100 keys a request, 4 clients",
        Kind::Cold { read: ColdRead::Keys, clients: 4 }, None, &[(Figure::Share, AtLeast(0.7))]),
    plan("cold-list", "cold: all docs with documents, 600k",
        Kind::Cold { read: ColdRead::List, clients: 1 }, None, &[(Figure::PerSecond, AtLeast(100_000.0))]),
    plan("attachment-put-1", "put attachment of 1 MiB, 1 client",
        Kind::AttachmentPut { clients: 1 }, recorded(84.0, None, 15_100.0), ATTACHMENTS),
    plan("attachment-put-10", "put attachment of 1 MiB, 10 clients",
        Kind::AttachmentPut { clients: 10 }, recorded(125.0, None, 15_100.0), ATTACHMENTS),
    plan("attachment-get-1", "get attachment of 1 MiB, 1 client",
        Kind::AttachmentGet { clients: 1 }, recorded(102.0, None, 12_000.0), ATTACHMENTS),
    plan("attachment-get-10", "get attachment of 1 MiB, 10 clients",
        Kind::AttachmentGet { clients: 10 }, recorded(125.0, None, 12_000.0), ATTACHMENTS),
    plan("bulk-updates", "bulk updates in a small database and in a large one", Kind::BulkUpdates, None, &[]),
];
