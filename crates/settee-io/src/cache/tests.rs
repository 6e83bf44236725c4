//! Goal: a cache keeps its limit and what is used, and drops a file's values with the file.

use super::*;

/// Values are their sizes.
fn cache(bytes_max: usize) -> Arc<Cache<usize>> {
    Arc::new(Cache::new(bytes_max, |size| *size))
}

fn file(cache: &Arc<Cache<usize>>) -> CachedFile<usize> {
    CachedFile::new(cache, u64::MAX)
}

#[test]
fn the_limit_holds_and_values_in_use_stay_longer() {
    let cache = cache(40 << 10);
    let file = file(&cache);
    file.insert(8, 1000);
    for position in 2..2000 {
        file.insert(position * 8, 100 + position as usize % 900);
        // Used before every insertion, it stays.
        assert_eq!(file.get(8), Some(1000), "{position}");
        let stats = cache.stats();
        assert!(stats.bytes <= stats.bytes_max && stats.bytes_max == 40 << 10, "{stats:?}");
    }
    let stats = cache.stats();
    assert!(stats.count < 900 && stats.bytes > 36 << 10, "{stats:?}");
    assert_eq!((stats.hit_count, stats.miss_count), (1998, 0));
}

#[test]
fn a_scan_evicts_nothing_that_is_used_again_and_again() {
    let cache = cache(1 << 20);
    let file = file(&cache);
    for _ in 0..5 {
        for position in (0..150).filter(|position| file.get(*position).is_none()) {
            file.insert(position, 4 << 10);
        }
    }
    for position in 1_000..11_000 {
        file.insert(position, 4 << 10);
    }
    let kept = (0..150).filter(|position| file.get(*position).is_some()).count();
    assert!(kept > 140, "{kept}");
}

#[test]
fn files_are_separate_and_removed_on_drop() {
    for position_count in [500, u64::MAX] {
        let cache = cache(64 << 20);
        let files = [(); 3].map(|()| CachedFile::new(&cache, position_count));
        for (number, file) in files.iter().enumerate() {
            (0..500).for_each(|position| file.insert(position, 10 + number));
        }
        let [first, second, third] = files;
        first.remove(0);
        assert_eq!((first.get(0), second.get(0)), (None, Some(11)));
        drop(second);
        assert_eq!(cache.stats().count, 999);
        assert!((1..500).all(|position| first.get(position) == Some(10) && third.get(position) == Some(12)));
        drop((first, third));
        assert_eq!((cache.stats().bytes, cache.stats().count), (0, 0));
    }
}

#[test]
fn a_cache_of_zero_bytes_caches_nothing() {
    let cache = cache(0);
    file(&cache).insert(8, 1);
    assert_eq!(cache.stats(), CacheStats::default());
}
