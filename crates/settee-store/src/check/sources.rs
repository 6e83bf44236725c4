//! One segment after another: its frames, or its records and pieces, and its directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, OpenMode, ReadAt, ReadPolicy};
use settee_log::{
    Damage, Directory, DirectoryError, Entry, EntryRef, Flags, Location, Record, RecordRef, Seq,
    check_segment, footer_start,
};

use super::{Problem, Source, Survey, Touched, key_hash, meta_hash};
use crate::error::{ReadError, StoreError};
use crate::segments::{Pieces, Segment, address};

/// How much of a rewritten segment is read at once, in bytes.
const READ_BYTES: u64 = 1 << 20;

/// A record, as the index is to have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub seq: u64,
    pub key_hash: u64,
    /// That which stands in the record.
    pub checksum: u64,
    pub segment: u32,
    pub offset: u32,
    pub length: u32,
    pub meta_hash: u32,
    pub flags: Flags,
    /// Its bytes are not what was written.
    pub is_damaged: bool,
    /// The index points to it.
    pub is_referenced: bool,
}

impl Row {
    fn of(location: Location, record: &RecordRef<'_>) -> Row {
        Row {
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

    fn of_entry(entry: &EntryRef<'_>, checksum: u64) -> Row {
        Row {
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

/// A record that was read from a store which may be damaged.
#[derive(Debug, Clone)]
pub struct Salvaged {
    /// The update number that it had.
    pub seq: u64,
    /// What it is.
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

/// A record that can't be read: where, why, its key and its `Seq`.
type Lost = (u64, String, Vec<u8>, u64);

/// Where the records of a segment go.
type Out<'a> = Option<&'a mut Vec<Salvaged>>;

impl Survey<'_> {
    /// Checks a segment, and appends its rows, in the order of their `Seq`s.
    pub(super) async fn take_source(
        &mut self,
        source: &Source,
        rows: &mut Vec<Row>,
        out: Out<'_>,
    ) -> Result<(), StoreError> {
        let file = Arc::new(File::open(&self.place.env.engine, &source.path, OpenMode::Read).await?);
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

    /// A segment as the log wrote it.
    async fn take_frames(
        &mut self,
        source: &Source,
        file: &Arc<File>,
        rows: &mut Vec<Row>,
        mut out: Out<'_>,
    ) -> Result<(), StoreError> {
        let number = source.name.first;
        let first = rows.len();
        let mut doubted: Vec<(u64, Vec<u8>, u64)> = Vec::new();
        let known = Seq(self.checkpoint_seq());
        let visit = |location: Location, record: RecordRef<'_>, is_sound: bool| match is_sound {
            _ if record.is_extent() => {}
            true => {
                rows.push(Row::of(location, &record));
                out.iter_mut().for_each(|out| out.push(Salvaged::of(&record)));
            }
            false => doubted.push((location.offset.into(), record.key.to_vec(), record.seq.0)),
        };
        let checked = check_segment(file, number, source.end, self.log_id, known, visit).await?;
        let directory = self.open_directory(source, file, out.is_none(), checked.frames_end).await?;
        let mut missed = Missed::new(&checked.damage);
        if let Some(directory) = &directory {
            self.compare_directory(source, directory, &mut rows[first..], &mut missed, out.is_none()).await?;
        }
        // What the directory still knows of what frames don't tell any more.
        let found = missed.read(file, rows, out.as_deref_mut()).await?;
        if out.is_some() {
            return Ok(());
        }
        for damage in &checked.damage {
            let Damage { offset, what, is_doubtful, .. } = *damage;
            let what = what.to_owned();
            self.tell(Problem {
                path: source.path.clone(),
                offset,
                what,
                touched: Touched::Unknown,
                is_doubtful,
            });
        }
        for (offset, key, seq) in doubted {
            // Without a directory that tells, it is believed what stands there.
            if !found.iter().any(|(known, ..)| *known == offset) {
                let touched = self.touched_by(seq, key);
                let what =
                    "a record's checksum doesn't match; its key and update are told as they stand there";
                self.report(&source.path, offset, what, touched);
            }
        }
        for (offset, what, key, seq) in found {
            let touched = self.touched_by(seq, key);
            self.report(&source.path, offset, what, touched);
        }
        self.check_chain(source, &checked);
        self.summary.last_seq = self.summary.last_seq.max(checked.last_seq.0);
        Ok(())
    }

    /// What the damage of a record touches: the index may point to it, or it comes after the checkpoint.
    /// Without an index nobody can tell whether it was its key's last.
    fn touched_by(&mut self, seq: u64, key: Vec<u8>) -> Touched {
        if seq <= self.checkpoint_seq() {
            return Touched::OldVersion(key);
        }
        self.lost.insert(seq, key.clone());
        Touched::Key(key)
    }

    /// Whether a segment follows the one before it.
    fn check_chain(&mut self, source: &Source, checked: &settee_log::SegmentCheck) {
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

    /// A segment's directory, where it has one; what is wrong with it is told.
    async fn open_directory(
        &mut self,
        source: &Source,
        file: &Arc<File>,
        tells: bool,
        frames_end: u64,
    ) -> Result<Option<Directory>, StoreError> {
        let (first, last) = (source.name.first, source.name.last);
        let error = match Directory::open_covering(file.clone(), first, last, source.name.epoch).await {
            Ok(directory) => return Ok(Some(directory)),
            Err(DirectoryError::Io(error)) => return Err(error.into()),
            Err(error) => error,
        };
        if !tells {
            return Ok(None);
        }
        match error {
            DirectoryError::Absent { .. } if !source.is_handed_over => {
                // Not sealed yet: then nothing was written there.
                let length = file.length().await?;
                let start = footer_start(frames_end);
                if source.end.is_some() && start < length && !self.is_reused(file).await? {
                    let bytes = file.read_exact_at(start, (length - start) as usize).await?;
                    if bytes.iter().any(|byte| *byte != 0) {
                        let what = "behind its frames stands no whole directory: sealing was cut short, or it is damaged";
                        self.tell(Problem {
                            path: source.path.clone(),
                            offset: start,
                            what: what.to_owned(),
                            touched: Touched::Nothing,
                            is_doubtful: true,
                        });
                    }
                }
            }
            DirectoryError::Absent { .. } => {
                let offset = file.length().await?.saturating_sub(settee_log::TRAILER_SIZE as u64);
                let what = "it doesn't end with a directory";
                self.report(&source.path, offset, what, Touched::Nothing);
            }
            DirectoryError::Damaged { offset, what, .. } => {
                self.report(&source.path, offset, format!("its directory: {what}"), Touched::Nothing);
            }
            error => self.report(&source.path, 0, error.to_string(), Touched::Nothing),
        }
        Ok(None)
    }

    async fn is_reused(&mut self, file: &File) -> Result<bool, StoreError> {
        let head = file.read_at(64, 1).await?;
        Ok(head.first().is_none_or(|flags| flags & 1 != 0))
    }

    /// Compares a directory, both orders of it, with the rows of its segment.
    async fn compare_directory(
        &mut self,
        source: &Source,
        directory: &Directory,
        rows: &mut [Row],
        missed: &mut Missed,
        tells: bool,
    ) -> Result<(), StoreError> {
        let mut problems: Vec<(u64, String, Touched)> = Vec::new();
        let mut scan = directory.scan_seq(Seq(0));
        let mut count = 0;
        loop {
            let (entry, checksum) = match scan.next().await {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(error) => {
                    problems.push(directory_problem(error)?);
                    count = directory.trailer().record_count;
                    break;
                }
            };
            count += 1;
            match rows.binary_search_by_key(&entry.seq.0, |row| row.seq) {
                Ok(at) if rows[at] == Row::of_entry(&entry, checksum) => {}
                _ if missed.take(&entry, checksum) => {}
                _ => problems.push((
                    entry.location.offset.into(),
                    format!("its directory says of update {} what its record doesn't", entry.seq.0),
                    Touched::OldVersion(entry.key.to_vec()),
                )),
            }
        }
        let said = directory.trailer().record_count;
        let found = rows.len() as u64 + missed.entries.len() as u64;
        if count != said || (found != said && missed.is_empty()) {
            let what =
                format!("its directory has {count} entries and says {said}; there are {found} records");
            problems.push((directory.trailer().frames_end, what, Touched::Nothing));
        }
        if tells {
            compare_keys(directory, rows, missed, &mut problems).await?;
            for (offset, what, touched) in problems {
                self.report(&source.path, offset, what, touched);
            }
        }
        Ok(())
    }

    /// A segment that was rewritten.
    async fn take_rewritten_records(
        &mut self,
        source: &Source,
        file: &Arc<File>,
        rows: &mut Vec<Row>,
        mut out: Out<'_>,
    ) -> Result<(), StoreError> {
        let tells = out.is_none();
        let first = rows.len();
        let Some(directory) = self.open_directory(source, file, tells, 0).await? else {
            return self.take_without_directory(source, file, rows, out).await;
        };
        let mut pieces = Pieces::default();
        let mut scan = directory.scan_seq(Seq(0));
        let mut batch: Vec<(Entry, u64, u64)> = Vec::new();
        let (mut place, mut bytes) = (0, 0);
        loop {
            let next = match scan.next().await {
                Ok(next) => next,
                Err(error) => {
                    let (offset, what, touched) = directory_problem(error)?;
                    if tells {
                        self.report(&source.path, offset, what, touched);
                    }
                    rows.truncate(first);
                    return self.take_without_directory(source, file, rows, out).await;
                }
            };
            let is_end = next.is_none();
            if let Some((entry, checksum)) = next {
                let length = u64::from(entry.location.length);
                pieces.push(address(entry.location.segment, entry.location.offset), entry.location.length);
                rows.push(Row::of_entry(&entry, checksum));
                batch.push((entry.to_entry(), checksum, place));
                place += length;
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
        if tells {
            let mut problems = Vec::new();
            compare_keys(&directory, &rows[first..], &Missed::default(), &mut problems).await?;
            for (offset, what, touched) in problems {
                self.report(&source.path, offset, what, touched);
            }
            self.check_pieces(source, file, &pieces, place, &directory).await?;
        }
        Ok(())
    }

    async fn read_batch(
        &mut self,
        source: &Source,
        file: &File,
        batch: &mut Vec<(Entry, u64, u64)>,
        rows: &mut [Row],
        mut out: Out<'_>,
    ) -> Result<(), StoreError> {
        let reads: Vec<_> = batch
            .iter()
            .map(|(entry, _, place)| ReadAt::new(*place, entry.location.length as usize))
            .collect();
        let values = file.read_many(&reads, ReadPolicy::ADJACENT_ONLY).await;
        let start = rows.len() - batch.len();
        for (index, (value, (entry, checksum, place))) in values.into_iter().zip(batch.drain(..)).enumerate()
        {
            let what = match value {
                Ok(bytes) => match RecordRef::decode(&bytes) {
                    Ok(record) if (record.seq, record.checksum()) != (entry.seq, checksum) => {
                        "another record stands there than its directory says"
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
                self.report(&source.path, place, what, touched);
            }
        }
        Ok(())
    }

    /// The index of pieces, and what stands between it and the directory.
    async fn check_pieces(
        &mut self,
        source: &Source,
        file: &Arc<File>,
        expected: &Pieces,
        records_end: u64,
        directory: &Directory,
    ) -> Result<(), StoreError> {
        let segment = Segment::new(&self.place.env, &self.place.folder, source.name, false);
        match segment.pieces().await {
            Ok(pieces) if pieces == expected => {}
            Ok(_) => {
                let what = "its pieces are not those of its records: records can't be found";
                self.report(&source.path, records_end, what, Touched::Unknown);
            }
            Err(ReadError::Io(error)) => return Err(error.into()),
            Err(error) => {
                let what = format!("its pieces can't be read, nor any record by them ({error})");
                self.report(&source.path, records_end, what, Touched::Unknown);
            }
        }
        let (end, start) = (directory.trailer().frames_end, footer_start(directory.trailer().frames_end));
        if end != source.name.bytes {
            let what = format!(
                "its records and pieces take {end} bytes, and the manifest says {}",
                source.name.bytes
            );
            self.report(&source.path, end, what, Touched::Nothing);
        }
        let gap = file.read_at(end, (start - end) as usize).await?;
        if gap.iter().any(|byte| *byte != 0) {
            self.report(
                &source.path,
                end,
                "something stands between its pieces and its directory",
                Touched::Nothing,
            );
        }
        Ok(())
    }

    /// The records of a rewritten segment whose directory is lost, as they lie one behind another.
    async fn take_without_directory(
        &mut self,
        source: &Source,
        file: &File,
        rows: &mut Vec<Row>,
        mut out: Out<'_>,
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
                    // Where it lay first only the directory said.
                    let location =
                        Location { segment: source.name.first, offset: u32::MAX, length: size as u32 };
                    rows.push(Row::of(location, &record));
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

/// Compares a directory's order by key with the rows: as many entries, and each that of a row.
async fn compare_keys(
    directory: &Directory,
    rows: &[Row],
    missed: &Missed,
    problems: &mut Vec<(u64, String, Touched)>,
) -> Result<(), StoreError> {
    let mut scan = directory.scan_keys(..);
    let mut count = 0;
    let mut last: Option<(Vec<u8>, u64)> = None;
    loop {
        let entry = match scan.next().await {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(error) => {
                problems.push(directory_problem(error)?);
                return Ok(());
            }
        };
        count += 1;
        let row = rows.binary_search_by_key(&entry.seq.0, |row| row.seq).ok().map(|at| &rows[at]);
        let is_known = match row {
            Some(row) => Row { is_damaged: row.is_damaged, ..Row::of_entry(&entry, row.checksum) } == *row,
            None => missed.entries.contains_key(&entry.seq.0),
        };
        let ascends = last.as_ref().is_none_or(|(key, seq)| (&key[..], entry.seq.0) < (entry.key, *seq));
        let ascends = ascends || last.as_ref().is_some_and(|(key, _)| key[..] < *entry.key);
        if !is_known || !ascends || !directory.may_contain(entry.key) {
            let what = format!("its directory's order by key has update {} wrong", entry.seq.0);
            problems.push((entry.location.offset.into(), what, Touched::OldVersion(entry.key.to_vec())));
        }
        last = Some((entry.key.to_vec(), entry.seq.0));
    }
    let said = directory.trailer().record_count;
    if count != said {
        let what = format!("its directory's order by key has {count} entries, and not {said}");
        problems.push((directory.trailer().frames_end, what, Touched::Nothing));
    }
    Ok(())
}

fn directory_problem(error: DirectoryError) -> Result<(u64, String, Touched), StoreError> {
    match error {
        DirectoryError::Io(error) => Err(error.into()),
        DirectoryError::Damaged { offset, what, .. } => {
            Ok((offset, format!("its directory: {what}"), Touched::Nothing))
        }
        error => Ok((0, error.to_string(), Touched::Nothing)),
    }
}

/// Entries of a directory whose records the frames don't tell.
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

    /// Takes an entry whose record lies in what is damaged.
    fn take(&mut self, entry: &EntryRef<'_>, checksum: u64) -> bool {
        let at = u64::from(entry.location.offset);
        let is_in = self.ranges.iter().any(|(start, end)| (*start..*end).contains(&at));
        if is_in {
            self.entries.insert(entry.seq.0, (entry.to_entry(), checksum));
        }
        is_in
    }

    /// Reads what was missed, each where it lies; what can't be read is told.
    async fn read(self, file: &File, rows: &mut Vec<Row>, mut out: Out<'_>) -> Result<Vec<Lost>, StoreError> {
        let mut damaged = Vec::new();
        for (entry, checksum) in self.entries.into_values() {
            let Entry { seq, flags, key, meta, location } = &entry;
            let entry_ref = EntryRef { seq: *seq, flags: *flags, key, meta, location: *location };
            let mut row = Row::of_entry(&entry_ref, checksum);
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
