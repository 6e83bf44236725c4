//! Goal: keys, metas and path chunks have the documented bytes.
//! Method: golden bytes, and malformed ones.

use super::*;
use bytes::Bytes;

use crate::documents::leaf_value::{LeafValue, add_tail};
use crate::documents::path::{decode_chunk, encode_chunk};

/// Ids by their texts.
fn ids<const N: usize>(texts: [&str; N]) -> Vec<RevisionId> {
    texts.map(|text| RevisionId::parse(text).unwrap()).to_vec()
}

fn hex(byte: u8) -> String {
    format!("{byte:02x}").repeat(HASH_SIZE)
}

#[test]
fn ids_have_the_documented_bytes() {
    // A path of hashes has no sizes.
    let state = LeafState { deleted: true, has_attachments: true, ..LeafState::default() };
    let meta = encode_leaf_meta(34, &ids([&hex(3), &hex(2), &hex(1)]), state);
    assert_eq!(meta, [&[69, 34, 0, 0, 0][..], &[3; 16], &[2; 16], &[1; 16]].concat());
    let (meta, value) = encode_chunk(&ids([&hex(2), &hex(1)]));
    assert_eq!((meta, value), ([2], [[2; 16], [1; 16]].concat()));

    let state = LeafState { has_conflicts: true, out_of_line_bytes: 7, ..LeafState::default() };
    let meta = encode_leaf_meta(4, &ids(["d", &hex(3), "", "é"]), state);
    let expected = [&[90, 4, 0, 0, 0, 7, 0, 0, 0, 1, b'd', 16][..], &[3; 16], &[0, 2, 0xC3, 0xA9]].concat();
    assert_eq!(meta, expected);
    assert_eq!(LeafMeta::decode(&meta).unwrap().path(), ids(["d", &hex(3), "", "é"]));
    let (meta, value) = encode_chunk(&ids(["b", "a"]));
    assert_eq!((meta, &value[..]), ([130], &b"\x01b\x01a"[..]));

    // A tail in the value: its number of ids and the ids follow the encoding byte.
    let state = LeafState { has_tail_in_value: true, ..LeafState::default() };
    assert_eq!(encode_leaf_meta(3, &ids([&hex(3)]), state), [&[96, 3, 0, 0, 0][..], &[3; 16]].concat());
    let value = add_tail(&ids([&hex(2), &hex(1)]), b"\0\"a\":1");
    assert_eq!(value.bytes()[..], [&[4, 2][..], &[2; 16], &[1; 16], b"\"a\":1"].concat());
    let value = add_tail(&ids(["b", "a"]), b"\x01table");
    assert_eq!(&value.bytes()[..], b"\x05\x82\x01b\x01atable");
    let decoded = LeafValue::decode(value.bytes()).unwrap();
    assert_eq!((decoded.encoding, &decoded.rest[..]), (1, &b"table"[..]));
    assert_eq!(decoded.tail().unwrap(), ids(["b", "a"]));
    assert_eq!(decoded.with_content(b"\0rest")[..], *b"\x04\x82\x01b\x01arest");

    let hash = Revision { generation: 3, id: [7; 16].into() };
    assert_eq!(conflict_key("ab", &hash), [&b"c\0\x02ab\0\0\0\x03"[..], &[7; 16]].concat());
    let text: Revision = "258-x".parse().unwrap();
    assert_eq!(path_key("ab", &text), b"p\0\x02ab\0\0\x01\x02x");
}

#[test]
fn malformed_metas_and_chunks_are_damage() {
    let invalid: [&[u8]; 11] = [
        b"",
        &[80, 1, 0, 0, 0],
        &[80, 1, 0, 0, 0, 2, b'a'],
        &[80, 1, 0, 0, 0, 1, 0xFF],
        &[80, 1, 0, 0, 0, 1, b'b', 1, b'a'],
        &[80, 0, 0, 0, 0, 1, b'a'],
        &[80, 2, 0, 0, 0, 1, b'b', 9],
        &[64, 1, 0, 0, 0, 1, 2, 3],
        &[[80, 1, 0, 0, 0, 32].as_slice(), &[b'a'; 32]].concat(),
        // An ancestor beside the flag of a tail in the value.
        &[112, 2, 0, 0, 0, 1, b'b', 1, b'a'],
        // The form of an earlier version.
        &[[0, 1, 0, 0, 0].as_slice(), &[7; 16]].concat(),
    ];
    for meta in invalid {
        assert!(LeafMeta::decode(meta).is_err(), "{meta:?}");
    }
    for (meta, value) in [([1], &b""[..]), ([129], b"\x02a"), ([1], b"123"), ([128 + 97], &[0; 97])] {
        assert!(decode_chunk(&meta, value).is_err(), "{value:?}");
    }
    for value in
        [&b""[..], b"\x03", b"\x04", b"\x04\x01123", b"\x04\x81\x02a", b"\x04\0", b"\x04\x81\x01\xFF"]
    {
        let decoded = LeafValue::decode(&Bytes::copy_from_slice(value));
        assert!(decoded.and_then(|value| value.tail()).is_err(), "{value:?}");
    }
}
