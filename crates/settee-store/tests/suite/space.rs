//! Goal: space is freed. Tombstones are dropped once nothing needs them, cause no copying before, and what
//! they hide doesn't reappear; compaction's output respects the segment size; and a slow compaction blocks no
//! other background work.
//! Method: in the simulation, fill and empty stores with small segments, and compare file sizes and bytes
//! copied; at times remove the trees, which are then rebuilt from the segments.

use crate::common::model;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use model::{Model, OPTIONS, Random, check, commit, open};
use settee_io::Env;
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{Batch, Stage, Store, StoreOptions};

const DIRECTORY: &str = "/data/store";

/// Makes checkpoints and compactions only on demand.
const BY_HAND: StoreOptions =
    StoreOptions { checkpoint_entries_min: 1 << 20, garbage_percent_max: 100, ..OPTIONS };

/// Puts large values under these keys, each in its own commit.
async fn put_large(store: &Store, random: &mut Random, keys: std::ops::Range<u32>) {
    for key in keys {
        let mut batch = Batch::new();
        batch.put(&key.to_be_bytes(), &[], random.bytes(8 << 10).into(), false);
        store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
    }
}

fn short_key(number: u32) -> Vec<u8> {
    [&b"q"[..], &number.to_be_bytes(), &[b'x'; 56]].concat()
}

/// Puts small values under these keys, and removes them again.
async fn pass_through(store: &Store, random: &mut Random, keys: std::ops::Range<u32>) {
    for first in keys.step_by(20) {
        let (mut put, mut gone) = (Batch::new(), Batch::new());
        for key in (first..first + 20).map(short_key) {
            put.put(&key, &[], random.bytes(20).into(), false);
            gone.delete(&key);
        }
        let mut writer = store.writer().await;
        writer.commit(&put, Stage::Accepted).await.unwrap();
        writer.commit(&gone, Stage::Accepted).await.unwrap();
    }
}

/// Sizes of all rewritten segments that the manifest names: records and block index.
fn rewritten_bytes(disk: &SimDisk) -> Vec<u64> {
    let text = String::from_utf8(disk.read_file(format!("{DIRECTORY}/manifest")).unwrap()).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("segment "));
    let words = |line: &str| line.split(' ').take(5).map(|word| word.parse().unwrap()).collect::<Vec<u64>>();
    let numbers = lines.map(words);
    numbers.filter(|numbers| numbers[2] > 0).map(|numbers| numbers[4]).collect()
}

async fn remove_tree(env: &Env) {
    for entry in settee_io::directory::list(&*env.engine, Path::new(DIRECTORY)).await.unwrap() {
        if entry.name.ends_with(".tree") {
            match settee_io::directory::remove(&*env.engine, &Path::new(DIRECTORY).join(entry.name)).await {
                // Its last reader has just removed it.
                Err(error) if error.is_not_found() => {}
                removed => removed.unwrap(),
            }
        }
    }
}

#[test]
fn tombstones_behind_live_data_go_at_last() {
    let sim = Sim::new(7);
    let env = sim.env();
    let (sizes, copied) = sim
        .run(async {
            let mut random = Random::new(7);
            let store = open(&env, &StoreOptions { garbage_percent_max: 30, ..OPTIONS }).await;
            put_large(&store, &mut random, 0..40).await;
            store.compact().await.unwrap();
            let (mut sizes, mut copied) = (Vec::new(), Vec::new());
            for round in 0..8 {
                pass_through(&store, &mut random, round * 1000..(round + 1) * 1000).await;
                let before = store.store_stats().copied_bytes;
                store.compact().await.unwrap();
                store.compact().await.unwrap();
                let stats = store.store_stats();
                sizes.push(stats.segment_bytes);
                copied.push(stats.copied_bytes - before);
            }
            (sizes, copied)
        })
        .unwrap();
    let live = 40 * (8 << 10);
    assert!(sizes.iter().all(|size| *size < live * 3 / 2), "tombstones pile up: {sizes:?}");
    assert!(copied.iter().all(|copied| *copied < live), "tombstones are copied: {copied:?}");
}

/// The oldest segments have too little garbage to be rewritten for it.
#[test]
fn tombstones_behind_little_garbage_go_once_they_take_their_share() {
    let sim = Sim::new(7);
    let env = sim.env();
    let sizes = sim
        .run(async {
            let mut random = Random::new(7);
            let options = StoreOptions { checkpoint_entries_min: 300, garbage_percent_max: 30, ..OPTIONS };
            let store = open(&env, &options).await;
            put_holders(&store, &mut random, 40).await;
            let mut sizes = Vec::new();
            for round in 0..20 {
                pass_through(&store, &mut random, round * 400..(round + 1) * 400).await;
                env.clock.sleep(Duration::from_secs(10)).await;
                sizes.push(store.store_stats().segment_bytes);
            }
            sizes
        })
        .unwrap();
    let live = 40 * (8 << 10);
    assert!(sizes.iter().all(|size| *size < live * 2), "tombstones pile up: {sizes:?}");
}

