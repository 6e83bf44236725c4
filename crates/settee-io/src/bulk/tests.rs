//! Goal: reading values together gives each the result of a single read, whatever the engine does, and holds
//! no more device reads than allowed.
//! Method: an engine in memory that reads short, fails ranges, and holds requests until the test releases
//! one. Results are compared with those of a plain loop over the same values.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use proptest::prelude::*;

use super::*;
use crate::engine::{Descriptor, Engine, Operation, Outcome, Request};
use crate::{Alignment, Merge, OpenMode, ThreadEngine, ThreadOptions, plan};

#[derive(Default)]
struct MemoryEngine {
    content: Vec<u8>,
    /// Reads of any byte in this range fail.
    bad: Range<u64>,
    reads_short: bool,
    holds: bool,
    state: Mutex<EngineState>,
}

#[derive(Default)]
struct EngineState {
    held: Vec<Request>,
    /// Offset and length of each read that was submitted.
    reads: Vec<(u64, usize)>,
    /// Largest number of reads, and of their bytes, held at once.
    held_count_most: usize,
    held_size_most: usize,
}

impl MemoryEngine {
    fn answer(&self, operation: Operation) -> io::Result<Outcome> {
        match operation {
            Operation::Open { .. } => Ok(Outcome::Opened(Descriptor::Simulated(Box::new(())))),
            Operation::Length { .. } => Ok(Outcome::Count(self.content.len() as u64)),
            Operation::Read { offset, mut buffer, .. } => {
                let memory = buffer.whole_mut();
                let end = offset + memory.len() as u64;
                if offset < self.bad.end && self.bad.start < end {
                    return Err(io::Error::other("a bad sector"));
                }
                let rest = self.content.get(offset as usize..).unwrap_or_default();
                let mut count = rest.len().min(memory.len());
                if self.reads_short && count > 1 {
                    count = 1 + (offset as usize * 31 + count) % count;
                }
                memory[..count].copy_from_slice(&rest[..count]);
                buffer.set_len(count);
                Ok(Outcome::Read { buffer })
            }
            other => panic!("no {} here", other.kind()),
        }
    }

    /// Completes one of the held requests; returns whether there was one.
    fn release_one(&self, choice: usize) -> bool {
        let mut state = self.state.lock().unwrap();
        if state.held.is_empty() {
            return false;
        }
        let index = choice % state.held.len();
        let request = state.held.swap_remove(index);
        drop(state);
        request.completion.complete(self.answer(request.operation));
        true
    }

    fn reads(&self) -> Vec<(u64, usize)> {
        self.state.lock().unwrap().reads.clone()
    }
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn submit(&self, request: Request) {
        let mut state = self.state.lock().unwrap();
        let Operation::Read { offset, buffer, .. } = &request.operation else {
            return request.completion.complete(self.answer(request.operation));
        };
        state.reads.push((*offset, buffer.capacity()));
        if !self.holds {
            return request.completion.complete(self.answer(request.operation));
        }
        state.held.push(request);
        let size = |request: &Request| match &request.operation {
            Operation::Read { buffer, .. } => buffer.capacity(),
            _ => 0,
        };
        state.held_count_most = state.held_count_most.max(state.held.len());
        state.held_size_most = state.held_size_most.max(state.held.iter().map(size).sum());
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        self.answer(operation)
    }
}

/// Runs the future to completion; whenever it waits, releases one of the held requests.
fn run_releasing<T>(engine: &MemoryEngine, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut idle_count = 0;
    for round in 0.. {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        // It may have yielded to other tasks, but not forever.
        idle_count = if engine.release_one(round * 7) { 0 } else { idle_count + 1 };
        assert!(idle_count < 100, "it waits although no request is held");
    }
    unreachable!("the loop doesn't end")
}

fn open(engine: &Arc<MemoryEngine>) -> File {
    let shared: Arc<dyn Engine> = engine.clone();
    run_releasing(engine, File::open(&shared, Path::new("file"), OpenMode::Read)).unwrap()
}

/// Bytes of which no two neighbours are equal, and no two chunks.
fn content(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + at / 256 * 13) as u8).collect()
}

