//! Goal: a segment index returns exactly what was put into it, with few reads, and detects any change of its
//! bytes.
//! Method: golden bytes; a `BTreeMap` as the model under proptest; every byte of a small footer and random
//! ones of a large one changed; garbage and invalid content with valid checksums. An engine in front of the
//! simulated disk counts and measures the reads.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Waker};

use proptest::prelude::*;
use settee_io::{Damage, Engine, OpenMode, Operation, Outcome, Request};
use settee_sim::{Sim, SimDisk};

use super::block::{BLOCK_ALIGNMENT, Cursor, put_varint};
use super::*;
use crate::format::{Flags, META_SIZE_MAX};

const SEGMENT: u32 = 3;
const EPOCH: u32 = 2;
const PATH: &str = "/segment";

/// A record as it is pushed, with its checksum.
type Pushed = (Entry, u64);

/// Forwards everything, and records the size of each read.
struct Recorder {
    inner: Arc<dyn Engine>,
    read_sizes: Mutex<Vec<usize>>,
}

impl Engine for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn submit(&self, request: Request) {
        if let Operation::Read { buffer, .. } = &request.operation {
            self.read_sizes.lock().unwrap_or_else(PoisonError::into_inner).push(buffer.capacity());
        }
        self.inner.submit(request);
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        self.inner.run(operation)
    }
}

/// A simulated disk with one file on it.
struct World {
    sim: Sim,
    recorder: Arc<Recorder>,
    engine: Arc<dyn Engine>,
}

impl World {
    fn new() -> World {
        let sim = Sim::with_disk(&SimDisk::new(1).short_reads(0.0));
        let recorder = Arc::new(Recorder { inner: sim.env().engine, read_sizes: Mutex::default() });
        World { engine: recorder.clone(), recorder, sim }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.sim.run(future).expect("no power loss is planned")
    }

    async fn open(&self, file: &[u8]) -> Result<SegmentIndex, SegmentIndexError> {
        self.sim.disk().write_file(PATH, file);
        let file = File::open(&self.engine, Path::new(PATH), OpenMode::Read).await.unwrap();
        SegmentIndex::open(Arc::new(file), SEGMENT, EPOCH).await
    }

