//! Reads a rewritten segment: its records, its sparse block index, and its segment index.

use std::sync::Arc;

use settee_io::{File, ReadAt, ReadPolicy};
use settee_log::{
    Entry, Location, Record, RecordRef, Segment, SegmentIndex, Seq, SparseBlockIndex, footer_start,
};

use super::problem::Touched;
use super::row::RecordRow;
use super::salvage::{SalvageOut, Salvaged};
use super::segment_index::{Missed, compare_keys, segment_index_problem};
use super::survey::{SegmentSource, Survey};
use crate::error::StoreError;

/// Number of bytes of a rewritten segment read at once.
const READ_BYTES: u64 = 1 << 20;

impl Survey<'_> {
    /// Reads a rewritten segment.
    pub(super) async fn take_rewritten_records(
        &mut self,
        source: &SegmentSource,
        file: &Arc<File>,
        rows: &mut Vec<RecordRow>,
        mut out: SalvageOut<'_>,
    ) -> Result<(), StoreError> {
        let is_reporting = out.is_none();
        let first = rows.len();
        let Some(segment_index) = self.open_segment_index(source, file, is_reporting, 0).await? else {
            return self.take_without_segment_index(source, file, rows, out).await;
        };
        let mut block_index = SparseBlockIndex::default();
        let mut scan = segment_index.scan_seq(Seq(0));
        let mut batch: Vec<(Entry, u64, u64)> = Vec::new();
        let (mut file_offset, mut bytes) = (0, 0);
        loop {
            let next = match scan.next().await {
                Ok(next) => next,
                Err(error) => {
                    let (offset, what, touched) = segment_index_problem(error)?;
                    if is_reporting {
                        self.report(&source.path, offset, what, touched);
                    }
                    rows.truncate(first);
                    return self.take_without_segment_index(source, file, rows, out).await;
                }
            };
            let is_end = next.is_none();
            if let Some((entry, checksum)) = next {
                let length = u64::from(entry.location.length);
                block_index.push(entry.location);
                rows.push(RecordRow::of_entry(&entry, checksum));
                batch.push((entry.to_entry(), checksum, file_offset));
                file_offset += length;
                bytes += length;
            }
            if is_end || bytes >= READ_BYTES {
                self.read_batch(source, file, &mut batch, rows, out.as_deref_mut()).await?;
                bytes = 0;
            }
            if is_end {
                break;
            }
        }
        if is_reporting {
            let mut problems = Vec::new();
            compare_keys(&segment_index, &rows[first..], &Missed::default(), &mut problems).await?;
            for (offset, what, touched) in problems {
                self.report(&source.path, offset, what, touched);
            }
            self.check_block_index(source, file, &block_index, file_offset, &segment_index).await?;
        }
        Ok(())
    }

    async fn read_batch(
        &mut self,
        source: &SegmentSource,
        file: &File,
        batch: &mut Vec<(Entry, u64, u64)>,
        rows: &mut [RecordRow],
        mut out: SalvageOut<'_>,
    ) -> Result<(), StoreError> {
        let reads: Vec<_> = batch
            .iter()
            .map(|(entry, _, file_offset)| ReadAt::new(*file_offset, entry.location.length as usize))
            .collect();
        let values = file.read_many(&reads, ReadPolicy::ADJACENT_ONLY).await;
        let start = rows.len() - batch.len();
        for (index, (value, (entry, checksum, file_offset))) in
            values.into_iter().zip(batch.drain(..)).enumerate()
        {
            let what = match value {
                Ok(bytes) => match RecordRef::decode(&bytes) {
                    Ok(record) if (record.seq, record.checksum()) != (entry.seq, checksum) => {
                        "it holds another record there than its segment index says"
                    }
                    Ok(record) => {
                        out.iter_mut().for_each(|out| out.push(Salvaged::of(&record)));
                        continue;
                    }
                    Err(what) => what,
                },
                Err(settee_io::Error::PastEnd { .. }) => "the file ends before a record does",
                Err(error) => return Err(error.into()),
            };
            rows[start + index].is_damaged = true;
            if out.is_none() {
                let what = format!("a record: {what}");
                let touched = self.touched_by(entry.seq.0, entry.key);
                self.report(&source.path, file_offset, what, touched);
            }
        }
        Ok(())
    }

    /// Checks the sparse block index, and the bytes between it and the segment index.
    async fn check_block_index(
        &mut self,
        source: &SegmentSource,
        file: &Arc<File>,
        expected: &SparseBlockIndex,
        records_end: u64,
        segment_index: &SegmentIndex,
    ) -> Result<(), StoreError> {
        let segment = Segment::new(&self.context.env, &self.context.directory, source.name, false);
        match Arc::new(segment).block_index().await {
            Ok(block_index) if block_index == expected => {}
            Ok(_) => {
                let what = "its block index doesn't match its records: records can't be found";
                self.report(&source.path, records_end, what, Touched::Unknown);
            }
            Err(settee_log::ReadError::Io(error)) => return Err(error.into()),
            Err(error) => {
                let what = format!("its block index can't be read, so no record can be found ({error})");
                self.report(&source.path, records_end, what, Touched::Unknown);
            }
        }
        let (end, start) =
            (segment_index.trailer().frames_end, footer_start(segment_index.trailer().frames_end));
        if end != source.name.bytes {
            let what = format!(
                "its records and block index have {end} bytes, and the manifest says {}",
                source.name.bytes
            );
            self.report(&source.path, end, what, Touched::Nothing);
        }
        let gap = file.read_at(end, (start - end) as usize).await?;
        if gap.iter().any(|byte| *byte != 0) {
            self.report(
                &source.path,
                end,
                "there are bytes between its block index and its segment index",
                Touched::Nothing,
            );
        }
        Ok(())
    }

    /// Reads the records of a rewritten segment whose segment index is lost, one after another.
    async fn take_without_segment_index(
        &mut self,
        source: &SegmentSource,
        file: &File,
        rows: &mut Vec<RecordRow>,
        mut out: SalvageOut<'_>,
    ) -> Result<(), StoreError> {
        let length = file.length().await?;
        let bytes = file.read_exact_at(0, length as usize).await?;
        let (mut at, mut last) = (0, 0);
        while let Some((seq, size)) = Record::peek(&bytes[at..]) {
            if seq.0 <= last {
                break;
            }
            match RecordRef::decode(&bytes[at..at + size]) {
                Ok(record) => {
                    // Only the segment index had its first location.
                    let location =
                        Location { segment: source.name.first, offset: u32::MAX, length: size as u32 };
                    rows.push(RecordRow::of(location, &record));
                    out.iter_mut().for_each(|out| out.push(Salvaged::of(&record)));
                    last = seq.0;
                }
                Err(what) if out.is_none() => {
                    self.report(&source.path, at as u64, format!("a record: {what}"), Touched::Unknown);
                }
                Err(_) => {}
            }
            at += size;
        }
        Ok(())
    }
}
