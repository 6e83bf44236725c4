//! Reading one record: from memory if it isn't written yet, otherwise from its segment's file.

use std::sync::Arc;

use bytes::Bytes;
use settee_io::{Damage, File};

use super::Log;
use crate::error::ReadError;
use crate::failpoints::Failpoint;
use crate::format::Record;
use crate::read_view::Files;
use crate::segment_name::segment_path;
use crate::types::Location;
use crate::watermark::Position;

/// The source of a record's bytes.
pub(super) enum RecordSource {
    Memory(Bytes),
    File(Arc<File>),
}

impl Log {
    /// Reads the record at `location`: from memory if it isn't written yet, otherwise with one positional
    /// read. Takes no lock, and waits for no write, sync or buffer. Verifies the record's checksum.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, location: Location) -> Result<Record, ReadError> {
        self.read_record(location, None).await
    }

    /// As [`Log::read`], but a record that isn't in memory is read from `files` if they include the segment.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_in(&self, files: &Files, location: Location) -> Result<Record, ReadError> {
        self.read_record(location, Some(files)).await
    }

    async fn read_record(&self, location: Location, files: Option<&Files>) -> Result<Record, ReadError> {
        if self.shared.options.is_enabled(Failpoint::ReaderWaits) {
            drop(self.shared.env.buffers.take(1).await);
        }
        let bytes = match self.find(location, files)? {
            RecordSource::Memory(bytes) => bytes,
            RecordSource::File(file) => {
                file.read_exact_at(u64::from(location.offset), location.length as usize).await?
            }
        };
        Record::decode(bytes).map_err(|what| self.damaged(location, what))
    }

    /// The record's bytes if they are in memory, otherwise the file that contains them.
    pub(super) fn find(&self, location: Location, files: Option<&Files>) -> Result<RecordSource, ReadError> {
        let Location { segment, offset, length } = location;
        let end = offset.checked_add(length);
        let end = end.ok_or_else(|| self.damaged(location, "it ends past the largest segment"))?;
        let (start, end) = (Position::new(segment, offset), Position::new(segment, end));
        if end > self.shared.written()
            && let Some(bytes) = self.shared.read_view.load().copy(start, end)
        {
            return Ok(RecordSource::Memory(bytes));
        }
        let file = match files.and_then(|files| files.get(segment)) {
            Some(file) => file,
            None => self.segment_file(segment).ok_or_else(|| match self.shared.is_closed() {
                true => ReadError::Stopped(self.shared.stop_reason()),
                false => ReadError::NoSegment { segment },
            })?,
        };
        // Loaded again: the record may have been written meanwhile.
        if end > self.shared.written() {
            return Err(self.not_written(location));
        }
        Ok(RecordSource::File(file))
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
/// verifies its checksum. For files that contain records in the log's format: a transferred segment, or a
/// file into which records were copied ([`Record::bytes`]).
///
/// # Errors
/// [`ReadError::Damaged`] if there is no whole record of that length; or an I/O error.
pub async fn read_record(file: &File, offset: u64, length: u32) -> Result<Record, ReadError> {
    let bytes = file.read_exact_at(offset, length as usize).await?;
    let damaged = |what| ReadError::Damaged(Damage { path: file.path().to_path_buf(), offset, what });
    Record::decode(bytes).map_err(damaged)
}
