//! The appender: writes nodes to the file in large aligned writes, several in flight.
//!
//! One [`Appender`] at a time holds the [`Writer`]. Each begins at a multiple of [`BLOCK_SIZE`] and pads its
//! last write to one, so that no block is written twice.
//!
//! Invariants:
//! 1. The file's end moves past a write before the write begins: writes in flight of a dropped appender land
//!    where nothing else is ever written.
//! 2. Appended bytes can be read from memory until their write has completed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{AlignedBuffer, Alignment, Error, OperationKind};
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::error::TreeError;
use crate::format::{BLOCK_SIZE, FILE_SIZE_MAX, NODE_ALIGNMENT, Pointer};
use crate::node::{self, Child, ChildRecord, Node};
use crate::reduction::Reduction;
use crate::run::Run;
use crate::shared::Shared;

/// Largest number of writes of an update or a load in flight.
const WRITES_IN_FLIGHT_MAX: usize = 4;

const ALIGNMENT: Alignment = match Alignment::new(BLOCK_SIZE as usize) {
    Ok(alignment) => alignment,
    Err(_) => panic!("a block is a power of two"),
};

/// State of the writing side. Its lock serializes updates and commits.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// The first failure.
    pub(crate) stopped: Option<Arc<Error>>,
    /// The last `seq` that was or may have been committed.
    pub(crate) last_seq: u64,
    /// The slot that the next commit writes.
    pub(crate) next_slot: usize,
}

