//! Goal: a check passes for every undamaged store, and finds every changed bit that a reader depends on, in
//! every kind of file.
//! Method: in the simulation, run seeded commits with small limits, checkpoints and compactions. Then check,
//! or flip one bit in one file and check, for each file and many offsets. A power loss leaves nothing that is
//! reported as damage.

use crate::common::model;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use model::{Model, OPTIONS, Random, check as compare, commit, open};
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{
    CheckEvent, CheckSummary, LogOptions, Loss, Problem, Stage, Store, StoreOptions, Touched, repair,
};

const DIRECTORY: &str = "/data/store";

fn options(seed: u64) -> StoreOptions {
    StoreOptions {
        checkpoint_entries_min: [4, 40][seed as usize % 2],
        checkpoint_bytes_max: 30 << 10,
        garbage_percent_max: [10, 50][seed as usize / 2 % 2],
        log: LogOptions { segment_bytes_max: 40 << 10, ..OPTIONS.log },
        ..OPTIONS
    }
}

/// Runs commits, checkpoints and compactions, then closes the store or cuts the power.
fn make(disk: &SimDisk, seed: u64, steps: usize, cut: bool) -> Model {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    let mut model = Model::default();
    sim.run(async {
        let mut random = Random::new(seed);
        let mut store = open(&env, &options(seed)).await;
        for step in 0..steps {
            let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][random.below(3)];
            commit(&store, &mut model, &mut random, stage).await;
            match random.below(20) {
                0 => drop(store.checkpoint().await.unwrap()),
                1 => {
                    // The log seals segments in a pause.
                    env.clock.sleep(std::time::Duration::from_millis(1000)).await;
                    store.compact().await.unwrap();
                }
                2 => env.clock.sleep(std::time::Duration::from_millis(500)).await,
                3 if step % 3 == 0 => {
                    store.close().await.unwrap();
                    drop(store);
                    store = open(&env, &options(seed)).await;
                }
                _ => {}
            }
        }
        if cut {
            disk.cut_power();
        }
        store.close().await.unwrap();
    });
    model
}

fn check(disk: &SimDisk, seed: u64) -> (CheckSummary, Vec<Problem>) {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    let mut problems = Vec::new();
    let mut last = (0, 0);
    let summary = sim
        .run(async {
            settee_store::check(&env, Path::new(DIRECTORY), &options(seed), |event| match event {
                CheckEvent::Problem(problem) => problems.push(problem),
                CheckEvent::Timelines(_) => {}
                CheckEvent::Progress(done, all) => {
                    assert!(last.0 <= done && done <= all, "seed={seed}");
                    last = (done, all);
                }
            })
            .await
            .unwrap()
        })
        .unwrap();
    assert_eq!(summary.problem_count as usize, problems.len());
    assert_eq!(last.0, last.1, "seed={seed}: all is done in the end");
    (summary, problems)
}

#[test]
fn an_undamaged_store_passes_the_check() {
    let (mut rewritten, mut with_tree) = (0, 0);
    for seed in seeds(60) {
        let disk = SimDisk::new(seed);
        let model = make(&disk, seed, 90 + seed as usize % 60, false);
        let (summary, problems) = check(&disk, seed);
        assert_eq!(problems, [], "seed={seed}");
        assert!(summary.record_count >= model.entries.len() as u64, "seed={seed}");
        rewritten += disk.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "seg")).count();
        with_tree += usize::from(summary.entry_count > 0);
    }
    assert!(rewritten > 2 && with_tree > 30, "{rewritten} {with_tree}");
}

#[test]
fn a_power_loss_leaves_nothing_that_is_reported_as_damage() {
    let mut doubtful = 0;
    for seed in seeds(60) {
        let disk = SimDisk::new(seed);
        make(&disk, seed, 20 + seed as usize % 130, true);
        let disk = disk.after_power_loss();
        let (_, problems) = check(&disk, seed);
        assert!(problems.iter().all(|problem| problem.is_doubtful), "seed={seed}: {problems:?}");
        doubtful += problems.len();
        // Opening repairs it once the log has gone on.
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let store = open(&env, &options(seed)).await;
            commit(&store, &mut Model::default(), &mut Random::new(seed), Stage::Persisted).await;
            store.close().await.unwrap();
        })
        .unwrap();
        assert_eq!(check(&disk, seed).1, [], "seed={seed}");
    }
    assert!(doubtful > 0);
}

