//! Goal: after a store was closed in order, no changed bit is silently wrong: opening it and reading everything
//! returns what was stored, or an error that names the file; and a check finds the bit, or nothing reads it.
//! Method: make a store of about 200 KB with every kind of file (a manifest, a tree, rewritten segments, sealed
//! ones, an open one with records after the checkpoint), and close it. Flip one bit, open a copy, read each key
//! and value by key and by `Seq`, and check another copy. That nothing reads the bytes whose bits a check doesn't
//! find is shown by changing all of them at once: the store reads the same, goes on, and is rewritten. The same
//! after a kill, which leaves no close mark: what passes for a torn write is counted, and lies in the last group.
//!
//! `SETTEE_FLIP_STEP=1` flips every bit; by default every 3989th is flipped. With a step of 8,
//! `SETTEE_FLIP_FIRST` from 0 to 7 chooses the bit of each byte, so that eight processes share the work.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::Duration;

use settee_io::OperationKind;
use settee_sim::{Sim, SimDisk};
use settee_store::{Batch, CheckEvent, LogOptions, Seq, Stage, Store, StoreError, StoreOptions};

use crate::common::model::{OPTIONS, Random};

const DIRECTORY: &str = "/data/store";

/// Distance in bits from one flip to the next.
const STEP: usize = 3_989;

fn options() -> StoreOptions {
    StoreOptions {
        checkpoint_entries_min: 1 << 20,
        checkpoint_bytes_max: 1 << 30,
        garbage_percent_max: 90,
        log: LogOptions { segment_bytes_min: 24 << 10, segment_bytes_max: 40 << 10, ..OPTIONS.log },
        ..OPTIONS
    }
}

/// `Seq`, meta, value and whether it is in the seq index, by key.
type Content = BTreeMap<Vec<u8>, (u64, Vec<u8>, Vec<u8>, bool)>;

/// Documents, some with large values in several records, of which the older ones are replaced.
async fn commit(store: &Store, content: &mut Content, random: &mut Random, count: usize) {
    for _ in 0..count {
        let mut batch = Batch::new();
        let mut rows = Vec::new();
        let id = random.below(60);
        let (meta_size, value_size) = (17 + random.below(60), 200 + random.below(1_200));
        rows.push((
            format!("d{id:03}").into_bytes(),
            random.bytes(meta_size),
            random.bytes(value_size),
            true,
        ));
        if id.is_multiple_of(20) {
            for chunk in 0..2 {
                let value = random.bytes(5_000);
                rows.push((format!("a{id:03}{chunk}").into_bytes(), Vec::new(), value, false));
            }
        }
        for (key, meta, value, in_seq_index) in &rows {
            batch.put(key, meta, value.clone().into(), *in_seq_index);
        }
        let last = store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
        // A group's end takes up to a block.
        if random.below(8) == 0 {
            store.flush().await.unwrap();
        }
        for (seq, (key, meta, value, in_seq_index)) in (last.0 + 1 - rows.len() as u64..).zip(rows) {
            content.insert(key, (seq, meta, value, in_seq_index));
        }
    }
    store.flush().await.unwrap();
}

/// A store of all kinds of files, closed or killed, and its content.
fn make(closes: bool) -> (BTreeMap<PathBuf, Vec<u8>>, Content) {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let mut content = Content::new();
    sim.run(async {
        let mut random = Random::new(1);
        let open = async || Store::open(&env, Path::new(DIRECTORY), options()).await.unwrap().0;
        let store = open().await;
        commit(&store, &mut content, &mut random, 45).await;
        env.clock.sleep(Duration::from_secs(1)).await;
        store.compact().await.unwrap();
        commit(&store, &mut content, &mut random, 15).await;
        store.checkpoint().await.unwrap();
        store.close().await.unwrap();
        drop(store);
        let store = open().await;
        commit(&store, &mut content, &mut random, 10).await;
        store.checkpoint().await.unwrap();
        commit(&store, &mut content, &mut random, 10).await;
        // The last group.
        commit(&store, &mut content, &mut random, 1).await;
        env.clock.sleep(Duration::from_secs(1)).await;
        if closes {
            store.close().await.unwrap();
        }
    })
    .unwrap();
    let paths =
        disk.paths().into_iter().filter(|path| !path.ends_with("lock")).map(|path| Path::new("/").join(path));
    (paths.map(|path| (path.clone(), disk.read_file(&path).unwrap())).collect(), content)
}

