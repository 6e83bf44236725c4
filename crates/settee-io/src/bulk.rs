//! Bulk reads: executes the plans of [`crate::plan`] to read many values of one file.
//!
//! A [`ReadStream`] passes values, sorted by offset, through the planner and starts each device read as soon
//! as it is final and the limits allow it. Values are returned in order as slices of the device reads'
//! buffers. [`File::read_many`] runs a stream without limits over a sorted copy of its list and restores the
//! original order.
//!
//! Invariants:
//! 1. Each value gets the result of a single read: its bytes, or its own error. A failed device read fails
//!    the values that need it and no others.
//! 2. A stream holds no more device reads and bytes than its [`ReadAhead`] allows, except for those that
//!    overlap the next value to be returned.
//! 3. Dropping the future of [`ReadStream::next`] loses no value.
//!
//! Costs: a value is copied only if it spans two device reads (see the planner's third invariant). Each
//! device read costs one allocation besides its buffer. A value keeps the whole buffer that it is a slice of,
//! so a caller that keeps a small value for long should copy it.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::iter::Fuse;
use std::ops::{Range, RangeInclusive};
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;

use crate::{Error, File, Result, yield_now};

pub(crate) mod planner;

use planner::{DeviceRead, Planner, ReadAt, ReadPolicy};

/// Default number of device reads that a [`ReadStream`] holds.
pub const READ_AHEAD_COUNT_MAX: usize = 32;

/// Default number of bytes of device reads that a [`ReadStream`] holds.
pub const READ_AHEAD_SIZE_MAX: usize = 4 << 20;

/// Largest number of values that a [`ReadStream`] has planned and not yet returned. The limit takes effect if
/// many values lie in the same few bytes and so don't fill a device read.
const READ_AHEAD_VALUE_COUNT_MAX: usize = 16 << 10;

/// Largest value, in bytes, for which a buffer is allocated before the file's length is checked. So a corrupt
/// length costs no memory.
const UNCHECKED_SIZE_MAX: usize = 16 << 20;

/// Bytes copied from the page cache between two yields to other tasks.
const IN_PLACE_SIZE_MAX: usize = 1 << 20;

/// Limits of a [`ReadStream`] on the device reads that it holds: those in flight, and those finished whose
/// values have not all been returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAhead {
    /// Number of device reads. 0 means 1. Default: [`READ_AHEAD_COUNT_MAX`].
    pub count_max: usize,
    /// Bytes of device reads. Default: [`READ_AHEAD_SIZE_MAX`].
    pub size_max: usize,
}

impl Default for ReadAhead {
    fn default() -> ReadAhead {
        ReadAhead { count_max: READ_AHEAD_COUNT_MAX, size_max: READ_AHEAD_SIZE_MAX }
    }
}

impl File {
    /// Reads many values with few device reads, all of which are submitted before the first is awaited.
    /// Returns the results in the order of `reads`, as slices of shared buffers. The buffers hold all values
    /// of `reads` together, rounded out by the policy; for a long list use [`File::read_stream`]. In direct
    /// mode each chunk of the alignment is read once, whatever the policy. Dropping the future abandons the
    /// reads.
    ///
    /// # Errors
    /// Per value: [`Error::PastEnd`] if the file ends before the value does, else as [`File::read_at`].
    ///
    /// # Example
    /// The values of an index, read with as few device reads as possible.
    /// ```
    /// use std::sync::Arc;
    /// use settee_io::{Engine, File, OpenMode, ReadAt, ReadPolicy, ThreadEngine, ThreadOptions, plan};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("values");
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
        values.into_iter().map(|value| value.expect("the stream returns every value")).collect()
    }

    /// Reads a list of values of any length, sorted by offset, with few device reads, some of them ahead of the
    /// value returned. `read_ahead` limits the memory. See [`ReadStream::next`].
    ///
    /// # Example
    /// ```
    /// # use std::sync::Arc;
    /// # use settee_io::{Engine, File, OpenMode, ReadAhead, ReadAt, ReadPolicy, ThreadEngine, ThreadOptions};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let engine: Arc<dyn Engine> = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    /// # let file = File::open(&engine, &directory.path().join("records"), OpenMode::CreateNew).await?;
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
        read_ahead: ReadAhead,
    ) -> ReadStream<'_, T, I::IntoIter>
    where
        I: IntoIterator<Item = ReadAt<T>>,
    {
        ReadStream::new(self, reads.into_iter(), policy, read_ahead, READ_AHEAD_VALUE_COUNT_MAX)
    }
}

/// A value that was planned and not yet returned.
struct Value<T> {
    read: ReadAt<T>,
    /// Why it is not read.
    refused: Option<Error>,
}

