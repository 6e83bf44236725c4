//! The rows, and what CouchDB reached in them.
//!
//! The recorded figures are CouchDB 3.5.0's, parallel reads on, one node, `q=2`, on 2 cores with
//! 24 GiB and ext4 on a virtual disk, over HTTP on loopback with keep-alive, the client on the
//! same 2 cores: medians of three to five runs, which spread by about 15 %. They tell on any
//! other machine only roughly; a CouchDB beside (`--url`) tells exactly.

use super::clients::{Content, Ids};
use crate::report::Recorded;

/// Where the recorded figures come from, for the table's head.
pub const RECORDED_SOURCE: &str = "CouchDB 3.5.0 on 2 cores, 24 GiB, ext4";

/// Size in bytes of the documents, where a row doesn't say otherwise.
pub const DOCUMENT_BYTES: usize = 1024;

/// Documents in the database that is read.
pub const DOCUMENT_COUNT: u64 = 100_000;

/// One row, or two where writers and readers run side by side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// What `--rows` selects by.
    pub(super) name: &'static str,
    pub(super) workload: &'static str,
    pub(super) kind: Kind,
    pub(super) recorded: Option<Recorded>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The bare server, see [`crate::limits`].
    Floor {
        clients: u64,
    },
    /// Loads a database of its own; the first one is kept and read by others.
    Load {
        ids: Ids,
        content: Content,
        batch: u64,
        writers: u64,
        documents: u64,
    },
    Put {
        clients: u64,
    },
    Update {
        clients: u64,
    },
    Get {
        clients: u64,
        one: bool,
    },
    /// A writer of tiny documents, in batches, and readers of one document.
    Tiny {
        writer: bool,
        readers: bool,
    },
    List {
        target: &'static str,
    },
    BulkGet {
        clients: u64,
    },
}

const fn recorded(rate: f64, p50_p99_ms: Option<(f64, f64)>, cpu_us: f64) -> Option<Recorded> {
    Some(Recorded { rate, p50_p99_ms, cpu_us })
}

const fn plan(name: &'static str, workload: &'static str, kind: Kind, recorded: Option<Recorded>) -> Plan {
    Plan { name, workload, kind, recorded }
}

const fn load(ids: Ids, bytes: usize, batch: u64, writers: u64, documents: u64) -> Kind {
    Kind::Load { ids, content: Content::Random(bytes), batch, writers, documents }
}

/// The readers' share of the row in which they run beside the writer.
pub(super) const READERS_BESIDE: Plan = plan(
    "tiny-beside",
    "  the readers of one document beside it, 15 clients",
    Kind::Tiny { writer: true, readers: true },
    recorded(2250.0, Some((6.1, 19.0)), 833.0),
);

