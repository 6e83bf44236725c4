//! Goal: a revision that isn't a leaf any more is read as it was, or is missing; which of them it is, a search for
//! all ancestors tells too. It is missing after a purge of its document and after a requested compaction, and
//! otherwise available until its segment is rewritten.
//! Method: random updates, branches, deletions, purges, compactions and reopenings of a database with small
//! segments, compared with a model that keeps every revision; power losses at every sync of a run.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use settee_doc::{
    Content, Database, Databases, DatabasesOptions, Document, Edit, ErrorKind, LogOptions, Matched,
    NewAttachment, Options, Revision, Snapshot, Stage, StoreLimits,
};
use settee_io::Env;
use settee_sim::{Sim, SimDisk, seeds};

use crate::common::any_id;

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }
}

fn edit(id: &str, revision: Option<&Revision>, text: &str) -> Edit {
    let mut edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
    (edit.id, edit.revision) = (id.into(), revision.cloned());
    edit
}

async fn attach(db: &Database, edit: &mut Edit, content: &[u8]) {
    let mut uploading = db.upload(&edit.id, "image/png", false, u64::MAX);
    uploading.write(content).await.unwrap();
    let content = Content::Stored(uploading.finish(None).await.unwrap());
    let (name, content_type) = ("file".to_owned(), "image/png".to_owned());
    edit.attachments.push(NewAttachment { name, content_type, revpos: None, content });
}

async fn content(view: &Snapshot, document: &Document) -> Option<Vec<u8>> {
    let mut reader = view.attachment(&document.id, document.attachments.first()?, None, true);
    let mut content = Vec::new();
    while let Some(bytes) = reader.next().await.unwrap() {
        content.extend_from_slice(&bytes);
    }
    Some(content)
}

async fn available(view: &Snapshot, id: &str, revision: &Revision) -> Option<Document> {
    match view.available_revision(id, revision).await {
        Ok(document) => Some(view.read_whole(document).await.unwrap()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            None
        }
    }
}

/// A stored revision.
#[derive(Debug, Clone)]
struct Stored {
    body: String,
    deleted: bool,
    file: Option<Vec<u8>>,
    /// The step that replaced it.
    replaced_at: Option<usize>,
}

/// A document: all that it ever had.
#[derive(Default)]
struct Model {
    /// The complete paths of the leaves, newest first.
    leaves: Vec<Vec<Revision>>,
    /// The bodies of the revisions in the tree.
    stored: HashMap<Revision, Stored>,
    /// All revisions, purged ones too.
    known: Vec<Revision>,
    /// The paths of purged leaves.
    purged: Vec<Vec<Revision>>,
    purged_at: usize,
}

impl Model {
    fn has(&self, revision: &Revision) -> bool {
        self.leaves.iter().any(|path| path.contains(revision))
    }

    fn add(&mut self, path: Vec<Revision>, stored: Stored, step: usize) {
        for leaf in self.leaves.iter().map(|leaf| &leaf[0]).filter(|leaf| path.contains(leaf)) {
            self.stored.get_mut(leaf).unwrap().replaced_at = Some(step);
        }
        self.leaves.retain(|leaf| !path.contains(&leaf[0]));
        self.known.extend(
            path.iter().filter(|revision| !self.known.contains(revision)).cloned().collect::<Vec<_>>(),
        );
        self.stored.insert(path[0].clone(), stored);
        self.leaves.push(path);
    }

    fn purge(&mut self, index: usize, step: usize) {
        self.purged.push(self.leaves.swap_remove(index));
        self.purged_at = step;
        let stored = std::mem::take(&mut self.stored);
        self.stored = stored.into_iter().filter(|(revision, _)| self.has(revision)).collect();
    }

    /// Whether the attachment of a revision is one of a leaf's, and so still stored.
    fn has_file(&self, stored: &Stored) -> bool {
        stored.file.is_none() || self.leaves.iter().any(|leaf| self.stored[&leaf[0]].file == stored.file)
    }
}

struct Run {
    env: Env,
    options: DatabasesOptions,
    databases: Arc<Databases>,
    /// `None` while the databases are closed.
    db: Option<Arc<Database>>,
    random: Random,
    models: HashMap<String, Model>,
    step: usize,
    compacted_at: usize,
    case: String,
    available: usize,
    missing: usize,
}

impl Run {
    fn db(&self) -> Arc<Database> {
        self.db.clone().expect("the databases are open")
    }

