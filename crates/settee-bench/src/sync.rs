//! The cost of durable writes: each method of syncing on each layout of file.
//!
//! Each write appends one block and puts it on stable storage before the next. The layouts differ in the
//! metadata that the file system must write: for a growing file the new length and blocks, for a
//! preallocated one the state of its blocks, for a zero-filled one nothing. The rows are measured alternately
//! in rounds, so that other load on the machine affects all alike.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags};

use crate::random::RandomBytes;
use crate::stats::Samples;
use crate::{Error, Result};

/// Bytes of each write: a block of ext4, and a multiple of any device's sector.
pub const BLOCK_BYTES: usize = 4096;

/// Number of writes of a row in each round.
const BURST_COUNT: usize = 16;

/// The layout of a file before the first write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Empty: each write extends it.
    Growing,
    /// Reserved by fallocate(2): each write turns reserved blocks into written ones.
    Preallocated,
    /// Filled with zeros and synced: each write changes only bytes.
    ZeroFilled,
}

/// The method of putting a write on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// pwrite(2), then fdatasync(2).
    Fdatasync,
    /// pwrite(2), then fsync(2).
    Fsync,
    /// pwrite(2) to a file opened with `O_DSYNC`.
    Dsync,
    /// pwrite(2) past the page cache (`O_DIRECT`), then fdatasync(2).
    DirectFdatasync,
    /// pwrite(2) to a file opened with `O_DIRECT` and `O_DSYNC`.
    DirectDsync,
}

/// Every layout with every method.
pub const ROWS: [(Layout, Method); 15] = {
    use Layout::{Growing, Preallocated, ZeroFilled};
    use Method::{DirectDsync, DirectFdatasync, Dsync, Fdatasync, Fsync};
    [
        (Growing, Fdatasync),
        (Growing, Fsync),
        (Growing, Dsync),
        (Growing, DirectFdatasync),
        (Growing, DirectDsync),
        (Preallocated, Fdatasync),
        (Preallocated, Fsync),
        (Preallocated, Dsync),
        (Preallocated, DirectFdatasync),
        (Preallocated, DirectDsync),
        (ZeroFilled, Fdatasync),
        (ZeroFilled, Fsync),
        (ZeroFilled, Dsync),
        (ZeroFilled, DirectFdatasync),
        (ZeroFilled, DirectDsync),
    ]
};

impl Layout {
    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Growing => "growing",
            Layout::Preallocated => "preallocated",
            Layout::ZeroFilled => "zero-filled",
        }
    }
}

