//! Goal: recovery handles each case of `docs/recovery.md` as described there.
//! Method: a log is written and closed, its files are changed as the case says, and it is opened again. A
//! test's name begins with the case's label.

use std::path::Path;

use settee_io::{Damage, OperationKind};
use settee_log::{Batch, Flags, Log, LogOptions, OpenError, Recovery, Seq, Stage};
use settee_sim::{Fault, Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";
const FIRST: &str = "/data/log/0000000001.log";
const SECOND: &str = "/data/log/0000000002.log";
const THIRD: &str = "/data/log/0000000003.log";

/// Offset of a segment's first batch, and, since each batch here was synced, the second.
const FRAME_1: usize = 512;
const FRAME_2: usize = 4096;
const FRAME_3: usize = 8192;

/// Segments that three batches fill.
fn options() -> LogOptions {
    LogOptions { batch_bytes_max: 4096, segment_bytes_max: 12 << 10, ..LogOptions::default() }
}

async fn append(log: &Log, value: u8) {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &[value; 100]);
    log.append(&batch, Stage::Persisted).await.unwrap();
    log.flush().await.unwrap();
}

/// A disk with a log of `count` segments, each with three batches of one record, all of them synced.
fn written(count: u8) -> SimDisk {
    written_with_seed(count, 1)
}

fn written_with_seed(count: u8, seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new(DIRECTORY), options(), |_, _| {}).await.unwrap();
        for value in 0..count * 3 {
            append(&log, value).await;
        }
    })
    .unwrap();
    disk
}

/// What opening finds: the first byte of each value.
fn open(disk: &SimDisk) -> Result<(Vec<u8>, Recovery), OpenError> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let mut found = Vec::new();
        let opened =
            Log::open(&env, Path::new(DIRECTORY), options(), |_, record| found.push(record.value[0])).await;
        opened.map(|(_, recovery)| (found, recovery))
    })
    .unwrap()
}

fn open_damaged(disk: &SimDisk, file: &str, at: u64) {
    match open(disk) {
        Err(OpenError::Damaged(Damage { path, offset, .. })) => {
            assert_eq!((path.as_path(), offset), (Path::new(file), at))
        }
        other => panic!("damage in {file} at {at}, but {other:?}"),
    }
}

fn flip(disk: &SimDisk, file: &str, at: usize) {
    disk.damage_file(file, |bytes| bytes[at] ^= 1);
}

#[test]
fn r1_a_directory_without_segments_is_an_empty_log() {
    assert_eq!(open(&SimDisk::new(1)).unwrap(), (vec![], Recovery::default()));
}

#[test]
fn r2_a_clean_end_replays_all_and_cuts_nothing() {
    let (found, recovery) = open(&written(3)).unwrap();
    assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((recovery.segment_count, recovery.record_count, recovery.cut_bytes), (3, 9, 0));
}

#[test]
fn r3_a_torn_tail_is_cut_and_its_size_reported() {
    let disk = written(2);
    disk.damage_file(SECOND, |bytes| bytes[FRAME_3 + 90..].fill(0));
    let (found, recovery) = open(&disk).unwrap();
    assert_eq!((found, recovery.cut_bytes), (vec![0, 1, 2, 3, 4], (FRAME_3 + 90 - FRAME_2 - 184) as u64));
}

#[test]
fn r4_damage_below_what_was_persisted_is_refused() {
    let disk = written(2);
    flip(&disk, SECOND, FRAME_1 + 60);
    open_damaged(&disk, SECOND, FRAME_1 as u64);
}

#[test]
fn r5_damage_in_an_earlier_segment_is_refused() {
    let disk = written(2);
    flip(&disk, FIRST, FRAME_3 + 60);
    open_damaged(&disk, FIRST, FRAME_2 as u64 + 184);
}

#[test]
fn r6_a_missing_segment_is_named() {
    let disk = written(3);
    let sim = Sim::with_disk(&disk);
    let engine = sim.env().engine;
    sim.run(settee_io::directory::remove(&*engine, Path::new(SECOND))).unwrap().unwrap();
    assert!(matches!(open(&disk), Err(OpenError::Missing { path }) if path == Path::new(SECOND)));
}

#[test]
fn r7_a_last_segment_without_a_header_is_removed() {
    for remains in [0, 100, 512, 700] {
        let disk = written(2);
        disk.write_file(THIRD, vec![0xAB; remains]);
        let (found, recovery) = open(&disk).unwrap();
        assert_eq!((found.len(), recovery.cut_bytes), (6, remains as u64));
        assert_eq!(disk.read_file(THIRD), None);
        let aside = disk.read_file(Path::new(THIRD).with_extension("torn"));
        assert_eq!(aside.is_some(), remains > 0);
    }
}

