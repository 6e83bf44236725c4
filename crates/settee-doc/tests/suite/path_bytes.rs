//! Goal: what a document takes on disk stays near what lives of it, its body and a hash for each kept revision,
//! whatever its generation.
//! Method: in the simulation, documents of 1 KiB are updated to a generation and compacted; the bytes of live
//! records, log, segment indexes and tree are counted. `SETTEE_FIGURES=1 cargo test --release -p settee-doc
//! --test suite path_bytes -- --nocapture` prints the figures of more documents. Of a few documents the log's last
//! segment, which isn't compacted, is most, so that only live records and tree are compared.

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

/// Bytes of a store.
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

/// Measures documents of a generation. Returns the bytes of their live records and of the tree as a multiple of
/// what lives.
fn measure(count: usize, generation: u32) -> f64 {
    let (disk, mut live_records) = (SimDisk::new(1), 0);
    for is_first in [true, false] {
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            if is_first {
                update(&databases.create("db").await.unwrap(), count, generation).await;
            } else {
                let db = databases.get("db").await.unwrap();
                db.compact().await.unwrap();
                assert_eq!(db.info().doc_count, count as u64);
                live_records = db.info().active_bytes as usize;
            }
            databases.close().await.unwrap();
        })
        .unwrap();
    }
    let DiskBytes { log, segment_indexes, tree, .. } = disk_bytes(&disk);
    let all = log + segment_indexes + tree;
    let lives = count * (DOCUMENT_BYTES + 16 * generation as usize);
    println!(
        "generation {generation}: {} bytes of each document on disk, {:.2} times what lives; log {}, segment indexes \
         {}, tree {}; live records {}",
        all / count,
        all as f64 / lives as f64,
        log / count,
        segment_indexes / count,
        tree / count,
        live_records / count,
    );
    (live_records + tree) as f64 / lives as f64
}

#[test]
fn a_document_takes_little_more_than_what_lives() {
    let counts = match std::env::var_os(FIGURES) {
        Some(_) => [(20_000, 1), (20_000, 30), (2_000, 1_000)],
        None => [(1_000, 1), (500, 30), (50, 1_000)],
    };
    for (count, generation) in counts {
        let share = measure(count, generation);
        assert!(share < 1.2, "{share:.2} times what lives at generation {generation}");
    }
}
