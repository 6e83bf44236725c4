//! One segment during recovery: its file and its header, what they allow, and setting it aside.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_io::{Damage, Env, File, OpenMode, directory};

use crate::error::OpenError;
use crate::format::{
    FORMAT_VERSION, FrameSeed, HeaderError, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT,
    SegmentHeader,
};
use crate::frames::{FrameReader, Remainder};
use crate::manifest::Manifest;
use crate::segment_name::{segment_number, segment_path};
use crate::timeline::Timelines;

/// Largest number of segments that a crash can leave without a header: the previous one, if no sync of it has
/// completed yet; the current one, to which nothing is written until then; and the preallocated next one.
pub(super) const TORN_SEGMENT_COUNT_MAX: usize = 3;

/// Error text for a segment of another log, or of another copy of this one.
pub(super) const FOREIGN: &str = "it belongs to another log, or to another timeline of this one";
/// Error text for a segment of an earlier timeline that goes on after the record where the next one begins.
pub(super) const BEYOND_TIMELINE: &str =
    "it goes on after its timeline's end: it isn't this copy's, or damaged";
/// Error text for a segment whose header is not whole.
pub(super) const DAMAGED_HEADER: &str = "its header is damaged";

/// Largest part of a file that can contain frames, in bytes.
pub(super) const BYTES_MAX: u64 = SEGMENT_BYTES_LIMIT as u64;

/// A segment's file and its decoded header.
pub(super) struct Segment {
    pub number: u32,
    pub path: PathBuf,
    pub file: Arc<File>,
    pub length: u64,
    pub header: Result<(SegmentHeader, u64), HeaderError>,
}

/// Opens the segments that the manifest doesn't name.
pub(super) async fn open_segments(
    env: &Env,
    directory: &Path,
    manifest: Option<&Manifest>,
) -> Result<Vec<Segment>, OpenError> {
    let entries = directory::list(&*env.engine, directory).await?;
    let numbers = entries.iter().filter_map(|entry| segment_number(&entry.name));
    let is_named = |number: &u32| manifest.is_some_and(|manifest| manifest.names_log_segment(*number));
    let mut segments = Vec::new();
    for number in numbers.filter(|number| !is_named(number)) {
        match Segment::open(env, directory, number).await {
            // Its last user in this process has just removed it.
            Err(OpenError::Io(error))
                if error.is_not_found() && manifest.is_some_and(|one| number <= one.listed_to) => {}
            opened => segments.push(opened?),
        }
    }
    Ok(segments)
}

impl Segment {
    pub(super) async fn open(env: &Env, directory: &Path, number: u32) -> Result<Segment, OpenError> {
        let path = segment_path(directory, number);
        let file = Arc::new(File::open(&env.engine, &path, OpenMode::Write).await?);
        let length = file.length().await?;
        let header = SegmentHeader::decode(&file.read_at(0, SEGMENT_HEADER_SIZE).await?);
        Ok(Segment { number, path, file, length, header })
    }

