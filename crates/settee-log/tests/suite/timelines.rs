//! Goal: a copy of a log that starts a new timeline and its origin are never mixed up: a segment of one is refused in
//! the other, by name, and nothing is cut. The copy loses no record.
//! Method: copies of a log's directory on a simulated disk, which continue differently; files of one are put into
//! the other. The power fails at every operation of starting a timeline and of the first opening after it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use settee_io::{Damage, Env, directory};
use settee_log::{
    Batch, Edit, FileDigest, Flags, Log, LogOptions, Manifest, OpenError, RecordRef, SegmentIndex, Seq,
    Stage, StartTimelineError, Timeline, start_timeline,
};
use settee_sim::{Sim, SimDisk, seeds};

const ORIGIN: &str = "/data/origin";
const FOREIGN: &str = "it belongs to another log, or to another timeline of this one";
const BEYOND: &str = "it goes on after its timeline's end: it isn't this copy's, or damaged";

fn options() -> LogOptions {
    LogOptions { batch_bytes_max: 4096, segment_bytes_max: 12 << 10, ..LogOptions::default() }
}

fn path(place: &str, segment: u32) -> PathBuf {
    Path::new(place).join(format!("{segment:010}.log"))
}

async fn open(env: &Env, place: &str) -> Result<(Log, Vec<u64>), OpenError> {
    let mut found = Vec::new();
    let replay = |_, record: RecordRef<'_>| found.push(record.seq.0);
    let (log, _) = Log::open(env, Path::new(place), options(), replay).await?;
    Ok((log, found))
}

/// Appends records, each persisted.
async fn append(log: &Log, count: usize, fill: u8) {
    for _ in 0..count {
        let mut batch = Batch::new();
        batch.push(Flags::IN_SEQ_INDEX, b"key", b"meta", &[fill; 700]);
        let last_seq = log.append(&batch, Stage::Persisted).await.unwrap().last_seq;
        log.wait(last_seq, Stage::Persisted).await.unwrap();
    }
}

/// Returns once all segments but the open one are sealed.
async fn seal(log: &Log) {
    let open = *log.segments().last().unwrap();
    let mut below = log.sealed_below();
    while below < open {
        below = log.sealed_changed(below).await.unwrap();
    }
}

/// The files in a directory, without the lock file.
fn files(disk: &SimDisk, place: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = disk.paths().into_iter().map(|path| Path::new("/").join(path));
    let is_other = |path: &Path| path.ends_with("lock") || path.ends_with("manifest.next");
    let ours = paths.filter(|path| path.parent() == Some(Path::new(place)) && !is_other(path));
    ours.map(|path| (path.clone(), disk.read_file(&path).unwrap())).collect()
}

fn copy(disk: &SimDisk, from: &str, to: &str) {
    for (path, bytes) in files(disk, from) {
        disk.write_file(Path::new(to).join(path.file_name().unwrap()), bytes);
    }
}

/// The id in the header of a segment's file.
fn id_of(disk: &SimDisk, place: &str, segment: u32) -> Vec<u8> {
    disk.read_file(path(place, segment)).unwrap()[24..40].to_vec()
}

fn damage(opened: Result<(Log, Vec<u64>), OpenError>, case: &str) -> (PathBuf, &'static str) {
    match opened {
        Err(OpenError::Damaged(Damage { path, what, .. })) => (path, what),
        other => panic!("{case}: {other:?}"),
    }
}

/// A log of several segments, the first of which are listed if `is_listed`, closed in order. Returns its last
/// segment.
async fn origin(env: &Env, is_listed: bool) -> u32 {
    let (log, _) = open(env, ORIGIN).await.unwrap();
    append(&log, 40, 1).await;
    seal(&log).await;
    if is_listed {
        let list_to = Some(log.segment_infos()[2].last_seq);
        assert!(log.edit(Edit { list_to, ..Edit::default() }, |_| false).await.unwrap());
    }
    log.close().await.unwrap();
    log.segment_infos().last().unwrap().number
}

