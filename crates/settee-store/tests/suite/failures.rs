//! Goal: failures, dropped futures and damage do no more harm than they must: no acknowledged write is lost,
//! nothing wrong is read, and the store goes on as soon as it can.
//! Method: in the simulation, cause one failure at a time: a flipped bit in each block of the tree, a full
//! disk, futures dropped after each of their polls, a writer that never ends. Compare the contents afterwards
//! with a `BTreeMap`.

use crate::common::model;

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use model::{Model, OPTIONS, Random, check, open};
use settee_io::directory::{self, DirectorySyncs};
use settee_io::{Env, OperationKind};
use settee_sim::{Fault, Sim, SimDisk, seeds};
use settee_store::{
    Batch, ChunkCache, CommitError, LogOptions, ReadError, Seq, Stage, Store, StoreError, StoreOptions,
};

/// Makes checkpoints only on demand.
const QUIET: StoreOptions = StoreOptions { checkpoint_entries_min: 1 << 20, ..OPTIONS };

const BLOCK: usize = 4 << 10;

/// Offset of a tree's first node.
const NODES_START: usize = 3 * BLOCK;

fn files(disk: &SimDisk, kind: &str) -> Vec<PathBuf> {
    disk.paths().into_iter().filter(|path| path.extension().is_some_and(|own| own == kind)).collect()
}

/// Commits one value to the store and the model.
async fn put(
    store: &Store,
    model: &mut Model,
    key: u32,
    size: usize,
    random: &mut Random,
) -> Result<Seq, CommitError> {
    let key = key.to_be_bytes();
    let (meta, value, in_seq_index) = (random.bytes(40), random.bytes(size), random.below(2) == 0);
    let mut batch = Batch::new();
    batch.put(&key, &meta, value.clone().into(), in_seq_index);
    let seq = store.writer().await.commit(&batch, Stage::Persisted).await?;
    model.last_in_seq_index = if in_seq_index { seq.0 } else { model.last_in_seq_index };
    model.entries.insert(key.to_vec(), (seq.0, meta, value, in_seq_index));
    Ok(seq)
}

/// A store whose tree has many leaves and, if something is to be replayed, newer records of some keys under
/// each of them.
fn with_tree(seed: u64, replays: bool) -> (SimDisk, Model) {
    let disk = SimDisk::new(seed);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let (mut random, mut model) = (Random::new(seed), Model::default());
    sim.run(async {
        let store = open(&env, &QUIET).await;
        for key in 0..400 {
            put(&store, &mut model, key, 200, &mut random).await.unwrap();
        }
        store.flush().await.unwrap();
        // Some segments are the store's, the others still the log's.
        env.clock.sleep(Duration::from_secs(2)).await;
        store.checkpoint().await.unwrap().unwrap();
        for key in (0..400).step_by(7).filter(|_| replays) {
            put(&store, &mut model, key, 200, &mut random).await.unwrap();
        }
        store.close().await.unwrap();
    })
    .unwrap();
    (disk.after_power_loss(), model)
}

/// Writes to a key under each leaf, retrying until accepted. Returns how often a write was refused.
async fn touch_all(env: &Env, store: &Store, model: &mut Model, random: &mut Random, case: &str) -> u32 {
    let mut refused = 0;
    for key in (3..400).step_by(7) {
        while let Err(error) = put(store, model, key, 20, random).await {
            assert!(matches!(error, CommitError::Read(ReadError::Tree(_))), "{case}: {error}");
            refused += 1;
            assert!(refused < 100, "{case}: {error}");
            env.clock.sleep(Duration::from_millis(20)).await;
        }
    }
    store.flush().await.unwrap();
    refused
}

/// Removes some keys under each leaf.
async fn delete_some(store: &Store, model: &mut Model) {
    let mut batch = Batch::new();
    for key in (0..400_u32).step_by(9) {
        batch.delete(&key.to_be_bytes());
        model.entries.remove(&key.to_be_bytes()[..]);
    }
    store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
}

/// Compares a store's contents, without its aggregates.
async fn compare_values(store: &Store, model: &Model, case: &str) {
    let snapshot = store.snapshot();
    let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false);
    for (key, (seq, meta, value, _)) in &model.entries {
        let entry = scan.next().await.unwrap().expect("it was put");
        assert_eq!((entry.key, entry.seq().0, entry.meta), (&key[..], *seq, &meta[..]), "{case}");
        let record = snapshot.read(entry.location).await.unwrap();
        assert_eq!(record.value()[..], value[..], "{case}");
    }
    assert!(scan.next().await.unwrap().is_none(), "{case}");
    let (recorded, found) = store.live_tables().await.unwrap();
    assert_eq!(recorded, found, "{case}");
}