impl Writer {
    pub(crate) fn check(&self) -> Result<(), TreeError> {
        match &self.stopped {
            Some(source) => Err(TreeError::Stopped { source: source.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses every later update and commit.
    pub(crate) fn stop(&mut self, error: Error) -> TreeError {
        let source = self.stopped.get_or_insert_with(|| Arc::new(error)).clone();
        TreeError::Stopped { source }
    }

    /// As [`Writer::stop`], during a commit.
    pub(crate) fn fail_commit(&mut self, error: Error) -> TreeError {
        self.stopped = None;
        self.stop(error)
    }

    /// The error of a failed write of bytes that nothing refers to yet: without disk space it is a refusal,
    /// everything else stops the tree.
    fn fail(&mut self, error: Error) -> TreeError {
        if error.is_no_space() && error.operation() == Some(OperationKind::Write) {
            TreeError::NoSpace { source: Arc::new(error) }
        } else {
            self.stop(error)
        }
    }
}

pub(crate) type WriterGuard = OwnedMutexGuard<Writer>;

/// Appends to a tree's file.
pub(crate) struct Appender<R: Reduction> {
    shared: Arc<Shared<R>>,
    writer: WriterGuard,
    buffer: AlignedBuffer,
    /// File offset of the buffer's first byte.
    base: u64,
    in_flight: VecDeque<InFlight>,
    /// Buffer for the node that is being encoded.
    node: Vec<u8>,
}

struct InFlight {
    offset: u64,
    bytes: Bytes,
    done: oneshot::Receiver<settee_io::Result<()>>,
}

impl<R: Reduction> Appender<R> {
    /// # Errors
    /// [`TreeError::Stopped`].
    pub(crate) fn new(shared: &Arc<Shared<R>>, writer: WriterGuard) -> Result<Appender<R>, TreeError> {
        writer.check()?;
        let buffer = AlignedBuffer::new(shared.options.write_buffer_bytes, ALIGNMENT);
        let base = shared.end().next_multiple_of(BLOCK_SIZE);
        Ok(Appender {
            shared: shared.clone(),
            writer,
            buffer,
            base,
            in_flight: VecDeque::new(),
            node: Vec::new(),
        })
    }

    /// The file offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.base + self.buffer.len() as u64
    }

    /// Appends an unsealed node, and leaves its bytes sealed.
    pub(crate) async fn append_node(&mut self, bytes: &mut [u8]) -> Result<Pointer, TreeError> {
        let offset = self.position();
        let length = u16::try_from(bytes.len()).expect("a node's size has 16 bits");
        let pointer = Pointer { offset, length };
        node::seal(bytes, offset, self.shared.seed);
        self.append(bytes).await?;
        let padding = pointer.aligned_length() - u64::from(length);
        self.append(&[0; NODE_ALIGNMENT as usize][..padding as usize]).await?;
        Ok(pointer)
    }

    /// Appends bytes at [`Appender::position`].
    pub(crate) async fn append(&mut self, mut bytes: &[u8]) -> Result<(), TreeError> {
        loop {
            let count = self.buffer.append(bytes);
            bytes = &bytes[count..];
            if bytes.is_empty() && self.buffer.len() < self.buffer.capacity() {
                return Ok(());
            }
            self.write_buffer().await?;
        }
    }

    /// A node that was appended and may not be in the file yet.
    pub(crate) fn find(&self, pointer: Pointer, level: u8) -> Option<Arc<Node>> {
        let first = self.in_flight.front().map_or(self.base, |write| write.offset);
        if pointer.offset < first || pointer.end() > self.position() {
            return None;
        }
        let mut bytes = Vec::with_capacity(usize::from(pointer.length));
        let parts = self.in_flight.iter().map(|write| (write.offset, &write.bytes[..]));
        for (offset, part) in parts.chain([(self.base, &self.buffer[..])]) {
            let from = pointer.offset.max(offset);
            let to = pointer.end().min(offset + part.len() as u64);
            if from < to {
                bytes.extend_from_slice(&part[(from - offset) as usize..(to - offset) as usize]);
            }
        }
        Node::decode(&bytes, pointer, level, self.shared.seed).ok().map(Arc::new)
    }

    /// Starts writing the buffer, whose size is a multiple of [`BLOCK_SIZE`].
    async fn write_buffer(&mut self) -> Result<(), TreeError> {
        while self.in_flight.len() >= WRITES_IN_FLIGHT_MAX {
            self.wait_for_first().await?;
        }
        let capacity = self.buffer.capacity();
        let bytes = Bytes::from(std::mem::replace(&mut self.buffer, AlignedBuffer::new(capacity, ALIGNMENT)));
        let offset = self.base;
        let end = offset + bytes.len() as u64;
        assert!(end <= FILE_SIZE_MAX, "a tree's file of more than {FILE_SIZE_MAX} bytes");
        self.base = end;
        self.shared.set_end(end);
        let (sender, done) = oneshot::channel();
        self.shared.file.begin_write(offset, bytes.clone(), false, move |result| drop(sender.send(result)));
        self.in_flight.push_back(InFlight { offset, bytes, done });
        Ok(())
    }

    async fn wait_for_first(&mut self) -> Result<(), TreeError> {
        let Some(first) = self.in_flight.front_mut() else { return Ok(()) };
        let result = match (&mut first.done).await {
            Ok(result) => result,
            // The engine was dropped with the write.
            Err(_) => Err(Error::Closed { path: self.shared.file.path().clone() }),
        };
        self.in_flight.pop_front();
        result.map_err(|error| self.writer.fail(error))
    }

    /// Pads and writes the rest, and waits until the kernel has all writes. Returns the writer and the file's
    /// end.
    pub(crate) async fn finish(mut self) -> Result<(WriterGuard, u64), TreeError> {
        let padding = self.position().next_multiple_of(BLOCK_SIZE) - self.position();
        self.append(&[0; BLOCK_SIZE as usize][..padding as usize]).await?;
        if !self.buffer.is_empty() {
            self.write_buffer().await?;
        }
        while !self.in_flight.is_empty() {
            self.wait_for_first().await?;
        }
        Ok((self.writer, self.base))
    }
}

impl<R: Reduction> Appender<R> {
    /// Appends a node of some of a run's items, and returns the parent's item for it. `keep` puts the node
    /// into the cache.
    pub(crate) async fn append_items(
        &mut self,
        run: &Run,
        level: u8,
        items: Range<usize>,
        separator: Vec<u8>,
        keep: bool,
    ) -> Result<Child<R::Summary>, TreeError> {
        let mut bytes = std::mem::take(&mut self.node);
        bytes.clear();
        run.encode(level, items.clone(), &mut bytes);
        let pointer = self.append_node(&mut bytes).await?;
        if keep {
            let node = Node::decode_checked(bytes.as_slice().into(), pointer.offset, level)
                .expect("it was just encoded");
            self.shared.insert_cached(pointer, &Arc::new(node));
        }
        self.node = bytes;
        let totals = self.reduce(run, level, items).ok_or_else(|| {
            // The items were copied from another node.
            self.shared.malformed_item(pointer.offset)
        })?;
        let live_bytes = totals.live_bytes + pointer.aligned_length();
        Ok(Child { separator, pointer, count: totals.count, live_bytes, summary: totals.summary })
    }

    /// The totals of these items; their `pointer` is meaningless.
    fn reduce(&self, run: &Run, level: u8, items: Range<usize>) -> Option<ChildRecord<R::Summary>> {
        let reduction = &self.shared.reduction;
        let pointer = Pointer { offset: 0, length: 0 };
        let mut all = ChildRecord { pointer, count: 0, live_bytes: 0, summary: reduction.zero() };
        for index in items {
            if level == 0 {
                all.count += 1;
                let of = reduction.of(run.key(index), run.payload(index));
                all.summary = reduction.join(&all.summary, &of);
            } else {
                let child = ChildRecord::decode(reduction, run.payload(index))?;
                all.count = all.count.checked_add(child.count)?;
                all.live_bytes = all.live_bytes.checked_add(child.live_bytes)?;
                all.summary = reduction.join(&all.summary, &child.summary);
            }
        }
        all.summary = reduction.collapse(all.summary);
        Some(all)
    }
}