    /// A reader of the frames that were written for this segment; without a seed, of everything that looks like
    /// one.
    pub(super) fn frames(&self, seed: Option<FrameSeed>) -> FrameReader<'_> {
        let epoch = self.header.ok().map(|(header, _)| header.epoch);
        FrameReader::new(&self.file, self.number, epoch, seed, self.length)
    }

    /// Checks that the file has at least `end` bytes.
    pub(super) fn check_length(&self, end: u64) -> Result<(), OpenError> {
        match end > self.length {
            true => Err(self.damaged(self.length, "it is shorter than it should be")),
            false => Ok(()),
        }
    }

    pub(super) fn damaged(&self, offset: u64, what: &'static str) -> OpenError {
        OpenError::Damaged(Damage { path: self.path.clone(), offset, what })
    }

    /// The header and its checksum.
    pub(super) fn header(&self) -> Result<(SegmentHeader, u64), OpenError> {
        match self.header {
            Ok((header, checksum)) if header.segment == self.number => Ok((header, checksum)),
            Ok(_) => Err(self.damaged(0, "it is another segment, renamed")),
            Err(HeaderError::Invalid) => Err(self.damaged(0, DAMAGED_HEADER)),
            Err(HeaderError::Impossible(what)) => Err(self.damaged(0, what)),
            Err(HeaderError::Version(found)) => {
                Err(OpenError::OtherFormat { path: self.path.clone(), found, known: FORMAT_VERSION })
            }
        }
    }

    /// Removes the segment from the log: renames its file if something had been written to it, for later
    /// inspection, and otherwise removes it. Returns the number of bytes written.
    pub(super) async fn set_aside(
        &self,
        env: &Env,
        directory: &Path,
        seed: Option<FrameSeed>,
    ) -> Result<u64, OpenError> {
        let mut frames = self.frames(seed);
        let content = frames.remainder(0).await?;
        let first_block = frames.bytes(0, SYNC_ALIGNMENT as usize).await?;
        // A file that was about to be recycled has a zeroed header, followed by its old content.
        let is_unused =
            first_block.iter().take(SYNC_ALIGNMENT as usize).all(|byte| *byte == 0) && !content.has_frames;
        let written = if is_unused { 0 } else { content.written_end };
        if written > 0 || self.length > BYTES_MAX {
            let aside = self.path.with_extension("torn");
            tracing::warn!(path = %aside.display(), bytes = written, "set aside a segment without a header");
            directory::rename(&*env.engine, &self.path, &aside).await?;
        } else {
            if self.length == 0 {
                tracing::warn!(
                    path = %self.path.display(),
                    "removed an empty segment: never written, or cut"
                );
            }
            directory::remove(&*env.engine, &self.path).await?;
        }
        directory::sync(&*env.engine, directory).await?;
        Ok(written)
    }

    /// Checks that this segment, which the manifest covers and doesn't name, isn't another log's, as far as its
    /// header shows.
    pub(super) fn check_left_over(&self, timelines: &Timelines) -> Result<(), OpenError> {
        match self.header {
            // The header of a file that is about to be recycled was zeroed.
            Err(HeaderError::Invalid) => Ok(()),
            _ => self.timeline(timelines).map(drop),
        }
    }

    /// The index of its timeline among those of the log. Fails if the segment begins outside of it.
    pub(super) fn timeline(&self, timelines: &Timelines) -> Result<u32, OpenError> {
        let (header, _) = self.header()?;
        let index = timelines.index_of(header.timeline).ok_or_else(|| self.damaged(0, FOREIGN))?;
        let (after, last_seq) = (timelines.after(index), timelines.last_seq(index).0);
        match header.first_seq {
            seq if seq <= after => Err(self.damaged(0, "it begins before its timeline")),
            seq if seq - 1 > last_seq => Err(self.damaged(0, BEYOND_TIMELINE)),
            _ => Ok(index),
        }
    }

    /// Removes the file, or sets it aside if its header is damaged.
    pub(super) async fn remove_left_over(
        &self,
        env: &Env,
        directory: &Path,
        seed: Option<FrameSeed>,
    ) -> Result<(), OpenError> {
        let head = self.file.read_at(0, SEGMENT_HEADER_SIZE).await?;
        if self.header.is_err() && head.iter().any(|byte| *byte != 0) {
            return self.set_aside(env, directory, seed).await.map(drop);
        }
        match directory::remove(&*env.engine, &self.path).await {
            // Its last user in this process has just removed it.
            Err(error) if error.is_not_found() => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Checks that the headers allow this segment to follow the segment `before`.
    pub(super) fn check_follows(&self, before: &Segment) -> Result<(), OpenError> {
        let ((header, _), (before, _)) = (self.header()?, before.header()?);
        if header.epoch < before.epoch {
            return Err(self.damaged(0, FOREIGN));
        }
        Ok(())
    }

    /// Checks that everything from `cut` on may be cut: no whole frame or close mark in the remainder says that
    /// more than `cut` had been persisted.
    pub(super) fn check_cut(&self, cut: u64, remainder: &Remainder) -> Result<(), OpenError> {
        match remainder.proves_more_persisted {
            true => Err(self.damaged(cut, "a frame is damaged below what had been persisted")),
            false => Ok(()),
        }
    }
}