#[test]
fn r7_closed_segments_that_were_not_persisted_are_removed_too() {
    // The previous segment, the current one, and the preallocated one.
    for (remains, lengths) in [(0, [0, 0]), (700, [0, 0]), (700, [4096, 0]), (700, [4096, 4096])] {
        let disk = written(2);
        disk.write_file(THIRD, vec![0xAB; remains]);
        let behind = ["4", "5"].map(|number| THIRD.replace("3.log", &format!("{number}.log")));
        behind.iter().zip(lengths).for_each(|(path, length)| disk.write_file(path, vec![0; length]));
        let (found, recovery) = open(&disk).unwrap();
        assert_eq!((found.len(), recovery.cut_bytes), (6, remains as u64));
        for path in behind.iter().map(String::as_str).chain([THIRD]) {
            assert_eq!(disk.read_file(path), None, "{path}");
        }
    }
}

#[test]
fn r8_a_damaged_header_before_persisted_frames_is_refused() {
    for (file, segment_count) in [(FIRST, 1), (FIRST, 2), (SECOND, 2)] {
        // Bytes 24 to 39 contain the log's id.
        for byte in [20, 30] {
            let disk = written(segment_count);
            flip(&disk, file, byte);
            open_damaged(&disk, file, 0);
        }
        for lost in [0, 0xAB] {
            let disk = written(segment_count);
            disk.damage_file(file, |bytes| bytes[..FRAME_2].fill(lost));
            open_damaged(&disk, file, 0);
        }
    }
}

#[test]
fn r9_a_segment_of_another_place_or_log_is_refused() {
    let disk = written(3);
    disk.write_file(SECOND, disk.read_file(THIRD).unwrap());
    open_damaged(&disk, SECOND, 0);
    let other = written_with_seed(2, 2);
    let disk = written(2);
    disk.write_file(SECOND, other.read_file(SECOND).unwrap());
    open_damaged(&disk, SECOND, 0);
}

#[test]
fn r10_a_segment_that_became_shorter_is_refused() {
    let disk = written(2);
    disk.damage_file(FIRST, |bytes| bytes.truncate(FRAME_3 + 10));
    open_damaged(&disk, FIRST, FRAME_3 as u64 + 10);
}

#[test]
fn r11_damage_in_the_last_synced_group_passes_for_a_torn_tail() {
    let disk = written(1);
    flip(&disk, FIRST, FRAME_3 + 60);
    let (found, recovery) = open(&disk).unwrap();
    assert_eq!((found, recovery.cut_bytes > 0), (vec![0, 1], true));
}

#[test]
fn r12_an_io_error_is_not_treated_as_the_end_of_a_file() {
    let mut refused = 0;
    for nth in 0..8 {
        // A failed read may be retried another way, but never ends the log early.
        match open(&written(2).fail(OperationKind::Read, nth, Fault::Io)) {
            Err(OpenError::Io(_)) => refused += 1,
            Ok((found, recovery)) => assert_eq!((found.len(), recovery.cut_bytes), (6, 0), "read {nth}"),
            Err(other) => panic!("read {nth}: {other}"),
        }
    }
    assert!(refused > 0);
}

#[test]
fn r13_after_a_cut_the_log_continues_in_a_new_segment() {
    let disk = written(1);
    disk.damage_file(FIRST, |bytes| bytes[FRAME_3 + 90..].fill(0));
    let before = disk.read_file(FIRST).unwrap();
    append_once_more(&disk, 9);
    let after = disk.read_file(FIRST).unwrap();
    assert_eq!(after, before[..after.len()]);
    assert!(disk.read_file(SECOND).is_some());
    assert_eq!(open(&disk).unwrap().0, [0, 1, 9]);
}

#[test]
fn r14_without_a_cut_the_log_continues_in_its_last_segment() {
    let disk = SimDisk::new(1);
    for value in 0..3 {
        append_once_more(&disk, value);
    }
    assert_eq!(disk.read_file(SECOND), None);
    assert_eq!(open(&disk).unwrap().0, [0, 1, 2]);
    // Everything persisted before the log was reopened is known to be persisted.
    flip(&disk, FIRST, FRAME_1 + 60);
    open_damaged(&disk, FIRST, FRAME_1 as u64);
}

/// Opens the log, appends, and closes it.
fn append_once_more(disk: &SimDisk, value: u8) {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = Log::open(&env, Path::new(DIRECTORY), options(), |_, _| {}).await.unwrap();
        append(&log, value).await;
        log.close().await.unwrap();
    })
    .unwrap();
}

/// Segments of one size, at most four of which are kept.
async fn fill(env: &settee_io::Env, options: LogOptions, first: u64, count: u64, window: u64) -> Log {
    let (log, _) = Log::open(env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
    for number in first..first + count {
        let mut batch = Batch::new();
        batch.push(Flags::IN_SEQ_INDEX, &number.to_be_bytes(), b"meta", &[number as u8; 100]);
        let seq = log.append(&batch, Stage::Persisted).await.unwrap().last_seq;
        assert_eq!(seq, Seq(number), "a Seq of the log's own");
        log.wait(seq, Stage::Persisted).await.unwrap();
        log.truncate_before(Seq(number.saturating_sub(window)));
    }
    log
}

#[test]
fn r15_truncated_segments_are_removed_and_the_rest_is_found() {
    for (seed, recycled_percent_max) in seeds(20).zip([0, 100].into_iter().cycle()) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let options = LogOptions { recycled_percent_max, ..options() };
        sim.run(async {
            let log = fill(&env, options, 1, 60, 7).await;
            assert!(log.segments().len() <= 8, "seed={seed}: {:?}", log.segments());
            assert!(log.segments()[0] > 10, "seed={seed}: {:?}", log.segments());
            log.close().await.unwrap();
        })
        .unwrap();
        let mut found = Vec::new();
        sim.run(async {
            let opened = Log::open(&env, Path::new(DIRECTORY), options, |_, record| found.push(record.seq.0));
            let (_, recovery) = opened.await.unwrap();
            assert_eq!(recovery.cut_bytes, 0, "seed={seed}: {recovery:?}");
        })
        .unwrap();
        assert!(found[0] <= 53 && found[0] > 20, "seed={seed}: {found:?}");
        assert_eq!(found, (found[0]..=60).collect::<Vec<_>>(), "seed={seed}");
    }
}