#[test]
fn r25_a_copy_on_a_new_timeline_continues_in_a_new_segment() {
    for is_listed in [false, true] {
        let disk = SimDisk::new(1);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let last = origin(&env, is_listed).await;
            let (log, all) = open(&env, ORIGIN).await.unwrap();
            let first = log.timelines().current().unwrap();
            log.close().await.unwrap();
            copy(&disk, ORIGIN, "/copy");
            let started = start_timeline(&env, Path::new("/copy")).await.unwrap().unwrap();
            assert!(started.after == Seq(40) && started.id != first.id);
            let before = files(&disk, "/copy");
            // Without an append nothing changes, however often it is opened.
            for _ in 0..2 {
                let (log, found) = open(&env, "/copy").await.unwrap();
                assert_eq!(found, all);
                assert!(log.timelines().iter().eq([&first, &started]));
                log.close().await.unwrap();
                assert_eq!(files(&disk, "/copy"), before);
            }
            let (log, _) = open(&env, "/copy").await.unwrap();
            append(&log, 1, 2).await;
            log.close().await.unwrap();
            let old = disk.read_file(path("/copy", last)).unwrap();
            assert_eq!(old, disk.read_file(path(ORIGIN, last)).unwrap(), "the last segment isn't continued");
            assert_eq!(id_of(&disk, "/copy", last), first.id.0);
            assert_eq!(id_of(&disk, "/copy", last + 1), started.id.0);
            // It continues there, and its segments are sealed and listed like others.
            let (log, found) = open(&env, "/copy").await.unwrap();
            assert_eq!(found.last(), Some(&41));
            append(&log, 40, 3).await;
            seal(&log).await;
            assert!(log.edit(Edit { list_to: Some(Seq(81)), ..Edit::default() }, |_| false).await.unwrap());
            let set = log.segment_set();
            let timelines: Vec<u32> = set.listed().map(|segment| segment.name.timeline).collect();
            assert!(
                timelines.is_sorted() && timelines.contains(&0) && timelines.contains(&1),
                "{timelines:?}"
            );
            for segment in set.listed() {
                let digest = FileDigest::of(&segment.file().await.unwrap()).await.unwrap();
                assert_eq!(segment.name.digest, digest, "{segment:?}");
            }
            log.close().await.unwrap();
            // A copy of the copy has three timelines.
            copy(&disk, "/copy", "/third");
            let third = start_timeline(&env, Path::new("/third")).await.unwrap().unwrap();
            assert_eq!(third.after, Seq(81));
            let (log, _) = open(&env, "/third").await.unwrap();
            assert!(log.timelines().iter().eq([&first, &started, &third]));
            append(&log, 1, 4).await;
            log.close().await.unwrap();
            // Another one at the same record: nothing was written on the one before it.
            copy(&disk, ORIGIN, "/other");
            let [one, two] = [
                start_timeline(&env, Path::new("/other")).await.unwrap().unwrap(),
                start_timeline(&env, Path::new("/other")).await.unwrap().unwrap(),
            ];
            assert!(one.after == two.after && one.id != two.id);
            let (log, found) = open(&env, "/other").await.unwrap();
            assert_eq!((found, log.timelines().count()), (all, 3));
            append(&log, 1, 5).await;
            assert_eq!(id_of(&disk, "/other", last + 1), two.id.0);
        })
        .unwrap();
    }
}

#[test]
fn an_empty_directory_has_no_timeline() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        directory::create(&*env.engine, Path::new("/empty")).await.unwrap();
        assert_eq!(start_timeline(&env, Path::new("/empty")).await.unwrap(), None);
        assert_eq!(start_timeline(&env, Path::new("/none")).await.unwrap(), None);
    })
    .unwrap();
}