#[test]
fn a_damaged_tree_is_rebuilt_wherever_the_damage_is_met() {
    let (mut at_open, mut at_commit, mut at_checkpoint) = (0, 0, 0);
    for (replays, measured) in [(false, true), (true, true), (true, false)] {
        let (built, model) = with_tree(7, replays);
        let path = files(&built, "tree").pop().expect("there was a checkpoint");
        let size = built.read_file(&path).unwrap().len();
        for at in (NODES_START..size).step_by(BLOCK) {
            let case = format!("replays={replays} measured={measured} at={at}");
            let disk = built.after_power_loss();
            let mut random = Random::new(at as u64);
            let mut model = model.clone();
            disk.damage_file(&path, |bytes| {
                bytes[(at + random.below(BLOCK)).min(size - 1)] ^= 1 << random.below(8)
            });
            let options = StoreOptions { aggregate: QUIET.aggregate.filter(|_| measured), ..QUIET };
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            sim.run(async {
                let store = open(&env, &options).await;
                let is_new = |disk: &SimDisk| u32::from(files(disk, "tree").iter().any(|tree| *tree != path));
                let mut known = is_new(&disk);
                at_open += known;
                if measured {
                    touch_all(&env, &store, &mut model, &mut random, &case).await;
                    at_commit += is_new(&disk) - known;
                    known = is_new(&disk);
                } else {
                    delete_some(&store, &mut model).await;
                }
                let whole = store.checkpoint().await;
                assert!(whole.is_ok(), "{case}: {whole:?}");
                at_checkpoint += is_new(&disk) - known;
                store.close().await.unwrap();
                drop(store);
                let store = open(&env, &options).await;
                if measured {
                    check(&store.snapshot(), &model, &case).await;
                }
                compare_values(&store, &model, &case).await;
            })
            .unwrap();
        }
    }
    println!("rebuilt: {at_open} at open, {at_commit} after a commit, {at_checkpoint} at a checkpoint");
    assert!(at_open > 5 && at_commit > 2 && at_checkpoint > 5);
}

/// A store with memtables so large that the tree needs more space than is free.
async fn with_little_space(disk: &SimDisk, env: &Env, options: &StoreOptions) -> (Store, Model) {
    let (mut random, mut model) = (Random::new(7), Model::default());
    let store = open(env, options).await;
    for first in (0..6000_u32).step_by(50) {
        let mut batch = Batch::new();
        let mut values = Vec::new();
        for key in first..first + 50 {
            let (meta, value) = (random.bytes(200), random.bytes(10));
            batch.put(&key.to_be_bytes(), &meta, value.clone().into(), false);
            values.push((key.to_be_bytes().to_vec(), meta, value));
        }
        let last = store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
        for (seq, (key, meta, value)) in (last.0 - 49..).zip(values) {
            model.entries.insert(key, (seq, meta, value, false));
        }
    }
    store.flush().await.unwrap();
    let used: u64 = disk.paths().iter().map(|path| disk.read_file(path).unwrap().len() as u64).sum();
    let _ = disk.clone().capacity(Some(used + (700 << 10)));
    (store, model)
}

#[test]
fn failed_checkpoints_neither_add_memtables_nor_keep_disk_space() {
    let disk = SimDisk::new(7);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let log = LogOptions { segment_bytes_min: 8 << 20, segment_bytes_max: 8 << 20, ..OPTIONS.log };
        let options = StoreOptions { log, ..QUIET };
        let (store, mut model) = with_little_space(&disk, &env, &options).await;
        for key in 0..20_u32 {
            let failed = store.checkpoint().await.expect_err("the disk is too full for a tree");
            assert!(failed.is_no_space(), "{failed}");
            assert!(files(&disk, "tree").is_empty(), "a tree that nothing names");
            let mut batch = Batch::new();
            batch.delete(&key.to_be_bytes());
            batch.use_reserve();
            let committed = store.writer().await.commit(&batch, Stage::Persisted).await;
            let bytes = store.store_stats().memory_bytes;
            assert!(committed.is_ok(), "delete {key}: {committed:?}; memory has {bytes} bytes");
            model.entries.remove(&key.to_be_bytes()[..]);
        }
        let _ = disk.clone().capacity(None);
        // The immutable memtables of the first attempt, and everything since.
        assert_eq!(store.checkpoint().await.unwrap().unwrap().seq, 6020);
        assert_eq!(store.checkpoint().await.unwrap(), None);
        assert_eq!(store.store_stats().memory_bytes, 0);
        store.flush().await.unwrap();
        check(&store.snapshot(), &model, "with space").await;
    })
    .unwrap();
}

