//! Goal: a log opened after a checkpoint replays exactly the later records, however they are stored, and
//! reports missing ones.
//! Method: seeded logs of many small segments, sealed and not, of several processes, some with a torn tail. The
//! records that `open` replays are the model: `open_after` is compared with it for every record and every
//! segment to start from. Then the cases of `docs/recovery.md` from R17 on, by their labels.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use settee_io::{Damage, OperationKind, directory};
use settee_log::{
    Batch, Entry, EntryRef, FileDigest, Flags, Location, Log, LogOptions, Manifest, OpenError, Recovery,
    SegmentIndexBuilder, SegmentName, Seq, Stage, TimelineId, Timelines, footer_start,
};
use settee_sim::{Fault, Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";
const FIRST: &str = "/data/log/0000000001.log";
const SECOND: &str = "/data/log/0000000002.log";
const MANIFEST: &str = "/data/log/manifest";

/// Offset of a segment's first frame.
const FRAME_1: usize = 512;

fn options() -> LogOptions {
    LogOptions { batch_bytes_max: 4096, segment_bytes_max: 12 << 10, ..LogOptions::default() }
}

fn path(segment: u32) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{segment:010}.log"))
}

/// Pseudo-random numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The files of a disk.
type Image = BTreeMap<PathBuf, Vec<u8>>;

/// All files but the lock file.
fn image(disk: &SimDisk) -> Image {
    let read = |path: PathBuf| {
        let path = Path::new("/").join(path);
        let bytes = disk.read_file(&path).unwrap();
        (path, bytes)
    };
    disk.paths().into_iter().filter(|path| !path.ends_with("lock")).map(read).collect()
}

fn disk_of(image: &Image, seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    image.iter().for_each(|(path, bytes)| disk.write_file(path, bytes.clone()));
    disk
}

async fn append(log: &Log, numbers: &mut Numbers) -> Seq {
    let mut batch = Batch::new();
    for _ in 0..=numbers.below(3) {
        let key = numbers.below(20).to_be_bytes();
        let flags = if numbers.below(4) == 0 { Flags::TOMBSTONE } else { Flags::IN_SEQ_INDEX };
        let size = numbers.below(900) as usize;
        batch.push(flags, &key, &key[4..], &vec![numbers.below(256) as u8; size]);
    }
    let seq = log.append(&batch, Stage::Persisted).await.unwrap().last_seq;
    log.wait(seq, Stage::Persisted).await.unwrap();
    seq
}

/// A log of several processes. Segments are sealed if their process had a pause.
fn written(seed: u64) -> Image {
    let disk = SimDisk::new(seed);
    let mut numbers = Numbers(seed);
    for _ in 0..3 {
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new(DIRECTORY), options(), |_, _| {}).await.unwrap();
            for _ in 0..5 + numbers.below(15) {
                append(&log, &mut numbers).await;
                if numbers.below(20) == 0 {
                    env.clock.sleep(Duration::from_secs(1)).await;
                }
            }
            if numbers.below(2) == 0 {
                log.close().await.unwrap();
            }
        })
        .unwrap();
    }
    let mut image = image(&disk);
    let last = image.last_entry().unwrap();
    if seed.is_multiple_of(3) {
        // The frame written last is torn.
        let bytes = last.into_mut();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[end - 8] ^= 1;
    }
    image
}

/// The result of opening.
type Replayed = (Vec<Entry>, Recovery);

fn entry_of(location: Location, record: settee_log::RecordRef<'_>) -> Entry {
    let settee_log::RecordRef { seq, flags, key, meta, .. } = record;
    Entry { seq, flags, key: key.to_vec(), meta: meta.to_vec(), location }
}

fn open(disk: &SimDisk) -> Result<Replayed, OpenError> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let mut replayed = Vec::new();
        let replay = |location, record: settee_log::RecordRef<'_>| replayed.push(entry_of(location, record));
        let opened = Log::open(&env, Path::new(DIRECTORY), options(), replay).await;
        opened.map(|(_, recovery)| (replayed, recovery))
    })
    .unwrap()
}

/// Where a log begins for its caller.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// The manifest covers the segments before this one.
    first_segment: u32,
    /// Records up to this one aren't needed.
    after: Seq,
}

fn start(first_segment: u32, after: u64) -> Start {
    Start { first_segment, after: Seq(after) }
}

