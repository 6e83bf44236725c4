//! Goal: values read in bulk and along a scan equal those of single reads, each with a result of its own,
//! with few reads of the device; and the chunk cache never returns another file's bytes.
//! Method: in the simulation, run seeded commits against a `BTreeMap`, with checkpoints and compactions,
//! buffered and direct, with chunk caches of all sizes shared by several stores, on snapshots kept over
//! rewriting. Damage records, make reads fail, and count the disk's reads.

use crate::common::model;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use model::{OPTIONS, Random};
use settee_io::{Env, OperationKind};
use settee_sim::{Fault, Sim, SimDisk, seeds};
use settee_store::{
    Batch, CHUNK_BYTES, ChunkCache, Entry, Location, LogOptions, READ_AHEAD_ROWS_MAX, ReadAhead, Scan, Seq,
    Snapshot, Stage, Store, StoreOptions,
};

/// An offset past the end of any segment.
const NOWHERE: u32 = 1 << 30;
/// The end of the error for a location that ends after the log.
const AFTER_END: &str = "nothing was appended there";

/// Each key's records, newest first.
type Model = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

async fn open(env: &Env, name: &str, options: &StoreOptions) -> Store {
    Store::open(env, &Path::new("/data").join(name), options.clone()).await.unwrap().0
}

/// Commits one random batch to the store and the model.
async fn commit(store: &Store, model: &mut Model, random: &mut Random, stage: Stage) -> Seq {
    let mut batch = Batch::new();
    let mut size = 0;
    for _ in 0..1 + random.below(8) {
        let key = format!("{:02}", random.below(60)).into_bytes();
        let meta = vec![b'm'; random.below(8)];
        // Some are larger than what the cache accepts.
        let length = [40, 700, 5_000, 20_000][random.below(40).min(3) / (1 + random.below(3))];
        let value = random.bytes(length);
        size += value.len();
        if size > 28_000 {
            break;
        }
        match random.below(8) {
            0 => {
                batch.delete(&key);
                model.remove(&key);
            }
            1 | 2 if model.get(&key).is_none_or(|parts| parts.len() < 20) => {
                batch.merge(&key, &meta, value.clone().into());
                model.entry(key).or_default().insert(0, value);
            }
            _ => {
                batch.put(&key, &meta, value.clone().into(), random.below(2) == 0);
                model.insert(key, vec![value]);
            }
        }
    }
    batch.put(b"last", b"", Bytes::from_static(b"value"), true);
    model.insert(b"last".to_vec(), vec![b"value".to_vec()]);
    store.writer().await.commit(&batch, stage).await.unwrap()
}

fn options(random: &mut Random, chunks: Option<Arc<ChunkCache>>) -> StoreOptions {
    let log = LogOptions {
        direct: random.below(2) == 0,
        batch_bytes_max: 32 << 10,
        segment_bytes_max: 72 << 10,
        ..OPTIONS.log
    };
    StoreOptions {
        checkpoint_entries_min: [20, 100, 100_000][random.below(3)],
        checkpoint_bytes_max: [8 << 10, 60 << 10][random.below(2)],
        garbage_percent_max: [10, 50][random.below(2)],
        log,
        chunks,
        ..OPTIONS
    }
}

type Row = (Vec<u8>, Vec<u8>, Location, Vec<Bytes>);

async fn rows_of(mut scan: ReadAhead<Scan>) -> Vec<Row> {
    let mut rows = Vec::new();
    while let Some(row) = scan.next().await.unwrap() {
        let (key, entry) = row.row;
        let records: Vec<Bytes> = row.records.unwrap().iter().map(|record| record.bytes().clone()).collect();
        assert_eq!(row.records.unwrap()[0].seq(), entry.location.seq());
        rows.push((key, entry.meta, entry.location, records));
    }
    // The end stays the end.
    assert!(scan.next().await.unwrap().is_none());
    rows
}

