//! Goal: no power loss affects changes that were synced and not modified since, and all other remains are
//! permitted.
//! Method: random programs with a power loss at every sync, after every sync and at every operation, compared
//! with a simple model of the guarantees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::*;
use crate::random::Generator;
use crate::seeds;

/// Returns a disk for every power loss of a run with the syncs and operations of `whole`.
fn crashes(whole: &SimDisk) -> Vec<(String, SimDisk)> {
    let seed = whole.seed();
    let mut crashes = vec![(format!("seed={seed} at the end"), SimDisk::new(seed))];
    for at in 0..whole.sync_count() {
        crashes.push((format!("seed={seed} at sync {at}"), SimDisk::new(seed).crash_at_sync(at)));
        crashes.push((format!("seed={seed} after sync {at}"), SimDisk::new(seed).crash_after_sync(at)));
    }
    for at in 0..whole.operation_count() {
        crashes.push((format!("seed={seed} at operation {at}"), SimDisk::new(seed).crash_at_operation(at)));
    }
    crashes
}

/// The guarantee for one file: its bytes at the last sync, and the sectors at risk since.
#[derive(Default)]
struct FileGuarantee {
    exists: bool,
    current: Vec<u8>,
    synced: Vec<u8>,
    sectors_at_risk: BTreeSet<usize>,
    length_at_risk: bool,
}

impl FileGuarantee {
    fn touch(&mut self, range: std::ops::Range<usize>, length: usize) {
        self.sectors_at_risk.extend(range.start / SECTOR..range.end.div_ceil(SECTOR));
        self.length_at_risk |= length != self.current.len();
    }

    fn synced(&mut self) {
        self.synced.clone_from(&self.current);
        self.sectors_at_risk.clear();
        self.length_at_risk = false;
    }

    fn check(&self, found: Option<Vec<u8>>, case: &str) {
        assert!(found.is_some() || !self.exists, "the file is lost: {case}");
        let found = found.unwrap_or_default();
        assert!(self.length_at_risk || found.len() == self.synced.len(), "another length: {case}");
        for (sector, synced) in self.synced.chunks(SECTOR).enumerate() {
            let start = sector * SECTOR;
            let end = (start + synced.len()).min(found.len());
            if !self.sectors_at_risk.contains(&sector) && start < end {
                assert_eq!(found[start..end], synced[..end - start], "sector {sector}: {case}");
            }
        }
    }
}

/// Writes, truncates and syncs one file at random, and keeps `guarantee` up to date.
async fn write_at_random(env: Env, seed: u64, guarantee: &Mutex<FileGuarantee>) {
    let file = create(&env, PATH).await;
    sync_directory(&env, "/").await;
    guarantee.lock().unwrap().exists = true;
    let mut random = Generator::new(seed, 0);
    for _ in 0..25 {
        let offset = random.index(4000);
        let length = 1 + random.index(1500);
        let bytes = vec![random.index(256) as u8; length];
        let kind = random.index(6);
        let mut wanted = guarantee.lock().unwrap().current.clone();
        match kind {
            0..=2 => {
                wanted.resize(wanted.len().max(offset + length), 0);
                wanted[offset..offset + length].copy_from_slice(&bytes);
                guarantee.lock().unwrap().touch(offset..offset + length, wanted.len());
            }
            3 => {
                let truncated = offset..wanted.len().max(offset);
                wanted.resize(offset, 0);
                guarantee.lock().unwrap().touch(truncated, offset);
            }
            _ => {}
        }
        match kind {
            0 | 1 => file.write_at(offset as u64, bytes.into()).await.unwrap(),
            2 => file.write_and_sync_at(offset as u64, bytes.into()).await.unwrap(),
            3 => file.set_length(offset as u64).await.unwrap(),
            _ => file.sync().await.unwrap(),
        }
        let mut guarantee = guarantee.lock().unwrap();
        guarantee.current = wanted;
        if kind == 2 || kind > 3 {
            guarantee.synced();
        }
    }
}

#[test]
fn synced_sectors_survive_every_power_loss() {
    for seed in seeds(30) {
        let whole = SimDisk::new(seed);
        run(&whole, |env| async { write_at_random(env, seed, &Mutex::default()).await }).unwrap();
        for (case, disk) in crashes(&whole) {
            let guarantee = Mutex::default();
            run(&disk, |env| write_at_random(env, seed, &guarantee));
            let guarantee = guarantee.into_inner().unwrap();
            guarantee.check(disk.after_power_loss().read_file(PATH), &case);
        }
    }
}

/// The guarantees for names: the file number of each name whose directory was synced, unless a later change
/// to it is pending.
#[derive(Default)]
struct NameGuarantees {
    current: BTreeMap<String, u64>,
    synced: BTreeMap<String, u64>,
    at_risk: BTreeSet<String>,
}

/// Creates, removes and renames files in two directories at random. Each file holds its own number.
async fn rename_at_random(env: Env, seed: u64, guarantee: &Mutex<NameGuarantees>) {
    let engine = &*env.engine;
    for directory in ["/0", "/1"] {
        directory::create(engine, Path::new(directory)).await.unwrap();
    }
    let mut random = Generator::new(seed, 0);
    let mut name = || format!("/{}/{}", random.index(2), random.index(4));
    for number in 1..=30u64 {
        let (from, to) = (name(), name());
        let mut current = guarantee.lock().unwrap().current.clone();
        let is_there = current.contains_key(&from);
        guarantee.lock().unwrap().at_risk.extend([from.clone(), to.clone()]);
        match (is_there, number % 3) {
            (false, _) => {
                let file = create(&env, &from).await;
                file.write_and_sync_at(0, number.to_le_bytes().to_vec().into()).await.unwrap();
                current.insert(from, number);
            }
            (true, 0) => {
                directory::remove(engine, Path::new(&from)).await.unwrap();
                current.remove(&from);
            }
            (true, _) => {
                directory::rename(engine, Path::new(&from), Path::new(&to)).await.unwrap();
                let number = current.remove(&from).unwrap();
                current.insert(to, number);
            }
        }
        guarantee.lock().unwrap().current = current;
        if number % 4 == 0 {
            sync_directory(&env, "/0").await;
            sync_directory(&env, "/1").await;
            let mut guarantee = guarantee.lock().unwrap();
            guarantee.synced = guarantee.current.clone();
            guarantee.at_risk.clear();
        }
    }
}

#[test]
fn synced_names_survive_every_power_loss_and_no_file_has_two() {
    for seed in seeds(30) {
        let whole = SimDisk::new(seed);
        run(&whole, |env| async { rename_at_random(env, seed, &Mutex::default()).await }).unwrap();
        for (case, disk) in crashes(&whole) {
            let guarantee = Mutex::default();
            run(&disk, |env| rename_at_random(env, seed, &guarantee));
            let guarantee: NameGuarantees = guarantee.into_inner().unwrap();
            let after = disk.after_power_loss();
            let mut numbers = BTreeSet::new();
            for path in after.paths() {
                let bytes = after.read_file(&path).unwrap();
                if !bytes.is_empty() {
                    assert!(numbers.insert(bytes), "{} has two names: {case}", path.display());
                }
                let path = format!("/{}", path.display());
                let is_allowed = guarantee.synced.contains_key(&path) || guarantee.at_risk.contains(&path);
                assert!(is_allowed, "{path} was never created: {case}");
            }
            for (path, number) in
                guarantee.synced.iter().filter(|(path, _)| !guarantee.at_risk.contains(*path))
            {
                assert_eq!(after.read_file(path), Some(number.to_le_bytes().to_vec()), "{path}: {case}");
            }
        }
    }
}
