//! A gzip encoder for response bodies.
//!
//! Invariant: bytes that a producer flushes reach the client, because each chunk ends in a sync flush.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

/// The fastest gzip level.
const LEVEL: u32 = 1;

/// A gzip encoder for a stream of chunks.
pub(crate) struct Gzip(GzEncoder<Vec<u8>>);

impl Gzip {
    pub(super) fn new() -> Gzip {
        Gzip(GzEncoder::new(Vec::new(), Compression::new(LEVEL)))
    }

    /// Compresses a chunk and flushes.
    pub(crate) fn chunk(&mut self, bytes: &[u8]) -> Bytes {
        const NEVER_FAILS: &str = "writing to a Vec succeeds";
        self.0.write_all(bytes).expect(NEVER_FAILS);
        self.0.flush().expect(NEVER_FAILS);
        std::mem::take(self.0.get_mut()).into()
    }

    /// Compresses all bytes of a body.
    pub(super) fn whole(bytes: &[u8]) -> Bytes {
        let mut gzip = Gzip::new();
        // Only one chunk, so a flush isn't needed.
        gzip.0.write_all(bytes).expect("writing to a Vec succeeds");
        gzip.end()
    }

    /// Returns the end of the stream.
    pub(crate) fn end(mut self) -> Bytes {
        self.0.try_finish().expect("writing to a Vec succeeds");
        std::mem::take(self.0.get_mut()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn each_chunk_can_be_decompressed_at_once() {
        let mut gzip = Gzip::new();
        let first = gzip.chunk(b"{\"results\":[");
        let mut read = Vec::new();
        // The stream has not ended: reading returns its bytes and then an error.
        assert!(flate2::read::GzDecoder::new(&first[..]).read_to_end(&mut read).is_err());
        assert_eq!(read, b"{\"results\":[");
        let whole = [&first[..], &gzip.chunk(b"]}"), &gzip.end()].concat();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&whole[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "{\"results\":[]}");
    }
}