impl<T> Value<T> {
    /// Returns its range in the file, or `None` if nothing is to be read.
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
    /// Submits the read, unless the page cache holds its bytes.
    async fn start(file: &'a File, read: DeviceRead) -> Fetch<'a> {
        let DeviceRead { offset, length, wanted } = read;
        let first = match file.read_cached(offset, length) {
            // Done without a future to keep.
            Ok(first) if first.len() < wanted => first,
            done => return Fetch { read, state: FetchState::Done(done) },
        };
        let mut pending = Box::pin(file.read_rest(first, offset, length, wanted));
        // The first poll submits it.
        let state = match poll_fn(|context| Poll::Ready(pending.as_mut().poll(context))).await {
            Poll::Ready(result) => FetchState::Done(result),
            Poll::Pending => FetchState::InFlight(pending),
        };
        Fetch { read, state }
    }

    async fn finish(&mut self) {
        if let FetchState::InFlight(pending) = &mut self.state {
            self.state = FetchState::Done(pending.await);
        }
    }

    /// Returns the part of `range` that this device read covers, or `None` if the file ended before it.
    fn slice(&self, range: &Range<u64>) -> Option<Result<Bytes>> {
        let FetchState::Done(result) = &self.state else { unreachable!("the read was awaited") };
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => return Some(Err(error.clone())),
        };
        let from = range.start.max(self.read.offset) - self.read.offset;
        let to = range.end.min(self.read.end()) - self.read.offset;
        (to <= bytes.len() as u64).then(|| Ok(bytes.slice(from as usize..to as usize)))
    }
}

/// Returns values in order while later ones are being read. Created by [`File::read_stream`].
pub struct ReadStream<'a, T, I: Iterator<Item = ReadAt<T>>> {
    file: &'a File,
    reads: Fuse<I>,
    read_ahead: ReadAhead,
    value_count_max: usize,
    planner: Planner,
    /// Taken from `reads` and not yet pushed to the planner.
    pulled: Option<ReadAt<T>>,
    last_offset: u64,
    /// Final in the plan, and not started yet because of the limits.
    unstarted: Option<DeviceRead>,
    /// In order of their offsets, which is also the order of their ends.
    fetches: VecDeque<Fetch<'a>>,
    /// Bytes of `fetches`.
    fetches_size: usize,
    values: VecDeque<Value<T>>,
}

impl<'a, T, I: Iterator<Item = ReadAt<T>>> ReadStream<'a, T, I> {
    fn new(
        file: &'a File,
        reads: I,
        policy: ReadPolicy,
        read_ahead: ReadAhead,
        value_count_max: usize,
    ) -> ReadStream<'a, T, I> {
        ReadStream {
            file,
            reads: reads.fuse(),
            read_ahead,
            value_count_max,
            planner: Planner::new(policy.for_mode(file.direct())),
            pulled: None,
            last_offset: 0,
            unstarted: None,
            fetches: VecDeque::new(),
            fetches_size: 0,
            values: VecDeque::new(),
        }
    }

    /// Returns the next value with its tag, or `None` after the last. Starts as many device reads ahead as
    /// the limits allow. Cancel-safe: the next call continues.
    ///
    /// # Errors
    /// Per value, as [`File::read_many`]. The stream continues after an error.
    ///
    /// # Panics
    /// If a value begins before its predecessor.
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

    /// Plans values and starts device reads until the limits are reached or no values are left.
    async fn fill(&mut self) {
        let mut in_place_size = 0;
        loop {
            self.drop_unneeded();
            if let Some(read) = self.unstarted {
                if !self.allows(&read) && !self.front_is_unstarted() {
                    return;
                }
                let fetch = Fetch::start(self.file, read).await;
                if matches!(fetch.state, FetchState::Done(_)) {
                    in_place_size += read.length;
                }
                self.fetches_size += read.length;
                self.fetches.push_back(fetch);
                self.unstarted = None;
                if in_place_size >= IN_PLACE_SIZE_MAX {
                    in_place_size = 0;
                    yield_now().await;
                }
            } else if self.values.len() >= self.value_count_max {
                // Ends the open device read early only if no value could be returned otherwise.
                if !self.front_is_unstarted() {
                    return;
                }
                self.unstarted = self.planner.seal();
            } else if !self.pull().await {
                self.unstarted = self.planner.finish();
                if self.unstarted.is_none() {
                    return;
                }
            }
        }
    }

    /// Adds the next value to the plan; returns `false` after the last.
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
            self.unstarted = self.planner.push(range);
        }
        self.values.push_back(value);
        true
    }

    /// Drops the device reads that no remaining value needs.
    fn drop_unneeded(&mut self) {
        let Some(front) = self.values.front() else { return };
        while let Some(fetch) = self.fetches.pop_front_if(|fetch| fetch.read.end() <= front.read.offset) {
            self.fetches_size -= fetch.read.length;
        }
    }

    /// Whether the limits allow another device read.
    fn allows(&self, read: &DeviceRead) -> bool {
        self.fetches.len() < self.read_ahead.count_max
            && self.fetches_size.saturating_add(read.length) <= self.read_ahead.size_max
    }

    /// Whether the next value needs a device read that was not started.
    fn front_is_unstarted(&self) -> bool {
        let started_end = self.fetches.back().map_or(0, |fetch| fetch.read.end());
        self.values.front().and_then(Value::range).is_some_and(|range| range.end > started_end)
    }

    /// Returns the indices of the neighbouring `fetches` that cover the range together.
    fn needed_by(&self, range: &Range<u64>) -> RangeInclusive<usize> {
        let last = self.fetches.partition_point(|fetch| fetch.read.end() < range.end);
        let mut first = last;
        while self.fetches[first].read.offset > range.start {
            first -= 1;
        }
        first..=last
    }

    /// Returns the value, or `None` if the file ended before it did.
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

/// Refuses a value that lies beyond the end of the file, as far as this shows without reading it.
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