impl Method {
    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Method::Fdatasync => "fdatasync",
            Method::Fsync => "fsync",
            Method::Dsync => "O_DSYNC",
            Method::DirectFdatasync => "O_DIRECT, fdatasync",
            Method::DirectDsync => "O_DIRECT, O_DSYNC",
        }
    }

    fn flags(self) -> OFlags {
        match self {
            Method::Fdatasync | Method::Fsync => OFlags::empty(),
            Method::Dsync => OFlags::DSYNC,
            Method::DirectFdatasync => OFlags::DIRECT,
            Method::DirectDsync => OFlags::DIRECT | OFlags::DSYNC,
        }
    }

    fn sync(self, file: &File) -> io::Result<()> {
        match self {
            Method::Fdatasync | Method::DirectFdatasync => file.sync_data(),
            Method::Fsync => file.sync_all(),
            Method::Dsync | Method::DirectDsync => Ok(()),
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct SyncRow {
    /// The file's layout.
    pub layout: Layout,
    /// The method.
    pub method: Method,
    /// The latency of each durable write, or the error if the file system refused the method.
    pub samples: io::Result<Samples>,
}

/// Measures every row with `count` durable writes each, in temporary files under `directory`, which are
/// removed at the end. Blocks.
///
/// # Errors
/// [`Error::File`] if the directory can't be used. If the file system refuses a method, the method's row has
/// the error.
pub fn measure(directory: &Path, count: usize) -> Result<Vec<SyncRow>> {
    let scratch =
        tempfile::tempdir_in(directory).map_err(|source| Error::File { path: directory.into(), source })?;
    let mut random = RandomBytes::new(1);
    let mut rows: Vec<_> = ROWS
        .into_iter()
        .map(|(layout, method)| {
            let path =
                scratch.path().join(format!("{}-{}", layout.name(), method.name().replace([' ', ','], "")));
            (layout, method, TestFile::create(&path, layout, method, count), Samples::default())
        })
        .collect();
    let mut block = AlignedBlock::new();
    for round in 0..count.div_ceil(BURST_COUNT) {
        let writes = round * BURST_COUNT..count.min((round + 1) * BURST_COUNT);
        for (_, method, file, samples) in &mut rows {
            let Ok(open_file) = file else { continue };
            if let Err(error) = open_file.write(*method, writes.clone(), &mut block, &mut random, samples) {
                *file = Err(error);
            }
        }
    }
    Ok(rows
        .into_iter()
        .map(|(layout, method, file, samples)| SyncRow { layout, method, samples: file.map(|_| samples) })
        .collect())
}

/// A file that is written to.
struct TestFile(File);

impl TestFile {
    fn create(path: &Path, layout: Layout, method: Method, count: usize) -> io::Result<TestFile> {
        let bytes = (count * BLOCK_BYTES) as u64;
        let plain = OpenOptions::new().write(true).create_new(true).open(path)?;
        match layout {
            Layout::Growing => {}
            Layout::Preallocated => rustix::fs::fallocate(&plain, FallocateFlags::empty(), 0, bytes)?,
            Layout::ZeroFilled => {
                let zeros = vec![0; BLOCK_BYTES];
                for index in 0..count {
                    plain.write_all_at(&zeros, (index * BLOCK_BYTES) as u64)?;
                }
            }
        }
        plain.sync_all()?;
        let flags = i32::try_from(method.flags().bits()).expect("open's flags are an int");
        Ok(TestFile(OpenOptions::new().write(true).custom_flags(flags).open(path)?))
    }

    fn write(
        &self,
        method: Method,
        writes: std::ops::Range<usize>,
        block: &mut AlignedBlock,
        random: &mut RandomBytes,
        samples: &mut Samples,
    ) -> io::Result<()> {
        for index in writes {
            random.fill(block.bytes());
            let start = Instant::now();
            self.0.write_all_at(block.bytes(), (index * BLOCK_BYTES) as u64)?;
            method.sync(&self.0)?;
            samples.push(start.elapsed());
        }
        Ok(())
    }
}

/// A block of memory aligned to its size, as direct I/O requires.
struct AlignedBlock {
    memory: Vec<u8>,
    start: usize,
}

impl AlignedBlock {
    fn new() -> AlignedBlock {
        let memory = vec![0; 2 * BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        AlignedBlock { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BLOCK_BYTES]
    }
}

/// The table, with the ratio of each row's median to the smallest.
pub fn table(rows: &[SyncRow]) -> String {
    let medians: Vec<Option<Duration>> =
        rows.iter().map(|row| row.samples.as_ref().ok()?.percentiles([0.5]).map(|[median]| median)).collect();
    let least = medians.iter().flatten().min().copied().unwrap_or_default();
    let mut text =
        format!("{:<14} {:<20} {:>10} {:>10} {:>9}\n", "file", "method", "p50 µs", "p99 µs", "× least");
    for (row, median) in rows.iter().zip(&medians) {
        let name = format!("{:<14} {:<20}", row.layout.name(), row.method.name());
        match (&row.samples, median) {
            (Ok(samples), Some(median)) => {
                let [p99] = samples.percentiles([0.99]).unwrap_or_default();
                let ratio = median.as_secs_f64() / least.as_secs_f64().max(1e-9);
                text += &format!("{name} {:>10.0} {:>10.0} {ratio:>9.2}\n", micros(*median), micros(p99));
            }
            (Err(error), _) => text += &format!("{name} refused: {error}\n"),
            (Ok(_), None) => text += &format!("{name} nothing measured\n"),
        }
    }
    text
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_and_method_is_measured_and_shown() {
        let directory = tempfile::tempdir().unwrap();
        let rows = measure(directory.path(), 20).unwrap();
        assert_eq!(rows.len(), ROWS.len());
        for row in
            rows.iter().filter(|row| !matches!(row.method, Method::DirectFdatasync | Method::DirectDsync))
        {
            assert_eq!(row.samples.as_ref().unwrap().count(), 20, "{:?} {:?}", row.layout, row.method);
        }
        assert_eq!(table(&rows).lines().count(), ROWS.len() + 1);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
