//! Goal: keys, metas and path chunks have the documented bytes.
//! Method: golden bytes, and malformed ones.

use super::*;
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
    let meta = encode_leaf_meta(18, &ids([&hex(3), &hex(2), &hex(1), &hex(0)]), true, false, true, 0);
    assert_eq!(meta, [&[5, 18, 0, 0, 0][..], &[3; 16], &[2; 16], &[1; 16]].concat());
    let (meta, value) = encode_chunk(&ids([&hex(2), &hex(1)]));
    assert_eq!((meta, value), ([2], [[2; 16], [1; 16]].concat()));

    let meta = encode_leaf_meta(4, &ids(["d", &hex(3), "", "é"]), false, true, false, 7);
    let expected = [&[26, 4, 0, 0, 0, 7, 0, 0, 0, 1, b'd', 16][..], &[3; 16], &[0, 2, 0xC3, 0xA9]].concat();
    assert_eq!(meta, expected);
    assert_eq!(LeafMeta::decode(&meta).unwrap().tail(), ids(["d", &hex(3), "", "é"]));
    let (meta, value) = encode_chunk(&ids(["b", "a"]));
    assert_eq!((meta, &value[..]), ([130], &b"\x01b\x01a"[..]));

    // A cut tail has only the leaf's own id.
    let long = "x".repeat(REVISION_ID_SIZE_MAX);
    let path = ids([&hex(3), &long, &long]);
    assert_eq!(
        encode_leaf_meta(3, &path, false, false, false, 0),
        [&[32, 3, 0, 0, 0][..], &[3; 16]].concat()
    );
    let fits = ids(["", "c", &long]);
    assert_eq!(encode_leaf_meta(3, &fits, false, false, false, 0)[..9], [16, 3, 0, 0, 0, 0, 1, b'c', 255]);

    let hash = Revision { generation: 3, id: [7; 16].into() };
    assert_eq!(conflict_key("ab", &hash), [&b"c\0\x02ab\0\0\0\x03"[..], &[7; 16]].concat());
    let text: Revision = "258-x".parse().unwrap();
    assert_eq!(path_key("ab", &text), b"p\0\x02ab\0\0\x01\x02x");
}

#[test]
fn malformed_metas_and_chunks_are_damage() {
    let invalid: [&[u8]; 9] = [
        b"",
        &[16, 1, 0, 0, 0],
        &[16, 1, 0, 0, 0, 2, b'a'],
        &[16, 1, 0, 0, 0, 1, 0xFF],
        &[16, 1, 0, 0, 0, 1, b'b', 1, b'a'],
        &[16, 0, 0, 0, 0, 1, b'a'],
        &[16, 2, 0, 0, 0, 1, b'b', 9],
        &[0, 1, 0, 0, 0, 1, 2, 3],
        &[[16, 1, 0, 0, 0, 32].as_slice(), &[b'a'; 32]].concat(),
    ];
    for meta in invalid {
        assert!(LeafMeta::decode(meta).is_err(), "{meta:?}");
    }
    for (meta, value) in [([1], &b""[..]), ([129], b"\x02a"), ([1], b"123"), ([128 + 17], &[0; 17])] {
        assert!(decode_chunk(&meta, value).is_err(), "{value:?}");
    }
}
