//! Goal: checkpoints, compaction and reopening change neither the contents of a store nor what older
//! snapshots show; dead records' space is freed.
//! Method: in the simulation, run seeded commits with small limits against a `BTreeMap`, with checkpoints and
//! compactions in the background and on demand, and snapshots kept over them. Reopen at times, sometimes
//! without the tree.

use crate::common::model;

use std::path::Path;

use model::{Model, OPTIONS, Random, check, check_range, commit, open};
use settee_io::directory;
use settee_sim::{Sim, seeds};
use settee_store::{Batch, LogOptions, Snapshot, Stage, Store, StoreError, StoreOptions};

fn options(random: &mut Random) -> StoreOptions {
    let limits = [4, 40, 100_000];
    StoreOptions {
        checkpoint_entries_min: limits[random.below(3)],
        checkpoint_bytes_max: [2 << 10, 30 << 10, 4 << 20][random.below(3)],
        garbage_percent_max: [10, 50][random.below(2)],
        log: LogOptions { direct: random.below(4) == 0, ..OPTIONS.log },
        ..OPTIONS
    }
}

#[test]
fn checkpoints_and_compaction_change_nothing_that_is_stored() {
    let (mut checkpoints, mut compacted, mut rebuilt) = (0, 0, 0);
    for seed in seeds(150) {
        let sim = Sim::new(seed);
        let env = sim.env();
        let counts = sim
            .run(async {
                let mut random = Random::new(seed);
                let options = options(&mut random);
                let mut model = Model::default();
                let mut store = open(&env, &options).await;
                let mut kept: Vec<(Snapshot, Model)> = Vec::new();
                let mut counts = (0, 0, 0);
                for step in 0..120 {
                    let case = format!("seed={seed} step={step}");
                    let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][random.below(3)];
                    let seq = commit(&store, &mut model, &mut random, stage).await;
                    if random.below(3) == 0 {
                        store.wait(seq, Stage::Persisted).await.unwrap();
                        let snapshot = store.snapshot();
                        check(&snapshot, &model, &case).await;
                        check_range(&snapshot, &model, &mut random, &case).await;
                        if random.below(3) == 0 {
                            kept.push((snapshot, model.clone()));
                        }
                    }
                    match random.below(24) {
                        0 => counts.0 += u64::from(store.checkpoint().await.unwrap().is_some()),
                        1 => counts.1 += store.compact().await.unwrap().segment_count,
                        2 => env.clock.sleep(std::time::Duration::from_millis(500)).await,
                        3 => {
                            for (snapshot, model) in kept.drain(..) {
                                check(&snapshot, &model, &case).await;
                            }
                        }
                        4 => {
                            kept.clear();
                            store.close().await.unwrap();
                            drop(store);
                            if random.below(3) == 0 {
                                counts.2 += u64::from(remove_tree(&env).await);
                            }
                            store = open(&env, &options).await;
                            check(&store.snapshot(), &model, &case).await;
                        }
                        _ => {}
                    }
                }
                counts
            })
            .unwrap();
        checkpoints += counts.0;
        compacted += counts.1;
        rebuilt += counts.2;
    }
    assert!(checkpoints > 100 && compacted > 100 && rebuilt > 20, "{checkpoints} {compacted} {rebuilt}");
}

/// Removes the tree; false if there was none.
async fn remove_tree(env: &settee_io::Env) -> bool {
    let root = Path::new("/data/store");
    // Trees that were in use until now are removed.
    env.clock.sleep(std::time::Duration::from_secs(1)).await;
    for entry in directory::list(&*env.engine, root).await.unwrap() {
        if entry.name.ends_with(".tree") {
            directory::remove(&*env.engine, &root.join(&entry.name)).await.unwrap();
            return true;
        }
    }
    false
}