fn value() -> impl Strategy<Value = ReadAt> {
    prop_oneof![
        12 => (0..5_500u64, 0..700usize).prop_map(|(offset, length)| ReadAt::new(offset, length)),
        4 => (0..60u64, 0..90usize).prop_map(|(step, length)| ReadAt::new(step * 90, length)),
        1 => (0..5_000u64, 0..6_000usize).prop_map(|(offset, length)| ReadAt::new(offset, length)),
        1 => (any::<u64>(), any::<usize>()).prop_map(|(offset, length)| ReadAt::new(offset, length)),
        1 => (any::<u64>(), 0..9usize).prop_map(|(offset, length)| ReadAt::new(offset, length)),
        1 => (0..5_500u64, any::<usize>()).prop_map(|(offset, length)| ReadAt::new(offset, length)),
    ]
}

fn values() -> impl Strategy<Value = Vec<ReadAt>> {
    prop::collection::vec(value(), 0..50)
}

fn policy() -> impl Strategy<Value = ReadPolicy> {
    let merge = prop_oneof![
        Just(Merge::AdjacentOnly),
        (0..10u32).prop_map(|shift| Merge::Chunked(Alignment::new(1 << shift).unwrap())),
    ];
    (merge, 0..1_500usize).prop_map(|(merge, read_size_max)| ReadPolicy { merge, read_size_max })
}

/// A result in a form that can be compared.
fn comparable(result: Result<Bytes>) -> std::result::Result<Bytes, String> {
    result.map_err(|error| error.to_string())
}

/// The result that follows from the content alone.
fn expected(content: &[u8], value: &ReadAt) -> std::result::Result<Bytes, String> {
    let ReadAt { offset, length, .. } = *value;
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(length));
    match end.and_then(|end| content.get(offset as usize..end)) {
        _ if length == 0 => Ok(Bytes::new()),
        Some(bytes) => Ok(Bytes::copy_from_slice(bytes)),
        None => {
            Err(comparable(Err(Error::PastEnd { path: Path::new("file").into(), offset, length }))
                .unwrap_err())
        }
    }
}

fn sorted(values: &[ReadAt]) -> Vec<ReadAt<usize>> {
    let mut sorted: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(tag, ReadAt { offset, length, .. })| ReadAt { offset: *offset, length: *length, tag })
        .collect();
    sorted.sort_by_key(|value| value.offset);
    sorted
}

