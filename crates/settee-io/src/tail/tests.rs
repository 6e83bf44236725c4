//! Goal: readers get exactly the published bytes, whichever way they were appended.
//! Method: random steps on a buffer and on a vector, in memory that was used before; one thread that appends
//! while others read. Loom tests the interleavings (`races.rs`).

use std::sync::atomic::{AtomicUsize as Count, Ordering};
use std::thread;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::{BUFFER_SIZE_MIN, PoolOptions};

#[derive(Debug, Clone)]
enum Step {
    Extend(Vec<u8>),
    Pad(usize),
    Publish,
    Read(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![0..300usize, Just(20_000)];
    prop_oneof![
        3 => length.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length)).prop_map(Step::Extend),
        1 => (0..5_000usize).prop_map(Step::Pad),
        3 => Just(Step::Publish),
        3 => (0..70_000usize, 0..70_000usize).prop_map(|(start, end)| Step::Read(start, end)),
    ]
}

/// A buffer whose memory holds another log's bytes.
fn used_buffer() -> TailBuffer {
    let pool = BufferPool::new(PoolOptions { bytes_max: BUFFER_SIZE_MIN });
    let mut buffer = pool.try_take(1).unwrap();
    buffer.extend(&[0xEE; BUFFER_SIZE_MIN]);
    buffer.publish();
    let address = buffer.reader().slice(0..1).unwrap().as_ptr();
    drop(buffer);
    let mut buffer = pool.try_take(1).unwrap();
    assert!(buffer.is_empty());
    assert_eq!(buffer.reader().published(), 0);
    assert_eq!(buffer.reader().copy(0..1), None);
    buffer.publish();
    assert_eq!(buffer.reader().slice(0..0).unwrap().len(), 0);
    assert_eq!(pool.stats().kept_bytes, 0, "not the memory at {address:?}");
    buffer
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn readers_get_exactly_the_published_bytes(steps in prop::collection::vec(step(), 0..40)) {
        let mut buffer = used_buffer();
        let reader = buffer.reader();
        let (mut model, mut published) = (Vec::new(), 0);
        for step in steps {
            let free = buffer.capacity() - model.len();
            match step {
                Step::Extend(bytes) if bytes.len() <= free => {
                    buffer.extend(&bytes);
                    model.extend_from_slice(&bytes);
                }
                Step::Pad(count) if count <= free => {
                    buffer.pad(count);
                    model.resize(model.len() + count, 0);
                }
                Step::Extend(_) | Step::Pad(_) => {}
                Step::Publish => {
                    buffer.publish();
                    published = model.len();
                }
                Step::Read(start, end) => {
                    let expected = if end <= published { model.get(start..end) } else { None };
                    for found in [reader.copy(start..end), reader.clone().slice(start..end)] {
                        prop_assert_eq!(found.as_deref(), expected);
                    }
                }
            }
            prop_assert_eq!((buffer.len(), buffer.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(reader.published(), published);
            prop_assert_eq!(reader.copy(0..published).unwrap(), &model[..published]);
            prop_assert_eq!(reader.slice(0..published + 1), None);
        }
        let whole = reader.slice(0..published).unwrap();
        drop(buffer);
        drop(reader);
        prop_assert_eq!(whole, &model[..published]);
    }
}

#[test]
fn a_range_beyond_the_published_bytes_is_refused() {
    let mut buffer = used_buffer();
    buffer.extend(b"published");
    buffer.publish();
    buffer.extend(b"not yet");
    let reader = buffer.reader();
    const MAX: usize = usize::MAX;
    for (start, end) in [(0, 10), (9, 10), (16, 16), (5, 4), (0, MAX), (MAX, MAX), (MAX, 0)] {
        let range = start..end;
        assert_eq!(reader.copy(range.clone()), None, "{range:?}");
        assert_eq!(reader.slice(range.clone()), None, "{range:?}");
    }
    assert_eq!(reader.copy(9..9).unwrap(), b""[..]);
    assert_eq!(reader.slice(3..9).unwrap(), b"lished"[..]);
}

#[test]
fn an_append_beyond_the_capacity_appends_nothing() {
    for by in [1, usize::MAX - 10] {
        let mut buffer = used_buffer();
        buffer.extend(b"what fits");
        let free = buffer.capacity() - buffer.len();
        let pad = std::panic::AssertUnwindSafe(|| buffer.pad(free.saturating_add(by)));
        assert!(std::panic::catch_unwind(pad).is_err());
        let bytes = vec![7; free + 1];
        let extend = std::panic::AssertUnwindSafe(|| {
            buffer.extend(&bytes);
        });
        assert!(std::panic::catch_unwind(extend).is_err());
        assert_eq!(buffer.len(), 9);
        buffer.extend(&bytes[1..]);
        buffer.publish();
        let content = buffer.reader().copy(0..buffer.capacity()).unwrap();
        assert_eq!((&content[..9], &content[9..]), (&b"what fits"[..], &bytes[1..]));
    }
}

#[test]
fn a_slice_is_not_a_copy_and_keeps_the_memory_leased() {
    let pool = BufferPool::new(PoolOptions { bytes_max: BUFFER_SIZE_MIN });
    let mut buffer = pool.try_take(1).unwrap();
    buffer.extend(&[1; 9_000]);
    buffer.publish();
    let reader = buffer.reader();
    let (whole, rest) = (reader.slice(0..9_000).unwrap(), reader.slice(4_096..8_192).unwrap());
    assert_eq!(whole.as_ptr().addr() % TAIL_ALIGNMENT, 0);
    assert_eq!(rest.as_ptr(), whole[4_096..].as_ptr(), "it was copied");
    assert_ne!(reader.copy(0..9_000).unwrap().as_ptr(), whole.as_ptr(), "it was not copied");

    let part = rest.slice(10..20);
    for held in
        [Box::new(buffer) as Box<dyn std::any::Any>, Box::new(reader), Box::new(whole), Box::new(rest)]
    {
        drop(held);
        assert_eq!(pool.stats().leased_bytes, BUFFER_SIZE_MIN);
        assert!(pool.try_take(1).is_none());
    }
    drop(part);
    assert_eq!((pool.stats().leased_bytes, pool.stats().kept_bytes), (0, BUFFER_SIZE_MIN));
}

/// The expected byte at `index`.
fn byte_at(index: usize) -> u8 {
    (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[1]
}

/// Reads until all of `capacity` is published, and returns slices taken meanwhile.
fn read_along(reader: &TailReader, capacity: usize, seed: u64) -> Vec<(usize, Bytes)> {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut seen, mut slices) = (0, Vec::new());
    loop {
        let published = reader.published();
        assert!(seen <= published && published <= capacity, "seed={seed}");
        seen = published;
        let end = random.random_range(0..=published);
        let start = random.random_range(end.saturating_sub(200)..=end);
        let bytes = reader.copy(start..end).expect("published");
        assert!(bytes.iter().zip(start..).all(|(byte, at)| *byte == byte_at(at)), "seed={seed}");
        if let Some(newest) = reader.copy(published..published + 1) {
            assert_eq!(newest[0], byte_at(published), "seed={seed}");
            assert!(reader.published() > published, "seed={seed}");
        }
        if slices.len() < 100 {
            slices.push((start, reader.slice(start..end).expect("published")));
        }
        if published == capacity {
            return slices;
        }
        // Lets the writer run, also on a single core.
        thread::yield_now();
    }
}

#[test]
fn readers_on_other_threads_see_exactly_the_published_bytes() {
    const READER_COUNT: u64 = 3;
    let reads = Count::new(0);
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut buffer = used_buffer();
        let capacity = buffer.capacity();
        let slices = thread::scope(|scope| {
            let readers: Vec<_> = (0..READER_COUNT)
                .map(|index| {
                    let reader = buffer.reader();
                    scope.spawn(move || read_along(&reader, capacity, seed * READER_COUNT + index))
                })
                .collect();
            while buffer.len() < capacity {
                let end = capacity.min(buffer.len() + random.random_range(0..500));
                let bytes: Vec<u8> = (buffer.len()..end).map(byte_at).collect();
                buffer.extend(&bytes);
                if random.random_range(0..3) == 0 {
                    buffer.publish();
                    thread::yield_now();
                }
            }
            buffer.publish();
            drop(buffer);
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        reads.fetch_add(slices.len(), Ordering::Relaxed);
        for (start, bytes) in slices {
            assert!(bytes.iter().zip(start..).all(|(byte, at)| *byte == byte_at(at)), "seed={seed}");
        }
    }
    assert!(reads.load(Ordering::Relaxed) > 0, "no slice was read");
}
