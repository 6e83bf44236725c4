//! Goal: transferred segments are the caller's: the log neither removes nor changes them, pinned files remain
//! readable, and no power loss in between loses a record.
//! Method: simulated disks; a caller that stores durably where the log begins, takes over segments and
//! removes them, with a power loss at every operation.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use settee_io::{Damage, Env, File, OpenMode, directory};
use settee_log::{
    Batch, EntryRef, Flags, Location, Log, LogOptions, OpenError, ReadError, RecordRef, SegmentIndex, Seq,
    Stage, Start, read_record, scan_segment,
};
use settee_sim::{Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";

fn options() -> LogOptions {
    LogOptions { batch_bytes_max: 4096, segment_bytes_max: 12 << 10, ..LogOptions::default() }
}

fn path(segment: u32) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{segment:010}.log"))
}

async fn open_after(env: &Env, first_segment: u32, after: Seq) -> Result<(Log, Vec<u64>), OpenError> {
    let mut found = Vec::new();
    let start = Start { first_segment, after };
    let replay = |entry: EntryRef<'_>| found.push(entry.seq.0);
    let (log, _) = Log::open_after(env, Path::new(DIRECTORY), options(), start, replay).await?;
    Ok((log, found))
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
            let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
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
            let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
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
        let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
        append_all(&log, 20).await;
        disk.damage_file(path(2), |bytes| bytes[600] ^= 1);
        let open = seal(&log).await;
        let unsealed = log.segment_infos().into_iter().filter(|info| !info.is_sealed);
        assert_eq!(unsealed.map(|info| info.number).collect::<Vec<_>>(), [2, open]);
        // The caller may take it over nevertheless.
        log.transfer(3);
        assert_eq!(log.segment_infos().iter().filter(|info| !info.is_sealed).count(), 1);
    })
    .unwrap();
}

#[test]
fn segment_infos_agree_with_the_segment_indexes() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
        append_all(&log, 60).await;
        let open = seal(&log).await;
        for reopened in [false, true] {
            let log = match reopened {
                false => &log,
                true => {
                    log.close().await.unwrap();
                    &open_after(&env, 0, Seq(0)).await.unwrap().0
                }
            };
            let infos = log.segment_infos();
            assert!(infos.iter().map(|info| info.number).eq(1..=open));
            assert_eq!((infos[0].first_seq, infos.last().unwrap().last_seq), (Seq(1), Seq(60)));
            // `file_bytes` also counts the padding after the last frame of the open segment.
            let frame_bytes: u64 = infos.iter().map(|info| info.frame_bytes).sum();
            assert!((frame_bytes..frame_bytes + 4096).contains(&log.stats().file_bytes), "{frame_bytes}");
            for info in &infos[..infos.len() - 1] {
                let file = log.segment_file(info.number).unwrap();
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
fn transferred_segments_stay_unchanged_and_the_log_continues_without_them() {
    for seed in seeds(20) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
            let locations = append_all(&log, 60).await;
            let below = seal(&log).await - 1;
            let infos = log.segment_infos();
            let bytes = log.stats().file_bytes;
            log.transfer(below);
            log.transfer(below - 1);
            assert_eq!(log.segments()[0], below, "seed={seed}");
            assert_eq!(log.segment_infos(), infos[below as usize - 1..], "seed={seed}");
            let transferred_bytes: u64 =
                infos[..below as usize - 1].iter().map(|info| info.frame_bytes).sum();
            assert_eq!(log.stats().file_bytes, bytes - transferred_bytes, "seed={seed}");
            assert!(log.segment_file(below - 1).is_none() && log.segment_file(below).is_some());
            assert!(log.segment_index(1).await.is_err());
            let read = log.read(locations[0]).await;
            assert!(matches!(read, Err(ReadError::NoSegment { segment: 1 })), "seed={seed}: {read:?}");
            let files: Vec<_> = (1..below).map(|number| disk.read_file(path(number)).unwrap()).collect();
            // Also if all old records are truncated.
            for _ in 0..60 {
                let (seq, _) = append(&log).await;
                log.truncate_before(seq);
            }
            env.clock.sleep(Duration::from_secs(1)).await;
            assert!(log.segments()[0] > below + 2, "seed={seed}: {:?}", log.segments());
            log.close().await.unwrap();
            let last_seq = infos[below as usize - 2].last_seq;
            let (log, found) = open_after(&env, below, last_seq).await.unwrap();
            assert_eq!(found.last(), Some(&120), "seed={seed}");
            log.close().await.unwrap();
            let still: Vec<_> = (1..below).map(|number| disk.read_file(path(number)).unwrap()).collect();
            assert!(still == files, "seed={seed}: a segment of others was changed");
            assert_eq!(disk.read_file(path(below)), None, "seed={seed}: that one was truncated");
        })
        .unwrap();
    }
}

