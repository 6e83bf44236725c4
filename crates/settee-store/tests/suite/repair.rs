//! Goal: a check takes what is sound for sound, and a repair comes to its end, where values are made of
//! many records.
//! Method: in the simulation, deltas on deletions, before and after a checkpoint; and chains up to the
//! limit on both sides of a folded record, which is then damaged.

use crate::common::model;

use std::path::Path;

use bytes::Bytes;
use model::{OPTIONS, open};
use settee_io::Env;
use settee_sim::{Sim, SimDisk};
use settee_store::{Batch, CHAIN_COUNT_MAX, CheckEvent, Loss, Stage, Store, StoreOptions, check, repair};

const FOLDER: &str = "/data/store";

async fn commit(store: &Store, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
    store.wait(seq, Stage::Persisted).await.unwrap();
}

async fn problems(env: &Env, folder: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let told = |event| {
        if let CheckEvent::Problem(problem) = event {
            problems.push(problem.to_string());
        }
    };
    check(env, Path::new(folder), &OPTIONS, told).await.unwrap();
    problems
}

#[test]
fn a_delta_on_a_deletion_is_sound() {
    // After which of the three commits a checkpoint is made, and whether segments are rewritten.
    for case in 0..16 {
        let sim = Sim::new(7);
        let env = sim.env();
        let problems = sim
            .run(async {
                let store = open(&env, &OPTIONS).await;
                let checkpoint = async |step: u32| {
                    if case >> step & 1 == 1 {
                        store.checkpoint().await.unwrap();
                    }
                };
                commit(&store, |batch| batch.put(b"k", &[], Bytes::from_static(b"1"), false)).await;
                checkpoint(0).await;
                commit(&store, |batch| batch.delete(b"k")).await;
                checkpoint(1).await;
                commit(&store, |batch| batch.merge(b"k", &[], Bytes::from_static(b"2"))).await;
                commit(&store, |batch| batch.merge(b"k", &[], Bytes::from_static(b"3"))).await;
                checkpoint(2).await;
                if case >> 3 == 1 {
                    store.compact().await.unwrap();
                }
                assert_eq!(store.snapshot().get(b"k").await.unwrap().unwrap().pointers().count(), 2);
                store.close().await.unwrap();
                problems(&env, FOLDER).await
            })
            .unwrap();
        assert!(problems.is_empty(), "case {case}: {problems:?}");
    }
}

/// Makes one value of several, newest first.
fn fold(values: &[Bytes]) -> Bytes {
    values.concat().into()
}

fn delta(number: usize) -> Bytes {
    format!("<{number}>").into()
}

/// Deltas before and behind one into which those before were folded; its record is damaged then.
fn make_chain_without_its_middle(disk: &SimDisk, has_tree: bool) {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let store = open(&env, &StoreOptions { fold: Some(fold), ..OPTIONS }).await;
        for number in 0..2 * CHAIN_COUNT_MAX {
            commit(&store, |batch| batch.merge(b"key", &[], delta(number))).await;
        }
        let entry = store.snapshot().get(b"key").await.unwrap().unwrap();
        assert_eq!(entry.pointers().count(), CHAIN_COUNT_MAX, "one was folded");
        if has_tree {
            store.checkpoint().await.unwrap().unwrap();
        }
        store.close().await.unwrap();
    })
    .unwrap();
    let folded = [delta(CHAIN_COUNT_MAX), delta(CHAIN_COUNT_MAX - 1)].concat();
    let mut damaged = 0;
    for path in disk.paths() {
        let bytes = disk.read_file(&path).unwrap();
        if let Some(at) = bytes.windows(folded.len()).position(|window| window == folded) {
            disk.damage_file(&path, |bytes| bytes[at] ^= 1);
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1, "the folded record stands in one file");
}

#[test]
fn a_lost_fold_leaves_no_more_records_than_a_key_may_have() {
    for (has_tree, folds) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = SimDisk::new(7);
        make_chain_without_its_middle(&disk, has_tree);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let case = format!("tree: {has_tree}, folds: {folds}");
            let options = StoreOptions { fold: folds.then_some(fold), ..OPTIONS };
            let mut lost = Vec::new();
            let mut is_lost = |loss: Loss| lost.push((loss.key, loss.has_older));
            let (from, to) = (Path::new(FOLDER), Path::new("/data/new"));
            repair(&env, from, to, &options, &mut |_| {}, &mut is_lost).await.unwrap();
            // Neither an index nor a directory tells whose the damaged frame was.
            let is_known = has_tree || !folds;
            assert_eq!(lost, vec![(b"key".to_vec(), true); usize::from(is_known)], "{case}");
            let store = Store::open(&env, to, options).await.unwrap().0;
            let snapshot = store.snapshot();
            let entry = snapshot.get(b"key").await.unwrap().unwrap();
            assert!(entry.pointers().count() <= CHAIN_COUNT_MAX, "{case}");
            let records = snapshot.read_parts(entry.pointers()).await.unwrap();
            let value: Vec<u8> = records.iter().flat_map(|record| record.value().to_vec()).collect();
            // All but the lost one, or as many as there may be.
            let count = if folds { 2 * CHAIN_COUNT_MAX } else { CHAIN_COUNT_MAX };
            let kept = (0..count).rev().filter(|number| *number != CHAIN_COUNT_MAX);
            let expected: Vec<u8> = kept.flat_map(delta).collect();
            assert_eq!(value, expected, "{case}");
            store.close().await.unwrap();
            assert_eq!(problems(&env, "/data/new").await, Vec::<String>::new(), "{case}");
        })
        .unwrap();
    }
}
