//! Goal: merging keeps the invariants for any paths in any order.
//! Method: random parts of a random tree of revisions, merged in any order, compared with the set of
//! revisions.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::documents::keys::encode_leaf_meta;

/// A tree's revisions, each with its parent. Revision `i` descends from an earlier one.
fn revisions(parents: &[usize]) -> Vec<(Revision, Option<usize>)> {
    let mut made: Vec<(Revision, Option<usize>)> = Vec::new();
    for (index, parent) in parents.iter().enumerate() {
        let parent = (index > 0).then(|| parent % index);
        let generation = parent.map_or(1, |parent| made[parent].0.generation + 1);
        let mut hash = [0; 16];
        hash[..8].copy_from_slice(&(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
        hash[15] = index as u8;
        made.push((Revision { generation, hash }, parent));
    }
    made
}

fn leaf(made: &[(Revision, Option<usize>)], index: usize, depth: usize) -> TreeLeaf {
    let mut path = Vec::new();
    let mut at = Some(index);
    while let Some(index) = at.filter(|_| path.len() < depth.max(1)) {
        path.push(made[index].0.hash);
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
    ) {
        let made = revisions(&parents);
        let mut leaves = Vec::new();
        let mut known = BTreeSet::new();
        for index in given.iter().map(|index| index % made.len()) {
            let new = leaf(&made, index, usize::MAX);
            let is_new = merge(&mut leaves, new.clone());
            prop_assert_eq!(is_new, !known.contains(&new.revision));
            for (back, hash) in new.path.iter().enumerate() {
                known.insert(Revision { generation: new.revision.generation - back as u32, hash: *hash });
            }
        }
        let parents: BTreeMap<Revision, Option<Revision>> =
            made.iter().map(|(revision, parent)| (*revision, parent.map(|parent| made[parent].0))).collect();
        let inner: BTreeSet<Revision> = known.iter().filter_map(|revision| parents[revision]).collect();
        let expected: BTreeSet<Revision> = known.difference(&inner).copied().collect();
        prop_assert_eq!(leaves.iter().map(|leaf| leaf.revision).collect::<BTreeSet<_>>(), expected);
        for leaf in &leaves {
            prop_assert_eq!(leaf.path.len(), leaf.revision.generation as usize);
        }
    }

    #[test]
    fn chunks_and_tail_hold_the_complete_path(
        generation in 1..200_u32,
        known in 1..200_usize,
        out_of_line_bytes in prop_oneof![Just(0), any::<u32>()],
    ) {
        let parents: Vec<usize> = (0..generation as usize).map(|index| index.saturating_sub(1)).collect();
        let made = revisions(&parents);
        let leaf = leaf(&made, generation as usize - 1, known);
        let meta = encode_leaf_meta(generation, &leaf.path, false, false, false, out_of_line_bytes);
        prop_assert!(meta.len() <= settee_store::META_SIZE_MAX);
        prop_assert_eq!(LeafMeta::decode(&meta).unwrap().out_of_line_bytes, out_of_line_bytes);
        let mut path = LeafMeta::decode(&meta).unwrap().tail();
        for (chunk_revision, ancestors) in leaf.chunks() {
            prop_assert_eq!(chunk_revision.generation % PATH_CHUNK_COUNT, 0);
            prop_assert_eq!(chunk_revision.hash, *path.last().unwrap());
            path.extend_from_slice(ancestors);
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