#[test]
fn the_next_header_says_that_the_log_begins_after_transferred_segments() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
        append_all(&log, 60).await;
        let open = seal(&log).await;
        log.transfer(3);
        let oldest = |segment| disk.read_file(path(segment)).unwrap()[20..24].to_vec();
        assert_eq!(oldest(open), 1u32.to_le_bytes());
        append_all(&log, 30).await;
        assert_eq!(oldest(open + 1), 3u32.to_le_bytes());
        log.close().await.unwrap();
    })
    .unwrap();
}

#[test]
#[should_panic(expected = "isn't sealed")]
fn a_segment_that_sealing_has_not_passed_is_not_handed_over() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
        append_all(&log, 60).await;
        let open = seal(&log).await;
        log.transfer(open + 1);
    });
}

#[test]
fn pinned_files_are_readable_after_their_removal() {
    for (seed, direct) in seeds(10).zip([false, true].into_iter().cycle()) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
            log.set_direct(direct).await.unwrap();
            let mut locations = append_all(&log, 60).await;
            let below = seal(&log).await;
            let files = log.files();
            assert!(files.segments().eq(log.segments()));
            log.transfer(below);
            for number in 1..below {
                directory::remove(&*env.engine, &path(number)).await.unwrap();
            }
            // Later records, in memory and in newer files, are readable too.
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"last", b"", &[1; 100]);
            locations.extend(append_all(&log, 20).await);
            let in_memory = log.append(&batch, Stage::Accepted).await.unwrap().locations[0];
            assert_eq!(log.read_in(&files, in_memory).await.unwrap().key(), b"last");
            for (index, location) in locations.iter().enumerate() {
                let record = log.read_in(&files, *location).await.unwrap();
                assert_eq!(record.seq(), Seq(index as u64 + 1), "seed={seed}");
                let file = files.get(location.segment);
                assert_eq!(file.is_some(), location.segment <= below, "seed={seed}");
                if let Some(file) = file {
                    let read = read_record(&file, location.offset.into(), location.length).await.unwrap();
                    assert_eq!((read.bytes(), read.checksum()), (record.bytes(), record.checksum()));
                }
            }
            log.close().await.unwrap();
            // Pinned files are still readable.
            for (index, location) in locations.iter().enumerate() {
                match log.read_in(&files, *location).await {
                    Ok(record) => assert_eq!(record.seq(), Seq(index as u64 + 1), "seed={seed}"),
                    Err(ReadError::Stopped(_)) => assert!(location.segment > below, "seed={seed}"),
                    Err(error) => panic!("seed={seed}: {error}"),
                }
            }
            let last = Seq(locations.iter().filter(|location| location.segment < below).count() as u64);
            let (log, found) = open_after(&env, below, last).await.unwrap();
            assert_eq!(found.last(), Some(&81), "seed={seed}: though files are pinned, it opens again");
            let pinned = log.files();
            drop(log);
            env.clock.sleep(Duration::from_secs(1)).await;
            open_after(&env, below, last).await.unwrap();
            assert!(pinned.get(below).is_some());
        })
        .unwrap();
    }
}

#[test]
fn a_record_read_from_any_file_is_checked() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
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
        let (log, _) = open_after(&env, 0, Seq(0)).await.unwrap();
        let mut expected = Vec::new();
        for _ in 0..4 {
            let (seq, location) = append(&log).await;
            expected.push((location, seq));
        }
        expected.retain(|(location, _)| location.segment == 1);
        append_all(&log, 10).await;
        seal(&log).await;
        let info = log.segment_infos()[0];
        log.transfer(2);
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
fn a_log_that_has_transferred_most_of_its_bytes_begins_no_smaller_segments() {
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
        log.transfer(seal(&log).await);
        let size = |index: usize| log.segment_infos()[index].frame_bytes;
        append_many(100).await;
        assert!(size(1) > 400 << 10, "{}", size(1));
        // The caller sets the actual number.
        log.set_transferred_bytes(0);
        append_many(100).await;
        let last = log.segment_infos().len() - 2;
        assert!(size(last) < 300 << 10, "{}", size(last));
    })
    .unwrap();
}