/// Writes a manifest that covers the segments before `first_segment`, and lists those that exist.
async fn write_manifest(env: &settee_io::Env, disk: &SimDisk, first_segment: u32) {
    directory::create(&*env.engine, Path::new(DIRECTORY)).await.unwrap();
    let listed_to = first_segment.saturating_sub(1);
    let is_there = |number: &u32| disk.read_file(path(*number)).is_some();
    let digest = FileDigest { length: 512, ..FileDigest::default() };
    let name = |number| SegmentName { digest, ..SegmentName::of_log(number, 1, 512) };
    let segments = (1..=listed_to).filter(is_there).map(name).collect();
    let header =
        (1..100).filter_map(|number| disk.read_file(path(number))).find(|file| file.starts_with(b"SETTEELG"));
    let id = header.map_or([1; 16], |header| header[24..40].try_into().unwrap());
    let timelines = Timelines::first(TimelineId(id));
    let manifest = Manifest { number: 1, listed_to, timelines, segments, ..Manifest::default() };
    manifest.write(env, Path::new(DIRECTORY)).await.unwrap();
}

async fn opened_after(env: &settee_io::Env, after: Seq) -> Result<(Log, Replayed), OpenError> {
    let mut replayed = Vec::new();
    let replay = |entry: EntryRef<'_>| replayed.push(entry.to_entry());
    let opened = Log::open_after(env, Path::new(DIRECTORY), options(), after, replay).await;
    opened.map(|(log, recovery)| (log, (replayed, recovery)))
}

fn open_after(disk: &SimDisk, start: Start) -> Result<Replayed, OpenError> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        if start.first_segment > 1 && disk.read_file(MANIFEST).is_none() {
            write_manifest(&env, disk, start.first_segment).await;
        }
        opened_after(&env, start.after).await.map(|(_, replayed)| replayed)
    })
    .unwrap()
}

fn numbers_of(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.seq.0).collect()
}

#[test]
fn opening_after_any_record_and_from_any_segment_replays_the_rest() {
    let (mut by_segment_index, mut by_frames, mut skipped, mut torn) = (0, 0, 0, 0);
    for seed in seeds(12) {
        let image = written(seed);
        let (all, whole) = open(&disk_of(&image, seed)).unwrap();
        torn += u64::from(whole.cut_bytes > 0);
        let (last_seq, last_segment) = (all.last().unwrap().seq.0, all.last().unwrap().location.segment);
        assert!(last_segment > 3, "seed={seed}: {last_segment} segments");
        for first_segment in 0..=last_segment {
            // What listed segments contain isn't read, and some were removed.
            let mut image = image.clone();
            for segment in 1..first_segment {
                match segment % 2 {
                    0 => drop(image.remove(&path(segment))),
                    _ => image.get_mut(&path(segment)).unwrap().fill(0xAB),
                }
            }
            for after in 0..=last_seq {
                let case = format!("seed={seed} first_segment={first_segment} after={after}");
                let disk = disk_of(&image, seed);
                let replayed = open_after(&disk, start(first_segment, after));
                let (replayed, recovery) = replayed.unwrap_or_else(|error| panic!("{case}: {error}"));
                let rest =
                    all.iter().filter(|entry| entry.seq.0 > after && entry.location.segment >= first_segment);
                assert!(replayed.iter().eq(rest), "{case}: {:?}", numbers_of(&replayed));
                assert_eq!(recovery.record_count, replayed.len() as u64, "{case}");
                assert_eq!(recovery.cut_bytes, whole.cut_bytes, "{case}");
                for segment in 1..first_segment {
                    assert_eq!(disk.read_file(path(segment)).as_ref(), image.get(&path(segment)), "{case}");
                }
                by_segment_index += recovery.segment_index_count;
                skipped += recovery.skipped_count;
                by_frames +=
                    recovery.segment_count - recovery.segment_index_count - recovery.skipped_count - 1;
            }
            let behind = open_after(&disk_of(&image, seed), start(first_segment, last_seq + 1));
            assert!(
                matches!(behind, Err(OpenError::Behind { found, expected, .. })
                    if (found.0, expected.0) == (last_seq, last_seq + 1)),
                "seed={seed} first_segment={first_segment}: {behind:?}"
            );
        }
    }
    println!(
        "{by_segment_index} from segment indexes, {by_frames} from frames, {skipped} skipped, {torn} torn"
    );
    assert!(by_segment_index > 1_000 && by_frames > 1_000 && skipped > 1_000 && torn > 0);
}

