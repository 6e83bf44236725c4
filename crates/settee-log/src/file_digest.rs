//! The length and the checksum of a file that never changes again.
//!
//! The checksum is the BLAKE3 hash of all bytes of the file: a cryptographic hash, since clients choose much of
//! what the files hold, and a backup takes files with the same checksum as the same.

use settee_io::File;

/// Number of bytes read at once.
const READ_BYTES: u64 = 1 << 20;

/// The BLAKE3 hash of all bytes of a file.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileChecksum(pub [u8; 32]);

impl FileChecksum {
    /// The one that [`std::fmt::Display`] printed.
    pub(crate) fn parse(text: &str) -> Option<FileChecksum> {
        let checksum = FileChecksum(*blake3::Hash::from_hex(text).ok()?.as_bytes());
        // Digits in upper case are a flipped bit too.
        (checksum.to_string() == text).then_some(checksum)
    }
}

impl std::fmt::Display for FileChecksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl std::fmt::Debug for FileChecksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// What identifies the bytes of a file that never changes again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileDigest {
    /// The file's length in bytes.
    pub length: u64,
    /// Its checksum.
    pub checksum: FileChecksum,
}

/// Computes a file's digest from its bytes in ascending order, while they are read or written.
#[derive(Default)]
pub struct FileHasher {
    hasher: blake3::Hasher,
    end: u64,
}

impl FileHasher {
    /// Takes the bytes at the offset `start`, except those that were taken before.
    ///
    /// # Panics
    /// If bytes before `start` are missing.
    pub fn update(&mut self, start: u64, bytes: &[u8]) {
        assert!(start <= self.end, "bytes before {start} are missing");
        let known = usize::try_from(self.end - start).unwrap_or(usize::MAX);
        if let Some(new) = bytes.get(known..) {
            self.hasher.update(new);
            self.end += new.len() as u64;
        }
    }

    /// Takes zeros up to the offset `end`.
    pub fn fill(&mut self, end: u64) {
        const ZEROS: &[u8] = &[0; 4096];
        while self.end < end {
            let size = (end - self.end).min(ZEROS.len() as u64) as usize;
            self.update(self.end, &ZEROS[..size]);
        }
    }

    /// Takes what the file has up to the offset `end` and wasn't taken before.
    ///
    /// # Errors
    /// An I/O error, also if the file is shorter.
    pub async fn read_to(&mut self, file: &File, end: u64) -> Result<(), settee_io::Error> {
        while self.end < end {
            let size = (end - self.end).min(READ_BYTES) as usize;
            let bytes = file.read_exact_at(self.end, size).await?;
            self.update(self.end, &bytes);
            settee_io::yield_now().await;
        }
        Ok(())
    }

    /// The digest of a file with exactly the bytes taken.
    pub fn finish(&self) -> FileDigest {
        FileDigest { length: self.end, checksum: FileChecksum(*self.hasher.finalize().as_bytes()) }
    }
}

impl FileDigest {
    /// Reads a whole file.
    ///
    /// # Errors
    /// An I/O error.
    pub async fn of(file: &File) -> Result<FileDigest, settee_io::Error> {
        let mut hasher = FileHasher::default();
        hasher.read_to(file, file.length().await?).await?;
        Ok(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_overlap_are_hashed_once() {
        let bytes: Vec<u8> = (0..10_000u32).map(|number| number as u8).collect();
        let mut hasher = FileHasher::default();
        for start in (0..10_000).step_by(3_000) {
            hasher.update(start as u64, &bytes[start..(start + 4_000).min(10_000)]);
            hasher.update(0, &bytes[..100]);
        }
        hasher.fill(20_000);
        let mut whole = bytes.clone();
        whole.resize(20_000, 0);
        let checksum = FileChecksum(*blake3::hash(&whole).as_bytes());
        assert_eq!(hasher.finish(), FileDigest { length: 20_000, checksum });
        assert_eq!(FileChecksum::parse(&checksum.to_string()), Some(checksum));
        assert_eq!(FileChecksum::parse(&checksum.to_string().to_uppercase()), None);
    }
}
