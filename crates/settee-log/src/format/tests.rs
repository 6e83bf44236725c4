//! Goal: the bytes are those of `docs/format.md`, and no damaged bytes are accepted.
//! Method: golden bytes; every single-bit flip of a frame; proptest for round trips.

use std::ops::Range;

use bytes::Bytes;
use proptest::prelude::*;

use super::segment_header::SEGMENT_HEADER_USED;
use super::*;
use crate::types::{Seq, TimelineId};

const TIMELINE: TimelineId = TimelineId(*b"0123456789abcdef");

fn seed() -> FrameSeed {
    FrameSeed::of(TIMELINE)
}

fn header() -> FrameHeader {
    FrameHeader {
        seed: seed(),
        length: 0,
        segment: 3,
        epoch: 2,
        first_seq: 7,
        record_count: 0,
        persisted: 512,
        previous: 99,
    }
}

fn batch() -> Batch {
    let mut batch = Batch::new();
    batch.push(Flags::IN_SEQ_INDEX, b"key", b"meta", b"value");
    batch.push(Flags::TOMBSTONE, b"gone", b"", b"");
    batch
}

fn decode(bytes: &[u8], seed: FrameSeed) -> Option<Frame> {
    Frame::decode(0, &Bytes::copy_from_slice(bytes), Some(seed))
}

/// Appends the batch's frame to `bytes`.
fn write(batch: &Batch, header: FrameHeader, bytes: &mut Vec<u8>) -> u64 {
    batch.write_frame(header, &mut Sink(bytes))
}

struct Sink<'a>(&'a mut Vec<u8>);

impl FrameSink for Sink<'_> {
    fn copy(&mut self, bytes: &[u8]) -> &mut [u8] {
        let start = self.0.len();
        self.0.extend_from_slice(bytes);
        &mut self.0[start..]
    }

    fn share(&mut self, value: &Bytes) {
        self.copy(value);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_close_mark_has_its_golden_bytes_and_no_other_bytes_are_one() {
    let bytes = header().encode_mark();
    let golden = [
        "2d21 02 00 00000000 03000000 02000000 0700000000000000", // magic, kind, length, segment, epoch, next
        "00000000 00020000 6300000000000000 40f53f940aeb522a",    // count, end, previous, checksum
    ];
    assert_eq!(hex(&bytes), golden.concat().replace(' ', ""));
    // The frames end at 512, so that the mark begins at 4096.
    let decode = |start, bytes: &[u8]| FrameHeader::decode_mark(start, bytes, Some(seed()));
    assert_eq!(decode(4096, &bytes), Some(header()));
    assert_eq!(decode(8192, &bytes), None);
    assert_eq!(decode(4096, &bytes[..47]), None);
    assert_eq!(FrameHeader::decode(&bytes, Some(seed())), None);
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes;
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode(4096, &changed), None, "bit {bit}");
        assert_eq!(FrameHeader::decode(&changed, Some(seed())), None, "bit {bit}");
    }
    // A frame isn't a mark.
    let mut frame = Vec::new();
    write(&batch(), header(), &mut frame);
    assert_eq!(decode(4096, &frame), None);
}

#[test]
fn a_frame_has_its_golden_bytes() {
    let mut bytes = Vec::new();
    write(&batch(), header(), &mut bytes);
    let golden = [
        "2d21 01 00 48000000 03000000 02000000 0700000000000000", // magic, kind, length, segment, epoch, first
        "02000000 00020000 6300000000000000 6ab4b370afc491c5",    // count, persisted, previous, checksum
        "223ba15eba92a6bd 0700000000000000 05000000 0400 0300 02000000", // checksum, seq, sizes, flags
        "6b6579 6d657461 76616c7565",
        "3b1a81f6a19f0579 0800000000000000 00000000 0000 0400 01000000 676f6e65",
    ];
    assert_eq!(hex(&bytes), golden.concat().replace(' ', ""));
}

#[test]
fn a_frame_of_many_records_has_its_golden_checksum() {
    // The hashed bytes are more than 240: then the seed changes the hash's secret.
    let mut batch = Batch::new();
    (0..30).for_each(|_| batch.push(Flags::none(), b"", b"", b""));
    assert_eq!(
        write(&batch, header(), &mut Vec::new()).to_le_bytes(),
        [0x1f, 0xc0, 0xd3, 0x0a, 0xa1, 0xe7, 0xad, 0x58]
    );
}

