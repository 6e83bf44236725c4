//! Goal: a revision's id may be any text of up to 255 bytes, and long ids cost no more than their bytes.
//! Method: documents whose paths have short, long and mixed ids; what remains of them is counted.

use std::path::Path;

use settee_doc::{
    Database, Databases, Edit, ErrorKind, ID_SIZE_MAX, Options, REVISION_ID_SIZE_MAX, Revision, RevisionId,
    Stage,
};
use settee_sim::{Sim, SimDisk};

use crate::common::with_database;

fn parse(text: &str) -> Edit {
    Edit::parse(text.as_bytes(), &Options::default()).unwrap()
}

fn rev(text: &str) -> Revision {
    text.parse().unwrap()
}

/// A replicated edit; the first of the ids is the revision's own.
fn replica(id: &str, generation: u32, ids: &[RevisionId], members: &str) -> Edit {
    let mut edit = parse(members);
    edit.id = id.into();
    edit.revision = Some(Revision { generation, id: ids[0].clone() });
    edit.history = ids.to_vec();
    edit
}

async fn replicate(db: &Database, edit: Edit) -> Revision {
    db.replicate_all(vec![edit], Stage::Persisted).await.unwrap().pop().unwrap().unwrap()
}

async fn leaves(db: &Database, id: &str) -> Vec<String> {
    db.snapshot().leaves(id).await.unwrap().iter().map(|leaf| leaf.revision.to_string()).collect()
}

/// The longest id, with a number in front.
fn long(number: u32) -> RevisionId {
    RevisionId::parse(&format!("{number:-<REVISION_ID_SIZE_MAX$}")).unwrap()
}

/// A path of the longest ids, from a generation back to the first.
fn long_path(generation: u32) -> Vec<RevisionId> {
    (1..=generation).rev().map(long).collect()
}

#[test]
fn leaves_of_a_generation_are_ordered_by_bytes() {
    with_database(1, async |db| {
        // 16 bytes of a text are 32 hex digits, and so are ordered beside texts.
        let hex = "30".repeat(16);
        for revision in ["1-x", "1-0", "1-", "1-00", &format!("1-{hex}"), "2-a", "1-é", "1-X"] {
            replicate(&db, replica("a", rev(revision).generation, &[rev(revision).id], "{}")).await;
        }
        let mut deleted = replica("a", 9, &[rev("9-zz").id], "{}");
        deleted.deleted = true;
        replicate(&db, deleted).await;
        replicate(&db, replica("a", 1, &[rev("1-0000000000000000").id], "{}")).await;
        let zeros = format!("1-{hex}");
        assert_eq!(leaves(&db, "a").await, ["2-a", "1-é", "1-x", "1-X", &zeros, "1-00", "1-0", "1-", "9-zz"]);
        let missing = db.snapshot().missing("a", &[rev("1-é"), rev("1-y")]).await.unwrap().0;
        assert_eq!(missing, [rev("1-y")]);
    });
}

#[test]
fn an_update_of_a_text_makes_a_hash() {
    with_database(2, async |db| {
        replicate(&db, replica("a", 3, &[rev("3-c").id, rev("2-b").id, rev("1-a").id], "{}")).await;
        let update = |revision: &str| {
            let mut edit = parse(r#"{"n":2}"#);
            (edit.id, edit.revision) = ("a".into(), Some(rev(revision)));
            edit
        };
        let refused = db.update(update("2-b"), Stage::Persisted).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
        let new = db.update(update("3-c"), Stage::Persisted).await.unwrap();
        let text = new.to_string();
        assert!(text.starts_with("4-") && text.len() == 34, "{text}");
        let history = db.snapshot().history("a", &new).await.unwrap();
        assert_eq!(history[1..], ["c", "b", "a"].map(|id| RevisionId::parse(id).unwrap()));
        let zero = replica("b", 0, &[rev("0-x").id], "{}");
        let refused = db.replicate_all(vec![zero], Stage::Persisted).await.unwrap().pop().unwrap();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadRequest);
    });
}

#[test]
fn the_longest_ids_of_documents_and_revisions_are_stored_and_survive_a_restart() {
    let disk = SimDisk::new(3);
    let id = "d".repeat(ID_SIZE_MAX);
    let other = RevisionId::parse(&"z".repeat(REVISION_ID_SIZE_MAX)).unwrap();
    for is_first in [true, false] {
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            let db = match is_first {
                true => databases.create("db").await.unwrap(),
                false => databases.get("db").await.unwrap(),
            };
            if is_first {
                for generation in [15, 16, 17, 40] {
                    replicate(&db, replica(&id, generation, &long_path(generation), "{}")).await;
                }
                let path = [vec![other.clone()], long_path(39)].concat();
                replicate(&db, replica(&id, 40, &path, "{}")).await;
            }
            let found: Vec<Revision> =
                db.snapshot().leaves(&id).await.unwrap().into_iter().map(|leaf| leaf.revision).collect();
            let expected = [other.clone(), long(40)].map(|id| Revision { generation: 40, id });
            assert_eq!(found, expected);
            for leaf in &found {
                let history = db.snapshot().history(&id, leaf).await.unwrap();
                assert_eq!(history[1..], long_path(39));
                db.snapshot().revision(&id, leaf, false).await.unwrap();
            }
            // In the tree, too.
            db.compact().await.unwrap();
            assert_eq!(db.snapshot().leaves(&id).await.unwrap().len(), 2);
            drop(db);
            databases.close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn nothing_of_a_removed_path_of_long_ids_remains() {
    with_database(4, async |db| {
        replicate(&db, replica("other", 1, &[rev("1-x").id], "{}")).await;
        let before = db.info().active_bytes;
        for generation in [5, 16, 17, 20, 33] {
            let path = long_path(generation);
            let leaf = Revision { generation, id: path[0].clone() };
            replicate(&db, replica("a", generation, &path, "{}")).await;
            // Other leaves, which lose and win.
            for own in [RevisionId::parse("!").unwrap(), RevisionId::parse("~").unwrap()] {
                let path = [&[own], &path[1..]].concat();
                replicate(&db, replica("a", generation, &path, "{}")).await;
            }
            assert_eq!(db.snapshot().history("a", &leaf).await.unwrap(), path);
            let all = db.snapshot().leaves("a").await.unwrap().into_iter().map(|leaf| leaf.revision);
            let purged = db.purge(&[("a".into(), all.collect())]).await.unwrap();
            assert_eq!(purged[0].len(), 3);
        }
        let mut counted = db.info().active_bytes;
        // Only the purge infos remain, and the counter.
        let mut purges = db.snapshot().purges(0);
        while let Some(purge) = purges.next().await.unwrap() {
            counted -= purge.text.len() as u64;
        }
        assert!(counted < before + 5 * 64 + 128, "{counted} after {before}");
    });
}

#[test]
fn an_update_after_long_ids_stores_them_once() {
    with_database(5, async |db| {
        let leaf = replicate(&db, replica("a", 20, &long_path(20), "{}")).await;
        let with_long = db.info().active_bytes;
        let mut last = leaf.clone();
        for _ in 0..40 {
            let mut edit = parse("{}");
            (edit.id, edit.revision) = ("a".into(), Some(last));
            last = db.update(edit, Stage::Persisted).await.unwrap();
        }
        let history = db.snapshot().history("a", &last).await.unwrap();
        assert_eq!(history.len(), 60);
        assert_eq!(history[40..], long_path(20));
        // The long ids are stored once, each with its size, whatever chunks they are in.
        let after = db.info().active_bytes;
        assert!(after < with_long + 60 * 17 + 512, "{after} after {with_long}");
    });
}