/// What the caller has stored durably: where the log begins, and which records it has elsewhere.
async fn write_down(env: &Env, number: u32, start: Start) {
    let file = File::open(&env.engine, Path::new(&format!("/data/{number:04}.start")), OpenMode::CreateNew)
        .await
        .unwrap();
    let mut bytes = start.first_segment.to_le_bytes().to_vec();
    bytes.extend_from_slice(&start.after.0.to_le_bytes());
    bytes.extend_from_slice(b"whole");
    file.write_and_sync_at(0, bytes.into()).await.unwrap();
    directory::sync(&*env.engine, Path::new("/data")).await.unwrap();
}

fn written_down(disk: &SimDisk) -> Start {
    let starts = disk.paths().into_iter().filter(|path| path.extension().is_some_and(|end| end == "start"));
    let read = |path: PathBuf| {
        let bytes = disk.read_file(Path::new("/").join(path))?;
        let is_whole = bytes.len() == 17 && bytes.ends_with(b"whole");
        let first_segment = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        let after = Seq(u64::from_le_bytes(bytes.get(4..12)?.try_into().ok()?));
        is_whole.then_some(Start { first_segment, after })
    };
    starts.filter_map(read).max_by_key(|start| start.first_segment).unwrap_or_default()
}

/// A caller that takes over sealed segments, and removes half of them. Updates the last acknowledged `Seq`.
async fn work(env: &Env, acknowledged: &Mutex<u64>) {
    directory::create(&*env.engine, Path::new("/data")).await.unwrap();
    let (log, _) = open_after(env, 0, Seq(0)).await.unwrap();
    let mut first_segment = 1;
    for round in 0..5 {
        for _ in 0..12 {
            *acknowledged.lock().unwrap() = append(&log).await.0.0;
        }
        env.clock.sleep(Duration::from_millis(500)).await;
        let below = log.sealed_below();
        let infos = log.segment_infos();
        let Some(last) = infos.iter().rfind(|info| info.number < below) else { continue };
        write_down(env, round, Start { first_segment: below, after: last.last_seq }).await;
        log.transfer(below);
        for number in (first_segment..below).filter(|number| number % 2 == 0) {
            directory::remove(&*env.engine, &path(number)).await.unwrap();
        }
        first_segment = below;
    }
    log.close().await.unwrap();
}

#[test]
fn no_power_loss_around_a_transfer_loses_a_record() {
    let (mut crashes, mut transferred) = (0, 0);
    for seed in seeds(6) {
        let whole = SimDisk::new(seed);
        let sim = Sim::with_disk(&whole);
        sim.run(work(&sim.env(), &Mutex::default())).unwrap();
        assert!(written_down(&whole).first_segment > 8, "seed={seed}: {:?}", written_down(&whole));
        for crash_at in 0..whole.operation_count() {
            let case = format!("seed={seed} crash_at={crash_at}");
            let disk = SimDisk::new(seed).crash_at_operation(crash_at);
            let sim = Sim::with_disk(&disk);
            let acknowledged = Mutex::default();
            let ended = sim.run(work(&sim.env(), &acknowledged));
            assert!(ended.is_none(), "{case}: the power fails");
            let acknowledged = acknowledged.into_inner().unwrap();
            let mut disk = disk.after_power_loss();
            let start = written_down(&disk);
            let kept: Vec<_> = (1..start.first_segment).map(|number| disk.read_file(path(number))).collect();
            // Once more, while it is opened again and continues.
            for again in [Some(crash_at % 23), None] {
                if let Some(again) = again {
                    disk = disk.crash_at_operation(again);
                }
                let sim = Sim::with_disk(&disk);
                let env = sim.env();
                let ended = sim.run(async {
                    let opened = open_after(&env, start.first_segment, start.after).await;
                    let (log, found) = opened.unwrap_or_else(|error| panic!("{case}: {start:?}: {error}"));
                    let last = found.last().copied().unwrap_or(start.after.0);
                    assert!(last >= acknowledged, "{case}: lost {last} to {acknowledged}");
                    assert_eq!(found, (start.after.0 + 1..=last).collect::<Vec<_>>(), "{case}");
                    append_all(&log, 8).await;
                    log.close().await.unwrap();
                });
                if ended.is_none() {
                    disk = disk.after_power_loss();
                }
            }
            let still: Vec<_> = (1..start.first_segment).map(|number| disk.read_file(path(number))).collect();
            assert!(still == kept, "{case}: a segment of others was changed");
            transferred += kept.iter().flatten().count();
            crashes += 1;
        }
    }
    println!("{crashes} power losses, {transferred} segments of others looked at");
    assert!(crashes > 1_000 && transferred > crashes);
}
