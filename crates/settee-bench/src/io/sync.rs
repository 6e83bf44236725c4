//! The cost of durable writes: each method of syncing on each layout of file.
//!
//! Each write appends one block and puts it on stable storage before the next. The layouts differ in the
//! metadata that the file system must write: for a growing file the new length and blocks, for a
//! preallocated one the state of its blocks, for a zero-filled one nothing. The rows are measured alternately
//! in bursts, so that other load on the machine affects all alike.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags};
use settee_io::{AlignedBuffer, Alignment};

use crate::random::RandomBytes;
use crate::report::Row;
use crate::rounds::{Series, Window};
use crate::stats::{Elapsed, Samples};
use crate::{Error, Result};

/// Bytes of each write: a block of ext4, and a multiple of any device's sector.
const BLOCK_BYTES: usize = 4096;

/// Number of writes of a row before another row's.
const BURST_COUNT: usize = 16;

/// The layout of a file before the first write.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// Empty: each write extends it.
    Growing,
    /// Reserved by fallocate(2): each write turns reserved blocks into written ones.
    Preallocated,
    /// Filled with zeros and synced: each write changes only bytes.
    ZeroFilled,
}

const LAYOUTS: [(&str, Layout); 3] = [
    ("growing", Layout::Growing),
    ("preallocated", Layout::Preallocated),
    ("zero-filled", Layout::ZeroFilled),
];

/// The call that follows each write.
type Sync = fn(&File) -> io::Result<()>;

/// The methods of putting a write on stable storage, with the flags of open(2).
const METHODS: [(&str, OFlags, Sync); 5] = [
    ("fdatasync", OFlags::empty(), File::sync_data),
    ("fsync", OFlags::empty(), File::sync_all),
    ("O_DSYNC", OFlags::DSYNC, |_| Ok(())),
    ("O_DIRECT, fdatasync", OFlags::DIRECT, File::sync_data),
    ("O_DIRECT, O_DSYNC", OFlags::DIRECT.union(OFlags::DSYNC), |_| Ok(())),
];

/// A file that is written to, and the latency of each write with its sync.
struct TestFile {
    name: String,
    sync: Sync,
    /// The error if the file system refused the method.
    file: io::Result<File>,
    samples: Samples,
    wall: Duration,
}

/// Measures `count` durable writes of each layout and method, in files in `directory`, which are removed.
pub(super) fn measure(directory: &Path, count: usize) -> Result<Vec<Row>> {
    let scratch = tempfile::tempdir_in(directory).map_err(|error| Error::file(directory, error))?;
    let mut files = Vec::new();
    for (layout_name, layout) in LAYOUTS {
        for (method, flags, sync) in METHODS {
            let file = create(&scratch.path().join(files.len().to_string()), layout, flags, count);
            let name = format!("durable write of 4 KiB, {layout_name}, {method}");
            files.push(TestFile { name, sync, file, samples: Samples::default(), wall: Duration::ZERO });
        }
    }
    let alignment = Alignment::new(BLOCK_BYTES).expect("a power of two");
    let mut block = AlignedBuffer::new(BLOCK_BYTES, alignment);
    let mut random = RandomBytes::new(1);
    for first in (0..count).step_by(BURST_COUNT) {
        for test in &mut files {
            for index in first..count.min(first + BURST_COUNT) {
                let Ok(file) = &test.file else { continue };
                random.fill(block.whole_mut());
                let start = Instant::now();
                let written = file.write_all_at(block.whole_mut(), (index * BLOCK_BYTES) as u64);
                if let Err(error) = written.and_then(|()| (test.sync)(file)) {
                    test.file = Err(error);
                    continue;
                }
                test.samples.push(start.elapsed());
                test.wall += start.elapsed();
            }
        }
    }
    let medians = files.iter().filter_map(|test| test.samples.percentiles([0.5]));
    let least = medians.map(|[median]| median).reduce(f64::min);
    let row = |TestFile { name, file, samples, wall, .. }| match file {
        Err(error) => Row::missing(name, "writes/s", format!("refused: {error}")),
        Ok(_) => {
            let ratio = samples.percentiles([0.5]).zip(least).map(|([median], least)| median / least);
            let window = Window::of(samples, Elapsed { wall, ..Elapsed::default() });
            Row::new(name, "writes/s", &Series(vec![window])).compare("× the least median", ratio, None)
        }
    };
    Ok(files.into_iter().map(row).collect())
}

fn create(path: &Path, layout: Layout, flags: OFlags, count: usize) -> io::Result<File> {
    let bytes = (count * BLOCK_BYTES) as u64;
    let plain = OpenOptions::new().write(true).create_new(true).open(path)?;
    match layout {
        Layout::Growing => {}
        Layout::Preallocated => rustix::fs::fallocate(&plain, FallocateFlags::empty(), 0, bytes)?,
        Layout::ZeroFilled => plain.write_all_at(&vec![0; bytes as usize], 0)?,
    }
    plain.sync_all()?;
    let flags = i32::try_from(flags.bits()).expect("open's flags are an int");
    OpenOptions::new().write(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_and_method_is_measured() {
        let directory = tempfile::tempdir().unwrap();
        let rows = measure(directory.path(), 20).unwrap();
        assert_eq!(rows.len(), LAYOUTS.len() * METHODS.len());
        for row in rows.iter().filter(|row| !row.workload.contains("O_DIRECT")) {
            assert_eq!((row.operations, row.compared.len()), (20, 1), "{row:?}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
