//! Goal: faults of the disk cost at most a build, and never leave wrong rows or an index that can't be built.
//! Method: in the simulation; operations fail or files are damaged at chosen moments, then the indexes are compared
//! with rows made in Rust.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use serde_json::json;
use settee_collate::Collation;
use settee_doc::Revision;
use settee_io::OperationKind;
use settee_sim::{Fault, Panics, Sim, SimDisk, seeds};
use settee_view::{DesignViews, Grouping, Groups, MapRows, ViewDefinition, ViewError};

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

/// Stores a design document with views over one map function, one for each reduce function.
async fn put_reduces(subject: &Subject, id: &str, reduces: &[String]) {
    let map = "function (doc) { emit(doc._id, 1); }";
    let mut views = json!({});
    for (index, reduce) in reduces.iter().enumerate() {
        views[format!("v{index}")] = json!({"map": map, "reduce": reduce});
    }
    subject.update(&json!({"_id": id, "views": views})).await.unwrap();
}

/// The reduced value of all rows.
async fn total(design: &DesignViews, view: &ViewDefinition) -> Result<String, String> {
    let (index, space) = (design.snapshot(view).unwrap(), design.space(view, None));
    let (reduce, ranges) = (view.reduce.as_deref().unwrap(), vec![space.all()]);
    let mut groups = Groups::new(index, space, reduce, Grouping::All, ranges, false, 0, 9);
    let group = groups.next().await.map_err(|error| error.to_string())?.unwrap();
    Ok(String::from_utf8(group.value.unwrap()).unwrap())
}

/// Builds a design document's indexes, with their reduce functions.
async fn build(subject: &Subject, id: &str) -> Result<Arc<DesignViews>, ViewError> {
    let design = subject.views.design(&subject.database, id).await?;
    for view in &design.design.views {
        design.add_reduces(view).await?;
    }
    design.build(&subject.database, subject.database.snapshot().update_seq()).await?;
    Ok(design)
}

#[test]
fn more_reduce_functions_than_an_index_can_have_are_computed_from_its_rows() {
    let sim = Sim::new(6);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        let reduces = |from: u64| -> Vec<String> {
            (from..from + 9).map(|n| format!("function (keys, values, rereduce) {{ return {n}; }}")).collect()
        };
        put_reduces(&subject, "_design/a", &reduces(0)).await;
        put_reduces(&subject, "_design/b", &reduces(100)).await;
        for n in 0..50 {
            subject.update(&json!({"_id": format!("x{n}")})).await.unwrap();
        }
        let (a, b) =
            (build(&subject, "_design/a").await.unwrap(), build(&subject, "_design/b").await.unwrap());
        let files = index_files(sim.disk());
        for _ in 0..2 {
            for (design, from) in [(&a, 0), (&b, 100)] {
                build(&subject, &design.design.id).await.unwrap();
                for (n, view) in design.design.views.iter().enumerate() {
                    assert_eq!(total(design, view).await, Ok((from + n).to_string()));
                }
            }
        }
        assert_eq!(index_files(sim.disk()), files, "an index was rewritten");
        drop(a);
        let gone = subject.database.snapshot().find("_design/a").await.unwrap().unwrap();
        let deletion = json!({"_id": "_design/a", "_rev": gone.revision.to_string(), "_deleted": true});
        subject.update(&deletion).await.unwrap();
        subject.views.clean_up(&subject.database).await.unwrap();
        b.compact().await.unwrap();
        let compacted = index_files(sim.disk());
        build(&subject, "_design/b").await.unwrap();
        for (n, view) in b.design.views.iter().enumerate() {
            assert_eq!(total(&b, view).await, Ok((100 + n).to_string()));
        }
        assert_ne!(index_files(sim.disk()), compacted, "there is space for all functions");
    })
    .unwrap();
}

#[test]
fn a_reduce_function_that_cannot_be_added_leaves_a_sound_index() {
    let disk = SimDisk::new(7);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        put_reduces(&subject, "_design/a", &["_count".to_owned()]).await;
        put_reduces(&subject, "_design/b", &["_sum".to_owned()]).await;
        for n in 0..50 {
            subject.update(&json!({"_id": format!("x{n}")})).await.unwrap();
        }
        let _a = subject.views.design(&subject.database, "_design/a").await.unwrap();
        let b = subject.views.design(&subject.database, "_design/b").await.unwrap();
        let _ = disk.clone().has_descriptors(false);
        b.add_reduces(&b.design.views[0]).await.unwrap_err();
        let _ = disk.clone().has_descriptors(true);
        let b = build(&subject, "_design/b").await.unwrap();
        assert_eq!(total(&b, &b.design.views[0]).await, Ok("50".to_owned()));
    })
    .unwrap();
}

