//! Goal: a value made of merge operands is the last base value with everything merged since, whichever
//! memtables and files hold its records; a read reads these records and no others.
//! Method: in the simulation, run seeded operands, values and deletions on a few keys against a model of
//! versions, with snapshots kept over checkpoints, compaction and reopening. Operand chains reach the limit
//! and exceed it, with and without a merge operator. Count the disk's reads.

use crate::common::trial;
use crate::common::versions;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use settee_io::{Env, OperationKind};
use settee_sim::trial::Random;
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{
    Batch, CommitError, LogOptions, OPERAND_COUNT_MAX, Seq, Snapshot, Stage, Store, StoreOptions,
};
use trial::key;
use versions::{Change, Model, Version, aggregate, check, merge_operator};

const OPTIONS: StoreOptions = StoreOptions {
    log: LogOptions {
        batch_bytes_max: 16 << 10,
        segment_bytes_min: 20 << 10,
        segment_bytes_max: 34 << 10,
        ..LogOptions::DEFAULT
    },
    aggregate: Some(aggregate),
    ..StoreOptions::DEFAULT
};

async fn open(env: &Env, options: &StoreOptions) -> Store {
    Store::open(env, Path::new("/data/store"), options.clone()).await.unwrap().0
}

/// Commits records to the store and the model.
async fn commit(store: &Store, model: &mut Model, changes: Vec<(Vec<u8>, Change)>) -> Seq {
    let mut batch = Batch::new();
    for (key, change) in &changes {
        match change {
            Change::Put { meta, value, in_seq_index } => batch.put(key, meta, value.clone(), *in_seq_index),
            Change::Merge { meta, operand } => batch.merge(key, meta, operand.clone()),
            Change::Delete => batch.delete(key),
        }
    }
    let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
    model.accept(seq.0, &changes).unwrap();
    store.wait(seq, Stage::Persisted).await.unwrap();
    seq
}

fn change(random: &mut Random, version: &Version, has_merge_operator: bool) -> (Vec<u8>, Change) {
    let number = random.below(4);
    let key = key(number);
    let (size, in_seq_index) = (random.below(1_200), random.one_in(2));
    // One key is changed mostly by operands.
    let change = match if number == 0 && !random.one_in(5) { 11 } else { random.below(12) } {
        0 => Change::Delete,
        1 | 2 => Change::Put { meta: b"put".to_vec(), value: random.slice(size), in_seq_index },
        // Other changes exceed the limit.
        _ if has_merge_operator || !version.has_most_operands(&key) => {
            Change::Merge { meta: b"merge".to_vec(), operand: random.slice(size / 4) }
        }
        _ => Change::Delete,
    };
    (key, change)
}

/// At each `Seq` that the index still covers, a key's records are those that it had then.
fn check_versions(
    entry: &settee_store::Entry,
    key: &[u8],
    versions: &[(u64, Arc<Version>)],
    case: &str,
) -> u64 {
    let mut known = 0;
    for (seq, version) in versions {
        let Some(pointers) = entry.pointers_at(Seq(*seq)) else { continue };
        let found: Vec<u64> = pointers.iter().map(|pointer| pointer.location.seq).collect();
        let parts = version.entries.get(key).map(|entry| &entry.parts[..]).unwrap_or_default();
        let expected: Vec<u64> = parts.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(found, expected, "{case} at={seq}");
        known += 1;
    }
    known
}

