//! Goal: faults of the disk cost at most a build, and never leave wrong rows or an index that can't be built.
//! Method: in the simulation; operations fail or files are damaged at chosen moments, then the indexes are compared
//! with rows made in Rust.

use std::path::{Path, PathBuf};

use settee_collate::Collation;
use settee_sim::{Fault, Sim, SimDisk};

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