#[test]
fn no_failed_read_in_a_checkpoint_leaves_files_and_versions_inconsistent() {
    let mut failed = 0;
    for nth in 0..30 {
        let (disk, mut model) = with_tree(nth, true);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(nth);
            // No node of the tree stays in memory.
            let options = StoreOptions { cache: Some(settee_store::NodeCache::new(0).into()), ..QUIET };
            let store = open(&env, &options).await;
            put(&store, &mut model, 5, 100, &mut random).await.unwrap();
            let _ =
                disk.clone().fail(OperationKind::Read, disk.count_of(OperationKind::Read) + nth, Fault::Io);
            failed += u32::from(store.checkpoint().await.is_err());
            assert_eq!(missing_files(&disk), [""; 0], "nth={nth}");
            store.checkpoint().await.unwrap();
            store.flush().await.unwrap();
            check(&store.snapshot(), &model, &format!("nth={nth}")).await;
        })
        .unwrap();
    }
    assert!(failed > 5, "{failed}");
}

/// Files that the manifest on the disk names and that are missing.
fn missing_files(disk: &SimDisk) -> Vec<String> {
    let Some(text) = disk.read_file("/data/store/manifest") else { return Vec::new() };
    let paths: Vec<String> = disk.paths().iter().map(|path| path.display().to_string()).collect();
    let number = |word: &str| word.parse::<u64>().unwrap();
    let mut missing = Vec::new();
    for line in String::from_utf8(text).unwrap().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let name = match words[..] {
            ["tree", tree] => format!("{:010}.tree", number(tree)),
            ["segment", first, _, "0", ..] => format!("{:010}.log", number(first)),
            ["segment", first, last, generation, ..] => {
                format!("{:010}-{:010}-{generation}.seg", number(first), number(last))
            }
            _ => continue,
        };
        if !paths.iter().any(|path| path.ends_with(&name)) {
            missing.push(name);
        }
    }
    missing
}

/// Polls a future at most `count` times; returns whether it has ended.
async fn poll_some<T>(future: impl Future<Output = T>, count: usize) -> bool {
    let mut future = pin!(future);
    let mut left = count;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        future.as_mut().poll(context).map(|_| true)
    })
    .await
}

#[test]
fn a_dropped_checkpoint_or_compaction_goes_on_and_harms_nothing() {
    let (mut rewritten, mut dropped) = (0, 0);
    for polls in 1..12 {
        let disk = SimDisk::new(polls);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (mut random, mut model) = (Random::new(3), Model::default());
            let store = open(&env, &StoreOptions { garbage_percent_max: 100, ..OPTIONS }).await;
            for number in 0..120 {
                let key = if number % 2 == 0 { number } else { 7 };
                let seq = put(&store, &mut model, key, 2000, &mut random).await.unwrap();
                store.wait(seq, Stage::Persisted).await.unwrap();
            }
            let before = store.store_stats();
            dropped += usize::from(!poll_some(store.compact(), polls as usize).await);
            // Work whose future was dropped ends.
            env.clock.sleep(Duration::from_secs(5)).await;
            let after = store.store_stats();
            assert_eq!((before.checkpoint_count, after.checkpoint_count), (0, 1), "polls={polls}");
            rewritten += after.compacted_count;
            assert_eq!(missing_files(&disk), [""; 0], "polls={polls}");
            check(&store.snapshot(), &model, &format!("polls={polls}")).await;
            store.compact().await.unwrap();
            assert_eq!(missing_files(&disk), [""; 0], "polls={polls}");
            store.close().await.unwrap();
            drop(store);
            let store = open(&env, &OPTIONS).await;
            check(&store.snapshot(), &model, &format!("polls={polls} opened again")).await;
        })
        .unwrap();
    }
    assert!(dropped > 0 && rewritten > 0, "{dropped} {rewritten}");
}

