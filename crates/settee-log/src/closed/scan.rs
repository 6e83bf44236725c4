//! Scanning a closed segment: its records, frame by frame.

use settee_io::{Damage, File};

use crate::error::ReadError;
use crate::format::{RecordRef, SEGMENT_HEADER_SIZE, SegmentHeader};
use crate::frames::{FrameChain, Tail};
use crate::types::Location;

/// Passes each record of a segment's frames to `visit`, and returns where the whole frames end.
pub(super) async fn walk(
    chain: &mut FrameChain<'_>,
    mut visit: impl FnMut(Location, RecordRef<'_>),
) -> Result<Tail, settee_io::Error> {
    while let Some(frame) = chain.next().await? {
        frame.records().for_each(|(location, record)| visit(location, record));
    }
    Ok(chain.tail)
}

/// Passes each record of a segment to `visit`, in the order of its frames. For a caller that needs the records of
/// a segment whose index is missing or damaged. `frame_bytes` is where its frames end
/// ([`crate::SegmentInfo::frame_bytes`]). Only a window of its bytes is in memory at a time. Dropping the future ends
/// the scan.
///
/// # Errors
/// [`ReadError::Damaged`] if the whole frames end earlier: the records before that were visited. Or an I/O
/// error.
pub async fn scan_segment(
    file: &File,
    segment: u32,
    frame_bytes: u64,
    visit: impl FnMut(Location, RecordRef<'_>),
) -> Result<(), ReadError> {
    let tail = walk_segment(file, segment, frame_bytes, visit).await?;
    match tail.end == frame_bytes {
        true => Ok(()),
        false => Err(damaged(file, tail.end, "a frame is damaged")),
    }
}

/// As [`scan_segment`], for a segment that the log may still write to: ends before the first frame that isn't
/// whole in the file, or at `end`. So it visits all records that were persisted before the call and end before
/// `end`, which must not be past the end of the file.
///
/// # Errors
/// [`ReadError::Damaged`] if the segment has no valid header. Or an I/O error.
pub async fn scan_whole_frames(
    file: &File,
    segment: u32,
    end: u64,
    visit: impl FnMut(Location, RecordRef<'_>),
) -> Result<(), ReadError> {
    walk_segment(file, segment, end, visit).await.map(drop)
}

async fn walk_segment(
    file: &File,
    segment: u32,
    end: u64,
    visit: impl FnMut(Location, RecordRef<'_>),
) -> Result<Tail, ReadError> {
    let head = file.read_exact_at(0, SEGMENT_HEADER_SIZE).await?;
    let (header, checksum) = match SegmentHeader::decode(&head) {
        Ok((header, checksum)) if header.segment == segment => (header, checksum),
        _ => return Err(damaged(file, 0, "its header isn't that of the segment")),
    };
    Ok(walk(&mut FrameChain::new(file, &header, checksum, end), visit).await?)
}

fn damaged(file: &File, offset: u64, what: &'static str) -> ReadError {
    ReadError::Damaged(Damage { path: file.path().to_path_buf(), offset, what })
}