/// The same rows by a scan and single reads.
async fn rows_one_by_one(snapshot: &Snapshot, mut scan: settee_store::Scan) -> Vec<Row> {
    let mut rows = Vec::new();
    while let Some((key, entry)) =
        scan.next().await.unwrap().map(|entry| (entry.key.to_vec(), entry.to_entry()))
    {
        let mut records = Vec::new();
        for pointer in entry.pointers() {
            records.push(snapshot.read(pointer.location).await.unwrap().bytes().clone());
        }
        rows.push((key, entry.meta.clone(), entry.location, records));
    }
    rows
}

async fn check(snapshot: &Snapshot, model: &Model, random: &mut Random, case: &str) {
    let whole = (Bound::Unbounded, Bound::Unbounded);
    let rows = rows_of(snapshot.scan(whole.0, whole.1, false).with_values()).await;
    let mut found = Model::new();
    let mut locations = Vec::new();
    for (key, ..) in &rows {
        let entry: Entry = snapshot.get(key).await.unwrap().unwrap();
        let pointers: Vec<_> = entry.pointers().map(|pointer| pointer.location).collect();
        let records = snapshot.read_parts(entry.pointers()).await.unwrap();
        found.insert(key.clone(), records.iter().map(|record| record.value().to_vec()).collect());
        locations.extend(pointers);
    }
    assert_eq!(&found, model, "{case}");
    // In any order, some twice, and some that are no record's.
    for _ in 0..3 {
        let count = random.below(2 * locations.len().max(1)) + 1;
        let mut wanted: Vec<Location> =
            (0..count).filter_map(|_| locations.get(random.below(locations.len().max(1))).copied()).collect();
        if let Some(one) = wanted.first().copied() {
            let wrong = [
                Location { seq: one.seq + 1_000_000, ..one },
                Location { offset: one.offset + 1, ..one },
                Location { length: one.length + 1, ..one },
                Location { segment: one.segment + 1_000, ..one },
                Location { offset: NOWHERE, ..one },
            ];
            wanted.insert(random.below(wanted.len()), wrong[random.below(wrong.len())]);
        }
        let together = snapshot.read_many(&wanted).await;
        assert_eq!(together.len(), wanted.len());
        for (location, record) in wanted.iter().zip(together) {
            match (record, snapshot.read(*location).await) {
                (Ok(record), Ok(alone)) => assert_eq!(record.bytes(), alone.bytes(), "{case}"),
                // The error of a location that ends after the log may change while the log goes on.
                (Err(_), Err(_)) if location.offset == NOWHERE => {}
                (Err(error), Err(alone)) => {
                    let (error, alone) = (error.to_string(), alone.to_string());
                    let is_after_end = [&error, &alone].iter().any(|text| text.ends_with(AFTER_END));
                    assert!(error == alone || is_after_end, "{case}: {error}, alone {alone}");
                }
                (record, alone) => panic!("{case} {location:?}: {record:?}, alone {alone:?}"),
            }
        }
    }
    let mut bound = || {
        let key = format!("{:02}", random.below(60)).into_bytes();
        [Bound::Unbounded, Bound::Included(key.clone()), Bound::Excluded(key)][random.below(3)].clone()
    };
    let (start, end) = (bound(), bound());
    let (start, end) = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
    for descending in [false, true] {
        let case = format!("{case} {start:?}..{end:?} descending={descending}");
        let alone = rows_one_by_one(snapshot, snapshot.scan(start, end, descending)).await;
        assert_eq!(rows_of(snapshot.scan(start, end, descending).with_values()).await, alone, "{case}");
        let after = Seq(snapshot.seq().0 / 2 * u64::from(descending));
        let alone = rows_one_by_one(snapshot, snapshot.scan_by_seq(after, descending)).await;
        assert_eq!(rows_of(snapshot.scan_by_seq(after, descending).with_values()).await, alone, "{case}");
    }
}