/// Every row, in the table's order: the bare server's right before what is held against it, since
/// other work on the machine comes and goes.
#[rustfmt::skip]
pub(super) const PLANS: [Plan; 29] = [
    plan("load-sequential", "bulk load 100k, batch 500, 10 writers, sequential ids",
        load(Ids::Sequential, DOCUMENT_BYTES, 500, 10, DOCUMENT_COUNT), recorded(19_600.0, Some((232.0, 343.0)), 79.0)),
    plan("load-2560", "  the same, 2.5 KiB",
        load(Ids::Sequential, 2560, 500, 10, DOCUMENT_COUNT), recorded(19_200.0, Some((256.0, 327.0)), 88.0)),
    plan("load-random", "  the same, random ids",
        load(Ids::Random, DOCUMENT_BYTES, 500, 10, DOCUMENT_COUNT), recorded(8_100.0, Some((622.0, 913.0)), 202.0)),
    plan("load-100x50", "bulk load 100k, batch 100, 50 writers",
        load(Ids::Sequential, DOCUMENT_BYTES, 100, 50, DOCUMENT_COUNT), recorded(22_400.0, Some((220.0, 281.0)), 69.0)),
    plan("load-10x50", "bulk load 100k, batch 10, 50 writers",
        load(Ids::Sequential, DOCUMENT_BYTES, 10, 50, DOCUMENT_COUNT), recorded(10_800.0, Some((43.0, 84.0)), 160.0)),
    plan("load-1x50", "bulk load 20k, batch 1, 50 writers",
        load(Ids::Sequential, DOCUMENT_BYTES, 1, 50, 20_000), recorded(2_000.0, Some((23.0, 68.0)), 823.0)),
    plan("put-1", "durable PUT of new documents, 1 client",
        Kind::Put { clients: 1 }, recorded(480.0, Some((2.0, 6.0)), 3_930.0)),
    plan("put-50", "durable PUT of new documents, 50 clients",
        Kind::Put { clients: 50 }, recorded(2_030.0, Some((24.0, 44.0)), 871.0)),
    plan("update-1", "durable update, 1 client",
        Kind::Update { clients: 1 }, recorded(220.0, Some((4.3, 8.9)), 7_540.0)),
    plan("update-10", "durable update, 10 clients",
        Kind::Update { clients: 10 }, recorded(520.0, Some((19.0, 36.0)), 3_700.0)),
    plan("floor-1", "bare server, get, 1 client", Kind::Floor { clients: 1 }, None),
    plan("get-1", "get random of 100k, 1 client",
        Kind::Get { clients: 1, one: false }, recorded(1_190.0, Some((0.80, 1.7)), 1_445.0)),
    plan("floor-15", "bare server, get, 15 clients", Kind::Floor { clients: 15 }, None),
    plan("get-15", "get random of 100k, 15 clients",
        Kind::Get { clients: 15, one: false }, recorded(2_420.0, Some((5.8, 15.0)), 764.0)),
    plan("floor-64", "bare server, get, 64 clients", Kind::Floor { clients: 64 }, None),
    plan("get-64", "get random of 100k, 64 clients",
        Kind::Get { clients: 64, one: false }, recorded(3_010.0, Some((20.0, 44.0)), 620.0)),
    plan("floor-200", "bare server, get, 200 clients", Kind::Floor { clients: 200 }, None),
    plan("get-200", "get random of 100k, 200 clients",
        Kind::Get { clients: 200, one: false }, recorded(3_200.0, Some((48.0, 103.0)), 476.0)),
    plan("get-one-15", "get one document, 15 clients",
        Kind::Get { clients: 15, one: true }, recorded(2_630.0, Some((5.4, 13.0)), 723.0)),
    plan("get-one-200", "get one document, 200 clients",
        Kind::Get { clients: 200, one: true }, recorded(3_340.0, Some((54.0, 112.0)), 543.0)),
    plan("tiny-writer", "batches of 1,000 documents of 10 B, 1 writer alone",
        Kind::Tiny { writer: true, readers: false }, recorded(25_500.0, Some((38.0, 57.0)), 59.0)),
    plan("tiny-readers", "readers of one document alone, 15 clients",
        Kind::Tiny { writer: false, readers: true }, recorded(2_630.0, Some((5.1, 13.6)), 691.0)),
    plan("tiny-beside", "that writer beside 15 readers of one document",
        Kind::Tiny { writer: true, readers: true }, recorded(3_390.0, Some((295.0, 559.0)), 558.0)),
    plan("all-docs", "all docs",
        Kind::List { target: "_all_docs" }, recorded(126_000.0, None, 13.0)),
    plan("all-docs-with", "all docs with documents",
        Kind::List { target: "_all_docs?include_docs=true" }, recorded(22_200.0, None, 71.0)),
    plan("changes", "changes",
        Kind::List { target: "_changes" }, recorded(60_400.0, None, 27.0)),
    plan("changes-with", "changes with documents",
        Kind::List { target: "_changes?include_docs=true" }, recorded(18_100.0, None, 87.0)),
    plan("bulk-get-1", "bulk get, 100 ids a request, 1 client",
        Kind::BulkGet { clients: 1 }, recorded(8_900.0, Some((11.0, 19.0)), 180.0)),
    plan("bulk-get-10", "bulk get, 100 ids a request, 10 clients",
        Kind::BulkGet { clients: 10 }, recorded(16_900.0, Some((56.0, 85.0)), 107.0)),
];
