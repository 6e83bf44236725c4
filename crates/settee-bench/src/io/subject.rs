//! The files that are read and written, and what the machine says of them.
//!
//! Their bytes are random, but for the front of each block of 4 KiB, which tells where the block
//! lies: a read that gives other bytes than it should is found out ([`verify`]).

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
pub const BLOCK_BYTES: usize = 4096;

/// Bytes that are written at once while a file is made.
const CHUNK_BYTES: usize = 4 << 20;

/// How many blocks are looked at to tell whether a file is in the page cache.
const PROBE_COUNT: usize = 64;

/// Makes a file of `bytes` (rounded down to whole blocks) and puts it on stable storage.
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

/// Writes into the front of each block where it lies.
fn mark(blocks: &mut [u8], mut offset: u64) {
    for block in blocks.chunks_mut(BLOCK_BYTES) {
        block[..8].copy_from_slice(&offset.to_le_bytes());
        offset += BLOCK_BYTES as u64;
    }
}

/// Whether `bytes`, read at `offset`, are those that [`create`] wrote there, as far as the fronts
/// of the blocks among them tell.
pub(crate) fn verify(offset: u64, bytes: &[u8]) -> bool {
    let first = offset.next_multiple_of(BLOCK_BYTES as u64);
    let blocks = bytes.get((first - offset) as usize..).unwrap_or_default().chunks(BLOCK_BYTES);
    blocks.zip((first..).step_by(BLOCK_BYTES)).all(|(block, at)| {
        let marked = block.len().min(8);
        block[..marked] == at.to_le_bytes()[..marked]
    })
}

/// Random places of whole blocks, or of pieces of any length, in a file of `bytes`.
#[derive(Debug)]
pub(crate) struct Places {
    random: StdRng,
    bytes: u64,
}

impl Places {
    pub(crate) fn new(seed: u64, bytes: u64) -> Places {
        Places { random: StdRng::seed_from_u64(seed), bytes }
    }

    /// Where a block begins.
    pub(crate) fn block(&mut self) -> u64 {
        self.random.random_range(0..self.bytes / BLOCK_BYTES as u64) * BLOCK_BYTES as u64
    }

    /// Where a piece of `length` bytes may begin: anywhere.
    pub(crate) fn piece(&mut self, length: usize) -> u64 {
        self.random.random_range(0..=self.bytes - length as u64)
    }
}

/// Puts the file out of the page cache, and says how many of a sample of its blocks are in it
/// nevertheless, of how many.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn chill(path: &Path, seed: u64) -> Result<(usize, usize)> {
    let failed = |error: io::Error| Error::file(path, error);
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    // What is dirty would stay.
    file.sync_all().map_err(failed)?;
    rustix::fs::fadvise(&file, 0, NonZeroU64::new(bytes), Advice::DontNeed)
        .map_err(|error| failed(error.into()))?;
    let (mut places, mut cached) = (Places::new(seed, bytes), 0);
    for _ in 0..PROBE_COUNT {
        cached += usize::from(is_cached(&file, places.block()).map_err(failed)?);
    }
    Ok((cached, PROBE_COUNT))
}

/// Whether a read of the byte at `offset` needs no wait (preadv2(2), `RWF_NOWAIT`).
fn is_cached(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = [0];
    match rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT) {
        Ok(count) => Ok(count > 0),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads the file once, so that the page cache holds it as far as there is memory.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn warm(path: &Path) -> Result<()> {
    let copied = File::open(path).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    copied.map(drop).map_err(|error| Error::file(path, error))
}

/// Bytes that this process has had fetched from block devices (proc(5), `/proc/self/io`); none
/// where the system doesn't tell.
pub(crate) fn device_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

/// The machine as it is now, in words: cores, what else wants them, and the device of `directory`.
pub(crate) fn machine(directory: &Path) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_ascii_whitespace().next().unwrap_or("unknown");
    format!("{cores} core(s), load average {load} beforehand; device: {}", device(directory))
}

/// The device that `directory` is on and its I/O scheduler, in words.
fn device(directory: &Path) -> String {
    let Ok(metadata) = std::fs::metadata(directory) else { return "unknown".to_owned() };
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let Ok(mut block) = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
        return "no block device".to_owned();
    };
    // A partition's queue is that of its disk.
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
    fn a_file_is_verified_at_every_place_and_found_out_at_a_wrong_one() {
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
    fn a_chilled_file_is_cold_and_a_warmed_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        // What lies in memory can't be chilled.
        if crate::space::is_in_memory(directory.path()) {
            return;
        }
        let path = directory.path().join("random");
        create(&path, 1024 * BLOCK_BYTES as u64, 4).unwrap();
        let (cached, probed) = chill(&path, 1).unwrap();
        assert!(cached < probed, "{cached} of {probed}");
        warm(&path).unwrap();
        let file = File::open(&path).unwrap();
        assert!((0..1024).all(|block| is_cached(&file, block * BLOCK_BYTES as u64).unwrap()));
    }

    #[test]
    fn places_lie_within_the_file() {
        let mut places = Places::new(5, 3 * BLOCK_BYTES as u64);
        for _ in 0..1000 {
            assert!(places.block() <= 2 * BLOCK_BYTES as u64);
            assert!(places.piece(1024) + 1024 <= 3 * BLOCK_BYTES as u64);
        }
    }
}
