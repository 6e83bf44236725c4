//! Scanning a segment: reads its frames one window after another.

use settee_io::{Damage, File};

use crate::error::ReadError;
use crate::format::{RecordRef, SEGMENT_HEADER_SIZE, SegmentHeader, Tail, next_frame, next_frame_end};
use crate::types::Location;

/// Bytes of a segment read at once, if no frame is larger: small enough to stay in the processor's cache, in
/// reused memory.
const WINDOW_BYTES: u64 = 256 << 10;

/// Passes each record and extent of a segment's frames up to `end` to `visit`, and returns where the whole
/// frames end.
pub(super) async fn walk(
    file: &File,
    header: &SegmentHeader,
    checksum: u64,
    end: u64,
    mut visit: impl FnMut(Location, RecordRef<'_>),
) -> Result<Tail, settee_io::Error> {
    let mut tail = Tail { segment: header.segment, end: SEGMENT_HEADER_SIZE as u64, checksum };
    let mut last_seq = header.first_seq - 1;
    let mut size = WINDOW_BYTES;
    loop {
        let base = tail.end;
        let remaining = end.saturating_sub(base);
        let window = file.read_exact_at(base, remaining.min(size) as usize).await?;
        let bytes = (base as usize, &window[..]);
        while let Some((start, frame)) = next_frame(bytes, header, &tail, last_seq) {
            for (offset, record) in frame.records() {
                let offset = (start + offset) as u32;
                let location = Location { segment: header.segment, offset, length: record.size() as u32 };
                visit(location, record);
            }
            last_seq = frame.header.next_seq() - 1;
            tail.end = (start + frame.header.frame_size()) as u64;
            tail.checksum = frame.checksum;
        }
        size = match next_frame_end(bytes, header, &tail, last_seq).map(|frame_end| frame_end as u64 - base) {
            _ if remaining <= size => return Ok(tail),
            _ if tail.end > base => WINDOW_BYTES,
            // The frame is larger than the window.
            Some(needed) if needed > size => needed,
            _ => return Ok(tail),
        };
        settee_io::yield_now().await;
    }
}

/// Passes each record and extent of a segment to `visit`, in the order of its frames. For a caller that has
/// taken over a segment whose index is missing or damaged. `frame_bytes` is where its frames end
/// ([`crate::SegmentInfo::frame_bytes`]). Only a few frames are in memory at a time. Dropping the future ends
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
    let damaged = |offset, what| ReadError::Damaged(Damage { path: file.path().to_path_buf(), offset, what });
    let head = file.read_exact_at(0, SEGMENT_HEADER_SIZE).await?;
    let (header, checksum) = match SegmentHeader::decode(&head) {
        Ok((header, checksum)) if header.segment == segment => (header, checksum),
        _ => return Err(damaged(0, "its header isn't that of the segment")),
    };
    let tail = walk(file, &header, checksum, frame_bytes, visit).await?;
    match tail.end == frame_bytes {
        true => Ok(()),
        false => Err(damaged(tail.end, "a frame is damaged")),
    }
}
