//! Goal: the list of files: what is listed stays unchanged, a set's files remain readable after their removal
//! and go with its last user, and no power loss in an edit loses a record.
//! Method: simulated disks; a user that lists segments and removes some, with a power loss at every operation.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join3;
use settee_io::{Damage, Env, File, IdleHandles, OpenMode, OperationKind, directory};
use settee_log::{
    Batch, Edit, EntryRef, FileChecksum, FileDigest, Flags, Location, Log, LogOptions, Manifest, OpenError,
    ReadError, RecordRef, Segment, SegmentIndex, Seq, Stage, read_record, scan_segment,
};
use settee_sim::{Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";
const MANIFEST: &str = "/data/log/manifest";

fn options() -> LogOptions {
    LogOptions { batch_bytes_max: 4096, segment_bytes_max: 12 << 10, ..LogOptions::default() }
}

fn path(segment: u32) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{segment:010}.log"))
}

async fn open_after(env: &Env, after: Seq) -> Result<(Log, Vec<u64>), OpenError> {
    let mut found = Vec::new();
    let replay = |entry: EntryRef<'_>| found.push(entry.seq.0);
    let (log, _) = Log::open_after(env, Path::new(DIRECTORY), options(), after, replay).await?;
    Ok((log, found))
}

/// Lists the sealed segments that end at or before `seq`. Returns whether there were any.
async fn list(log: &Log, seq: Seq) -> bool {
    let edit = Edit { list_to: Some(seq), ..Edit::default() };
    log.edit(edit, |_| false).await.unwrap()
}

/// Removes these listed segments.
async fn remove(log: &Log, is_removed: impl Fn(u32) -> bool) {
    let set = log.segment_set();
    let removed = set.listed().filter(|segment| is_removed(segment.name.first)).cloned().collect();
    log.edit(Edit { removed, ..Edit::default() }, |_| false).await.unwrap();
}

/// Appends one record, whose bytes are derived from its number.
async fn append(log: &Log) -> (Seq, Location) {
    let number = log.persisted().0 + 1;
    let mut batch = Batch::new();
    batch.push(Flags::IN_SEQ_INDEX, &number.to_be_bytes(), b"meta", &[number as u8; 700]);
    let appended = log.append(&batch, Stage::Persisted).await.unwrap();
    log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
    assert_eq!(appended.first_seq, Seq(number));
    (appended.last_seq, appended.locations[0])
}

async fn append_all(log: &Log, count: usize) -> Vec<Location> {
    let mut locations = Vec::new();
    for _ in 0..count {
        locations.push(append(log).await.1);
    }
    locations
}

/// Returns once all segments but the open one are sealed.
async fn seal(log: &Log) -> u32 {
    let open = *log.segments().last().unwrap();
    let mut below = log.sealed_below();
    while below < open {
        below = log.sealed_changed(below).await.unwrap();
    }
    assert_eq!(below, open);
    below
}

#[test]
fn segments_are_sealed_without_further_appends() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open_after(&env, Seq(0)).await.unwrap();
            append_all(&log, 60).await;
            let open = seal(&log).await;
            assert!(open > 4, "seed={seed}: {open}");
            // One more segment is closed; the first batch of the next one is the last batch.
            while *log.segments().last().unwrap() == open {
                append(&log).await;
            }
            let open = seal(&log).await;
            for info in log.segment_infos() {
                assert_eq!(info.is_sealed, info.number < open, "seed={seed}: {info:?}");
            }
            // After opening, sealing doesn't need an append either.
            log.close().await.unwrap();
            let (log, _) = open_after(&env, Seq(0)).await.unwrap();
            assert_eq!((log.sealed_below(), seal(&log).await), (1, open), "seed={seed}");
            let changed = log.sealed_changed(open);
            log.close().await.unwrap();
            assert!(changed.await.is_err(), "a log that has ended seals nothing");
        })
        .unwrap();
    }
}

#[test]
fn sealing_skips_and_reports_a_damaged_segment() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, Seq(0)).await.unwrap();
        append_all(&log, 20).await;
        disk.damage_file(path(2), |bytes| bytes[600] ^= 1);
        let open = seal(&log).await;
        let unsealed = log.segment_infos().into_iter().filter(|info| !info.is_sealed);
        assert_eq!(unsealed.map(|info| info.number).collect::<Vec<_>>(), [2, open]);
        // It isn't listed, and neither are those after it.
        assert!(list(&log, Seq(20)).await);
        assert_eq!((log.segment_set().listed_to(), log.segment_infos()[0].number), (1, 2));
        assert!(!list(&log, Seq(20)).await);
    })
    .unwrap();
}

