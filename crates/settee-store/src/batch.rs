//! What is committed together: puts, deltas and deletions, within the limits of keys and values.

use bytes::Bytes;
use settee_log::{BATCH_SIZE_MAX, Flags, Value};

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 8 << 10;

/// Largest value in bytes: a batch that holds it, with its key and meta, fits the log.
pub const VALUE_SIZE_MAX: usize = BATCH_SIZE_MAX - 2 * KEY_SIZE_MAX;

/// Records to commit together.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) records: settee_log::Batch,
    pub(crate) has_listed: bool,
    pub(crate) has_deltas: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Puts a value under a key. A large value is shared until it is copied into the log's buffer.
    /// A listed one shows in [`Snapshot::scan_listed`](crate::Snapshot::scan_listed).
    ///
    /// # Panics
    /// Where the key, the meta or the value is over its limit: that is the caller's to check.
    pub fn put(&mut self, key: &[u8], meta: &[u8], value: Bytes, listed: bool) {
        self.put_value(key, meta, Value::new(value), listed);
    }

    /// As [`Batch::put`], but the value has been hashed already.
    ///
    /// # Panics
    /// As [`Batch::put`].
    pub fn put_value(&mut self, key: &[u8], meta: &[u8], value: Value, listed: bool) {
        let size = value.bytes().len();
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(size <= VALUE_SIZE_MAX, "value of {size} bytes");
        self.has_listed |= listed;
        self.records.push_value(if listed { Flags::LISTED } else { Flags::none() }, key, meta, value);
    }

    /// Adds a delta to what stands under a key: a read gets it together with what was there, up to the
    /// last value that was put.
    ///
    /// # Panics
    /// As [`Batch::put`].
    pub fn merge(&mut self, key: &[u8], meta: &[u8], delta: Bytes) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(delta.len() <= VALUE_SIZE_MAX, "delta of {} bytes", delta.len());
        self.has_deltas = true;
        self.records.push_bytes(Flags::DELTA, key, meta, delta);
    }

    /// Removes a key and its value.
    pub fn delete(&mut self, key: &[u8]) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        self.records.push(Flags::TOMBSTONE, key, &[], &[]);
    }

    /// Adds another batch's records behind these.
    pub fn extend(&mut self, other: &Batch) {
        self.has_listed |= other.has_listed;
        self.has_deltas |= other.has_deltas;
        self.records.extend(&other.records);
    }

    /// Lets the batch into the room that is kept back for what frees space: so deletions work
    /// on a full disk.
    pub fn use_reserve(&mut self) {
        self.records.use_reserve();
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes that it takes in the log.
    pub fn size(&self) -> usize {
        self.records.size()
    }
}
