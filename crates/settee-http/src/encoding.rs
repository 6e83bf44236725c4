//! Content that comes compressed.

use std::io::Write as _;

use flate2::write::GzDecoder;

use crate::error::Failure;

/// So much is unfolded at once: it may be a thousand times as much then.
pub(crate) const PART_BYTES: usize = 4 << 10;

/// Unfolds what comes compressed by gzip, part by part.
pub(crate) struct Unfolding(GzDecoder<Vec<u8>>);

impl Unfolding {
    pub(crate) fn new() -> Unfolding {
        Unfolding(GzDecoder::new(Vec::new()))
    }

    /// What the next part, of at most [`PART_BYTES`], unfolds to.
    ///
    /// # Errors
    /// 400 where it is no gzip.
    pub(crate) fn push(&mut self, part: &[u8]) -> Result<Vec<u8>, Failure> {
        self.0.write_all(part).map_err(|_| not_gzip())?;
        Ok(std::mem::take(self.0.get_mut()))
    }

    /// The rest.
    ///
    /// # Errors
    /// 400 where it ends before its end.
    pub(crate) fn finish(self) -> Result<Vec<u8>, Failure> {
        self.0.finish().map_err(|_| not_gzip())
    }
}

fn not_gzip() -> Failure {
    Failure::bad_request("Request body is not properly gzipped.")
}
