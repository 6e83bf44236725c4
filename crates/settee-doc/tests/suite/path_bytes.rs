//! Goal: what a document takes on disk stays near what lives of it, its body and a hash for each kept revision,
//! whatever its generation.
//! Method: in the simulation, documents of 1 KiB are updated to a generation and compacted; the bytes of log,
//! segment indexes and tree are counted. The small run checks the bounds; `SETTEE_FIGURES=1 cargo test
//! --release -p settee-doc --test suite path_bytes -- --nocapture` prints the figures of more documents.

use std::path::Path;

use settee_doc::{Database, Databases, Edit, Options, Revision, Stage};
use settee_sim::{Sim, SimDisk};

/// The variable that enables the whole measurement.
const FIGURES: &str = "SETTEE_FIGURES";

/// Bytes of a document's JSON text.
const DOCUMENT_BYTES: usize = 1 << 10;

/// Documents of a request.
const BATCH: usize = 500;

/// Bytes of a segment's trailer.
const TRAILER_SIZE: usize = 152;

/// Bytes of a store's files.
#[derive(Debug, Default)]
struct DiskBytes {
    log: usize,
    segment_indexes: usize,
    tree: usize,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn edit(number: usize, revision: Option<Revision>, random: &mut Random) -> Edit {
    let letter = |random: &mut Random| char::from(b'a' + (random.next() >> 40) as u8 % 16);
    let rest: String = (0..DOCUMENT_BYTES - br#"{"rest":""}"#.len()).map(|_| letter(random)).collect();
    let mut edit = Edit::parse(format!(r#"{{"rest":"{rest}"}}"#).as_bytes(), &Options::default()).unwrap();
    (edit.id, edit.revision) =
        (format!("{:016x}", (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)), revision);
    edit
}

/// Updates documents until they have this generation.
async fn update(db: &Database, count: usize, generation: u32) {
    let mut random = Random(7);
    let mut revisions: Vec<Option<Revision>> = vec![None; count];
    for _ in 0..generation {
        for (batch, revisions) in revisions.chunks_mut(BATCH).enumerate() {
            let edits = revisions
                .iter_mut()
                .enumerate()
                .map(|(at, revision)| edit(batch * BATCH + at, revision.take(), &mut random));
            let outcomes = db.update_all(edits.collect(), Stage::Persisted).await.unwrap();
            for (revision, outcome) in revisions.iter_mut().zip(outcomes) {
                *revision = Some(outcome.unwrap());
            }
        }
    }
}

fn number(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Counts what the documents' store has on disk. Of the tree only what its root reaches.
fn disk_bytes(disk: &SimDisk) -> DiskBytes {
    let mut found = DiskBytes::default();
    for path in disk.paths() {
        let text = path.to_string_lossy().into_owned();
        let bytes = disk.read_file(&path).unwrap_or_default();
        if !text.contains("/databases/") {
            continue;
        }
        if text.ends_with(".tree") {
            let root = [4096, 8192].into_iter().max_by_key(|at| number(&bytes, at + 32)).unwrap();
            found.tree += number(&bytes, root + 64);
        } else if text.ends_with(".log") || text.ends_with(".seg") {
            let trailer =
                bytes.len().checked_sub(TRAILER_SIZE).filter(|at| bytes[*at..].starts_with(b"SETTEEFT"));
            let end = match trailer {
                Some(at) => number(&bytes, at + 24),
                // Space that is reserved reads as zeros.
                None => bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1),
            };
            let records = if text.ends_with(".seg") { records_end(&bytes, trailer.unwrap()) } else { end };
            found.log += records;
            found.segment_indexes += trailer.map_or(0, |_| bytes.len() - records);
        }
    }
    found
}

/// The end of the records of a rewritten segment: the footer begins where its parts do.
fn records_end(bytes: &[u8], trailer: usize) -> usize {
    let parts: usize = (96..136).step_by(8).map(|at| number(bytes, trailer + at)).sum();
    (trailer - parts) / 4096 * 4096
}

/// The bytes on disk, and those of the live records, as multiples of what lives.
fn measure(count: usize, generation: u32) -> (f64, f64) {
    let (disk, mut live) = (SimDisk::new(1), 0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env, Path::new("/data")).await.unwrap();
        let db = databases.create("db").await.unwrap();
        update(&db, count, generation).await;
        drop(db);
        databases.close().await.unwrap();
    })
    .unwrap();
    // Opening it begins a segment, so that no other has reason to keep garbage.
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env, Path::new("/data")).await.unwrap();
        let db = databases.get("db").await.unwrap();
        db.set_revs_limit(1000).await.unwrap();
        db.compact().await.unwrap();
        assert_eq!(db.info().doc_count, count as u64);
        live = db.info().active_bytes;
        drop(db);
        databases.close().await.unwrap();
    })
    .unwrap();
    let DiskBytes { log, segment_indexes, tree } = disk_bytes(&disk);
    let live = live / count as u64;
    let lives = DOCUMENT_BYTES + 16 * generation.min(1000) as usize;
    let each = |bytes: usize| bytes / count;
    let all = log + segment_indexes + tree;
    let share = all as f64 / (count * lives) as f64;
    println!(
        "generation {generation}: {live} bytes of each document's records live, {} bytes of each document on disk (log {}, segment indexes {}, tree {}), {share:.2} \
         times what lives ({lives})",
        each(all),
        each(log),
        each(segment_indexes),
        each(tree),
    );
    (share, live as f64 / lives as f64)
}

#[test]
fn a_document_takes_little_more_than_what_lives() {
    let counts = match std::env::var_os(FIGURES) {
        Some(_) => [(20_000, 1), (20_000, 30), (400, 1_000)],
        None => [(2_000, 1), (2_000, 30), (100, 1_000)],
    };
    let shares = counts.map(|(count, generation)| measure(count, generation));
    assert!(shares.iter().all(|(_, live)| *live < 1.2), "{shares:?}");
    // Of a long path's chunks, garbage and index entries remain besides.
    assert!(shares[0].0 < 1.3 && shares[1].0 < 1.3 && shares[2].0 < 2.0, "{shares:?}");
}