fn segment_header() -> SegmentHeader {
    SegmentHeader {
        segment: 3,
        epoch: 2,
        oldest: 1,
        timeline: TIMELINE,
        is_reused: true,
        first_seq: 7,
        previous_end: 4096,
        previous_checksum: 99,
    }
}

#[test]
fn a_segment_header_has_its_golden_bytes() {
    let header = segment_header();
    let (bytes, checksum) = header.encode();
    let golden = [
        "5345545445454c47 03000000 03000000 02000000 01000000", // magic, version, segment, epoch, oldest
        "30313233343536373839616263646566 0700000000000000",    // timeline, first seq
        "0010000000000000 6300000000000000",                    // previous end and checksum
        "01000000 00000000 6b30e68bd787e5ec",                   // flags, checksum
    ];
    assert_eq!(hex(&bytes[..SEGMENT_HEADER_USED]), golden.concat().replace(' ', ""));
    assert!(bytes[SEGMENT_HEADER_USED..].iter().all(|byte| *byte == 0));
    assert_eq!(SegmentHeader::decode(&bytes), Ok((header, checksum)));
}

#[test]
fn a_header_that_no_log_writes_is_distinguished_from_damage() {
    let first = SegmentHeader { segment: 1, previous_end: 0, ..segment_header() };
    assert!(SegmentHeader::decode(&first.encode().0).is_ok());
    let impossible = [
        SegmentHeader { segment: 0, oldest: 0, ..segment_header() },
        SegmentHeader { segment: u32::MAX, ..segment_header() },
        SegmentHeader { epoch: 0, ..segment_header() },
        SegmentHeader { epoch: u32::MAX, ..segment_header() },
        SegmentHeader { oldest: 0, ..segment_header() },
        SegmentHeader { oldest: 4, ..segment_header() },
        SegmentHeader { first_seq: 0, ..segment_header() },
        SegmentHeader { first_seq: u64::MAX, ..segment_header() },
        SegmentHeader { previous_end: 0, ..segment_header() },
        SegmentHeader { previous_end: u64::from(SEGMENT_BYTES_LIMIT) + 1, ..segment_header() },
        SegmentHeader { previous_end: u64::MAX, ..segment_header() },
        SegmentHeader { previous_end: 512, ..first },
    ];
    for header in impossible {
        let decoded = SegmentHeader::decode(&header.encode().0);
        assert!(matches!(decoded, Err(HeaderError::Impossible(_))), "{header:?}: {decoded:?}");
    }
    let (mut bytes, _) = segment_header().encode();
    bytes[64] = 2;
    let checksum = xxh3_64(&bytes[..72]);
    bytes[72..80].copy_from_slice(&checksum.to_le_bytes());
    assert!(matches!(SegmentHeader::decode(&bytes), Err(HeaderError::Impossible(_))));
}

#[test]
fn another_format_is_distinguished_from_damage() {
    let (mut bytes, _) = segment_header().encode();
    bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Invalid));
    let checksum = xxh3_64(&bytes[..72]);
    bytes[72..80].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Version(FORMAT_VERSION + 1)));
    bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    let checksum = xxh3_64(&bytes[..64]);
    bytes[64..72].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Version(1)));
}

#[test]
fn a_frame_of_another_log_or_without_records_is_not_accepted() {
    let mut bytes = Vec::new();
    write(&batch(), header(), &mut bytes);
    assert!(decode(&bytes, seed()).is_some());
    // With the same magic, only the checksum distinguishes it.
    let other = FrameSeed(seed().0 ^ 1 << 40);
    assert_eq!(other.magic(), seed().magic());
    assert!(FrameHeader::decode(&bytes, Some(other)).is_some() && decode(&bytes, other).is_none());
    assert!(decode(&bytes, FrameSeed::of(TimelineId([0; 16]))).is_none());

    let mut bytes = Vec::new();
    write(&Batch::new(), header(), &mut bytes);
    assert!(decode(&bytes, seed()).is_none());
}

