//! Goal: garbage is freed when writes pause, and an idle store does nothing; the tree's garbage counts like the
//! log's; and a writer that is faster than compaction is slowed without a stop.
//! Method: in the simulation, overwrite documents, let time pass, and look at sizes, counts and operations of the
//! disk. Times are those of the simulated clock.

use crate::common::model;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use model::{OPTIONS, Random, open};
use settee_io::Env;
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{Batch, LogOptions, Stage, Store, StoreOptions, StoreStats};

const DIRECTORY: &str = "/data/store";

/// Work at pauses alone, with little garbage.
const AT_PAUSES: StoreOptions = StoreOptions {
    checkpoint_entries_min: 1 << 20,
    garbage_percent_max: 100,
    reclaim_bytes_min: 16 << 10,
    ..OPTIONS
};

/// Puts a random value under each key, in commits of ten, and remembers the values.
async fn put_all(store: &Store, random: &mut Random, keys: u32, bytes: usize) -> BTreeMap<u32, Vec<u8>> {
    let values: BTreeMap<u32, Vec<u8>> = (0..keys).map(|key| (key, random.bytes(bytes))).collect();
    let all: Vec<_> = values.iter().collect();
    for some in all.chunks(10) {
        let mut batch = Batch::new();
        for (key, value) in some {
            batch.put(&key.to_be_bytes(), &[], (*value).clone().into(), false);
        }
        let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
        store.wait(seq, Stage::Persisted).await.unwrap();
    }
    values
}

async fn assert_holds(store: &Store, values: &BTreeMap<u32, Vec<u8>>, case: &str) {
    let snapshot = store.snapshot();
    for (key, value) in values {
        let entry = snapshot.get(&key.to_be_bytes()).await.unwrap().expect("a key is missing");
        assert!(snapshot.read(entry.location).await.unwrap().value() == value[..], "{case}: key {key}");
    }
}

fn garbage_percent(stats: StoreStats) -> u64 {
    stats.garbage_bytes * 100 / (stats.garbage_bytes + stats.live_bytes).max(1)
}

fn file_bytes(disk: &SimDisk) -> u64 {
    let lengths = disk.paths().into_iter().filter_map(|path| Some(disk.read_file(path)?.len() as u64));
    lengths.sum()
}

#[test]
fn garbage_is_freed_at_a_pause_once_and_an_idle_store_does_nothing() {
    for seed in seeds(8) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let options =
                StoreOptions { log: LogOptions { direct: seed % 2 == 1, ..OPTIONS.log }, ..AT_PAUSES };
            let store = open(&env, &options).await;
            let mut values = BTreeMap::new();
            for _ in 0..6 {
                values = put_all(&store, &mut random, 60, 1000).await;
                env.clock.sleep(Duration::from_millis(900)).await;
                assert_eq!(store.store_stats().checkpoint_count, 0, "seed={seed}: no pause yet");
            }
            let before = store.store_stats();
            assert!(garbage_percent(before) > 75, "seed={seed}: {before:?}");
            let bytes_before = file_bytes(&disk);
            env.clock.sleep(Duration::from_secs(20)).await;
            let after = store.store_stats();
            assert!(garbage_percent(after) <= 35, "seed={seed}: {after:?}");
            assert!(after.garbage_bytes < before.garbage_bytes / 8, "seed={seed}: {after:?}");
            assert!(file_bytes(&disk) < bytes_before / 2, "seed={seed}: {} left", file_bytes(&disk));
            assert_holds(&store, &values, &format!("seed={seed}")).await;
            // Reads, and an hour.
            let operations = disk.operation_count();
            env.clock.sleep(Duration::from_secs(3600)).await;
            assert_eq!(disk.operation_count(), operations, "seed={seed}: an idle store works");
            assert_eq!(store.store_stats().checkpoint_count, after.checkpoint_count, "seed={seed}");
            store.close().await.unwrap();
            let store = open(&env, &options).await;
            assert_holds(&store, &values, &format!("seed={seed} reopened")).await;
        })
        .unwrap();
    }
}

