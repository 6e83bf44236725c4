//! Goal: copies of a store that continue on timelines of their own are never mixed up, share their files with
//! earlier backups, and keep the checksum of every listed file.
//! Method: in the simulation, copies of a store get other records under the same keys, of the same sizes. Files of
//! one are put into the other's directory, and its files and its manifest are changed.

use crate::common::model;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use model::OPTIONS;
use settee_io::{Env, File, OpenMode, directory};
use settee_log::{FileChecksum, FileDigest, Manifest, OpenError};
use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{
    Batch, CheckEvent, EarlierBackup, LogOptions, Stage, Store, StoreError, StoreOptions, copy_file,
    start_timeline,
};

const STORE: &str = "/data/store";

fn options() -> StoreOptions {
    let log = LogOptions { segment_bytes_min: 32 << 10, ..OPTIONS.log };
    StoreOptions { checkpoint_entries_min: 1000, garbage_percent_max: 10, log, ..OPTIONS }
}

async fn open(env: &Env, place: &str) -> Result<Store, StoreError> {
    Ok(Store::open(env, Path::new(place), options()).await?.0)
}

/// Replaces the records of these keys; the sizes don't depend on `fill`.
async fn put(store: &Store, keys: impl Iterator<Item = u32>, fill: u8) {
    for key in keys {
        let mut batch = Batch::new();
        batch.put(&key.to_be_bytes(), b"meta", vec![fill; 600].into(), true);
        store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
    }
    store.flush().await.unwrap();
}

/// The first byte of each value.
async fn fills(store: &Store) -> BTreeMap<Vec<u8>, u8> {
    let snapshot = store.snapshot();
    let mut fills = BTreeMap::new();
    let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(entry) = scan.next().await.unwrap() {
        fills.insert(entry.key.to_vec(), snapshot.read(entry.location).await.unwrap().value()[0]);
    }
    fills
}

async fn copy(env: &Env, from: &str, to: &str) {
    directory::create(&*env.engine, Path::new(to)).await.unwrap();
    for entry in directory::list(&*env.engine, Path::new(from)).await.unwrap() {
        copy_file(env, &Path::new(from).join(&entry.name), &Path::new(to).join(&entry.name)).await.unwrap();
    }
}

/// The files that a check reports, and the timelines that it shows.
async fn check(env: &Env, place: &str) -> (Vec<PathBuf>, usize) {
    let (mut found, mut timelines) = (Vec::new(), 1);
    let on_event = |event| match event {
        CheckEvent::Problem(problem) => found.push(problem.path),
        CheckEvent::Timelines(shown) => timelines = shown.count(),
        CheckEvent::Progress(..) => {}
    };
    settee_store::check(env, Path::new(place), &options(), on_event).await.unwrap();
    // Padding is also compared with what the next segment says.
    found.dedup();
    (found, timelines)
}

async fn manifest(env: &Env, place: &str) -> Manifest {
    Manifest::read(env, Path::new(place)).await.unwrap().unwrap()
}

/// A store with rewritten and other listed segments, closed.
async fn original(env: &Env) {
    let store = open(env, STORE).await.unwrap();
    put(&store, 0..200, 1).await;
    put(&store, (0..200).step_by(2), 2).await;
    store.compact().await.unwrap();
    put(&store, 1000..1200, 3).await;
    store.compact().await.unwrap();
    store.close().await.unwrap();
}

#[test]
fn files_of_two_copies_are_refused_in_each_other() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        original(&env).await;
        for (place, fill) in [("/a", 4), ("/b", 5)] {
            copy(&env, STORE, place).await;
            start_timeline(&env, Path::new(place)).await.unwrap().unwrap();
            let store = open(&env, place).await.unwrap();
            put(&store, (1000..1200).step_by(2), fill).await;
            store.compact().await.unwrap();
            put(&store, 300..304, fill).await;
            store.close().await.unwrap();
            assert_eq!(check(&env, place).await, (Vec::new(), 2), "{place}");
        }
        let names: Vec<String> =
            manifest(&env, "/a").await.segments.iter().map(|name| name.file_name()).collect();
        let entries = directory::list(&*env.engine, Path::new("/a")).await.unwrap();
        let (mut listed, mut unlisted) = (0, 0);
        for name in entries.iter().map(|entry| &entry.name).filter(|name| name.ends_with("g")) {
            let path = Path::new("/a").join(name);
            let (own, other) = (disk.read_file(&path).unwrap(), disk.read_file(Path::new("/b").join(name)));
            let Some(other) = other.filter(|other| *other != own) else { continue };
            disk.write_file(&path, other);
            let (found, _) = check(&env, "/a").await;
            assert!(found.contains(&path), "{name}: {found:?}");
            if names.contains(name) {
                listed += 1;
            } else {
                unlisted += 1;
                match open(&env, "/a").await.map(drop) {
                    Err(StoreError::Log(OpenError::Damaged(damage))) => assert_eq!(damage.path, path),
                    other => panic!("{name}: {other:?}"),
                }
            }
            disk.write_file(&path, own);
        }
        assert!(listed > 1 && unlisted > 0, "{listed} {unlisted}");
        assert_eq!(check(&env, "/a").await.0, [] as [PathBuf; 0]);
        let store = open(&env, "/a").await.unwrap();
        assert!(fills(&store).await.values().all(|fill| *fill != 5));
    })
    .unwrap();
}

