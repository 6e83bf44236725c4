//! Reads segments one after another: frames, or records and the sparse block index, and the segment index.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, OpenMode, ReadAt, ReadPolicy};
use settee_log::{
    Damage, Entry, EntryRef, Flags, Location, Record, RecordRef, SegmentIndex, SegmentIndexError, Seq,
    check_segment, footer_start,
};

use super::{Problem, SegmentSource, Survey, Touched, key_hash, meta_hash};
use crate::error::{ReadError, StoreError};
use crate::segments::{Segment, SparseBlockIndex, address};

/// Number of bytes of a rewritten segment read at once.
const READ_BYTES: u64 = 1 << 20;

/// What the index must say of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordRow {
    pub seq: u64,
    pub key_hash: u64,
    /// The checksum in the record.
    pub checksum: u64,
    pub segment: u32,
    pub offset: u32,
    pub length: u32,
    pub meta_hash: u32,
    pub flags: Flags,
    /// Whether the record's bytes are damaged.
    pub is_damaged: bool,
    /// Whether the index points to it.
    pub is_referenced: bool,
}

impl RecordRow {
    fn of(location: Location, record: &RecordRef<'_>) -> RecordRow {
        RecordRow {
            seq: record.seq.0,
            key_hash: key_hash(record.key),
            checksum: record.checksum(),
            segment: location.segment,
            offset: location.offset,
            length: location.length,
            meta_hash: meta_hash(record.meta),
            flags: record.flags,
            is_damaged: false,
            is_referenced: false,
        }
    }

    fn of_entry(entry: &EntryRef<'_>, checksum: u64) -> RecordRow {
        RecordRow {
            seq: entry.seq.0,
            key_hash: key_hash(entry.key),
            checksum,
            segment: entry.location.segment,
            offset: entry.location.offset,
            length: entry.location.length,
            meta_hash: meta_hash(entry.meta),
            flags: entry.flags,
            is_damaged: false,
            is_referenced: false,
        }
    }
}

/// A record read from a store that may be damaged.
#[derive(Debug, Clone)]
pub struct Salvaged {
    /// The update number that it had.
    pub seq: u64,
    /// Its flags.
    pub flags: Flags,
    /// The key.
    pub key: Vec<u8>,
    /// The meta.
    pub meta: Vec<u8>,
    /// The value.
    pub value: Bytes,
}

impl Salvaged {
    fn of(record: &RecordRef<'_>) -> Salvaged {
        Salvaged {
            seq: record.seq.0,
            flags: record.flags,
            key: record.key.to_vec(),
            meta: record.meta.to_vec(),
            value: Bytes::copy_from_slice(record.value),
        }
    }
}

/// Offset, problem, key and `Seq` of an unreadable record.
type LostRecord = (u64, String, Vec<u8>, u64);

/// Receives a segment's records, if they are to be salvaged.
type SalvageOut<'a> = Option<&'a mut Vec<Salvaged>>;