    /// A body, and the file that is attached to it.
    fn new_content(&mut self) -> (String, Option<Vec<u8>>) {
        let (step, size) = (self.step, [20, 200, 3_000][self.random.below(3)]);
        let file = (self.random.below(4) == 0).then(|| format!("{step}").repeat(size / 8 + 1).into_bytes());
        (format!("\"n\":{step},\"text\":\"{}\"", "x".repeat(size)), file)
    }

    async fn update(&mut self, id: &str) {
        let (body, mut file) = self.new_content();
        let model = &self.models[id];
        let parent = match model.leaves.len() {
            0 => None,
            count => Some(model.leaves[self.random.below(count)].clone()),
        };
        let mut new = edit(id, parent.as_ref().map(|path| &path[0]), &format!("{{{body}}}"));
        new.deleted = parent.is_some() && self.random.below(6) == 0;
        let inherited = parent.as_ref().and_then(|path| model.stored[&path[0]].file.clone());
        match (&file, inherited) {
            (Some(file), _) => attach(&self.db(), &mut new, file).await,
            (None, Some(inherited)) if self.random.below(2) == 0 => {
                let (name, content_type) = ("file".to_owned(), "image/png".to_owned());
                let stub = Content::Stub(None);
                new.attachments.push(NewAttachment { name, content_type, revpos: None, content: stub });
                file = Some(inherited);
            }
            (None, _) => {}
        }
        let stored = Stored { body, deleted: new.deleted, file, replaced_at: None };
        if self.random.below(8) == 0 {
            self.db().write_large_bodies(std::slice::from_mut(&mut new), false).await.unwrap();
        }
        let revision = self.db().update(new, Stage::Persisted).await.unwrap();
        let path = [vec![revision], parent.unwrap_or_default()].concat();
        self.models.get_mut(id).unwrap().add(path, stored, self.step);
    }

    /// Replicates a branch of a path that the tree has or had, or a purged leaf with another body.
    async fn replicate(&mut self, id: &str) {
        let model = &self.models[id];
        let paths: Vec<&Vec<Revision>> = model.leaves.iter().chain(&model.purged).collect();
        let mut path = match paths.len() {
            0 => Vec::new(),
            count => paths[self.random.below(count)].clone(),
        };
        path.drain(..self.random.below(path.len().min(6) + 1));
        let is_again = !path.is_empty() && !model.has(&path[0]) && self.random.below(2) == 0;
        for _ in 0..if is_again { 0 } else { 1 + self.random.below(3) } {
            let generation = path.len() as u32 + 1;
            path.insert(0, Revision { generation, id: any_id(&mut |count| self.random.below(count)) });
        }
        let (body, file) = self.new_content();
        let mut new = edit(id, Some(&path[0]), &format!("{{{body}}}"));
        new.history = path.iter().map(|revision| revision.id.clone()).collect();
        new.deleted = self.random.below(6) == 0;
        if let Some(file) = &file {
            attach(&self.db(), &mut new, file).await;
        }
        let stored = Stored { body, deleted: new.deleted, file, replaced_at: None };
        self.db().replicate_all(vec![new], Stage::Persisted).await.unwrap().pop().unwrap().unwrap();
        self.models.get_mut(id).unwrap().add(path, stored, self.step);
    }

    async fn purge(&mut self, id: &str) {
        let model = self.models.get_mut(id).unwrap();
        let is_whole = self.random.below(2) == 0;
        let mut asked = Vec::new();
        while !model.leaves.is_empty() && (asked.is_empty() || is_whole) {
            let index = self.random.below(model.leaves.len());
            asked.push(model.leaves[index][0].clone());
            model.purge(index, self.step);
        }
        if !asked.is_empty() {
            assert_eq!(self.db().purge(&[(id.to_owned(), asked.clone())]).await.unwrap(), [asked]);
        }
    }

    async fn make_step(&mut self) {
        self.step += 1;
        let id = ["a", "b"][self.random.below(2)];
        match self.random.below(24) {
            0 | 1 => self.purge(id).await,
            2..=6 => self.replicate(id).await,
            7 => {
                self.db().compact().await.unwrap();
                self.compacted_at = self.step;
            }
            8 => self.env.clock.sleep(Duration::from_secs(2)).await,
            9 => {
                self.db = None;
                self.databases.close().await.unwrap();
                // A handle of the databases holds the lock of its directory.
                self.databases = Databases::open(self.env.clone(), Path::new("/other")).await.unwrap();
                let options = self.options;
                let opened = Databases::open_with(self.env.clone(), Path::new("/data"), options).await;
                self.databases.close().await.unwrap();
                self.databases = opened.unwrap();
                self.db = Some(self.databases.get("db").await.unwrap());
            }
            10 | 11 => {
                // Fills segments.
                for _ in 0..self.random.below(8) {
                    let known = self.db().snapshot().find("filler").await.unwrap();
                    let text = format!("{{\"filler\":\"{}\"}}", "y".repeat(4_000));
                    let new = edit("filler", known.as_ref().map(|known| &known.revision), &text);
                    self.db().update(new, Stage::Persisted).await.unwrap();
                }
            }
            _ => self.update(id).await,
        }
    }

