//! Decompression of request bodies.

use std::io::Write as _;

use flate2::write::GzDecoder;

use crate::error::ApiError;

/// Compressed bytes that are decompressed at once. The result may be a thousand times as large.
pub(crate) const PART_BYTES: usize = 4 << 10;

/// Decompresses gzip, part by part.
pub(crate) struct GzipDecoder(GzDecoder<Vec<u8>>);

impl GzipDecoder {
    pub(crate) fn new() -> GzipDecoder {
        GzipDecoder(GzDecoder::new(Vec::new()))
    }

    /// Decompresses the next part of at most [`PART_BYTES`].
    ///
    /// # Errors
    /// 400 if it isn't gzip.
    pub(crate) fn push(&mut self, part: &[u8]) -> Result<Vec<u8>, ApiError> {
        self.0.write_all(part).map_err(|_| not_gzip())?;
        Ok(std::mem::take(self.0.get_mut()))
    }

    /// Returns the rest.
    ///
    /// # Errors
    /// 400 if the stream is truncated.
    pub(crate) fn finish(self) -> Result<Vec<u8>, ApiError> {
        self.0.finish().map_err(|_| not_gzip())
    }
}

fn not_gzip() -> ApiError {
    ApiError::bad_request("Request body is not properly gzipped.")
}