#[test]
fn bulk_reads_and_scans_give_what_single_reads_do() {
    let (mut compacted, mut hits, mut full) = (0, 0, 0);
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let env = sim.env();
        let stats = sim
            .run(async {
                let mut random = Random::new(seed);
                // Shared by two stores with the same keys, and small enough to evict.
                let size = [0, 30 << 10, 8 << 20][random.below(3)];
                let cache = Arc::new(ChunkCache::new(size));
                let mut options = || {
                    let cached = random.below(4) > 0;
                    options(&mut random, cached.then(|| cache.clone()))
                };
                let options = [options(), options()];
                let names = ["one", "other"];
                let mut random = Random::new(seed + 1_000);
                let mut stores =
                    [open(&env, "one", &options[0]).await, open(&env, "other", &options[1]).await];
                let mut models = [Model::new(), Model::new()];
                let mut kept: Vec<(Snapshot, Model)> = Vec::new();
                let (mut compacted, mut full) = (0, 0);
                for step in 0..100 {
                    let case = format!("seed={seed} step={step}");
                    let which = random.below(2);
                    let (store, model) = (&mut stores[which], &mut models[which]);
                    let seq = commit(store, model, &mut random, Stage::Accepted).await;
                    if random.below(4) == 0 {
                        // Accepted records may be only in memory.
                        let latest = store.writer().await.latest();
                        check(&latest, model, &mut random, &case).await;
                    }
                    match random.below(16) {
                        0 | 1 => {
                            store.wait(seq, Stage::Persisted).await.unwrap();
                            kept.push((store.snapshot(), model.clone()));
                        }
                        2 => drop(store.checkpoint().await.unwrap()),
                        3 | 4 => {
                            env.clock.sleep(Duration::from_millis(500)).await;
                            compacted += store.compact().await.unwrap().segment_count;
                        }
                        5 => {
                            for (snapshot, model) in kept.drain(..) {
                                check(&snapshot, &model, &mut random, &case).await;
                            }
                        }
                        6 => {
                            kept.clear();
                            store.close().await.unwrap();
                            *store = open(&env, names[which], &options[which]).await;
                        }
                        _ => {}
                    }
                    let stats = cache.stats();
                    assert!(stats.bytes <= stats.bytes_max && stats.bytes_max <= size as u64, "{stats:?}");
                    full += u64::from(size > 0 && stats.bytes + 2 * CHUNK_BYTES as u64 > stats.bytes_max);
                }
                (compacted, full, cache.stats().hit_count)
            })
            .unwrap();
        compacted += stats.0;
        full += stats.1;
        hits += stats.2;
    }
    // With a full cache each further chunk evicts another.
    assert!(compacted > 100 && hits > 1_000 && full > 100, "{compacted} {hits} {full}");
}

/// Commits `count` records of `size` bytes under keys in another order than the log's, and makes a
/// checkpoint, so that all but the last few are in listed segments.
async fn fill(env: &Env, store: &Store, count: u32, size: usize) {
    let mut random = Random::new(count.into());
    for first in (0..count).step_by(10) {
        let mut batch = Batch::new();
        for index in first..(first + 10).min(count) {
            let key = format!("{:08x}", index.wrapping_mul(2_654_435_761));
            batch.put(key.as_bytes(), b"", random.bytes(size).into(), true);
        }
        store.writer().await.commit(&batch, Stage::Written).await.unwrap();
    }
    store.flush().await.unwrap();
    env.clock.sleep(Duration::from_secs(2)).await;
    store.checkpoint().await.unwrap();
}

/// Removes every third record, and has the rest rewritten.
async fn rewrite(env: &Env, store: &Store, count: u32) {
    for first in (0..count).step_by(300) {
        let mut batch = Batch::new();
        for index in (first..(first + 300).min(count)).step_by(3) {
            batch.delete(format!("{:08x}", index.wrapping_mul(2_654_435_761)).as_bytes());
        }
        store.writer().await.commit(&batch, Stage::Written).await.unwrap();
    }
    store.flush().await.unwrap();
    env.clock.sleep(Duration::from_secs(2)).await;
    let done = store.compact().await.unwrap();
    assert!(done.segment_count > 0 && done.bytes_after < done.bytes_before, "{done:?}");
}