    /// Compares all revisions of a document, and what a search for all of them tells.
    async fn check(&mut self, id: &str) {
        let (view, model) = (self.db().snapshot(), &self.models[id]);
        let keeps_all = self.options.store.garbage_percent_max == 100;
        let leaves = view.open_leaves(id).await.unwrap();
        let matched = leaves.find(&model.known, false, &mut view.replaced_revisions()).await.unwrap();
        let mut found = HashMap::new();
        for (revision, matched) in model.known.iter().zip(matched) {
            let case = format!("{} step={} {id} {revision}", self.case, self.step);
            let document = available(&view, id, revision).await;
            let is_leaf = model.leaves.iter().any(|leaf| leaf[0] == *revision);
            match matched {
                Matched::Leaf(_) => assert!(is_leaf, "{case}"),
                Matched::Replaced(replaced) => {
                    assert!(!is_leaf && replaced.revision == *revision, "{case}");
                    assert_eq!(
                        leaves.replaced_document(&replaced).await.unwrap().body.len(),
                        document.as_ref().unwrap().body.len()
                    );
                }
                Matched::Missing(_) => assert_eq!(document, None, "{case}"),
            }
            let stored = model.stored.get(revision).filter(|_| model.has(revision));
            let may_be_found = stored.filter(|stored| {
                stored.replaced_at.is_none_or(|step| step > self.compacted_at && step > model.purged_at)
            });
            match (document, may_be_found) {
                (Some(document), Some(stored)) => {
                    assert_eq!(document.body, stored.body, "{case}");
                    assert_eq!((&document.revision, document.deleted), (revision, stored.deleted), "{case}");
                    assert_eq!(content(&view, &document).await, stored.file, "{case}");
                    self.available += usize::from(!is_leaf);
                    found.insert(revision.clone(), document.deleted);
                }
                (Some(_), None) => panic!("{case}: it was purged or compacted"),
                (None, Some(stored)) => {
                    assert!(!is_leaf, "{case}");
                    assert!(!keeps_all || !model.has_file(stored), "{case}: it is missing");
                    self.missing += 1;
                }
                (None, None) => self.missing += 1,
            }
        }
        for (index, leaf) in leaves.iter().enumerate() {
            let (history, mut search) = (leaves.history(index).await.unwrap(), view.replaced_revisions());
            let older = leaves.replaced_ancestors(&leaf.revision, &history, &mut search).await.unwrap();
            let path = model.leaves.iter().find(|path| path[0] == leaf.revision).unwrap();
            assert_eq!(older.len() + 1, path.len());
            for (revision, older) in path[1..].iter().zip(older) {
                let deleted = older.map(|older| older.deleted);
                assert_eq!(
                    deleted,
                    found.get(revision).copied(),
                    "{} step={} {revision}",
                    self.case,
                    self.step
                );
            }
        }
    }
}

fn options(garbage_percent_max: u64, replaced_segments_max: usize) -> DatabasesOptions {
    let log = LogOptions { segment_bytes_min: 8 << 10, ..LogOptions::DEFAULT };
    // Checkpoints begin often.
    let index_memory_bytes_max = 16 << 10;
    let store = StoreLimits {
        garbage_percent_max,
        garbage_idle_percent_max: garbage_percent_max,
        replaced_segments_max,
        index_memory_bytes_max,
        ..StoreLimits::default()
    };
    DatabasesOptions { log, store, ..DatabasesOptions::default() }
}

