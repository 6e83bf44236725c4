//! Goal: documents that are read ahead are those that single reads give, in order, whatever their size, and in
//! however little memory; and their reads are in flight together.
//! Method: in the simulation. Compare every sequence with single reads after random edits; count the device's
//! reads, and derive their depth from the time that they take together, with an empty page cache.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use settee_doc::{
    Database, Databases, DatabasesOptions, Document, DocumentKey, DocumentRow, Edit, Options, Range,
    Revision, Seq, Snapshot, Stage, StoreLimits,
};
use settee_io::{Env, OperationKind};
use settee_sim::{Sim, SimDisk, seeds};

fn edit(id: &str, revision: Option<Revision>, body_bytes: usize, deleted: bool) -> Edit {
    let text = format!(r#"{{"_deleted":{deleted},"filler":"{}"}}"#, "x".repeat(body_bytes));
    let mut edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
    (edit.id, edit.revision) = (id.into(), revision);
    edit
}

struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}

/// A key that is no document's, or an id.
struct Key(Option<String>);

impl DocumentKey for Key {
    fn document_id(&self) -> Option<Cow<'_, str>> {
        self.0.as_deref().map(Cow::Borrowed)
    }
}

async fn single(view: &Snapshot, id: &str) -> Option<Document> {
    view.document_or_deleted(id).await.unwrap()
}

async fn check(view: &Snapshot, random: &mut Random, case: &str) {
    let limit = [0, 1, 7, 300, u64::MAX][random.below(5) as usize];
    let is_even = |id: &str| id.ends_with(['0', '2', '4', '6', '8']);
    for descending in [false, true] {
        for is_filtered in [false, true] {
            let passes = |id: &str| !is_filtered || is_even(id);
            let mut expected = Vec::new();
            let mut rows = view.changes(Seq(3), descending);
            while let Some(row) = rows.next().await.unwrap() {
                if passes(row.id) && (expected.len() as u64) < limit {
                    expected.push((row.summary, single(view, row.id).await.unwrap()));
                }
            }
            let filter: Option<settee_doc::IdFilter> = match is_filtered {
                true => Some(Box::new(is_even)),
                false => None,
            };
            let mut found = Vec::new();
            let mut documents = view.read_ahead(view.changes(Seq(3), descending), limit, filter);
            while let Some(DocumentRow { key, winner }) = documents.next().await.unwrap() {
                let winner = winner.unwrap();
                found.push((winner.summary.clone(), view.read_winner(&key, winner).await.unwrap()));
            }
            assert!(documents.next().await.unwrap().is_none(), "{case}: the end stays the end");
            assert_eq!(found, expected, "{case} descending={descending} filtered={is_filtered}");

            let ids: Vec<String> = expected.iter().map(|(_, document)| document.id.clone()).collect();
            let reads_bodies = random.below(2) == 0;
            let mut documents = view.changed_documents(ids, Seq(0), descending, reads_bodies).await.unwrap();
            for (summary, document) in &expected {
                let row = documents.next().await.unwrap().unwrap();
                let winner = row.winner.unwrap();
                assert_eq!(winner.summary, *summary, "{case}");
                assert_eq!(view.read_winner(&row.key, winner).await.unwrap(), *document, "{case}");
            }
            assert!(documents.next().await.unwrap().is_none(), "{case}");
        }
    }
    let keys: Vec<Option<String>> = (0..random.below(600))
        .map(|_| (random.below(10) > 0).then(|| format!("doc{:03}", random.below(150))))
        .collect();
    let reads_bodies = random.below(2) == 0;
    let mut documents = view.documents(keys.iter().cloned().map(Key).collect(), reads_bodies);
    for key in keys {
        let DocumentRow { key: Key(found), winner } = documents.next().await.unwrap().unwrap();
        assert_eq!(found, key, "{case}");
        let expected = match &key {
            Some(id) => single(view, id).await,
            None => None,
        };
        let Some((id, winner)) = key.zip(winner) else {
            assert!(expected.is_none(), "{case}");
            continue;
        };
        if random.below(2) == 0 {
            let leaves = view.leaves_of(&id, Some(winner)).await.unwrap();
            assert_eq!(leaves.document(0).await.unwrap(), expected.unwrap(), "{case}");
            assert!(leaves.iter().eq(view.leaves(&id).await.unwrap()), "{case}");
        } else {
            assert_eq!(view.read_winner(&id, winner).await.unwrap(), expected.unwrap(), "{case}");
        }
    }
    assert!(documents.next().await.unwrap().is_none(), "{case}");
}

#[test]
fn documents_read_ahead_are_those_of_single_reads() {
    for seed in seeds(15) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random(seed);
            let databases = Databases::open(env.clone(), Path::new("/data")).await.unwrap();
            let db = databases.create("db").await.unwrap();
            for step in 0..8 {
                let mut edits = Vec::new();
                for _ in 0..random.below(60) {
                    let id = format!("doc{:03}", random.below(120));
                    let known = db.snapshot().find(&id).await.unwrap();
                    let (revision, deleted) = match known {
                        Some(known) if !known.deleted => (Some(known.revision), random.below(5) == 0),
                        _ => (None, false),
                    };
                    let bytes = [10, 300, 5_000, 100_000][(random.below(8).min(3)) as usize];
                    edits.push(edit(&id, revision, bytes as usize, deleted));
                }
                // Some conflict; the others are stored.
                db.update_all(edits, Stage::Persisted).await.unwrap();
                let revision = Some(Revision { generation: 1, id: [step as u8; 16].into() });
                let losing = edit(&format!("doc{:03}", random.below(120)), revision, 20, false);
                db.replicate_all(vec![losing], Stage::Persisted).await.unwrap();
                if random.below(3) == 0 {
                    db.compact().await.unwrap();
                }
                check(&db.snapshot(), &mut random, &format!("seed={seed} step={step}")).await;
            }
        })
        .unwrap();
    }
}