#[test]
fn a_damaged_index_is_begun_anew_by_the_next_build() {
    let mut damaged_count = 0;
    for seed in seeds(20) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let subject = Subject::open(&env).await;
            edit(&subject, seed).await;
            check(&subject, "before").await;
            subject.built().await.compact().await.unwrap();
        })
        .unwrap();
        for file in index_files(&disk) {
            disk.damage_file(file.strip_prefix("/").unwrap(), |bytes| {
                // The file's head, and perhaps its root, are sound.
                let nodes = bytes.get_mut(12 * 1024..).unwrap_or_default();
                let place = nodes.len() * (seed as usize + 1) / 11;
                if let Some(byte) = nodes.get_mut(place) {
                    *byte ^= 1;
                }
            });
        }
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        sim.run(async {
            let subject = Subject::open(&env).await;
            let design = subject.views.design(&subject.database, "_design/d").await.unwrap();
            let mut rows_failed = false;
            for view in &design.design.views {
                let all = vec![settee_view::RowRange::all()];
                let mut rows = MapRows::new(design.snapshot(view).unwrap(), all, false, 0, u64::MAX);
                while let Some(row) = rows.next().await.unwrap_or_else(|_| {
                    rows_failed = true;
                    None
                }) {
                    drop(row);
                }
            }
            damaged_count += u64::from(rows_failed);
            check(&subject, &format!("seed={seed}")).await;
        })
        .unwrap();
    }
    assert!(damaged_count > 3, "{damaged_count}");
}

#[test]
fn builds_continue_after_any_failed_operation() {
    let mut failed_count = 0;
    for seed in seeds(40) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let subject = Subject::open(&env).await;
            edit(&subject, seed).await;
            check(&subject, "before").await;
            edit(&subject, seed + 1).await;
            let fault = if seed % 2 == 0 { Fault::Io } else { Fault::NoSpace };
            let kind = if seed % 3 == 0 { OperationKind::Sync } else { OperationKind::Write };
            let _ = disk.clone().fail(kind, disk.count_of(kind) + seed % 8, fault);
            failed_count += u64::from(build(&subject, "_design/d").await.is_err());
            check(&subject, &format!("seed={seed}")).await;
        })
        .unwrap();
    }
    assert!(failed_count > 10, "{failed_count}");
}

#[test]
fn two_handles_of_an_index_leave_each_others_files_alone() {
    let sim = Sim::new(8);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        edit(&subject, 8).await;
        let former = subject.built().await;
        let design = subject.database.snapshot().document("_design/d").await.unwrap();
        let rev = design.revision.to_string();
        subject.update(&json!({"_id": "_design/d", "_rev": rev, "_deleted": true})).await.unwrap();
        subject.views.clean_up(&subject.database).await.unwrap();
        assert!(index_files(sim.disk()).is_empty());
        subject.put_design(&["_sum", "_stats"]).await;
        check(&subject, "anew").await;
        let files = index_files(sim.disk());
        former.compact().await.unwrap();
        let after = index_files(sim.disk());
        assert!(files.iter().all(|file| after.contains(file)), "{files:?} {after:?}");
    })
    .unwrap();
}

#[test]
fn a_client_that_leaves_does_not_wait_any_more() {
    let sim = Sim::new(9);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        edit(&subject, 9).await;
        let design = subject.views.design(&subject.database, "_design/d").await.unwrap();
        let seq = subject.database.snapshot().update_seq();
        {
            let build = std::pin::pin!(design.build(&subject.database, seq));
            let now = std::pin::pin!(std::future::ready(()));
            assert!(matches!(futures_util::future::select(build, now).await, Either::Right(_)));
            assert_eq!(design.info().await.waiting_count, 1);
        }
        assert_eq!(design.info().await.waiting_count, 0);
        check(&subject, "after").await;
    })
    .unwrap();
}

#[test]
fn a_lazy_query_builds_after_a_build_that_panicked() {
    let mut panic_count = 0;
    for call in 0..12 {
        let panics = Panics::new("view build", call);
        let sim = Sim::new(call);
        let env = panics.env(&sim.env());
        sim.run(async {
            let subject = Subject::open(&env).await;
            edit(&subject, call).await;
            let design = subject.views.design(&subject.database, "_design/d").await.unwrap();
            let seq = subject.database.snapshot().update_seq();
            panic_count += u64::from(design.build(&subject.database, seq).await.is_err());
            design.build_in_background(&subject.database, seq);
            env.clock.sleep(Duration::from_secs(10)).await;
            assert_eq!(design.info().await.update_seq, seq, "call={call}");
        })
        .unwrap();
    }
    assert!(panic_count > 3, "{panic_count}");
}
