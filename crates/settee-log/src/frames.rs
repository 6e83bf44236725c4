//! Reading a segment's frames: for recovery, sealing and verification.
//!
//! A [`FrameReader`] reads a segment's file through a window that it moves forward. It finds the frame at an
//! offset, or the next one at any offset. A [`FrameChain`] reads frame after frame as long as each follows
//! the one before it. Its caller decides what the end of the chain is: the end of the log, a torn write or
//! damage.
//!
//! A frame follows if it begins at the tail or at the next multiple of [`SYNC_ALIGNMENT`], names this segment
//! and epoch, has the next `Seq`, and repeats the checksum of the previous frame, or of the segment's header.
//!
//! Invariants:
//! 1. A reader holds one window in memory: [`WINDOW_BYTES`]; for a larger frame, the frame and
//!    [`WINDOW_BYTES`].
//! 2. A failed read is an error, never the end of the frames.

use bytes::Bytes;
use settee_io::File;

use crate::file_digest::FileHasher;
use crate::format::{
    BATCH_SIZE_MAX, FRAME_ALIGNMENT, FRAME_HEADER_SIZE, Frame, FrameHeader, FrameSeed, SEGMENT_BYTES_LIMIT,
    SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader,
};

/// Bytes of a segment read at once, if no frame is larger: small enough to stay in the processor's cache.
const WINDOW_BYTES: u64 = 256 << 10;

/// The end of a log; all zeros for one without segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    pub segment: u32,
    /// Offset where the segment's frames end.
    pub end: u64,
    /// Checksum of the last frame, or of the header if there is none.
    pub checksum: u64,
}

/// What follows the frames of a segment.
pub(crate) struct Remainder {
    /// Offset after the last byte that isn't zero.
    pub written_end: u64,
    /// Whether there are whole frames, at any offset.
    pub has_frames: bool,
    /// Whether one of these frames, or a close mark, shows that bytes of the remainder had been persisted, so
    /// that the remainder is damaged, not torn.
    pub proves_more_persisted: bool,
}

/// Finds the whole frames of one segment.
pub(crate) struct FrameReader<'a> {
    file: &'a File,
    segment: u32,
    /// `None` accepts frames of any epoch.
    pub epoch: Option<u32>,
    /// `None` accepts all bytes that look like a frame: without the seed their checksum can't be verified.
    seed: Option<FrameSeed>,
    /// Offset at which reading ends; no frame reaches beyond it.
    pub end: u64,
    /// Takes the bytes of the file up to the end of the window, if the caller wants their checksum.
    pub hasher: Option<Box<FileHasher>>,
    window: Bytes,
    window_start: u64,
}