#[test]
fn a_replaced_revision_is_read_as_it_was_or_is_missing() {
    let (mut available, mut missing) = (0, 0);
    for seed in seeds(16) {
        // Compaction in the background or none, and many segments or few.
        let options =
            [options(100, 1_000), options(10, 1_000), options(30, 2), options(100, 1_000)][seed as usize % 4];
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let databases = Databases::open_with(env.clone(), Path::new("/data"), options).await.unwrap();
            let db = Some(databases.create("db").await.unwrap());
            let models = ["a", "b"].map(|id| (id.to_owned(), Model::default())).into();
            let random = Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let (case, step, compacted_at) = (format!("seed={seed}"), 0, 0);
            let mut run = Run {
                env,
                options,
                databases,
                db,
                random,
                models,
                step,
                compacted_at,
                case,
                available: 0,
                missing: 0,
            };
            for _ in 0..90 {
                run.make_step().await;
                if run.random.below(3) == 0 {
                    run.check("a").await;
                    run.check("b").await;
                }
            }
            available += run.available;
            missing += run.missing;
        })
        .unwrap();
    }
    println!("{available} replaced revisions read, {missing} missing");
    assert!(std::env::var_os("SETTEE_SEED").is_some() || (available > 500 && missing > 2_000));
}

/// Updates a document, compacts, updates it, purges it, and stores its revisions again with another body. Counts
/// the acknowledged steps in `done`.
async fn write_compact_and_purge(db: &Database, done: &Cell<usize>) {
    let mut last: Option<Revision> = None;
    for step in 0..9 {
        match step {
            3 => drop(db.compact().await.unwrap()),
            6 => drop(db.purge(&[("a".into(), vec![last.clone().unwrap()])]).await.unwrap()),
            7 | 8 => {
                let revision = Revision { generation: step - 1, id: [step as u8; 16].into() };
                let mut new = edit("a", Some(&revision), &format!("{{\"n\":{step}}}"));
                let purged = last.clone().unwrap();
                new.history = match step {
                    7 => vec![revision.id.clone(), purged.id],
                    _ => vec![revision.id.clone(), [7; 16].into(), purged.id],
                };
                db.replicate_all(vec![new], Stage::Persisted).await.unwrap().pop().unwrap().unwrap();
            }
            _ => {
                let new = edit("a", last.as_ref(), &format!("{{\"n\":{step}}}"));
                last = Some(db.update(new, Stage::Persisted).await.unwrap());
            }
        }
        done.set(done.get() + 1);
    }
}

#[test]
fn no_power_loss_brings_back_a_purged_or_compacted_body() {
    let run = |disk: &SimDisk| {
        let done = Cell::new(0);
        let sim = Sim::with_disk(disk);
        let env = sim.env();
        sim.run(async {
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            let db = databases.create("db").await.unwrap();
            write_compact_and_purge(&db, &done).await;
            drop(db);
            databases.close().await.unwrap();
        });
        done.get()
    };
    let whole = SimDisk::new(5);
    assert_eq!(run(&whole), 9);
    for crash_at in 0..=whole.sync_count() {
        let disk = SimDisk::new(5).crash_at_sync(crash_at);
        let done = run(&disk);
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        sim.run(async {
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            if databases.names().is_empty() {
                assert_eq!(done, 0);
                return;
            }
            let view = databases.get("db").await.unwrap().snapshot();
            let leaves = view.open_leaves("a").await.unwrap();
            let case = format!("crash_at={crash_at}, {done} steps done");
            let Some(leaf) = leaves.iter().next() else { return };
            let (history, mut search) = (leaves.history(0).await.unwrap(), view.replaced_revisions());
            let older = leaves.replaced_ancestors(&leaf.revision, &history, &mut search).await.unwrap();
            let mut bodies = Vec::new();
            for replaced in older {
                let Some(replaced) = replaced else {
                    bodies.push(String::new());
                    continue;
                };
                let document = view.available_revision("a", &replaced.revision).await.unwrap();
                bodies.push(String::from_utf8(document.body.to_vec()).unwrap());
            }
            let document = view.document("a").await.unwrap();
            // By the number of the leaf's step, and whether the compaction was acknowledged. A step that
            // wasn't may be visible.
            let expected: &[&[&str]] = match &document.body[..] {
                b"\"n\":0" => &[&[]],
                b"\"n\":1" => &[&["\"n\":0"]],
                b"\"n\":2" if done < 4 => &[&["\"n\":1", "\"n\":0"], &["", ""]],
                b"\"n\":2" => &[&["", ""]],
                b"\"n\":4" => &[&["\"n\":2", "", ""]],
                b"\"n\":5" => &[&["\"n\":4", "\"n\":2", "", ""]],
                b"\"n\":7" => &[&[""]],
                b"\"n\":8" => &[&["\"n\":7", ""]],
                other => panic!("{case}: {other:?}"),
            };
            assert!(expected.iter().any(|expected| bodies == *expected), "{case}: {bodies:?} {document:?}");
        })
        .unwrap();
    }
}