/// The largest number of device reads of the plan, and of their bytes, that overlap one value.
fn most_for_one(values: &[ReadAt], policy: ReadPolicy) -> (usize, usize) {
    // Other values are refused before they are planned.
    let values: Vec<_> = values.iter().copied().filter(|value| value.length <= UNCHECKED_SIZE_MAX).collect();
    let device_reads = plan(&values, policy);
    let mut most = (0, 0);
    for range in values.iter().filter_map(ReadAt::range) {
        let overlapping =
            device_reads.iter().filter(|read| read.offset < range.end && range.start < read.end());
        let (count, size) = overlapping.fold((0, 0), |(count, size), read| (count + 1, size + read.length));
        most = (most.0.max(count), most.1.max(size));
    }
    most
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_read_together_equal_single_reads(
        size in 0..5_500usize,
        values in values(),
        policy in policy(),
        reads_short in any::<bool>(),
        holds in any::<bool>(),
    ) {
        let content = content(size);
        let engine =
            Arc::new(MemoryEngine { content: content.clone(), reads_short, holds, ..MemoryEngine::default() });
        let file = open(&engine);
        let found = run_releasing(&engine, file.read_many(&values, policy));
        prop_assert_eq!(found.len(), values.len());
        for (value, found) in values.iter().zip(found) {
            let found = comparable(found);
            prop_assert_eq!(&found, &expected(&content, value), "{:?}", value);
            // A single read allocates a buffer of the requested length, however large.
            if value.length < 10_000 && value.range().is_some() {
                let single = run_releasing(&engine, file.read_exact_at(value.offset, value.length));
                prop_assert_eq!(found, comparable(single));
            }
        }
    }

    #[test]
    fn a_stream_returns_all_values_in_order_within_its_limits(
        size in 0..5_500usize,
        values in values(),
        policy in policy(),
        reads_short in any::<bool>(),
        count_max in 0..6usize,
        size_max in 0..4_000usize,
        value_count_max in prop_oneof![1..6usize, Just(1_000)],
        drops in any::<bool>(),
    ) {
        let content = content(size);
        let engine = Arc::new(MemoryEngine {
            content: content.clone(),
            reads_short,
            holds: true,
            ..MemoryEngine::default()
        });
        let file = open(&engine);
        let sorted = sorted(&values);
        let ahead = ReadAhead { count_max, size_max };
        let mut stream = ReadStream::new(&file, sorted.iter().copied(), policy, ahead, value_count_max);
        let mut tags = Vec::new();
        loop {
            if drops {
                // Polled once and dropped: the next call returns the same value.
                let given = pin!(stream.next()).poll(&mut Context::from_waker(Waker::noop()));
                engine.release_one(tags.len());
                if let Poll::Ready(Some((tag, found))) = given {
                    prop_assert_eq!(comparable(found), expected(&content, &values[tag]));
                    tags.push(tag);
                }
            }
            let Some((tag, found)) = run_releasing(&engine, stream.next()) else { break };
            prop_assert_eq!(comparable(found), expected(&content, &values[tag]), "{:?}", values[tag]);
            tags.push(tag);
        }
        prop_assert_eq!(tags, sorted.iter().map(|value| value.tag).collect::<Vec<_>>());

        let state = engine.state.lock().unwrap();
        if value_count_max == 1_000 {
            let (count_one, size_one) = most_for_one(&values, policy);
            prop_assert!(state.held_count_most <= count_max.max(count_one), "{} held", state.held_count_most);
            prop_assert!(state.held_size_most <= size_max.max(size_one), "{} held", state.held_size_most);
        }
        if !reads_short && let Merge::Chunked(_) = policy.merge {
            let mut reads = state.reads.clone();
            // A later read at the end of the file only finds the end.
            reads.retain(|(offset, _)| *offset < size as u64);
            reads.sort_unstable();
            let apart = reads.windows(2).all(|pair| pair[0].0 + pair[0].1 as u64 <= pair[1].0);
            prop_assert!(apart, "a chunk is read again: {reads:?}");
        }
    }

    #[test]
    fn the_planned_device_reads_are_all_submitted_before_one_is_awaited(
        values in prop::collection::vec((0..5_000u64, 0..500usize), 0..50),
        policy in policy(),
    ) {
        let values: Vec<_> = values.into_iter().map(|(offset, length)| ReadAt::new(offset, length)).collect();
        // The file ends in the middle of the last chunk, if there are chunks.
        let end = values.iter().filter_map(ReadAt::range).map(|range| range.end).max().unwrap_or(0);
        let engine =
            Arc::new(MemoryEngine { content: content(end as usize), holds: true, ..MemoryEngine::default() });
        let file = open(&engine);
        let planned: Vec<_> =
            plan(&values, policy).iter().map(|read| (read.offset, read.length)).collect();
        let mut reading = pin!(file.read_many(&values, policy));
        let first = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        prop_assert_eq!(first.is_ready(), planned.is_empty());
        prop_assert_eq!(engine.reads(), &planned[..]);
        if first.is_pending() {
            run_releasing(&engine, reading);
            prop_assert_eq!(engine.reads(), planned, "the end of the file costs no read of its own");
        }
    }

    #[test]
    fn a_failing_device_read_fails_the_values_that_need_it_and_no_others(
        values in prop::collection::vec((0..5_000u64, 1..500usize), 1..50),
        policy in policy(),
        bad in (0..5_500u64, 1..300u64),
    ) {
        let values: Vec<_> = values.into_iter().map(|(offset, length)| ReadAt::new(offset, length)).collect();
        let content = content(5_500);
        let bad = bad.0..bad.0 + bad.1;
        let engine =
            Arc::new(MemoryEngine { content: content.clone(), bad: bad.clone(), ..MemoryEngine::default() });
        let file = open(&engine);
        let fails = |read: &&DeviceRead| read.offset < bad.end && bad.start < read.end();
        let device_reads = plan(&values, policy);
        for (value, found) in values.iter().zip(run_releasing(&engine, file.read_many(&values, policy))) {
            let range = value.range().unwrap();
            let (holding, failing) = match policy.merge {
                // Any device read that holds the value will do; mostly there is one.
                Merge::AdjacentOnly => {
                    let holds = |read: &&DeviceRead| read.offset <= range.start && range.end <= read.end();
                    let holding = device_reads.iter().filter(holds);
                    (holding.clone().count(), holding.filter(fails).count())
                }
                Merge::Chunked(_) => {
                    let overlaps = |read: &&DeviceRead| read.offset < range.end && range.start < read.end();
                    (1, device_reads.iter().filter(overlaps).filter(fails).count().min(1))
                }
            };
            match found {
                Ok(found) => {
                    prop_assert!(failing < holding, "{:?} got bytes of a failed read", value);
                    prop_assert_eq!(Ok(found), expected(&content, value));
                }
                Err(error) => {
                    prop_assert!(failing > 0, "{:?} failed with another's read", value);
                    prop_assert_eq!(error.operation(), Some(crate::OperationKind::Read));
                }
            }
        }
    }
}