impl<'a> FrameReader<'a> {
    /// Reads the segment with this number up to `end`, which must not be past the end of the file, and at
    /// most up to [`SEGMENT_BYTES_LIMIT`].
    pub(crate) fn new(
        file: &'a File,
        segment: u32,
        epoch: Option<u32>,
        seed: Option<FrameSeed>,
        end: u64,
    ) -> FrameReader<'a> {
        let end = end.min(SEGMENT_BYTES_LIMIT.into());
        FrameReader { file, segment, epoch, seed, end, hasher: None, window: Bytes::new(), window_start: 0 }
    }

    /// Returns bytes from `start` on: at least `wanted` of them, or all before [`FrameReader::end`] if these
    /// are fewer.
    pub(crate) async fn bytes(&mut self, start: u64, wanted: usize) -> Result<Bytes, settee_io::Error> {
        let remaining = self.end.saturating_sub(start);
        if remaining == 0 {
            return Ok(Bytes::new());
        }
        let wanted = remaining.min(wanted as u64);
        let window_end = self.window_start + self.window.len() as u64;
        if start < self.window_start || start + wanted > window_end {
            // A window extends beyond a large frame, so that a search doesn't read most of the frame again
            // for the next offset.
            let size = if wanted > WINDOW_BYTES { wanted + WINDOW_BYTES } else { WINDOW_BYTES };
            self.window = Bytes::new();
            // A read that the page cache serves never yields.
            settee_io::yield_now().await;
            self.window = self.file.read_exact_at(start, size.min(remaining) as usize).await?;
            self.window_start = start;
            if let Some(hasher) = &mut self.hasher {
                hasher.read_to(self.file, start).await?;
                hasher.update(start, &self.window);
            }
        }
        Ok(self.window.slice((start - self.window_start) as usize..))
    }

    /// The bytes between `at` and the next multiple of [`SYNC_ALIGNMENT`].
    pub(crate) async fn padding(&mut self, at: u64) -> Result<Bytes, settee_io::Error> {
        let size = (at.next_multiple_of(SYNC_ALIGNMENT.into()) - at) as usize;
        let bytes = self.bytes(at, size).await?;
        Ok(bytes.slice(..size.min(bytes.len())))
    }

    /// Returns a predicate on headers: whether the frame is of this segment, and of `epoch`.
    pub(crate) fn belongs(&self) -> impl Fn(&FrameHeader) -> bool + use<> {
        let (segment, epoch) = (self.segment, self.epoch);
        move |header| header.segment == segment && epoch.is_none_or(|epoch| header.epoch == epoch)
    }

    /// The whole frame at `start`, if `accepts` its header. Its padding may extend beyond
    /// [`FrameReader::end`].
    pub(crate) async fn frame_at(
        &mut self,
        start: u64,
        accepts: impl Fn(&FrameHeader) -> bool,
    ) -> Result<Option<Frame>, settee_io::Error> {
        let header = FrameHeader::decode(&self.bytes(start, FRAME_HEADER_SIZE).await?, self.seed);
        let Some(header) = header.filter(accepts).filter(|header| header.frame_size() <= BATCH_SIZE_MAX)
        else {
            return Ok(None);
        };
        Ok(Frame::decode(start, &self.bytes(start, header.frame_size()).await?, self.seed))
    }

    /// The whole frame at `at` or at the next multiple of [`SYNC_ALIGNMENT`], if `accepts` its header.
    pub(crate) async fn frame_after(
        &mut self,
        at: u64,
        accepts: impl Fn(&FrameHeader) -> bool,
    ) -> Result<Option<Frame>, settee_io::Error> {
        for start in [at, at.next_multiple_of(SYNC_ALIGNMENT.into())] {
            // A frame whose padding is incomplete is torn, too.
            if let Some(frame) = self.frame_at(start, &accepts).await?
                && frame.end() <= self.end
            {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// The first whole frame of this segment that begins at `from` or later, at any offset.
    pub(crate) async fn find(&mut self, from: u64) -> Result<Option<Frame>, settee_io::Error> {
        let (belongs, seed) = (self.belongs(), self.seed);
        let mut at = from.next_multiple_of(FRAME_ALIGNMENT as u64);
        loop {
            let bytes = self.bytes(at, FRAME_HEADER_SIZE).await?;
            let Some(last) = bytes.len().checked_sub(FRAME_HEADER_SIZE) else { return Ok(None) };
            let mut starts = (0..=last).step_by(FRAME_ALIGNMENT);
            let begins = |start: &usize| {
                FrameHeader::decode(&bytes[*start..], seed).is_some_and(|header| belongs(&header))
            };
            if let Some(start) = starts.find(begins) {
                at += start as u64;
                // Only bytes that may be a frame are hashed.
                if let Some(frame) = self.frame_at(at, &belongs).await? {
                    return Ok(Some(frame));
                }
                at += FRAME_ALIGNMENT as u64;
            } else {
                at += (last + 1).next_multiple_of(FRAME_ALIGNMENT) as u64;
            }
        }
    }

    /// Describes everything from `from` on.
    pub(crate) async fn remainder(&mut self, from: u64) -> Result<Remainder, settee_io::Error> {
        let written_end = self.written_end(from).await?;
        let proves_more_persisted = self.has_mark_past(from, written_end).await?;
        let mut remainder = Remainder { written_end, has_frames: false, proves_more_persisted };
        let mut at = from;
        while at < written_end
            && let Some(frame) = self.find(at).await?
        {
            let persisted = u64::from(frame.header.persisted);
            remainder.has_frames = true;
            // The log never writes a frame whose `persisted` is past the frame's own start.
            remainder.proves_more_persisted |= persisted <= frame.start && persisted > from;
            at = frame.start + FRAME_ALIGNMENT as u64;
        }
        Ok(remainder)
    }

    /// The close mark at `start`, if it is of this segment and epoch.
    async fn mark_at(&mut self, start: u64) -> Result<Option<FrameHeader>, settee_io::Error> {
        let bytes = self.bytes(start, FRAME_HEADER_SIZE).await?;
        Ok(FrameHeader::decode_mark(start, &bytes, self.seed).filter(self.belongs()))
    }

    /// Whether there is a close mark before `end` according to which frames ended past `from`.
    async fn has_mark_past(&mut self, from: u64, end: u64) -> Result<bool, settee_io::Error> {
        let mut at = FrameHeader::mark_start(from);
        while at < end {
            if self.mark_at(at).await?.is_some_and(|mark| u64::from(mark.persisted) > from) {
                return Ok(true);
            }
            at += u64::from(SYNC_ALIGNMENT);
        }
        Ok(false)
    }

    /// Where the close mark ends that follows the frames up to `tail`, with the last record `last_seq`;
    /// `None` if there is none.
    pub(crate) async fn mark_after(
        &mut self,
        tail: u64,
        checksum: u64,
        last_seq: u64,
    ) -> Result<Option<u64>, settee_io::Error> {
        let start = FrameHeader::mark_start(tail);
        let follows = |mark: &FrameHeader| {
            u64::from(mark.persisted) == tail && mark.previous == checksum && mark.first_seq == last_seq + 1
        };
        let mark = self.mark_at(start).await?.filter(follows);
        Ok(mark.map(|_| start + FRAME_HEADER_SIZE as u64))
    }

    /// Offset after the last byte from `from` on that isn't zero, or `from`: reserved and unused space reads as
    /// zeros.
    pub(crate) async fn written_end(&mut self, from: u64) -> Result<u64, settee_io::Error> {
        let (mut at, mut written_end) = (from, from);
        while at < self.end {
            let bytes = self.bytes(at, 1).await?;
            let last = bytes.iter().rposition(|byte| *byte != 0);
            written_end = last.map_or(written_end, |last| at + last as u64 + 1);
            at += bytes.len() as u64;
        }
        Ok(written_end)
    }
}

/// Reads the frames of a segment from its header on, as far as each follows the one before it.
pub(crate) struct FrameChain<'a> {
    pub reader: FrameReader<'a>,
    /// The end of the frames so far.
    pub tail: Tail,
    /// `Seq` of the last record so far.
    pub last_seq: u64,
}

impl<'a> FrameChain<'a> {
    /// The frames of the segment with this header and header checksum, up to `end`.
    pub(crate) fn new(file: &'a File, header: &SegmentHeader, checksum: u64, end: u64) -> FrameChain<'a> {
        let SegmentHeader { segment, epoch, first_seq, .. } = *header;
        FrameChain {
            reader: FrameReader::new(file, segment, Some(epoch), Some(header.frame_seed()), end),
            tail: Tail { segment, end: SEGMENT_HEADER_SIZE as u64, checksum },
            last_seq: first_seq - 1,
        }
    }

    /// The next frame; `None` if no whole frame follows the tail.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>, settee_io::Error> {
        let (belongs, checksum, first_seq) = (self.reader.belongs(), self.tail.checksum, self.last_seq + 1);
        let follows = |header: &FrameHeader| {
            belongs(header) && header.first_seq == first_seq && header.previous == checksum
        };
        let next = self.reader.frame_after(self.tail.end, follows).await?;
        Ok(self.take(next))
    }

    /// [`Failpoint::RecycledFrame`](crate::failpoints::Failpoint::RecycledFrame): the next whole frame, even
    /// if it is left from an earlier segment in the same file.
    pub(crate) async fn next_recycled(&mut self) -> Result<Option<Frame>, settee_io::Error> {
        let start = self.tail.end.next_multiple_of(SYNC_ALIGNMENT.into());
        let next = self.reader.frame_at(start, |_| true).await?;
        Ok(self.take(next))
    }

    /// Where the close mark ends that follows the tail; `None` if there is none.
    pub(crate) async fn mark_end(&mut self) -> Result<Option<u64>, settee_io::Error> {
        self.reader.mark_after(self.tail.end, self.tail.checksum, self.last_seq).await
    }

    fn take(&mut self, next: Option<Frame>) -> Option<Frame> {
        let frame = next?;
        (self.tail.end, self.tail.checksum) = (frame.end(), frame.checksum);
        self.last_seq = frame.header.next_seq() - 1;
        Some(frame)
    }
}
