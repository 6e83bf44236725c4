//! Goal: merging keeps the invariants for any paths in any order.
//! Method: random parts of a random tree of revisions, merged in any order, compared with the set of
//! revisions.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::documents::keys::encode_leaf_meta;
use crate::documents::leaf_value::{ENCODING_PLAIN, add_tail, is_tail_in_value};
use crate::documents::path::{decode_chunk, decode_chunk_count, encode_chunk, tail};

/// A tree's revisions, each with its parent. Revision `i` descends from an earlier one.
fn revisions(parents: &[usize]) -> Vec<(Revision, Option<usize>)> {
    revisions_of(parents, |_| 0)
}

/// As [`revisions`], with the kind of each revision's id: 0 is a hash, 1 a short text, another number the
/// size of a text.
fn revisions_of(parents: &[usize], kind: impl Fn(usize) -> usize) -> Vec<(Revision, Option<usize>)> {
    let mut made: Vec<(Revision, Option<usize>)> = Vec::new();
    for (index, parent) in parents.iter().enumerate() {
        let parent = (index > 0).then(|| parent % index);
        let generation = parent.map_or(1, |parent| made[parent].0.generation + 1);
        let mut hash = [0; 16];
        hash[..8].copy_from_slice(&(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
        hash[15] = index as u8;
        let id = match kind(index) {
            0 => hash.into(),
            size => RevisionId::parse(&format!("{:x<size$}", format!("{index}-"))).unwrap(),
        };
        made.push((Revision { generation, id }, parent));
    }
    made
}

fn leaf(made: &[(Revision, Option<usize>)], index: usize, depth: usize) -> TreeLeaf {
    let mut path = Vec::new();
    let mut at = Some(index);
    while let Some(index) = at.filter(|_| path.len() < depth.max(1)) {
        path.push(made[index].0.id.clone());
        at = made[index].1;
    }
    TreeLeaf::bare(made[index].0.generation, path)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn leaves_are_the_revisions_without_descendants(
        parents in prop::collection::vec(0..1_000_usize, 1..40),
        given in prop::collection::vec(0..1_000_usize, 1..20),
        kinds in prop::collection::vec(prop_oneof![Just(0), Just(1), 100..255_usize], 1..40),
    ) {
        let made = revisions_of(&parents, |index| kinds[index % kinds.len()]);
        let mut leaves = Vec::new();
        let mut known = BTreeSet::new();
        for index in given.iter().map(|index| index % made.len()) {
            let new = leaf(&made, index, usize::MAX);
            let is_new = merge(&mut leaves, new.clone());
            prop_assert_eq!(is_new, !known.contains(&new.revision));
            for (back, id) in new.path.iter().enumerate() {
                known.insert(Revision { generation: new.revision.generation - back as u32, id: id.clone() });
            }
        }
        let parents: BTreeMap<Revision, Option<Revision>> =
            made
                .iter()
                .map(|(revision, parent)| (revision.clone(), parent.map(|parent| made[parent].0.clone())))
                .collect();
        let inner: BTreeSet<Revision> = known.iter().filter_map(|revision| parents[revision].clone()).collect();
        let expected: BTreeSet<Revision> = known.difference(&inner).cloned().collect();
        prop_assert_eq!(leaves.iter().map(|leaf| leaf.revision.clone()).collect::<BTreeSet<_>>(), expected);
        for leaf in &leaves {
            prop_assert_eq!(leaf.path.len(), leaf.revision.generation as usize);
        }
    }

    #[test]
    fn chunks_and_tail_hold_the_complete_path(
        generation in 1..200_u32,
        known in 1..200_usize,
        content_bytes in prop_oneof![1..3_usize, 32_767..32_770_usize],
        out_of_line_bytes in prop_oneof![Just(0), any::<u32>()],
        kinds in prop_oneof![
            Just(vec![0]),
            prop::collection::vec(prop_oneof![Just(0), Just(1), 20..30_usize, 100..255_usize], 1..40),
        ],
    ) {
        let parents: Vec<usize> = (0..generation as usize).map(|index| index.saturating_sub(1)).collect();
        let made = revisions_of(&parents, |index| kinds[index % kinds.len()]);
        let leaf = leaf(&made, generation as usize - 1, known);
        let content = [vec![ENCODING_PLAIN], vec![b'x'; content_bytes - 1]].concat();
        let own_tail = tail(generation, &leaf.path);
        let has_tail_in_value = is_tail_in_value(generation, &leaf.path, content_bytes);
        prop_assert!(!has_tail_in_value || !own_tail.is_empty());
        let state = LeafState { has_tail_in_value, out_of_line_bytes, ..LeafState::default() };
        let in_meta = if has_tail_in_value { 1 } else { 1 + own_tail.len() };
        let meta = encode_leaf_meta(generation, &leaf.path[..in_meta], state);
        prop_assert!(meta.len() <= settee_store::META_SIZE_MAX);
        let decoded = LeafMeta::decode(&meta).unwrap();
        prop_assert_eq!(decoded.state, state);
        prop_assert_eq!(&decoded.revision, &leaf.revision);
        let mut path = decoded.path();
        prop_assert_eq!(path.len(), in_meta);
        if has_tail_in_value {
            let value = LeafValue::decode(add_tail(own_tail, &content).bytes()).unwrap();
            prop_assert_eq!(value.encoding, ENCODING_PLAIN);
            prop_assert_eq!(&value.rest[..], &content[1..]);
            path.extend(value.tail().unwrap());
        }
        let read = |ancestors: &[RevisionId]| {
            let (meta, value) = encode_chunk(ancestors);
            assert_eq!(decode_chunk_count(&meta), ancestors.len());
            decode_chunk(&meta, &value).unwrap()
        };
        for (chunk_revision, ancestors) in leaf.chunks() {
            prop_assert_eq!(chunk_revision.generation % PATH_CHUNK_COUNT, 0);
            prop_assert_eq!(&chunk_revision.id, path.last().unwrap());
            path.extend(read(ancestors));
        }
        prop_assert_eq!(path, leaf.path);
    }
}

#[test]
fn a_truncated_path_continues_with_the_path_it_joins() {
    let parents: Vec<usize> = (0..30_usize).map(|index| index.saturating_sub(1)).collect();
    let made = revisions(&parents);
    let mut leaves = vec![leaf(&made, 19, usize::MAX)];
    assert!(merge(&mut leaves, leaf(&made, 29, 11)));
    assert_eq!(leaves.len(), 1);
    assert_eq!(leaves[0].path, leaf(&made, 29, usize::MAX).path);
}