#[test]
fn segment_infos_agree_with_the_segment_indexes() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, Seq(0)).await.unwrap();
        append_all(&log, 60).await;
        let open = seal(&log).await;
        for reopened in [false, true] {
            let log = match reopened {
                false => &log,
                true => {
                    log.close().await.unwrap();
                    &open_after(&env, Seq(0)).await.unwrap().0
                }
            };
            let infos = log.segment_infos();
            assert!(infos.iter().map(|info| info.number).eq(1..=open));
            assert_eq!((infos[0].first_seq, infos.last().unwrap().last_seq), (Seq(1), Seq(60)));
            // `file_bytes` also counts the padding after the last frame of the open segment.
            let frame_bytes: u64 = infos.iter().map(|info| info.frame_bytes).sum();
            assert!((frame_bytes..frame_bytes + 4096).contains(&log.stats().file_bytes), "{frame_bytes}");
            for info in &infos[..infos.len() - 1] {
                let file = log.segment_set().get(info.number).unwrap().file().await.unwrap().clone();
                let segment_index = SegmentIndex::open(file, info.number, info.epoch).await.unwrap();
                let trailer = segment_index.trailer();
                assert_eq!((trailer.first_seq, trailer.last_seq), (info.first_seq, info.last_seq));
                assert_eq!(trailer.frames_end, info.frame_bytes);
            }
        }
    })
    .unwrap();
}

#[test]
fn listed_segments_stay_unchanged_and_the_log_continues_without_them() {
    for seed in seeds(20) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open_after(&env, Seq(0)).await.unwrap();
            let locations = append_all(&log, 60).await;
            let below = seal(&log).await - 1;
            let infos = log.segment_infos();
            let bytes = log.stats().file_bytes;
            let last_seq = infos[below as usize - 2].last_seq;
            assert!(list(&log, last_seq).await && !list(&log, Seq(1)).await);
            assert_eq!(log.segments()[0], below, "seed={seed}");
            assert_eq!(log.segment_infos(), infos[below as usize - 1..], "seed={seed}");
            let listed_bytes: u64 = infos[..below as usize - 1].iter().map(|info| info.frame_bytes).sum();
            assert_eq!(log.stats().file_bytes, bytes - listed_bytes, "seed={seed}");
            let set = log.segment_set();
            assert_eq!((set.listed_to(), set.listed_bytes()), (below - 1, listed_bytes), "seed={seed}");
            set.listed().for_each(|segment| check_digest(&disk, segment, &format!("seed={seed}")));
            assert!(log.segment_index(1).await.is_ok());
            assert_eq!(log.read(locations[0]).await.unwrap().seq(), Seq(1), "seed={seed}");
            let files: Vec<_> = (1..below).map(|number| disk.read_file(path(number)).unwrap()).collect();
            append_all(&log, 60).await;
            log.close().await.unwrap();
            let (log, found) = open_after(&env, last_seq).await.unwrap();
            assert_eq!(found, (last_seq.0 + 1..=120).collect::<Vec<_>>(), "seed={seed}");
            for (index, location) in locations.iter().enumerate() {
                let record = log.read_in(&log.segment_set(), Seq(index as u64 + 1), *location).await.unwrap();
                assert_eq!(record.seq(), Seq(index as u64 + 1), "seed={seed}");
            }
            log.close().await.unwrap();
            for (number, bytes) in (1..below).zip(files) {
                assert!(disk.read_file(path(number)).unwrap() == bytes, "seed={seed}: segment {number}");
            }
        })
        .unwrap();
    }
}

