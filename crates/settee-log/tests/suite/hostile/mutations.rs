//! Goal: whatever happens to a log's files, opening returns a prefix of what was written, twice the same, or
//! a typed error with every file unchanged; it never panics.
//! Method: logs of several kinds, with one to three random changes: bits, lengths, bytes of another place or
//! log, fields of headers and of frames with a valid checksum, added or removed files.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use settee_log::{Batch, Flags, Log, Seq, Stage};
use settee_sim::{Sim, SimDisk};
use twox_hash::XxHash3_64;

use super::{DIRECTORY, Found, OPTIONS, files, open, seal_header, segment_path};

const TRIAL_COUNT: u64 = 20_000;

/// Offsets and sizes of the fields of headers and frames.
const HEADER_FIELDS: [(usize, usize); 9] =
    [(8, 4), (12, 4), (16, 4), (20, 4), (24, 8), (40, 8), (48, 8), (56, 8), (64, 4)];
const FRAME_FIELDS: [(usize, usize); 9] =
    [(0, 2), (2, 1), (4, 4), (8, 4), (12, 4), (16, 8), (24, 4), (28, 4), (32, 8)];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    /// A number that may be near a limit.
    fn number(&mut self, near: u64) -> u64 {
        match self.below(6) {
            0 => self.below(4) as u64,
            1 => u64::MAX - self.below(3) as u64,
            2 => u64::from(u32::MAX) - self.below(3) as u64,
            3 => (1 << 30) + self.below(3) as u64,
            4 => near.wrapping_add(self.next() % 5).wrapping_sub(2),
            _ => self.next() >> self.below(64),
        }
    }
}

/// Appends `count` batches from the `Seq` `first` on; only the last `window` are needed. Every third has two
/// records, every fourth has one with a larger value. Returns all records.
async fn fill(log: &Log, first: u64, count: u64, window: u64) -> Vec<Found> {
    let mut written = Vec::new();
    let mut last = first - 1;
    for number in 0..count {
        let mut batch = Batch::new();
        let mut values: Vec<Vec<u8>> =
            vec![(0..100 + number * 7 % 90).map(|at| (last * 31 + at * 7) as u8).collect()];
        batch.push(Flags::IN_SEQ_INDEX, &last.to_be_bytes(), b"meta", &values[0]);
        if number % 3 == 0 {
            batch.push(Flags::TOMBSTONE, b"gone", b"", b"");
            values.push(Vec::new());
        }
        if number % 4 == 0 {
            values.push(vec![number as u8; 300]);
            batch.push(Flags::none(), b"large", b"", &values[values.len() - 1]);
        }
        let appended = log.append(&batch, Stage::Persisted).await.unwrap();
        written.extend((appended.first_seq.0..).zip(values));
        last = appended.last_seq.0;
        log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
        log.truncate_before(Seq(last.saturating_sub(window)));
    }
    written
}

/// A log that was opened `open_count` times, and all its records; the last time the power may fail.
fn log(seed: u64, open_count: u64, batch_count: u64, window: u64, power_loss: bool) -> (SimDisk, Vec<Found>) {
    let disk = SimDisk::new(seed);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let mut written = Vec::new();
    let mut unsynced = None;
    sim.run(async {
        for turn in 1..=open_count {
            let (log, _) = Log::open(&env, Path::new(DIRECTORY), OPTIONS, |_, _| {}).await.unwrap();
            let first = written.last().map_or(1, |(seq, _)| seq + 1);
            written.extend(fill(&log, first, batch_count, window).await);
            env.clock.sleep(Duration::from_secs(1)).await;
            if turn == open_count && power_loss {
                let value = vec![7; 2_000];
                let mut batch = Batch::new();
                batch.push(Flags::none(), b"torn", b"", &value);
                unsynced = Some((log.append(&batch, Stage::Accepted).await.unwrap().last_seq.0, value));
                env.clock.sleep(Duration::from_millis(60)).await;
                return;
            }
            log.close().await.unwrap();
        }
    })
    .unwrap();
    if power_loss {
        let disk = disk.after_power_loss();
        // The last batch may have survived.
        let (found, _) = open(&copy(&disk)).unwrap();
        written.extend(unsynced.filter(|unsynced| found.last() == Some(unsynced)));
        return (disk, written);
    }
    (disk, written)
}

/// A log whose first segments were truncated and their files recycled.
pub(crate) fn truncated_log(seed: u64) -> (SimDisk, Vec<Found>) {
    log(seed, 1, 40, 9, false)
}

