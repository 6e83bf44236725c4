//! Incremental parser of CouchDB responses that contain an array of rows.

use serde::Deserialize;

use crate::load::LINE_BYTES_MAX;
use crate::load::split::{ArrayEvent, ArrayScanner};
use crate::load::target::Error;

/// Largest size of a response without its rows, in bytes.
const ENVELOPE_BYTES_MAX: usize = 64 << 10;

/// Largest row of a response, in bytes: the largest document that `settee load` accepts, and the members
/// around it.
const ROW_BYTES_MAX: usize = LINE_BYTES_MAX + ENVELOPE_BYTES_MAX;

/// Parses a response `{…,"rows":[…]…}` or `{…,"results":[…]…}` from chunks.
pub(super) struct RowParser {
    /// Name of the array's member, quoted, with its colon.
    array_member: &'static str,
    scanner: ArrayScanner,
    is_in_array: bool,
    row: Vec<u8>,
    /// The text before and after the array.
    envelope: Vec<u8>,
}

impl RowParser {
    fn new(array_member: &'static str) -> RowParser {
        RowParser {
            array_member,
            scanner: ArrayScanner::new(),
            is_in_array: false,
            row: Vec::new(),
            envelope: Vec::new(),
        }
    }

    /// Creates a parser for responses of `_all_docs` and `_local_docs`.
    pub(super) fn all_docs() -> RowParser {
        RowParser::new("\"rows\":")
    }

    /// Creates a parser for responses of `_changes`.
    pub(super) fn changes() -> RowParser {
        RowParser::new("\"results\":")
    }

    /// Parses the next chunk and calls `on_row` for each row that it completes.
    ///
    /// # Errors
    /// The response is malformed or exceeds a limit, or `on_row` failed. The parser can't be used further.
    pub(super) fn feed(
        &mut self,
        mut text: &[u8],
        mut on_row: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !text.is_empty() {
            if !self.is_in_array || self.scanner.is_done() {
                // The members before the array are numbers, so the first bracket begins the array.
                let end = if self.is_in_array { None } else { memchr::memchr(b'[', text) };
                let (piece, rest) = text.split_at(end.unwrap_or(text.len()));
                if self.envelope.len() + piece.len() > ENVELOPE_BYTES_MAX {
                    return Err("the response contains no rows".into());
                }
                self.envelope.extend_from_slice(piece);
                self.is_in_array |= end.is_some();
                text = rest;
                continue;
            }
            let step = self.scanner.scan(text);
            if self.row.len() + step.element.len() > ROW_BYTES_MAX {
                return Err(format!("a row exceeds {ROW_BYTES_MAX} bytes").into());
            }
            self.row.extend_from_slice(&text[step.element]);
            match step.event {
                ArrayEvent::NeedsInput => {}
                ArrayEvent::Element => {
                    on_row(&self.row)?;
                    self.row.clear();
                }
                ArrayEvent::Malformed(reason) => {
                    return Err(format!("the response is malformed: {reason}").into());
                }
            }
            text = &text[step.consumed..];
        }
        Ok(())
    }

    /// Checks that the response is complete. Returns `total_rows`, or None if the response has no such
    /// member.
    ///
    /// # Errors
    /// The response is truncated or contains no rows.
    pub(super) fn finish(self) -> Result<Option<u64>, Error> {
        #[derive(Deserialize)]
        struct Envelope {
            total_rows: Option<u64>,
        }
        if !self.scanner.is_done() {
            return Err("the response is truncated".into());
        }
        // The envelope lacks the array; an empty array makes it valid JSON.
        let mut envelope = self.envelope;
        let member_at = memchr::memmem::rfind(&envelope, self.array_member.as_bytes())
            .ok_or("the response contains no rows")?;
        let array_at = member_at + self.array_member.len();
        envelope.splice(array_at..array_at, *b"[]");
        let envelope: Envelope =
            serde_json::from_slice(&envelope).map_err(|_| "the response is truncated")?;
        Ok(envelope.total_rows)
    }
}
