//! Goal: opening a store harms neither a store in use nor what a crash left; a missing tree is rebuilt
//! whenever the power is cut meanwhile.
//! Method: in the simulation, open a store that is in use; drop a store during its checkpoint and open it
//! again at once; cut the power at each operation of an open that rebuilds the tree. Compare everything with
//! a model of versions each time.

use crate::common::trial;
use crate::common::versions;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use settee_io::{Env, OperationKind, directory};
use settee_sim::trial::Random;
use settee_sim::{Fault, Sim, SimDisk, seeds};
use settee_store::{Batch, LogOptions, OpenError, Stage, Store, StoreError, StoreOptions};
use trial::key;
use versions::{Change, Model, aggregate, check};

const DIRECTORY: &str = "/data/store";

const OPTIONS: StoreOptions = StoreOptions {
    log: LogOptions {
        batch_bytes_max: 16 << 10,
        segment_bytes_min: 20 << 10,
        segment_bytes_max: 34 << 10,
        ..LogOptions::DEFAULT
    },
    aggregate: Some(aggregate),
    checkpoint_entries_min: 20,
    checkpoint_entries_max: 20,
    ..StoreOptions::DEFAULT
};

async fn open(env: &Env, options: &StoreOptions) -> Result<Store, StoreError> {
    Store::open(env, Path::new(DIRECTORY), options.clone()).await.map(|(store, _)| store)
}

/// Opens the store as soon as its previous user has released it.
async fn open_at_last(env: &Env, options: &StoreOptions) -> Store {
    for _ in 0..10_000 {
        match open(env, options).await {
            Err(StoreError::Log(OpenError::InUse { .. })) => env.clock.sleep(Duration::from_millis(1)).await,
            opened => return opened.unwrap(),
        }
    }
    panic!("it stays in use");
}

/// Commits a batch of records to the store and the model.
async fn commit(store: &Store, model: &mut Model, random: &mut Random, stage: Stage) {
    let mut batch = Batch::new();
    let mut changes = Vec::new();
    for _ in 0..1 + random.below(4) {
        let key = key(random.below(12));
        let change = match random.one_in(4) {
            true => Change::Delete,
            false => {
                let (size, in_seq_index) = (random.below(3_000), random.one_in(2));
                Change::Put {
                    meta: random.slice(size / 10).to_vec(),
                    value: random.slice(size),
                    in_seq_index,
                }
            }
        };
        match &change {
            Change::Put { meta, value, in_seq_index } => batch.put(&key, meta, value.clone(), *in_seq_index),
            _ => batch.delete(&key),
        }
        changes.push((key, change));
    }
    let seq = store.writer().await.commit(&batch, stage).await.unwrap();
    model.accept(seq.0, &changes).unwrap();
    store.wait(seq, stage).await.unwrap();
}

/// Compares everything with the model's newest version.
async fn compare(store: &Store, model: &Model, case: &str) {
    let (newest, version) = model.newest();
    let snapshot = store.snapshot();
    assert_eq!(snapshot.seq().0, newest, "{case}");
    if let Err(problem) = check(&snapshot, &version, true).await {
        panic!("{case}: {problem}");
    }
    let (recorded, found) = store.live_tables().await.unwrap();
    assert_eq!(recorded, found, "{case}");
}

async fn remove_trees(env: &Env) -> usize {
    let mut count = 0;
    for entry in directory::list(&*env.engine, Path::new(DIRECTORY)).await.unwrap() {
        if entry.name.ends_with(".tree") {
            directory::remove(&*env.engine, &Path::new(DIRECTORY).join(&entry.name)).await.unwrap();
            count += 1;
        }
    }
    directory::sync(&*env.engine, Path::new(DIRECTORY)).await.unwrap();
    count
}

