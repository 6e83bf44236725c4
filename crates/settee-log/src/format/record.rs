//! A record as encoded in a frame: borrowed from the frame's bytes, or with bytes of its own.

use std::ops::Range;

use bytes::Bytes;

use super::checksum::{record_checksum, record_hash, xxh3_64};
use super::flags::Flags;
use super::integers::{u16_at, u32_at, u64_at};
use super::sizes::{KEY_SIZE_MAX, META_SIZE_MAX, RECORD_HEADER_SIZE};
use crate::types::Seq;

/// Bytes at the start of a record that are known only when it is appended: checksum and `Seq`.
pub(super) const PLACE_SIZE: usize = 16;

/// A record as encoded in the log.
#[derive(Debug, Clone, Copy)]
pub struct RecordRef<'a> {
    /// Its `Seq`.
    pub seq: Seq,
    /// Its flags.
    pub flags: Flags,
    /// The key, up to [`KEY_SIZE_MAX`] bytes.
    pub key: &'a [u8],
    /// Opaque to the log, up to [`META_SIZE_MAX`] bytes.
    pub meta: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    checksum: u64,
}

impl<'a> RecordRef<'a> {
    /// Its size in bytes.
    pub fn size(&self) -> usize {
        RECORD_HEADER_SIZE + self.key.len() + self.meta.len() + self.value.len()
    }

    /// Its stored checksum.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Decodes and verifies the record at the start of `bytes`. It takes [`RecordRef::size`] bytes; another
    /// record may follow immediately.
    ///
    /// # Errors
    /// Description of the damage.
    pub fn decode(bytes: &'a [u8]) -> Result<RecordRef<'a>, &'static str> {
        let (record, head) = RecordRef::split(bytes)?;
        if record.checksum != record_checksum(record_hash(head, xxh3_64(record.value)), record.seq.0) {
            return Err("its checksum doesn't match");
        }
        Ok(record)
    }

    /// Decodes the record at the start of `bytes` without verifying it.
    pub(crate) fn undecoded(bytes: &'a [u8]) -> Option<RecordRef<'a>> {
        Some(RecordRef::split(bytes).ok()?.0)
    }

    /// Decodes the record at the start of `bytes` without verifying it, and returns also the hashed part of
    /// its header, key and meta.
    pub(super) fn split(bytes: &'a [u8]) -> Result<(RecordRef<'a>, &'a [u8]), &'static str> {
        let [key_end, meta_end, end] = RecordRef::ends(bytes)?;
        let bytes = bytes.get(..end).ok_or("it ends within a record")?;
        let record = RecordRef {
            seq: Seq(u64_at(bytes, 8)),
            flags: Flags(u32_at(bytes, 24) as u8),
            key: &bytes[RECORD_HEADER_SIZE..key_end],
            meta: &bytes[key_end..meta_end],
            value: &bytes[meta_end..],
            checksum: u64_at(bytes, 0),
        };
        Ok((record, &bytes[PLACE_SIZE..meta_end]))
    }

    /// Size of the record whose header `bytes` begin with, even if they don't contain all of it. None if it
    /// isn't that of a record.
    pub(crate) fn peek_size(bytes: &[u8]) -> Option<usize> {
        Some(RecordRef::ends(bytes).ok()?[2])
    }

    /// Where the key, the meta and the value end, by the header.
    fn ends(bytes: &[u8]) -> Result<[usize; 3], &'static str> {
        let head = bytes.get(..RECORD_HEADER_SIZE).ok_or("it ends within a record's header")?;
        if u32_at(head, 24) & !Flags::KNOWN != 0 {
            return Err("it has unknown flags");
        }
        let (meta_size, key_size) = (u16_at(head, 20) as usize, u16_at(head, 22) as usize);
        if meta_size > META_SIZE_MAX || key_size > KEY_SIZE_MAX {
            return Err("its key or meta is too large");
        }
        let key_end = RECORD_HEADER_SIZE + key_size;
        let meta_end = key_end + meta_size;
        Ok([key_end, meta_end, meta_end + u32_at(head, 16) as usize])
    }
}

/// A record that was read, with its bytes.
#[derive(Debug, Clone)]
pub struct Record {
    bytes: Bytes,
    seq: Seq,
    flags: Flags,
    key: Range<usize>,
    meta: Range<usize>,
    value: Range<usize>,
}

impl Record {
    /// Decodes and verifies the record that takes exactly `bytes`.
    ///
    /// # Errors
    /// Description of the damage.
    pub fn decode(bytes: Bytes) -> Result<Record, &'static str> {
        let record = Record::at_front(&bytes)?;
        if record.bytes.len() != bytes.len() {
            return Err("it has a different length");
        }
        Ok(record)
    }

    /// Decodes and verifies the record at the start of `bytes`, sharing them. Returns also its size in bytes;
    /// another record may follow immediately. None if there is no whole record.
    pub fn decode_first(bytes: &Bytes) -> Option<(Record, usize)> {
        let record = Record::at_front(bytes).ok()?;
        let size = record.bytes.len();
        Some((record, size))
    }

    /// The `Seq` and the size in bytes of the record at the start of `bytes`, unverified. None if no whole
    /// record is there.
    pub fn peek(bytes: &[u8]) -> Option<(Seq, usize)> {
        let record = RecordRef::split(bytes).ok()?.0;
        Some((record.seq, record.size()))
    }

    fn at_front(bytes: &Bytes) -> Result<Record, &'static str> {
        let record = RecordRef::decode(bytes)?;
        let key = RECORD_HEADER_SIZE..RECORD_HEADER_SIZE + record.key.len();
        let meta = key.end..key.end + record.meta.len();
        let value = meta.end..record.size();
        let bytes = bytes.slice(..value.end);
        Ok(Record { seq: record.seq, flags: record.flags, key, meta, value, bytes })
    }

    /// The record as encoded in the log, to be copied to another file.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its stored checksum.
    pub fn checksum(&self) -> u64 {
        u64_at(&self.bytes, 0)
    }

    /// Its `Seq`.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Its flags.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[self.key.clone()]
    }

    /// The meta.
    pub fn meta(&self) -> &[u8] {
        &self.bytes[self.meta.clone()]
    }

    /// The value; shares the record's bytes.
    pub fn value(&self) -> Bytes {
        self.bytes.slice(self.value.clone())
    }
}
