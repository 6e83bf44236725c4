//! Reading many values of one file at once: the plans of [`crate::plan`], carried out.
//!
//! A [`ReadStream`] pulls values, sorted by offset, through the planner and starts each device
//! read as soon as it is final and there is room for it; values come out in order as slices of
//! the device reads' buffers. [`File::read_many`] is a stream without limits over a sorted copy,
//! put back in order.
//!
//! Invariants:
//! 1. Each value gets what a read of it alone would give: its bytes, or an error of its own. A
//!    device read that fails, fails the values that need it and no others.
//! 2. A stream holds no more device reads and bytes than its [`ReadAhead`] says, but for those
//!    that overlap the value to be handed out next.
//! 3. Dropping the future of [`ReadStream::next`] loses no value.
//!
//! Costs: a value is copied only where it lies across two device reads (see the planner's third
//! invariant); one allocation for each device read beside its buffer. A value keeps the whole
//! buffer that it is a slice of: who keeps a small one for long should copy it.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::iter::Fuse;
use std::ops::{Range, RangeInclusive};
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;

use crate::planner::Planner;
use crate::{DeviceRead, Error, File, ReadAt, ReadPolicy, Result, yield_now};

/// The default of how many device reads a [`ReadStream`] holds.
pub const READ_AHEAD_COUNT_MAX: usize = 32;

/// The default of how many bytes of device reads a [`ReadStream`] holds.
pub const READ_AHEAD_SIZE_MAX: usize = 4 << 20;

/// How many values a [`ReadStream`] has taken and not yet handed out. Matters where many lie
/// in the same few bytes, and so don't fill a device read.
const READ_AHEAD_VALUE_COUNT_MAX: usize = 16 << 10;

/// The largest value in bytes that gets a buffer before the file is known to be as long: a
/// garbled length costs no memory.
const UNCHECKED_SIZE_MAX: usize = 16 << 20;

/// How many bytes are copied out of the page cache before other tasks get their turn.
const IN_PLACE_SIZE_MAX: usize = 1 << 20;

/// What a [`ReadStream`] may hold at once: device reads in flight, and those read whose values
/// have not all been handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAhead {
    /// Device reads. 0 is as 1.
    pub count_max: usize,
    /// Bytes of device reads.
    pub size_max: usize,
}

impl Default for ReadAhead {
    fn default() -> ReadAhead {
        ReadAhead { count_max: READ_AHEAD_COUNT_MAX, size_max: READ_AHEAD_SIZE_MAX }
    }
}

impl File {
    /// Reads many values by few device reads, all submitted before the first is waited for.
    /// The results are in the order of `reads`, as slices of shared buffers. The buffers take
    /// what `reads` ask for together, rounded out by the policy: a caller with a long list takes
    /// [`File::read_stream`]. In direct mode each chunk of the alignment is read once, whatever
    /// the policy. Dropping the future abandons the reads.
    ///
    /// # Errors
    /// For each value by itself: [`Error::PastEnd`] where the file ends before the value does,
    /// else as [`File::read_at`].
    ///
    /// # Example
    /// A bulk reader: the values of an index, by as few device reads as there can be.
    /// ```
    /// use std::sync::Arc;
    /// use settee_io::{Engine, File, OpenMode, ReadAt, ReadPolicy, ThreadEngine, ThreadOptions, plan};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("values");
    /// let engine: Arc<dyn Engine> = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    /// let file = File::open(&engine, &path, OpenMode::CreateNew).await?;
    /// file.write_at(0, "a chair, a table and a settee".into()).await?;
    ///
    /// let index = [ReadAt::new(23, 6), ReadAt::new(0, 7), ReadAt::new(7, 9), ReadAt::new(27, 9)];
    /// assert_eq!(plan(&index, ReadPolicy::ADJACENT_ONLY).len(), 2);
    /// let values = file.read_many(&index, ReadPolicy::ADJACENT_ONLY).await;
    /// assert_eq!(values[0].as_ref().unwrap(), "settee");
    /// assert_eq!(values[1].as_ref().unwrap(), "a chair");
    /// assert_eq!(values[2].as_ref().unwrap(), ", a table");
    /// assert!(matches!(values[3], Err(settee_io::Error::PastEnd { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read_many<T>(&self, reads: &[ReadAt<T>], policy: ReadPolicy) -> Vec<Result<Bytes>> {
        if let Err(error) = self.check_open() {
            return reads.iter().map(|_| Err(error.clone())).collect();
        }
        let mut order: Vec<usize> = (0..reads.len()).collect();
        order.sort_unstable_by_key(|index| (reads[*index].offset, Reverse(reads[*index].length)));
        let sorted = order.into_iter().map(|index| {
            let ReadAt { offset, length, .. } = reads[index];
            ReadAt { offset, length, tag: index }
        });
        let unlimited = ReadAhead { count_max: usize::MAX, size_max: usize::MAX };
        let mut stream = ReadStream::new(self, sorted, policy, unlimited, usize::MAX);
        let mut values = vec![None; reads.len()];
        while let Some((index, value)) = stream.next().await {
            values[index] = Some(value);
        }
        values.into_iter().map(|value| value.expect("every value is handed out")).collect()
    }

    /// Reads a long list of values, sorted by offset, by few device reads of which some are
    /// under way ahead of what is handed out. See [`ReadStream::next`].
    ///
    /// # Example
    /// ```
    /// # use std::sync::Arc;
    /// # use settee_io::{Engine, File, OpenMode, ReadAhead, ReadAt, ReadPolicy, ThreadEngine, ThreadOptions};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let engine: Arc<dyn Engine> = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    /// # let file = File::open(&engine, &folder.path().join("records"), OpenMode::CreateNew).await?;
    /// file.write_at(0, (0..100u8).flat_map(|record| [record; 50]).collect()).await?;
    ///
    /// let records = (0..100u8).map(|record| ReadAt { offset: u64::from(record) * 50, length: 50, tag: record });
    /// let mut stream = file.read_stream(records, ReadPolicy::ADJACENT_ONLY, ReadAhead::default());
    /// let mut count = 0;
    /// while let Some((record, value)) = stream.next().await {
    ///     assert_eq!(value?, vec![record; 50]);
    ///     count += 1;
    /// }
    /// assert_eq!(count, 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_stream<T, I>(
        &self,
        reads: I,
        policy: ReadPolicy,
        ahead: ReadAhead,
    ) -> ReadStream<'_, T, I::IntoIter>
    where
        I: IntoIterator<Item = ReadAt<T>>,
    {
        ReadStream::new(self, reads.into_iter(), policy, ahead, READ_AHEAD_VALUE_COUNT_MAX)
    }
}

