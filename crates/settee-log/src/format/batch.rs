//! Batches: records encoded before their place in the log is known, and written as one frame.

use std::ops::Range;

use bytes::Bytes;

use super::checksum::{record_checksum, record_hash, xxh3_64};
use super::flags::Flags;
use super::frame::FrameHeader;
use super::integers::u16_at;
use super::record::PLACE_SIZE;
use super::sizes::{
    FRAME_ALIGNMENT, FRAME_HEADER_SIZE, KEY_SIZE_MAX, META_SIZE_MAX, RECORD_HEADER_SIZE, frame_size,
};

/// Bytes reserved for a batch's first record, so that a few small records need no second allocation.
const FIRST_CAPACITY: usize = 512;
/// Values of up to this many bytes are copied into their batch; larger ones are shared.
const VALUE_COPY_MAX: usize = 1024;

/// A value with its hash. Lets a caller hash it in advance, outside a critical section.
#[derive(Debug, Clone)]
pub struct Value {
    bytes: Bytes,
    hash: u64,
}

impl Value {
    /// Hashes the bytes, which it shares.
    pub fn new(bytes: Bytes) -> Value {
        Value { hash: xxh3_64(&bytes), bytes }
    }

    /// The value's bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Records to append together: all of them survive, or none.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The records as they will be encoded in the log, without the first [`PLACE_SIZE`] bytes' content and
    /// without the values in `parts`.
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// Total size of the records in bytes.
    size: usize,
    pub(crate) may_use_reserve: bool,
}

/// One record of a batch.
#[derive(Debug, Clone)]
struct Part {
    /// Where it ends in the batch's bytes.
    end: usize,
    hash: u64,
    /// Its value, if that isn't in the batch's bytes.
    value: Option<Bytes>,
}

/// Receives a frame piece by piece, on its way into the log.
pub(crate) trait FrameSink {
    /// Copies the bytes, and returns the copy, which the caller completes immediately.
    fn copy(&mut self, bytes: &[u8]) -> &mut [u8];

    /// Copies the value, or shares it.
    fn share(&mut self, value: &Bytes);
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a record, with a copy of its value.
    ///
    /// # Panics
    /// If the key or the meta exceeds its limit; the caller checks that.
    pub fn push(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: &[u8]) {
        self.push_record(flags, key, meta, value, None, xxh3_64(value));
    }

    /// As [`Batch::push`], but a large value is shared instead of copied.
    ///
    /// # Panics
    /// As [`Batch::push`].
    pub fn push_bytes(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: Bytes) {
        self.push_value(flags, key, meta, Value::new(value));
    }

    /// As [`Batch::push_bytes`], with a value that is already hashed.
    ///
    /// # Panics
    /// As [`Batch::push`].
    pub fn push_value(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: Value) {
        let Value { bytes, hash } = value;
        if bytes.len() <= VALUE_COPY_MAX {
            self.push_record(flags, key, meta, &bytes, None, hash);
        } else {
            self.push_record(flags, key, meta, &[], Some(bytes), hash);
        }
    }

    fn push_record(
        &mut self,
        flags: Flags,
        key: &[u8],
        meta: &[u8],
        copied: &[u8],
        shared: Option<Bytes>,
        value_hash: u64,
    ) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(meta.len() <= META_SIZE_MAX, "meta of {} bytes", meta.len());
        let value = shared.as_deref().unwrap_or(copied);
        let value_size = u32::try_from(value.len()).expect("a value fits a batch");
        let start = self.bytes.len();
        let size = RECORD_HEADER_SIZE + key.len() + meta.len() + copied.len();
        self.bytes.reserve(if start == 0 { size.max(FIRST_CAPACITY) } else { size });
        self.bytes.extend_from_slice(&[0; PLACE_SIZE]);
        self.bytes.extend_from_slice(&value_size.to_le_bytes());
        self.bytes.extend_from_slice(&(meta.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&u32::from(flags.0).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(meta);
        let hash = record_hash(&self.bytes[start + PLACE_SIZE..], value_hash);
        self.size += self.bytes.len() - start + value.len();
        self.bytes.extend_from_slice(copied);
        self.parts.push(Part { end: self.bytes.len(), hash, value: shared });
    }

    /// Appends another batch's records.
    pub fn extend(&mut self, other: &Batch) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.parts.extend(other.parts.iter().map(|part| Part { end: start + part.end, ..part.clone() }));
        self.size += other.size;
    }

