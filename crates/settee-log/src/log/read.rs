//! Reading one record: from memory if it isn't written yet, otherwise from its segment.

use std::sync::Arc;

use bytes::Bytes;
use settee_io::{Damage, File};

use super::Log;
use crate::error::ReadError;
use crate::failpoints::Failpoint;
use crate::format::Record;
use crate::segment_name::segment_path;
use crate::segment_set::{Segment, SegmentSet};
use crate::types::{Location, Seq};
use crate::watermark::Position;

/// The source of a record.
pub(super) enum RecordSource {
    Memory(Bytes),
    Segment(Arc<Segment>),
}

impl Log {
    /// Reads the record at `location`: from memory if it isn't written yet, otherwise with one positional
    /// read. Takes no lock, and waits for no write, sync or buffer. Verifies the record's checksum.
    ///
    /// # Errors
    /// See [`ReadError`]. [`ReadError::NoSegment`] also if the segment was rewritten.
    pub async fn read(&self, location: Location) -> Result<Record, ReadError> {
        let set = self.segment_set();
        let bytes = match self.find(&set, location).await? {
            RecordSource::Memory(bytes) => bytes,
            RecordSource::Segment(segment) if segment.name.generation > 0 => {
                return Err(ReadError::NoSegment { segment: location.segment });
            }
            RecordSource::Segment(segment) => {
                let file = segment.file().await?;
                file.read_exact_at(u64::from(location.offset), location.length as usize).await?
            }
        };
        Record::decode(bytes).map_err(|what| self.damaged(location, what))
    }

    /// As [`Log::read`], in a set that the caller keeps, and in rewritten segments too. A record with another
    /// `Seq` is damage.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_in(&self, set: &SegmentSet, seq: Seq, location: Location) -> Result<Record, ReadError> {
        match self.find(set, location).await? {
            RecordSource::Memory(bytes) => self.expect(seq, location, bytes),
            RecordSource::Segment(segment) => segment.read(seq, location).await,
        }
    }

    /// Decodes a record, and checks that it is the expected one.
    pub(super) fn expect(&self, seq: Seq, location: Location, bytes: Bytes) -> Result<Record, ReadError> {
        let record = Record::decode(bytes).map_err(|what| self.damaged(location, what))?;
        match record.seq() == seq {
            true => Ok(record),
            false => Err(self.damaged(location, "it holds another record there")),
        }
    }

    /// The record's bytes if they are in memory, otherwise the segment that contains them.
    pub(super) async fn find(&self, set: &SegmentSet, location: Location) -> Result<RecordSource, ReadError> {
        if self.shared.options.is_enabled(Failpoint::ReaderWaits) {
            drop(self.shared.env.buffers.take(1).await);
        }
        let Location { segment, offset, length } = location;
        let end = offset.checked_add(length);
        let end = end.ok_or_else(|| self.damaged(location, "it ends past the largest segment"))?;
        let (start, end) = (Position::new(segment, offset), Position::new(segment, end));
        if end > self.shared.written()
            && let Some(bytes) = self.shared.read_view.load().copy(start, end)
        {
            return Ok(RecordSource::Memory(bytes));
        }
        let found = set.get(segment).ok_or_else(|| match self.shared.is_closed() {
            true => ReadError::Stopped(self.shared.stop_reason()),
            false => ReadError::NoSegment { segment },
        })?;
        // Loaded again: the record may have been written meanwhile.
        if end > self.shared.written() {
            return Err(self.not_written(location));
        }
        Ok(RecordSource::Segment(found.clone()))
    }

    /// The error for a location that is beyond the written bytes and not in memory.
    fn not_written(&self, location: Location) -> ReadError {
        match self.health() {
            Err(stopped) => ReadError::Stopped(stopped),
            Ok(()) => self.damaged(location, "nothing was appended there"),
        }
    }

    pub(super) fn damaged(&self, location: Location, what: &'static str) -> ReadError {
        let path = segment_path(&self.shared.directory, location.segment);
        ReadError::Damaged(Damage { path, offset: location.offset.into(), what })
    }
}

/// Reads the record or extent of `length` bytes at `offset` of any file, with one positional read, and
/// verifies its checksum. For files that contain records in the log's format: a segment, or a file into which
/// records were copied ([`Record::bytes`]).
///
/// # Errors
/// [`ReadError::Damaged`] if there is no whole record of that length; or an I/O error.
pub async fn read_record(file: &File, offset: u64, length: u32) -> Result<Record, ReadError> {
    let bytes = file.read_exact_at(offset, length as usize).await?;
    let damaged = |what| ReadError::Damaged(Damage { path: file.path().to_path_buf(), offset, what });
    Record::decode(bytes).map_err(damaged)
}