#[test]
fn a_log_opened_after_a_checkpoint_continues() {
    for seed in seeds(30) {
        let image = written(seed);
        let (all, _) = open(&disk_of(&image, seed)).unwrap();
        let last_seq = all.last().unwrap().seq.0;
        let mut numbers = Numbers(seed + 1_000);
        let middle = &all[numbers.below(all.len() as u64) as usize];
        let start = start(middle.location.segment, middle.seq.0);
        let disk = disk_of(&image, seed);
        let mut appended = last_seq;
        for process in 0..3 {
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            sim.run(async {
                if process == 0 && start.first_segment > 1 {
                    write_manifest(&env, &disk, start.first_segment).await;
                }
                let (log, (replayed, _)) = opened_after(&env, start.after).await.unwrap();
                let expected: Vec<u64> = (start.after.0 + 1..=appended).collect();
                assert_eq!(numbers_of(&replayed), expected, "seed={seed} process={process}");
                for entry in &replayed {
                    let record = log.read(entry.location).await.unwrap();
                    assert_eq!((record.seq(), record.key()), (entry.seq, &*entry.key), "seed={seed}");
                }
                for _ in 0..10 {
                    appended = append(&log, &mut numbers).await.0;
                }
                log.close().await.unwrap();
            })
            .unwrap();
        }
        // Without records elsewhere, all records of the log's own segments are replayed.
        let (replayed, _) = open_after(&disk, self::start(start.first_segment, 0)).unwrap();
        let first = all.iter().find(|entry| entry.location.segment == start.first_segment).unwrap().seq.0;
        assert_eq!(numbers_of(&replayed), (first..=appended).collect::<Vec<_>>(), "seed={seed}");
    }
}

/// A log whose segments are sealed except the last two, its records, and the number of the last sealed
/// segment.
fn sealed() -> (Image, Vec<Entry>, u32) {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let mut numbers = Numbers(1);
    let sealed_below = sim.run(async {
        let (log, _) = Log::open(&env, Path::new(DIRECTORY), options(), |_, _| {}).await.unwrap();
        while log.segments().len() < 6 {
            append(&log, &mut numbers).await;
        }
        env.clock.sleep(Duration::from_secs(2)).await;
        let sealed_below = log.sealed_below();
        log.close().await.unwrap();
        sealed_below
    });
    let (all, _) = open(&disk).unwrap();
    assert_eq!(sealed_below, Some(6));
    (image(&disk), all, sealed_below.unwrap())
}

fn last_of(entries: &[Entry], segment: u32) -> u64 {
    entries.iter().rfind(|entry| entry.location.segment == segment).unwrap().seq.0
}

#[test]
fn r17_only_the_header_is_read_of_a_segment_without_needed_records() {
    let (image, all, _) = sealed();
    let disk = disk_of(&image, 1);
    disk.damage_file(FIRST, |bytes| bytes[FRAME_1..].fill(0xAB));
    let after = last_of(&all, 1);
    let (replayed, recovery) = open_after(&disk, start(0, after)).unwrap();
    assert_eq!(replayed, all[after as usize..]);
    assert_eq!((recovery.segment_count, recovery.segment_index_count, recovery.skipped_count), (6, 4, 1));
    // A single needed record makes the difference.
    let opened = open_after(&disk, start(0, after - 1));
    assert!(
        matches!(&opened, Err(OpenError::Damaged(Damage { path, .. })) if path == Path::new(FIRST)),
        "{opened:?}"
    );
    // The headers are checked nevertheless.
    let disk = disk_of(&image, 1);
    disk.damage_file(FIRST, |bytes| bytes.truncate(FRAME_1 + 100));
    let opened = open_after(&disk, start(0, after));
    assert!(matches!(opened, Err(OpenError::Damaged(Damage { offset: 612, .. }))), "{opened:?}");
    let disk = disk_of(&image, 1);
    disk.write_file(SECOND, image[&path(3)].clone());
    let opened = open_after(&disk, start(0, last_of(&all, 4)));
    assert!(
        matches!(&opened, Err(OpenError::Damaged(Damage { path, .. })) if path == Path::new(SECOND)),
        "{opened:?}"
    );
}

