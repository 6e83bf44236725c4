//! Golden bytes of nodes, searching, and the bytes that decoding refuses.

use super::*;
use crate::reduction::Count;
use crate::run::Run;

const PLACE: u64 = 0x3008;

fn seed() -> Seed {
    Seed::new(b"0123456789abcdef")
}

fn node_of(level: u8, items: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut run = Run::default();
    for (key, payload) in items {
        run.push(key, payload);
    }
    let mut bytes = Vec::new();
    run.encode(level, 0..items.len(), &mut bytes);
    assert_eq!(bytes.len(), run.node_size(0..items.len()), "the size is known before");
    seal(&mut bytes, PLACE, seed());
    bytes
}

fn decode(bytes: &[u8], level: u8) -> Result<Node, &'static str> {
    let pointer = Pointer { offset: PLACE, length: bytes.len() as u16 };
    Node::decode(bytes, pointer, level, seed())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_leaf_has_these_bytes() {
    let leaf = node_of(0, &[(b"chair", b"four"), (b"chaise", b""), (b"chest", b"of drawers")]);
    assert_eq!(hex(&leaf), GOLDEN_LEAF);
}

#[test]
fn an_inner_node_has_these_bytes() {
    let child = |separator: &[u8], offset, count, summary| Child {
        separator: separator.to_vec(),
        pointer: Pointer { offset, length: 0x0ffd },
        count,
        live_bytes: 4096,
        summary,
    };
    let children = [child(b"", 0x3000, 90, 90_u64), child(b"m", 0x4000, 300, 300)];
    let encoded: Vec<_> = children
        .iter()
        .map(|child| {
            let mut payload = Vec::new();
            child.encode(&Count, &mut payload);
            (child.separator.clone(), payload)
        })
        .collect();
    let items: Vec<_> = encoded.iter().map(|(key, payload)| (&key[..], &payload[..])).collect();
    let bytes = node_of(3, &items);
    assert_eq!(hex(&bytes), GOLDEN_INNER);
    let node = decode(&bytes, 3).unwrap();
    for (index, child) in children.iter().enumerate() {
        assert_eq!(node.child(&Count, index).as_ref(), Some(child));
        assert_eq!(node.child_pointer(index), Some(child.pointer));
    }
}

/// Keys that share first bytes, are prefixes of each other, or end in zeros.
fn keys() -> Vec<Vec<u8>> {
    let mut keys = vec![vec![], vec![0], vec![0, 0], vec![0, 0, 0, 0], vec![0, 0, 0, 0, 0], vec![255; 9]];
    for number in 0..200_u32 {
        keys.push(format!("key{}", number * 7).into_bytes());
        keys.push((number * 3).to_be_bytes().to_vec());
    }
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn a_search_finds_each_key_and_where_others_would_be() {
    let keys = keys();
    for prefix in [&b""[..], b"a long common prefix"] {
        let stored: Vec<Vec<u8>> = keys.iter().step_by(2).map(|key| [prefix, key].concat()).collect();
        let items: Vec<_> = stored.iter().map(|key| (&key[..], &b"v"[..])).collect();
        let node = decode(&node_of(0, &items), 0).unwrap();
        let mut asked: Vec<Vec<u8>> = keys.iter().map(|key| [prefix, key].concat()).collect();
        asked.extend([vec![], b"a".to_vec(), b"b".to_vec(), b"a long common prefiw".to_vec()]);
        for key in &asked {
            assert_eq!(node.search(key), stored.binary_search(key), "{key:?}");
            for index in [0, 7, stored.len() - 1] {
                assert_eq!(node.compare(index, key), stored[index].cmp(key), "{key:?}");
            }
            for (bound, behind) in [(Bound::Included(&key[..]), true), (Bound::Excluded(&key[..]), false)] {
                let range = node.entries_in(Bound::Unbounded, bound);
                let expected = stored.partition_point(|other| other < key || behind && other == key);
                assert_eq!(range, 0..expected);
            }
        }
        for (index, key) in stored.iter().enumerate() {
            assert_eq!((&node.key(index), node.payload(index)), (key, &b"v"[..]));
        }
    }
}

#[test]
fn a_node_of_another_offset_level_or_tree_is_refused() {
    let bytes = node_of(0, &[(b"a", b"1"), (b"b", b"2")]);
    let pointer = Pointer { offset: PLACE, length: bytes.len() as u16 };
    assert!(Node::decode(&bytes, pointer, 0, seed()).is_ok());
    assert!(Node::decode(&bytes, pointer, 1, seed()).is_err());
    assert!(Node::decode(&bytes, Pointer { offset: PLACE + 8, ..pointer }, 0, seed()).is_err());
    assert!(Node::decode(&bytes, pointer, 0, Seed::new(&[7; 16])).is_err());
    assert!(Node::decode(&bytes[..bytes.len() - 1], pointer, 0, seed()).is_err());
    assert!(Node::decode(&[], Pointer { length: 0, ..pointer }, 0, seed()).is_err());
}

/// As if written by an adversary who can compute checksums: an error or some node, and no panic.
#[test]
fn malformed_bytes_with_a_valid_checksum_are_refused_without_a_panic() {
    let keys = keys();
    let items: Vec<_> =
        keys.iter().map(|key| (&key[..], &b"some payload, long enough"[..])).take(40).collect();
    let good = node_of(1, &items);
    let mut refused_count = 0;
    for at in 8..good.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            seal(&mut bytes, PLACE, seed());
            let Ok(node) = decode(&bytes, 1) else {
                refused_count += 1;
                continue;
            };
            for index in 0..node.len() {
                let _ = (node.key(index), node.child(&Count, index), node.search(&keys[index % keys.len()]));
            }
        }
    }
    assert!(refused_count > 100, "{refused_count}");
}

const GOLDEN_LEAF: &str = concat!(
    "72444242c557d8f4360003000200000163681800210027000300616972666f757204006169736503006573746f662064",
    "726177657273",
);

const GOLDEN_INNER: &str = concat!(
    "f0eea11b2ef4807d4000020000000302140029000000fd0f0006000000005a80205a0000000000000001006dfd0f0008",
    "00000000ac0280202c01000000000000",
);