#[test]
fn r24_a_manifest_that_is_older_than_the_log_or_missing_is_refused() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, Seq(0)).await.unwrap();
        append_all(&log, 60).await;
        let open = seal(&log).await;
        let last_seq = log.segment_infos()[1].last_seq;
        assert!(list(&log, last_seq).await);
        let oldest = |segment| disk.read_file(path(segment)).unwrap()[20..24].to_vec();
        assert_eq!(oldest(open), 1u32.to_le_bytes());
        append_all(&log, 30).await;
        assert_eq!(oldest(open + 1), 3u32.to_le_bytes());
        log.close().await.unwrap();
        // So a manifest that is older than the log, or missing, is noticed.
        let manifest = disk.read_file(MANIFEST).unwrap();
        directory::remove(&*env.engine, Path::new(MANIFEST)).await.unwrap();
        let opened = open_after(&env, Seq(0)).await.map(|(_, found)| found);
        assert!(
            matches!(&opened, Err(OpenError::Missing { path }) if path == Path::new(MANIFEST)),
            "{opened:?}"
        );
        let timelines = log.timelines().clone();
        let old = Manifest { number: 1, timelines, ..Manifest::default() };
        old.write(&env, Path::new(DIRECTORY)).await.unwrap();
        let opened = open_after(&env, Seq(0)).await.map(|(_, found)| found);
        let is_named =
            matches!(&opened, Err(OpenError::Damaged(Damage { path, .. })) if path == Path::new(MANIFEST));
        assert!(is_named, "{opened:?}");
        disk.write_file(MANIFEST, manifest);
        let (_, found) = open_after(&env, last_seq).await.unwrap();
        assert_eq!(found, (last_seq.0 + 1..=90).collect::<Vec<_>>());
    })
    .unwrap();
}

#[test]
fn a_segment_that_sealing_has_not_passed_is_not_listed() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, Seq(0)).await.unwrap();
        append_all(&log, 60).await;
        let open = seal(&log).await;
        assert!(list(&log, Seq(u64::MAX)).await);
        assert_eq!(log.segment_set().listed_to(), open - 1);
    });
}

#[test]
fn the_files_of_a_set_are_readable_after_their_removal_and_go_with_its_last_user() {
    for (seed, direct) in seeds(10).zip([false, true].into_iter().cycle()) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open_after(&env, Seq(0)).await.unwrap();
            log.set_direct(direct).await.unwrap();
            let mut locations = append_all(&log, 60).await;
            let below = seal(&log).await;
            let set = log.segment_set();
            assert!(set.iter().map(|segment| segment.name.first).eq(log.segments()));
            list(&log, Seq(60)).await;
            remove(&log, |_| true).await;
            env.clock.sleep(Duration::from_secs(1)).await;
            assert!((1..below).all(|number| disk.read_file(path(number)).is_some()), "seed={seed}: pinned");
            assert!(log.segment_set().get(1).is_none());
            // Later records, in memory and in newer files, are readable too.
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"last", b"", &[1; 100]);
            locations.extend(append_all(&log, 20).await);
            let appended = log.append(&batch, Stage::Accepted).await.unwrap();
            let read = log.read_in(&set, appended.last_seq, appended.locations[0]).await.unwrap();
            assert_eq!(read.key(), b"last");
            for (index, location) in locations.iter().enumerate() {
                let seq = Seq(index as u64 + 1);
                let segment = set.get(location.segment);
                assert_eq!(segment.is_some(), location.segment <= below, "seed={seed}");
                let Some(segment) = segment else { continue };
                let record = log.read_in(&set, seq, *location).await.unwrap();
                assert_eq!(record.seq(), seq, "seed={seed}");
                let file = segment.file().await.unwrap();
                let read = read_record(&file, location.offset.into(), location.length).await.unwrap();
                assert_eq!((read.bytes(), read.checksum()), (record.bytes(), record.checksum()));
            }
            log.close().await.unwrap();
            // Also after the log was closed, and opened again.
            let last = Seq(locations.iter().filter(|location| location.segment < below).count() as u64);
            let (again, found) = open_after(&env, last).await.unwrap();
            assert_eq!(found.last(), Some(&81), "seed={seed}: though files are pinned, it opens again");
            for (index, location) in locations.iter().enumerate().filter(|(_, at)| at.segment <= below) {
                let record = log.read_in(&set, Seq(index as u64 + 1), *location).await.unwrap();
                assert_eq!(record.seq(), Seq(index as u64 + 1), "seed={seed}");
            }
            drop(again);
            let last = set.get(below).unwrap().clone();
            drop(set);
            env.clock.sleep(Duration::from_secs(1)).await;
            let left =
                (1..=below).filter(|number| disk.read_file(path(*number)).is_some()).collect::<Vec<_>>();
            assert_eq!(left, [below], "seed={seed}: the files go with their last user");
            drop(last);
        })
        .unwrap();
    }
}

