//! Reads a segment as the log wrote it: its frames, compared with its segment index.

use std::sync::Arc;

use settee_io::File;
use settee_log::{DamagedRange, Location, RecordRef, SegmentCheck, Seq, Timelines, check_segment};

use super::problem::{Problem, Touched};
use super::row::RecordRow;
use super::salvage::{SalvageOut, Salvaged};
use super::segment_index::Missed;
use super::survey::{LogEnd, SegmentSource, Survey};
use crate::error::StoreError;

impl Survey<'_> {
    /// Reads a segment as the log wrote it.
    pub(super) async fn take_frames(
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
            true => {
                rows.push(RecordRow::of(location, &record));
                out.iter_mut().for_each(|out| out.push(Salvaged::of(&record)));
            }
            false => doubted.push((location.offset.into(), record.key.to_vec(), record.seq.0)),
        };
        // A segment whose header is damaged is of the timeline that the manifest says, or probably of the last one.
        let listed = self.timelines.iter().nth(source.name.timeline as usize).filter(|_| source.is_listed);
        let timeline = listed.copied().or(self.timelines.current()).map(|timeline| timeline.id);
        let checked = check_segment(file, number, source.end, timeline, known, self.format, visit).await?;
        let segment_index =
            self.open_segment_index(source, file, out.is_none(), checked.unused_start).await?;
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
            let DamagedRange { offset, what, is_doubtful, .. } = *damage;
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

    /// Checks that a segment follows the one before it.
    fn check_succession(&mut self, source: &SegmentSource, checked: &SegmentCheck) {
        let number = source.name.first;
        let before = self.log_end.take().filter(|before| before.number + 1 == number);
        if let Some(head) = checked.head {
            if self.timelines.count() == 0 {
                self.timelines = Timelines::first(head.timeline);
            }
            let index = self.timelines.index_of(head.timeline);
            let is_other = source.is_listed && self.manifest.is_some() && index != Some(source.name.timeline);
            if is_other || index.is_none() {
                let what = "it belongs to another log, or to another timeline of this one";
                self.report(&source.path, 24, what, Touched::Unknown);
            } else if index.is_some_and(|index| checked.last_seq > self.timelines.last_seq(index)) {
                let what = "it goes on after its timeline's end: it isn't this copy's";
                self.report(&source.path, 24, what, Touched::Unknown);
            }
            if let Some(before) = before {
                if (head.previous_end, head.previous_checksum) != (before.end, before.checksum) {
                    let what = "its header doesn't follow the segment before it";
                    self.report(&source.path, 0, what, Touched::Unknown);
                }
                // In another epoch, the log may have cut a torn tail, of which the last block keeps a part.
                if before.is_padding_written && before.epoch == Some(head.epoch) {
                    let what = "unexpected bytes after the last frame";
                    self.report(&before.path, before.end, what, Touched::Nothing);
                }
            }
        }
        if source.end.is_some_and(|end| end != checked.frames_end) && checked.damage.is_empty() {
            let what = format!("its frames end here, and not at {}", source.end.unwrap_or_default());
            self.report(&source.path, checked.frames_end, what, Touched::Unknown);
        }
        self.log_end = checked.frames_checksum.map(|checksum| LogEnd {
            path: source.path.clone(),
            number,
            epoch: checked.head.map(|head| head.epoch),
            end: checked.frames_end,
            checksum,
            is_padding_written: checked.is_padding_written,
        });
    }
}