async fn locations_of(snapshot: &Snapshot) -> Vec<Location> {
    let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false);
    let mut locations = Vec::new();
    while let Some(entry) = scan.next().await.unwrap() {
        locations.push(entry.location);
    }
    locations
}

/// No short reads, and checkpoints and compactions only on demand.
fn counted(direct: bool, chunks: Option<Arc<ChunkCache>>) -> StoreOptions {
    StoreOptions {
        log: LogOptions { direct, segment_bytes_min: 100 << 10, segment_bytes_max: 512 << 10, ..OPTIONS.log },
        checkpoint_entries_min: 1 << 30,
        checkpoint_bytes_max: 1 << 40,
        checkpoint_entries_max: 1 << 30,
        garbage_percent_max: 100,
        chunks,
        ..OPTIONS
    }
}

/// The records in files that never change any more: single reads of these may be cached.
fn in_immutable_files(locations: &[Location]) -> Vec<Location> {
    let last = locations.iter().map(|location| location.segment).max().unwrap();
    locations.iter().copied().filter(|location| location.segment < last).collect()
}

#[test]
fn damaged_records_and_failing_reads_each_fail_alone() {
    let (mut damaged_count, mut failed_count) = (0, 0);
    for seed in seeds(24) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let (rewritten, direct, cached) = (seed % 2 == 0, seed % 4 < 2, seed % 8 < 4);
        let case = format!("seed={seed}");
        let counts = sim
            .run(async {
                let mut random = Random::new(seed);
                let options = counted(direct, None);
                let store = open(&env, "store", &options).await;
                fill(&env, &store, 1_200, 300).await;
                if rewritten {
                    rewrite(&env, &store, 1_200).await;
                }
                let snapshot = store.snapshot();
                let locations = locations_of(&snapshot).await;
                let mut expected = Vec::new();
                for location in &locations {
                    expected.push(snapshot.read(*location).await.unwrap().bytes().to_vec());
                }
                drop(snapshot);
                store.close().await.unwrap();
                drop(store);
                // Recovery handles damage in the tail.
                let in_immutable_files = in_immutable_files(&locations);
                let mut damaged = Vec::new();
                for _ in 0..8 {
                    let index = random.below(locations.len());
                    if in_immutable_files.contains(&locations[index]) && !damaged.contains(&index) {
                        damage(&disk, &expected[index]);
                        damaged.push(index);
                    }
                }
                let cache = || cached.then(|| Arc::new(ChunkCache::new(1 << 20)));
                let store = open(&env, "store", &StoreOptions { chunks: cache(), ..options.clone() }).await;
                let snapshot = store.snapshot();
                for round in 0..3 {
                    let records = snapshot.read_many(&locations).await;
                    for (index, record) in records.iter().enumerate() {
                        match record {
                            Ok(record) => assert_eq!(record.bytes(), &expected[index], "{case} {round}"),
                            Err(error) => assert!(damaged.contains(&index), "{case} {round}: {error}"),
                        }
                        assert_eq!(record.is_err(), damaged.contains(&index), "{case} {round} {index}");
                    }
                }
                let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false).with_values();
                let mut index = 0;
                while let Some(row) = scan.next().await.unwrap() {
                    assert_eq!(row.row.1.location, locations[index]);
                    match row.records {
                        Ok(records) => assert_eq!(records[0].bytes(), &expected[index], "{case}"),
                        Err(error) => assert!(damaged.contains(&index), "{case}: {error}"),
                    }
                    index += 1;
                }
                assert_eq!(index, locations.len(), "{case}");
                // A read that fails affects only the records that needed it, and only this once. It does not
                // affect those that were read with the bytes around them for the cache, and are then read
                // alone.
                drop((scan, snapshot));
                store.close().await.unwrap();
                drop(store);
                let store = open(&env, "store", &StoreOptions { chunks: cache(), ..options }).await;
                let snapshot = store.snapshot();
                assert_eq!(locations_of(&snapshot).await, locations);
                for pair in in_immutable_files.chunks(40) {
                    // The block indexes are in memory from here on.
                    let _ = snapshot.read(pair[0]).await;
                }
                let at = disk.count_of(OperationKind::Read) + random.below(3) as u64;
                let _ = disk.clone().fail(OperationKind::Read, at, Fault::Io);
                let mut failed = 0;
                for (index, record) in snapshot.read_many(&locations).await.iter().enumerate() {
                    match record {
                        Ok(record) => assert_eq!(record.bytes(), &expected[index], "{case}"),
                        Err(_) if damaged.contains(&index) => {}
                        Err(error) => {
                            assert!(
                                !cached || !in_immutable_files.contains(&locations[index]),
                                "{case}: {error}"
                            );
                            failed += 1;
                        }
                    }
                }
                // It may have hit no read, if most records were in memory: then it hits one of these.
                for _ in 0..3 {
                    snapshot.read_many(&locations).await;
                }
                let again = snapshot.read_many(&locations).await;
                assert_eq!(again.iter().filter(|record| record.is_err()).count(), damaged.len(), "{case}");
                (damaged.len(), failed)
            })
            .unwrap();
        damaged_count += counts.0;
        failed_count += counts.1;
    }
    assert!(damaged_count > 50 && failed_count > 50, "{damaged_count} {failed_count}");
}