#[test]
fn opening_a_store_that_is_in_use_does_it_no_harm() {
    let mut refused = 0;
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let env = sim.env();
        refused += sim
            .run(async {
                let (mut random, mut model) = (Random::new(seed, 0), Model::default());
                let store = open(&env, &OPTIONS).await.unwrap();
                commit(&store, &mut model, &mut random, Stage::Persisted).await;
                let mut refused = 0;
                let work = async {
                    for _ in 0..40 {
                        commit(&store, &mut model, &mut random, Stage::Persisted).await;
                        match random.below(10) {
                            0 => drop(store.checkpoint().await.unwrap()),
                            1 => drop(store.compact().await.unwrap()),
                            2 => env.clock.sleep(Duration::from_millis(300)).await,
                            _ => {}
                        }
                    }
                };
                let others = async {
                    loop {
                        match open(&env, &OPTIONS).await {
                            Err(StoreError::Log(OpenError::InUse { .. })) => refused += 1,
                            Err(error) => panic!("seed={seed}: {error}"),
                            Ok(_) => panic!("seed={seed}: opened twice"),
                        }
                    }
                };
                futures_util::future::select(std::pin::pin!(work), std::pin::pin!(others)).await;
                compare(&store, &model, &format!("seed={seed}")).await;
                store.close().await.unwrap();
                drop(store);
                let store = open_at_last(&env, &OPTIONS).await;
                compare(&store, &model, &format!("seed={seed} opened again")).await;
                refused
            })
            .unwrap();
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn a_store_that_was_dropped_while_it_worked_is_opened_again_at_once() {
    for seed in seeds(300) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let (mut random, mut model) = (Random::new(seed, 0), Model::default());
            let mut store = open(&env, &OPTIONS).await.unwrap();
            for round in 0..8 {
                for _ in 0..3 + random.below(12) {
                    commit(&store, &mut model, &mut random, Stage::Persisted).await;
                    if random.one_in(4) {
                        env.clock.sleep(Duration::from_millis(random.below(300))).await;
                    }
                }
                let leave = env.clock.sleep(Duration::from_micros(random.below(60_000)));
                futures_util::future::select(Box::pin(store.compact()), leave).await;
                drop(store);
                store = open_at_last(&env, &OPTIONS).await;
                compare(&store, &model, &format!("seed={seed} round={round}")).await;
            }
        })
        .unwrap();
    }
}

/// A store whose first tree, of several leaves, was removed.
fn without_tree(seed: u64, options: &StoreOptions) -> (SimDisk, Model) {
    let disk = SimDisk::new(seed);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let mut model = Model::default();
    sim.run(async {
        let mut random = Random::new(seed, 0);
        let store = open(&env, options).await.unwrap();
        for _ in 0..60 {
            commit(&store, &mut model, &mut random, Stage::Persisted).await;
        }
        // Until all but the last segment are sealed.
        env.clock.sleep(Duration::from_secs(5)).await;
        store.checkpoint().await.unwrap();
        for _ in 0..3 {
            commit(&store, &mut model, &mut random, Stage::Persisted).await;
        }
        store.close().await.unwrap();
        assert_eq!(remove_trees(&env).await, 1);
    })
    .unwrap();
    model.see_persisted(model.newest().0);
    // The removal is durable.
    (disk.after_power_loss(), model)
}

#[test]
fn the_power_is_cut_while_a_tree_is_rebuilt() {
    let options = StoreOptions {
        // No background checkpoints.
        checkpoint_entries_min: 1 << 20,
        checkpoint_entries_max: 1 << 20,
        checkpoint_bytes_max: 1 << 30,
        ..OPTIONS
    };
    let little = StoreOptions { memory_bytes_max: 2 << 10, ..options.clone() };
    let mut tried = 0;
    for seed in seeds(3) {
        let mut cut_at = 0;
        loop {
            let (disk, model) = without_tree(seed, &options);
            let disk = disk.crash_at_operation(cut_at);
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            let opened = sim.run(async { open(&env, &little).await.unwrap() }).is_some();
            let case = format!("seed={seed} cut_at={cut_at}");
            if !opened {
                let sim = Sim::with_disk(&disk.after_power_loss());
                let env = sim.env();
                sim.run(async {
                    let store = open(&env, &little).await.unwrap_or_else(|error| panic!("{case}: {error}"));
                    compare(&store, &model, &case).await;
                })
                .unwrap();
                tried += 1;
            }
            if opened {
                break;
            }
            cut_at += 1;
        }
    }
    println!("power losses while a tree was built: {tried}");
    assert!(tried > 100, "{tried}");
}

