//! Batches: puts, merge operands and deletions that are committed together.

use bytes::Bytes;
use settee_log::{BATCH_SIZE_MAX, Flags, Value};

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = (8 << 10) + 128;

/// Largest value in bytes. A batch that holds one, with its key and meta, fits the log.
pub const VALUE_SIZE_MAX: usize = BATCH_SIZE_MAX - 2 * KEY_SIZE_MAX;

/// Records to commit together.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) records: settee_log::Batch,
    pub(crate) has_seq_indexed: bool,
    pub(crate) has_operands: bool,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Puts a base value under a key. A large value is shared, not copied, until it is written to the log's
    /// buffer. With `in_seq_index`, [`Snapshot::scan_by_seq`](crate::Snapshot::scan_by_seq) returns the
    /// entry.
    ///
    /// # Panics
    /// If the key, the meta or the value exceeds its limit: the caller has to check that.
    pub fn put(&mut self, key: &[u8], meta: &[u8], value: Bytes, in_seq_index: bool) {
        self.put_value(key, meta, Value::new(value), in_seq_index);
    }

    /// As [`Batch::put`], with a value that has been hashed already.
    ///
    /// # Panics
    /// As [`Batch::put`].
    pub fn put_value(&mut self, key: &[u8], meta: &[u8], value: Value, in_seq_index: bool) {
        let size = value.bytes().len();
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(size <= VALUE_SIZE_MAX, "value of {size} bytes");
        self.has_seq_indexed |= in_seq_index;
        self.records.push_value(
            if in_seq_index { Flags::IN_SEQ_INDEX } else { Flags::none() },
            key,
            meta,
            value,
        );
    }

    /// Adds a merge operand to a key's value: a read returns it together with the older records, up to the
    /// last base value.
    ///
    /// # Panics
    /// As [`Batch::put`].
    pub fn merge(&mut self, key: &[u8], meta: &[u8], operand: Bytes) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(operand.len() <= VALUE_SIZE_MAX, "operand of {} bytes", operand.len());
        self.has_operands = true;
        self.records.push_bytes(Flags::OPERAND, key, meta, operand);
    }

    /// Removes a key and its value.
    pub fn delete(&mut self, key: &[u8]) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        self.records.push(Flags::TOMBSTONE, key, &[], &[]);
    }

    /// Appends another batch's records.
    pub fn extend(&mut self, other: &Batch) {
        self.has_seq_indexed |= other.has_seq_indexed;
        self.has_operands |= other.has_operands;
        self.records.extend(&other.records);
    }

    /// Lets the batch use the disk space reserved for what frees space, so that deletions work on a full
    /// disk.
    pub fn use_reserve(&mut self) {
        self.records.use_reserve();
    }

    /// Whether the batch has no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Size of the batch in the log, in bytes.
    pub fn size(&self) -> usize {
        self.records.size()
    }
}