/// Flips a bit of a record's value, in whichever file it is.
fn damage(disk: &SimDisk, record: &[u8]) {
    let mut done = 0;
    for path in disk.paths() {
        let bytes = disk.read_file(&path).unwrap();
        if let Some(at) = bytes.windows(record.len()).position(|window| window == record) {
            disk.damage_file(&path, |bytes| bytes[at + record.len() - 1] ^= 4);
            done += 1;
        }
    }
    assert_eq!(done, 1, "a record lies in one place");
}

#[test]
fn a_record_costs_one_read_and_many_together_fewer() {
    for (direct, rewritten) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = SimDisk::new(7).short_reads(0.0);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let reads = || disk.count_of(OperationKind::Read);
        let case = format!("direct={direct} rewritten={rewritten}");
        sim.run(async {
            // A cache that keeps nothing: each read is the disk's, in direct mode too.
            let none = Some(Arc::new(ChunkCache::new(0)));
            let store = open(&env, "store", &counted(direct, none)).await;
            fill(&env, &store, 6_000, 200).await;
            if rewritten {
                rewrite(&env, &store, 6_000).await;
            }
            let snapshot = store.snapshot();
            // The index is in its cache from here on.
            let all = locations_of(&snapshot).await;
            let locations = in_immutable_files(&all);
            assert!(locations.len() > 2_000, "{case}: {}", locations.len());
            let segments = locations.iter().map(|location| location.segment).collect::<Vec<_>>();
            let segments =
                BTreeMap::from_iter(segments.into_iter().map(|segment| (segment, ()))).len() as u64;
            let (count, bytes) =
                (locations.len() as u64, locations.iter().map(|one| u64::from(one.length)).sum::<u64>());

            let before = reads();
            for location in &locations {
                snapshot.read(*location).await.unwrap();
            }
            // The page cache has a part of a buffered file.
            let alone = reads() - before;
            assert!(alone == count || !direct && alone < count, "{case}: {alone} for {count}");

            let before = reads();
            assert!(snapshot.read_many(&locations).await.iter().all(Result::is_ok));
            let together = reads() - before;
            let most = bytes / (64 << 10) + 2 * segments;
            println!("{case}: {count} records of {bytes} bytes in {segments} segments: {together} reads");
            // Frame headers lie between batches in the log's segments; rewritten segments have none.
            let most = if direct || rewritten { most } else { count / 5 };
            assert!(together <= most, "{case}: {together} reads, at most {most} expected");

            let mut scan = snapshot.scan_by_seq(Seq(0), false);
            while scan.next().await.unwrap().is_some() {}
            let before = reads();
            let rows = rows_of(snapshot.scan_by_seq(Seq(0), false).with_values()).await;
            let scanned = reads() - before;
            assert_eq!(rows.len(), all.len(), "{case}");
            // The windows grow from one row.
            let windows = READ_AHEAD_ROWS_MAX.ilog2() as u64 + (all.len() / READ_AHEAD_ROWS_MAX) as u64 + 2;
            let most = 2 * windows + most + if direct || rewritten { 0 } else { count / 5 };
            println!("{case}: a scan in the order of the log {scanned} reads");
            assert!(scanned <= most, "{case}: {scanned} reads, at most {most} expected");
        })
        .unwrap();
    }
}