/// Documents of 1 KiB, in another order in the log than by their ids.
const COUNT: u64 = 4_000;

fn id_of(number: u64) -> String {
    format!("{:08x}", (number as u32).wrapping_mul(2_654_435_761))
}

async fn fill(env: &Env, db: &Database) {
    for first in (0..COUNT).step_by(500) {
        let edits = (first..first + 500).map(|number| edit(&id_of(number), None, 1_000, false)).collect();
        db.update_all(edits, Stage::Persisted).await.unwrap();
    }
    // What was written last is no longer in memory.
    env.clock.sleep(Duration::from_secs(10)).await;
    db.compact().await.unwrap();
    // The index is in its cache from here on.
    let mut documents = db.snapshot().documents((0..COUNT).map(id_of).collect(), false);
    while documents.next().await.unwrap().is_some() {}
}

/// The device's reads of some work, and how many of them were in flight on average.
async fn reads_of<F: Future<Output = u64>>(disk: &SimDisk, env: &Env, work: F) -> (u64, u64, f64) {
    let (before, start) = (disk.count_of(OperationKind::Read), env.clock.now());
    let rows = work.await;
    let reads = disk.count_of(OperationKind::Read) - before;
    let elapsed = env.clock.now() - start;
    (rows, reads, reads as f64 * READ_US as f64 / elapsed.as_micros() as f64)
}

/// Duration of each operation of the device.
const READ_US: u64 = 100;

#[test]
fn reads_ahead_are_in_flight_together() {
    let disk = SimDisk::new(5).short_reads(0.0).cached_reads(0.0).delays_us(READ_US..=READ_US);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let options = DatabasesOptions { ..DatabasesOptions::default() };
        let databases = Databases::open_with(env.clone(), Path::new("/data"), options).await.unwrap();
        let db: Arc<Database> = databases.create("db").await.unwrap();
        fill(&env, &db).await;
        let view = db.snapshot();
        let check = |name: &str, (rows, reads, depth): (u64, u64, f64), expected: u64, at_least: f64| {
            println!("{name}: {rows} rows, {reads} reads, {depth:.1} in flight");
            assert_eq!(rows, expected, "{name}");
            assert!(reads <= rows + rows / 20, "{name}: {reads} reads of {rows} rows");
            assert!(depth >= at_least, "{name}: {depth:.1} in flight, at least {at_least} expected");
        };
        let ids = |count: u64, random: &mut Random| -> Vec<String> {
            (0..count).map(|_| id_of(random.below(COUNT))).collect()
        };
        let listed = async |ids: Vec<String>| {
            let mut documents = view.documents(ids, true);
            let mut rows = 0;
            while documents.next().await.unwrap().is_some() {
                rows += 1;
            }
            rows
        };
        let mut random = Random(1);
        // One request of _bulk_get, or of _all_docs with keys, has all its reads in flight.
        check("100 ids", reads_of(&disk, &env, listed(ids(100, &mut random))).await, 100, 50.0);
        check("2,000 ids", reads_of(&disk, &env, listed(ids(2_000, &mut random))).await, 2_000, 100.0);
        let scanned = async |rows, limit| {
            let mut documents = view.read_ahead(rows, limit, None);
            let mut rows = 0;
            while documents.next().await.unwrap().is_some() {
                rows += 1;
            }
            rows
        };
        let all = || async { view.all_docs(&Range::default()).await.unwrap() };
        check("100 of a range", reads_of(&disk, &env, scanned(all().await, 100)).await, 100, 50.0);
        check("a whole range", reads_of(&disk, &env, scanned(all().await, u64::MAX)).await, COUNT, 64.0);
        let changes = view.changes(Seq(0), false);
        let (rows, reads, _) = reads_of(&disk, &env, scanned(changes, u64::MAX)).await;
        println!("changes: {rows} rows, {reads} reads");
        assert_eq!(rows, COUNT);
        assert!(reads < COUNT / 10, "neighbours are read together: {reads} reads");
    })
    .unwrap();
}

#[test]
fn without_memory_each_document_is_read_alone() {
    let sim = Sim::new(3);
    let env = sim.env();
    sim.run(async {
        let store = StoreLimits { read_ahead_bytes_max: 0, ..StoreLimits::default() };
        let options = DatabasesOptions { store, ..DatabasesOptions::default() };
        let databases = Databases::open_with(env.clone(), Path::new("/data"), options).await.unwrap();
        let db = databases.create("db").await.unwrap();
        let edits = (0..50).map(|number| edit(&id_of(number), None, 1_000, false)).collect();
        db.update_all(edits, Stage::Persisted).await.unwrap();
        check(&db.snapshot(), &mut Random(1), "without memory").await;
    })
    .unwrap();
}
