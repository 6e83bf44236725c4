//! Input of a load: a file or the standard input, uncompressed or compressed with gzip or zstd.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Size of the read buffer for compressed input, in bytes.
const READ_BYTES: usize = 256 << 10;

/// Length of the longest magic number, in bytes.
const MAGIC_BYTES_MAX: usize = 6;

/// Unsupported formats: the magic number, the name, and the command that decompresses it.
const UNSUPPORTED: [(&[u8], &str, &str); 3] = [
    (b"PK\x03\x04", "a zip archive", "unzip -p"),
    (b"BZh", "compressed by bzip2", "bzip2 -dc"),
    (b"\xfd7zXZ\0", "compressed by xz", "xz -dc"),
];

/// An open input.
pub(super) struct Input {
    pub(super) reader: Box<dyn Read + Send>,
    /// Number of bytes that `reader` returns, if known.
    pub(super) size: Option<u64>,
}

/// Opens a file, or standard input for `-`.
///
/// # Errors
/// The file can't be read, or has an unsupported format; the text names the program that decompresses it.
pub(super) fn open(path: &Path) -> Result<Input, String> {
    let with_path = |error: io::Error| format!("{}: {error}", path.display());
    if path.as_os_str() == "-" {
        return decompress(io::stdin(), None).map_err(with_path);
    }
    let file = File::open(path).map_err(with_path)?;
    let metadata = file.metadata().map_err(with_path)?;
    decompress(file, metadata.is_file().then_some(metadata.len())).map_err(with_path)
}

/// Decompresses gzip and zstd; returns other input unchanged.
///
/// # Errors
/// The first bytes can't be read, or are those of an unsupported format.
pub(super) fn decompress(mut reader: impl Read + Send + 'static, size: Option<u64>) -> io::Result<Input> {
    let mut magic = Vec::new();
    reader.by_ref().take(MAGIC_BYTES_MAX as u64).read_to_end(&mut magic)?;
    if let Some((_, name, command)) = UNSUPPORTED.iter().find(|(prefix, ..)| magic.starts_with(prefix)) {
        let reason =
            format!("the input is {name}, which isn't supported: use `{command} FILE | settee load - …`");
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    let (is_gzip, is_zstd) = (magic.starts_with(b"\x1f\x8b"), magic.starts_with(b"\x28\xb5\x2f\xfd"));
    let whole = Cursor::new(magic).chain(reader);
    Ok(match () {
        () if is_gzip => {
            let reader = MultiGzDecoder::new(BufReader::with_capacity(READ_BYTES, whole));
            Input { reader: Box::new(ErrorContext { reader, format: "gzip" }), size: None }
        }
        () if is_zstd => {
            let reader = Zstd { source: BufReader::with_capacity(READ_BYTES, whole), frame: None };
            Input { reader: Box::new(ErrorContext { reader, format: "zstd" }), size: None }
        }
        () => Input { reader: Box::new(whole), size },
    })
}

/// A reader whose errors name the compression format.
struct ErrorContext<R> {
    reader: R,
    format: &'static str,
}

impl<R: Read> Read for ErrorContext<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let with_format =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.format));
        self.reader.read(into).map_err(with_format)
    }
}

/// Decoder of concatenated zstd frames that verifies their checksums.
///
/// Source: RFC 8878.
struct Zstd<R> {
    source: BufReader<R>,
    /// Decoder of the current frame. None between frames.
    frame: Option<Box<FrameDecoder>>,
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(frame) = &mut self.frame else {
                if self.source.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                self.begin_frame()?;
                continue;
            };
            while frame.can_collect() == 0 && !frame.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBlocks(1);
                frame.decode_blocks(&mut self.source, strategy).map_err(io::Error::other)?;
            }
            let count = frame.read(into)?;
            if count > 0 {
                return Ok(count);
            }
            let stated = frame.get_checksum_from_data();
            if stated.is_some() && stated != frame.get_calculated_checksum() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a checksum is wrong"));
            }
            self.frame = None;
        }
    }
}

impl<R: Read> Zstd<R> {
    /// Reads the header of a frame. A skippable frame is skipped.
    fn begin_frame(&mut self) -> io::Result<()> {
        let mut frame = Box::new(FrameDecoder::new());
        match frame.reset(&mut self.source) {
            Ok(()) => self.frame = Some(frame),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let mut skipped = self.source.by_ref().take(length.into());
                if io::copy(&mut skipped, &mut io::sink())? < length.into() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    fn decompressed(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompress(Cursor::new(bytes), None)?.reader.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn concatenated_gzip_and_zstd_are_decompressed_and_other_input_is_unchanged() {
        let text: Vec<u8> = (0..300_000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let halves = text.split_at(text.len() / 3);
        let skipped = [b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec(), zstd(b"x")].concat();
        for (case, input, expected) in [
            ("nothing", Vec::new(), &b""[..]),
            ("text", b"{}".to_vec(), b"{}"),
            ("gzip", gzip(&text), &text),
            ("two gzip members", [gzip(halves.0), gzip(halves.1)].concat(), &text),
            ("zstd", zstd(&text), &text),
            ("two zstd frames", [zstd(halves.0), zstd(halves.1)].concat(), &text),
            ("a skippable zstd frame", [zstd(b""), skipped].concat(), b"x"),
        ] {
            assert!(decompressed(input).unwrap() == expected, "{case}");
        }
    }

    #[test]
    fn the_error_of_a_truncated_input_names_the_compression_format() {
        let text = b"some text, and some text more".repeat(20);
        for (format, input) in [("gzip", gzip(&text)), ("zstd", zstd(&text))] {
            for end in [input.len() - 1, input.len() / 2, 8] {
                let error = decompressed(input[..end].to_vec()).unwrap_err().to_string();
                assert!(error.starts_with(format), "{format} truncated at {end}: {error}");
            }
        }
    }

    #[test]
    fn unsupported_formats_are_refused_with_the_command_that_decompresses_them() {
        for (bytes, command) in
            [(&b"PK\x03\x04.."[..], "unzip -p"), (b"BZh91AY", "bzip2 -dc"), (b"\xfd7zXZ\0..", "xz -dc")]
        {
            let error = decompressed(bytes.to_vec()).unwrap_err().to_string();
            assert!(error.contains(command), "{error}");
        }
    }
}