#[test]
fn idle_files_are_closed_and_opened_again() {
    for (seed, direct) in seeds(6).zip([false, true].into_iter().cycle()) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = Env { idle_handles: IdleHandles::new(2), ..sim.env() };
        sim.run(async {
            let (log, _) = open_after(&env, Seq(0)).await.unwrap();
            log.set_direct(direct).await.unwrap();
            let locations = append_all(&log, 90).await;
            seal(&log).await;
            list(&log, Seq(90)).await;
            let set = log.segment_set();
            let listed: Vec<_> = set.listed().cloned().collect();
            let open_count = || listed.iter().filter(|segment| segment.stored_file().get().is_some()).count();
            assert!(listed.len() > 4 && open_count() <= 2, "seed={seed}");
            let opened = disk.count_of(OperationKind::Open);
            let read = |index: usize| {
                let (log, set, location) = (&log, &set, locations[index]);
                async move {
                    let record = log.read_in(set, Seq(index as u64 + 1), location).await.unwrap();
                    assert_eq!(record.seq(), Seq(index as u64 + 1), "seed={seed}");
                }
            };
            for index in 0..30 {
                join3(read(index), read(index + 30), read(index + 60)).await;
                assert!(open_count() <= 2, "seed={seed}");
            }
            assert!(disk.count_of(OperationKind::Open) > opened + 10, "seed={seed}");
            // The one that is used again and again stays open.
            read(0).await;
            let opened = disk.count_of(OperationKind::Open);
            for index in 10..20 {
                join3(read(0), read(index * 4), read(0)).await;
            }
            let count = disk.count_of(OperationKind::Open) - opened;
            assert!(count <= 11, "seed={seed}: {count}");
            for segment in &listed {
                let is_direct = segment.file().await.unwrap().direct().is_some();
                assert_eq!(is_direct, direct, "seed={seed}");
            }
        })
        .unwrap();
    }
}

#[test]
fn a_record_read_from_any_file_is_checked() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, Seq(0)).await.unwrap();
        let location = append(&log).await.1;
        let record = log.read(location).await.unwrap();
        // Copied to another offset of another file.
        let file = File::open(&env.engine, Path::new("/data/copy"), OpenMode::CreateNew).await.unwrap();
        file.write_at(1_001, record.bytes().clone()).await.unwrap();
        let copied = read_record(&file, 1_001, location.length).await.unwrap();
        assert_eq!(copied.bytes(), record.bytes());
        for (offset, length) in [(1_000, location.length), (1_001, location.length - 1)] {
            let read = read_record(&file, offset, length).await;
            assert!(
                matches!(read, Err(ReadError::Damaged(Damage { offset: at, .. })) if at == offset),
                "{read:?}"
            );
        }
        assert!(matches!(read_record(&file, 1_001, location.length + 1).await, Err(ReadError::Io(_))));
    })
    .unwrap();
}

#[test]
fn a_segment_can_be_read_without_its_segment_index() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, Seq(0)).await.unwrap();
        let mut expected = Vec::new();
        for _ in 0..4 {
            let (seq, location) = append(&log).await;
            expected.push((location, seq));
        }
        expected.retain(|(location, _)| location.segment == 1);
        append_all(&log, 10).await;
        seal(&log).await;
        let info = log.segment_infos()[0];
        let file = File::open(&env.engine, &path(1), OpenMode::Read).await.unwrap();
        let scan = async |segment, frame_bytes| {
            let mut found = Vec::new();
            let visit = |location, record: RecordRef<'_>| found.push((location, record.seq));
            let scanned = scan_segment(&file, segment, frame_bytes, visit).await;
            (found, scanned)
        };
        let (found, scanned) = scan(1, info.frame_bytes).await;
        assert!(scanned.is_ok() && found == expected && found.len() == 3, "{found:?}");
        for (segment, frame_bytes) in [(2, info.frame_bytes), (1, 100), (1, info.frame_bytes + 8)] {
            let (_, scanned) = scan(segment, frame_bytes).await;
            assert!(matches!(scanned, Err(ReadError::Damaged(_))), "{scanned:?}");
        }
        // The records before the damage are visited.
        let (damaged, _) = expected[2];
        disk.damage_file(path(1), |bytes| bytes[damaged.offset as usize + 30] ^= 1);
        let (found, scanned) = scan(1, info.frame_bytes).await;
        assert_eq!(found, expected[..2]);
        assert!(matches!(scanned, Err(ReadError::Damaged(_))), "{scanned:?}");
    })
    .unwrap();
}

