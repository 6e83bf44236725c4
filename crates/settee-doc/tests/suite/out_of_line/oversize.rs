//! Goal: a document whose body doesn't fit its leaf's record is one like any other: in every kind of leaf, after
//! a reopening, a compaction, a backup and a purge; nothing of it remains after its leaf; no power loss leaves
//! a part of it.
//! Method: a log of small batches, so that bodies of about a mebibyte don't fit. Seeded edits with bodies around
//! each limit, compared with a model; power losses at every sync.

use std::pin::pin;
use std::task::Poll;

use settee_doc::{LogOptions, restore};

use super::*;

/// The size of batches, and the largest body in a leaf's record: half of a batch less four keys of 8 KiB.
const BATCH_BYTES: usize = 2 << 20;
const LEAF_BYTES_MAX: usize = BATCH_BYTES / 2 - (32 << 10);

fn options() -> DatabasesOptions {
    let log = LogOptions { batch_bytes_max: BATCH_BYTES, ..LogOptions::DEFAULT };
    DatabasesOptions { log, ..DatabasesOptions::default() }
}

async fn open(env: &Env) -> Arc<Databases> {
    Databases::open_with(env.clone(), Path::new("/data"), options()).await.unwrap()
}

/// A document's text whose body has `bytes` bytes. No two of its chunks are equal.
fn text_of(bytes: usize, random: &mut Random) -> String {
    let frame = r#""filler":"""#.len();
    let mut filler = random.letters(4001).repeat(bytes / 4001 + 1);
    filler.truncate(bytes - frame);
    format!(r#"{{"filler":"{filler}"}}"#)
}

/// A size around each limit and the multiples of a chunk, or a small one.
fn size(random: &mut Random) -> usize {
    let limits = [LEAF_BYTES_MAX, LEAF_BYTES_MAX / 2, CHUNK_BYTES, 2 * CHUNK_BYTES];
    match random.below(6) {
        0 => 20,
        1 => 2 * CHUNK_BYTES + 1000 + random.below(CHUNK_BYTES),
        _ => limits[random.below(limits.len())] - 1 + random.below(3),
    }
}

/// The leaves of the documents: revision, deletion, body.
type Model = BTreeMap<String, Vec<(Revision, bool, String)>>;

fn body_of(edit: &Edit) -> String {
    String::from_utf8(edit.body().to_vec()).unwrap()
}

async fn compare(database: &Database, model: &Model, case: &str) {
    let view = database.snapshot();
    let mut ahead = view.read_ahead(view.changes(Seq(0), false), u64::MAX, None);
    let mut count = 0;
    while let Some(row) = ahead.next().await.unwrap() {
        let id = row.key;
        let winner = view.read_winner(&id, row.winner.unwrap()).await.unwrap();
        assert_eq!(view.document_or_deleted(&id).await.unwrap().unwrap(), winner, "{case}");
        let leaves = view.open_leaves(&id).await.unwrap();
        let mut found = Vec::new();
        for index in 0..leaves.count() {
            let document = leaves.document(index).await.unwrap();
            assert_eq!(view.revision(&id, &document.revision, false).await.unwrap()[0], document, "{case}");
            let Document { revision, deleted, body, .. } = whole(&view, document).await;
            found.push((revision, deleted, String::from_utf8(body.to_vec()).unwrap()));
        }
        assert_eq!(found[0].0, winner.revision, "{case}");
        let mut expected = model[&id].clone();
        found.sort();
        expected.sort();
        assert!(found == expected, "{id}: {case}");
        count += 1;
    }
    assert_eq!(count, model.len(), "{case}");
}

/// Makes an edit of a random kind on both.
async fn change(database: &Database, model: &mut Model, random: &mut Random, number: usize) {
    let id = format!("doc{}", random.below(3));
    let leaves = model.entry(id.clone()).or_default();
    let parent = (!leaves.is_empty()).then(|| random.below(leaves.len()));
    let parent_revision = parent.map(|parent| leaves[parent].0.clone());
    let bytes = size(random);
    let mut edit = edit(&id, parent_revision.clone(), &text_of(bytes, random));
    let kind = random.below(8);
    match (kind, parent) {
        (0, Some(parent)) => {
            let purged = database.purge(&[(id.clone(), vec![leaves[parent].0.clone()])]).await.unwrap();
            assert_eq!(purged[0].len(), 1);
            leaves.remove(parent);
        }
        (1 | 2, _) => {
            let mut hash = [random.next() as u8; 16];
            hash[1] = number as u8;
            let revision = Revision { generation: 1 + random.below(3) as u32, id: hash.into() };
            (edit.revision, edit.history) = (Some(revision.clone()), vec![hash.into()]);
            leaves.push((revision.clone(), false, body_of(&edit)));
            let outcomes = database.replicate_all(vec![edit], Stage::Persisted).await.unwrap();
            assert!(outcomes[0].as_ref().is_ok_and(|found| *found == revision), "{outcomes:?}");
        }
        (3, Some(parent)) => {
            // A conflict beside an edit that is made.
            let mut refused = edit.clone();
            refused.revision = Some(Revision { generation: 77, id: [7; 16].into() });
            edit.deleted = true;
            let body = body_of(&edit);
            let outcomes = database.update_all(vec![refused, edit], Stage::Persisted).await.unwrap();
            assert_eq!(outcomes[0].as_ref().unwrap_err().kind(), ErrorKind::Conflict);
            leaves[parent] = (outcomes[1].as_ref().unwrap().clone(), true, body);
        }
        _ => {
            if kind == 4 {
                let with_attachment = format!(
                    r#"{{"_attachments":{{"a":{{"content_type":"image/png","data":"aGVsbG8="}}}},{}}}"#,
                    body_of(&edit)
                );
                edit = super::edit(&id, parent_revision, &with_attachment);
            }
            let body = body_of(&edit);
            let revision = database.update(edit, Stage::Persisted).await.unwrap();
            match parent {
                Some(parent) => leaves[parent] = (revision, false, body),
                None => leaves.push((revision, false, body)),
            }
        }
    }
    if leaves.is_empty() {
        model.remove(&id);
    }
}

#[test]
fn oversize_bodies_are_those_of_a_model() {
    let mut large_count = 0;
    for seed in seeds(4) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut databases = open(&env).await;
            let mut database = databases.create("db").await.unwrap();
            let (mut model, mut random) = (Model::new(), Random::new(seed));
            for number in 0..40 {
                change(&database, &mut model, &mut random, number).await;
                let case = format!("seed={seed} number={number}");
                match number % 10 {
                    3 => {
                        database.compact().await.unwrap();
                        compare(&database, &model, &case).await;
                    }
                    7 => {
                        databases.close().await.unwrap();
                        drop((database, databases));
                        databases = open(&env).await;
                        database = databases.get("db").await.unwrap();
                        compare(&database, &model, &case).await;
                    }
                    9 => compare(&database, &model, &case).await,
                    _ => {}
                }
            }
            // The next update removes what the last one left.
            let last = database.update(Edit::empty("last"), Stage::Persisted).await.unwrap();
            database.purge(&[("last".to_owned(), vec![last])]).await.unwrap();
            let leaves = || model.values().flatten();
            let bodies: usize = leaves().map(|(_, _, body)| body.len()).sum();
            let most = bodies as u64 + (20 + leaves().count() as u64) * SMALL_BYTES;
            assert!(live(&database) <= most, "seed={seed}: {} of {most} bytes", live(&database));
            large_count += leaves().filter(|(_, _, body)| body.len() > CHUNK_BYTES).count();
            databases.backup(Path::new("/backup"), &[]).await.unwrap();
            databases.close().await.unwrap();
            restore(&env, Path::new("/backup"), Path::new("/restored")).await.unwrap();
            let restored = Databases::open(env.clone(), Path::new("/restored")).await.unwrap();
            compare(&restored.get("db").await.unwrap(), &model, &format!("seed={seed} restored")).await;
            restored.close().await.unwrap();
        })
        .unwrap();
    }
    println!("{large_count} bodies of several chunks at the end");
    assert!(large_count > 5 || std::env::var_os("SETTEE_SEED").is_some());
}