/// A value that was taken and not yet handed out.
struct Value<T> {
    read: ReadAt<T>,
    refused: Option<Error>,
}

impl<T> Value<T> {
    /// Its bytes in the file; `None` where nothing is to be read.
    fn range(&self) -> Option<Range<u64>> {
        if self.refused.is_some() || self.read.length == 0 { None } else { self.read.range() }
    }
}

/// A device read that was started.
struct Fetch<'a> {
    read: DeviceRead,
    state: FetchState<'a>,
}

enum FetchState<'a> {
    InFlight(Pin<Box<dyn Future<Output = Result<Bytes>> + Send + 'a>>),
    Done(Result<Bytes>),
}

impl<'a> Fetch<'a> {
    /// Submits the read, or reads in place what the page cache holds.
    async fn start(file: &'a File, read: DeviceRead) -> Fetch<'a> {
        let DeviceRead { offset, length, wanted } = read;
        let first = match file.read_cached(offset, length) {
            // It needs no future to be kept.
            Ok(first) if first.len() < wanted => first,
            done => return Fetch { read, state: FetchState::Done(done) },
        };
        let mut reading = Box::pin(file.read_behind(first, offset, length, wanted));
        // The first poll submits it.
        let state = match poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
            Poll::Ready(result) => FetchState::Done(result),
            Poll::Pending => FetchState::InFlight(reading),
        };
        Fetch { read, state }
    }

    async fn finish(&mut self) {
        if let FetchState::InFlight(reading) = &mut self.state {
            self.state = FetchState::Done(reading.await);
        }
    }

    /// What this read has of `range`: as much as it covers of it, or `None` where the file ended
    /// before.
    fn slice(&self, range: &Range<u64>) -> Option<Result<Bytes>> {
        let FetchState::Done(result) = &self.state else { unreachable!("it was waited for") };
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => return Some(Err(error.clone())),
        };
        let from = range.start.max(self.read.offset) - self.read.offset;
        let to = range.end.min(self.read.end()) - self.read.offset;
        (to <= bytes.len() as u64).then(|| Ok(bytes.slice(from as usize..to as usize)))
    }
}

/// Hands out values in order while later ones are being read. Made by [`File::read_stream`].
pub struct ReadStream<'a, T, I: Iterator<Item = ReadAt<T>>> {
    file: &'a File,
    reads: Fuse<I>,
    ahead: ReadAhead,
    value_count_max: usize,
    planner: Planner,
    /// Pulled from `reads`, and not yet pushed to the planner.
    pulled: Option<ReadAt<T>>,
    last_offset: u64,
    /// Final, and not yet started for want of room.
    waiting: Option<DeviceRead>,
    /// In order of their offsets, and of their ends.
    fetches: VecDeque<Fetch<'a>>,
    held_size: usize,
    values: VecDeque<Value<T>>,
}

