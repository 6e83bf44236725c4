//! Compares a segment's index with the segment's rows, in both of its orders.

use std::collections::BTreeMap;
use std::sync::Arc;

use settee_io::{Damage, File};
use settee_log::{DamagedRange, Entry, EntryRef, RecordRef, SegmentIndex, SegmentIndexError, Seq};

use super::problem::{Problem, Touched};
use super::row::RecordRow;
use super::salvage::{SalvageOut, Salvaged};
use super::survey::{SegmentSource, Survey};
use crate::error::StoreError;

/// Offset, problem, key and `Seq` of an unreadable record.
type LostRecord = (u64, String, Vec<u8>, u64);

impl Survey<'_> {
    /// Opens a segment's index, if it has one, and reports its problems.
    pub(super) async fn open_segment_index(
        &mut self,
        source: &SegmentSource,
        file: &Arc<File>,
        is_reporting: bool,
        unused_start: u64,
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
            SegmentIndexError::Absent { .. } if !source.is_listed => {
                // Not sealed yet: nothing may be written there.
                let length = file.length().await?;
                let start = unused_start;
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
            SegmentIndexError::Damaged(Damage { offset, what, .. }) => {
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
    pub(super) async fn compare_segment_index(
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
}

/// Compares a segment index's order by key with the rows: it must have as many entries, each that of a row.
pub(super) async fn compare_keys(
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

pub(super) fn segment_index_problem(error: SegmentIndexError) -> Result<(u64, String, Touched), StoreError> {
    match error {
        SegmentIndexError::Io(error) => Err(error.into()),
        SegmentIndexError::Damaged(Damage { offset, what, .. }) => {
            Ok((offset, format!("its segment index: {what}"), Touched::Nothing))
        }
        error => Ok((0, error.to_string(), Touched::Nothing)),
    }
}

/// Entries of a segment index whose records are not in readable frames.
#[derive(Default)]
pub(super) struct Missed {
    ranges: Vec<(u64, u64)>,
    entries: BTreeMap<u64, (Entry, u64)>,
}

impl Missed {
    pub(super) fn new(damage: &[DamagedRange]) -> Missed {
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
    pub(super) async fn read(
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
                Err(settee_log::ReadError::Damaged(Damage { what, .. })) => {
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