#[test]
fn a_store_without_garbage_is_left_alone_at_a_pause() {
    let disk = SimDisk::new(3);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let store = open(&env, &AT_PAUSES).await;
        put_all(&store, &mut Random::new(3), 200, 1000).await;
        // Until the closed segments are sealed.
        env.clock.sleep(Duration::from_secs(1)).await;
        let operations = disk.operation_count();
        env.clock.sleep(Duration::from_secs(60)).await;
        assert_eq!((disk.operation_count(), store.store_stats().checkpoint_count), (operations, 0));
    })
    .unwrap();
}

/// What a process that ended before the pause has left is freed by the next one.
#[test]
fn garbage_from_before_the_opening_is_freed_at_a_pause() {
    let sim = Sim::new(5);
    let env = sim.env();
    sim.run(async {
        let mut random = Random::new(5);
        let store = open(&env, &AT_PAUSES).await;
        let mut values = BTreeMap::new();
        for _ in 0..5 {
            values = put_all(&store, &mut random, 60, 1000).await;
            store.checkpoint().await.unwrap();
        }
        store.close().await.unwrap();
        drop(store);
        let store = open(&env, &AT_PAUSES).await;
        assert!(garbage_percent(store.store_stats()) > 60, "{:?}", store.store_stats());
        env.clock.sleep(Duration::from_secs(20)).await;
        assert!(garbage_percent(store.store_stats()) <= 35, "{:?}", store.store_stats());
        assert_holds(&store, &values, "reopened").await;
    })
    .unwrap();
}

/// The wait for a pause holds neither the store nor its directory's lock.
#[test]
fn the_wait_for_a_pause_keeps_no_store_open() {
    for closes in [false, true] {
        let sim = Sim::new(4);
        let env = sim.env();
        sim.run(async {
            let store = open(&env, &AT_PAUSES).await;
            let mut random = Random::new(4);
            for _ in 0..3 {
                put_all(&store, &mut random, 60, 1000).await;
            }
            // Sealing ends, and the pause hasn't come.
            env.clock.sleep(Duration::from_millis(700)).await;
            let begun = env.clock.now();
            if closes {
                store.close().await.unwrap();
            }
            drop(store);
            Store::open(&env, Path::new(DIRECTORY), AT_PAUSES).await.unwrap();
            assert!(env.clock.now() - begun < Duration::from_millis(250), "closes={closes}");
        })
        .unwrap();
    }
}

/// Small checkpoints change a few leaves each: the file's garbage is the tree's alone.
#[test]
fn a_tree_with_too_much_garbage_is_rewritten_at_a_pause() {
    let sim = Sim::new(6);
    let env = sim.env();
    sim.run(async {
        let options = StoreOptions { garbage_idle_percent_max: 100, ..AT_PAUSES };
        let store = open(&env, &options).await;
        let keys = |number: u32| [&number.to_be_bytes()[..], &[b'x'; 100]].concat();
        let mut batch = Batch::new();
        (0..3000).for_each(|number| batch.put(&keys(number), &[7; 200], vec![1].into(), false));
        let batches: Vec<u32> = (0..3000).collect();
        for numbers in batches.chunks(40) {
            let mut batch = Batch::new();
            numbers.iter().for_each(|number| batch.put(&keys(*number), &[7; 200], vec![1].into(), false));
            store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
        }
        store.checkpoint().await.unwrap();
        for number in 0..60 {
            let mut batch = Batch::new();
            batch.put(&keys(number * 50), &[7; 200], vec![2].into(), false);
            store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
            store.checkpoint().await.unwrap();
        }
        store.close().await.unwrap();
        drop(store);
        let store = open(&env, &AT_PAUSES).await;
        let before = store.store_stats();
        env.clock.sleep(Duration::from_secs(20)).await;
        let after = store.store_stats();
        assert!(after.whole_count >= 1, "{after:?}");
        assert!(
            after.tree_bytes * 5 < before.tree_bytes * 4,
            "{} of {}",
            after.tree_bytes,
            before.tree_bytes
        );
        assert!(garbage_percent(after) <= 15, "{after:?}");
        let snapshot = store.snapshot();
        for number in 0..3000 {
            let entry = snapshot.get(&keys(number)).await.unwrap().expect("a key is missing");
            let value = 1 + u8::from(number % 50 == 0);
            assert_eq!(snapshot.read(entry.location).await.unwrap().value()[..], [value], "key {number}");
        }
    })
    .unwrap();
}