#[test]
fn r18_a_sealed_segments_index_is_read_or_else_its_frames() {
    let (image, all, _) = sealed();
    let whole = image[Path::new(SECOND)].clone();
    let end = Vec::from_iter(all.iter().filter(|entry| entry.location.segment == 2));
    let end = end.last().map(|entry| entry.location.offset + entry.location.length).unwrap() as usize;
    let footer = footer_start(end as u64) as usize;
    // Damage in frames that aren't read is not noticed.
    let disk = disk_of(&image, 1);
    disk.damage_file(SECOND, |bytes| bytes[FRAME_1..end].fill(0xAB));
    let (replayed, recovery) = open_after(&disk, start(0, 0)).unwrap();
    assert_eq!((replayed, recovery.segment_index_count), (all.clone(), 5));
    // A segment index may be damaged anywhere.
    let mut by_frames = 0;
    for at in (footer..whole.len()).step_by(37).chain(whole.len() - 152..whole.len()) {
        let disk = disk_of(&image, 1);
        disk.damage_file(SECOND, |bytes| bytes[at] ^= 0x10);
        let (replayed, recovery) = open_after(&disk, start(0, 3)).unwrap();
        assert!(replayed == all[3..], "byte {at}: {:?}", numbers_of(&replayed));
        by_frames += 5 - recovery.segment_index_count;
    }
    assert!(by_frames > 150, "{by_frames}");
    // Damage in both the index and the frames is an error.
    let disk = disk_of(&image, 1);
    disk.damage_file(SECOND, |bytes| {
        (bytes[end - 9], bytes[footer + 20]) = (!bytes[end - 9], !bytes[footer + 20])
    });
    let opened = open_after(&disk, start(0, 0));
    assert!(
        matches!(&opened, Err(OpenError::Damaged(Damage { path, .. })) if path == Path::new(SECOND)),
        "{opened:?}"
    );
}

/// A valid segment index of the segment, different from its own.
fn other_footer(entries: &[Entry], frames_end: u64, frames_checksum: u64) -> Vec<u8> {
    let sim = Sim::new(1);
    let mut builder = SegmentIndexBuilder::new(2, 1);
    for Entry { seq, flags, key, meta, location } in entries {
        let (seq, flags, location) = (*seq, *flags, *location);
        builder.push(EntryRef { seq, flags, key, meta, location }, 0);
    }
    sim.run(builder.finish(frames_end, frames_checksum)).unwrap()
}

#[test]
fn r18_a_segment_index_that_disagrees_with_the_headers_is_not_used() {
    let (image, all, _) = sealed();
    let own = Vec::from_iter(all.iter().filter(|entry| entry.location.segment == 2).cloned());
    // The next segment's header contains the end of the frames and their checksum.
    let header = &image[&path(3)];
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    let (end, checksum) = (number(48), number(56));
    let lie = |entries: &[Entry], end, checksum| {
        let disk = disk_of(&image, 1);
        disk.damage_file(SECOND, |bytes| {
            bytes.truncate(footer_start(end) as usize);
            bytes.extend(other_footer(entries, end, checksum));
        });
        let (replayed, recovery) = open_after(&disk, start(0, 0)).unwrap();
        (replayed, recovery.segment_index_count)
    };
    // The same segment index, built here, is accepted; and so would be one with another key.
    assert_eq!(lie(&own, end, checksum), (all.clone(), 5));
    let mut renamed = own.clone();
    renamed[1].key = b"another".to_vec();
    let (replayed, segment_indexes) = lie(&renamed, end, checksum);
    assert_eq!((replayed == all, replayed.len(), segment_indexes), (false, all.len(), 5));
    // Another end, another checksum, a record less at either end or in the middle, one more, another Seq, a
    // location beyond the end.
    let mut gap = own.clone();
    gap.remove(1);
    let mut more = own.clone();
    more.push(Entry { seq: Seq(own.last().unwrap().seq.0 + 1), ..own[0].clone() });
    let shifted =
        Vec::from_iter(own.iter().map(|entry| Entry { seq: Seq(entry.seq.0 + 1), ..entry.clone() }));
    let mut jump = gap.clone();
    jump.push(more.last().unwrap().clone());
    let mut behind = own.clone();
    behind[1].location.length = 12 << 10;
    for (what, entries, end, checksum) in [
        ("end", &own[..], end - 8, checksum),
        ("checksum", &own, end, checksum + 1),
        ("first", &own[1..], end, checksum),
        ("last", &own[..own.len() - 1], end, checksum),
        ("gap", &gap, end, checksum),
        ("more", &more, end, checksum),
        ("shifted", &shifted, end, checksum),
        ("jump", &jump, end, checksum),
        ("behind", &behind, end, checksum),
        ("none", &[], end, checksum),
    ] {
        let (replayed, segment_indexes) = lie(entries, end, checksum);
        assert!(replayed == all, "{what}: {:?}", numbers_of(&replayed));
        assert_eq!(segment_indexes, 4, "{what}");
    }
}

