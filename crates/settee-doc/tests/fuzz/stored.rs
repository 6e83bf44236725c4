//! Stored data: metas, values, tables of attachments, keys.

use bytes::Bytes;
use settee_sim::fuzz::{Target, check_json};

use crate::attachments::UnreferencedUpload;
use crate::documents::keys::{
    LeafMeta, LeafState, aggregate, chunk_key, decode_intent_key, decode_number, decode_path_key,
    decode_purge_key, describe, describe_name, encode_leaf_meta, encode_number, intent_key, path_key,
    path_prefix, purge_key,
};
use crate::documents::leaf_value::{LeafValue, add_tail, decode_table, encode_table};
use crate::documents::path::{decode_chunk, encode_chunk, has_texts};
use crate::documents::{Revision, RevisionId};

const HASHES: &str = "0123456789abcdefABCDEFGHIJKLMNOP";

pub(super) const STORED: Target = Target {
    name: "stored",
    check: stored,
    corpus: &[
        b"m\x40\x01\x00\x00\x000123456789abcdef",
        b"m\x47\x12\x00\x00\x000123456789abcdefABCDEFGHIJKLMNOP",
        b"m\x67\x12\x00\x00\x000123456789abcdef",
        b"m\x4c\x02\x00\x00\x00\x00\x00\x10\x000123456789abcdef",
        b"m\x50\x02\x00\x00\x00\x01b\x01a",
        b"m\x58\x02\x00\x00\x00\x00\x00\x10\x00\x100123456789abcdef\x00",
        b"v\x00\"a\":1",
        b"v\x04\x020123456789abcdefABCDEFGHIJKLMNOP\"a\":1",
        b"v\x05\x82\x01b\x01a\x02\x00\x00\x00[]",
        b"h\x020123456789abcdefABCDEFGHIJKLMNOP",
        b"h\x82\x01b\x01a",
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
    words: &[HASHES, "\u{1}b", "\u{10}", "m", "v", "h", "t", "k", "\"name\":", "\"revpos\":", "\"upload\":", "[", "]", "{}", ",", "d", "u", "g"],
    generate: |source| {
        let mut meta = b"m".to_vec();
        let flags = 64 + source.below(64) as u8;
        meta.push(flags);
        meta.extend_from_slice(&(source.below(40) as u32).to_le_bytes());
        if flags & 8 != 0 {
            meta.extend_from_slice(&(source.below(1 << 30) as u32).to_le_bytes());
        }
        for _ in 0..source.below(19) {
            let size = if flags & 16 != 0 { source.below(32) } else { 16 };
            if flags & 16 != 0 {
                meta.push(size as u8);
            }
            meta.extend_from_slice(&HASHES.as_bytes()[source.below(HASHES.len() - size + 1)..][..size]);
        }
        meta
    },
};

fn stored(input: &[u8]) -> bool {
    match input.split_first() {
        Some((b'm', meta)) => leaf_meta(meta),
        Some((b'v', value)) => leaf_value(value),
        Some((b'h', chunk)) => path_chunk(chunk),
        Some((b't', table)) => attachment_table(table),
        Some((b'k', key)) => any_key(key),
        Some((b'l', list)) => intent_list(list),
        _ => false,
    }
}

/// A decoded leaf's meta encodes to the same bytes, if its ids need their sizes.
fn leaf_meta(bytes: &[u8]) -> bool {
    let _ = aggregate(b"dx", bytes, 7);
    if let Ok(number) = decode_number(bytes) {
        assert_eq!(encode_number(number), bytes);
    }
    let Ok(meta) = LeafMeta::decode(bytes) else { return false };
    let generation = meta.revision.generation;
    let path = meta.path();
    assert_eq!(path[0], meta.revision.id);
    // An out-of-line body has its length behind the generation.
    let header_size = if bytes[0] & 8 == 0 { 5 } else { 9 };
    let has_sizes = bytes[0] & 16 != 0;
    let size: usize = path.iter().map(|id| id.as_bytes().len() + usize::from(has_sizes)).sum();
    assert!(path.len() <= generation as usize && size + header_size == bytes.len());
    assert!(path.len() == 1 || !meta.state.has_tail_in_value);
    let encoded = encode_leaf_meta(generation, &path, meta.state);
    // The highest flag has no meaning, and a body that is out of line is not empty.
    let has_length = meta.state.out_of_line_bytes > 0;
    if has_texts(&path) == has_sizes && has_length == (bytes[0] & 8 != 0) {
        assert_eq!(encoded, [&[bytes[0] & 127], &bytes[1..]].concat());
    }
    let decoded = LeafMeta::decode(&encoded).expect("it was encoded");
    let LeafState { deleted, .. } = meta.state;
    assert_eq!((bytes[0] & 1 != 0, decoded.state), (deleted, meta.state));
    assert_eq!((decoded.path(), decoded.revision), (path, meta.revision));
    true
}

/// A leaf's value is divided into its parts, of which it can be made again.
fn leaf_value(bytes: &[u8]) -> bool {
    let Ok(value) = LeafValue::decode(&Bytes::copy_from_slice(bytes)) else { return false };
    let content = [&[value.encoding], &value.rest[..]].concat();
    assert!(bytes.ends_with(&value.rest));
    assert_eq!(value.with_content(&content)[..], *bytes);
    let Ok(tail) = value.tail() else { return false };
    if tail.is_empty() {
        assert_eq!(content, bytes);
        return true;
    }
    let made = add_tail(&tail, &content);
    let decoded = LeafValue::decode(made.bytes()).expect("it was encoded");
    assert_eq!((decoded.tail().ok(), decoded.rest), (Some(tail), value.rest));
    true
}

/// A path chunk's ids are decoded unchanged.
fn path_chunk(bytes: &[u8]) -> bool {
    let Some((meta, value)) = bytes.split_first_chunk::<1>() else { return false };
    let Ok(ids) = decode_chunk(meta, value) else { return false };
    let (encoded_meta, encoded) = encode_chunk(&ids);
    assert_eq!(decode_chunk(&encoded_meta, &encoded).ok(), Some(ids.clone()));
    if has_texts(&ids) || meta[0] & 128 == 0 {
        assert_eq!(encoded, value);
    }
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
            let at = rest.len().saturating_sub(16 + rest.len() % 3);
            let Some((id, own)) = rest.split_at_checked(at) else { return false };
            let (id, Some(own)) = (String::from_utf8_lossy(id), RevisionId::from_bytes(own)) else {
                return false;
            };
            let revision = Revision { generation: rest.len() as u32 + 1, id: own };
            let prefix = path_prefix(&id);
            let made = path_key(&id, &revision);
            assert_eq!(decode_path_key(&made, &prefix).ok(), Some(revision.clone()));
            for end in prefix.len()..made.len() {
                assert!(
                    decode_path_key(&made[..end], &prefix).ok() != Some(revision.clone()),
                    "a key that was cut"
                );
            }
        }
        _ => return std::str::from_utf8(rest).is_ok(),
    }
    true
}