#[test]
fn r26_a_segment_of_another_timeline_is_refused() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let last = origin(&env, true).await;
        let mut started: Vec<Timeline> = Vec::new();
        for (place, fill) in [("/a", 2), ("/b", 3)] {
            copy(&disk, ORIGIN, place);
            started.extend(start_timeline(&env, Path::new(place)).await.unwrap());
            copy(&disk, place, &format!("{place}-started"));
            let (log, _) = open(&env, place).await.unwrap();
            append(&log, 12, fill).await;
            log.close().await.unwrap();
        }
        assert!(started[0].id != started[1].id);
        // The origin continues too: in its last segment, and in later ones.
        let (log, _) = open(&env, ORIGIN).await.unwrap();
        append(&log, 12, 4).await;
        log.close().await.unwrap();
        let listed = Manifest::read(&env, Path::new("/a")).await.unwrap().unwrap().listed_to;
        assert!(listed > 1);
        let last_of_a =
            (last + 1..).find(|number| disk.read_file(path("/a", *number)).is_none()).unwrap() - 1;
        assert!(last_of_a > last + 1);
        // Where it is put, as which number, from where.
        let cases = [
            ("/a", last_of_a, "/b", FOREIGN),
            ("/a", last_of_a + 1, "/b", FOREIGN),
            ("/a", last + 1, "/b", FOREIGN),
            ("/a", last + 1, ORIGIN, BEYOND),
            ("/a-started", last + 1, "/b", FOREIGN),
            ("/a-started", last, ORIGIN, BEYOND),
            ("/a-started", last + 1, ORIGIN, BEYOND),
            (ORIGIN, last + 1, "/a", FOREIGN),
            // A file that the manifest covers and doesn't name.
            ("/a", listed, "/b", FOREIGN),
        ];
        for (place, number, from, expected) in cases {
            let case = format!("{from} to {place} {number}: {expected}");
            let before = files(&disk, place);
            let source = if number == listed { last + 1 } else { number.min(last_of_a) };
            let mut bytes = disk.read_file(path(from, source)).unwrap();
            bytes[12..16].copy_from_slice(&number.to_le_bytes());
            bytes[20..24].copy_from_slice(&1_u32.to_le_bytes());
            let checksum = twox_hash::XxHash3_64::oneshot(&bytes[..72]);
            bytes[72..80].copy_from_slice(&checksum.to_le_bytes());
            if number == listed {
                let (log, _) = open(&env, place).await.unwrap();
                let removed = log.segment_set().listed().last().cloned().into_iter().collect();
                log.edit(Edit { removed, ..Edit::default() }, |_| false).await.unwrap();
                log.close().await.unwrap();
                drop(log);
                // Its last user removes the file.
                env.clock.sleep(Duration::from_secs(1)).await;
                assert_eq!(disk.read_file(path(place, number)), None);
            }
            disk.write_file(path(place, number), bytes);
            let mixed = files(&disk, place);
            let (refused, what) = damage(open(&env, place).await, &case);
            assert_eq!((refused, what), (path(place, number), expected), "{case}");
            assert_eq!(files(&disk, place), mixed, "{case}: nothing was changed");
            for path in mixed.keys() {
                directory::remove(&*env.engine, path).await.unwrap();
            }
            before.into_iter().for_each(|(path, bytes)| disk.write_file(path, bytes));
        }
    })
    .unwrap();
}