#[test]
fn values_from_operands_are_what_was_put_and_merged() {
    let mut known = 0;
    let mut longest = 0;
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let env = sim.env();
        let has_merge_operator = seed.is_multiple_of(2);
        let options = StoreOptions {
            merge_operator: has_merge_operator.then_some(merge_operator),
            versions_max: [0, 5][(seed / 2 % 2) as usize],
            checkpoint_entries_min: [6, 1 << 20][(seed / 4 % 2) as usize],
            checkpoint_entries_max: [6, 1 << 20][(seed / 4 % 2) as usize],
            ..OPTIONS
        };
        sim.run(async {
            let (mut random, mut model) = (Random::new(seed, 0), Model::default());
            let mut store = open(&env, &options).await;
            let mut kept: Vec<(Snapshot, Arc<Version>)> = Vec::new();
            let mut versions: Vec<(u64, Arc<Version>)> = Vec::new();
            for step in 0..150 {
                let case = format!("seed={seed} step={step}");
                let (_, version) = model.newest();
                let changes = vec![change(&mut random, &version, has_merge_operator)];
                commit(&store, &mut model, changes).await;
                let (newest, version) = model.newest();
                versions.push((newest, version.clone()));
                let snapshot = store.snapshot();
                if random.one_in(4) {
                    check(&snapshot, &version, true)
                        .await
                        .unwrap_or_else(|problem| panic!("{case}: {problem}"));
                }
                for (key, expected) in &version.entries {
                    longest = longest.max(expected.parts.len());
                    let entry = snapshot.get(key).await.unwrap().unwrap();
                    known +=
                        check_versions(&entry, key, &versions[versions.len().saturating_sub(8)..], &case);
                }
                match random.below(14) {
                    0 => drop(store.checkpoint().await.unwrap()),
                    1 => drop(store.compact().await.unwrap()),
                    2 => env.clock.sleep(Duration::from_millis(400)).await,
                    3 | 4 => kept.push((snapshot, version)),
                    5 if random.one_in(3) => {
                        for (snapshot, version) in kept.drain(..) {
                            let same = check(&snapshot, &version, true).await;
                            same.unwrap_or_else(|problem| panic!("{case}, kept: {problem}"));
                        }
                        drop(snapshot);
                        store.close().await.unwrap();
                        drop(store);
                        store = open(&env, &options).await;
                        let same = check(&store.snapshot(), &version, true).await;
                        same.unwrap_or_else(|problem| panic!("{case}, opened again: {problem}"));
                        let (recorded, found) = store.live_tables().await.unwrap();
                        assert_eq!(recorded, found, "{case}");
                    }
                    _ => {}
                }
            }
        })
        .unwrap();
    }
    assert!(known > 10_000 && longest == OPERAND_COUNT_MAX, "{known} {longest}");
}

/// Puts a value and merges operands into one key, with another key's records in between; calls `between`
/// after each.
async fn build_operand_chain(
    store: &Store,
    model: &mut Model,
    count: usize,
    between: &mut impl AsyncFnMut(&Store, usize),
) {
    let other = Change::Put { meta: Vec::new(), value: Bytes::from(vec![1; 3_000]), in_seq_index: false };
    for index in 0..count {
        let value = Bytes::from(format!("<{index}>"));
        let change = match index {
            0 => Change::Put { meta: Vec::new(), value, in_seq_index: true },
            _ => Change::Merge { meta: vec![index as u8], operand: value },
        };
        commit(store, model, vec![(b"key".to_vec(), change), (b"other".to_vec(), other.clone())]).await;
        between(store, index).await;
    }
}

#[test]
fn one_operand_past_the_limit_is_refused_or_merged() {
    for has_merge_operator in [false, true] {
        let sim = Sim::new(1);
        let env = sim.env();
        sim.run(async {
            let options =
                StoreOptions { merge_operator: has_merge_operator.then_some(merge_operator), ..OPTIONS };
            let (store, mut model) = (open(&env, &options).await, Model::default());
            build_operand_chain(&store, &mut model, OPERAND_COUNT_MAX, &mut async |store: &Store, index| {
                if index % 10 == 9 {
                    store.checkpoint().await.unwrap();
                }
            })
            .await;
            let (seq, version) = model.newest();
            check(&store.snapshot(), &version, true).await.unwrap();
            let mut batch = Batch::new();
            batch.put(b"before", b"", Bytes::new(), false);
            batch.merge(b"key", b"last", Bytes::from_static(b"<last>"));
            let committed = store.writer().await.commit(&batch, Stage::Persisted).await;
            if has_merge_operator {
                store.wait(committed.unwrap(), Stage::Persisted).await.unwrap();
                let snapshot = store.snapshot();
                let entry = snapshot.get(b"key").await.unwrap().unwrap();
                assert_eq!((entry.pointers().count(), &entry.meta[..]), (1, &b"last"[..]));
                let value = snapshot.read(entry.location).await.unwrap().value();
                let older: Vec<u8> =
                    (0..OPERAND_COUNT_MAX).rev().flat_map(|n| format!("<{n}>").into_bytes()).collect();
                assert_eq!(value, [&b"<last>"[..], &older].concat());
            } else {
                assert!(matches!(committed, Err(CommitError::TooManyOperands)), "{committed:?}");
                // Nothing of it was accepted.
                assert_eq!(store.writer().await.last_seq().0, seq);
                check(&store.snapshot(), &version, true).await.unwrap();
            }
        })
        .unwrap();
    }
}

