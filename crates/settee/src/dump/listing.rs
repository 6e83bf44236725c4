//! Answers of CouchDB's that list rows, taken apart while they come.

use serde::Deserialize;

use crate::load::LINE_BYTES_MAX;
use crate::load::split::{ArrayEvent, ArrayScanner};
use crate::load::target::Error;

/// Most bytes around the rows of a listing.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// Most bytes of one row of a listing: a document that can be loaded again, and what stands around it.
const ROW_BYTES_MAX: usize = LINE_BYTES_MAX + FRAME_BYTES_MAX;

/// Takes an answer apart as it comes: `{…,"rows":[…]…}`, or with `"results"` in place of `"rows"`.
pub(super) struct Listing {
    /// The array's member, quoted, with its colon.
    member: &'static str,
    rows: ArrayScanner,
    is_in_rows: bool,
    row: Vec<u8>,
    /// What stands before and behind the rows.
    frame: Vec<u8>,
}

impl Listing {
    fn new(member: &'static str) -> Listing {
        Listing { member, rows: ArrayScanner::new(), is_in_rows: false, row: Vec::new(), frame: Vec::new() }
    }

    /// One of rows, as `_all_docs` answers.
    pub(super) fn of_rows() -> Listing {
        Listing::new("\"rows\":")
    }

    /// One of changes.
    pub(super) fn of_changes() -> Listing {
        Listing::new("\"results\":")
    }

    /// Takes the next piece of the text, and hands over each row that it completes.
    pub(super) fn take(
        &mut self,
        mut text: &[u8],
        mut on_row: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !text.is_empty() {
            if !self.is_in_rows || self.rows.is_done() {
                // No string before the rows holds a bracket: the totals are numbers.
                let end = if self.is_in_rows { None } else { memchr::memchr(b'[', text) };
                let (piece, rest) = text.split_at(end.unwrap_or(text.len()));
                if self.frame.len() + piece.len() > FRAME_BYTES_MAX {
                    return Err("the listing has no rows".into());
                }
                self.frame.extend_from_slice(piece);
                self.is_in_rows |= end.is_some();
                text = rest;
                continue;
            }
            let step = self.rows.scan(text);
            if self.row.len() + step.element.len() > ROW_BYTES_MAX {
                return Err(format!("a row exceeds {ROW_BYTES_MAX} bytes").into());
            }
            self.row.extend_from_slice(&text[step.element]);
            match step.event {
                ArrayEvent::More => {}
                ArrayEvent::Element => {
                    on_row(&self.row)?;
                    self.row.clear();
                }
                ArrayEvent::Broken(reason) => {
                    return Err(format!("the listing is malformed: {reason}").into());
                }
            }
            text = &text[step.used..];
        }
        Ok(())
    }

    /// The number of documents that the listing announced.
    pub(super) fn finish(self) -> Result<Option<u64>, Error> {
        #[derive(Deserialize)]
        struct Frame {
            total_rows: Option<u64>,
        }
        if !self.rows.is_done() {
            return Err("the listing ends in the middle".into());
        }
        // The rows were taken out: in their place an empty array makes the frame whole.
        let mut frame = self.frame;
        let at = memchr::memmem::rfind(&frame, self.member.as_bytes()).ok_or("the listing has no rows")?;
        let place = at + self.member.len();
        frame.splice(place..place, *b"[]");
        let frame: Frame = serde_json::from_slice(&frame).map_err(|_| "the listing ends in the middle")?;
        Ok(frame.total_rows)
    }
}
