//! The bound, and who goes.

use super::*;
use crate::run::Run;

fn node(level: u8, size: usize) -> Arc<Node> {
    let mut run = Run::default();
    run.push(b"key", &vec![0; size]);
    let mut bytes = Vec::new();
    run.encode(level, 0..1, &mut bytes);
    Arc::new(Node::decode_checked(bytes.into(), 0, level).unwrap())
}

#[test]
fn the_bound_holds_and_the_used_stay_longer() {
    let cache = NodeCache::new(40 << 10);
    let kept = node(0, 1000);
    cache.insert(1, 8, &kept);
    for offset in 2..2000 {
        cache.insert(1, offset * 8, &node(0, 100 + offset as usize % 900));
        // Used between any two, it stays.
        assert!(cache.get(1, 8).is_some(), "{offset}");
        let stats = cache.stats();
        assert!(stats.bytes <= stats.bytes_max && stats.bytes_max == 40 << 10, "{stats:?}");
    }
    let stats = cache.stats();
    assert!(stats.evicted_count > 1000 && stats.bytes > 36 << 10, "{stats:?}");
    assert_eq!((stats.hit_count, stats.miss_count), (1998, 0));
}

#[test]
fn inner_nodes_go_only_when_no_leaf_is_left() {
    let cache = NodeCache::new(20 << 10);
    for offset in 0..10 {
        cache.insert(1, offset, &node(1, 1000));
    }
    for offset in 100..200 {
        cache.insert(1, offset, &node(0, 1000));
    }
    assert!((0..10).all(|offset| cache.get(1, offset).is_some()));
    for offset in 200..300 {
        cache.insert(1, offset, &node(2, 1000));
    }
    let stats = cache.stats();
    assert!(stats.inner_count == stats.node_count && stats.bytes <= stats.bytes_max, "{stats:?}");
}

#[test]
fn trees_are_kept_apart_and_forgotten_by_themselves() {
    let cache = NodeCache::new(64 << 20);
    for tree in 0..3 {
        for offset in 0..500 {
            cache.insert(tree, offset * 8, &node(0, 10 + tree as usize));
        }
    }
    cache.remove(0, 0);
    assert!(cache.get(0, 0).is_none() && cache.get(1, 0).is_some());
    cache.remove_tree(1);
    assert_eq!(cache.stats().node_count, 999);
    assert!((0..500).all(|offset| cache.get(1, offset * 8).is_none() && cache.get(2, offset * 8).is_some()));
    cache.remove_tree(0);
    cache.remove_tree(2);
    assert_eq!((cache.stats().bytes, cache.stats().node_count), (0, 0));
}

#[test]
fn a_cache_of_nothing_keeps_nothing() {
    let cache = NodeCache::new(0);
    cache.insert(1, 8, &node(0, 1));
    assert_eq!(cache.stats(), CacheStats::default());
}