/// Fills segments with a little garbage in each, so that they block the tombstones after them.
async fn put_holders(store: &Store, random: &mut Random, count: u32) {
    for _ in 0..2 {
        for key in 0..count {
            let mut batch = Batch::new();
            batch.put(format!("small {key}").as_bytes(), &[], random.bytes(100).into(), false);
            if store.snapshot().get(&key.to_be_bytes()).await.unwrap().is_none() {
                batch.put(&key.to_be_bytes(), &[], random.bytes(8 << 10).into(), false);
            }
            let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
            store.wait(seq, Stage::Persisted).await.unwrap();
        }
    }
    store.compact().await.unwrap();
}

#[test]
fn tombstones_that_have_to_stay_are_not_copied_with_each_checkpoint() {
    let sim = Sim::new(7);
    let env = sim.env();
    let copied = sim
        .run(async {
            let mut random = Random::new(7);
            let store = open(&env, &BY_HAND).await;
            put_holders(&store, &mut random, 10).await;
            pass_through(&store, &mut random, 0..120).await;
            store.compact().await.unwrap();
            let mut copied = Vec::new();
            for round in 0..10_u32 {
                let mut batch = Batch::new();
                batch.put(format!("round {round}").as_bytes(), &[], Bytes::from_static(b"1"), false);
                store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
                let before = store.store_stats().copied_bytes;
                store.compact().await.unwrap();
                copied.push(store.store_stats().copied_bytes - before);
            }
            copied
        })
        .unwrap();
    assert!(copied.iter().sum::<u64>() < 8 << 10, "{copied:?} bytes were copied");
}

#[test]
fn segments_of_tombstones_join_up_to_the_size_of_a_segment() {
    let disk = SimDisk::new(7);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let sizes = sim
        .run(async {
            let mut random = Random::new(7);
            let store = open(&env, &BY_HAND).await;
            put_holders(&store, &mut random, 32).await;
            pass_through(&store, &mut random, 0..700).await;
            store.compact().await.unwrap();
            rewritten_bytes(&disk)
        })
        .unwrap();
    let most = u64::from(OPTIONS.log.segment_bytes_max);
    assert!(sizes.iter().sum::<u64>() > most, "they would be too much for one: {sizes:?}");
    // The block index comes on top.
    assert!(sizes.iter().all(|size| *size <= most + most / 64), "{sizes:?}, {most} at most");
}

/// Whichever tombstones were dropped, a tree that is rebuilt from the segments shows nothing that was
/// removed.
#[test]
fn what_was_removed_does_not_come_back_without_the_tree() {
    let (mut rewritten, mut lost) = (0, 0);
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let (mut random, mut model) = (Random::new(seed), Model::default());
            let garbage_percent_max = [5, 20, 40][seed as usize % 3];
            let options = StoreOptions { garbage_percent_max, ..BY_HAND };
            let mut store = open(&env, &options).await;
            for _ in 0..4 {
                for _ in 0..10 + random.below(40) {
                    commit(&store, &mut model, &mut random, Stage::Accepted).await;
                    match random.below(12) {
                        0 => assert!(store.checkpoint().await.is_ok()),
                        1 => assert!(store.compact().await.is_ok()),
                        2 => env.clock.sleep(Duration::from_secs(2)).await,
                        _ => {}
                    }
                }
                rewritten += store.store_stats().compacted_count;
                store.close().await.unwrap();
                drop(store);
                if random.below(3) > 0 {
                    remove_tree(&env).await;
                    lost += 1;
                }
                store = open(&env, &options).await;
                check(&store.snapshot(), &model, &format!("seed={seed}")).await;
            }
        })
        .unwrap();
    }
    println!("{rewritten} segments rewritten, {lost} trees lost");
    assert!(rewritten > 60 && lost > 60, "{rewritten} {lost}");
}

#[test]
fn a_slow_compaction_keeps_no_checkpoint_waiting() {
    let sim = Sim::new(7);
    let env = sim.env();
    sim.run(async {
        let options = StoreOptions { compaction_bytes_per_second: 1 << 10, ..BY_HAND };
        let mut random = Random::new(7);
        for number in 0..settee_io::COMPACTION_COUNT {
            let place = format!("/data/slow {number}");
            let store = Store::open(&env, Path::new(&place), options.clone()).await.unwrap().0;
            for key in (0..80_u32).chain((0..80).step_by(2)) {
                let mut batch = Batch::new();
                batch.put(&key.to_be_bytes(), &[], random.bytes(2 << 10).into(), false);
                store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
            }
            env.spawn("compaction", async move { assert!(store.compact().await.is_ok()) });
        }
        let store = open(&env, &BY_HAND).await;
        for round in 0..10 {
            env.clock.sleep(Duration::from_secs(1)).await;
            put_large(&store, &mut random, round..round + 5).await;
            let begun = env.clock.now();
            store.checkpoint().await.unwrap().unwrap();
            let took = env.clock.now() - begun;
            assert!(took < Duration::from_secs(1), "the checkpoint waited for {took:?}");
            assert_eq!(env.compaction.available_permits(), 0, "they compact meanwhile");
        }
    })
    .unwrap();
}
