//! Where a load's bytes come from: a file or standard input, as it is, or compressed by gzip or zstd.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes read at once of what is compressed.
const READ_BYTES: usize = 256 << 10;

/// Longest mark at the beginning of a compressed file.
const MAGIC_BYTES_MAX: usize = 6;

/// What other programs' files begin with, and the command that unpacks them.
const OTHERS: [(&[u8], &str, &str); 3] = [
    (b"PK\x03\x04", "a zip archive", "unzip -p"),
    (b"BZh", "compressed by bzip2", "bzip2 -dc"),
    (b"\xfd7zXZ\0", "compressed by xz", "xz -dc"),
];

/// An input that was opened.
pub(super) struct Input {
    pub(super) reader: Box<dyn Read + Send>,
    /// How many bytes it gives, where that is known.
    pub(super) size: Option<u64>,
}

/// Opens a file, or standard input for `-`.
///
/// # Errors
/// In words: what the system says, or which program unpacks it first.
pub(super) fn open(path: &Path) -> Result<Input, String> {
    let named = |error: io::Error| format!("{}: {error}", path.display());
    if path.as_os_str() == "-" {
        return unpack(io::stdin(), None).map_err(named);
    }
    let file = File::open(path).map_err(named)?;
    let metadata = file.metadata().map_err(named)?;
    unpack(file, metadata.is_file().then_some(metadata.len())).map_err(named)
}

/// Unpacks what is compressed, and leaves the rest as it is.
pub(super) fn unpack(mut reader: impl Read + Send + 'static, size: Option<u64>) -> io::Result<Input> {
    let mut magic = Vec::new();
    reader.by_ref().take(MAGIC_BYTES_MAX as u64).read_to_end(&mut magic)?;
    if let Some((_, what, command)) = OTHERS.iter().find(|(begin, ..)| magic.starts_with(begin)) {
        let reason = format!("it is {what}, which isn't read here: use `{command} FILE | settee load - …`");
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    let (is_gzip, is_zstd) = (magic.starts_with(b"\x1f\x8b"), magic.starts_with(b"\x28\xb5\x2f\xfd"));
    let whole = Cursor::new(magic).chain(reader);
    Ok(match () {
        () if is_gzip => {
            let reader = MultiGzDecoder::new(BufReader::with_capacity(READ_BYTES, whole));
            Input { reader: Box::new(Named { reader, packing: "gzip" }), size: None }
        }
        () if is_zstd => {
            let reader = Zstd { source: BufReader::with_capacity(READ_BYTES, whole), frame: None };
            Input { reader: Box::new(Named { reader, packing: "zstd" }), size: None }
        }
        () => Input { reader: Box::new(whole), size },
    })
}

/// Names the packing in errors.
struct Named<R> {
    reader: R,
    packing: &'static str,
}

impl<R: Read> Read for Named<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.packing));
        self.reader.read(into).map_err(named)
    }
}

/// Reads frames of zstd one after the other (RFC 8878), and checks their checksums.
struct Zstd<R> {
    source: BufReader<R>,
    /// Of the frame that is being read.
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
    /// Reads a frame's header; a frame that is to be skipped is.
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

    fn unpacked(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        unpack(Cursor::new(bytes), None)?.reader.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn gzip_and_zstd_are_unpacked_also_in_several_parts_and_the_rest_is_left_as_it_is() {
        let text: Vec<u8> = (0..300_000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let halves = text.split_at(text.len() / 3);
        let skipped = [b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec(), zstd(b"x")].concat();
        for (what, packed, expected) in [
            ("nothing", Vec::new(), &b""[..]),
            ("text", b"{}".to_vec(), b"{}"),
            ("gzip", gzip(&text), &text),
            ("two parts of gzip", [gzip(halves.0), gzip(halves.1)].concat(), &text),
            ("zstd", zstd(&text), &text),
            ("two frames of zstd", [zstd(halves.0), zstd(halves.1)].concat(), &text),
            ("a frame to be skipped", [zstd(b""), skipped].concat(), b"x"),
        ] {
            assert!(unpacked(packed).unwrap() == expected, "{what}");
        }
    }

    #[test]
    fn what_is_cut_or_damaged_is_an_error_that_names_the_packing() {
        let text = b"some text, and some text more".repeat(20);
        for (packing, packed) in [("gzip", gzip(&text)), ("zstd", zstd(&text))] {
            for end in [packed.len() - 1, packed.len() / 2, 8] {
                let error = unpacked(packed[..end].to_vec()).unwrap_err().to_string();
                assert!(error.starts_with(packing), "{packing} cut at {end}: {error}");
            }
        }
    }

    #[test]
    fn other_packings_are_refused_with_the_command_that_unpacks_them() {
        for (bytes, command) in
            [(&b"PK\x03\x04.."[..], "unzip -p"), (b"BZh91AY", "bzip2 -dc"), (b"\xfd7zXZ\0..", "xz -dc")]
        {
            let error = unpacked(bytes.to_vec()).unwrap_err().to_string();
            assert!(error.contains(command), "{error}");
        }
    }
}