#[test]
fn one_writer_keeps_within_memory_and_the_next_goes_on() {
    let sim = Sim::new(7);
    let env = sim.env();
    sim.run(async {
        let options = StoreOptions { memory_bytes_max: 256 << 10, ..OPTIONS };
        let store = open(&env, &options).await;
        let (mut count, mut writers) = (0_u32, 0);
        while count < 20_000 {
            writers += 1;
            let mut writer = store.writer().await;
            while count < 20_000 {
                let mut batch = Batch::new();
                batch.put(&count.to_be_bytes(), &[1; 100], Bytes::new(), false);
                match writer.commit(&batch, Stage::Accepted).await {
                    Ok(_) => count += 1,
                    Err(CommitError::WriterFull { bytes, bytes_max: 262_144 }) => {
                        assert_eq!(bytes as u64, store.store_stats().memory_bytes);
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let bytes = store.store_stats().memory_bytes;
            assert!(bytes < 400 << 10, "{bytes} bytes, of 262144 that there may be");
        }
        assert!(writers > 5, "{writers}");
        store.flush().await.unwrap();
        assert_eq!(store.snapshot().total_aggregates()[0], 20_000);
    })
    .unwrap();
}

#[test]
fn a_store_with_hardly_any_memory_goes_on() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let (mut random, mut model) = (Random::new(seed), Model::default());
            let store = open(&env, &StoreOptions { memory_bytes_max: 1, ..OPTIONS }).await;
            for key in 0..20 {
                put(&store, &mut model, key, 100, &mut random).await.unwrap();
            }
            store.flush().await.unwrap();
            check(&store.snapshot(), &model, "").await;
            // A checkpoint is counted once the files that it replaced are removed.
            env.clock.sleep(Duration::from_secs(1)).await;
            // Each writer waited for the checkpoint of the commit before it.
            let count = store.store_stats().checkpoint_count;
            assert!(count >= 19, "seed={seed}: {count} checkpoints");
        })
        .unwrap();
    }
}

#[test]
fn invalid_limits_are_refused_at_open() {
    let sim = Sim::new(7);
    let env = sim.env();
    sim.run(async {
        let log = LogOptions { writes_in_flight_max: 0, ..OPTIONS.log };
        for (options, named) in [
            (StoreOptions { checkpoint_divisor: 0, ..OPTIONS }, "checkpoint_divisor"),
            (StoreOptions { memory_bytes_max: 0, ..OPTIONS }, "memory_bytes_max"),
            (StoreOptions { log, ..OPTIONS }, "writes_in_flight_max"),
        ] {
            match Store::open(&env, Path::new("/data/store"), options).await {
                Err(StoreError::Limit(limit)) => assert_eq!(limit.name, named),
                Err(error) => panic!("{named}: {error}"),
                Ok(_) => panic!("{named} was taken"),
            }
        }
    })
    .unwrap();
}

#[test]
fn a_wait_for_a_change_ends_when_the_store_is_closed() {
    let sim = Sim::new(7);
    let env = sim.env();
    sim.run(async {
        let (mut random, mut model) = (Random::new(7), Model::default());
        let store = open(&env, &OPTIONS).await;
        let seq = put(&store, &mut model, 1, 10, &mut random).await.unwrap();
        store.wait(seq, Stage::Persisted).await.unwrap();
        let close = async {
            env.clock.sleep(Duration::from_millis(10)).await;
            store.close().await
        };
        let (changed, closed) = futures_util::future::join(store.changed_after(seq), close).await;
        assert!(changed.is_err() && closed.is_ok(), "{changed:?} {closed:?}");
        assert!(store.changed_after(seq).await.is_err());
        assert!(store.changed_after(Seq(0)).await.is_ok(), "it is shown");
    })
    .unwrap();
}

/// Number of segments that the manifest names, and the first one that it doesn't cover.
fn listed(disk: &SimDisk) -> (usize, u32) {
    let text = String::from_utf8(disk.read_file("/data/store/manifest").unwrap()).unwrap();
    let count = text.lines().filter(|line| line.starts_with("segment ")).count();
    let listed_to = text.lines().find_map(|line| line.strip_prefix("listed-to ")).unwrap();
    (count, listed_to.parse::<u32>().unwrap() + 1)
}