fn disk_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> SimDisk {
    let disk = SimDisk::new(1).short_reads(0.0).short_writes(0.0).cached_reads(1.0).delays_us(0..=0);
    files.iter().for_each(|(path, bytes)| disk.write_file(path, bytes.clone()));
    disk
}

/// Opens the store and reads everything by key and by `Seq`.
fn read_all(disk: &SimDisk) -> Result<Content, StoreError> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let (store, _) = Store::open(&env, Path::new(DIRECTORY), options()).await?;
        let snapshot = store.snapshot();
        let mut content = Content::new();
        let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false);
        while let Some(entry) = scan.next().await? {
            let (key, seq, meta, location) =
                (entry.key.to_vec(), entry.seq().0, entry.meta.to_vec(), entry.location);
            let in_seq_index = entry.to_entry().in_seq_index;
            let value = snapshot.read(location).await?.value().to_vec();
            content.insert(key, (seq, meta, value, in_seq_index));
        }
        let mut listed = BTreeMap::new();
        let mut scan = snapshot.scan_by_seq(Seq(0), false);
        while let Some(entry) = scan.next().await? {
            listed.insert(entry.seq().0, (entry.key.to_vec(), entry.meta.to_vec()));
        }
        let in_seq_index = content.iter().filter(|(_, row)| row.3);
        let expected = in_seq_index.map(|(key, row)| (row.0, (key.clone(), row.1.clone()))).collect();
        assert_eq!(listed, expected, "both orders agree");
        assert_eq!(snapshot.total_aggregates()[0], content.len() as u64);
        Ok(content)
    })
    .unwrap()
}

/// Whether a check finds a problem.
fn is_found(disk: &SimDisk) -> bool {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    let mut count = 0;
    sim.run(async {
        let on_event = |event: CheckEvent| count += u64::from(matches!(event, CheckEvent::Problem(_)));
        settee_store::check(&env, Path::new(DIRECTORY), &options(), on_event).await.unwrap();
    })
    .unwrap();
    count > 0
}

/// Counts of flipped bits in one kind of file.
#[derive(Debug, Default, Clone)]
struct Counts {
    flips: u64,
    /// Opening or reading returned an error.
    refused: u64,
    /// Everything was read as it was.
    harmless: u64,
    /// Something else was read.
    silent: u64,
    /// The bytes with these bits.
    silent_at: BTreeSet<(PathBuf, usize)>,
    /// The check found nothing.
    unfound: u64,
    /// The bytes with these bits.
    unfound_at: BTreeSet<(PathBuf, usize)>,
}

/// Flips the bits of a store's files, one at a time; returns the counts by kind of file.
fn flip_all(files: &BTreeMap<PathBuf, Vec<u8>>, content: &Content) -> BTreeMap<String, Counts> {
    let number =
        |name, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (step, first): (usize, usize) = (number("SETTEE_FLIP_STEP", STEP), number("SETTEE_FLIP_FIRST", 0));
    let mut counts = BTreeMap::<String, Counts>::new();
    let mut disk = disk_of(files);
    for (path, bytes) in files {
        let kind = path.extension().unwrap_or(path.file_name().unwrap()).to_string_lossy().into_owned();
        let counts = counts.entry(kind).or_default();
        // At least eight bits of a small file.
        for bit in (first..bytes.len() * 8).step_by(step.min(bytes.len())) {
            flip(&mut disk, files, content, path, bit, counts);
        }
    }
    counts
}

/// Flips one bit on a disk with these files, and flips it back.
fn flip(
    disk: &mut SimDisk,
    files: &BTreeMap<PathBuf, Vec<u8>>,
    content: &Content,
    path: &Path,
    bit: usize,
    counts: &mut Counts,
) {
    let (byte, mask) = (bit / 8, 1 << (bit % 8));
    let case = format!("bit {} of byte {byte} in {}", bit % 8, path.display());
    disk.damage_file(path, |bytes| bytes[byte] ^= mask);
    counts.flips += 1;
    if !is_found(disk) {
        counts.unfound += 1;
        counts.unfound_at.insert((path.to_path_buf(), byte));
    }
    let changes = change_count(disk);
    match read_all(disk) {
        Ok(found) if found == *content => counts.harmless += 1,
        Ok(_) => {
            counts.silent += 1;
            counts.silent_at.insert((path.to_path_buf(), byte));
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&*path.to_string_lossy()), "{case}: {text}");
            counts.refused += 1;
        }
    }
    match change_count(disk) == changes {
        true => disk.write_file(path, files[path].clone()),
        false => *disk = disk_of(files),
    }
}