#[test]
fn what_the_cache_has_costs_no_read() {
    for (direct, rewritten) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = SimDisk::new(9).short_reads(0.0);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let reads = || disk.count_of(OperationKind::Read);
        let case = format!("direct={direct} rewritten={rewritten}");
        sim.run(async {
            let cache = Arc::new(ChunkCache::new(4 << 20));
            let store = open(&env, "store", &counted(direct, Some(cache.clone()))).await;
            fill(&env, &store, 3_000, 150).await;
            if rewritten {
                rewrite(&env, &store, 3_000).await;
            }
            let snapshot = store.snapshot();
            let locations = in_immutable_files(&locations_of(&snapshot).await);
            let (half, other) = locations.split_at(locations.len() / 2);
            let before = reads();
            for location in half {
                snapshot.read(*location).await.unwrap();
            }
            assert!(snapshot.read_many(other).await.iter().all(Result::is_ok));
            let filled = reads() - before;
            assert!(filled > 0 && filled < locations.len() as u64 / 3, "{case}: {filled}");
            let (before, hits) = (reads(), cache.stats().hit_count);
            for location in &locations {
                snapshot.read(*location).await.unwrap();
            }
            assert!(snapshot.read_many(&locations).await.iter().all(Result::is_ok));
            assert_eq!(reads(), before, "{case}");
            let stats = store.chunk_stats().unwrap();
            assert!(stats.hit_count - hits >= 2 * locations.len() as u64, "{case} {stats:?}");
            assert!(stats.bytes > 0 && stats.bytes <= stats.bytes_max, "{case} {stats:?}");
            // A scan of everything evicts nothing from the cache.
            let count = stats.count;
            rows_of(snapshot.scan(Bound::Unbounded, Bound::Unbounded, true).with_values()).await;
            assert_eq!(cache.stats().count, count, "{case}");
            // The chunks are dropped with the files.
            drop(snapshot);
            store.close().await.unwrap();
            drop(store);
            env.clock.sleep(Duration::from_secs(2)).await;
            assert_eq!(cache.stats().bytes, 0, "{case}");
        })
        .unwrap();
    }
}

/// A client that stops reading its response leaves the future of its scan unpolled, at any point.
#[test]
fn a_scan_that_is_not_polled_delays_no_other_reader() {
    for rewritten in [false, true] {
        let disk = SimDisk::new(7).short_reads(0.0).cached_reads(0.0);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let store = open(&env, "store", &counted(false, None)).await;
            fill(&env, &store, 3_000, 200).await;
            if rewritten {
                rewrite(&env, &store, 3_000).await;
            }
            let locations = locations_of(&store.snapshot()).await;
            store.close().await.unwrap();
            drop(store);
            for poll_count in 1..12 {
                // Its segments are opened by their first readers.
                let store = open(&env, "store", &counted(false, None)).await;
                let snapshot = store.snapshot();
                let mut stalled = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false).with_values();
                let mut next = Box::pin(stalled.next());
                let mut returned = 0;
                for _ in 0..poll_count {
                    if next.as_mut().now_or_never().is_some() {
                        returned = 1;
                        break;
                    }
                    env.clock.sleep(Duration::from_millis(3)).await;
                }
                for location in locations.iter().step_by(100) {
                    snapshot.read(*location).await.unwrap();
                }
                store.compact().await.unwrap();
                drop(next);
                let rest = rows_of(stalled).await.len();
                assert_eq!(rest + returned, locations.len(), "{rewritten} {poll_count}");
                store.close().await.unwrap();
            }
        })
        .unwrap();
    }
}
