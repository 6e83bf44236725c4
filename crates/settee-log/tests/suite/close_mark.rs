//! Goal: after a log was closed in order, no changed bit is taken for a torn write: opening returns all records
//! as they were, or an error that names the file; and `check_segment` finds the bit, unless nothing reads it.
//! Method: flip each bit of the files of a small log that was closed, or killed, and open and check it again.
//! Then the mark itself: when it is written, when it is not, and what remains of it.
//!
//! `SETTEE_FLIP_STEP=1` flips every bit; by default every 37th is flipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use settee_io::{File, OpenMode, OperationKind};
use settee_log::{
    Batch, Flags, Log, LogOptions, OpenError, ReadFormat, Recovery, SegmentCheck, Seq, Stage, check_segment,
};
use settee_sim::{Fault, Sim, SimDisk};

const DIRECTORY: &str = "/data/log";
const FIRST: &str = "/data/log/0000000001.log";
const SECOND: &str = "/data/log/0000000002.log";

/// A recovered record: its `Seq` and value.
type Found = (u64, Vec<u8>);

fn options(direct: bool) -> LogOptions {
    LogOptions { batch_bytes_max: 4096, segment_bytes_max: 12 << 10, direct, ..LogOptions::default() }
}

/// Appends one group of `count` batches.
async fn append(log: &Log, count: u64) {
    for number in 0..count {
        let mut batch = Batch::new();
        batch.push(Flags::IN_SEQ_INDEX, b"key", b"meta", &vec![number as u8 + 1; 60 + 90 * number as usize]);
        log.append(&batch, Stage::Accepted).await.unwrap();
    }
    log.flush().await.unwrap();
}

/// Opens the log, appends groups of `counts` batches, and closes it or drops it.
fn append_and_end(disk: &SimDisk, direct: bool, counts: &[u64], closes: bool) -> Recovery {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let opened = Log::open(&env, Path::new(DIRECTORY), options(direct), |_, _| {}).await;
        let (log, recovery) = opened.unwrap();
        for count in counts {
            append(&log, *count).await;
        }
        if closes {
            log.close().await.unwrap();
        }
        recovery
    })
    .unwrap()
}

fn open(disk: &SimDisk) -> Result<(Vec<Found>, Recovery), OpenError> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let mut found = Vec::new();
        let replay = |_, record: settee_log::RecordRef<'_>| found.push((record.seq.0, record.value.to_vec()));
        let (_, recovery) = Log::open(&env, Path::new(DIRECTORY), options(false), replay).await?;
        Ok((found, recovery))
    })
    .unwrap()
}

/// What a check finds in each segment. `ends` are the ends of all segments but the last.
fn check(disk: &SimDisk, ends: &[u64]) -> Vec<SegmentCheck> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let mut found = Vec::new();
        for (index, path) in files(disk).into_keys().enumerate() {
            let file = File::open(&env.engine, &path, OpenMode::Read).await.unwrap();
            let (number, end) = (index as u32 + 1, ends.get(index).copied());
            found.push(
                check_segment(&file, number, end, None, Seq(0), ReadFormat::Present, |_, _, _| {})
                    .await
                    .unwrap(),
            );
        }
        found
    })
    .unwrap()
}

/// All files but the lock file.
fn files(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths =
        disk.paths().into_iter().filter(|path| !path.ends_with("lock")).map(|path| Path::new("/").join(path));
    paths.map(|path| (path.clone(), disk.read_file(&path).expect("it is listed"))).collect()
}

fn copy(files: &BTreeMap<PathBuf, Vec<u8>>) -> SimDisk {
    let disk = SimDisk::new(1).short_reads(0.0).delays_us(0..=0);
    files.iter().for_each(|(path, bytes)| disk.write_file(path, bytes.clone()));
    disk
}

/// Counts of flipped bits.
#[derive(Debug, Default)]
struct Counts {
    flips: u64,
    refused: u64,
    /// Opening returned all records.
    harmless: u64,
    /// Opening returned fewer.
    silent: u64,
    /// The check found nothing.
    unfound: u64,
    first_unfound: Option<String>,
}

/// The ends of the frames of all segments but the last.
fn ends(disk: &SimDisk) -> Vec<u64> {
    let heads = check(disk, &[]).into_iter().skip(1).map(|one| one.head.expect("it is whole"));
    heads.map(|head| head.previous_end).collect()
}

/// Whether a check finds nothing. Closed segments aren't sealed here, so that only zeros may follow their end.
fn is_sound(disk: &SimDisk, ends: &[u64]) -> bool {
    check(disk, ends).iter().zip(files(disk).into_values()).enumerate().all(|(index, (one, bytes))| {
        let mut unused = bytes[one.unused_start as usize..].iter();
        let is_unused = index >= ends.len() || unused.all(|byte| *byte == 0);
        one.damage.is_empty() && !one.is_padding_written && is_unused
    })
}

