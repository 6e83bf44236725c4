//! Verification: reads every checksummed byte of a store, and compares its files with each other.
//!
//! The segments are read one after another, frames or records, each with its segment index. A row of a few
//! dozen bytes is kept for each record: its location, its flags, and hashes of its key and meta. Once there
//! are many rows, or no more segments, the whole tree is read and compared: each entry with the rows it
//! points to, each row with the tree's entry of its key. Memory is therefore bounded, and a store of a few
//! million records costs one pass over each of its files. The same pass yields every readable record for
//! repair (`repair.rs`).
//!
//! Nothing is changed, truncated or locked: the caller keeps others from writing to the store.
//!
//! Invariants:
//! 1. Damage does not end the check: what can be read after it is checked too.
//! 2. A problem names the keys it touches as far as the readable rest tells.
//! 3. What a crash may leave is reported as doubtful, not as damage.

use std::path::Path;
use std::sync::Arc;

use settee_io::{Env, File, OpenMode};
use settee_log::FileDigest;

use crate::error::StoreError;
use crate::options::StoreOptions;

mod frames;
mod index;
mod inventory;
mod previous;
mod problem;
mod rewritten;
mod row;
mod salvage;
mod segment_index;
mod survey;

pub use inventory::is_previous_format;
pub use problem::{CheckEvent, CheckSummary, Problem, Touched};
pub use salvage::Salvaged;
pub(crate) use survey::Survey;

use index::Suspects;
use row::RecordRow;
use salvage::SalvageOut;
use survey::SegmentSource;

/// Number of rows compared with the tree at once; they take about 200 MiB.
const ROW_COUNT_MAX: usize = 4 << 20;

/// Checks the store in `directory`, which no process may have open, and reports problems to `on_event` as
/// they are found. `options` must be those that the store is opened with, since its aggregates follow from
/// them.
///
/// # Errors
/// The system's error. Damage is reported and is no error.
pub async fn check(
    env: &Env,
    directory: &Path,
    options: &StoreOptions,
    mut on_event: impl FnMut(CheckEvent) + Send,
) -> Result<CheckSummary, StoreError> {
    let mut survey = Survey::new(env, directory, options, &mut on_event);
    survey.read_manifest().await?;
    survey.find_sources().await?;
    survey.open_tree().await?;
    survey.check_all().await?;
    Ok(survey.summary)
}

impl Survey<'_> {
    /// Checks everything, some segments at a time.
    pub(crate) async fn check_all(&mut self) -> Result<(), StoreError> {
        self.all_bytes = self.tree.as_ref().map_or(0, |tree| tree.root().live_bytes());
        for source in &self.sources {
            let file = File::open(&self.context.env.engine, &source.path, OpenMode::Read).await?;
            self.all_bytes += file.length().await?;
        }
        let mut suspects = Suspects::default();
        let mut rows = Vec::new();
        let mut is_first = true;
        let sources = std::mem::take(&mut self.sources);
        let mut first_number = 0;
        for (index, source) in sources.iter().enumerate() {
            self.take_source(source, &mut rows, None).await?;
            let is_last = index + 1 == sources.len();
            if rows.len() >= ROW_COUNT_MAX || is_last {
                let numbers = first_number..=if is_last { u32::MAX } else { source.name.last };
                self.check_index(&mut rows, numbers, is_first, &mut suspects).await?;
                (is_first, first_number) = (false, source.name.last + 1);
                rows.clear();
            }
        }
        if sources.is_empty() {
            self.check_index(&mut rows, 0..=u32::MAX, true, &mut suspects).await?;
        }
        self.sources = sources;
        self.check_suspects(suspects).await?;
        if let Some(current) = self.timelines.current()
            && current.after.0 > self.summary.last_seq
        {
            let what = format!(
                "the log ends at update {}, and its timeline begins after {}: a part of the log is missing",
                self.summary.last_seq, current.after.0
            );
            let directory = self.context.directory.clone();
            self.report(&directory, 0, what, Touched::Unknown);
        }
        if let Some(tree) = &self.tree
            && tree.root().seq() > self.summary.last_seq
        {
            let what = format!(
                "the log ends at update {}, and the index at {}: a part of the log is missing",
                self.summary.last_seq,
                tree.root().seq()
            );
            let directory = self.context.directory.clone();
            self.report(&directory, 0, what, Touched::Unknown);
        }
        Ok(())
    }

    /// Compares a listed segment's file with the length and the checksum that the manifest has.
    async fn check_digest(&mut self, source: &SegmentSource, file: &File) -> Result<(), StoreError> {
        let (expected, found) = (source.name.digest, FileDigest::of(file).await?);
        if found.length != expected.length {
            let what =
                format!("it has {} bytes, and had {} when it was sealed", found.length, expected.length);
            self.report(&source.path, found.length.min(expected.length), what, Touched::Unknown);
        } else if found != expected {
            let what = "its checksum isn't the manifest's: it isn't the file that the log sealed";
            self.report(&source.path, 0, what, Touched::Unknown);
        }
        Ok(())
    }

    /// Number of segments.
    pub(crate) fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// The readable records of one segment.
    pub(crate) async fn salvage_source(&mut self, index: usize) -> Result<Vec<Salvaged>, StoreError> {
        let sources = std::mem::take(&mut self.sources);
        let mut salvaged = Vec::new();
        let taken = self.take_source(&sources[index], &mut Vec::new(), Some(&mut salvaged)).await;
        self.sources = sources;
        taken?;
        salvaged.sort_by_key(|record: &Salvaged| record.seq);
        salvaged.dedup_by_key(|record| record.seq);
        Ok(salvaged)
    }

    /// Checks a segment, and appends its rows in the order of `Seq`.
    async fn take_source(
        &mut self,
        source: &SegmentSource,
        rows: &mut Vec<RecordRow>,
        out: SalvageOut<'_>,
    ) -> Result<(), StoreError> {
        let file = Arc::new(File::open(&self.context.env.engine, &source.path, OpenMode::Read).await?);
        let length = file.length().await?;
        let first = rows.len();
        let is_checking = out.is_none();
        let problem_count = self.summary.problem_count;
        match source.name.generation {
            0 => self.take_frames(source, &file, rows, out).await?,
            _ => self.take_rewritten_records(source, &file, rows, out).await?,
        }
        let has_digest = is_checking && source.is_listed && source.name.digest.length > 0;
        // Other problems of the file say more.
        if has_digest && self.summary.problem_count == problem_count {
            self.check_digest(source, &file).await?;
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
}
