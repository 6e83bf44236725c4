//! Goal: a store is an ordered map of versions; its snapshots never change, and show only persisted records.
//! Method: in the simulation, run seeded commits and deletions against a `BTreeMap`, with snapshots kept over
//! later writes. Reopen at times, and cut the power while batches are accepted.

#![expect(clippy::disallowed_methods, reason = "two tests are about real threads")]

use crate::common::model;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use model::{Model, OPTIONS, Random, check, commit, open};
use settee_io::{Env, ThreadOptions};
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{Batch, LogOptions, Seq, Snapshot, Stage, Store, StoreOptions};

#[test]
fn a_store_is_an_ordered_map_and_its_snapshots_stay() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let mut model = Model::default();
            let mut store = open(&env, &OPTIONS).await;
            let mut kept: Vec<(Snapshot, Model)> = Vec::new();
            for step in 0..60 {
                let case = format!("seed={seed} step={step}");
                let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][random.below(3)];
                let seq = commit(&store, &mut model, &mut random, stage).await;
                store.wait(seq, Stage::Persisted).await.unwrap();
                let snapshot = store.snapshot();
                assert_eq!(snapshot.seq(), seq, "{case}");
                check(&snapshot, &model, &case).await;
                if random.below(6) == 0 {
                    kept.push((snapshot, model.clone()));
                }
                if random.below(15) == 0 {
                    for (snapshot, model) in kept.drain(..) {
                        check(&snapshot, &model, &case).await;
                    }
                    store.close().await.unwrap();
                    store = open(&env, &OPTIONS).await;
                    check(&store.snapshot(), &model, &case).await;
                }
            }
        })
        .unwrap();
    }
}

#[test]
fn no_snapshot_ever_shows_what_a_power_loss_undoes() {
    let mut shown_count = 0;
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let shown = AtomicU64::new(0);
        sim.run(async {
            let mut random = Random::new(seed);
            let mut model = Model::default();
            let store = open(&env, &OPTIONS).await;
            for _ in 0..1 + random.below(30) {
                let stage =
                    [Stage::Accepted, Stage::Accepted, Stage::Written, Stage::Persisted][random.below(4)];
                let seq = commit(&store, &mut model, &mut random, stage).await;
                store.wait(seq, stage).await.unwrap();
                let before = shown.swap(store.snapshot().seq().0, Ordering::Relaxed);
                assert!(before <= store.snapshot().seq().0, "seed={seed}");
            }
            disk.cut_power();
        });
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        let found = sim.run(async { open(&env, &OPTIONS).await.snapshot().seq().0 }).unwrap();
        let shown = shown.into_inner();
        assert!(shown <= found, "seed={seed}: {shown} was shown, {found} is left");
        shown_count += shown;
    }
    assert!(shown_count > 0);
}

/// On real threads, since the simulation runs one task at a time: a small commit and a large one share
/// groups, and each must find what it waited for.
#[test]
fn after_a_wait_the_next_snapshot_shows_the_commit() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let env = Env::system(runtime.handle().clone(), ThreadOptions::default());
    runtime.block_on(async {
        let options = StoreOptions { log: LogOptions::default(), ..OPTIONS };
        let store = Arc::new(Store::open(&env, &directory.path().join("store"), options).await.unwrap().0);
        let mut tasks = Vec::new();
        for (task, size) in [1_u32, 1_000].into_iter().enumerate() {
            let store = store.clone();
            tasks.push(tokio::spawn(async move {
                for round in 0..200_u32 {
                    let mut batch = Batch::new();
                    for index in 0..size {
                        batch.put(
                            format!("{task}{}", index.wrapping_mul(2_654_435_761) ^ round).as_bytes(),
                            b"",
                            Bytes::from_static(b"x"),
                            true,
                        );
                    }
                    let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
                    store.wait(seq, Stage::Persisted).await.unwrap();
                    assert!(store.snapshot().seq() >= seq);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// On real threads: subscribers that begin when a sync completes are woken too.
#[test]
fn a_subscriber_is_woken_whenever_it_begins() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let env = Env::system(runtime.handle().clone(), ThreadOptions::default());
    runtime.block_on(async {
        let log = LogOptions { written_age_ms_max: 0, ..LogOptions::default() };
        let options = StoreOptions { log, ..OPTIONS };
        let store = Arc::new(Store::open(&env, &directory.path().join("store"), options).await.unwrap().0);
        for _ in 0..500 {
            let mut batch = Batch::new();
            batch.put(b"key", b"", Bytes::new(), true);
            let seq = store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
            let follower = store.clone();
            tokio::spawn(async move { follower.changed_after(Seq(seq.0 - 1)).await.unwrap() }).await.unwrap();
            assert!(store.snapshot().seq() >= seq);
        }
    });
}