/// Damage that is not reported must be harmless: the store opens and has everything it had.
fn is_harmless(disk: &SimDisk, seed: u64, model: &Model) {
    let copy = SimDisk::new(seed);
    disk.paths().into_iter().for_each(|path| copy.write_file(&path, disk.read_file(&path).unwrap()));
    let sim = Sim::with_disk(&copy);
    let env = sim.env();
    sim.run(async {
        let store = open(&env, &options(seed)).await;
        compare(&store.snapshot(), model, &format!("seed={seed}")).await;
        store.close().await.unwrap();
    })
    .unwrap();
}

/// All files but the lock file.
fn files(disk: &SimDisk) -> Vec<PathBuf> {
    disk.paths().into_iter().filter(|path| !path.ends_with("lock")).collect()
}

#[test]
fn every_flipped_bit_that_anything_reads_is_found_and_its_file_named() {
    let (mut found, mut silent) = (BTreeMap::<String, usize>::new(), BTreeMap::<String, usize>::new());
    for seed in seeds(5) {
        let disk = SimDisk::new(seed);
        let model = make(&disk, seed, 120, false);
        assert_eq!(check(&disk, seed).1, [], "seed={seed}");
        let mut random = Random::new(seed);
        for path in files(&disk) {
            let bytes = disk.read_file(&path).unwrap();
            let kind = path.extension().unwrap_or_default().to_string_lossy().into_owned();
            for _ in 0..10 {
                let (at, bit) = (random.below(bytes.len()), random.below(8));
                disk.damage_file(&path, |bytes| bytes[at] ^= 1 << bit);
                let (_, problems) = check(&disk, seed);
                let own = Path::new("/").join(&path);
                if problems.iter().any(|problem| problem.path == own) {
                    *found.entry(kind.clone()).or_default() += 1;
                } else {
                    // Padding up to the next block, or nodes that no root refers to.
                    let rest = &bytes[at..at.next_multiple_of(4096).min(bytes.len())];
                    let case = format!("seed={seed} {} at {at}: {problems:?}", path.display());
                    assert!(kind == "tree" || rest.iter().all(|byte| *byte == 0), "{case}");
                    is_harmless(&disk, seed, &model);
                    *silent.entry(kind.clone()).or_insert(0) += 1;
                }
                disk.damage_file(&path, |bytes| bytes[at] ^= 1 << bit);
            }
        }
    }
    println!("found {found:?}, of no matter {silent:?}");
    assert!(["", "log", "seg", "tree"].iter().all(|kind| found.get(*kind).is_some_and(|count| *count > 4)));
}