#[test]
fn no_flipped_bit_and_no_cut_passes_as_a_frame() {
    let mut bytes = Vec::new();
    write(&batch(), header(), &mut bytes);
    let covered = FRAME_HEADER_SIZE + decode(&bytes, seed()).unwrap().header.length as usize;
    for bit in 0..covered * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&flipped, seed()).is_none(), "bit {bit}");
    }
    for length in 0..covered {
        assert!(decode(&bytes[..length], seed()).is_none(), "cut at {length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_survive_their_bytes(
        records in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(any::<u8>(), 0..50), prop::collection::vec(any::<u8>(), 0..50),
             prop::collection::vec(any::<u8>(), 0..2_000)),
            1..20,
        ),
    ) {
        let mut batch = Batch::new();
        for (listed, key, meta, value) in &records {
            let flags = if *listed { Flags::IN_SEQ_INDEX } else { Flags::none() };
            match key.len() % 2 {
                0 => batch.push(flags, key, meta, value),
                _ => batch.push_bytes(flags, key, meta, value.clone().into()),
            }
        }
        let mut bytes = vec![0xAA; 16];
        let checksum = write(&batch, header(), &mut bytes);
        prop_assert_eq!(bytes.len() - 16, batch.size());
        let frame = decode(&bytes[16..], seed()).unwrap();
        prop_assert_eq!(frame.checksum, checksum);
        prop_assert_eq!(frame.records().count(), records.len());
        for (((location, found), range), (index, (_, key, meta, value))) in
            frame.records().zip(batch.ranges()).zip(records.iter().enumerate())
        {
            prop_assert_eq!(found.seq, Seq(7 + index as u64));
            prop_assert_eq!((found.key, found.meta, found.value), (&key[..], &meta[..], &value[..]));
            prop_assert_eq!(location.offset, range.start);
            let record = &bytes[16 + range.start as usize..16 + range.end as usize];
            let record = Record::decode(Bytes::copy_from_slice(record)).unwrap();
            prop_assert_eq!(record.value(), value.clone());
        }
        for ((flags, key, meta), (listed, expected_key, expected_meta, _)) in batch.records().zip(&records) {
            prop_assert_eq!(flags.has(Flags::IN_SEQ_INDEX), *listed);
            prop_assert_eq!((key, meta), (&expected_key[..], &expected_meta[..]));
        }
    }

    #[test]
    fn junk_is_not_accepted_as_a_frame_and_causes_no_panic(junk in prop::collection::vec(any::<u8>(), 0..200), magic in any::<bool>()) {
        let mut junk = junk;
        if magic && junk.len() > 4 {
            junk[..2].copy_from_slice(&seed().magic());
            junk[2..4].copy_from_slice(&[1, 0]);
        }
        prop_assert!(decode(&junk, seed()).is_none());
        prop_assert!(RecordRef::decode(&junk).is_err());
    }
}

#[test]
fn records_that_lie_back_to_back_are_found_one_after_another() {
    let mut frame = Vec::new();
    let mut batch = batch();
    batch.push(Flags::none(), b"another", b"m", &[5; 1000]);
    write(&batch, header(), &mut frame);
    let places: Vec<Range<u32>> = batch.ranges().collect();
    let end = places[2].end as usize;
    let all = Bytes::from(frame).slice(places[0].start as usize..end);
    // As they are copied one by one to another file.
    let mut copied = Vec::new();
    let mut rest = all.clone();
    let mut keys = Vec::new();
    while let Some((record, size)) = Record::decode_first(&rest) {
        let by_reference = RecordRef::decode(&rest).unwrap();
        assert_eq!((by_reference.size(), by_reference.checksum()), (size, record.checksum()));
        assert_eq!(record.bytes().len(), size);
        copied.extend_from_slice(record.bytes());
        keys.push(record.key().to_vec());
        rest = rest.slice(size..);
    }
    assert!(rest.is_empty());
    assert_eq!(copied, all);
    assert_eq!(keys, [&b"key"[..], b"gone", b"another"]);
    // A truncated or damaged record is not accepted.
    for end in 0..keys[0].len() + 28 {
        assert!(Record::decode_first(&all.slice(..end)).is_none());
    }
    for at in 0..places[0].len() {
        let mut damaged = all.to_vec();
        damaged[at] ^= 4;
        assert!(Record::decode_first(&Bytes::from(damaged)).is_none(), "byte {at}");
    }
}
