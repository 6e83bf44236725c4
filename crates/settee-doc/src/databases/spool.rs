//! Spool files: for parts of a request that memory doesn't hold.
//!
//! A file's name is removed as soon as the file is open, so the system frees it with its last descriptor,
//! however the process ends. A process killed in between, or a request that ends there, leaves an empty file,
//! which [`Spools::open`] removes. Spool files need not be durable, so no directory is synced.
//!
//! Invariant: all files together reserve at most the limit; disk space is allocated before bytes are written.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, directory};

use crate::Error;

const DIRECTORY: &str = "spool";

/// Size of a write in bytes.
const WRITE_BYTES: usize = 256 << 10;

/// Range of a reservation in bytes: as many as are reserved already, within these limits.
const RESERVE_BYTES_MIN: u64 = 1 << 20;
const RESERVE_BYTES_MAX: u64 = 16 << 20;

/// The spool files of a data directory.
pub struct Spools {
    env: Env,
    directory: PathBuf,
    reserved_bytes: AtomicU64,
    next_number: AtomicU64,
}

/// A file that is written once from front to back, and then read. Dropping it frees the file.
pub struct Spool {
    spools: Arc<Spools>,
    file: File,
    bytes_max: u64,
    reserved_bytes: u64,
    written_bytes: u64,
    /// The bytes that follow the written ones.
    buffer: Vec<u8>,
}

/// Why bytes were not spooled. The spool is unusable afterwards.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// They exceed the limit of all spool files together.
    #[error("more than {bytes_max} bytes for spool files")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },

    /// Other spool files use the space; it becomes free when they are dropped.
    #[error("other spool files take the space")]
    Busy,

    /// The disk is full, or the system failed.
    #[error(transparent)]
    Disk(#[from] Error),
}

impl From<settee_io::Error> for SpoolError {
    fn from(error: settee_io::Error) -> SpoolError {
        SpoolError::Disk(error.into())
    }
}

impl Spools {
    /// Opens the spool of a data directory, and removes the files of an earlier process.
    pub(crate) async fn open(env: &Env, data: &Path) -> Arc<Spools> {
        let directory = data.join(DIRECTORY);
        if let Err(error) = remove_files(env, &directory).await {
            tracing::warn!(%error, "a spool file of an earlier process was not removed");
        }
        let (reserved_bytes, next_number) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Spools { env: env.clone(), directory, reserved_bytes, next_number })
    }

    /// An empty spool. All spools together may take `bytes_max`.
    ///
    /// # Errors
    /// [`SpoolError::Disk`]
    pub async fn create(self: &Arc<Spools>, bytes_max: u64) -> Result<Spool, SpoolError> {
        let engine = &self.env.engine;
        let (path, file) = loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let path = self.directory.join(number.to_string());
            match File::open(engine, &path, OpenMode::CreateNew).await {
                Ok(file) => break (path, file),
                // Another file, or one left by a request that ended: try the next number.
                Err(error) if error.io_kind() == Some(ErrorKind::AlreadyExists) => {}
                Err(error) if error.is_not_found() => {
                    directory::create(&**engine, &self.directory).await?;
                }
                Err(error) => return Err(error.into()),
            }
        };
        directory::remove(&**engine, &path).await?;
        let (spools, buffer) = (self.clone(), Vec::new());
        Ok(Spool { spools, file, bytes_max, reserved_bytes: 0, written_bytes: 0, buffer })
    }

    /// Bytes reserved by all spool files.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Reserves `wanted` bytes of `bytes_max`, or the rest if that is at least `least`.
    fn reserve_bytes(&self, wanted: u64, least: u64, bytes_max: u64) -> Result<u64, SpoolError> {
        let mut taken = 0;
        let reserve = |reserved: u64| {
            taken = wanted.min(bytes_max.saturating_sub(reserved));
            (taken >= least).then(|| reserved + taken)
        };
        let updated = self.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve);
        updated.map(|_| taken).map_err(|_| SpoolError::Busy)
    }
}

/// Removes files left by an earlier process: empty files whose names are numbers. Other files stay.
async fn remove_files(env: &Env, directory: &Path) -> settee_io::Result<()> {
    for entry in directory::list(&*env.engine, directory).await? {
        let path = directory.join(&entry.name);
        let is_named_so = !entry.is_directory && entry.name.bytes().all(|byte| byte.is_ascii_digit());
        if is_named_so && File::open(&env.engine, &path, OpenMode::Read).await?.length().await? == 0 {
            directory::remove(&*env.engine, &path).await?;
        }
    }
    Ok(())
}

impl Spool {
    /// Number of bytes appended.
    pub fn bytes(&self) -> u64 {
        self.written_bytes + self.buffer.len() as u64
    }

