//! Goal: faults of the disk cost at most a build, and never leave wrong rows or an index that can't be built.
//! Method: in the simulation; operations fail or files are damaged at chosen moments, then the indexes are compared
//! with rows made in Rust.

use std::path::{Path, PathBuf};

use serde_json::json;
use settee_collate::Collation;
use settee_doc::Revision;
use settee_sim::{Fault, Sim, SimDisk, seeds};

use crate::common::{Random, Subject, check_reduces, check_rows};

/// The index files, in the order of their names.
fn index_files(disk: &SimDisk) -> Vec<PathBuf> {
    let is_index = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "view");
    let of_root = |path| Path::new("/").join(path);
    let mut paths: Vec<_> = disk.paths().into_iter().filter(is_index).map(of_root).collect();
    paths.sort();
    paths
}

async fn edit(subject: &Subject, seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..20 {
        subject.edit(&mut random).await;
    }
}

async fn check(subject: &Subject, case: &str) {
    let design = subject.built().await;
    let documents = subject.documents().await;
    for (view, collation) in [("rows", Collation::Unicode), ("raw", Collation::Raw)] {
        let index = design.snapshot(design.view(view).unwrap()).unwrap();
        check_rows(index, &documents, collation, &format!("{case} {view}")).await;
    }
    check_reduces(&design, &documents, case).await;
}

#[test]
fn an_index_that_the_system_refuses_to_open_is_not_removed() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        edit(&subject, 1).await;
        check(&subject, "first").await;
    })
    .unwrap();
    let files = index_files(&disk);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        let _ = disk.clone().has_descriptors(false);
        assert!(subject.views.design(&subject.database, "_design/d").await.is_err());
        let _ = disk.clone().has_descriptors(true);
        assert_eq!(index_files(&disk), files);
        for file in &files {
            let _ = disk.clone().fail_next_open(file, Fault::Io);
            assert!(subject.views.design(&subject.database, "_design/d").await.is_err());
            assert_eq!(index_files(&disk), files);
        }
        let design = subject.views.design(&subject.database, "_design/d").await.unwrap();
        let seq = subject.database.snapshot().update_seq();
        assert_eq!(design.info().await.update_seq, seq, "the index was built anew");
    })
    .unwrap();
}

#[test]
fn an_index_that_missed_purges_is_built_anew_once() {
    let sim = Sim::new(4);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        edit(&subject, 4).await;
        check(&subject, "before").await;
        subject.database.set_purged_infos_limit(1).await.unwrap();
        let purge = |id: String, revision| [(id, vec![revision])];
        for n in 0..5 {
            let document = json!({"_id": format!("purged{n}"), "n": n});
            let revision = subject.update(&document).await.unwrap();
            subject.database.purge(&purge(format!("purged{n}"), revision)).await.unwrap();
        }
        check(&subject, "after").await;
        let files = index_files(sim.disk());
        for _ in 0..3 {
            let info = subject.built().await.info().await;
            assert_eq!(info.purge_seq, subject.database.info().purge_seq);
        }
        assert_eq!(index_files(sim.disk()), files);
    })
    .unwrap();
}

#[test]
fn a_purge_before_the_first_build_is_known_to_it() {
    let sim = Sim::new(5);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        edit(&subject, 5).await;
        let revision = subject.update(&json!({"_id": "purged", "n": 1})).await.unwrap();
        subject.database.purge(&[("purged".to_owned(), vec![revision])]).await.unwrap();
        check(&subject, "built").await;
        let info = subject.built().await.info().await;
        assert_eq!(info.purge_seq, subject.database.info().purge_seq);
    })
    .unwrap();
}

/// One task purges while another builds.
#[test]
fn purges_during_builds_leave_no_rows() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let subject = Subject::open(&env).await;
            edit(&subject, seed).await;
            let purges = async {
                for (id, document) in subject.documents().await {
                    let revision: Revision = document["_rev"].as_str().unwrap().parse().unwrap();
                    subject.database.purge(&[(id, vec![revision])]).await.unwrap();
                }
            };
            let builds = async {
                for _ in 0..20 {
                    subject.built().await;
                }
            };
            futures_util::future::join(purges, builds).await;
            check(&subject, &format!("seed={seed}")).await;
        })
        .unwrap();
    }
}