/// Number of operations that may have changed a file.
fn change_count(disk: &SimDisk) -> u64 {
    let kinds = [
        OperationKind::Write,
        OperationKind::Allocate,
        OperationKind::SetLength,
        OperationKind::Remove,
        OperationKind::Rename,
        OperationKind::Link,
    ];
    kinds.into_iter().map(|kind| disk.count_of(kind)).sum()
}

/// Prints the counts, and the ranges of the bytes in which the check doesn't find a bit.
fn report(case: &str, all: &BTreeMap<String, Counts>) {
    for (kind, counts) in all {
        let Counts { flips, refused, harmless, silent, unfound, .. } = counts;
        println!(
            "{case}, {kind}: {flips} flips, {refused} refused, {harmless} harmless, {silent} silent, {unfound} unfound"
        );
        for (what, bytes) in [("silent", &counts.silent_at), ("unfound", &counts.unfound_at)] {
            let mut ranges: Vec<(&Path, usize, usize)> = Vec::new();
            for (path, byte) in bytes {
                match ranges.last_mut().filter(|(last, _, end)| *last == path.as_path() && *byte < end + STEP)
                {
                    Some((.., end)) => *end = *byte,
                    None => ranges.push((path, *byte, *byte)),
                }
            }
            for (path, start, end) in ranges {
                println!("  {what}: {start} to {end} of {}", path.display());
            }
        }
    }
}

/// Changes all bytes whose bits the check doesn't find, and shows that nothing reads them: not a reader, and
/// not what rewrites the files.
fn check_unread(files: &BTreeMap<PathBuf, Vec<u8>>, content: &Content, all: &BTreeMap<String, Counts>) {
    let mut files = files.clone();
    for (path, byte) in all.values().flat_map(|counts| &counts.unfound_at) {
        files.get_mut(path).unwrap()[*byte] ^= 0xA5;
    }
    assert_eq!(read_all(&disk_of(&files)).unwrap(), *content);
    let disk = disk_of(&files);
    assert!(!is_found(&disk));
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let mut content = content.clone();
    sim.run(async {
        let options = StoreOptions { garbage_percent_max: 10, ..options() };
        let (store, _) = Store::open(&env, Path::new(DIRECTORY), options).await.unwrap();
        commit(&store, &mut content, &mut Random::new(2), 60).await;
        env.clock.sleep(Duration::from_secs(1)).await;
        store.checkpoint().await.unwrap();
        store.compact().await.unwrap();
        store.close().await.unwrap();
    })
    .unwrap();
    assert!(!is_found(&disk));
    assert_eq!(read_all(&disk).unwrap(), content);
}

#[test]
fn a_flipped_bit_of_a_closed_store_is_an_error_or_harmless_and_is_found() {
    let (files, content) = make(true);
    files.iter().for_each(|(path, bytes)| println!("{}: {} bytes", path.display(), bytes.len()));
    let size: usize = files.values().map(Vec::len).sum();
    assert!(size > 150_000, "{size} bytes");
    assert!(!is_found(&disk_of(&files)));
    let counts = flip_all(&files, &content);
    report("closed", &counts);
    assert!(["manifest", "log", "seg", "tree"].iter().all(|kind| counts[*kind].flips > 0));
    assert!(counts.values().all(|counts| counts.silent == 0));
    check_unread(&files, &content, &counts);
}

#[test]
fn after_a_kill_only_a_flipped_bit_of_the_last_group_passes_for_a_torn_write() {
    let (files, content) = make(false);
    let counts = flip_all(&files, &content);
    report("killed", &counts);
    let last = files.keys().rfind(|path| path.extension().is_some_and(|end| end == "log")).unwrap();
    let silent: Vec<usize> = counts
        .values()
        .flat_map(|counts| &counts.silent_at)
        .map(|(path, byte)| {
            assert_eq!(path, last);
            *byte
        })
        .collect();
    // The last group was written and synced at once.
    if let (Some(first), Some(last)) = (silent.first(), silent.last()) {
        assert!(last - first < options().log.batch_bytes_max, "{first} to {last}");
    }
}