#[test]
fn a_segment_is_sealed_window_by_window_whatever_its_frames_size() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let options = LogOptions { segment_bytes_min: 8 << 20, ..LogOptions::default() };
        let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
        // Smaller and larger than one read.
        let sizes =
            [10, 100_000, 100_000, 300_000, 10, 1_500_000, 262_144, 261_000, 3_000_000, 10, 3_000_000];
        let mut expected = Vec::new();
        for size in sizes {
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"key", b"", &vec![7; size]);
            let appended = log.append(&batch, Stage::Persisted).await.unwrap();
            log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
            expected.push((appended.locations[0], appended.last_seq));
        }
        seal(&log).await;
        expected.retain(|(location, _)| location.segment == 1);
        assert!(expected.len() > 9, "{expected:?}");
        let segment_index = log.segment_index(1).await.unwrap();
        let mut scan = segment_index.scan_seq(Seq(0));
        let mut found = Vec::new();
        while let Some((entry, _)) = scan.next().await.unwrap() {
            found.push((entry.location, entry.seq));
        }
        assert_eq!(found[..expected.len()], expected);
        // Records after damage are neither visited nor taken for the end.
        let (damaged, _) = expected[8];
        disk.damage_file(path(1), |bytes| bytes[damaged.offset as usize + 2_000_000] ^= 1);
        let file = File::open(&env.engine, &path(1), OpenMode::Read).await.unwrap();
        let mut found = Vec::new();
        let visit = |location, record: RecordRef<'_>| found.push((location, record.seq));
        let scanned = scan_segment(&file, 1, log.segment_infos()[0].frame_bytes, visit).await;
        assert!(matches!(scanned, Err(ReadError::Damaged(_))), "{scanned:?}");
        assert_eq!(found, expected[..8]);
    })
    .unwrap();
}

#[test]
fn a_log_that_has_listed_most_of_its_bytes_begins_no_smaller_segments() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let options = LogOptions {
            batch_bytes_max: 64 << 10,
            segment_bytes_min: 128 << 10,
            segment_bytes_max: 1 << 20,
            ..LogOptions::default()
        };
        let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
        let append_many = async |count| {
            for _ in 0..count {
                let mut batch = Batch::new();
                batch.push(Flags::none(), b"key", b"", &[1; 12_000]);
                let seq = log.append(&batch, Stage::Persisted).await.unwrap().last_seq;
                log.wait(seq, Stage::Persisted).await.unwrap();
            }
        };
        append_many(750).await;
        seal(&log).await;
        let bytes = log.stats().file_bytes;
        list(&log, Seq(750)).await;
        log.set_listed_live_bytes(bytes);
        let size = |index: usize| log.segment_infos()[index].frame_bytes;
        append_many(100).await;
        assert!(size(1) > 400 << 10, "{}", size(1));
        log.set_listed_live_bytes(0);
        append_many(100).await;
        let last = log.segment_infos().len() - 2;
        assert!(size(last) < 300 << 10, "{}", size(last));
    })
    .unwrap();
}

/// The last record of the listed segments, as the user's lines say.
async fn listed_seq(env: &Env) -> Seq {
    let manifest = Manifest::read(env, Path::new(DIRECTORY)).await.unwrap();
    Seq(manifest.map_or(0, |manifest| manifest.user.trim_start_matches("after ").trim().parse().unwrap()))
}

/// A user that lists sealed segments, and removes half of them, while it appends. Updates the last
/// acknowledged `Seq`.
async fn work(env: &Env, acknowledged: &Mutex<u64>) {
    directory::create(&*env.engine, Path::new("/data")).await.unwrap();
    let (log, _) = open_after(env, Seq(0)).await.unwrap();
    for _ in 0..5 {
        for _ in 0..12 {
            *acknowledged.lock().unwrap() = append(&log).await.0.0;
        }
        env.clock.sleep(Duration::from_millis(500)).await;
        let below = log.sealed_below();
        let Some(last) = log.segment_infos().into_iter().rfind(|info| info.number < below) else { continue };
        let user = move |_: &str| format!("after {}\n", last.last_seq.0);
        let edit = Edit { list_to: Some(last.last_seq), user: Some(Box::new(user)), ..Edit::default() };
        let listed = log.edit(edit, |_| false);
        // Two edits at once, and appends meanwhile.
        let is_removed = |number: u32| number.is_multiple_of(2);
        let appended = async { *acknowledged.lock().unwrap() = append(&log).await.0.0 };
        let (listed, (), ()) = join3(listed, remove(&log, is_removed), appended).await;
        assert!(listed.unwrap());
    }
    log.close().await.unwrap();
}

