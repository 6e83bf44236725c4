//! Goal: open indexes, and their files, are few, and go with their databases and design documents.
//! Method: in the simulation, and for the limit on descriptors with files; design documents are opened, cleaned up and
//! removed while others are used.

use std::path::Path;
use std::sync::{Arc, Weak};

use serde_json::json;
use settee_doc::{Database, Databases, Edit, Options, Stage};
use settee_io::{Env, ThreadOptions};
use settee_sim::{Sim, SimDisk, seeds};
use settee_view::{DesignViews, Views, ViewsOptions};

use crate::common::{Random, Subject};

async fn put_design(database: &Database, number: u64) -> String {
    put_views(database, number, 1).await
}

/// Stores a design document with some map functions that no other has.
async fn put_views(database: &Database, number: u64, count: u64) -> String {
    let id = format!("_design/{number}");
    let mut views = json!({});
    for view in 0..count {
        let map = format!("function (doc) {{ emit(doc._id, [{number}, {view}]); }}");
        views[format!("v{view}")] = json!({"map": map});
    }
    let text = json!({"_id": id, "views": views}).to_string();
    let edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
    database.update(edit, Stage::Persisted).await.unwrap();
    id
}

fn index_count(disk: &SimDisk) -> usize {
    let is_index = |path: &Path| path.extension().is_some_and(|extension| extension == "view");
    disk.paths().iter().filter(|path| is_index(path)).count()
}

#[test]
fn the_least_recently_used_indexes_are_closed() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        let options = ViewsOptions { open_indexes_max: 3, ..ViewsOptions::default() };
        let views = Views::new(&subject.databases, options);
        let mut opened: Vec<Weak<DesignViews>> = Vec::new();
        let mut used = Vec::new();
        for number in 0..8 {
            let id = put_design(&subject.database, number).await;
            let design = views.design(&subject.database, &id).await.unwrap();
            opened.push(Arc::downgrade(&design));
            if number == 1 {
                used.push(design);
            }
        }
        let open: Vec<usize> = (0..8).filter(|number| opened[*number].strong_count() > 0).collect();
        assert_eq!(open, [1, 6, 7]);
    })
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_design_document_is_opened_though_idle_ones_have_all_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    let env = Env::current(ThreadOptions { files_max: 40, ..ThreadOptions::default() });
    let databases = Databases::open(env.clone(), directory.path()).await.unwrap();
    let database = databases.create("db").await.unwrap();
    let views = Views::new(&databases, ViewsOptions::default());
    for number in 0..60 {
        let id = put_design(&database, number).await;
        let design = views.design(&database, &id).await.unwrap();
        design.build(&database, database.snapshot().update_seq()).await.unwrap();
    }
    // With the idle ones beside them, these would be too many.
    let id = put_views(&database, 100, 20).await;
    views.design(&database, &id).await.unwrap();
}

#[test]
fn a_deleted_database_leaves_no_index_beside_queries() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let subject = Subject::open(&env).await;
            subject.edit(&mut Random::new(seed)).await;
            let incarnation = subject.database.incarnation();
            let queries = async {
                for _ in 0..4 {
                    let Ok(design) = subject.views.design(&subject.database, "_design/d").await else {
                        return;
                    };
                    drop(design.build(&subject.database, subject.database.snapshot().update_seq()).await);
                }
            };
            let deletion = async {
                subject.databases.delete("db").await.unwrap();
                subject.views.remove(incarnation).await.unwrap();
            };
            let more_queries = async {
                drop(subject.views.design(&subject.database, "_design/d").await);
            };
            futures_util::future::join3(queries, deletion, more_queries).await;
        })
        .unwrap();
        assert_eq!(index_count(sim.disk()), 0, "seed={seed}");
    }
}

#[test]
fn a_compaction_that_waits_is_not_repeated() {
    let sim = Sim::new(5);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        subject.edit(&mut Random::new(5)).await;
        let design = subject.built().await;
        let before = sim.disk().operation_count();
        design.compact().await.unwrap();
        let once = sim.disk().operation_count() - before;
        let all: Vec<_> = (0..30).map(|_| design.compact()).collect();
        for compacted in futures_util::future::join_all(all).await {
            compacted.unwrap();
        }
        let many = sim.disk().operation_count() - before - once;
        assert!(many < 4 * once, "{many} {once}");
        assert!(!design.info().await.is_compacting);
    })
    .unwrap();
}

#[test]
fn a_cleanup_closes_what_it_removes() {
    let sim = Sim::new(6);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        let opened = Arc::downgrade(&subject.built().await);
        let rev = subject.database.snapshot().find("_design/d").await.unwrap().unwrap().revision.to_string();
        subject.update(&json!({"_id": "_design/d", "_rev": rev, "_deleted": true})).await.unwrap();
        subject.views.clean_up(&subject.database).await.unwrap();
        assert_eq!(index_count(sim.disk()), 0);
        assert_eq!(opened.strong_count(), 0);
    })
    .unwrap();
}