    /// The sizes of the reads since the last call.
    fn reads(&self) -> Vec<usize> {
        std::mem::take(&mut *self.recorder.read_sizes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Pseudo-random numbers from a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn record(seq: u64, key: &[u8], meta: &[u8]) -> Pushed {
    let flags = if seq.is_multiple_of(5) { Flags::TOMBSTONE } else { Flags::IN_SEQ_INDEX };
    let location = Location { segment: SEGMENT, offset: seq as u32 * 64, length: 28 + key.len() as u32 };
    let entry = Entry { seq: Seq(seq), flags, key: key.to_vec(), meta: meta.to_vec(), location };
    (entry, xxh3_64(&seq.to_le_bytes()))
}

/// `count` records with random keys of a dozen bytes, each key about twice.
fn records(count: usize) -> Vec<Pushed> {
    let mut numbers = Numbers(count as u64);
    let key = |number: usize| format!("key-{:08}", number * 7919 % 100_000_007);
    (0..count)
        .map(|index| {
            let meta = numbers.next().to_le_bytes();
            record(100 + index as u64, key(numbers.below(count / 2 + 1)).as_bytes(), &meta)
        })
        .collect()
}

fn builder(records: &[Pushed]) -> SegmentIndexBuilder {
    let mut builder = SegmentIndexBuilder::new(SEGMENT, EPOCH);
    for (entry, checksum) in records {
        let Entry { seq, flags, key, meta, location } = entry;
        let (seq, flags, location) = (*seq, *flags, *location);
        builder.push(EntryRef { seq, flags, key, meta, location }, *checksum);
    }
    builder
}

/// A file whose frames take `frames_end` bytes, with the footer.
async fn sealed(records: &[Pushed], frames_end: u64) -> Vec<u8> {
    let mut file = vec![0xAB; frames_end as usize];
    file.resize(footer_start(frames_end) as usize, 0);
    file.extend(builder(records).finish(frames_end, 98).await);
    file
}

async fn by_key(
    segment_index: &SegmentIndex,
    range: impl RangeBounds<[u8]>,
) -> Result<Vec<Entry>, SegmentIndexError> {
    let mut scan = segment_index.scan_keys(range);
    let mut found = Vec::new();
    while let Some(entry) = scan.next().await? {
        found.push(entry.to_entry());
    }
    Ok(found)
}

async fn by_seq(segment_index: &SegmentIndex, from: Seq) -> Result<Vec<Pushed>, SegmentIndexError> {
    let mut scan = segment_index.scan_seq(from);
    let mut found = Vec::new();
    while let Some((entry, checksum)) = scan.next().await? {
        found.push((entry.to_entry(), checksum));
    }
    Ok(found)
}

/// The complete content of a segment index.
async fn contents(segment_index: &SegmentIndex) -> Result<(Vec<Entry>, Vec<Pushed>), SegmentIndexError> {
    Ok((by_key(segment_index, ..).await?, by_seq(segment_index, Seq(0)).await?))
}

/// The records ordered by key, and the newest first for each key.
fn in_key_order(records: &[Pushed]) -> Vec<Entry> {
    let mut sorted: Vec<Entry> = records.iter().map(|(entry, _)| entry.clone()).collect();
    sorted.sort_by(|a, b| a.key.cmp(&b.key).then(b.seq.cmp(&a.seq)));
    sorted
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_footer_has_its_golden_bytes() {
    let world = World::new();
    let file = world
        .run(sealed(&[record(7, b"key", b"meta"), record(9, b"kept", b""), record(10, b"key", b"m")], 5000));
    assert_eq!(file.len(), 8192 + 3 * 4096);
    let seq_block = [
        "0300", // count; then flags, Seq, offset, length, sizes of meta and key, checksum, key, meta
        "02 00 c003 1f 04 03 af96b5d6581e6781 6b6579 6d657461",
        "02 02 c004 20 00 04 9704751988af6007 6b657074",
        "01 03 8005 1f 01 03 752897a8e91bade6 6b6579 6d",
    ];
    let key_block = [
        "0300", // count; then flags, Seq, offset, length, size of meta, shared, size of rest, rest, meta
        "02 02 c004 20 00 00 04 6b657074",
        "01 03 8005 1f 01 02 01 79 6d",
        "02 00 c003 1f 04 03 00 6d657461",
    ];
    let index_and_filter = [
        "01 083a4876b4121721 00",                       // by Seq: pages, checksum, first
        "04 6b657074 03 6b6579 01 c7d60bac200cf500 00", // smallest, largest; by key: the same, no separator
        "0000100000000400 0000000000001000 0000000000000400 0000400000000000",
        "0010000000000000 0008010000000000 0010000000000000 0000000008008020",
    ];
    let trailer = [
        "5345545445454654 01000000 03000000 02000000 00000000", // magic, version, segment, epoch
        "8813000000000000 6200000000000000",                    // frames' end and checksum
        "0700000000000000 0a00000000000000",                    // first and last Seq
        "0300000000000000 0100000000000000 0200000000000000",   // records, tombstones, listed
        "0200000000000000 5e00000000000000",                    // keys, bytes of records
        "0010000000000000 0010000000000000",                    // blocks by Seq, by key
        "0a00000000000000 1300000000000000 4000000000000000",   // indexes, filter
        "35a9d7cf6f436739 aa9a29f7cc989001",                    // checksums
    ];
    let golden = |parts: &[&str]| parts.concat().replace(' ', "");
    let trailer_start = file.len() - TRAILER_SIZE;
    for (section, parts) in [
        (&file[8192..12288], &seq_block[..]),
        (&file[12288..16384], &key_block),
        (&file[16384..trailer_start], &index_and_filter),
        (&file[trailer_start..], &trailer),
    ] {
        let golden = golden(parts);
        let (used, padding) = section.split_at(golden.len() / 2);
        assert_eq!(hex(used), golden);
        assert!(padding.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn counts_and_bounds_are_those_of_the_records() {
    let world = World::new();
    let records = records(5_000);
    world.run(async {
        let segment_index = world.open(&sealed(&records, 600).await).await.unwrap();
        let trailer = segment_index.trailer();
        let keys: BTreeSet<&[u8]> = records.iter().map(|(entry, _)| &*entry.key).collect();
        let count = |flags| records.iter().filter(|(entry, _)| entry.flags.has(flags)).count() as u64;
        assert_eq!((trailer.first_seq, trailer.last_seq), (Seq(100), Seq(5_099)));
        assert_eq!((trailer.frames_end, trailer.frames_checksum), (600, 98));
        assert_eq!((trailer.record_count, trailer.key_count), (5_000, keys.len() as u64));
        assert_eq!(trailer.tombstone_count, count(Flags::TOMBSTONE));
        assert_eq!(trailer.in_seq_index_count, count(Flags::IN_SEQ_INDEX));
        let record_bytes: u64 = records.iter().map(|(entry, _)| u64::from(entry.location.length)).sum();
        assert_eq!(trailer.record_bytes, record_bytes);
        assert_eq!(segment_index.key_bounds(), Some((*keys.first().unwrap(), *keys.last().unwrap())));
    });
}

#[test]
fn keys_that_differ_late_or_in_length_alone_keep_their_order() {
    let world = World::new();
    let mut numbers = Numbers(4);
    for common in ["", "a", "more than eight bytes"] {
        // More than are sorted at a time.
        let records: Vec<Pushed> = (1..=9_000)
            .map(|seq| {
                let mut key = common.as_bytes().to_vec();
                key.resize(common.len() + numbers.below(20), 0);
                key.extend(&[1, 2][..numbers.below(3)]);
                record(seq, &key, b"")
            })
            .collect();
        world.run(async {
            let segment_index = world.open(&sealed(&records, 600).await).await.unwrap();
            let found = by_key(&segment_index, ..).await.unwrap();
            assert!(found == in_key_order(&records), "another order: keys begin with {common:?}");
        });
    }
}

#[test]
fn a_segment_index_without_entries_opens_and_is_empty() {
    let world = World::new();
    world.run(async {
        let file = sealed(&[], 512).await;
        assert_eq!(file.len(), 8192);
        let segment_index = world.open(&file).await.unwrap();
        assert_eq!(contents(&segment_index).await.unwrap(), (vec![], vec![]));
        assert_eq!(segment_index.get(b"").await.unwrap(), None);
        assert_eq!(segment_index.key_bounds(), None);
        assert_eq!(segment_index.trailer().record_count, 0);
    });
}

/// Keys with long common prefixes, long keys, and few enough that they repeat.
fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => proptest::collection::vec(0..3u8, 0..5),
        2 => (0..20u8).prop_map(|last| [&[1; 900][..], &[last]].concat()),
        1 => (0..4u8).prop_map(|first| [&[first][..], &vec![7; KEY_SIZE_MAX - 1]].concat()),
    ]
}

prop_compose! {
    fn any_record()(
        key in any_key(),
        meta in prop_oneof![4 => 0..40usize, 1 => 0..=META_SIZE_MAX],
        gap in prop_oneof![4 => Just(1), 1 => 1..1_000_000_000_000u64],
        bits in 0..4u8,
        offset: u32,
        length: u32,
        checksum: u64,
    ) -> (u64, Pushed) {
        let location = Location { segment: SEGMENT, offset, length };
        let meta = vec![checksum as u8; meta];
        let flags = Flags::from_bits(bits).unwrap();
        (gap, (Entry { seq: Seq(0), flags, key, meta, location }, checksum))
    }
}

fn any_records() -> impl Strategy<Value = Vec<Pushed>> {
    proptest::collection::vec(any_record(), 0..400).prop_map(|records| {
        let mut seq = 0;
        let numbered = records.into_iter().map(|(gap, (entry, checksum))| {
            seq += gap;
            (Entry { seq: Seq(seq), ..entry }, checksum)
        });
        numbered.collect()
    })
}

fn any_bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        Just(Bound::Unbounded),
        any_key().prop_map(Bound::Included),
        any_key().prop_map(Bound::Excluded),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_segment_index_agrees_with_the_model(
        records in any_records(),
        probes in proptest::collection::vec(any_key(), 20),
        ranges in proptest::collection::vec((any_bound(), any_bound()), 8),
        from in 0..300usize,
    ) {
        let model: BTreeMap<(&[u8], Reverse<Seq>), &Entry> =
            records.iter().map(|(entry, _)| ((&*entry.key, Reverse(entry.seq)), entry)).collect();
        let world = World::new();
        let size_max = builder(&records).footer_size_max();
        world.run(async {
            let file = sealed(&records, 700).await;
            assert!((file.len() - 4096) as u64 <= size_max, "more than {size_max}");
            let segment_index = world.open(&file).await.unwrap();
            for key in probes.iter().chain(records.iter().map(|(entry, _)| &entry.key)) {
                let newest = model.range((&**key, Reverse(Seq(u64::MAX)))..).next();
                let newest = newest.filter(|((found, _), _)| found == key).map(|(_, entry)| (*entry).clone());
                assert_eq!(segment_index.get(key).await.unwrap(), newest, "{key:?}");
            }
            for (start, end) in &ranges {
                let range = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
                let expected: Vec<&Entry> = model.iter()
                    .filter(|((key, _), _)| RangeBounds::<[u8]>::contains(&range, *key))
                    .map(|(_, entry)| *entry)
                    .collect();
                let found = by_key(&segment_index, range).await.unwrap();
                assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{range:?}");
            }
            let from = records.get(from).map_or(Seq(from as u64), |(entry, _)| entry.seq);
            for from in [from, Seq(from.0 + 1)] {
                let expected: Vec<Pushed> =
                    records.iter().filter(|(entry, _)| entry.seq >= from).cloned().collect();
                assert_eq!(by_seq(&segment_index, from).await.unwrap(), expected, "{from:?}");
            }
            assert_eq!(by_key(&segment_index, ..).await.unwrap(), in_key_order(&records));
        });
    }

    #[test]
    fn numbers_keep_their_value(value: u64, rest: Vec<u8>) {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, value);
        let size = bytes.len();
        bytes.extend(rest);
        let mut cursor = Cursor::new(&bytes);
        prop_assert_eq!(cursor.varint(), Some(value));
        prop_assert_eq!(cursor.at, size);
        prop_assert_eq!(Cursor::new(&bytes[..size - 1]).varint(), None);
    }
}

#[test]
fn a_number_of_more_than_64_bits_is_refused() {
    let largest = [[0xFF; 9].as_slice(), &[1]].concat();
    assert_eq!(Cursor::new(&largest).varint(), Some(u64::MAX));
    let larger = [[0xFF; 9].as_slice(), &[2]].concat();
    assert_eq!(Cursor::new(&larger).varint(), None);
    assert_eq!(Cursor::new(&[0x80; 20]).varint(), None);
}

#[test]
fn a_lookup_reads_one_block_at_most() {
    let world = World::new();
    // A key whose entries fill several blocks, between others.
    let mut records = records(10_000);
    for (entry, _) in records.iter_mut().skip(1_000).step_by(20) {
        entry.key = b"key-5".to_vec();
    }
    world.run(async {
        let segment_index = world.open(&sealed(&records, 512).await).await.unwrap();
        assert_eq!(world.reads().len(), 2, "the trailer; the indexes and the filter");
        let mut newest: BTreeMap<&[u8], &Entry> = BTreeMap::new();
        newest.extend(records.iter().map(|(entry, _)| (&*entry.key, entry)));
        for (key, entry) in newest {
            assert_eq!(segment_index.get(key).await.unwrap().as_ref(), Some(entry));
            assert_eq!(world.reads(), [BLOCK_ALIGNMENT], "{key:?}");
        }
        let (mut block_reads, absent_count) = (0, 10_000);
        for index in 0..absent_count {
            assert_eq!(segment_index.get(format!("key-{index}x").as_bytes()).await.unwrap(), None);
            let reads = world.reads();
            assert!(reads.len() <= 1 && reads.iter().all(|size| *size == BLOCK_ALIGNMENT), "{reads:?}");
            block_reads += reads.len();
        }
        assert!(block_reads <= absent_count / 50, "{block_reads} reads for {absent_count} absent keys");
    });
}

#[test]
fn a_scan_reads_ahead_up_to_its_limit_and_not_past_its_range() {
    let world = World::new();
    let records = records(50_000);
    world.run(async {
        let segment_index = world.open(&sealed(&records, 512).await).await.unwrap();
        let sizes = segment_index.trailer().sizes;
        world.reads();
        contents(&segment_index).await.unwrap();
        let reads = world.reads();
        assert_eq!(reads.iter().sum::<usize>() as u64, sizes.seq_blocks + sizes.key_blocks);
        assert_eq!(reads.iter().max(), Some(&READ_BYTES_MAX));
        let least = (sizes.seq_blocks + sizes.key_blocks) as usize / READ_BYTES_MAX;
        assert!(reads.len() < least + 20, "{} reads, at least {least}", reads.len());
        // A range that would fit into one block takes at most two blocks.
        let sorted = in_key_order(&records);
        let (start, end) = (&*sorted[20_000].key, &*sorted[20_040].key);
        by_key(&segment_index, (Bound::Included(start), Bound::Excluded(end))).await.unwrap();
        assert!(world.reads().iter().sum::<usize>() <= 2 * BLOCK_ALIGNMENT);
    });
}

#[test]
fn the_filter_has_no_false_negatives_and_one_percent_false_positives() {
    for key_count in [100, 10_000, 300_000] {
        let hash = |number: usize| xxh3_64(format!("document-{number}").as_bytes());
        let mut bytes = vec![0; filter::size(key_count)];
        (0..key_count).for_each(|number| filter::insert(&mut bytes, hash(number)));
        assert!((0..key_count).all(|number| filter::may_contain(&bytes, hash(number))));
        let probe_count = 200_000;
        let wrong = (key_count..key_count + probe_count)
            .filter(|number| filter::may_contain(&bytes, hash(*number)))
            .count();
        let rate = wrong as f64 / probe_count as f64;
        println!(
            "{key_count} keys, {} bytes: {:.2} % of {probe_count} others pass",
            bytes.len(),
            rate * 100.0
        );
        assert!(rate < 0.015, "{key_count} keys: {rate}");
    }
    assert!(!filter::may_contain(&[], 1));
}

#[test]
fn every_changed_byte_of_a_footer_is_found() {
    let world = World::new();
    world.run(async {
        let whole = sealed(&records(60), 512).await;
        let expected = contents(&world.open(&whole).await.unwrap()).await.unwrap();
        assert_eq!(expected.1.len(), 60);
        for at in footer_start(512) as usize..whole.len() {
            let mut file = whole.clone();
            file[at] ^= 1 << (at % 8);
            let found = match world.open(&file).await {
                Ok(segment_index) => contents(&segment_index).await.map(drop),
                Err(error) => Err(error),
            };
            let trailer = file.len() - TRAILER_SIZE;
            match found.expect_err("a changed byte passed") {
                SegmentIndexError::Absent { .. } => assert!((trailer..trailer + 8).contains(&at), "at {at}"),
                SegmentIndexError::Damaged(Damage { offset, .. }) => {
                    assert!(offset <= at as u64, "{offset}, at {at}")
                }
                error => panic!("at {at}: {error}"),
            }
        }
    });
}

#[test]
fn random_damage_to_a_large_footer_is_found_where_it_is() {
    let world = World::new();
    let records = records(20_000);
    world.run(async {
        let whole = sealed(&records, 512).await;
        let mut numbers = Numbers(11);
        for case in 0..200 {
            let mut file = whole.clone();
            let at = 4096 + numbers.below(whole.len() - 4096);
            file[at] ^= 1 + numbers.below(255) as u8;
            let found = match world.open(&file).await {
                Ok(segment_index) => contents(&segment_index).await.map(drop),
                Err(error) => Err(error),
            };
            let error = found.expect_err("a changed byte passed");
            let in_blocks = Trailer::index_start(world.open(&whole).await.unwrap().trailer()) > at as u64;
            if let (true, SegmentIndexError::Damaged(Damage { offset, .. })) = (in_blocks, &error) {
                assert_eq!(*offset, at as u64 / 4096 * 4096, "case {case}: {error}");
            }
            assert!(!in_blocks || matches!(error, SegmentIndexError::Damaged(_)), "case {case}: {error}");
        }
    });
}

#[test]
fn a_block_in_the_place_of_another_is_refused() {
    let world = World::new();
    world.run(async {
        let mut file = sealed(&records(2_000), 512).await;
        let (first, second) = file[4096..12288].split_at_mut(4096);
        first.swap_with_slice(second);
        let segment_index = world.open(&file).await.unwrap();
        let error = by_seq(&segment_index, Seq(0)).await.unwrap_err();
        assert!(matches!(error, SegmentIndexError::Damaged(Damage { offset: 4096, .. })), "{error}");
        assert_eq!(by_key(&segment_index, ..).await.unwrap().len(), 2_000);
    });
}

#[test]
fn garbage_and_cut_footers_are_errors_that_cost_no_memory() {
    let world = World::new();
    world.run(async {
        let whole = sealed(&records(500), 512).await;
        let mut numbers = Numbers(12);
        world.reads();
        for length in (0..whole.len()).step_by(97) {
            let mut garbage: Vec<u8> = (0..length).map(|_| numbers.next() as u8).collect();
            for file in [&whole[..length], &garbage] {
                let error = world.open(file).await.expect_err("no footer");
                assert!(matches!(error, SegmentIndexError::Absent { .. }), "{length}: {error}");
            }
            // With a valid trailer, of a longer or a shorter file.
            garbage.extend_from_slice(&whole[whole.len() - TRAILER_SIZE..]);
            let error = world.open(&garbage).await.expect_err("no footer");
            assert!(matches!(error, SegmentIndexError::Damaged(_)), "{length}: {error}");
            assert!(world.reads().into_iter().all(|size| size <= garbage.len()), "{length}");
        }
    });
}

/// Writes valid checksums for the index and the trailer.
fn stamp(file: &mut [u8], index_start: usize) {
    let trailer = file.len() - TRAILER_SIZE;
    let checksum = xxh3_64(&file[index_start..trailer]);
    file[trailer + 136..trailer + 144].copy_from_slice(&checksum.to_le_bytes());
    let checksum = xxh3_64(&file[trailer..trailer + 144]);
    file[trailer + 144..].copy_from_slice(&checksum.to_le_bytes());
}

/// Changes a few bytes in one part of the file, and makes all checksums valid again.
fn forge(file: &mut [u8], index_start: usize, numbers: &mut Numbers) {
    let trailer = file.len() - TRAILER_SIZE;
    let forged = match numbers.below(3) {
        0 => {
            let start = 4096 + numbers.below((index_start - 4096) / 4096) * 4096;
            start..start + 4096
        }
        1 => index_start..trailer,
        _ => trailer + 8..trailer + 136,
    };
    let before = xxh3_64(&file[forged.clone()]).to_le_bytes();
    for _ in 0..=numbers.below(3) {
        // Half of the changes are near the front, where counts and sizes are.
        let range = if numbers.below(2) == 0 { forged.len() } else { forged.len().min(40) };
        let at = forged.start + numbers.below(range);
        file[at] = match numbers.below(3) {
            0 => numbers.next() as u8,
            1 => 0xFF,
            _ => file[at].wrapping_add(1),
        };
    }
    // The block's checksum in the index, if the changed part is a block.
    let after = xxh3_64(&file[forged]).to_le_bytes();
    if let Some(at) = file[index_start..trailer].windows(8).position(|window| window == before) {
        file[index_start + at..index_start + at + 8].copy_from_slice(&after);
    }
    stamp(file, index_start);
}

#[test]
fn invalid_content_with_valid_checksums_neither_panics_nor_costs_memory() {
    let world = World::new();
    world.run(async {
        let records = records(300);
        let whole = sealed(&records, 512).await;
        let index_start = world.open(&whole).await.unwrap().trailer().index_start() as usize;
        let mut numbers = Numbers(13);
        let (mut refused, mut damaged, mut passed) = (0, 0, 0);
        world.reads();
        for _ in 0..6_000 {
            let mut file = whole.clone();
            forge(&mut file, index_start, &mut numbers);
            match world.open(&file).await {
                Err(_) => refused += 1,
                Ok(segment_index) => {
                    assert!(segment_index.memory_bytes() <= file.len() * 9 / 8);
                    let first = segment_index.get(&records[7].0.key).await;
                    let range = (Bound::Included(b"key-0".as_slice()), Bound::Excluded(b"key-9".as_slice()));
                    let some = by_key(&segment_index, range).await;
                    let later = by_seq(&segment_index, Seq(250)).await;
                    let all = contents(&segment_index).await;
                    let sound = first.is_ok() && some.is_ok() && later.is_ok() && all.is_ok();
                    *(if sound { &mut passed } else { &mut damaged }) += 1;
                }
            }
            assert!(world.reads().into_iter().all(|size| size <= file.len()));
        }
        println!("{refused} were refused, {damaged} broke off, {passed} gave other answers or the same");
        assert!(refused > 500 && damaged > 500 && passed > 500, "{refused} {damaged} {passed}");
    });
}

#[test]
fn an_entry_shares_no_more_than_the_previous_key() {
    // Flags, Seq, offset, length and size of the meta; then size of the shared prefix, size of the rest,
    // rest.
    let entry = |shared: u8| [0, 0, 0, 0, 0, shared, 1, b'x'];
    let mut key = b"ab".to_vec();
    assert_eq!(KeyEntry::decode(&entry(3), 0, &mut key), None);
    assert_eq!(key, b"ab");
    assert!(KeyEntry::decode(&entry(2), 0, &mut key).is_some());
    assert_eq!(key, b"abx");
}

#[test]
fn an_index_whose_blocks_do_not_fill_their_section_is_refused() {
    let index = |pages: &[u8]| -> Vec<u8> {
        pages.iter().flat_map(|pages| [&[*pages][..], &[0; 8]].concat()).collect()
    };
    let count = |pages: &[u8]| {
        let found = decode_index(&mut Cursor::new(&index(pages)), 4096..4 * 4096, |_| Some(()));
        found.map(|(blocks, _)| blocks.len())
    };
    assert_eq!(count(&[1, 2]), Some(2));
    for pages in [&[1, 1][..], &[1, 3], &[1, 1, 1, 1], &[0, 3], &[6]] {
        assert_eq!(count(pages), None, "{pages:?}");
    }
}

#[test]
fn a_footer_of_another_segment_or_a_later_version_is_distinguished_from_damage() {
    let world = World::new();
    world.run(async {
        let whole = sealed(&records(10), 512).await;
        drop(world.open(&whole).await.unwrap());
        let file = Arc::new(File::open(&world.engine, Path::new(PATH), OpenMode::Read).await.unwrap());
        for (segment, epoch) in [(SEGMENT + 1, EPOCH), (SEGMENT, EPOCH + 1)] {
            let error = SegmentIndex::open(file.clone(), segment, epoch).await.unwrap_err();
            assert!(error.to_string().contains("another segment"), "{error}");
        }
        let mut later = whole.clone();
        let trailer = later.len() - TRAILER_SIZE;
        later[trailer + 8] = 2;
        stamp(&mut later, 12288);
        let error = world.open(&later).await.unwrap_err();
        assert!(matches!(error, SegmentIndexError::NewerFormat { found: 2, known: 1, .. }), "{error}");
    });
}

#[test]
fn finishing_yields_to_other_tasks() {
    let records = records(30_000);
    let mut finish = pin!(builder(&records).finish(512, 98));
    let mut context = Context::from_waker(Waker::noop());
    let mut poll_count = 1;
    while finish.as_mut().poll(&mut context).is_pending() {
        poll_count += 1;
    }
    assert!(poll_count > 100, "{poll_count} polls for 30,000 records");
}

#[test]
#[should_panic(expected = "out of order")]
fn a_record_out_of_order_is_our_own_mistake() {
    builder(&[record(5, b"a", b""), record(5, b"b", b"")]);
}

/// Records of the segments 3 to 5.
fn spread(count: usize) -> Vec<Pushed> {
    let mut records = records(count);
    for (index, (entry, _)) in records.iter_mut().enumerate() {
        entry.location.segment = SEGMENT + (3 * index / count) as u32;
        entry.location.offset = u32::MAX - entry.location.offset;
    }
    records
}

/// A file with records of the segments up to `last`.
async fn covering(records: &[Pushed], last: u32) -> Vec<u8> {
    let mut builder = SegmentIndexBuilder::covering(SEGMENT, last, EPOCH);
    for (entry, checksum) in records {
        let Entry { seq, flags, key, meta, location } = entry;
        let (seq, flags, location) = (*seq, *flags, *location);
        builder.push(EntryRef { seq, flags, key, meta, location }, *checksum);
    }
    let mut file = vec![0xAB; 8192];
    file.extend(builder.finish(8192, 98).await);
    file
}

/// Sets the last segment in a trailer, and keeps it valid.
fn set_last_segment(file: &mut [u8], last: u32) {
    let start = file.len() - TRAILER_SIZE;
    file[start + 20..start + 24].copy_from_slice(&last.to_le_bytes());
    let checksum = xxh3_64(&file[start..start + TRAILER_SIZE - 8]);
    file[start + TRAILER_SIZE - 8..].copy_from_slice(&checksum.to_le_bytes());
}

impl World {
    async fn open_covering(&self, file: &[u8], last: u32) -> Result<SegmentIndex, SegmentIndexError> {
        self.sim.disk().write_file(PATH, file);
        let file = File::open(&self.engine, Path::new(PATH), OpenMode::Read).await.unwrap();
        SegmentIndex::open_covering(Arc::new(file), SEGMENT, last, EPOCH).await
    }
}

#[test]
fn a_segment_index_over_several_segments_has_its_golden_bytes() {
    let world = World::new();
    let mut records = [record(7, b"key", b"meta"), record(9, b"kept", b"")];
    records[1].0.location.segment = SEGMENT + 2;
    let file = world.run(covering(&records, SEGMENT + 2));
    let seq_block = [
        "0200",
        "02 00 c003 1f 04 03 af96b5d6581e6781 6b6579 6d657461",
        "02 02 c084808020 20 00 04 9704751988af6007 6b657074", // the offset, and 2 above its 32 bits
    ];
    let trailer = "5345545445454654 01000000 03000000 02000000 05000000"; // the last segment at the end
    let golden = |text: &str| text.replace(' ', "");
    let used = golden(&seq_block.concat());
    assert_eq!(hex(&file[8192..8192 + used.len() / 2]), used);
    let start = file.len() - TRAILER_SIZE;
    assert_eq!(hex(&file[start..start + 24]), golden(trailer));
}

#[test]
fn a_segment_index_over_several_segments_keeps_the_original_locations() {
    let world = World::new();
    for count in [1, 3, 5_000] {
        let records = spread(count);
        world.run(async {
            let segment_index =
                world.open_covering(&covering(&records, SEGMENT + 2).await, SEGMENT + 2).await.unwrap();
            assert_eq!(
                (segment_index.trailer().segment, segment_index.trailer().last_segment),
                (SEGMENT, SEGMENT + 2)
            );
            assert_eq!(contents(&segment_index).await.unwrap(), (in_key_order(&records), records.clone()));
            let middle = records[count / 2].0.seq;
            assert_eq!(by_seq(&segment_index, middle).await.unwrap(), records[count / 2..]);
        });
    }
}

#[test]
fn a_segment_index_is_accepted_only_for_the_segments_that_it_covers() {
    let world = World::new();
    let records = spread(30);
    world.run(async {
        let file = covering(&records, SEGMENT + 2).await;
        for last in [SEGMENT, SEGMENT + 1, SEGMENT + 3] {
            let opened = world.open_covering(&file, last).await;
            assert!(matches!(opened, Err(SegmentIndexError::Damaged(_))), "to {last}: {opened:?}");
        }
        assert!(matches!(world.open(&file).await, Err(SegmentIndexError::Damaged(_))));
        // For one segment the bytes are the same with either constructor; and there is only one encoding.
        let mut one = sealed(&self::records(30), 8192).await;
        assert_eq!(covering(&self::records(30), SEGMENT).await[8192..], one[8192..]);
        for last in [SEGMENT - 1, SEGMENT] {
            set_last_segment(&mut one, last);
            let opened = world.open_covering(&one, last).await;
            assert!(matches!(opened, Err(SegmentIndexError::Damaged(_))), "to {last}: {opened:?}");
        }
    });
}

#[test]
fn a_location_in_a_segment_that_is_not_covered_is_damage() {
    let world = World::new();
    let records = spread(30);
    world.run(async {
        let mut file = covering(&records, SEGMENT + 2).await;
        // The trailer excludes the last segment, so the entries that name it are invalid.
        set_last_segment(&mut file, SEGMENT + 1);
        let segment_index = world.open_covering(&file, SEGMENT + 1).await.unwrap();
        assert!(matches!(by_seq(&segment_index, Seq(0)).await, Err(SegmentIndexError::Damaged(_))));
        assert!(matches!(by_key(&segment_index, ..).await, Err(SegmentIndexError::Damaged(_))));
    });
}