/// Flips the bits of each file, one at a time.
fn flip_all(disk: &SimDisk) -> Counts {
    let step = std::env::var("SETTEE_FLIP_STEP").map_or(37, |step| step.parse().expect("it is a number"));
    let before = files(disk);
    let ends = ends(disk);
    assert!(is_sound(disk, &ends), "{:?}", check(disk, &ends));
    let records = open(&copy(&before)).unwrap().0;
    let mut counts = Counts::default();
    for (path, bytes) in &before {
        for bit in (0..bytes.len() * 8).step_by(step) {
            let changed = copy(&before);
            changed.damage_file(path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            let case = format!("bit {} of byte {} in {}", bit % 8, bit / 8, path.display());
            counts.flips += 1;
            if is_sound(&changed, &ends) {
                counts.unfound += 1;
                counts.first_unfound.get_or_insert(case.clone());
            }
            match open(&changed) {
                Ok((found, _)) if found == records => counts.harmless += 1,
                Ok((found, _)) => {
                    assert!(records.starts_with(&found), "no prefix: {case}");
                    counts.silent += 1;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(&*path.to_string_lossy()), "{case}: {text}");
                    counts.refused += 1;
                }
            }
        }
    }
    counts
}

#[test]
fn a_flipped_bit_in_a_closed_log_is_an_error_or_harmless_and_is_found() {
    for direct in [false, true] {
        let disk = SimDisk::new(1);
        append_and_end(&disk, direct, &[3, 1, 2], true);
        // Several frames in the last group, and a second opening.
        append_and_end(&disk, direct, &[4], true);
        let counts = flip_all(&disk);
        println!("closed, direct={direct}: {counts:?}");
        assert_eq!((counts.silent, counts.unfound), (0, 0), "{counts:?}");
        assert!(counts.refused > counts.flips / 20 && counts.harmless > 0, "{counts:?}");
    }
}

#[test]
fn a_flipped_bit_in_closed_segments_is_an_error_or_harmless_and_is_found() {
    let disk = SimDisk::new(2);
    append_and_end(&disk, false, &[5, 5, 5, 5], true);
    assert!(disk.read_file(SECOND).is_some());
    let counts = flip_all(&disk);
    println!("closed, several segments: {counts:?}");
    assert_eq!((counts.silent, counts.unfound), (0, 0), "{counts:?}");
}

#[test]
fn after_a_kill_only_flipped_bits_of_the_last_group_pass_for_a_torn_write() {
    let disk = SimDisk::new(1);
    append_and_end(&disk, false, &[3, 1, 2, 4], false);
    let counts = flip_all(&disk);
    println!("killed: {counts:?}");
    assert_eq!(counts.unfound, 0, "{counts:?}");
    // The last of four groups, in a file that is mostly padding.
    assert!(counts.silent > 0 && counts.silent < counts.flips / 4, "{counts:?}");
}

#[test]
fn r21_damage_below_a_close_mark_is_refused() {
    // The last frame's kind, length, checksum, record, and all of its block.
    for range in [2..3, 4..5, 40..41, 60..61, 0..4096] {
        let disk = SimDisk::new(1);
        append_and_end(&disk, false, &[1, 1, 1], true);
        disk.damage_file(FIRST, |bytes| bytes[8192..][range.clone()].fill(0xAB));
        let before = files(&disk);
        match open(&disk) {
            Err(OpenError::Damaged(damage)) => {
                assert_eq!((damage.path.as_path(), damage.offset), (Path::new(FIRST), 4096 + 144));
            }
            other => panic!("{range:?}: {other:?}"),
        }
        assert_eq!(files(&disk), before);
    }
}

#[test]
fn r21_the_only_group_of_a_closed_log_is_not_lost_with_the_header() {
    for byte in [0, 20, 30] {
        let disk = SimDisk::new(1);
        append_and_end(&disk, false, &[1], true);
        disk.damage_file(FIRST, |bytes| bytes[byte] ^= 1);
        let result = open(&disk);
        assert!(matches!(&result, Err(OpenError::Damaged(damage)) if damage.offset == 0), "{result:?}");
    }
}

#[test]
fn r22_the_log_continues_over_the_mark() {
    let disk = SimDisk::new(1);
    assert!(!append_and_end(&disk, false, &[1], true).was_closed);
    let length = disk.read_file(FIRST).unwrap().len();
    for _ in 0..2 {
        // An opening without an append leaves the file as it is.
        let before = files(&disk);
        assert!(append_and_end(&disk, false, &[], true).was_closed);
        assert!(append_and_end(&disk, false, &[], false).was_closed);
        assert_eq!(files(&disk), before);
    }
    assert!(append_and_end(&disk, false, &[1], false).was_closed);
    assert_eq!((disk.read_file(FIRST).unwrap().len(), disk.read_file(SECOND)), (length, None));
    let (found, recovery) = open(&disk).unwrap();
    assert_eq!((found.len(), recovery.cut_bytes, recovery.was_closed), (2, 0, false));
    // What was found after the kill is persisted: closing says so, without an append.
    assert!(!append_and_end(&disk, false, &[], true).was_closed);
    assert!(append_and_end(&disk, false, &[], false).was_closed);
}