#[test]
fn r16_a_header_that_no_log_writes_is_refused() {
    // Epoch, first `Seq` and end of the previous segment, as large as possible.
    for field in [16..20, 40..48, 48..56] {
        let disk = written(2);
        disk.damage_file(SECOND, |bytes| {
            bytes[field.clone()].fill(0xFF);
            let checksum = twox_hash::XxHash3_64::oneshot(&bytes[..72]);
            bytes[72..80].copy_from_slice(&checksum.to_le_bytes());
        });
        let before = disk.read_file(SECOND);
        open_damaged(&disk, SECOND, 0);
        assert_eq!(disk.read_file(SECOND), before);
    }
}

#[test]
fn needed_records_survive_power_loss_while_others_are_truncated() {
    let mut reused = 0;
    for seed in seeds(20) {
        let options = LogOptions { recycled_percent_max: 100, ..options() };
        let whole = SimDisk::new(seed);
        let sim = Sim::with_disk(&whole);
        sim.run(fill(&sim.env(), options, 1, 25, 4)).unwrap();
        reused += whole.count_of(OperationKind::Rename);
        for crash_at in (0..whole.operation_count()).step_by(3) {
            let disk = SimDisk::new(seed).crash_at_operation(crash_at);
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            let acknowledged = std::sync::atomic::AtomicU64::new(0);
            sim.run(async {
                let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
                for number in 1..=25_u64 {
                    let mut batch = Batch::new();
                    batch.push(Flags::none(), b"key", b"", &[number as u8; 100]);
                    log.append(&batch, Stage::Persisted).await.unwrap();
                    log.flush().await.unwrap();
                    acknowledged.store(number, std::sync::atomic::Ordering::Relaxed);
                    log.truncate_before(Seq(number.saturating_sub(4)));
                }
            });
            let acknowledged = acknowledged.into_inner();
            let disk = disk.after_power_loss();
            let sim = Sim::with_disk(&disk);
            let env = sim.env();
            let mut found = Vec::new();
            sim.run(async {
                let case = format!("seed={seed} crash_at={crash_at}");
                let replay = |_, record: settee_log::RecordRef<'_>| found.push(record.seq.0);
                let opened = Log::open(&env, Path::new(DIRECTORY), options, replay).await;
                opened.unwrap_or_else(|error| panic!("{case}: {error}"));
                let first = found.first().copied().unwrap_or(1);
                assert!(
                    first <= acknowledged.saturating_sub(4).max(1),
                    "{case}: truncated before {first} too early"
                );
                let last = found.last().copied().unwrap_or(0);
                assert!(last >= acknowledged, "{case}: lost {last} to {acknowledged}");
                assert_eq!(found, (first..=last).collect::<Vec<_>>(), "{case}");
            })
            .unwrap();
        }
    }
    assert!(reused > 20, "files were recycled {reused} times");
}

#[test]
fn closed_segments_are_sealed_with_a_segment_index() {
    for seed in seeds(20) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let log = fill(&env, options(), 1, 20, 1_000).await;
            env.clock.sleep(std::time::Duration::from_secs(1)).await;
            let segments = log.segments();
            let mut seen = 0;
            for number in &segments[..segments.len() - 2] {
                let segment_index = log.segment_index(*number).await.unwrap();
                let mut scan = segment_index.scan_seq(Seq(0));
                while let Some((entry, _)) = scan.next().await.unwrap() {
                    seen += 1;
                    assert_eq!(entry.seq, Seq(seen), "seed={seed}");
                    let record = log.read(entry.location).await.unwrap();
                    assert_eq!((record.key(), record.meta()), (&seen.to_be_bytes()[..], &b"meta"[..]));
                    assert_eq!(entry.key, record.key());
                    let entry =
                        segment_index.get(&seen.to_be_bytes()).await.unwrap().expect("its key is there");
                    assert_eq!(entry.seq, Seq(seen), "seed={seed}");
                }
            }
            assert!(seen >= 12, "seed={seed}: {seen} in segment indexes of {segments:?}");
            log.close().await.unwrap();
        })
        .unwrap();
        // Opening ignores the footers, and a second opening finds the same.
        assert_eq!(open(&disk).unwrap().0.len(), 20);
    }
}
