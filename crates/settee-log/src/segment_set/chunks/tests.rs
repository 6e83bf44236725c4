//! Goal: the chunk cache returns what was inserted for a file or nothing, and keeps its limit.
//! Method: run seeded inserts, reads and removals, and compare with the files' contents.

use settee_io::CACHE_ENTRY_BYTES;

use super::*;

fn byte_at(file: usize, offset: u64) -> u8 {
    ((offset * 31) as usize ^ (offset >> 12) as usize ^ (file * 97)) as u8
}

fn bytes_of(file: usize, range: Range<u64>) -> Vec<u8> {
    range.map(|offset| byte_at(file, offset)).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % count
    }
}

#[test]
fn a_cache_gives_what_was_put_there_or_nothing_and_keeps_its_bound() {
    for bytes_max in [0, 3_000, 100_000, 2 << 20] {
        let mut random = Random(bytes_max as u64 + 7);
        let cache = Arc::new(ChunkCache::new(bytes_max));
        let lengths = [100_000, 4_096, 5_000, 1, 70_000];
        let mut generation = 0;
        let mut files: Vec<(usize, FileChunks)> = Vec::new();
        for length in lengths {
            files.push((generation, FileChunks::new(&cache, length)));
            generation += 1;
        }
        let mut hit_count = 0_u64;
        for _ in 0..20_000 {
            let index = random.below(files.len() as u64) as usize;
            let (content, file) = &files[index];
            let length = lengths[index];
            let start = random.below(length);
            let range = start..(start + 1 + random.below(9_000)).min(length);
            match file.copy(&range) {
                Some(bytes) => {
                    assert_eq!(bytes, bytes_of(*content, range));
                    hit_count += 1;
                }
                None => {
                    let around = file.around(&range).expect("it is small enough");
                    assert!(around.start <= range.start && range.end <= around.end);
                    assert!(around.end <= length, "{around:?} of {length}");
                    file.insert(around.start, &bytes_of(*content, around.clone()), 0);
                    let big_enough = bytes_max >= 2 << 20;
                    assert!(!big_enough || file.copy(&range).is_some());
                }
            }
            if random.below(500) == 0 {
                // Another file replaces this one.
                files[index] = (generation, FileChunks::new(&cache, length));
                generation += 1;
                let whole = 0..length.min(CACHED_BYTES_MAX);
                assert_eq!(files[index].1.copy(&whole), None);
            }
            let stats = cache.stats();
            assert!(stats.bytes <= stats.bytes_max && stats.bytes_max <= bytes_max as u64, "{stats:?}");
        }
        let stats = cache.stats();
        // The last chunks of some files are so short that they fit the second cache.
        assert_eq!(hit_count > 1_000, bytes_max > 0, "{hit_count} hits, {stats:?}");
        let chunk_count: u64 = lengths.iter().map(|length| length.div_ceil(CHUNK_BYTES as u64)).sum();
        assert_eq!(stats.count < chunk_count, bytes_max < 2 << 20, "{stats:?}");
        drop(files);
        let stats = cache.stats();
        assert_eq!((stats.bytes, stats.count), (0, 0), "the chunks go with their files");
    }
}

#[test]
fn what_is_too_large_or_past_the_end_goes_past_the_cache() {
    let cache = Arc::new(ChunkCache::new(1 << 20));
    let file = FileChunks::new(&cache, 50_000);
    assert_eq!(file.around(&(0..CACHED_BYTES_MAX + 1)), None);
    assert_eq!(file.around(&(49_999..50_001)), None);
    assert_eq!(file.around(&(4_095..4_097)), Some(0..8_192));
    assert_eq!(file.around(&(49_000..49_001)), Some(45_056..49_152));
    assert_eq!(file.around(&(49_999..50_000)), Some(49_152..50_000));
    // A part of a chunk is not inserted.
    file.insert(0, &[1; 5_000], 0);
    assert_eq!(file.copy(&(0..10)), Some(vec![1; 10]));
    assert_eq!(file.copy(&(4_090..4_100)), None);
}

#[test]
fn what_is_used_outlasts_what_is_not() {
    let cache = Arc::new(ChunkCache::new(50 * (CHUNK_BYTES + CACHE_ENTRY_BYTES)));
    let file = FileChunks::new(&cache, 1 << 30);
    let chunk = |index: u64| index * CHUNK_BYTES as u64;
    (0..10).for_each(|index| file.insert(chunk(index), &[index as u8; CHUNK_BYTES], 0));
    for index in 10..5_000 {
        file.insert(chunk(index), &[0; CHUNK_BYTES], 0);
        if index % 10 == 0 {
            (0..10).for_each(|used| drop(file.copy(&(chunk(used)..chunk(used) + 1))));
        }
    }
    let kept = (0..10).filter(|used| file.copy(&(chunk(*used)..chunk(*used) + 1)).is_some()).count();
    assert_eq!(kept, 10);
}