#[test]
fn r27_nothing_that_two_timelines_share_is_cut() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let last = origin(&env, true).await;
        copy(&disk, ORIGIN, "/copy");
        start_timeline(&env, Path::new("/copy")).await.unwrap();
        let whole = disk.read_file(path("/copy", last)).unwrap();
        // The close mark is left out, so that only the manifest knows where the timeline ended.
        let (log, _) = open(&env, "/copy").await.unwrap();
        let end = log.segment_infos().last().unwrap().frame_bytes as usize;
        log.close().await.unwrap();
        for length in [end - 8, end - 700, 512] {
            disk.write_file(path("/copy", last), whole[..length].to_vec());
            let before = files(&disk, "/copy");
            let opened = open(&env, "/copy").await;
            let is_refused = matches!(&opened, Err(OpenError::Behind { path: found, expected: Seq(40), .. })
                if *found == path("/copy", last));
            assert!(is_refused, "{length}: {opened:?}");
            assert_eq!(files(&disk, "/copy"), before, "{length}");
        }
        // Bytes after the end are nothing that this log wrote.
        let mut longer = whole[..end].to_vec();
        longer.resize(end.next_multiple_of(4096) + 4096, 7);
        disk.write_file(path("/copy", last), longer);
        assert_eq!(damage(open(&env, "/copy").await, "longer"), (path("/copy", last), BEYOND));
        // Without that segment the log ends too early as well.
        directory::remove(&*env.engine, &path("/copy", last)).await.unwrap();
        let opened = open(&env, "/copy").await;
        assert!(matches!(opened, Err(OpenError::Behind { .. } | OpenError::Missing { .. })), "{opened:?}");
    })
    .unwrap();
}

#[test]
fn no_power_loss_in_starting_a_timeline_or_in_the_first_opening_after_it_loses_a_record() {
    let (mut crashes, mut old, mut new) = (0, 0, 0);
    for seed in seeds(4) {
        let whole = SimDisk::new(seed);
        let sim = Sim::with_disk(&whole);
        let all = sim
            .run(async {
                let env = sim.env();
                origin(&env, seed % 2 == 0).await;
                open(&env, ORIGIN).await.unwrap().1
            })
            .unwrap();
        let copied = || {
            // With other random ids.
            let disk = SimDisk::new(seed + 1000);
            files(&whole, ORIGIN).into_iter().for_each(|(path, bytes)| disk.write_file(path, bytes));
            disk
        };
        let work =
            async |env: &Env, acknowledged: &std::cell::Cell<u64>, is_started: &std::cell::Cell<bool>| {
                start_timeline(env, Path::new(ORIGIN)).await.unwrap();
                is_started.set(true);
                let (log, _) = open(env, ORIGIN).await.unwrap();
                for count in 1..=20 {
                    append(&log, 1, 9).await;
                    acknowledged.set(count);
                }
                log.close().await.unwrap();
            };
        let disk = copied();
        let start = disk.operation_count();
        let sim = Sim::with_disk(&disk);
        sim.run(work(&sim.env(), &Default::default(), &Default::default())).unwrap();
        for crash_at in start..disk.operation_count() {
            let case = format!("seed={seed} crash_at={crash_at}");
            let disk = copied().crash_at_operation(crash_at);
            let sim = Sim::with_disk(&disk);
            let (acknowledged, is_started) = Default::default();
            let ended = sim.run(work(&sim.env(), &acknowledged, &is_started));
            assert!(ended.is_none(), "{case}: the power fails");
            let mut disk = disk.after_power_loss();
            for again in [Some(crash_at % 19), None] {
                if let Some(again) = again {
                    disk = disk.crash_at_operation(again);
                }
                let sim = Sim::with_disk(&disk);
                let env = sim.env();
                let ended = sim.run(async {
                    let manifest = Manifest::read(&env, Path::new(ORIGIN)).await.unwrap();
                    let listed_to = manifest.as_ref().map_or(0, |manifest| manifest.listed_to);
                    let (log, found) =
                        open(&env, ORIGIN).await.unwrap_or_else(|error| panic!("{case}: {error}"));
                    let last = found.last().copied().unwrap();
                    assert!(last >= 40 + acknowledged.get(), "{case}: lost {last} to {}", acknowledged.get());
                    assert!(found.iter().copied().eq(found[0]..=last), "{case}: {found:?}");
                    assert_eq!(found[0], all[0], "{case}: {listed_to} segments are listed");
                    match log.timelines().count() {
                        1 => old += 1,
                        2 => new += 1,
                        other => panic!("{case}: {other} timelines"),
                    }
                    assert!(log.timelines().count() == 2 || !is_started.get(), "{case}");
                    append(&log, 3, 8).await;
                    let segment = *log.segments().last().unwrap();
                    let id = log.timelines().current().unwrap().id;
                    assert_eq!(id_of(&disk, ORIGIN, segment), id.0, "{case}");
                    log.close().await.unwrap();
                });
                if ended.is_none() {
                    disk = disk.after_power_loss();
                }
            }
            crashes += 1;
        }
    }
    println!("{crashes} power losses, {old} openings on the old timeline and {new} on the new one");
    assert!(crashes > 100 && old > 10 && new > 100);
}