#[test]
fn r22_a_torn_write_over_the_mark_or_after_it_is_cut() {
    for from in [4096 + 3, 4096 + 512] {
        let disk = SimDisk::new(1);
        append_and_end(&disk, false, &[1], true);
        disk.damage_file(FIRST, |bytes| bytes[from..][..700].fill(0xAB));
        let (found, recovery) = open(&disk).unwrap();
        assert_eq!((found.len(), recovery.was_closed), (1, from > 4096 + 48));
        assert!((652..=5000).contains(&recovery.cut_bytes), "{recovery:?}");
        // Nothing is appended after a cut, also not after a later mark.
        append_and_end(&disk, false, &[], true);
        append_and_end(&disk, false, &[1], true);
        assert_eq!(open(&disk).unwrap().0.len(), 2);
    }
}

#[test]
fn r23_a_damaged_mark_loses_nothing() {
    for bit in 0..48 * 8 {
        let disk = SimDisk::new(1);
        append_and_end(&disk, false, &[1], true);
        disk.damage_file(FIRST, |bytes| bytes[4096 + bit / 8] ^= 1 << (bit % 8));
        assert!(!is_sound(&disk, &[]), "bit {bit}");
        let recovery = append_and_end(&disk, false, &[1], true);
        assert_eq!((recovery.was_closed, recovery.cut_bytes > 0), (false, true), "bit {bit}");
        assert_eq!(open(&disk).unwrap().0.len(), 2, "bit {bit}");
    }
}

#[test]
fn after_a_cut_within_the_last_block_the_mark_does_not_reopen_the_segment() {
    let disk = SimDisk::new(1);
    append_and_end(&disk, false, &[2], false);
    disk.damage_file(FIRST, |bytes| bytes[800..4096].fill(0xAB));
    assert!(append_and_end(&disk, false, &[], true).cut_bytes > 0);
    assert!(append_and_end(&disk, false, &[1], true).was_closed);
    assert!(disk.read_file(SECOND).is_some(), "the log continued after a cut");
    let (found, recovery) = open(&disk).unwrap();
    assert_eq!((found.len(), recovery.was_closed), (2, true));
}

#[test]
fn a_mark_that_cannot_be_written_fails_no_close() {
    for fault in [Fault::Io, Fault::NoSpace] {
        let disk = SimDisk::new(1).short_writes(0.0);
        append_and_end(&disk, false, &[1], false);
        let written = disk.count_of(OperationKind::Write);
        let disk = disk.fail(OperationKind::Write, written, fault);
        append_and_end(&disk, false, &[], true);
        let (found, recovery) = open(&disk).unwrap();
        assert_eq!((found.len(), recovery.was_closed, recovery.cut_bytes), (1, false, 0), "{fault:?}");
    }
}

#[test]
fn a_log_that_stopped_or_was_dropped_has_no_mark() {
    let disk = SimDisk::new(1);
    append_and_end(&disk, false, &[1], false);
    assert!(!open(&disk).unwrap().1.was_closed);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new(DIRECTORY), options(false), |_, _| {}).await.unwrap();
        append(&log, 1).await;
        // All of it is persisted; but the log stops because of a failure elsewhere.
        log.stop(settee_io::Error::Closed { path: Path::new(DIRECTORY).into() });
        let _ = log.close().await;
    })
    .unwrap();
    assert!(!open(&disk).unwrap().1.was_closed);
}

#[test]
fn a_mark_in_a_segment_that_is_no_longer_the_last_is_no_damage() {
    let disk = SimDisk::new(1);
    append_and_end(&disk, false, &[4, 4], true);
    // Too large for what is left of the segment.
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new(DIRECTORY), options(false), |_, _| {}).await.unwrap();
        for _ in 0..3 {
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"key", b"", &[7; 3800]);
            log.append(&batch, Stage::Persisted).await.unwrap();
            log.flush().await.unwrap();
        }
        log.close().await.unwrap();
    })
    .unwrap();
    let ends = ends(&disk);
    assert!(check(&disk, &ends)[..ends.len()].iter().any(|one| one.has_close_mark));
    assert!(is_sound(&disk, &ends), "{:?}", check(&disk, &ends));
    assert_eq!(open(&disk).unwrap().0.len(), 11);
}