/// Compares a listed segment's length and checksum with its file.
fn check_digest(disk: &SimDisk, segment: &Segment, case: &str) {
    let bytes = disk.read_file(segment.path()).unwrap();
    let checksum = FileChecksum(*blake3::hash(&bytes).as_bytes());
    let digest = FileDigest { length: bytes.len() as u64, checksum };
    assert_eq!(segment.name.digest, digest, "{case}: {segment:?}");
}

#[test]
fn an_edit_on_a_full_disk_has_reserved_space() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let lengths = |end: &str| -> Vec<usize> {
        let paths = disk.paths().into_iter().filter(|path| path.to_str().unwrap().ends_with(end));
        paths.map(|path| disk.read_file(path).unwrap().len()).collect()
    };
    sim.run(async {
        let (log, _) = open_after(&env, Seq(0)).await.unwrap();
        append_all(&log, 60).await;
        seal(&log).await;
        assert!(list(&log, log.persisted()).await);
        let _ = disk.clone().capacity(Some(lengths("").iter().sum::<usize>() as u64));
        let segments = lengths(".log");
        for number in 0..100 {
            let user = format!("{}\n", "x".repeat(10 * number));
            let edit = Edit { user: Some(Box::new(|_| user.clone())), ..Edit::default() };
            assert!(log.edit(edit, |_| false).await.unwrap(), "{number}");
        }
        // Nor was the preallocated segment removed for them.
        assert_eq!(lengths(".log"), segments);
        let (oldest, count) = (segments[0], segments.len());
        remove(&log, |number| number == 1).await;
        env.clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(lengths(".log").len(), count - 1, "{oldest} bytes became free");
    })
    .unwrap();
}

#[test]
fn no_power_loss_in_an_edit_loses_a_record() {
    let (mut crashes, mut listed) = (0, 0);
    for seed in seeds(6) {
        let whole = SimDisk::new(seed);
        let sim = Sim::with_disk(&whole);
        let env = sim.env();
        sim.run(work(&env, &Mutex::default())).unwrap();
        let operation_count = whole.operation_count();
        sim.run(async {
            let manifest = Manifest::read(&env, Path::new(DIRECTORY)).await.unwrap().unwrap();
            assert!(manifest.listed_to > 8, "seed={seed}: {manifest:?}");
        })
        .unwrap();
        for crash_at in 0..operation_count {
            let case = format!("seed={seed} crash_at={crash_at}");
            let disk = SimDisk::new(seed).crash_at_operation(crash_at);
            let sim = Sim::with_disk(&disk);
            let acknowledged = Mutex::default();
            let ended = sim.run(work(&sim.env(), &acknowledged));
            assert!(ended.is_none(), "{case}: the power fails");
            let acknowledged = acknowledged.into_inner().unwrap();
            let mut disk = disk.after_power_loss();
            // Once more, while it is opened again and continues.
            for again in [Some(crash_at % 23), None] {
                if let Some(again) = again {
                    disk = disk.crash_at_operation(again);
                }
                let sim = Sim::with_disk(&disk);
                let env = sim.env();
                let ended = sim.run(async {
                    let after = listed_seq(&env).await;
                    let opened = open_after(&env, after).await;
                    let (log, found) = opened.unwrap_or_else(|error| panic!("{case}: {after:?}: {error}"));
                    let last = found.last().copied().unwrap_or(after.0);
                    assert!(last >= acknowledged, "{case}: lost {last} to {acknowledged}");
                    assert_eq!(found, (after.0 + 1..=last).collect::<Vec<_>>(), "{case}");
                    // The listed segments have all other records, and no file is left that isn't in the set.
                    let set = log.segment_set();
                    for segment in set.listed() {
                        let segment_index = segment.segment_index().await;
                        let segment_index = segment_index.unwrap_or_else(|error| panic!("{case}: {error}"));
                        assert!(segment_index.trailer().last_seq <= after, "{case}: {segment:?}");
                        check_digest(&disk, segment, &case);
                    }
                    let is_listed = |number: &u32| set.get(*number).is_some();
                    let files = |number: &u32| disk.read_file(path(*number)).is_some();
                    let listed_to = set.listed_to();
                    assert!((1..=listed_to).filter(files).eq((1..=listed_to).filter(is_listed)), "{case}");
                    append_all(&log, 8).await;
                    log.close().await.unwrap();
                    listed += set.listed().count();
                });
                if ended.is_none() {
                    disk = disk.after_power_loss();
                }
            }
            crashes += 1;
        }
    }
    println!("{crashes} power losses, {listed} listed segments looked at");
    assert!(crashes > 1_000 && listed > crashes);
}