#[test]
fn no_update_number_is_forgotten_with_the_tree() {
    // So little garbage is enough to end the open segment at a pause: then no unlisted segment has a record.
    let reclaiming = StoreOptions {
        garbage_idle_percent_max: 10,
        reclaim_bytes_min: 4 << 10,
        idle_delay_ms: 100,
        ..OPTIONS
    };
    for (seed, options) in seeds(20).flat_map(|seed| [(seed, &OPTIONS), (seed, &reclaiming)]) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let store = open(&env, options).await.unwrap();
            for round in 0..30_u8 {
                let mut batch = Batch::new();
                // The last record of the seq index is in no remaining segment.
                batch.put(b"key", b"", Bytes::from(vec![round; 3_000]), round < 15);
                store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
            }
            let mut batch = Batch::new();
            batch.delete(b"key");
            let last = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
            let last_indexed = store.writer().await.latest().last_in_seq_index();
            store.close().await.unwrap();
            drop(store);
            let store = open_at_last(&env, options).await;
            // Once another segment is begun, the others are the store's.
            env.clock.sleep(Duration::from_secs(5)).await;
            store.compact().await.unwrap();
            assert_eq!(store.snapshot().seq(), last, "seed={seed}");
            store.close().await.unwrap();
            drop(store);
            remove_trees(&env).await;
            // The second open finds a manifest that may name no tree, since there was nothing to put in one.
            for opening in 1..=2 {
                let store = open_at_last(&env, options).await;
                assert_eq!(store.snapshot().seq(), last, "seed={seed} opening={opening}");
                assert_eq!(
                    store.snapshot().last_in_seq_index(),
                    last_indexed,
                    "seed={seed} opening={opening}"
                );
            }
            let store = open_at_last(&env, options).await;
            let mut batch = Batch::new();
            batch.put(b"key", b"", Bytes::new(), true);
            let next = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
            assert_eq!(next.0, last.0 + 1, "seed={seed}");
        })
        .unwrap();
    }
}

/// Makes a tree of many leaves, few of which the next checkpoint touches.
async fn many_leaves(store: &Store, model: &mut Model, random: &mut Random) {
    for first in (0..300).step_by(20) {
        let mut batch = Batch::new();
        let mut changes = Vec::new();
        for number in first..first + 20 {
            let (key, meta, value) = (key(1_000 + number), random.slice(400).to_vec(), random.slice(100));
            batch.put(&key, &meta, value.clone(), false);
            changes.push((key, Change::Put { meta, value, in_seq_index: false }));
        }
        let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
        model.accept(seq.0, &changes).unwrap();
    }
    store.flush().await.unwrap();
}

#[test]
fn a_checkpoint_that_found_the_disk_full_succeeds_once_space_is_free() {
    let options = StoreOptions {
        checkpoint_entries_min: 1 << 20,
        checkpoint_entries_max: 1 << 20,
        checkpoint_bytes_max: 1 << 30,
        ..OPTIONS
    };
    let (mut failed, mut touched) = (0, 0);
    for kind in [OperationKind::Write, OperationKind::Open] {
        for nth in 0..8 {
            let disk = SimDisk::new(nth).short_writes(0.0);
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            sim.run(async {
                let (mut random, mut model) = (Random::new(nth, 0), Model::default());
                let store = open(&env, &options).await.unwrap();
                many_leaves(&store, &mut model, &mut random).await;
                assert!(store.checkpoint().await.unwrap().unwrap().is_whole);
                // Segments that are sealed by now are listed: the manifest changes too.
                env.clock.sleep(Duration::from_secs(5)).await;
                let mut batch = Batch::new();
                batch.put(&key(1_007), b"", Bytes::from_static(b"touched"), false);
                let change = Change::Put {
                    meta: Vec::new(),
                    value: Bytes::from_static(b"touched"),
                    in_seq_index: false,
                };
                let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
                model.accept(seq.0, &[(key(1_007), change)]).unwrap();
                store.flush().await.unwrap();
                let _faulty = disk.clone().fail(kind, disk.count_of(kind) + nth, Fault::NoSpace);
                let case = format!("{kind} {nth}");
                match store.checkpoint().await {
                    Ok(done) => touched += u64::from(!done.unwrap().is_whole),
                    Err(error) => {
                        failed += 1;
                        let again = store.checkpoint().await;
                        assert!(again.as_ref().is_ok_and(Option::is_some), "{case}: {error}, then {again:?}");
                    }
                }
                compare(&store, &model, &case).await;
            })
            .unwrap();
        }
    }
    assert!(failed >= 3 && touched > 0, "{failed} {touched}");
}