    /// Allows the batch to use the disk space that is reserved for batches which free space, so that
    /// deletions succeed on a full disk.
    pub fn use_reserve(&mut self) {
        self.may_use_reserve = true;
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The flags, key and meta of its records, in order.
    pub fn records(&self) -> impl Iterator<Item = (Flags, &[u8], &[u8])> {
        self.heads().map(|(record, _)| {
            let key_end = RECORD_HEADER_SIZE + u16_at(record, 22) as usize;
            let meta_end = key_end + u16_at(record, 20) as usize;
            (Flags(record[24]), &record[RECORD_HEADER_SIZE..key_end], &record[key_end..meta_end])
        })
    }

    /// The flags, key, meta and value of its records, in order.
    pub fn values(&self) -> impl Iterator<Item = (Flags, &[u8], &[u8], Bytes)> {
        self.records().zip(self.heads()).map(|((flags, key, meta), (head, part))| {
            let in_head = RECORD_HEADER_SIZE + key.len() + meta.len();
            let value = part.value.clone().unwrap_or_else(|| Bytes::copy_from_slice(&head[in_head..]));
            (flags, key, meta, value)
        })
    }

    /// Size of its frame in bytes.
    pub fn size(&self) -> usize {
        frame_size(self.size)
    }

    /// Total size in bytes of the shared values of at least `size_min` bytes.
    pub(crate) fn shared_bytes(&self, size_min: usize) -> usize {
        let sizes = self.parts.iter().filter_map(|part| part.value.as_ref()).map(Bytes::len);
        sizes.filter(|size| *size >= size_min).sum()
    }

    /// Each record's part of the batch's bytes, and its other fields.
    fn heads(&self) -> impl Iterator<Item = (&[u8], &Part)> {
        let mut start = 0;
        self.parts
            .iter()
            .map(move |part| (&self.bytes[std::mem::replace(&mut start, part.end)..part.end], part))
    }

    /// Range of each record in bytes, relative to the frame.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u32>> {
        let mut start = FRAME_HEADER_SIZE as u32;
        self.heads().map(move |(head, part)| {
            let size = head.len() + part.value.as_ref().map_or(0, Bytes::len);
            let range = start..start + size as u32;
            start = range.end;
            range
        })
    }

    /// Writes the frame, [`Batch::size`] bytes, and returns its checksum. The batch fills in the remaining
    /// fields of `header`.
    pub(crate) fn write_frame(&self, mut header: FrameHeader, sink: &mut impl FrameSink) -> u64 {
        header.length = self.size as u32;
        header.record_count = self.len() as u32;
        let seq_at = |index: usize| header.first_seq + index as u64;
        let checksum_at = |index: usize| record_checksum(self.parts[index].hash, seq_at(index));
        let (bytes, checksum) = header.encode((0..self.len()).map(checksum_at));
        sink.copy(&bytes);
        // Consecutive bytes up to a shared value are copied at once.
        let (mut start, mut first) = (0, 0);
        for (last, part) in self.parts.iter().enumerate() {
            if part.value.is_none() && last + 1 < self.len() {
                continue;
            }
            let run = sink.copy(&self.bytes[start..part.end]);
            let mut at = 0;
            for index in first..=last {
                let place = &mut run[at..at + PLACE_SIZE];
                place[..8].copy_from_slice(&checksum_at(index).to_le_bytes());
                place[8..].copy_from_slice(&seq_at(index).to_le_bytes());
                at = self.parts[index].end - start;
            }
            if let Some(value) = &part.value {
                sink.share(value);
            }
            (start, first) = (part.end, last + 1);
        }
        sink.copy(&[0; FRAME_ALIGNMENT][..self.size() - FRAME_HEADER_SIZE - self.size]);
        checksum
    }
}