#[test]
fn values_beyond_any_file_cost_no_memory_and_leave_their_neighbours_alone() {
    let engine = Arc::new(MemoryEngine { content: content(1_000), ..MemoryEngine::default() });
    let file = open(&engine);
    let values = [
        ReadAt::new(0, 10),
        ReadAt::new(5, usize::MAX),
        ReadAt::new(5, 1 << 50),
        ReadAt::new(u64::MAX, 1),
        ReadAt::new(i64::MAX as u64, 1),
        ReadAt::new(999, 2),
        ReadAt::new(u64::MAX, 0),
        ReadAt::new(999, 1),
    ];
    for policy in [ReadPolicy::ADJACENT_ONLY, ReadPolicy::chunked(Alignment::new(512).unwrap())] {
        let found = run_releasing(&engine, file.read_many(&values, policy));
        let past_end: Vec<_> =
            found.iter().map(|value| matches!(value, Err(Error::PastEnd { .. }))).collect();
        assert_eq!(past_end, [false, true, true, true, true, true, false, false]);
    }
    assert!(engine.reads().iter().all(|(_, length)| *length <= 1_024), "{:?}", engine.reads());
}

#[test]
fn values_of_one_device_read_are_slices_of_its_buffer_and_only_split_ones_are_copied() {
    let engine = Arc::new(MemoryEngine { content: content(4_096), ..MemoryEngine::default() });
    let file = open(&engine);
    let policy = ReadPolicy { read_size_max: 1_024, ..ReadPolicy::chunked(Alignment::new(512).unwrap()) };
    let values = [ReadAt::new(0, 1_000), ReadAt::new(10, 20), ReadAt::new(1_000, 100), ReadAt::new(1_100, 9)];
    let found: Vec<_> =
        run_releasing(&engine, file.read_many(&values, policy)).into_iter().map(Result::unwrap).collect();
    assert_eq!(engine.reads(), [(0, 1_024), (1_024, 512)]);
    assert_eq!(found[1].as_ptr(), found[0][10..].as_ptr(), "one buffer, two slices");
    assert_ne!(found[2].as_ptr(), found[0].as_ptr().wrapping_add(1_000), "a joined value is its own");
    assert_eq!(found[2], content(4_096)[1_000..1_100]);
}