#[test]
fn an_idle_store_lists_segments_sealed_after_its_checkpoint() {
    for seed in seeds(10) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (mut random, mut model) = (Random::new(seed), Model::default());
            let chunks = ChunkCache::new(1 << 20);
            let options = StoreOptions { chunks: Some(chunks.into()), garbage_percent_max: 100, ..QUIET };
            let store = open(&env, &options).await;
            for key in 0..60 {
                put(&store, &mut model, key, 3000, &mut random).await.unwrap();
            }
            store.checkpoint().await.unwrap().unwrap();
            env.clock.sleep(Duration::from_secs(5)).await;
            let last = files(&disk, "log")
                .iter()
                .filter_map(|path| path.file_stem()?.to_str()?.parse::<u32>().ok())
                .max();
            let (count, first) = listed(&disk);
            assert!(count > 3 && last.unwrap() <= first + 1, "seed={seed}: {count} {first} of {last:?}");
            assert_eq!(store.store_stats().checkpoint_count, 1, "seed={seed}");
            for _ in 0..2 {
                check(&store.snapshot(), &model, &format!("seed={seed}")).await;
            }
            let stats = store.chunk_stats().unwrap();
            assert!(stats.hit_count > 0, "seed={seed}: {stats:?}");

            // Segments left over when the store is opened are listed too.
            for key in 0..60 {
                put(&store, &mut model, key, 3000, &mut random).await.unwrap();
            }
            store.checkpoint().await.unwrap().unwrap();
            store.close().await.unwrap();
            drop(store);
            let before = listed(&disk);
            let store = open(&env, &options).await;
            env.clock.sleep(Duration::from_secs(5)).await;
            assert!(listed(&disk).1 > before.1, "seed={seed}: {before:?}");
            assert_eq!(store.store_stats().checkpoint_count, 0, "seed={seed}");
            check(&store.snapshot(), &model, &format!("seed={seed} opened again")).await;
        })
        .unwrap();
    }
}

#[test]
fn a_store_that_waits_for_sealing_is_closed_and_dropped_at_once() {
    for dropped in [false, true] {
        let disk = SimDisk::new(7);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (mut random, mut model) = (Random::new(7), Model::default());
            let store = open(&env, &QUIET).await;
            for key in 0..60 {
                put(&store, &mut model, key, 3000, &mut random).await.unwrap();
            }
            store.checkpoint().await.unwrap().unwrap();
            let before = listed(&disk);
            let begun = env.clock.now();
            if !dropped {
                store.close().await.unwrap();
            }
            drop(store);
            let store = loop {
                match Store::open(&env, Path::new("/data/store"), QUIET).await {
                    Ok((store, _)) => break store,
                    Err(_) => env.clock.sleep(Duration::from_micros(100)).await,
                }
            };
            // Sooner than the log would begin to seal.
            let took = env.clock.now() - begun;
            assert!(took < Duration::from_millis(190), "dropped={dropped}: {took:?}");
            assert_eq!(listed(&disk), before, "dropped={dropped}");
            check(&store.snapshot(), &model, "opened again").await;
        })
        .unwrap();
    }
}

#[test]
fn a_checkpoint_waits_for_a_descriptor_to_sync_its_manifest_by() {
    for seed in seeds(20) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let (mut random, mut model) = (Random::new(seed), Model::default());
        sim.run(async {
            let store = open(&env, &QUIET).await;
            put(&store, &mut model, 1, 100, &mut random).await.unwrap();
            let renames = disk.count_of(OperationKind::Rename);
            let loses_descriptors = async {
                while disk.count_of(OperationKind::Rename) == renames {
                    env.clock.sleep(Duration::from_nanos(100)).await;
                }
                let _none = disk.clone().has_descriptors(false);
                env.clock.sleep(Duration::from_secs(60)).await;
                put(&store, &mut model, 2, 100, &mut random).await.unwrap();
                let _some = disk.clone().has_descriptors(true);
            };
            let (done, ()) = futures_util::future::join(store.checkpoint(), loses_descriptors).await;
            assert!(done.is_ok_and(|done| done.is_some()), "seed={seed}");
            assert!(store.checkpoint_error().is_none(), "seed={seed}");
            put(&store, &mut model, 3, 100, &mut random).await.unwrap();
            assert!(store.checkpoint().await.unwrap().is_some(), "seed={seed}");
            check(&store.snapshot(), &model, &format!("seed={seed}")).await;
            store.close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn no_sync_of_a_directory_succeeds_after_or_beside_one_that_failed() {
    for seed in seeds(20) {
        let disk = SimDisk::new(seed).fail(OperationKind::SyncDirectory, 2, Fault::Io);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let directory = Path::new("/data");
            directory::create(&*env.engine, directory).await.unwrap();
            let syncs = DirectorySyncs::new(directory);
            let all = (0..4).map(|_| syncs.sync(&*env.engine));
            let synced = futures_util::future::join_all(all).await;
            let count = synced.iter().filter(|synced| synced.is_ok()).count() as u64;
            // The first was of the directory's parent.
            assert_eq!(count, 1, "seed={seed}: {synced:?}");
            assert!(syncs.sync(&*env.engine).await.is_err(), "seed={seed}");
            assert_eq!(disk.count_of(OperationKind::SyncDirectory), 3, "seed={seed}: others weren't tried");
        })
        .unwrap();
    }
}