#[test]
fn a_listed_files_checksum_is_that_of_its_bytes_and_check_finds_any_difference() {
    for seed in seeds(6) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            original(&env).await;
            let sound = manifest(&env, STORE).await;
            assert!(sound.segments.iter().any(|name| name.generation > 0), "seed={seed}");
            assert!(sound.segments.len() > 1, "seed={seed}: {sound:?}");
            for (index, name) in sound.segments.iter().enumerate() {
                let path = Path::new(STORE).join(name.file_name());
                let bytes = disk.read_file(&path).unwrap();
                let checksum = FileChecksum(*blake3::hash(&bytes).as_bytes());
                assert_eq!(
                    name.digest,
                    FileDigest { length: bytes.len() as u64, checksum },
                    "seed={seed} {path:?}"
                );
                // A wrong checksum, and a wrong length.
                for wrong in [[1, 0], [0, 1]] {
                    let mut changed = sound.clone();
                    changed.segments[index].digest.checksum.0[seed as usize % 32] ^= wrong[0];
                    changed.segments[index].digest.length += u64::from(wrong[1]);
                    changed.write(&env, Path::new(STORE)).await.unwrap();
                    assert_eq!(check(&env, STORE).await.0, std::slice::from_ref(&path), "seed={seed}");
                }
                sound.write(&env, Path::new(STORE)).await.unwrap();
                // Bytes that nothing reads.
                let frames_end = name.bytes as usize;
                if name.generation == 0 && frames_end < frames_end.next_multiple_of(4096) {
                    disk.damage_file(&path, |bytes| bytes[frames_end] ^= 1);
                    assert_eq!(check(&env, STORE).await.0, std::slice::from_ref(&path), "seed={seed}");
                    disk.damage_file(&path, |bytes| bytes[frames_end] ^= 1);
                }
            }
            assert_eq!(check(&env, STORE).await.0, [] as [PathBuf; 0], "seed={seed}");
        })
        .unwrap();
    }
}

#[test]
fn a_backup_of_a_restored_copy_shares_the_listed_files_of_earlier_backups() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        original(&env).await;
        let store = open(&env, STORE).await.unwrap();
        let (_, files) = store.backup(Path::new("/backup/1"), None).await.unwrap();
        store.close().await.unwrap();
        copy(&env, "/backup/1", "/copy").await;
        start_timeline(&env, Path::new("/copy")).await.unwrap().unwrap();
        let copy = open(&env, "/copy").await.unwrap();
        put(&copy, 100..104, 6).await;
        let earlier = EarlierBackup { directory: Path::new("/backup/1"), files: &files };
        copy.backup(Path::new("/backup/2"), Some(earlier)).await.unwrap();
        let names: Vec<String> =
            manifest(&env, "/backup/2").await.segments.iter().map(|name| name.file_name()).collect();
        assert!(names.len() > 1);
        for name in names {
            let inode = async |place: &str| {
                let file =
                    File::open(&env.engine, &Path::new(place).join(&name), OpenMode::Read).await.unwrap();
                file.identity().await.unwrap().inode
            };
            assert_eq!(inode("/backup/1").await, inode("/backup/2").await, "{name}");
            assert_ne!(inode("/copy").await, inode("/backup/2").await, "{name}");
        }
        assert_eq!(check(&env, "/backup/2").await, (Vec::new(), 2));
        assert_eq!(manifest(&env, "/backup/2").await.timelines, manifest(&env, "/copy").await.timelines);
    })
    .unwrap();
}

#[test]
fn a_store_without_a_checkpoint_can_be_restored_and_backed_up_again_and_again() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let store = open(&env, STORE).await.unwrap();
        put(&store, 0..3, 1).await;
        store.backup(Path::new("/backup/0"), None).await.unwrap();
        for round in 0..3_u32 {
            let place = format!("/copy/{round}");
            copy(&env, &format!("/backup/{round}"), &place).await;
            start_timeline(&env, Path::new(&place)).await.unwrap().unwrap();
            let store = open(&env, &place).await.unwrap();
            put(&store, 10 + round..11 + round, 2).await;
            assert_eq!(fills(&store).await.len() as u32, 4 + round);
            store.backup(Path::new(&format!("/backup/{}", round + 1)), None).await.unwrap();
            assert_eq!(
                check(&env, &format!("/backup/{}", round + 1)).await,
                (Vec::new(), round as usize + 2)
            );
            // A checkpoint gives the manifest the store's section.
            store.compact().await.unwrap();
            store.close().await.unwrap();
            let store = open(&env, &place).await.unwrap();
            assert_eq!(fills(&store).await.len() as u32, 4 + round);
            store.close().await.unwrap();
            assert_eq!(check(&env, &place).await, (Vec::new(), round as usize + 2));
        }
    })
    .unwrap();
}