/// A log to change, and its records.
struct Victim {
    disk: SimDisk,
    written: Vec<Found>,
    /// The first `Seq` found if nothing was changed.
    first_seq: u64,
}

impl Victim {
    fn new((disk, written): (SimDisk, Vec<Found>)) -> Victim {
        let (found, _) = open(&copy(&disk)).unwrap();
        assert!(found.len() > 1 && written.ends_with(&found));
        Victim { disk, written, first_seq: found[0].0 }
    }

    /// Whether the log may return `found`: a prefix of the needed records.
    fn may_give(&self, found: &[Found], begins_later: bool) -> bool {
        let Some((first, _)) = found.first() else { return true };
        let start = self.written.iter().position(|(seq, _)| seq == first);
        let is_part = start.is_some_and(|start| self.written[start..].starts_with(found));
        is_part && (begins_later || *first <= self.first_seq)
    }
}

fn copy(disk: &SimDisk) -> SimDisk {
    let copy = SimDisk::new(1);
    for (path, bytes) in files(disk) {
        copy.write_file(path, bytes);
    }
    copy
}

/// Changes a file, or adds or removes one. Returns a description, and whether the log may now begin later.
fn mutate(random: &mut Random, disk: &SimDisk, donors: &[SimDisk]) -> (String, bool) {
    let paths: Vec<_> = files(disk).into_keys().collect();
    let Some(path) = paths.get(random.below(paths.len())) else { return ("nothing left".into(), false) };
    let mut bytes = disk.read_file(path).unwrap();
    let (length, mut begins_later) = (bytes.len(), false);
    let what = match random.below(10) {
        0 | 1 => {
            let bits: Vec<usize> = (0..=random.below(4)).map(|_| random.below(bytes.len() * 8)).collect();
            for bit in bits.iter().filter(|bit| **bit / 8 < length) {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            format!("bits {bits:?} flipped")
        }
        2 => {
            bytes.truncate(random.below(bytes.len()));
            format!("cut at {}", bytes.len())
        }
        3 => {
            let byte = [0, random.next() as u8][random.below(2)];
            bytes.resize(bytes.len() + random.below(9000), byte);
            format!("made {} long with {byte}", bytes.len())
        }
        4 => {
            let range = random.below(bytes.len())..bytes.len();
            let end = (range.start + random.below(5000)).min(range.end);
            bytes[range.start..end].fill([0, 0xAB][random.below(2)]);
            format!("{}..{end} lost", range.start)
        }
        5 | 6 => {
            let donor = random.below(donors.len());
            splice(random, &mut bytes, &donors[donor])
        }
        7 => {
            begins_later = true;
            rewrite_header(random, &mut bytes)
        }
        8 => rewrite_frame(random, &mut bytes),
        _ => return (rearrange(random, disk, path), false),
    };
    disk.write_file(path, bytes);
    (format!("{}: {what}", path.display()), begins_later)
}

/// Inserts bytes of another file: whole frames or blocks, after the header or at the same offset.
fn splice(random: &mut Random, bytes: &mut Vec<u8>, donor: &SimDisk) -> String {
    let from: Vec<_> = files(donor).into_iter().collect();
    let (path, from) = &from[random.below(from.len())];
    let unit = [8, 512, 4096][random.below(3)];
    let start = 512 + random.below(from.len() / unit) * unit;
    let end = (start + (1 + random.below(4)) * unit).min(from.len());
    let Some(part) = from.get(start..end) else { return "nothing to splice".into() };
    let at = if random.below(2) == 0 { start } else { 512 + random.below(bytes.len() / unit) * unit };
    bytes.resize(bytes.len().max(at + part.len()), 0);
    bytes[at..at + part.len()].copy_from_slice(part);
    format!("{start}..{end} of {} at {at}", path.display())
}

fn rewrite(random: &mut Random, bytes: &mut [u8], (at, size): (usize, usize)) -> String {
    let mut field = [0; 8];
    field[..size].copy_from_slice(&bytes[at..at + size]);
    let number = random.number(u64::from_le_bytes(field));
    bytes[at..at + size].copy_from_slice(&number.to_le_bytes()[..size]);
    format!("{number} at {at}")
}

/// Changes a field of the segment's header, and its checksum.
fn rewrite_header(random: &mut Random, bytes: &mut [u8]) -> String {
    if bytes.len() < 512 {
        return "no header".into();
    }
    let field = HEADER_FIELDS[random.below(HEADER_FIELDS.len())];
    let what = rewrite(random, bytes, field);
    seal_header(bytes);
    format!("header: {what}")
}

/// Changes a field of a frame's header, and its checksum, which requires the log's id.
fn rewrite_frame(random: &mut Random, bytes: &mut [u8]) -> String {
    if bytes.len() < 512 {
        return "no header".into();
    }
    let seed = XxHash3_64::oneshot(&bytes[24..40]);
    let is_frame = |at: &usize| bytes[*at..*at + 2] == (seed as u16).to_le_bytes();
    let frames: Vec<usize> = (512..bytes.len().saturating_sub(80)).step_by(8).filter(is_frame).collect();
    let Some(start) = frames.get(random.below(frames.len())) else { return "no frame".into() };
    let frame = &mut bytes[*start..];
    let field = FRAME_FIELDS[random.below(FRAME_FIELDS.len())];
    let what = rewrite(random, frame, field);
    let mut hashed = frame[..40].to_vec();
    let count = u32::from_le_bytes(frame[24..28].try_into().unwrap());
    let mut at = 48;
    for _ in 0..count {
        let Some(record) = frame.get(at..at + 28) else { break };
        hashed.extend_from_slice(&record[..8]);
        let size = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]) as usize;
        at += 28 + u32::from_le_bytes(record[16..20].try_into().unwrap()) as usize + size(20) + size(22);
    }
    let checksum = XxHash3_64::oneshot_with_seed(seed, &hashed);
    frame[40..48].copy_from_slice(&checksum.to_le_bytes());
    format!("frame at {start}: {what}")
}