/// An operand chain that a checkpoint merged into the tree continues under newer records, and under those
/// that a failed checkpoint left.
#[test]
fn a_read_takes_as_many_reads_as_the_value_has_records() {
    let disk = SimDisk::new(3).short_reads(0.0);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (store, mut model) = (open(&env, &OPTIONS).await, Model::default());
        for round in 0..4_usize {
            // Each round begins with a base value: older records aren't needed, and aren't read.
            build_operand_chain(&store, &mut model, 5 + round, &mut async |store: &Store, index| {
                if index == 3 {
                    store.checkpoint().await.unwrap();
                }
            })
            .await;
            store.flush().await.unwrap();
            if round % 2 == 1 {
                env.clock.sleep(Duration::from_secs(3)).await;
                store.compact().await.unwrap();
            }
            let snapshot = store.snapshot();
            let entry = snapshot.get(b"key").await.unwrap().unwrap();
            let pointers: Vec<_> = entry.pointers().collect();
            assert_eq!(pointers.len(), 5 + round);
            // The first read opens the files.
            snapshot.read_parts(pointers.clone()).await.unwrap();
            let before = disk.count_of(OperationKind::Read);
            let records = snapshot.read_parts(pointers.clone()).await.unwrap();
            let reads = disk.count_of(OperationKind::Read) - before;
            let values: Vec<String> =
                records.iter().map(|record| String::from_utf8_lossy(&record.value()).into_owned()).collect();
            let expected: Vec<String> = (0..5 + round).rev().map(|index| format!("<{index}>")).collect();
            assert_eq!(values, expected);
            assert!(reads <= pointers.len() as u64, "{reads} reads of {} records", pointers.len());
            let (_, version) = model.newest();
            check(&snapshot, &version, true).await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn an_operand_on_a_removed_key_needs_no_older_record() {
    for checkpoint_at in 0..6 {
        let sim = Sim::new(checkpoint_at);
        let env = sim.env();
        sim.run(async {
            let options = StoreOptions { versions_max: 5, ..OPTIONS };
            let (mut store, mut model) = (open(&env, &options).await, Model::default());
            let put =
                |text: &'static str| Change::Put { meta: Vec::new(), value: text.into(), in_seq_index: true };
            let merge = |text: &'static str| Change::Merge { meta: Vec::new(), operand: text.into() };
            let changes = [put("a"), merge("b"), Change::Delete, merge("c"), merge("d")];
            for (index, change) in (0..).zip(changes) {
                if index == checkpoint_at {
                    store.checkpoint().await.unwrap();
                }
                commit(&store, &mut model, vec![(b"key".to_vec(), change)]).await;
                let (_, version) = model.newest();
                let same = check(&store.snapshot(), &version, true).await;
                same.unwrap_or_else(|problem| {
                    panic!("checkpoint_at={checkpoint_at} index={index}: {problem}")
                });
            }
            let (_, version) = model.newest();
            let entry = store.snapshot().get(b"key").await.unwrap().unwrap();
            // The key had no value before.
            assert_eq!(entry.pointers_at(Seq(2)), None);
            for _ in 0..2 {
                store.checkpoint().await.unwrap();
                check(&store.snapshot(), &version, true).await.unwrap();
                store.close().await.unwrap();
                drop(store);
                store = open(&env, &options).await;
                check(&store.snapshot(), &version, true).await.unwrap();
            }
        })
        .unwrap();
    }
}