#[test]
fn a_stream_reads_ahead_as_far_as_its_limits_allow() {
    let by_count = ReadAhead { count_max: 4, ..ReadAhead::default() };
    let by_size = ReadAhead { size_max: 4 * 100, ..ReadAhead::default() };
    for ahead in [by_count, by_size] {
        let engine =
            Arc::new(MemoryEngine { content: content(10_000), holds: true, ..MemoryEngine::default() });
        let file = open(&engine);
        let values = (0..50).map(|index| ReadAt::new(index * 200, 100));
        let mut stream = file.read_stream(values, ReadPolicy::ADJACENT_ONLY, ahead);
        for index in 0..50 {
            let next = run_releasing(&engine, stream.next());
            assert!(next.is_some_and(|(_, value)| value.is_ok()));
            assert_eq!(engine.reads().len(), (index + 4).min(50), "{ahead:?}");
        }
    }
}

#[test]
fn a_full_list_of_values_leaves_device_reads_large() {
    let engine = Arc::new(MemoryEngine { content: content(10_000), holds: true, ..MemoryEngine::default() });
    let file = open(&engine);
    let policy = ReadPolicy { read_size_max: 1_000, ..ReadPolicy::ADJACENT_ONLY };
    let values = (0..1_000).map(|index| ReadAt::new(index * 10, 10));
    let mut stream = ReadStream::new(&file, values, policy, ReadAhead::default(), 150);
    let mut count = 0;
    while let Some(((), value)) = run_releasing(&engine, stream.next()) {
        assert_eq!(value.unwrap(), content(10_000)[count * 10..][..10]);
        count += 1;
    }
    assert_eq!(count, 1_000);
    assert_eq!(engine.reads().len(), 10);
}

#[test]
fn a_closed_handle_refuses_every_value_and_a_stream_s_later_ones() {
    let engine = Arc::new(MemoryEngine { content: content(4_096), ..MemoryEngine::default() });
    let file = open(&engine);
    let values = [0, 2_000, 4_000].map(|offset| ReadAt::new(offset, 10));
    let ahead = ReadAhead { count_max: 1, ..ReadAhead::default() };
    let mut stream = file.read_stream(values, ReadPolicy::ADJACENT_ONLY, ahead);
    assert!(run_releasing(&engine, stream.next()).unwrap().1.is_ok());
    file.close();
    while let Some(((), value)) = run_releasing(&engine, stream.next()) {
        assert!(matches!(value, Err(Error::Closed { .. })), "{value:?}");
    }
    let found = run_releasing(
        &engine,
        file.read_many(&[ReadAt::new(0, 0), ReadAt::new(0, 10)], ReadPolicy::ADJACENT_ONLY),
    );
    assert!(found.iter().all(|value| matches!(value, Err(Error::Closed { .. }))), "{found:?}");
    assert_eq!(engine.reads().len(), 1);
}

#[test]
#[should_panic(expected = "sorted by offset")]
fn a_stream_that_goes_backwards_is_refused() {
    let engine = Arc::new(MemoryEngine { content: content(100), ..MemoryEngine::default() });
    let file = open(&engine);
    let values = [ReadAt::new(50, 0), ReadAt::new(0, 10)];
    let mut stream = file.read_stream(values, ReadPolicy::ADJACENT_ONLY, ReadAhead::default());
    run_releasing(&engine, stream.next());
}

#[tokio::test]
async fn values_of_a_system_file_are_read_by_a_future_that_moves_between_threads() {
    let directory = tempfile::tempdir().unwrap();
    let engine: Arc<dyn Engine> = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    let file = File::open(&engine, &directory.path().join("file"), OpenMode::CreateNew).await.unwrap();
    let content = content(3 << 20);
    file.write_at(0, content.clone().into()).await.unwrap();
    for policy in [ReadPolicy::ADJACENT_ONLY, ReadPolicy::chunked(Alignment::new(4_096).unwrap())] {
        let values: Vec<_> = (0..3_000).map(|index| ReadAt::new(index * 1_049, 900)).collect();
        fn sendable<T: Send>(value: T) -> T {
            value
        }
        let found = sendable(file.read_many(&values, policy)).await;
        for (value, found) in values.iter().zip(found) {
            let offset = value.offset as usize;
            match content.get(offset..offset + 900) {
                Some(bytes) => assert_eq!(found.unwrap(), bytes),
                None => assert!(matches!(found, Err(Error::PastEnd { .. }))),
            }
        }
    }
}
