//! The limit, and the order of eviction.

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
fn the_limit_holds_and_nodes_in_use_stay_longer() {
    let cache = Arc::new(NodeCache::new(40 << 10));
    let tree = TreeNodes::new(&cache);
    let kept = node(0, 1000);
    tree.insert(8, &kept);
    for offset in 2..2000 {
        tree.insert(offset * 8, &node(0, 100 + offset as usize % 900));
        // Used before every insertion, it stays.
        assert!(tree.get(8).is_some(), "{offset}");
        let stats = cache.stats();
        assert!(stats.bytes <= stats.bytes_max && stats.bytes_max == 40 << 10, "{stats:?}");
    }
    let stats = cache.stats();
    assert!(stats.evicted_count > 1000 && stats.bytes > 36 << 10, "{stats:?}");
    assert_eq!((stats.hit_count, stats.miss_count), (1998, 0));
}

#[test]
fn inner_nodes_are_evicted_only_without_leaves() {
    let cache = Arc::new(NodeCache::new(20 << 10));
    let tree = TreeNodes::new(&cache);
    for offset in 0..10 {
        tree.insert(offset, &node(1, 1000));
    }
    for offset in 100..200 {
        tree.insert(offset, &node(0, 1000));
    }
    assert!((0..10).all(|offset| tree.get(offset).is_some()));
    for offset in 200..300 {
        tree.insert(offset, &node(2, 1000));
    }
    let stats = cache.stats();
    assert!(stats.inner_count == stats.node_count && stats.bytes <= stats.bytes_max, "{stats:?}");
}

#[test]
fn trees_are_separate_and_removed_on_drop() {
    let cache = Arc::new(NodeCache::new(64 << 20));
    let [first, second, third] = [(); 3].map(|()| TreeNodes::new(&cache));
    for (size, tree) in [&first, &second, &third].into_iter().enumerate() {
        for offset in 0..500 {
            tree.insert(offset * 8, &node(0, 10 + size));
        }
    }
    first.remove(0);
    assert!(first.get(0).is_none() && second.get(0).is_some());
    let key = second.key(8);
    drop(second);
    assert_eq!(cache.stats().node_count, 999);
    assert!(cache.shard(key).get(key).is_none());
    assert!((1..500).all(|offset| first.get(offset * 8).is_some() && third.get(offset * 8).is_some()));
    drop((first, third));
    assert_eq!((cache.stats().bytes, cache.stats().node_count), (0, 0));
}

#[test]
fn a_cache_of_zero_bytes_caches_nothing() {
    let cache = Arc::new(NodeCache::new(0));
    let tree = TreeNodes::new(&cache);
    tree.insert(8, &node(0, 1));
    assert_eq!(cache.stats(), CacheStats::default());
}
