//! Goal: a leaf's path is complete wherever its tail is stored, and an update reads at most one record.
//! Method: in the simulation, documents are updated across the generations at which a tail ends, with the
//! database reopened in between; the device's reads of updates of documents that aren't in memory are counted.

use std::path::Path;
use std::sync::Arc;

use settee_doc::{Content, Database, Databases, Edit, NewAttachment, Options, Revision, RevisionId, Stage};
use settee_io::OperationKind;
use settee_sim::{Sim, SimDisk};

/// The size of bodies beside which a tail is in the meta.
const LARGE_BYTES: usize = 33 << 10;

fn edit(id: &str, revision: Option<Revision>, bytes: usize) -> Edit {
    let text = format!(r#"{{"rest":"{}"}}"#, "x".repeat(bytes));
    let mut edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
    (edit.id, edit.revision) = (id.into(), revision);
    edit
}

/// Opens the database of a disk, as after a restart, and closes it after the test.
fn reopened<F: Future<Output = ()>>(disk: &SimDisk, test: impl FnOnce(Arc<Database>) -> F) {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env, Path::new("/data")).await.unwrap();
        let db = match databases.get("db").await {
            Ok(db) => db,
            Err(_) => databases.create("db").await.unwrap(),
        };
        test(db).await;
        databases.close().await.unwrap();
    })
    .unwrap();
}

/// A document's paths as the test knows them, newest first.
struct Known {
    id: &'static str,
    bytes: usize,
    path: Vec<RevisionId>,
    /// A branch from the first revision.
    branch: Vec<RevisionId>,
}

impl Known {
    fn leaf(&self) -> Option<Revision> {
        Some(Revision { generation: self.path.len() as u32, id: self.path.first()?.clone() })
    }

