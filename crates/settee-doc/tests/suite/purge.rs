//! Goal: purged data leaves no trace, whatever happens in between; other data stays complete; a purge
//! survives any power loss completely or not at all.
//! Method: in the simulation; single cases, live bytes compared with those of a database that never held the
//! purged data, and power losses at every sync of seeded runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use settee_doc::{Content, Database, Databases, Edit, NewAttachment, Options, Revision, Seq, Stage};
use settee_sim::{Sim, SimDisk, seeds};

fn with_databases<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Arc<Databases>) -> F) {
    let sim = Sim::new(seed);
    let env = sim.env();
    sim.run(async { test(Databases::open(env, Path::new("/data")).await.unwrap()).await }).unwrap();
}

fn edit(id: &str, revision: Option<Revision>, text: &str) -> Edit {
    let mut edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
    (edit.id, edit.revision) = (id.into(), revision);
    edit
}

/// A replicated edit: a revision and its path, named by digits.
fn replica(id: &str, generation: u32, path: &[u8]) -> Edit {
    let mut edit = edit(id, None, &format!(r#"{{"path":"{path:?}"}}"#));
    edit.history = path.iter().map(|digit| [*digit; 16].into()).collect();
    edit.revision = Some(rev(generation, path[0]));
    edit
}

fn rev(generation: u32, digit: u8) -> Revision {
    Revision { generation, id: [digit; 16].into() }
}

async fn replicate(db: &Database, edit: Edit) {
    db.replicate_all(vec![edit], Stage::Persisted).await.unwrap().pop().unwrap().unwrap();
}

async fn attach(db: &Database, id: &str, mut edit: Edit, name: &str, size: usize) -> Edit {
    let mut uploading = db.upload(id, "application/octet-stream", false, u64::MAX);
    let content: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
    uploading.write(&content).await.unwrap();
    let content = Content::Stored(uploading.finish(None).await.unwrap());
    let content_type = "application/octet-stream".to_owned();
    edit.attachments.push(NewAttachment { name: name.to_owned(), content_type, revpos: None, content });
    edit
}

async fn leaves(db: &Database, id: &str) -> Vec<Revision> {
    db.snapshot().leaves(id).await.unwrap().into_iter().map(|leaf| leaf.revision).collect()
}

async fn changed_ids(db: &Database, since: Seq) -> Vec<String> {
    let mut rows = db.snapshot().changes(since, false);
    let mut ids = Vec::new();
    while let Some(row) = rows.next().await.unwrap() {
        ids.push(row.id.to_owned());
    }
    ids
}

async fn purge_infos(db: &Database) -> Vec<(u64, String)> {
    let mut purges = db.snapshot().purges(0);
    let mut purge_infos = Vec::new();
    while let Some(purge) = purges.next().await.unwrap() {
        purge_infos.push((purge.number, String::from_utf8(purge.text.to_vec()).unwrap()));
    }
    purge_infos
}

/// Documents of every kind: a long history, conflicts, attachments small and of several chunks, a deleted
/// one.
async fn fill(db: &Database) {
    let mut last = None;
    for round in 0..70 {
        last = Some(
            db.update(edit("long", last, &format!("{{\"n\":{round}}}")), Stage::Accepted).await.unwrap(),
        );
    }
    let first = attach(db, "files", edit("files", None, "{}"), "big", 2_500_000).await;
    let first = db.update(attach(db, "files", first, "small", 100).await, Stage::Persisted).await.unwrap();
    let kept = db.snapshot().document("files").await.unwrap();
    assert_eq!(kept.revision, first);
    db.update(Edit::again(&kept), Stage::Persisted).await.unwrap();
    // A branch with its own attachments, and one that shares 40 ancestors with the winner.
    let branch = attach(db, "files", replica("files", 1, &[0xEE]), "other", 1_200_000).await;
    replicate(db, branch).await;
    let shared: Vec<u8> = (100..140).rev().collect();
    for digit in [1, 2] {
        replicate(db, replica("forked", 41, &[&[digit], &shared[..]].concat())).await;
    }
    let purged = db.update(edit("deleted", None, "{\"a\":1}"), Stage::Persisted).await.unwrap();
    db.update(Edit::delete("deleted", Some(purged)), Stage::Persisted).await.unwrap();
}

#[test]
fn purged_data_leaves_nothing_behind() {
    with_databases(1, async |databases| {
        let db = databases.create("db").await.unwrap();
        let never = databases.create("never").await.unwrap();
        fill(&db).await;
        assert!(db.info().active_bytes > 3_700_000);
        let mut requests = Vec::new();
        for id in ["long", "files", "forked", "deleted"] {
            requests.push((id.to_owned(), leaves(&db, id).await));
        }
        let purged = db.purge(&requests).await.unwrap();
        assert!(
            purged.iter().zip(&requests).all(|(purged, (_, asked))| purged == asked && !purged.is_empty())
        );
        let none = never.purge(&requests).await.unwrap();
        assert!(none.iter().all(Vec::is_empty));

        let (found, expected) = (db.info(), never.info());
        println!("{} bytes live, as in a database that never held it", found.active_bytes);
        assert_eq!(found.active_bytes, expected.active_bytes);
        assert_eq!((found.doc_count, found.doc_del_count, found.purge_seq), (0, 0, 4));
        assert!(changed_ids(&db, Seq(0)).await.is_empty());
        assert!(db.snapshot().find("long").await.unwrap().is_none());
        assert_eq!(purge_infos(&db).await, purge_infos(&never).await);

        // Replicated again, it exists as if for the first time.
        let shared: Vec<u8> = (100..140).rev().collect();
        replicate(&db, replica("forked", 41, &[&[1], &shared[..]].concat())).await;
        assert_eq!(leaves(&db, "forked").await, [rev(41, 1)]);
        assert_eq!(db.snapshot().history("forked", &rev(41, 1)).await.unwrap().len(), 41);
        let new = edit("long", None, "{}");
        assert_eq!(db.update(new, Stage::Persisted).await.unwrap().generation, 1);
    });
}

#[test]
fn a_purged_winner_leaves_the_next_leaf_complete() {
    with_databases(2, async |databases| {
        let db = databases.create("db").await.unwrap();
        let shared: Vec<u8> = (100..140).rev().collect();
        for digit in [1, 2, 3] {
            let new = replica("a", 41, &[&[digit], &shared[..]].concat());
            replicate(&db, attach(&db, "a", new, "file", 1_100_000 + usize::from(digit)).await).await;
        }
        replicate(&db, replica("b", 1, &[9])).await;
        let before = db.snapshot().update_seq();
        let purged = db.purge(&[("a".into(), vec![rev(41, 3), rev(40, 139)])]).await.unwrap();
        assert_eq!(purged, [vec![rev(41, 3)]], "an inner revision is no leaf");
        assert_eq!(leaves(&db, "a").await, [rev(41, 2), rev(41, 1)]);
        assert_eq!(changed_ids(&db, before).await, ["a"], "its new winner is a change");
        for digit in [2, 1] {
            let document = db.snapshot().revision("a", &rev(41, digit), false).await.unwrap().pop().unwrap();
            assert_eq!(db.snapshot().history("a", &rev(41, digit)).await.unwrap().len(), 41);
            let mut reader = db.snapshot().attachment("a", &document.attachments[0], None, true);
            let mut length = 0;
            while let Some(bytes) = reader.next().await.unwrap() {
                length += bytes.len();
            }
            assert_eq!(length, 1_100_000 + usize::from(digit));
        }
        // A loser is removed, and the winner has no conflicts any more.
        db.purge(&[("a".into(), vec![rev(41, 1)])]).await.unwrap();
        assert!(!db.snapshot().find("a").await.unwrap().unwrap().has_conflicts);
        assert_eq!((db.info().doc_count, db.info().purge_seq), (2, 2));
    });
}

#[test]
fn a_purge_of_a_missing_leaf_changes_nothing_and_is_recorded() {
    with_databases(3, async |databases| {
        let db = databases.create("db").await.unwrap();
        let first = db.update(edit("a", None, "{}"), Stage::Persisted).await.unwrap();
        let second = db.update(edit("a", Some(first.clone()), "{}"), Stage::Persisted).await.unwrap();
        let before = db.snapshot().update_seq();
        let purged = db
            .purge(&[("a".into(), vec![first.clone()]), ("none".into(), vec![first.clone()])])
            .await
            .unwrap();
        assert_eq!(purged, [vec![], vec![]]);
        assert_eq!((leaves(&db, "a").await, db.snapshot().update_seq()), (vec![second], before));
        let expected = |number, id: &str| (number, format!("{{\"id\":\"{id}\",\"revs\":[\"{first}\"]}}"));
        assert_eq!(purge_infos(&db).await, [expected(1, "a"), expected(2, "none")]);
        assert!(db.purge(&[(String::new(), vec![first.clone()])]).await.is_err());
    });
}

#[test]
fn purge_infos_are_limited() {
    with_databases(4, async |databases| {
        let db = databases.create("db").await.unwrap();
        let ask = |id: &str| (id.to_owned(), vec![rev(1, 1)]);
        db.purge(&["a", "b", "c", "d", "e"].map(ask)).await.unwrap();
        assert_eq!((purge_infos(&db).await.len(), db.purged_infos_limit()), (5, 1000));
        db.set_purged_infos_limit(2).await.unwrap();
        let numbers =
            |purge_infos: Vec<(u64, String)>| purge_infos.into_iter().map(|info| info.0).collect::<Vec<_>>();
        assert_eq!(numbers(purge_infos(&db).await), [4, 5]);
        db.purge(&["f", "g", "h"].map(ask)).await.unwrap();
        assert_eq!((numbers(purge_infos(&db).await), db.info().purge_seq), (vec![7, 8], 8));
        assert!(db.set_purged_infos_limit(0).await.is_err());
        drop(db);
        databases.close().await.unwrap();
    });
}

/// The leaves of each document, the number of purges, and the purge infos.
type State = (BTreeMap<String, Vec<Revision>>, u64, usize);

#[derive(Default)]
struct History {
    states: Vec<State>,
    acknowledged: usize,
}

async fn state(db: &Database) -> State {
    let mut documents = BTreeMap::new();
    for id in changed_ids(db, Seq(0)).await {
        let leaves = leaves(db, &id).await;
        for leaf in &leaves {
            db.snapshot().revision(&id, leaf, false).await.unwrap();
        }
        documents.insert(id, leaves);
    }
    let info = db.info();
    assert_eq!(info.doc_count + info.doc_del_count, documents.len() as u64);
    (documents, info.purge_seq, purge_infos(db).await.len())
}

/// Writes and purges, each of one document, recorded before it is requested.
async fn work(databases: Arc<Databases>, seed: u64, history: Arc<Mutex<History>>) {
    let mut random = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut below = |count: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % count
    };
    let db = databases.create("db").await.unwrap();
    let mut now: State = Default::default();
    history.lock().unwrap().states.push(now.clone());
    for step in 0..12u8 {
        let id = format!("doc{}", below(2));
        let known = now.0.get(&id).cloned().unwrap_or_default();
        let purged: Vec<Revision> = known.iter().filter(|_| below(3) > 0).cloned().collect();
        let new = rev(1, step + 1);
        let purges = !purged.is_empty() && below(2) == 0;
        let leaves = now.0.entry(id.clone()).or_default();
        if purges {
            leaves.retain(|leaf| !purged.contains(leaf));
            (now.1, now.2) = (now.1 + 1, now.2 + 1);
        } else {
            leaves.push(new);
            leaves.sort_by(|a, b| b.cmp(a));
        }
        now.0.retain(|_, leaves| !leaves.is_empty());
        history.lock().unwrap().states.push(now.clone());
        if purges {
            db.purge(&[(id, purged)]).await.unwrap();
        } else {
            let edit = attach(&db, &id, replica(&id, 1, &[step + 1]), "file", 70_000).await;
            replicate(&db, edit).await;
        }
        let mut history = history.lock().unwrap();
        history.acknowledged = history.states.len() - 1;
    }
}

#[test]
fn a_purge_is_atomic_under_power_loss() {
    let run = |disk: &SimDisk, seed: u64| {
        let history = Arc::new(Mutex::new(History::default()));
        let sim = Sim::with_disk(disk);
        let env = sim.env();
        sim.run(async {
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            work(databases.clone(), seed, history.clone()).await;
            databases.close().await.unwrap();
        });
        history
    };
    let (mut crash_count, mut purge_count) = (0, 0);
    for seed in seeds(20) {
        let whole = SimDisk::new(seed);
        let history = run(&whole, seed);
        purge_count += history.lock().unwrap().states.last().unwrap().1;
        for crash_at in 0..=whole.sync_count() {
            let disk = SimDisk::new(seed).crash_at_sync(crash_at);
            let history = run(&disk, seed);
            let case = format!("seed={seed} crash_at={crash_at}");
            let sim = Sim::with_disk(&disk.after_power_loss());
            let env = sim.env();
            let found = sim.run(async {
                let databases = Databases::open(env, Path::new("/data")).await.unwrap();
                match databases.names().is_empty() {
                    true => None,
                    false => Some(state(&databases.get("db").await.unwrap()).await),
                }
            });
            let history = history.lock().unwrap();
            match found.expect("no second power loss was planned") {
                None => assert!(history.states.is_empty(), "{case}: the database is purged"),
                Some(found) => {
                    let may_be = history.states.get(history.acknowledged..).unwrap_or_default();
                    let is_new = history.states.is_empty() && found == State::default();
                    assert!(is_new || may_be.contains(&found), "{case}: {found:?}");
                }
            }
            crash_count += 1;
        }
    }
    println!("{crash_count} power losses tried around {purge_count} purges");
    assert!(crash_count > 250 && purge_count > 25 || std::env::var_os("SETTEE_SEED").is_some());
}