/// Overwrites 6 MB of values, 240 KB in each commit. Returns the largest garbage, and the longest commit.
async fn overwrite(env: &Env, store: &Store, commit_count: usize) -> (u64, Duration) {
    let mut random = Random::new(1);
    let value = random.bytes(60 << 10);
    let (mut garbage, mut longest) = (0, Duration::ZERO);
    for _ in 0..commit_count {
        let begun = env.clock.now();
        let mut batch = Batch::new();
        for _ in 0..4 {
            batch.put(&[random.below(100) as u8], &[], value.clone().into(), false);
        }
        let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
        store.wait(seq, Stage::Persisted).await.unwrap();
        longest = longest.max(env.clock.now() - begun);
        garbage = garbage.max(store.store_stats().garbage_bytes);
    }
    (garbage, longest)
}

/// Compaction at 1 MiB/s, and a writer that is much faster.
#[test]
fn a_writer_that_is_faster_than_compaction_is_slowed_and_never_stopped() {
    let run = |garbage_hard_percent_max| {
        let sim = Sim::new(7);
        let env = sim.env();
        sim.run(async {
            let options = StoreOptions {
                log: LogOptions::DEFAULT,
                garbage_hard_percent_max,
                compaction_bytes_per_second: 1 << 20,
                ..OPTIONS
            };
            let store = open(&env, &options).await;
            let found = overwrite(&env, &store, 300).await;
            let (stats, elapsed) = (store.store_stats(), env.clock.now());
            // The wait ends with the work that it is for.
            env.clock.sleep(Duration::from_secs(60)).await;
            let begun = env.clock.now();
            drop(store.writer().await);
            assert_eq!(env.clock.now(), begun, "no wait is left");
            (found, stats, elapsed)
        })
        .unwrap()
    };
    let ((free_garbage, _), free, free_time) = run(100);
    let ((garbage, longest), paced, time) = run(50);
    let found =
        format!("free: {free_garbage} {free_time:?}; paced: {garbage} {time:?} {longest:?} {paced:?}");
    println!("{found}");
    assert_eq!((free.delayed_us, free.paced_bytes_per_second), (0, 0), "{found}");
    assert!(paced.delayed_us > 500_000 && time > free_time, "{found}");
    assert!(garbage < free_garbage * 3 / 4, "{found}");
    // 240 KiB at 4 MiB/s take 60 ms.
    assert!(longest < Duration::from_millis(500), "{found}");
    assert!(time < Duration::from_secs(30), "{found}");
}

#[test]
fn closing_a_store_ends_a_writers_delay() {
    let sim = Sim::new(8);
    let env = sim.env();
    sim.run(async {
        let options =
            StoreOptions { log: LogOptions::DEFAULT, compaction_bytes_per_second: 1 << 20, ..OPTIONS };
        let store = open(&env, &options).await;
        overwrite(&env, &store, 100).await;
        store.close().await.unwrap();
        let begun = env.clock.now();
        let mut batch = Batch::new();
        batch.delete(b"key");
        assert!(store.writer().await.commit(&batch, Stage::Persisted).await.is_err());
        assert_eq!(env.clock.now(), begun);
    })
    .unwrap();
}