#[test]
fn a_store_whose_manifest_was_lost_is_refused_or_whole() {
    let (mut refused, mut whole) = (0, 0);
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let env = sim.env();
        let is_refused = sim
            .run(async {
                let mut random = Random::new(seed);
                let options = StoreOptions { checkpoint_bytes_max: 30 << 10, ..OPTIONS };
                let mut model = Model::default();
                let store = open(&env, &options).await;
                for _ in 0..random.below(160) {
                    commit(&store, &mut model, &mut random, Stage::Persisted).await;
                    if random.below(40) == 0 {
                        store.compact().await.unwrap();
                    }
                }
                store.close().await.unwrap();
                drop(store);
                // Files that were in use until now are removed.
                env.clock.sleep(std::time::Duration::from_secs(1)).await;
                let root = Path::new("/data/store");
                let names = directory::list(&*env.engine, root).await.unwrap();
                if names.iter().any(|entry| entry.name == "manifest") {
                    directory::remove(&*env.engine, &root.join("manifest")).await.unwrap();
                }
                match Store::open(&env, root, options).await {
                    Ok((store, _)) => {
                        check(&store.snapshot(), &model, &format!("seed={seed}")).await;
                        false
                    }
                    Err(error) => {
                        assert!(
                            matches!(error, StoreError::Log(settee_log::OpenError::Missing { .. })),
                            "seed={seed}: {error}"
                        );
                        let is_there = |name: &str| names.iter().any(|entry| entry.name == name);
                        let left = directory::list(&*env.engine, root).await.unwrap();
                        assert_eq!(left.len() + 1, names.len(), "seed={seed}: nothing was removed");
                        is_there("manifest")
                    }
                }
            })
            .unwrap();
        refused += usize::from(is_refused);
        whole += usize::from(!is_refused);
    }
    assert!(refused > 5 && whole > 1, "{refused} {whole}");
}

#[test]
fn a_segment_that_cannot_be_read_keeps_no_other_from_being_compacted() {
    const KEY_COUNT: u32 = 6000;
    let key = |number: u32| number.to_be_bytes();
    for seed in seeds(10) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let log = LogOptions { segment_bytes_min: 64 << 10, segment_bytes_max: 64 << 10, ..OPTIONS.log };
            let options = StoreOptions { log, garbage_percent_max: 100, ..OPTIONS };
            let root = Path::new("/data/store");
            let (store, _) = Store::open(&env, root, options.clone()).await.unwrap();
            let mut batch = Batch::new();
            for number in 0..KEY_COUNT {
                batch.put(&key(number), &[], vec![number as u8; 100].into(), false);
                if number % 20 == 19 {
                    store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
                    batch = Batch::new();
                }
            }
            for number in (0..KEY_COUNT).filter(|number| number % 3 > 0) {
                batch.delete(&key(number));
                if batch.size() > 8 << 10 {
                    store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
                    batch = Batch::new();
                }
            }
            store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
            store.checkpoint().await.unwrap();
            env.clock.sleep(std::time::Duration::from_secs(2)).await;
            let names = directory::list(&*env.engine, root).await.unwrap();
            let mut segments: Vec<_> = names.iter().filter(|entry| entry.name.ends_with(".log")).collect();
            segments.sort_by(|a, b| a.name.cmp(&b.name));
            // The others hold tombstones, or are the log's.
            let victim = &segments[random.below(segments.len() / 2)].name;
            // Damages all of its records, but not its segment index.
            sim.disk().damage_file(root.join(victim), |bytes| {
                let end = 50 << 10;
                bytes[4096..end].iter_mut().for_each(|byte| *byte ^= 1);
            });
            for _ in 0..2 {
                let error = store.compact().await.unwrap_err();
                assert!(
                    error.to_string().contains(victim.as_str()),
                    "seed={seed}: {error} names not {victim}"
                );
            }
            let left = directory::list(&*env.engine, root).await.unwrap();
            let originals: Vec<_> = left.iter().filter(|entry| entry.name.ends_with(".log")).collect();
            assert!(originals.iter().any(|entry| entry.name == *victim), "seed={seed}: it was removed");
            assert!(originals.len() < segments.len() / 2, "seed={seed}: {originals:?}");
            let snapshot = store.snapshot();
            let mut lost = 0;
            for number in (0..KEY_COUNT).step_by(3) {
                let entry = snapshot.get(&key(number)).await.unwrap().expect("it was put");
                lost += u32::from(snapshot.read(entry.location).await.is_err());
            }
            assert!((1..200).contains(&lost), "seed={seed}: {lost}");
        });
    }
}