#[test]
fn r18_an_io_error_is_not_treated_as_damage_of_a_segment_index() {
    let (image, all, _) = sealed();
    let mut refused = 0;
    for nth in 0..60 {
        let disk = disk_of(&image, 1).fail(OperationKind::Read, nth, Fault::Io);
        match open_after(&disk, start(0, 0)) {
            Err(OpenError::Io(_)) => refused += 1,
            Ok((replayed, recovery)) => {
                assert_eq!((replayed.len(), recovery.segment_index_count), (all.len(), 5), "{nth}")
            }
            Err(other) => panic!("read {nth}: {other}"),
        }
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn r19_a_log_that_ends_before_the_checkpoint_is_refused_and_unchanged() {
    let (mut image, all, _) = sealed();
    let last = all.last().unwrap();
    // The last synced group is damaged, and nothing shows that the log was closed: without the checkpoint it
    // is treated as a torn tail.
    let last_path = path(last.location.segment);
    let bytes = image.get_mut(&last_path).unwrap();
    bytes[last.location.offset as usize + 30] ^= 1;
    let mark_start = (last.location.offset as usize).next_multiple_of(4096);
    bytes[mark_start..][..48].fill(0);
    let disk = disk_of(&image, 1);
    let opened = open_after(&disk, start(0, last.seq.0));
    assert!(
        matches!(&opened, Err(OpenError::Behind { path, found, expected, .. })
            if *path == last_path && found < expected),
        "{opened:?}"
    );
    assert_eq!(self::image(&disk), image);
    let (replayed, _) = open_after(&disk, start(0, 1)).unwrap();
    assert!(!replayed.is_empty() && replayed.len() < all.len());
}

#[test]
fn r20_the_segment_to_start_from_must_exist() {
    let (image, all, _) = sealed();
    for (first_segment, removed) in [(3, vec![3]), (3, vec![4]), (7, vec![]), (2, vec![1, 2, 3, 4, 5, 6])] {
        let mut image = image.clone();
        removed.iter().for_each(|segment| drop(image.remove(&path(*segment))));
        let opened = open_after(&disk_of(&image, 1), start(first_segment, 0));
        let missing = removed.iter().copied().find(|segment| *segment >= first_segment);
        let missing = path(missing.unwrap_or(first_segment));
        assert!(matches!(&opened, Err(OpenError::Missing { path }) if *path == missing), "{opened:?}");
    }
    // A missing log is an empty one only if no record of it has been seen.
    let empty = Image::new();
    assert!(matches!(open_after(&disk_of(&empty, 1), start(0, 1)), Err(OpenError::Missing { .. })));
    for first_segment in [0, 1] {
        let opened = open_after(&disk_of(&empty, 1), start(first_segment, 0)).unwrap();
        assert_eq!(opened, (vec![], Recovery::default()));
    }
    // The only remaining segment has no header: it existed before, so a crash can't be the cause.
    let last = all.last().unwrap().location.segment;
    let mut image = image;
    image.get_mut(&path(last)).unwrap().fill(0);
    let disk = disk_of(&image, 1);
    let opened = open_after(&disk, start(last, 0));
    assert!(matches!(opened, Err(OpenError::Damaged(Damage { offset: 0, .. }))), "{opened:?}");
    let mut after = self::image(&disk);
    assert!(after.remove(Path::new(MANIFEST)).is_some());
    assert_eq!(after, image);
}