#[test]
fn repair_keeps_all_that_can_be_read_and_names_what_is_lost() {
    let (mut lost_count, mut older_count, mut kept_count) = (0, 0, 0);
    for seed in seeds(60) {
        let disk = SimDisk::new(seed);
        let model = make(&disk, seed, 80 + seed as usize % 60, false);
        let mut random = Random::new(seed);
        let paths = files(&disk);
        for _ in 0..random.below(8) {
            let path = &paths[random.below(paths.len())];
            let length = disk.read_file(path).unwrap().len();
            let (at, bit) = (random.below(length), random.below(8));
            disk.damage_file(path, |bytes| bytes[at] ^= 1 << bit);
        }
        let before: Vec<_> = paths.iter().map(|path| disk.read_file(path)).collect();
        let (_, problems) = check(&disk, seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let mut lost = BTreeMap::new();
        let kept = sim
            .run(async {
                let (from, to) = (Path::new(DIRECTORY), Path::new("/data/new"));
                let mut none = |_: CheckEvent| {};
                let mut is_lost = |loss: Loss| {
                    lost.insert(loss.key, loss.has_older);
                };
                repair(&env, from, to, &options(seed), &mut none, &mut is_lost).await.unwrap();
                let store = Store::open(&env, to, options(seed)).await.unwrap().0;
                let snapshot = store.snapshot();
                let mut kept = BTreeMap::new();
                let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false);
                while let Some(entry) = scan.next().await.unwrap() {
                    let value = snapshot.read(entry.location).await.unwrap().value();
                    kept.insert(
                        entry.key.to_vec(),
                        (entry.meta.to_vec(), value.to_vec(), entry.to_entry().in_seq_index),
                    );
                }
                store.close().await.unwrap();
                kept
            })
            .unwrap();
        let case = format!("seed={seed} {problems:?}");
        // A torn tail, or what looks like one, is reported with unknown contents.
        let is_torn =
            problems.iter().any(|problem| problem.is_doubtful || problem.touched == Touched::Unknown);
        for (key, (_, meta, value, in_seq_index)) in &model.entries {
            match (lost.get(key), kept.get(key)) {
                (Some(true), Some(found)) if found == &(meta.clone(), value.clone(), *in_seq_index) => {
                    // If the log's end can't be read, its contents are unknown.
                    assert!(is_torn, "{case}: {key:?} is reported as lost, and isn't");
                }
                (Some(true), Some(_)) => older_count += 1,
                (Some(false), None) => lost_count += 1,
                (None, Some(found)) if found == &(meta.clone(), value.clone(), *in_seq_index) => {
                    kept_count += 1
                }
                (_, found) => assert!(is_torn, "{case}: {key:?} {found:?}"),
            }
        }
        let more = kept.keys().filter(|key| !model.entries.contains_key(*key)).count();
        assert!(more == 0 || !problems.is_empty(), "{case}");
        assert!(!problems.is_empty() || lost.is_empty(), "{case}");
        let after: Vec<_> = paths.iter().map(|path| disk.read_file(path)).collect();
        assert_eq!(before, after, "{case}: the old store is as it was");
    }
    println!("kept {kept_count}, lost {lost_count}, older kept {older_count}");
    assert!(kept_count > 500 && lost_count + older_count > 5);
}

#[test]
fn a_last_segment_that_lost_its_header_is_not_taken_for_a_preallocated_one() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let mut model = Model::default();
    sim.run(async {
        let log = LogOptions { segment_bytes_min: OPTIONS.log.segment_bytes_max, ..OPTIONS.log };
        let store = open(&env, &StoreOptions { log, ..OPTIONS }).await;
        let mut random = Random::new(1);
        for _ in 0..20 {
            commit(&store, &mut model, &mut random, Stage::Persisted).await;
            store.flush().await.unwrap();
        }
        store.close().await.unwrap();
    })
    .unwrap();
    let log =
        disk.paths().into_iter().rfind(|path| path.extension().is_some_and(|end| end == "log")).unwrap();
    disk.damage_file(&log, |bytes| bytes[..512].fill(0));
    let (_, problems) = check(&disk, 0);
    assert!(
        problems.iter().any(|problem| problem.path.ends_with(&log) && !problem.is_doubtful),
        "{problems:?}"
    );
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let kept = sim
        .run(async {
            let (from, to) = (Path::new(DIRECTORY), Path::new("/data/new"));
            let summary = repair(&env, from, to, &options(0), &mut |_| {}, &mut |_| {}).await.unwrap();
            summary.record_count
        })
        .unwrap();
    assert!(kept >= model.entries.len() as u64, "{kept} of {}", model.entries.len());
}

#[test]
fn a_missing_manifest_is_reported_if_there_was_one() {
    let mut count = 0;
    for seed in seeds(30) {
        let disk = SimDisk::new(seed);
        make(&disk, seed, 120, false);
        let manifest = Path::new(DIRECTORY).join("manifest");
        if !disk.paths().iter().any(|path| path.extension().is_some_and(|end| end == "seg")) {
            continue;
        }
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async { settee_io::directory::remove(&*env.engine, &manifest).await.unwrap() }).unwrap();
        let (_, problems) = check(&disk, seed);
        assert!(problems.iter().any(|problem| problem.path == manifest), "seed={seed}: {problems:?}");
        count += 1;
    }
    assert!(count > 5, "{count} stores had one");
}
