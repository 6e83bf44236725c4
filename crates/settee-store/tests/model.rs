//! Goal: a store is an ordered map of versions; its snapshots never change, and show what is
//! persisted alone.
//! Method: in the simulation, seeded commits and deletions against a `BTreeMap`, with snapshots
//! kept over later writes, reopened now and then; and the power cut while batches are accepted.

#![expect(clippy::disallowed_methods, reason = "two tests are about real threads")]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use settee_io::{Env, ThreadOptions};
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{Batch, LogOptions, Seq, Snapshot, Stage, Store, StoreOptions};

const OPTIONS: StoreOptions = StoreOptions {
    // Small segments, so that a run goes through several.
    log: LogOptions { batch_bytes_max: 16 << 10, segment_bytes_max: 40 << 10, ..LogOptions::DEFAULT },
    measure: |key, meta, _| [1, meta.len() as u64, u64::from(key[0])],
};

/// Key to `Seq`, meta, value and whether it is listed.
type Model = BTreeMap<Vec<u8>, (u64, Vec<u8>, Vec<u8>, bool)>;

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

async fn open(env: &Env) -> Store {
    Store::open(env, Path::new("/data/store"), OPTIONS).await.unwrap().0
}

async fn check(snapshot: &Snapshot, model: &Model, case: &str) {
    let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false);
    let mut found = Vec::new();
    while let Some(entry) = scan.next() {
        found.push((entry.key.to_vec(), entry.seq().0, entry.meta.to_vec(), entry.location));
    }
    assert_eq!(found.len(), model.len(), "{case}");
    for ((key, seq, meta, location), (expected_key, (expected_seq, expected_meta, value, _))) in
        found.iter().zip(model)
    {
        assert_eq!((key, seq, meta), (expected_key, expected_seq, expected_meta), "{case}");
        let record = snapshot.read(*location).await.unwrap();
        assert_eq!((record.key(), &record.value()[..]), (&key[..], &value[..]), "{case}");
        assert_eq!(snapshot.get(key).unwrap().location, *location, "{case}");
    }
    let mut listed: Vec<_> =
        model.iter().filter(|(_, (.., listed))| *listed).map(|(key, (seq, ..))| (*seq, key)).collect();
    listed.sort_unstable();
    for after in [0, listed.get(listed.len() / 2).map_or(0, |(seq, _)| *seq)] {
        let expected: Vec<_> = listed.iter().filter(|(seq, _)| *seq > after).collect();
        let mut scan = snapshot.scan_listed(Seq(after), false);
        let mut found = Vec::new();
        while let Some(entry) = scan.next() {
            found.push((entry.seq().0, entry.key.to_vec()));
        }
        assert_eq!(
            found.iter().map(|(seq, key)| (*seq, key)).collect::<Vec<_>>(),
            expected.iter().map(|(seq, key)| (*seq, *key)).collect::<Vec<_>>(),
            "{case}"
        );
        assert_eq!(snapshot.sums_listed(Seq(after))[0], expected.len() as u64, "{case}");
    }
    assert_eq!(snapshot.last_listed().0, listed.last().map_or(0, |(seq, _)| *seq), "{case}");
    let sums = snapshot.sums(Bound::Unbounded, Bound::Unbounded);
    assert_eq!(sums[1], model.values().map(|(_, meta, ..)| meta.len() as u64).sum::<u64>(), "{case}");
}

/// Commits one random batch to both.
async fn commit(store: &Store, model: &mut Model, random: &mut Random, stage: Stage) -> Seq {
    let mut batch = Batch::new();
    let mut changes = Vec::new();
    for _ in 0..1 + random.below(5) {
        let length = 1 + random.below(2);
        let key: Vec<u8> = (0..length).map(|_| b'a' + random.below(6) as u8).collect();
        if random.below(4) == 0 {
            batch.delete(&key);
            changes.push((key, None));
        } else {
            let (meta_size, value_size) = (random.below(30), random.below(600));
            let (meta, value, listed) =
                (random.bytes(meta_size), random.bytes(value_size), random.below(2) == 0);
            batch.put(&key, &meta, value.clone().into(), listed);
            changes.push((key, Some((meta, value, listed))));
        }
    }
    let mut writer = store.writer().await;
    let last = writer.commit(&batch, stage).await.unwrap();
    let first = last.0 + 1 - changes.len() as u64;
    for (seq, (key, change)) in (first..).zip(changes) {
        match change {
            Some((meta, value, listed)) => drop(model.insert(key, (seq, meta, value, listed))),
            None => drop(model.remove(&key)),
        }
    }
    for (key, (seq, ..)) in model.iter() {
        assert_eq!(writer.get(key).unwrap().seq().0, *seq);
    }
    last
}

#[test]
fn a_store_is_an_ordered_map_and_its_snapshots_stay() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let mut model = Model::new();
            let mut store = open(&env).await;
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
                    store = open(&env).await;
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
            let mut random = Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let mut model = Model::new();
            let store = open(&env).await;
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
        let found = sim.run(async { open(&env).await.snapshot().seq().0 }).unwrap();
        let shown = shown.into_inner();
        assert!(shown <= found, "seed={seed}: {shown} was shown, {found} is left");
        shown_count += shown;
    }
    assert!(shown_count > 0);
}

/// On real threads, since the simulation runs one task at a time: a small commit and a large one
/// share groups, and each must find what it waited for.
#[test]
fn who_has_waited_finds_the_commit_in_the_next_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let env = Env::system(runtime.handle().clone(), ThreadOptions::default());
    runtime.block_on(async {
        let options = StoreOptions { log: LogOptions::default(), ..OPTIONS };
        let store = Arc::new(Store::open(&env, &folder.path().join("store"), options).await.unwrap().0);
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

/// On real threads: followers that come about when a sync completes are woken all the same.
#[test]
fn a_follower_is_woken_whenever_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let env = Env::system(runtime.handle().clone(), ThreadOptions::default());
    runtime.block_on(async {
        let log = LogOptions { written_age_ms_max: 0, ..LogOptions::default() };
        let options = StoreOptions { log, ..OPTIONS };
        let store = Arc::new(Store::open(&env, &folder.path().join("store"), options).await.unwrap().0);
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
