//! Copies records to a new segment, with its sparse block index and its segment index.
//!
//! Invariant: a record that can't be read, or is another than the segment index says, ends the copy.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use settee_io::{Damage, File, OpenMode, ReadAt, ReadPolicy, directory};
use settee_log::{
    Entry, EntryRef, FileHasher, Flags, Record, Segment, SegmentContents, SegmentIndexBuilder, SegmentName,
    SparseBlockIndex, footer_start,
};
use tokio::sync::SemaphorePermit;

use super::kept_records::Plan;
use crate::error::StoreError;
use crate::failpoints::Failpoint;
use crate::shared::Shared;

/// Number of bytes copied at once.
pub(super) const COPY_BYTES: u64 = 1 << 20;

/// A record that is to be copied.
struct KeptRecord {
    entry: Entry,
    /// Its offset in the old file.
    file_offset: u64,
}

/// A segment that is being written.
pub(super) struct SegmentCopy<'a> {
    shared: &'a Shared,
    path: PathBuf,
    name: SegmentName,
    file: Arc<File>,
    /// The bytes to write next, at offset `written`.
    buffer: BytesMut,
    written: u64,
    hasher: Box<FileHasher>,
    block_index: SparseBlockIndex,
    segment_index: SegmentIndexBuilder,
    contents: SegmentContents,
    tombstone_bytes: u64,
    /// The permit for background work, released while it sleeps.
    background_permit: Option<SemaphorePermit<'a>>,
}

impl<'a> SegmentCopy<'a> {
    pub(super) async fn new(
        shared: &'a Shared,
        path: &Path,
        name: SegmentName,
        background_permit: SemaphorePermit<'a>,
    ) -> Result<SegmentCopy<'a>, StoreError> {
        let file = File::open(&shared.context.env.engine, path, OpenMode::CreateNew).await?;
        Ok(SegmentCopy {
            shared,
            path: path.to_path_buf(),
            file: Arc::new(file),
            buffer: BytesMut::new(),
            written: 0,
            hasher: Box::default(),
            block_index: SparseBlockIndex::default(),
            segment_index: SegmentIndexBuilder::covering(name.first, name.last, name.epoch),
            contents: SegmentContents::default(),
            tombstone_bytes: 0,
            background_permit: Some(background_permit),
            name,
        })
    }

    /// Copies the kept records of a segment.
    pub(super) async fn take(&mut self, plan: &Plan, tombstones_to: u64) -> Result<(), StoreError> {
        let Plan { segment, segment_index: Some(segment_index), kept_records: wanted } = plan else {
            return Ok(());
        };
        let file = segment.file().await?;
        let is_original = segment.name.generation == 0;
        let mut scan = segment_index.scan_seq(settee_log::Seq(0));
        let mut kept_records: Vec<KeptRecord> = Vec::new();
        let (mut file_offset, mut bytes) = (0, 0);
        while let Some((entry, _)) = scan.next().await? {
            let length = u64::from(entry.location.length);
            let at = if is_original { entry.location.offset.into() } else { file_offset };
            file_offset += length;
            if !wanted.has(entry.seq.0, tombstones_to) {
                continue;
            }
            kept_records.push(KeptRecord { entry: entry.to_entry(), file_offset: at });
            bytes += length;
            if bytes >= COPY_BYTES {
                self.copy(&file, &mut kept_records).await?;
                bytes = 0;
            }
        }
        self.copy(&file, &mut kept_records).await
    }

    /// Copies records, and verifies each.
    async fn copy(&mut self, file: &File, kept_records: &mut Vec<KeptRecord>) -> Result<(), StoreError> {
        let reads: Vec<_> = kept_records
            .iter()
            .map(|kept| ReadAt::new(kept.file_offset, kept.entry.location.length as usize))
            .collect();
        let values = file.read_many(&reads, ReadPolicy::ADJACENT_ONLY).await;
        for (value, kept) in values.into_iter().zip(kept_records.drain(..)) {
            let entry = kept.entry;
            let damaged = |what| {
                StoreError::Damaged(Damage {
                    path: file.path().to_path_buf(),
                    offset: kept.file_offset,
                    what,
                })
            };
            let record = Record::decode(value?).map_err(damaged)?;
            if record.seq() != entry.seq {
                return Err(damaged("it holds another record there"));
            }
            let is_lost = self.shared.context.options.is_enabled(Failpoint::RemapLost);
            let offset = if is_lost { 0 } else { entry.location.offset };
            self.block_index.push(settee_log::Location { offset, ..entry.location });
            let Entry { seq, flags, key, meta, location } = &entry;
            let entry_ref = EntryRef { seq: *seq, flags: *flags, key, meta, location: *location };
            self.segment_index.push(entry_ref, record.checksum());
            self.buffer.extend_from_slice(record.bytes());
            self.contents.last_seq = seq.0;
            self.contents.record_count += 1;
            self.contents.record_bytes += u64::from(location.length);
            if flags.has(Flags::TOMBSTONE) {
                self.contents.tombstone_count += 1;
                self.tombstone_bytes += u64::from(location.length);
            }
        }
        self.write().await
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let bytes = self.buffer.split().freeze();
        let size = bytes.len() as u64;
        self.hasher.update(self.written, &bytes);
        self.file.write_at(self.written, bytes).await?;
        self.written += size;
        if !self.shared.is_closed() {
            // Other work goes on meanwhile, and closing the store does not wait long.
            self.background_permit = None;
            self.shared.pace(size).await;
            self.background_permit = self.shared.context.env.background.acquire().await.ok();
        }
        Ok(())
    }

    /// Completes the file, and makes it durable; `None` if it has no records.
    pub(super) async fn finish(mut self) -> Result<Option<Arc<Segment>>, StoreError> {
        let engine = &*self.shared.context.env.engine;
        if self.contents.record_count == 0 {
            directory::remove(engine, &self.path).await?;
            return Ok(None);
        }
        self.buffer.extend_from_slice(&self.block_index.encode());
        self.write().await?;
        let bytes = self.written;
        let footer = self.segment_index.finish(bytes, 0).await;
        self.hasher.fill(footer_start(bytes));
        self.hasher.update(footer_start(bytes), &footer);
        self.file.write_at(footer_start(bytes), Bytes::from(footer)).await?;
        self.file.sync().await?;
        self.shared.context.sync_directory().await?;
        let name = SegmentName { bytes, digest: self.hasher.finish(), ..self.name };
        let shared = self.shared;
        if shared.context.options.log.direct {
            self.file.set_direct(true).await?;
        }
        let segment = Segment::rewritten(&shared.context.env, name, self.file, self.block_index);
        let segment = segment.with_chunks(shared.context.chunks.as_ref());
        Ok(Some(Arc::new(segment.with_contents(self.contents, self.tombstone_bytes))))
    }
}
