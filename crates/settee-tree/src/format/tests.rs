//! Golden bytes of the head, and the bytes that decoding refuses.

use super::*;

const INCARNATION: [u8; 16] = *b"0123456789abcdef";

fn record() -> RootRecord {
    RootRecord {
        seq: 0x0102,
        pointer: Some(Pointer { offset: 0x3000, length: 0x0fe1 }),
        level: 2,
        count: 1000,
        live_bytes: 0x9000,
        end: 0xd000,
        attachment: AttachmentPointer { offset: 0xc000, length: 17, checksum: 0x1122_3344_5566_7788 },
        summary: vec![0xaa, 0xbb],
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_header_has_these_bytes() {
    let header = encode_header(&INCARNATION);
    assert_eq!(header.len(), 4096);
    assert_eq!(hex(&header[..40]), GOLDEN_HEADER);
    assert!(header[36..].iter().all(|byte| *byte == 0));
    assert_eq!(decode_header(&header), Ok(INCARNATION));
}

#[test]
fn a_root_has_these_bytes() {
    let block = record().encode(&INCARNATION, SLOTS[1]);
    assert_eq!(block.len(), 4096);
    assert_eq!(hex(&block[..112]), GOLDEN_ROOT);
    assert!(block[106..].iter().all(|byte| *byte == 0));
    assert_eq!(RootRecord::decode(&block, SLOTS[1]), Some((record(), INCARNATION)));
    assert_eq!(RootRecord::decode(&block, SLOTS[0]), None, "another slot's");
}

#[test]
fn any_flipped_bit_of_a_head_block_is_detected() {
    let blocks = [(encode_header(&INCARNATION), 0), (record().encode(&INCARNATION, SLOTS[0]), SLOTS[0])];
    for (block, offset) in blocks {
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_header(&damaged), Err(BlockError::Invalid), "bit {bit}");
            assert_eq!(RootRecord::decode(&damaged, offset), None, "bit {bit}");
        }
    }
}

#[test]
fn a_later_version_is_reported() {
    let mut block = encode_header(&INCARNATION);
    block[32] = 9;
    seal(&mut block, 0);
    assert_eq!(decode_header(&block), Err(BlockError::Version(9)));
}

#[test]
fn a_root_that_contradicts_itself_is_refused() {
    let good = record();
    let far = Pointer { offset: good.end, ..good.pointer.unwrap() };
    let attachment = AttachmentPointer { offset: u64::MAX - 3, ..good.attachment };
    for bad in [
        RootRecord { pointer: None, ..good.clone() },
        RootRecord { pointer: Some(far), ..good.clone() },
        RootRecord { pointer: Some(Pointer { offset: 8, length: 99 }), ..good.clone() },
        RootRecord { end: 100, ..good.clone() },
        RootRecord { end: FILE_SIZE_MAX + 1, ..good.clone() },
        RootRecord { level: LEVEL_MAX + 1, ..good.clone() },
        RootRecord { attachment, ..good.clone() },
        RootRecord { count: 0, ..good.clone() },
    ] {
        let block = bad.encode(&INCARNATION, SLOTS[0]);
        assert_eq!(RootRecord::decode(&block, SLOTS[0]), None, "{bad:?}");
    }
}

#[test]
fn varints_come_back_and_long_ones_are_refused() {
    for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, value);
        bytes.push(0x55);
        let mut rest = &bytes[..];
        assert_eq!(take_varint(&mut rest), Some(value));
        assert_eq!(rest, [0x55]);
    }
    assert_eq!(take_varint(&mut &[0x80_u8; 5][..]), None);
    assert_eq!(take_varint(&mut &[0xff_u8; 12][..]), None);
    assert_eq!(take_varint(&mut &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2][..]), None);
}

const GOLDEN_HEADER: &str =
    "53455454454554524a8cd7e4fbb977bb303132333435363738396162636465660100000000000000";

const GOLDEN_ROOT: &str = concat!(
    "53455454454552543f609f4dcf3c7772303132333435363738396162636465660201000000000000e10f000600000000",
    "0200000000000000e803000000000000009000000000000000d000000000000000c00000000000008877665544332211",
    "1100000002000000aabb000000000000",
);
