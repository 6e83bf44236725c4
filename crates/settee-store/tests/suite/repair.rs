//! Goal: a check passes and a repair ends where values are made of many records.
//! Method: in the simulation, merge operands onto deletions, before and after a checkpoint; and make operand
//! chains up to the limit on both sides of a merged record, which is then damaged.

use crate::common::model;

use std::path::Path;

use bytes::Bytes;
use model::{OPTIONS, open};
use settee_io::Env;
use settee_sim::{Sim, SimDisk};
use settee_store::{Batch, CheckEvent, Loss, OPERAND_COUNT_MAX, Stage, Store, StoreOptions, check, repair};

const DIRECTORY: &str = "/data/store";

async fn commit(store: &Store, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
    store.wait(seq, Stage::Persisted).await.unwrap();
}

async fn problems(env: &Env, directory: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let on_event = |event| {
        if let CheckEvent::Problem(problem) = event {
            problems.push(problem.to_string());
        }
    };
    check(env, Path::new(directory), &OPTIONS, on_event).await.unwrap();
    problems
}

#[test]
fn an_operand_on_a_deletion_is_no_problem() {
    // Varies after which of the three commits a checkpoint is made, and whether segments are rewritten.
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
                problems(&env, DIRECTORY).await
            })
            .unwrap();
        assert!(problems.is_empty(), "case {case}: {problems:?}");
    }
}

/// Combines several values, newest first.
fn merge_operator(values: &[Bytes]) -> Bytes {
    values.concat().into()
}

fn operand(number: usize) -> Bytes {
    format!("<{number}>").into()
}

/// Makes operands before and after a record into which the earlier ones were merged, and damages that record.
fn make_chain_without_its_middle(disk: &SimDisk, has_tree: bool) {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let store = open(&env, &StoreOptions { merge_operator: Some(merge_operator), ..OPTIONS }).await;
        for number in 0..2 * OPERAND_COUNT_MAX {
            commit(&store, |batch| batch.merge(b"key", &[], operand(number))).await;
        }
        let entry = store.snapshot().get(b"key").await.unwrap().unwrap();
        assert_eq!(entry.pointers().count(), OPERAND_COUNT_MAX, "one was merged");
        if has_tree {
            store.checkpoint().await.unwrap().unwrap();
        }
        store.close().await.unwrap();
    })
    .unwrap();
    let merged = [operand(OPERAND_COUNT_MAX), operand(OPERAND_COUNT_MAX - 1)].concat();
    let mut damaged = 0;
    for path in disk.paths() {
        let bytes = disk.read_file(&path).unwrap();
        if let Some(at) = bytes.windows(merged.len()).position(|window| window == merged) {
            disk.damage_file(&path, |bytes| bytes[at] ^= 1);
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1, "the merged record is in one file");
}

#[test]
fn a_lost_merge_result_leaves_no_more_records_than_a_key_may_have() {
    for (has_tree, has_merge_operator) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = SimDisk::new(7);
        make_chain_without_its_middle(&disk, has_tree);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let case = format!("tree: {has_tree}, merge operator: {has_merge_operator}");
            let options =
                StoreOptions { merge_operator: has_merge_operator.then_some(merge_operator), ..OPTIONS };
            let mut lost = Vec::new();
            let mut is_lost = |loss: Loss| lost.push((loss.key, loss.has_older));
            let (from, to) = (Path::new(DIRECTORY), Path::new("/data/new"));
            repair(&env, from, to, &options, &mut |_| {}, &mut is_lost).await.unwrap();
            // Neither the index nor a segment index tells the key of the damaged frame.
            let is_known = has_tree || !has_merge_operator;
            assert_eq!(lost, vec![(b"key".to_vec(), true); usize::from(is_known)], "{case}");
            let store = Store::open(&env, to, options).await.unwrap().0;
            let snapshot = store.snapshot();
            let entry = snapshot.get(b"key").await.unwrap().unwrap();
            assert!(entry.pointers().count() <= OPERAND_COUNT_MAX, "{case}");
            let records = snapshot.read_parts(entry.pointers()).await.unwrap();
            let value: Vec<u8> = records.iter().flat_map(|record| record.value().to_vec()).collect();
            // All but the lost record, or as many as allowed.
            let count = if has_merge_operator { 2 * OPERAND_COUNT_MAX } else { OPERAND_COUNT_MAX };
            let kept = (0..count).rev().filter(|number| *number != OPERAND_COUNT_MAX);
            let expected: Vec<u8> = kept.flat_map(operand).collect();
            assert_eq!(value, expected, "{case}");
            store.close().await.unwrap();
            assert_eq!(problems(&env, "/data/new").await, Vec::<String>::new(), "{case}");
        })
        .unwrap();
    }
}
