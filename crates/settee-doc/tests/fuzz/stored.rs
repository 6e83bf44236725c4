//! Stored data: metas, tables of attachments, keys.

use bytes::Bytes;
use settee_sim::fuzz::{Target, check_json};

use crate::attachments::UnreferencedUpload;
use crate::documents::Revision;
use crate::documents::keys::{
    LeafMeta, aggregate, chunk_boundary, chunk_key, decode_chunk_meta, decode_intent_key, decode_number,
    decode_path_key, decode_purge_key, describe, describe_name, encode_leaf_meta, encode_number, hashes,
    intent_key, path_key, path_prefix, purge_key,
};
use crate::documents::leaf_value::{decode_table, encode_table};

const HASHES: &str = "0123456789abcdefABCDEFGHIJKLMNOP";

pub(super) const STORED: Target = Target {
    name: "stored",
    check: stored,
    corpus: &[
        b"m\x00\x01\x00\x00\x000123456789abcdef",
        b"m\x07\x12\x00\x00\x000123456789abcdefABCDEFGHIJKLMNOP",
        b"m\x0c\x02\x00\x00\x00\x00\x00\x10\x000123456789abcdef",
        b"t\x02\x00\x00\x00[]\"a\":1",
        b"t\xd9\x00\x00\x00[{\"name\":\"a.txt\",\"content_type\":\"text/plain\",\"revpos\":1,\"digest\":\"00ff102030405060708090a0b0c0d0e0\",\"length\":5,\"gzip_length\":25,\"upload\":\"10ff102030405060708090a0b0c0d0e0\"}]\"a\":1",
        b"kdanna",
        b"klckpt",
        b"kc\x00\x01x\x00\x00\x00\x020123456789abcdef",
        b"kp\x00\x01x\x00\x00\x00\x100123456789abcdef",
        b"ka\x00\x01x0123456789abcdef\x00\x00\x00\x01",
        b"ku\x00\x01x0123456789abcdef",
        b"ksrevs_limit",
        b"kg\x00\x00\x00\x00\x00\x00\x00\x07",
        b"l0123456789abcdef\x02\x00\x00\x00ABCDEFGHIJKLMNOP\x00\x01\x00\x00",
    ],
    words: &[HASHES, "m", "t", "k", "\"name\":", "\"revpos\":", "\"upload\":", "[", "]", "{}", ",", "d", "u", "g"],
    generate: |source| {
        let mut meta = b"m".to_vec();
        let flags = source.below(16) as u8;
        meta.push(flags);
        meta.extend_from_slice(&(source.below(40) as u32).to_le_bytes());
        if flags & 8 != 0 {
            meta.extend_from_slice(&(source.below(1 << 30) as u32).to_le_bytes());
        }
        for _ in 0..source.below(19) {
            meta.extend_from_slice(&HASHES.as_bytes()[source.below(16)..][..16]);
        }
        meta
    },
};

fn stored(input: &[u8]) -> bool {
    match input.split_first() {
        Some((b'm', meta)) => leaf_meta(meta),
        Some((b't', table)) => attachment_table(table),
        Some((b'k', key)) => any_key(key),
        Some((b'l', list)) => intent_list(list),
        _ => false,
    }
}

/// A decoded leaf's meta encodes to the same bytes, as far back as a meta reaches.
fn leaf_meta(bytes: &[u8]) -> bool {
    let _ = (decode_chunk_meta(bytes), aggregate(b"dx", bytes, 7), hashes(bytes));
    if let Ok(number) = decode_number(bytes) {
        assert_eq!(encode_number(number), bytes);
    }
    let Ok(meta) = LeafMeta::decode(bytes) else { return false };
    let generation = meta.revision.generation;
    let tail = meta.tail();
    assert_eq!(tail[0], meta.revision.hash);
    // An out-of-line body has its length behind the generation.
    let header_size = if bytes[0] & 8 == 0 { 5 } else { 9 };
    assert!(tail.len() <= generation as usize && tail.len() * 16 + header_size == bytes.len());
    let (deleted, conflicts, attachments) = (meta.deleted(), meta.has_conflicts(), meta.has_attachments());
    let out_of_line_bytes = meta.out_of_line_bytes;
    let encoded = encode_leaf_meta(generation, &tail, deleted, conflicts, attachments, out_of_line_bytes);
    let kept = tail.len().min((generation - chunk_boundary(generation) + 1) as usize);
    let flags = bytes[0] & 7 | if out_of_line_bytes > 0 { 8 } else { 0 };
    let length = if out_of_line_bytes > 0 { &bytes[5..9] } else { &[] };
    let expected = [&[flags], &bytes[1..5], length, &bytes[header_size..header_size + kept * 16]].concat();
    assert_eq!(encoded, expected);
    let decoded = LeafMeta::decode(&encoded).expect("it was encoded");
    assert_eq!((decoded.revision, decoded.out_of_line_bytes), (meta.revision, out_of_line_bytes));
    assert_eq!(decoded.tail(), tail[..kept]);
    true
}

/// A table of attachments and the body behind it are decoded unchanged.
fn attachment_table(bytes: &[u8]) -> bool {
    let Ok((table, body)) = decode_table(&Bytes::copy_from_slice(bytes)) else { return false };
    assert!(bytes.ends_with(&body));
    let value = encode_table(&table, &body, 1);
    assert_eq!(decode_table(&value.slice(1..)).ok(), Some((table.clone(), body)));
    for attachment in &table {
        let mut text = b"{".to_vec();
        attachment.write_members(true, &mut text);
        text.push(b'}');
        assert!(check_json(&text).is_some(), "a stub is no JSON");
    }
    true
}

/// An upload intent's list is decoded unchanged.
fn intent_list(bytes: &[u8]) -> bool {
    let Ok(unreferenced) = UnreferencedUpload::from_list("x".into(), [7; 16], bytes) else { return false };
    assert_eq!(unreferenced.list(), bytes);
    true
}

/// A key is decoded to its parts; any other key has a description.
fn any_key(key: &[u8]) -> bool {
    assert!(!describe(key).is_empty() && !describe_name(key).is_empty());
    let Some((kind, rest)) = key.split_first() else { return false };
    let _ = aggregate(key, rest, 1);
    match kind {
        b'g' => {
            let Ok(number) = decode_purge_key(key) else { return false };
            assert_eq!(purge_key(number), key);
        }
        b'u' | b'a' => {
            let Ok((id, upload)) = decode_intent_key(key) else { return false };
            // An id that isn't UTF-8 is described with more bytes than it has.
            if id.contains(char::REPLACEMENT_CHARACTER) {
                return false;
            }
            assert_eq!(decode_intent_key(&intent_key(&id, &upload)).ok(), Some((id.clone(), upload)));
            assert!(chunk_key(&id, &upload, 7).starts_with(&[b"a", &intent_key(&id, &upload)[1..]].concat()));
        }
        b'p' => {
            let Some((id, hash)) = rest.split_at_checked(rest.len().saturating_sub(16)) else { return false };
            let (id, Ok(hash)) = (String::from_utf8_lossy(id), hash.try_into()) else { return false };
            let revision = Revision { generation: rest.len() as u32 + 1, hash };
            let prefix = path_prefix(&id);
            let made = path_key(&id, revision);
            assert_eq!(decode_path_key(&made, &prefix).ok(), Some(revision));
            for end in prefix.len()..made.len() {
                assert!(decode_path_key(&made[..end], &prefix).is_err(), "a key that was cut");
            }
        }
        _ => return std::str::from_utf8(rest).is_ok(),
    }
    true
}
