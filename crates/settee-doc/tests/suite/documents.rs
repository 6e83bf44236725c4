//! Goal: documents behave as in CouchDB, including revision trees and changes.
//! Method: in the simulation; single cases, and random edits compared with a model of the tree.

use std::collections::BTreeMap;
use std::path::Path;

use settee_doc::{
    Database, Databases, Edit, ErrorKind, Hash, Options, Range, Revision, RevisionId, Seq, Snapshot, Stage,
};
use settee_sim::{Sim, SimDisk, seeds};

use crate::common::{any_id, with_database};

fn edit(id: &str, revision: Option<Revision>, text: &str) -> Edit {
    let mut edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
    edit.id = id.into();
    edit.revision = edit.revision.or(revision);
    edit
}

async fn put(
    database: &Database,
    id: &str,
    revision: Option<Revision>,
    text: &str,
) -> settee_doc::Result<Revision> {
    database.update(edit(id, revision, text), Stage::Persisted).await
}

/// Runs a test on a new database.
async fn text_of(view: &Snapshot, id: &str) -> String {
    String::from_utf8(view.document(id).await.unwrap().body.to_vec()).unwrap()
}

fn kind<T: std::fmt::Debug>(result: settee_doc::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

async fn ids(view: &Snapshot, range: &Range) -> Vec<String> {
    let mut rows = view.all_docs(range).await.unwrap();
    let mut ids = Vec::new();
    while let Some(row) = rows.next().await.unwrap() {
        ids.push(row.id.to_owned());
    }
    ids
}

async fn changes(view: &Snapshot, since: Seq) -> Vec<(Seq, String, bool)> {
    let mut rows = view.changes(since, false);
    let mut changes = Vec::new();
    while let Some(row) = rows.next().await.unwrap() {
        changes.push((row.summary.seq, row.id.to_owned(), row.summary.deleted));
    }
    changes
}

#[test]
fn an_edit_must_name_the_leaf_that_it_replaces() {
    with_database(1, async |db| {
        let first = put(&db, "a", None, r#"{"n":1}"#).await.unwrap();
        assert_eq!(first.generation, 1);
        assert_eq!(kind(put(&db, "a", None, "{}").await), ErrorKind::Conflict);
        let second = put(&db, "a", Some(first.clone()), r#"{"n":2}"#).await.unwrap();
        assert_eq!(kind(put(&db, "a", Some(first.clone()), r#"{"n":2}"#).await), ErrorKind::Conflict);
        assert_eq!(kind(put(&db, "b", Some(first.clone()), "{}").await), ErrorKind::Conflict);
        assert_eq!(text_of(&db.snapshot(), "a").await, r#""n":2"#);
        // A revision that isn't a leaf has no body any more.
        assert_eq!(kind(db.snapshot().revision("a", &first, false).await), ErrorKind::NotFound);
        let latest = db.snapshot().revision("a", &first, true).await.unwrap();
        assert_eq!(latest[0].revision, second);
        assert_eq!(kind(put(&db, "_x", None, "{}").await), ErrorKind::IllegalDocId);
        assert_eq!(kind(put(&db, "", None, "{}").await), ErrorKind::IllegalDocId);
    });
}

#[test]
fn a_deleted_document_is_in_the_changes_and_can_be_recreated() {
    with_database(2, async |db| {
        let first = put(&db, "a", None, "{}").await.unwrap();
        let deleted = db.update(Edit::delete("a", Some(first.clone())), Stage::Persisted).await.unwrap();
        let view = db.snapshot();
        assert_eq!(view.document("a").await.unwrap_err().to_string(), "deleted");
        assert_eq!(view.document("b").await.unwrap_err().to_string(), "missing");
        assert_eq!((view.doc_count(), view.doc_del_count()), (0, 1));
        assert!(ids(&view, &Range::default()).await.is_empty());
        assert!(matches!(&changes(&view, Seq(0)).await[..], [(_, id, true)] if id == "a"));
        assert_eq!(kind(db.update(Edit::delete("a", None), Stage::Persisted).await), ErrorKind::Conflict);
        let back = put(&db, "a", None, r#"{"back":true}"#).await.unwrap();
        assert_eq!(back.generation, 3);
        let history = db.snapshot().history("a", &back).await.unwrap();
        assert_eq!(history, [back.id, deleted.id, first.id]);
        assert_eq!(changes(&db.snapshot(), view.update_seq()).await.len(), 1);
    });
}

#[test]
fn conflicts_are_kept_and_the_winner_is_couchdbs() {
    with_database(3, async |db| {
        let low = format!("2-{}", "1".repeat(32));
        let high = format!("2-{}", "f".repeat(32));
        let root = "0".repeat(32);
        let replica = |revision: &str, member: &str| {
            let hash = &revision[2..];
            let text =
                format!(r#"{{"_id":"a","_revisions":{{"start":2,"ids":["{hash}","{root}"]}},"{member}":1}}"#);
            Edit::parse(text.as_bytes(), &Options::default()).unwrap()
        };
        let edits = vec![replica(&high, "high"), replica(&low, "low"), replica(&high, "high")];
        let outcomes = db.replicate_all(edits, Stage::Persisted).await.unwrap();
        assert!(outcomes.iter().all(Result::is_ok));
        let view = db.snapshot();
        assert_eq!(text_of(&view, "a").await, r#""high":1"#);
        let leaves: Vec<_> =
            view.leaves("a").await.unwrap().iter().map(|leaf| leaf.revision.to_string()).collect();
        assert_eq!(leaves, [high.clone(), low.clone()]);
        assert!(view.find("a").await.unwrap().unwrap().has_conflicts);
        assert_eq!(view.pending(Seq(0)).await.unwrap(), 1);

        // Deleting the winner lets the other win; its body moves with it.
        let deleted =
            db.update(Edit::delete("a", Some(high.parse().unwrap())), Stage::Persisted).await.unwrap();
        let view = db.snapshot();
        assert_eq!(text_of(&view, "a").await, r#""low":1"#);
        assert_eq!(view.leaves("a").await.unwrap().len(), 2);
        assert!(view.leaves("a").await.unwrap()[1].deleted);
        assert_eq!(view.revision("a", &deleted, false).await.unwrap()[0].body, "");
        assert_eq!((view.doc_count(), view.doc_del_count()), (1, 0));
        // Both revisions are known to a replicator.
        let asked = [low.parse().unwrap(), high.parse().unwrap(), format!("4-{root}").parse().unwrap()];
        let (missing, ancestors) = view.missing("a", &asked).await.unwrap();
        assert_eq!(missing, asked[2..]);
        assert_eq!(ancestors.len(), 2);
    });
}

#[test]
fn one_request_sees_its_own_edits() {
    with_database(4, async |db| {
        let edits = vec![edit("a", None, "{}"), edit("a", None, r#"{"n":2}"#), edit("b", None, "{}")];
        let outcomes = db.update_all(edits, Stage::Persisted).await.unwrap();
        assert!(outcomes[0].is_ok() && outcomes[2].is_ok());
        assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(ids(&db.snapshot(), &Range::default()).await, ["a", "b"]);
    });
}

#[test]
fn local_documents_are_separate_and_never_conflict() {
    with_database(5, async |db| {
        let before = db.snapshot().update_seq();
        let put = async |text: &str| db.put_local(edit("_local/x", None, text), Stage::Persisted).await;
        assert_eq!(put(r#"{"n":1}"#).await.unwrap(), "0-1");
        assert_eq!(put(r#"{"n":2,"_rev":"0-1"}"#).await.unwrap(), "0-2");
        let (revision, body) = db.snapshot().local("x").await.unwrap();
        assert_eq!((revision.as_str(), &body[..]), ("0-2", &br#""n":2"#[..]));
        assert_eq!(db.snapshot().update_seq(), before);
        assert_eq!(db.snapshot().doc_count(), 0);
        assert_eq!(db.put_local(Edit::delete("_local/x", None), Stage::Persisted).await.unwrap(), "0-0");
        assert_eq!(kind(db.snapshot().local("x").await), ErrorKind::NotFound);
        assert_eq!(
            kind(db.put_local(Edit::delete("_local/x", None), Stage::Persisted).await),
            ErrorKind::NotFound
        );
        assert_eq!(kind(put(&format!(r#"{{"_rev":"1-{}"}}"#, "a".repeat(32))).await), ErrorKind::BadRequest);
    });
}

#[test]
fn ranges_are_scanned_both_ways_in_byte_order() {
    with_database(6, async |db| {
        for id in ["b", "a", "é", "A", "_design/x", "c"] {
            put(&db, id, None, "{}").await.unwrap();
        }
        let gone = put(&db, "bb", None, "{}").await.unwrap();
        db.update(Edit::delete("bb", Some(gone)), Stage::Persisted).await.unwrap();
        let view = db.snapshot();
        let range = |start: Option<&str>, end: Option<&str>| Range {
            start: start.map(Into::into),
            end: end.map(Into::into),
            ..Range::default()
        };
        assert_eq!(ids(&view, &Range::default()).await, ["A", "_design/x", "a", "b", "c", "é"]);
        assert_eq!(ids(&view, &range(Some("a"), Some("c"))).await, ["a", "b", "c"]);
        let exclusive = Range { exclusive_end: true, ..range(Some("a"), Some("c")) };
        assert_eq!(ids(&view, &exclusive).await, ["a", "b"]);
        let descending = Range { descending: true, ..range(Some("c"), Some("a")) };
        assert_eq!(ids(&view, &descending).await, ["c", "b", "a"]);
        let backwards =
            Range { descending: true, exclusive_end: true, skip: 1, ..range(Some("c"), Some("a")) };
        assert_eq!(ids(&view, &backwards).await, ["b"]);
        assert_eq!(ids(&view, &range(Some("c"), Some("a"))).await, [""; 0]);
        let skipping = Range { skip: 3, ..range(Some("a"), None) };
        assert_eq!(ids(&view, &skipping).await, ["é"]);
        assert_eq!(view.offset(&range(Some("b"), None)).await.unwrap(), 3);
        assert_eq!(view.offset(&Range { descending: true, ..range(Some("b"), None) }).await.unwrap(), 2);
        assert_eq!(view.offset(&Range { skip: 100, ..Range::default() }).await.unwrap(), 6);
    });
}

#[test]
fn a_snapshot_is_immutable_and_a_commit_wakes_subscribers() {
    let sim = Sim::new(7);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env.clone(), Path::new("/data")).await.unwrap();
        let db = databases.create("db").await.unwrap();
        put(&db, "a", None, "{}").await.unwrap();
        let view = db.snapshot();
        let follower = db.clone();
        let since = view.update_seq();
        let (done, woken) = tokio::sync::oneshot::channel();
        env.spawn("follower", async move {
            follower.changed_after(since).await.unwrap();
            done.send(changes(&follower.snapshot(), since).await).unwrap();
        });
        // A local document is not in the changes.
        db.put_local(edit("_local/x", None, "{}"), Stage::Persisted).await.unwrap();
        db.update(edit("b", None, "{}"), Stage::Accepted).await.unwrap();
        assert_eq!(woken.await.unwrap()[0].1, "b");
        assert_eq!(ids(&view, &Range::default()).await, ["a"]);

        let follower = db.clone();
        let since = db.snapshot().update_seq();
        let (done, woken) = tokio::sync::oneshot::channel();
        env.spawn("follower", async move { done.send(follower.changed_after(since).await).unwrap() });
        databases.delete("db").await.unwrap();
        assert_eq!(kind(woken.await.unwrap()), ErrorKind::NotFound);
        assert_eq!(kind(put(&db, "c", None, "{}").await), ErrorKind::NotFound);
    })
    .unwrap();
}

#[test]
fn databases_are_created_and_deleted_and_a_second_opener_is_refused() {
    let sim = Sim::new(8);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env.clone(), Path::new("/data")).await.unwrap();
        let refused = Databases::open(env.clone(), Path::new("/data")).await.err().unwrap();
        assert!(refused.to_string().contains("/data"), "{refused}");
        let first = databases.create("db").await.unwrap();
        put(&first, "a", None, "{}").await.unwrap();
        assert_eq!(kind(databases.create("db").await.map(drop)), ErrorKind::DatabaseExists);
        databases.create("a+b/c").await.unwrap();
        assert_eq!(databases.names(), ["a+b/c", "db"]);
        for name in ["", "A", "1", "_x", "a b", "a\u{e9}", "x.y", &"a".repeat(239)] {
            assert_eq!(
                kind(databases.create(name).await.map(drop)),
                ErrorKind::IllegalDatabaseName,
                "{name}"
            );
        }
        databases.delete("db").await.unwrap();
        assert_eq!(kind(databases.get("db").await.map(drop)), ErrorKind::NotFound);
        assert_eq!(kind(databases.delete("db").await), ErrorKind::NotFound);
        let second = databases.create("db").await.unwrap();
        assert_eq!(second.snapshot().doc_count(), 0);
        assert_ne!(second.created_us(), first.created_us());
        // A position of the first isn't valid in the second.
        let old = first.seq_text(Seq(5));
        assert_eq!(second.parse_since(&old).unwrap(), Seq(0));
        databases.close().await.unwrap();
        assert_eq!(kind(put(&second, "a", None, "{}").await), ErrorKind::Stopped);
    })
    .unwrap();
}

/// A model of one document's tree: each revision with its parent and whether it deletes.
#[derive(Default)]
struct Model {
    revisions: BTreeMap<Revision, (Option<Revision>, bool)>,
}

impl Model {
    /// CouchDB's order (`couch_doc:to_doc_info_path`): not deleted first, then the higher position, then the
    /// greater binary.
    fn leaves(&self) -> Vec<Revision> {
        let inner: Vec<_> = self.revisions.values().filter_map(|(parent, _)| parent.as_ref()).collect();
        let mut leaves: Vec<_> = self.revisions.keys().filter(|key| !inner.contains(key)).cloned().collect();
        let rank = |leaf: &Revision| (!self.revisions[leaf].1, leaf.generation, leaf.id.as_bytes().to_vec());
        leaves.sort_by_key(|leaf| std::cmp::Reverse(rank(leaf)));
        leaves
    }

    fn history(&self, revision: &Revision) -> Vec<RevisionId> {
        let mut history = vec![revision.id.clone()];
        let mut revision = revision;
        while let Some(parent) = &self.revisions[revision].0 {
            history.push(parent.id.clone());
            revision = parent;
        }
        history
    }
}

#[test]
fn random_edits_make_the_models_tree() {
    for seed in seeds(30) {
        with_database(seed, async |db| {
            let mut state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut random = move |below: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % below as u64) as usize
            };
            let mut model = Model::default();
            for step in 0..120 {
                let leaves = model.leaves();
                let all: Vec<_> = model.revisions.keys().cloned().collect();
                let deleted = random(8) == 0;
                let text = format!(r#"{{"step":{step},"_deleted":{deleted}}}"#);
                let interactive = random(3) > 0 && !leaves.is_empty();
                let (revision, parent) = if interactive {
                    let parent = leaves[random(leaves.len())].clone();
                    (put(&db, "doc", Some(parent.clone()), &text).await.unwrap(), Some(parent))
                } else {
                    // A replicated edit of any earlier revision, or of none.
                    let is_root = all.is_empty() || random(20) == 0;
                    let parent = if is_root { None } else { Some(all[random(all.len())].clone()) };
                    let generation = parent.as_ref().map_or(0, |parent| parent.generation) + 1;
                    let revision = Revision { generation, id: any_id(&mut random) };
                    let mut edit = edit("doc", Some(revision.clone()), &text);
                    edit.history = vec![revision.id.clone()];
                    edit.history.extend(parent.iter().flat_map(|parent| model.history(parent)));
                    // Some replicas know only the last part of the path.
                    if random(4) == 0 {
                        edit.history.truncate(1 + random(edit.history.len()).max(1));
                    }
                    db.replicate_all(vec![edit], Stage::Persisted).await.unwrap().pop().unwrap().unwrap();
                    (revision, parent)
                };
                model.revisions.insert(revision, (parent, deleted));
                let view = db.snapshot();
                let found: Vec<_> =
                    view.leaves("doc").await.unwrap().into_iter().map(|leaf| leaf.revision).collect();
                assert_eq!(found, model.leaves(), "seed={seed} step={step}");
                let winner = view.document_or_deleted("doc").await.unwrap().unwrap();
                assert_eq!(winner.revision, found[0], "seed={seed} step={step}");
                for leaf in &found {
                    let history = view.history("doc", leaf).await.unwrap();
                    assert_eq!(history, model.history(leaf), "seed={seed} step={step} leaf={leaf}");
                    let document = &view.revision("doc", leaf, false).await.unwrap()[0];
                    assert_eq!(document.deleted, model.revisions[leaf].1, "seed={seed} step={step}");
                }
                let (missing, _) = view.missing("doc", &all).await.unwrap();
                assert!(missing.is_empty(), "seed={seed} step={step}: {missing:?}");
            }
        });
    }
}

/// A replicated edit with its whole path: hashes of the generations from `start` down to `end`.
fn replica(id: &str, start: u32, end: u32, hash: impl Fn(u32) -> Hash, text: &str) -> Edit {
    let mut edit = edit(id, Some(Revision { generation: start, id: hash(start).into() }), text);
    edit.history = (end..=start).rev().map(|generation| hash(generation).into()).collect();
    edit
}

#[test]
fn a_replica_that_knows_more_of_the_path_lengthens_it() {
    with_database(9, async |db| {
        let hash = |generation: u32| [generation as u8; 16];
        db.replicate_all(vec![replica("a", 20, 15, hash, "{}")], Stage::Persisted).await.unwrap();
        db.replicate_all(vec![replica("a", 21, 1, hash, "{}")], Stage::Persisted).await.unwrap();
        let view = db.snapshot();
        let leaf = &view.leaves("a").await.unwrap()[0].revision;
        assert_eq!(view.history("a", leaf).await.unwrap().len(), 21);
        let old = Revision { generation: 10, id: hash(10).into() };
        assert_eq!(view.missing("a", &[old]).await.unwrap().0, []);
        // So an ancestor that arrives late is no conflict.
        db.replicate_all(vec![replica("a", 10, 10, hash, "{}")], Stage::Persisted).await.unwrap();
        assert_eq!(db.snapshot().leaves("a").await.unwrap().len(), 1);
    });
}

#[test]
fn large_documents_that_conflict_fit_a_batch() {
    with_database(10, async |db| {
        let text = |size: usize| format!(r#"{{"b":"{}"}}"#, "x".repeat(size));
        let options = Options::default();
        let large = options.document_bytes_max - 6;
        db.replicate_all(vec![replica("a", 1, 1, |_| [1; 16], &text(large))], Stage::Persisted)
            .await
            .unwrap();
        let mut edits: Vec<_> =
            (0..3).map(|index| replica(&format!("s{index}"), 1, 1, |_| [1; 16], &text(300_000))).collect();
        edits.push(replica("a", 1, 1, |_| [2; 16], &text(large)));
        let outcomes = db.replicate_all(edits, Stage::Persisted).await.unwrap();
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert_eq!(db.snapshot().leaves("a").await.unwrap().len(), 2);
    });
}

#[test]
fn positions_and_skips_at_the_end_of_their_range_work() {
    with_database(11, async |db| {
        put(&db, "a", None, "{}").await.unwrap();
        let last = db.seq_text(Seq(0)).replacen('0', &u64::MAX.to_string(), 1);
        assert_eq!(db.parse_since(&last).unwrap(), Seq(0), "past the end is the start");
        let since = Seq(u64::MAX);
        assert_eq!(db.snapshot().pending(since).await.unwrap(), 0);
        assert_eq!(changes(&db.snapshot(), since).await, []);
        let range = Range { start: Some("b".into()), skip: u64::MAX, ..Range::default() };
        assert_eq!(db.snapshot().offset(&range).await.unwrap(), 1);
        assert_eq!(ids(&db.snapshot(), &range).await, [""; 0]);
    });
}

/// A simulated disk with one closed database of a few documents.
fn closed_database(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env, Path::new("/data")).await.unwrap();
        let db = databases.create("db").await.unwrap();
        for index in 0..9 {
            put(&db, &format!("d{index}"), None, "{}").await.unwrap();
        }
        databases.close().await.unwrap();
    })
    .unwrap();
    disk
}

#[test]
fn a_damaged_catalogue_removes_no_files() {
    for at in [20, 560] {
        let disk = closed_database(1);
        disk.damage_file("/data/catalogue/0000000001.log", |bytes| bytes[at] ^= 1);
        let before = disk.read_file("/data/databases/0000000001/0000000001.log").unwrap();
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            if let Ok(databases) = Databases::open(env, Path::new("/data")).await {
                // A new database gets a directory of its own.
                let db = databases.create("other").await.unwrap();
                put(&db, "a", None, "{}").await.unwrap();
            }
        })
        .unwrap();
        assert_eq!(disk.read_file("/data/databases/0000000001/0000000001.log").unwrap(), before);
    }
}

#[test]
fn an_emptied_catalogue_is_not_a_new_one() {
    for length in [0, 100, 512] {
        let disk = closed_database(4);
        disk.damage_file("/data/catalogue/0000000001.log", |bytes| bytes.truncate(length));
        let before = disk.read_file("/data/databases/0000000001/0000000001.log").unwrap();
        // The second time, the remains of the catalogue are already set aside.
        for _ in 0..2 {
            let sim = Sim::with_disk(&disk);
            let opened = sim.run(Databases::open(sim.env(), Path::new("/data"))).unwrap();
            let error = opened.err().unwrap().to_string();
            assert!(error.contains("/data/databases") && error.contains("/data/catalogue"), "{error}");
        }
        assert_eq!(disk.read_file("/data/databases/0000000001/0000000001.log").unwrap(), before);
    }
}

#[test]
fn a_full_disk_lets_databases_be_deleted_after_a_restart_too() {
    let disk = closed_database(2);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env, Path::new("/data")).await.unwrap();
        let used: usize =
            disk.paths().iter().filter_map(|path| disk.read_file(path)).map(|bytes| bytes.len()).sum();
        let _full = disk.clone().capacity(Some(used as u64));
        databases.delete("db").await.unwrap();
        assert!(databases.names().is_empty());
    })
    .unwrap();
}

#[test]
fn a_database_opens_although_its_callers_leave_early() {
    let disk = closed_database(3).delays_us(10_000..=10_000);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env.clone(), Path::new("/data")).await.unwrap();
        for _ in 0..20 {
            let mut get = std::pin::pin!(databases.get("db"));
            let mut leave = env.clock.sleep(std::time::Duration::from_millis(45));
            let opened = std::future::poll_fn(|context| match get.as_mut().poll(context) {
                std::task::Poll::Ready(opened) => std::task::Poll::Ready(Some(opened.unwrap())),
                std::task::Poll::Pending => leave.as_mut().poll(context).map(|()| None),
            });
            if let Some(db) = opened.await {
                assert_eq!(db.snapshot().doc_count(), 9);
                return;
            }
        }
        panic!("20 callers of 45 ms each, and it is not open");
    })
    .unwrap();
}

#[test]
fn an_update_waits_for_a_part_of_a_large_one_and_both_are_whole() {
    with_database(31, |database| async move {
        let numbers = 0..5_000;
        let large: Vec<Edit> = numbers.clone().map(|n| edit(&format!("large-{n:04}"), None, "{}")).collect();
        let large = database.update_all(large, Stage::Persisted);
        let small = put(&database, "small", None, "{}");
        let (large, small) = tokio::join!(large, small);
        assert!(small.is_ok() && large.unwrap().iter().all(Result::is_ok));
        let ids: Vec<String> =
            changes(&database.snapshot(), Seq(0)).await.into_iter().map(|(_, id, _)| id).collect();
        let expected: Vec<String> = numbers.map(|n| format!("large-{n:04}")).collect();
        let at = ids.iter().position(|id| id == "small").unwrap();
        assert!(at <= 1_024, "it waited for {at} edits of the other request");
        assert_eq!([&ids[..at], &ids[at + 1..]].concat(), expected);
    });
}