/// Removes, adds or renumbers a file.
fn rearrange(random: &mut Random, disk: &SimDisk, path: &Path) -> String {
    let bytes = disk.read_file(path).unwrap();
    let to = segment_path([1 + random.below(20) as u32, random.number(3) as u32][random.below(2)]);
    let action = random.below(3);
    if action > 0 {
        disk.write_file(&to, if action == 1 { bytes } else { vec![0; 8192] });
    }
    if action < 2 && to != *path {
        let sim = Sim::with_disk(disk);
        let engine = sim.env().engine;
        sim.run(settee_io::directory::remove(&*engine, path)).unwrap().unwrap();
    }
    format!("{} {}: {}", path.display(), ["removed", "moved", "and zeros"][action], to.display())
}

#[test]
fn changed_files_give_a_prefix_or_an_error_and_stay_unchanged() {
    let victims = [
        log(1, 1, 9, 1_000, false),
        log(2, 3, 5, 1_000, false),
        log(3, 1, 4, 1_000, true),
        log(4, 1, 14, 1_000, true),
        log(6, 2, 30, 9, true),
        truncated_log(7),
    ]
    .map(Victim::new);
    // An earlier state of the first victim, and another log.
    let others = [log(1, 1, 6, 1_000, false), truncated_log(8)];
    let mut donors: Vec<SimDisk> = victims.iter().map(|victim| copy(&victim.disk)).collect();
    donors.extend(others.map(|(disk, _)| disk));
    let (mut opened_count, mut refused_count, mut cut_count) = (0, 0, 0);
    for seed in 0..TRIAL_COUNT {
        let mut random = Random(seed);
        let victim = &victims[random.below(victims.len())];
        let disk = copy(&victim.disk);
        let mut case = format!("seed={seed}");
        let mut begins_later = false;
        for _ in 0..=random.below(3) {
            let (what, later) = mutate(&mut random, &disk, &donors);
            case = format!("{case}; {what}");
            begins_later |= later;
        }
        let before = files(&disk);
        let opened = catch_unwind(AssertUnwindSafe(|| open(&disk)));
        match opened.unwrap_or_else(|_| panic!("it panicked: {case}")) {
            Ok((found, recovery)) => {
                assert!(victim.may_give(&found, begins_later), "no prefix: {case}");
                let again = open(&disk).unwrap_or_else(|error| panic!("the second time {error}: {case}"));
                assert_eq!(again.0, found, "{case}");
                opened_count += 1;
                cut_count += u32::from(recovery.cut_bytes > 0);
            }
            Err(error) => {
                assert!(files(&disk) == before, "{error}, but files changed: {case}");
                refused_count += 1;
            }
        }
    }
    println!(
        "{TRIAL_COUNT} trials: {opened_count} opened, {cut_count} of these cut, {refused_count} refused"
    );
    assert!(opened_count > 500 && refused_count > 500 && cut_count > 100);
}
