//! Goal: a writer finds the same entries with a lookup as without, whatever was committed, checkpointed
//! and compacted since, and each key costs one descent of the tree.
//! Method: in the simulation, look keys up, commit and checkpoint in between, and compare what the writer finds
//! with a `BTreeMap`; count descents.

use std::collections::BTreeMap;

use settee_sim::{Sim, seeds};
use settee_store::{Batch, Stage, Store, StoreOptions};

use crate::common::model::{Model, OPTIONS, Random, commit, open};

/// Checkpoints only on demand.
const ON_DEMAND: StoreOptions = StoreOptions {
    checkpoint_entries_min: 1 << 30,
    checkpoint_entries_max: 1 << 30,
    checkpoint_bytes_max: 1 << 40,
    ..OPTIONS
};

fn key(number: usize) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

async fn put(store: &Store, numbers: impl Iterator<Item = usize>) -> u64 {
    let mut batch = Batch::new();
    for number in numbers {
        batch.put(&key(number), b"", "value".into(), true);
    }
    store.writer().await.commit(&batch, Stage::Persisted).await.unwrap().0
}

#[test]
fn a_writer_finds_the_newest_entries_whatever_happened_since_the_lookup() {
    let (mut kept, mut replaced) = (0, 0);
    for seed in seeds(200) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let store = open(&env, &ON_DEMAND).await;
            let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            for step in 0..20 {
                let case = format!("seed={seed} step={step}");
                let wanted: Vec<Vec<u8>> = (0..random.below(40)).map(|_| key(random.below(60))).collect();
                let lookup = store.look_up(wanted.clone()).await.unwrap();
                let mut is_checkpointed = false;
                for _ in 0..random.below(4) {
                    match random.below(6) {
                        0 | 1 => {
                            store.flush().await.unwrap();
                            is_checkpointed |= store.checkpoint().await.unwrap().is_some();
                            continue;
                        }
                        2 => {
                            store.compact().await.unwrap();
                            continue;
                        }
                        _ => {}
                    }
                    let mut batch = Batch::new();
                    let mut changed = Vec::new();
                    for _ in 0..1 + random.below(10) {
                        let key = key(random.below(60));
                        let deletes = random.below(3) == 0;
                        match deletes {
                            true => batch.delete(&key),
                            false => batch.put(&key, b"", "value".into(), random.below(2) == 0),
                        }
                        changed.push((key, deletes));
                    }
                    let last = store.writer().await.commit(&batch, Stage::Accepted).await.unwrap().0;
                    for (index, (key, deletes)) in changed.iter().enumerate() {
                        match deletes {
                            true => model.remove(key),
                            false => model.insert(key.clone(), last + 1 - (changed.len() - index) as u64),
                        };
                    }
                }
                let mut writer = store.writer().await;
                writer.set_lookup(lookup).await.unwrap();
                *(if is_checkpointed { &mut replaced } else { &mut kept }) += 1;
                for number in 0..60 {
                    let key = key(number);
                    let found = writer.get(&key).await.unwrap().map(|entry| entry.seq().0);
                    assert_eq!(found, model.get(&key).copied(), "{case} {number}");
                    let latest = writer.latest();
                    assert_eq!(latest.get(&key).await.unwrap().map(|entry| entry.seq().0), found, "{case}");
                }
            }
            store.close().await.unwrap();
        })
        .unwrap();
    }
    assert!(kept > 500 && replaced > 500, "{kept} lookups were used, {replaced} made again");
}

#[test]
fn entries_looked_up_in_bulk_are_those_looked_up_singly() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let store = open(&env, &ON_DEMAND).await;
            let mut model = Model::default();
            for step in 0..30 {
                commit(&store, &mut model, &mut random, Stage::Accepted).await;
                if random.below(4) == 0 {
                    store.checkpoint().await.unwrap();
                }
                let snapshot = store.writer().await.latest();
                let some = |random: &mut Random| match model
                    .entries
                    .keys()
                    .nth(random.below(model.entries.len().max(1)))
                {
                    Some(key) if random.below(4) > 0 => key.clone(),
                    _ => random.bytes(3),
                };
                let keys: Vec<Vec<u8>> = (0..random.below(50)).map(|_| some(&mut random)).collect();
                let together = snapshot.get_many(&keys).await.unwrap();
                assert_eq!(together.len(), keys.len());
                for (key, found) in keys.iter().zip(together) {
                    assert_eq!(found, snapshot.get(key).await.unwrap(), "seed={seed} step={step} {key:?}");
                }
            }
        })
        .unwrap();
    }
}

#[test]
fn each_key_costs_a_writer_one_descent() {
    const COUNT: usize = 200;
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let store = open(&env, &ON_DEMAND).await;
        for first in (0..2_000).step_by(200) {
            put(&store, first..first + 200).await;
        }
        store.checkpoint().await.unwrap().unwrap();
        let descents = || store.store_stats().write_lookup_count;
        let numbers = || (0..COUNT).map(|number| number * 3);

        // Decided and replaced, with a lookup in bulk.
        let before = descents();
        let lookup = store.look_up(numbers().map(key).collect()).await.unwrap();
        let mut writer = store.writer().await;
        writer.set_lookup(lookup).await.unwrap();
        let mut batch = Batch::new();
        for number in numbers() {
            assert!(writer.get(&key(number)).await.unwrap().is_some());
            batch.put(&key(number), b"", "again".into(), true);
        }
        writer.commit(&batch, Stage::Persisted).await.unwrap();
        drop(writer);
        assert_eq!(descents() - before, COUNT as u64);

        // What is in memory now costs none.
        store.flush().await.unwrap();
        let before = descents();
        drop(store.look_up(numbers().map(key).collect()).await.unwrap());
        put(&store, numbers()).await;
        assert_eq!(descents() - before, 0);

        // Without a lookup in bulk it is one descent, too.
        let before = descents();
        let mut writer = store.writer().await;
        assert!(writer.get(&key(1)).await.unwrap().is_some());
        let latest = writer.latest();
        assert!(latest.get(&key(1)).await.unwrap().is_some());
        drop(latest);
        let mut batch = Batch::new();
        batch.put(&key(1), b"", "again".into(), true);
        writer.commit(&batch, Stage::Persisted).await.unwrap();
        assert_eq!(descents() - before, 1);
    })
    .unwrap();
}
