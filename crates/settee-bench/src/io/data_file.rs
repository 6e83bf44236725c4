//! The files that are read, and descriptions of the machine.
//!
//! Their bytes are random, but each block of 4 KiB begins with its offset in the file, so that [`verify`]
//! detects a read that returns other bytes.

use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};

use crate::random::RandomBytes;
use crate::{Error, Result};

/// Bytes of a block, and of each random read of `bench io`.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Bytes of each write while a file is created.
const CHUNK_BYTES: usize = 4 << 20;

/// Number of blocks that are probed to find out whether a file is in the page cache.
const PROBE_COUNT: usize = 64;

/// Creates a file of `bytes` (rounded down to whole blocks) and syncs it.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn create(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let failed = |error: io::Error| Error::file(path, error);
    let mut file = File::create_new(path).map_err(failed)?;
    let mut random = RandomBytes::new(seed);
    let mut chunk = vec![0; CHUNK_BYTES];
    let (mut offset, end) = (0, bytes - bytes % BLOCK_BYTES as u64);
    while offset < end {
        let size = (end - offset).min(CHUNK_BYTES as u64) as usize;
        let chunk = &mut chunk[..size];
        random.fill(chunk);
        mark(chunk, offset);
        file.write_all(chunk).map_err(failed)?;
        offset += size as u64;
    }
    file.sync_all().map_err(failed)
}

/// Writes each block's offset at its beginning.
fn mark(blocks: &mut [u8], mut offset: u64) {
    for block in blocks.chunks_mut(BLOCK_BYTES) {
        block[..8].copy_from_slice(&offset.to_le_bytes());
        offset += BLOCK_BYTES as u64;
    }
}

/// Whether `bytes`, read at `offset`, are those that [`create`] wrote there, judged by the offsets at the
/// beginnings of blocks.
pub(crate) fn verify(offset: u64, bytes: &[u8]) -> bool {
    let first = offset.next_multiple_of(BLOCK_BYTES as u64);
    let blocks = bytes.get((first - offset) as usize..).unwrap_or_default().chunks(BLOCK_BYTES);
    blocks.zip((first..).step_by(BLOCK_BYTES)).all(|(block, at)| {
        let marked = block.len().min(8);
        block[..marked] == at.to_le_bytes()[..marked]
    })
}

/// Random offsets of blocks, or of pieces of any length, in a file of `bytes`.
#[derive(Debug)]
pub(crate) struct Offsets {
    random: StdRng,
    bytes: u64,
}

impl Offsets {
    pub(crate) fn new(seed: u64, bytes: u64) -> Offsets {
        Offsets { random: StdRng::seed_from_u64(seed), bytes }
    }

    /// The offset of a random block.
    pub(crate) fn block(&mut self) -> u64 {
        self.random.random_range(0..self.bytes / BLOCK_BYTES as u64) * BLOCK_BYTES as u64
    }

    /// A random offset, not aligned, of a piece of `length` bytes.
    pub(crate) fn piece(&mut self, length: usize) -> u64 {
        self.random.random_range(0..=self.bytes - length as u64)
    }
}

/// Evicts a file from the page cache. Returns how many blocks of a sample are cached nevertheless, and the
/// sample's size.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn evict(path: &Path, seed: u64) -> Result<(usize, usize)> {
    let failed = |error: io::Error| Error::file(path, error);
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    // Dirty pages can't be evicted.
    file.sync_all().map_err(failed)?;
    rustix::fs::fadvise(&file, 0, NonZeroU64::new(bytes), Advice::DontNeed)
        .map_err(|error| failed(error.into()))?;
    // Otherwise a probe that misses starts the kernel's read-ahead, of the whole of a small file.
    rustix::fs::fadvise(&file, 0, None, Advice::Random).map_err(|error| failed(error.into()))?;
    let (mut offsets, mut cached) = (Offsets::new(seed, bytes), 0);
    for _ in 0..PROBE_COUNT {
        cached += usize::from(is_cached(&file, offsets.block()).map_err(failed)?);
    }
    Ok((cached, PROBE_COUNT))
}

/// Whether the byte at `offset` can be read without waiting (preadv2(2), `RWF_NOWAIT`).
fn is_cached(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = [0];
    match rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT) {
        Ok(count) => Ok(count > 0),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads the file once, so that it is in the page cache as far as memory allows.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn warm(path: &Path) -> Result<()> {
    let copied = File::open(path).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    copied.map(drop).map_err(|error| Error::file(path, error))
}

/// A description of the machine: its cores, their load, and the device of `directory`.
pub fn machine(directory: &Path) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} core(s), {} beforehand; device: {}", load_average(), device(directory))
}

/// The system's load average of the last minute, for a note (proc(5)).
pub(crate) fn load_average() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load average {}", load.split_ascii_whitespace().next().unwrap_or("unknown"))
}

/// A description of the device of `directory` and its I/O scheduler.
fn device(directory: &Path) -> String {
    let Ok(metadata) = std::fs::metadata(directory) else { return "unknown".to_owned() };
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let Ok(mut block) = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
        return "no block device".to_owned();
    };
    // A partition has no queue but its disk's.
    if !block.join("queue").exists() {
        block = block.parent().map(PathBuf::from).unwrap_or_default();
    }
    let name = block.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let read = |what: &str| std::fs::read_to_string(block.join("queue").join(what)).unwrap_or_default();
    let scheduler = read("scheduler");
    let chosen = scheduler.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let chosen = chosen.map_or("unknown", |(name, _)| name);
    format!("{name}, I/O scheduler {chosen} (of {})", scheduler.trim().replace(['[', ']'], ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verification_succeeds_at_the_right_offset_and_fails_at_a_wrong_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("random");
        create(&path, 10 * BLOCK_BYTES as u64 + 17, 3).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 10 * BLOCK_BYTES);
        for (offset, length) in [(0, 4096), (4096, 4096), (4000, 1024), (8190, 4), (100, 9000), (40_000, 900)]
        {
            assert!(verify(offset, &bytes[offset as usize..offset as usize + length]), "{offset} {length}");
        }
        assert!(!verify(4096, &bytes[..4096]));
        assert!(!verify(4000, &bytes[4001..5025]));
    }

    #[test]
    fn an_evicted_file_is_cold_and_a_warmed_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        // A file in memory can't be evicted.
        if crate::space::is_in_memory(directory.path()) {
            return;
        }
        let path = directory.path().join("random");
        create(&path, 1024 * BLOCK_BYTES as u64, 4).unwrap();
        let (cached, probed) = evict(&path, 1).unwrap();
        // A block that is probed twice may be in the page cache the second time.
        assert!(cached < probed / 2, "{cached} of {probed}");
        warm(&path).unwrap();
        let file = File::open(&path).unwrap();
        assert!((0..1024).all(|block| is_cached(&file, block * BLOCK_BYTES as u64).unwrap()));
    }

    #[test]
    fn offsets_are_within_the_file() {
        let mut offsets = Offsets::new(5, 3 * BLOCK_BYTES as u64);
        for _ in 0..1000 {
            assert!(offsets.block() <= 2 * BLOCK_BYTES as u64);
            assert!(offsets.piece(1024) + 1024 <= 3 * BLOCK_BYTES as u64);
        }
    }
}