impl<'a, T, I: Iterator<Item = ReadAt<T>>> ReadStream<'a, T, I> {
    fn new(
        file: &'a File,
        reads: I,
        policy: ReadPolicy,
        ahead: ReadAhead,
        value_count_max: usize,
    ) -> ReadStream<'a, T, I> {
        ReadStream {
            file,
            reads: reads.fuse(),
            ahead,
            value_count_max,
            planner: Planner::new(policy.for_mode(file.direct())),
            pulled: None,
            last_offset: 0,
            waiting: None,
            fetches: VecDeque::new(),
            held_size: 0,
            values: VecDeque::new(),
        }
    }

    /// The next value with its tag; `None` after the last. Starts as many device reads ahead as
    /// there is room for. Dropping the future loses nothing: the next call goes on.
    ///
    /// # Errors
    /// For each value by itself, as [`File::read_many`]. The stream goes on after an error.
    ///
    /// # Panics
    /// Where a value begins before the one that came before it.
    pub async fn next(&mut self) -> Option<(T, Result<Bytes>)> {
        self.fill().await;
        let range = self.values.front()?.range();
        let needed = range.as_ref().map(|range| self.needed_by(range));
        if let Some(needed) = needed.clone() {
            for fetch in self.fetches.range_mut(needed) {
                fetch.finish().await;
            }
        }
        let Value { read, refused } = self.values.pop_front()?;
        let result = match (refused, range.zip(needed)) {
            (Some(error), _) => Err(error),
            (None, Some((range, needed))) => self
                .assemble(&range, needed)
                .unwrap_or_else(|| Err(past_end(self.file, read.offset, read.length))),
            (None, None) => Ok(Bytes::new()),
        };
        Some((read.tag, result))
    }

    /// Pulls values and starts device reads until there is no room, or there are no more.
    async fn fill(&mut self) {
        let mut in_place_size = 0;
        loop {
            self.let_go();
            if let Some(read) = self.waiting {
                if !self.has_room_for(&read) && !self.front_waits() {
                    return;
                }
                let fetch = Fetch::start(self.file, read).await;
                if matches!(fetch.state, FetchState::Done(_)) {
                    in_place_size += read.length;
                }
                self.held_size += read.length;
                self.fetches.push_back(fetch);
                self.waiting = None;
                if in_place_size >= IN_PLACE_SIZE_MAX {
                    in_place_size = 0;
                    yield_now().await;
                }
            } else if self.values.len() >= self.value_count_max {
                // What is open is cut short only where nothing could be handed out otherwise.
                if !self.front_waits() {
                    return;
                }
                self.waiting = self.planner.seal();
            } else if !self.pull().await {
                self.waiting = self.planner.finish();
                if self.waiting.is_none() {
                    return;
                }
            }
        }
    }

    /// Takes the next value into the plan; `false` after the last.
    async fn pull(&mut self) -> bool {
        if self.pulled.is_none() {
            self.pulled = self.reads.next();
        }
        let Some(ReadAt { offset, length, .. }) = self.pulled else { return false };
        let refused = check(self.file, ReadAt::new(offset, length)).await.err();
        let Some(read) = self.pulled.take() else { return false };
        assert!(self.last_offset <= read.offset, "a stream's reads are sorted by offset");
        self.last_offset = read.offset;
        let value = Value { read, refused };
        if let Some(range) = value.range() {
            self.waiting = self.planner.push(range);
        }
        self.values.push_back(value);
        true
    }

    /// Drops the device reads that no value needs any more.
    fn let_go(&mut self) {
        let Some(front) = self.values.front() else { return };
        while let Some(fetch) = self.fetches.pop_front_if(|fetch| fetch.read.end() <= front.read.offset) {
            self.held_size -= fetch.read.length;
        }
    }

    fn has_room_for(&self, read: &DeviceRead) -> bool {
        self.fetches.len() < self.ahead.count_max
            && self.held_size.saturating_add(read.length) <= self.ahead.size_max
    }

    /// Whether the value to be handed out next needs a device read that wasn't started.
    fn front_waits(&self) -> bool {
        let started_end = self.fetches.back().map_or(0, |fetch| fetch.read.end());
        self.values.front().and_then(Value::range).is_some_and(|range| range.end > started_end)
    }

    /// Which of `fetches` have these bytes: one, or neighbours.
    fn needed_by(&self, range: &Range<u64>) -> RangeInclusive<usize> {
        let last = self.fetches.partition_point(|fetch| fetch.read.end() < range.end);
        let mut first = last;
        while self.fetches[first].read.offset > range.start {
            first -= 1;
        }
        first..=last
    }

    /// The value, or `None` where the file ended before it did.
    fn assemble(&self, value: &Range<u64>, needed: RangeInclusive<usize>) -> Option<Result<Bytes>> {
        if needed.start() == needed.end() {
            return self.fetches[*needed.start()].slice(value);
        }
        let mut joined = Vec::with_capacity((value.end - value.start) as usize);
        for fetch in self.fetches.range(needed) {
            match fetch.slice(value)? {
                Ok(part) => joined.extend_from_slice(&part),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(joined.into()))
    }
}

/// Whether the file may have the value, as far as can be told without reading it.
async fn check(file: &File, read: ReadAt) -> Result<()> {
    let past_end = || past_end(file, read.offset, read.length);
    if read.length == 0 {
        return Ok(());
    }
    let range = read.range().ok_or_else(past_end)?;
    if read.length > UNCHECKED_SIZE_MAX && file.length().await? < range.end {
        return Err(past_end());
    }
    Ok(())
}

fn past_end(file: &File, offset: u64, length: usize) -> Error {
    Error::PastEnd { path: file.path().clone(), offset, length }
}

#[cfg(test)]
mod tests;