#[test]
fn a_local_document_that_fits_no_record_is_refused() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let databases = open(&env).await;
        let database = databases.create("db").await.unwrap();
        let mut random = Random::new(1);
        let local = edit("_local/a", None, &text_of(LEAF_BYTES_MAX, &mut random));
        assert_eq!(database.put_local(local, Stage::Persisted).await.unwrap(), "0-1");
        let local = edit("_local/a", None, &text_of(LEAF_BYTES_MAX + 1, &mut random));
        let refused = database.put_local(local, Stage::Persisted).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        assert_eq!(database.snapshot().local("a").await.unwrap().1.len(), LEAF_BYTES_MAX);
        databases.close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_document_of_64_mib_is_stored_and_one_byte_more_is_refused() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env.clone(), Path::new("/data")).await.unwrap();
        let database = databases.create("db").await.unwrap();
        let limit = settee_doc::DOCUMENT_BYTES_LIMIT;
        let options = Options { document_bytes_max: usize::MAX, ..Options::default() };
        let text = |bytes: usize| format!(r#"{{"filler":"{}"}}"#, "x".repeat(bytes - 11));
        let refused = Edit::parse(text(limit + 1).as_bytes(), &options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        let mut edit = Edit::parse(text(limit).as_bytes(), &options).unwrap();
        edit.id = "doc".to_owned();
        let body = edit.body();
        database.update(edit, Stage::Persisted).await.unwrap();
        let view = database.snapshot();
        let document = view.document("doc").await.unwrap();
        assert_eq!(document.body_size(), limit as u64);
        assert!(whole(&view, document).await.body == body);
        databases.close().await.unwrap();
    })
    .unwrap();
}

/// Oversize documents: created, replaced, refused, and broken off by their clients.
async fn work(env: &Env, seed: u64, history: &Mutex<History>) {
    let databases = open(env).await;
    let database = databases.create("db").await.unwrap();
    let mut random = Random::new(seed);
    let mut revisions = BTreeMap::new();
    for number in 0..8 {
        let id = format!("doc{}", random.below(3));
        let bytes = [LEAF_BYTES_MAX + 1, CHUNK_BYTES + 70_000, 2 * CHUNK_BYTES + 1][random.below(3)];
        let text = text_of(bytes, &mut random);
        let mut edit = edit(&id, revisions.get(&id).cloned(), &text);
        match random.below(4) {
            0 => {
                edit.revision = Some(Revision { generation: 1000, id: [number; 16].into() });
                let refused = database.update(edit, Stage::Persisted).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Conflict);
            }
            1 => {
                // Its last chunk isn't written yet.
                let mut update = pin!(database.update(edit, Stage::Persisted));
                for _ in 0..1 + bytes / CHUNK_BYTES / 2 {
                    let polled = std::future::poll_fn(|context| Poll::Ready(update.as_mut().poll(context)));
                    assert!(polled.await.is_pending());
                }
            }
            _ => {
                ask(history, &id, text);
                revisions.insert(id.clone(), database.update(edit, Stage::Persisted).await.unwrap());
                acknowledge(history, &id);
            }
        }
    }
    databases.close().await.unwrap();
}

#[test]
fn a_power_loss_leaves_an_oversize_document_whole_or_nothing_of_it() {
    try_power_losses(3, work);
}