    async fn check(&self, db: &Database) {
        let (view, case) = (db.snapshot(), format!("{} at generation {}", self.id, self.path.len()));
        let Some(leaf) = self.leaf() else { return };
        assert_eq!(view.history(self.id, &leaf).await.unwrap(), self.path, "{case}");
        let leaves = view.open_leaves(self.id).await.unwrap();
        assert_eq!(leaves.count(), 1 + usize::from(!self.branch.is_empty()), "{case}");
        let found = view.document_or_deleted(self.id).await.unwrap().unwrap();
        assert_eq!((&found.revision, found.body.len()), (&leaf, self.bytes + r#""rest":"""#.len()), "{case}");
        if !self.branch.is_empty() {
            let branch = Revision { generation: self.branch.len() as u32, id: self.branch[0].clone() };
            assert_eq!(view.history(self.id, &branch).await.unwrap(), self.branch, "{case}");
        }
        for (back, id) in self.path.iter().enumerate() {
            let ancestor = Revision { generation: (self.path.len() - back) as u32, id: id.clone() };
            let missing = view.missing(self.id, &[ancestor]).await.unwrap().0;
            assert_eq!(missing, [], "{case}");
        }
        let unknown = Revision { generation: leaf.generation, id: [1; 16].into() };
        assert_eq!(
            view.missing(self.id, std::slice::from_ref(&unknown)).await.unwrap().0,
            [unknown],
            "{case}"
        );
    }
}

#[test]
fn paths_are_complete_around_the_ends_of_tails() {
    let disk = SimDisk::new(11);
    let known = |id, bytes| Known { id, bytes, path: Vec::new(), branch: Vec::new() };
    let mut all = [known("small", 10), known("large", LARGE_BYTES), known("branched", 10)];
    for generation in [1, 2, 15, 16, 17, 31, 32, 33, 34, 48, 63, 64, 65, 96, 97] {
        reopened(&disk, async |db| {
            for one in &mut all {
                one.check(&db).await;
                while one.path.len() < generation {
                    let new = db.update(edit(one.id, one.leaf(), one.bytes), Stage::Accepted).await.unwrap();
                    one.path.insert(0, new.id);
                }
                if one.id == "branched" {
                    // It loses, since it has a generation less, or was stored before.
                    let root = one.path.last().unwrap().clone();
                    one.branch = (0..generation.max(2) - 2).map(|n| [n as u8 + 2; 16].into()).collect();
                    one.branch.push(root);
                    let mut branch = edit(one.id, None, one.bytes);
                    let newest = one.branch[0].clone();
                    branch.revision = Some(Revision { generation: one.branch.len() as u32, id: newest });
                    branch.history = one.branch.clone();
                    db.replicate_all(vec![branch], Stage::Accepted).await.unwrap().pop().unwrap().unwrap();
                }
                if one.branch.len() < 2 {
                    one.branch.clear();
                }
            }
            db.barrier().await.unwrap();
            for one in &all {
                one.check(&db).await;
            }
            if generation % 2 == 1 {
                db.compact().await.unwrap();
            }
            // Only the newest branch is to be compared.
            for one in all.iter_mut().filter(|one| !one.branch.is_empty()) {
                let branch = Revision { generation: one.branch.len() as u32, id: one.branch[0].clone() };
                db.purge(&[(one.id.into(), vec![branch])]).await.unwrap();
                one.branch.clear();
                one.check(&db).await;
            }
        });
    }
}

/// Number of documents of each kind.
const COUNT: usize = 40;

/// The kinds of documents: their ids begin with it.
const KINDS: [(&str, u32, usize); 6] = [
    ("new", 1, 10),
    ("tail", 3, 10),
    ("ended", 32, 10),
    ("after", 33, 10),
    ("large", 3, LARGE_BYTES),
    ("file", 3, 10),
];

fn with_attachment(mut edit: Edit) -> Edit {
    edit.attachments.push(NewAttachment {
        name: "a".into(),
        content_type: "text/plain".into(),
        revpos: None,
        content: Content::Inline(bytes::Bytes::from_static(b"attached")),
    });
    edit
}

#[test]
fn an_update_reads_at_most_the_record_that_it_replaces() {
    let disk = SimDisk::new(12).short_reads(0.0).cached_reads(0.0);
    let mut revisions: Vec<Vec<Option<Revision>>> = vec![vec![None; COUNT]; KINDS.len()];
    let id = |kind: &str, number: usize| format!("{kind}{number:04}");
    let make = |kind: &str, number: usize, revision: Option<Revision>, bytes: usize| {
        let new = edit(&id(kind, number), revision, bytes);
        if kind == "file" { with_attachment(new) } else { new }
    };
    reopened(&disk, async |db| {
        for ((kind, generation, bytes), revisions) in KINDS.iter().zip(&mut revisions) {
            for _ in 0..*generation {
                let edits = revisions.iter_mut().enumerate();
                let edits = edits.map(|(number, revision)| make(kind, number, revision.take(), *bytes));
                let made = db.update_all(edits.collect(), Stage::Persisted).await.unwrap();
                *revisions = made.into_iter().map(|revision| Some(revision.unwrap())).collect();
            }
        }
        db.compact().await.unwrap();
    });
    reopened(&disk, async |db| {
        db.compact().await.unwrap();
        // From here on the index is in its cache, and the block indexes of the segments are in memory.
        for reads_bodies in [false, true] {
            let all = KINDS.iter().flat_map(|(kind, ..)| (0..COUNT).map(|number| id(kind, number)));
            let mut documents = db.snapshot().documents(all.collect::<Vec<String>>(), reads_bodies);
            while documents.next().await.unwrap().is_some() {}
        }
        for ((kind, _, bytes), revisions) in KINDS.iter().zip(revisions) {
            let mut edits: Vec<Edit> = (0..COUNT)
                .zip(revisions)
                .map(|(number, revision)| edit(&id(kind, number), revision, *bytes))
                .collect();
            let mut reads = Vec::new();
            for together in [1, COUNT - 1] {
                let before = disk.count_of(OperationKind::Read);
                let made = db.update_all(edits.drain(..together).collect(), Stage::Persisted).await.unwrap();
                assert!(made.iter().all(Result::is_ok), "{kind}: {made:?}");
                reads.push(disk.count_of(OperationKind::Read) - before);
            }
            println!("{kind}: {reads:?} reads of one update, and of {} in bulk", COUNT - 1);
            let per_update = u64::from(matches!(*kind, "tail" | "after" | "file"));
            assert!(
                reads[0] <= per_update && reads[1] <= per_update * (COUNT as u64 - 1),
                "{kind}: {reads:?}"
            );
        }
    });
}