    /// Appends bytes. Some stay in memory until [`Spool::finish`].
    ///
    /// # Errors
    /// [`SpoolError`]
    pub async fn append(&mut self, mut bytes: &[u8]) -> Result<(), SpoolError> {
        self.reserve(self.bytes() + bytes.len() as u64).await?;
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(WRITE_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(part);
            bytes = rest;
            if self.buffer.len() == WRITE_BYTES {
                self.write().await?;
            }
        }
        Ok(())
    }

    /// Writes the bytes still in memory, so that all bytes can be read.
    ///
    /// # Errors
    /// [`SpoolError::Disk`]
    pub async fn finish(&mut self) -> Result<(), SpoolError> {
        self.write().await
    }

    /// Reads `length` bytes at `offset`, or fewer before the end.
    ///
    /// # Errors
    /// [`SpoolError::Disk`]
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, SpoolError> {
        let available = usize::try_from(self.written_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        Ok(self.file.read_exact_at(offset, length.min(available)).await?)
    }

    async fn write(&mut self) -> Result<(), SpoolError> {
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        let length = bytes.len() as u64;
        self.file.write_at(self.written_bytes, bytes).await?;
        self.written_bytes += length;
        Ok(())
    }

    /// Reserves space for all bytes before `end`.
    async fn reserve(&mut self, end: u64) -> Result<(), SpoolError> {
        let Some(least) = end.checked_sub(self.reserved_bytes).filter(|least| *least > 0) else {
            return Ok(());
        };
        let bytes_max = self.bytes_max;
        if end > bytes_max {
            return Err(SpoolError::TooLarge { bytes_max });
        }
        let offset = self.reserved_bytes;
        let wanted = self.reserved_bytes.clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX);
        let taken = self.spools.reserve_bytes(least.max(wanted), least, bytes_max)?;
        self.reserved_bytes += taken;
        Ok(self.file.allocate(offset, taken).await?)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.spools.reserved_bytes.fetch_sub(self.reserved_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use settee_io::ThreadOptions;

    use super::*;

    #[tokio::test]
    async fn a_spool_returns_the_appended_bytes_and_leaves_no_file() {
        let data = tempfile::tempdir().unwrap();
        let env = Env::current(ThreadOptions::default());
        let spool_directory = data.path().join(DIRECTORY);
        directory::create(&*env.engine, &spool_directory).await.unwrap();
        // Of an earlier process.
        File::open(&env.engine, &spool_directory.join("0"), OpenMode::CreateNew).await.unwrap();
        // Files that no earlier process left.
        let other = File::open(&env.engine, &spool_directory.join("1"), OpenMode::CreateNew).await.unwrap();
        other.write_at(0, Bytes::from_static(b"precious")).await.unwrap();
        File::open(&env.engine, &spool_directory.join("letters.txt"), OpenMode::CreateNew).await.unwrap();
        directory::create(&*env.engine, &spool_directory.join("2")).await.unwrap();
        let spools = Spools::open(&env, data.path()).await;
        let names = async || {
            let entries = directory::list(&*env.engine, &spool_directory).await.unwrap();
            entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        };
        assert_eq!(names().await, ["1", "2", "letters.txt"]);
        for _ in 0..3 {
            drop(spools.create(64 << 20).await.unwrap());
        }
        let mut spool = spools.create(64 << 20).await.unwrap();
        assert_eq!(names().await, ["1", "2", "letters.txt"], "it has a name");
        let text: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        for part in text.chunks(70_001) {
            spool.append(part).await.unwrap();
        }
        spool.finish().await.unwrap();
        assert_eq!(spool.bytes(), 1_000_000);
        assert_eq!(spool.read_at(0, 2_000_000).await.unwrap(), text);
        assert_eq!(spool.read_at(999_990, 100).await.unwrap(), text[999_990..]);
        // 1 MiB, and as much again each time it was used up.
        assert_eq!(spools.reserved_bytes(), RESERVE_BYTES_MIN);
        drop(spool);
        assert_eq!(spools.reserved_bytes(), 0);
    }

    #[tokio::test]
    async fn spools_share_one_limit() {
        let data = tempfile::tempdir().unwrap();
        let env = Env::current(ThreadOptions::default());
        let spools = Spools::open(&env, data.path()).await;
        let mut first = spools.create(1_000).await.unwrap();
        first.append(&[0; 600]).await.unwrap();
        let mut second = spools.create(1_000).await.unwrap();
        assert!(matches!(second.append(&[0; 500]).await, Err(SpoolError::Busy)));
        assert!(matches!(second.append(&[0; 1_001]).await, Err(SpoolError::TooLarge { bytes_max: 1_000 })));
        drop(first);
        second.append(&[0; 1_000]).await.unwrap();
    }
}