impl Survey<'_> {
    /// Checks a segment, and appends its rows in the order of `Seq`.
    pub(super) async fn take_source(
        &mut self,
        source: &SegmentSource,
        rows: &mut Vec<RecordRow>,
        out: SalvageOut<'_>,
    ) -> Result<(), StoreError> {
        let file = Arc::new(File::open(&self.context.env.engine, &source.path, OpenMode::Read).await?);
        let length = file.length().await?;
        let first = rows.len();
        let is_checking = out.is_none();
        match source.name.generation {
            0 => self.take_frames(source, &file, rows, out).await?,
            _ => self.take_rewritten_records(source, &file, rows, out).await?,
        }
        if is_checking {
            rows[first..].sort_by_key(|row| row.seq);
            self.summary.record_count += (rows.len() - first) as u64;
            self.summary.last_seq = self.summary.last_seq.max(rows.last().map_or(0, |row| row.seq));
            self.summary.file_count += 1;
            self.summary.bytes += length;
            self.advance(length);
        }
        Ok(())
    }

    /// Reads a segment as the log wrote it.
    async fn take_frames(
        &mut self,
        source: &SegmentSource,
        file: &Arc<File>,
        rows: &mut Vec<RecordRow>,
        mut out: SalvageOut<'_>,
    ) -> Result<(), StoreError> {
        let number = source.name.first;
        let first = rows.len();
        let mut doubted: Vec<(u64, Vec<u8>, u64)> = Vec::new();
        let known = Seq(self.checkpoint_seq());
        let visit = |location: Location, record: RecordRef<'_>, is_sound: bool| match is_sound {
            _ if record.is_extent() => {}
            true => {
                rows.push(RecordRow::of(location, &record));
                out.iter_mut().for_each(|out| out.push(Salvaged::of(&record)));
            }
            false => doubted.push((location.offset.into(), record.key.to_vec(), record.seq.0)),
        };
        let checked = check_segment(file, number, source.end, self.log_id, known, visit).await?;
        let segment_index = self.open_segment_index(source, file, out.is_none(), checked.frames_end).await?;
        let mut missed = Missed::new(&checked.damage);
        if let Some(segment_index) = &segment_index {
            self.compare_segment_index(source, segment_index, &mut rows[first..], &mut missed, out.is_none())
                .await?;
        }
        // The records that the segment index has and the frames no longer do.
        let found = missed.read(file, rows, out.as_deref_mut()).await?;
        if out.is_some() {
            return Ok(());
        }
        for damage in &checked.damage {
            let Damage { offset, what, is_doubtful, .. } = *damage;
            let what = what.to_owned();
            self.report_problem(Problem {
                path: source.path.clone(),
                offset,
                what,
                touched: Touched::Unknown,
                is_doubtful,
            });
        }
        for (offset, key, seq) in doubted {
            // Without a segment index to compare with, the record's own key and update are reported.
            if !found.iter().any(|(known, ..)| *known == offset) {
                let touched = self.touched_by(seq, key);
                let what =
                    "a record's checksum doesn't match; its key and update are reported as found in it";
                self.report(&source.path, offset, what, touched);
            }
        }
        for (offset, what, key, seq) in found {
            let touched = self.touched_by(seq, key);
            self.report(&source.path, offset, what, touched);
        }
        self.check_succession(source, &checked);
        self.summary.last_seq = self.summary.last_seq.max(checked.last_seq.0);
        Ok(())
    }

    /// The keys touched by a damaged record: the index may point to it, or it comes after the checkpoint.
    /// Without an index it is uncertain whether it was its key's last.
    fn touched_by(&mut self, seq: u64, key: Vec<u8>) -> Touched {
        if seq <= self.checkpoint_seq() {
            return Touched::OldVersion(key);
        }
        self.lost.insert(seq, key.clone());
        Touched::Key(key)
    }

    /// Checks that a segment follows the one before it.
    fn check_succession(&mut self, source: &SegmentSource, checked: &settee_log::SegmentCheck) {
        let number = source.name.first;
        let before = self.log_end.take().filter(|(before, ..)| before + 1 == number);
        if let Some(head) = checked.head {
            if *self.log_id.get_or_insert(head.log_id) != head.log_id {
                self.report(&source.path, 24, "it belongs to another log", Touched::Unknown);
            }
            if let Some((_, end, checksum)) = before
                && (head.previous_end, head.previous_checksum) != (end, checksum)
            {
                let what = "its header doesn't follow the segment before it";
                self.report(&source.path, 0, what, Touched::Unknown);
            }
        }
        if source.end.is_some_and(|end| end != checked.frames_end) && checked.damage.is_empty() {
            let what = format!("its frames end here, and not at {}", source.end.unwrap_or_default());
            self.report(&source.path, checked.frames_end, what, Touched::Unknown);
        }
        self.log_end = checked.frames_checksum.map(|checksum| (number, checked.frames_end, checksum));
    }

    /// Opens a segment's index, if it has one, and reports its problems.
    async fn open_segment_index(
        &mut self,
        source: &SegmentSource,
        file: &Arc<File>,
        is_reporting: bool,
        frames_end: u64,
    ) -> Result<Option<SegmentIndex>, StoreError> {
        let (first, last) = (source.name.first, source.name.last);
        let error = match SegmentIndex::open_covering(file.clone(), first, last, source.name.epoch).await {
            Ok(segment_index) => return Ok(Some(segment_index)),
            Err(SegmentIndexError::Io(error)) => return Err(error.into()),
            Err(error) => error,
        };
        if !is_reporting {
            return Ok(None);
        }
        match error {
            SegmentIndexError::Absent { .. } if !source.is_transferred => {
                // Not sealed yet: nothing may be written there.
                let length = file.length().await?;
                let start = footer_start(frames_end);
                if source.end.is_some() && start < length && !self.is_reused(file).await? {
                    let bytes = file.read_exact_at(start, (length - start) as usize).await?;
                    if bytes.iter().any(|byte| *byte != 0) {
                        let what = "no whole segment index follows its frames: a crash interrupted sealing, or it is damaged";
                        self.report_problem(Problem {
                            path: source.path.clone(),
                            offset: start,
                            what: what.to_owned(),
                            touched: Touched::Nothing,
                            is_doubtful: true,
                        });
                    }
                }
            }
            SegmentIndexError::Absent { .. } => {
                let offset = file.length().await?.saturating_sub(settee_log::TRAILER_SIZE as u64);
                let what = "it doesn't end with a segment index";
                self.report(&source.path, offset, what, Touched::Nothing);
            }
            SegmentIndexError::Damaged { offset, what, .. } => {
                self.report(&source.path, offset, format!("its segment index: {what}"), Touched::Nothing);
            }
            error => self.report(&source.path, 0, error.to_string(), Touched::Nothing),
        }
        Ok(None)
    }

    async fn is_reused(&mut self, file: &File) -> Result<bool, StoreError> {
        let head = file.read_at(64, 1).await?;
        Ok(head.first().is_none_or(|flags| flags & 1 != 0))
    }

    /// Compares both orders of a segment index with the rows of its segment.
    async fn compare_segment_index(
        &mut self,
        source: &SegmentSource,
        segment_index: &SegmentIndex,
        rows: &mut [RecordRow],
        missed: &mut Missed,
        is_reporting: bool,
    ) -> Result<(), StoreError> {
        let mut problems: Vec<(u64, String, Touched)> = Vec::new();
        let mut scan = segment_index.scan_seq(Seq(0));
        let mut count = 0;
        loop {
            let (entry, checksum) = match scan.next().await {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(error) => {
                    problems.push(segment_index_problem(error)?);
                    count = segment_index.trailer().record_count;
                    break;
                }
            };
            count += 1;
            match rows.binary_search_by_key(&entry.seq.0, |row| row.seq) {
                Ok(at) if rows[at] == RecordRow::of_entry(&entry, checksum) => {}
                _ if missed.take(&entry, checksum) => {}
                _ => problems.push((
                    entry.location.offset.into(),
                    format!("its segment index differs from the record of update {}", entry.seq.0),
                    Touched::OldVersion(entry.key.to_vec()),
                )),
            }
        }
        let said = segment_index.trailer().record_count;
        let found = rows.len() as u64 + missed.entries.len() as u64;
        if count != said || (found != said && missed.is_empty()) {
            let what =
                format!("its segment index has {count} entries and says {said}; there are {found} records");
            problems.push((segment_index.trailer().frames_end, what, Touched::Nothing));
        }
        if is_reporting {
            compare_keys(segment_index, rows, missed, &mut problems).await?;
            for (offset, what, touched) in problems {
                self.report(&source.path, offset, what, touched);
            }
        }
        Ok(())
    }

    /// Reads a rewritten segment.
    async fn take_rewritten_records(
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
                block_index
                    .push(address(entry.location.segment, entry.location.offset), entry.location.length);
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
        match segment.block_index().await {
            Ok(block_index) if block_index == expected => {}
            Ok(_) => {
                let what = "its block index doesn't match its records: records can't be found";
                self.report(&source.path, records_end, what, Touched::Unknown);
            }
            Err(ReadError::Io(error)) => return Err(error.into()),
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

/// Compares a segment index's order by key with the rows: it must have as many entries, each that of a row.
async fn compare_keys(
    segment_index: &SegmentIndex,
    rows: &[RecordRow],
    missed: &Missed,
    problems: &mut Vec<(u64, String, Touched)>,
) -> Result<(), StoreError> {
    let mut scan = segment_index.scan_keys(..);
    let mut count = 0;
    let mut last: Option<(Vec<u8>, u64)> = None;
    loop {
        let entry = match scan.next().await {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(error) => {
                problems.push(segment_index_problem(error)?);
                return Ok(());
            }
        };
        count += 1;
        let row = rows.binary_search_by_key(&entry.seq.0, |row| row.seq).ok().map(|at| &rows[at]);
        let is_known = match row {
            Some(row) => {
                RecordRow { is_damaged: row.is_damaged, ..RecordRow::of_entry(&entry, row.checksum) } == *row
            }
            None => missed.entries.contains_key(&entry.seq.0),
        };
        let ascends = last.as_ref().is_none_or(|(key, seq)| (&key[..], entry.seq.0) < (entry.key, *seq));
        let ascends = ascends || last.as_ref().is_some_and(|(key, _)| key[..] < *entry.key);
        if !is_known || !ascends || !segment_index.may_contain(entry.key) {
            let what = format!("its segment index by key is wrong about update {}", entry.seq.0);
            problems.push((entry.location.offset.into(), what, Touched::OldVersion(entry.key.to_vec())));
        }
        last = Some((entry.key.to_vec(), entry.seq.0));
    }
    let said = segment_index.trailer().record_count;
    if count != said {
        let what = format!("its segment index by key has {count} entries instead of {said}");
        problems.push((segment_index.trailer().frames_end, what, Touched::Nothing));
    }
    Ok(())
}

fn segment_index_problem(error: SegmentIndexError) -> Result<(u64, String, Touched), StoreError> {
    match error {
        SegmentIndexError::Io(error) => Err(error.into()),
        SegmentIndexError::Damaged { offset, what, .. } => {
            Ok((offset, format!("its segment index: {what}"), Touched::Nothing))
        }
        error => Ok((0, error.to_string(), Touched::Nothing)),
    }
}

/// Entries of a segment index whose records are not in readable frames.
#[derive(Default)]
struct Missed {
    ranges: Vec<(u64, u64)>,
    entries: BTreeMap<u64, (Entry, u64)>,
}

impl Missed {
    fn new(damage: &[Damage]) -> Missed {
        Missed { ranges: damage.iter().map(|one| (one.offset, one.end)).collect(), entries: BTreeMap::new() }
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds an entry whose record is in a damaged part.
    fn take(&mut self, entry: &EntryRef<'_>, checksum: u64) -> bool {
        let at = u64::from(entry.location.offset);
        let is_in = self.ranges.iter().any(|(start, end)| (*start..*end).contains(&at));
        if is_in {
            self.entries.insert(entry.seq.0, (entry.to_entry(), checksum));
        }
        is_in
    }

    /// Reads these records at their locations, and returns those that can't be read.
    async fn read(
        self,
        file: &File,
        rows: &mut Vec<RecordRow>,
        mut out: SalvageOut<'_>,
    ) -> Result<Vec<LostRecord>, StoreError> {
        let mut damaged = Vec::new();
        for (entry, checksum) in self.entries.into_values() {
            let Entry { seq, flags, key, meta, location } = &entry;
            let entry_ref = EntryRef { seq: *seq, flags: *flags, key, meta, location: *location };
            let mut row = RecordRow::of_entry(&entry_ref, checksum);
            let offset = u64::from(location.offset);
            match settee_log::read_record(file, offset, location.length).await {
                Ok(record) => {
                    let bytes = record.bytes().clone();
                    if let Ok(record) = RecordRef::decode(&bytes) {
                        out.iter_mut().for_each(|out| out.push(Salvaged::of(&record)));
                    }
                }
                Err(settee_log::ReadError::Io(error))
                    if !matches!(error, settee_io::Error::PastEnd { .. }) =>
                {
                    return Err(error.into());
                }
                Err(settee_log::ReadError::Damaged { what, .. }) => {
                    row.is_damaged = true;
                    damaged.push((offset, format!("a record: {what}"), key.clone(), seq.0));
                }
                Err(_) => {
                    row.is_damaged = true;
                    damaged.push((
                        offset,
                        "the file ends before a record does".to_owned(),
                        key.clone(),
                        seq.0,
                    ));
                }
            }
            rows.push(row);
        }
        Ok(damaged)
    }
}