#[test]
fn a_log_that_cannot_be_opened_gets_no_timeline() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let last = origin(&env, true).await;
        disk.damage_file(path(ORIGIN, last), |bytes| bytes[600] ^= 1);
        let before = files(&disk, ORIGIN);
        let started = start_timeline(&env, Path::new(ORIGIN)).await;
        let is_refused = matches!(&started, Err(StartTimelineError::Open(OpenError::Damaged(damage)))
            if damage.path == path(ORIGIN, last));
        assert!(is_refused, "{started:?}");
        assert_eq!(files(&disk, ORIGIN), before);
    })
    .unwrap();
}

#[test]
fn a_segment_index_of_a_longer_segment_is_replaced() {
    let disk = SimDisk::new(1);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let last = origin(&env, false).await;
        copy(&disk, ORIGIN, "/copy");
        start_timeline(&env, Path::new("/copy")).await.unwrap();
        let (log, _) = open(&env, ORIGIN).await.unwrap();
        append(&log, 12, 4).await;
        seal(&log).await;
        log.close().await.unwrap();
        // The copy's last segment is that of the origin, which has later records.
        let (log, _) = open(&env, "/copy").await.unwrap();
        append(&log, 1, 2).await;
        log.close().await.unwrap();
        disk.write_file(path("/copy", last), disk.read_file(path(ORIGIN, last)).unwrap());
        let (log, found) = open(&env, "/copy").await.unwrap();
        assert_eq!(found, (1..=41).collect::<Vec<_>>());
        log.close().await.unwrap();
        let (log, _) = Log::open_after(&env, Path::new("/copy"), options(), Seq(41), |_| ()).await.unwrap();
        seal(&log).await;
        let info = log.segment_infos()[last as usize - 1];
        let file = log.segment_set().get(last).unwrap().file().await.unwrap().clone();
        let segment_index = SegmentIndex::open(file, last, info.epoch).await.unwrap();
        assert_eq!(segment_index.trailer().frames_end, info.frame_bytes);
        assert_eq!(segment_index.trailer().last_seq, Seq(40));
    })
    .unwrap();
}

#[test]
fn what_is_left_of_a_torn_tail_does_not_follow_a_timeline() {
    for is_listed in [false, true] {
        let disk = SimDisk::new(1);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let last = origin(&env, is_listed).await;
            let (log, all) = open(&env, ORIGIN).await.unwrap();
            append(&log, 1, 3).await;
            // The process is killed while it writes one more record to the same group.
            let end = log.segment_infos().last().unwrap().frame_bytes as usize;
            copy(&disk, ORIGIN, "/copy");
            let number = *log.segments().last().unwrap();
            assert!(number >= last);
            disk.damage_file(path("/copy", number), |bytes| bytes[end..end + 40].fill(7));
            start_timeline(&env, Path::new("/copy")).await.unwrap().unwrap();
            for _ in 0..2 {
                let (log, found) = open(&env, "/copy").await.unwrap();
                assert_eq!((found.len(), found.last()), (all.len() + 1, Some(&41)), "listed={is_listed}");
                log.close().await.unwrap();
            }
            log.close().await.unwrap();
        })
        .unwrap();
    }
}
