//! Goal: the bytes are those of `docs/format.md`, and no damaged bytes pass.
//! Method: golden bytes; every single-bit flip of a frame; proptest for round trips.

use proptest::prelude::*;

use super::*;

fn header() -> FrameHeader {
    FrameHeader {
        kind: FrameKind::Batch,
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
    batch.push(Flags::LISTED, b"key", b"meta", b"value");
    batch.push(Flags::TOMBSTONE, b"gone", b"", b"");
    batch
}

/// The batch's frame behind `bytes`.
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
fn a_frame_has_its_golden_bytes() {
    let mut bytes = Vec::new();
    write(&batch(), header(), &mut bytes);
    let golden = [
        "f75e 01 00 48000000 03000000 02000000 0700000000000000", // magic, kind, length, segment, epoch, first
        "02000000 00020000 6300000000000000 77695d2fb4bbb184",    // count, persisted, previous, checksum
        "223ba15eba92a6bd 0700000000000000 05000000 0400 0300 02000000", // checksum, seq, sizes, flags
        "6b6579 6d657461 76616c7565",
        "3b1a81f6a19f0579 0800000000000000 00000000 0000 0400 01000000 676f6e65",
    ];
    assert_eq!(hex(&bytes), golden.concat().replace(' ', ""));
}

#[test]
fn a_segment_header_has_its_golden_bytes() {
    let header = SegmentHeader {
        segment: 3,
        epoch: 2,
        oldest: 1,
        log_id: *b"0123456789abcdef",
        is_reused: true,
        first_seq: 7,
        previous_end: 4096,
        previous_checksum: 99,
    };
    let (bytes, checksum) = header.encode();
    let golden = [
        "5345545445454c47 02000000 03000000 02000000 01000000", // magic, version, segment, epoch, oldest
        "30313233343536373839616263646566 0700000000000000",    // log, first seq
        "0010000000000000 6300000000000000",                    // previous end and checksum
        "01000000 00000000 e0612592e3cfd365",                   // flags, checksum
    ];
    assert_eq!(hex(&bytes[..SEGMENT_HEADER_USED]), golden.concat().replace(' ', ""));
    assert!(bytes[SEGMENT_HEADER_USED..].iter().all(|byte| *byte == 0));
    assert_eq!(SegmentHeader::decode(&bytes), Ok((header, checksum)));
}

#[test]
fn another_format_is_told_from_damage() {
    let header = SegmentHeader {
        segment: 1,
        epoch: 1,
        oldest: 1,
        log_id: [0; 16],
        is_reused: false,
        first_seq: 1,
        previous_end: 0,
        previous_checksum: 0,
    };
    let (mut bytes, _) = header.encode();
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
fn no_flipped_bit_and_no_cut_passes_as_a_frame() {
    let mut bytes = Vec::new();
    write(&batch(), header(), &mut bytes);
    let covered = FRAME_HEADER_SIZE + Frame::decode(&bytes).unwrap().header.length as usize;
    for bit in 0..covered * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Frame::decode(&flipped).is_none(), "bit {bit}");
    }
    for length in 0..covered {
        assert!(Frame::decode(&bytes[..length]).is_none(), "cut at {length}");
    }
}

#[test]
fn an_extent_has_no_seq_and_is_found_by_the_record_that_refers_to_it() {
    let mut bytes = Vec::new();
    let value = Bytes::from(vec![7; 5_000]);
    let header = FrameHeader { kind: FrameKind::Extent, ..header() };
    write(&Batch::extent(value.clone()), header, &mut bytes);
    let frame = Frame::decode(&bytes).unwrap();
    let (offset, record) = frame.records().next().unwrap();
    assert_eq!((record.seq, record.value), (Seq(0), &value[..]));
    assert_eq!((frame.header.next_seq(), offset), (7, FRAME_HEADER_SIZE));
    // The same bytes as a batch are no frame: an extent never counts as a commit.
    bytes[2] = FrameKind::Batch as u8;
    assert!(Frame::decode(&bytes).is_none());

    let places =
        [Location { segment: 1, offset: 512, length: 5_028 }, Location { segment: 2, offset: 8, length: 9 }];
    let mut batch = Batch::new();
    batch.push_extents(Flags::LISTED, b"key", b"", &places);
    let mut bytes = Vec::new();
    write(&batch, self::header(), &mut bytes);
    let range = batch.ranges().next().unwrap();
    let record = Record::decode(Bytes::from(bytes).slice(range.start as usize..range.end as usize)).unwrap();
    assert_eq!(record.extents().unwrap(), places);
    assert!(record.flags().has(Flags::LISTED));
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
            let flags = if *listed { Flags::LISTED } else { Flags::none() };
            match key.len() % 2 {
                0 => batch.push(flags, key, meta, value),
                _ => batch.push_bytes(flags, key, meta, value.clone().into()),
            }
        }
        let mut bytes = vec![0xAA; 16];
        let checksum = write(&batch, header(), &mut bytes);
        prop_assert_eq!(bytes.len() - 16, batch.size());
        let frame = Frame::decode(&bytes[16..]).unwrap();
        prop_assert_eq!(frame.checksum, checksum);
        prop_assert_eq!(frame.records().count(), records.len());
        for (((offset, found), range), (index, (_, key, meta, value))) in
            frame.records().zip(batch.ranges()).zip(records.iter().enumerate())
        {
            prop_assert_eq!(found.seq, Seq(7 + index as u64));
            prop_assert_eq!((found.key, found.meta, found.value), (&key[..], &meta[..], &value[..]));
            prop_assert_eq!(offset, range.start as usize);
            let record = &bytes[16 + range.start as usize..16 + range.end as usize];
            let record = Record::decode(Bytes::copy_from_slice(record)).unwrap();
            prop_assert_eq!(record.value(), value.clone());
        }
        for ((flags, key, meta), (listed, expected_key, expected_meta, _)) in batch.records().zip(&records) {
            prop_assert_eq!(flags.has(Flags::LISTED), *listed);
            prop_assert_eq!((key, meta), (&expected_key[..], &expected_meta[..]));
        }
    }

    #[test]
    fn junk_is_no_frame_and_no_panic(junk in prop::collection::vec(any::<u8>(), 0..200), magic in any::<bool>()) {
        let mut junk = junk;
        if magic && junk.len() > 4 {
            junk[..4].copy_from_slice(&[0xF7, 0x5E, 1, 0]);
        }
        prop_assert!(Frame::decode(&junk).is_none());
        prop_assert!(RecordRef::decode(&junk).is_err());
    }
}
