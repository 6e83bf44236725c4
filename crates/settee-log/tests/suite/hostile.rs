//! Goal: for any bytes in a log's directory, opening returns what was written or a typed error, and changes
//! nothing on an error; and no client data affects recovery. Each file checks one way in which this might
//! fail.

mod directories;
mod forged;
mod headers;
mod long;
mod mutations;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use settee_log::{Log, LogOptions, OpenError, Recovery};
use settee_sim::{Sim, SimDisk};
use twox_hash::XxHash3_64;

const DIRECTORY: &str = "/log";

/// Segments that three batches fill.
const OPTIONS: LogOptions = LogOptions {
    batch_bytes_max: 4096,
    segment_bytes_max: 12 << 10,
    recycled_percent_max: 100,
    ..LogOptions::DEFAULT
};

fn segment_path(segment: u32) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{segment:010}.log"))
}

/// A recovered record: its `Seq` and value.
type Found = (u64, Vec<u8>);

fn open(disk: &SimDisk) -> Result<(Vec<Found>, Recovery), OpenError> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let mut found = Vec::new();
        let replay = |_, record: settee_log::RecordRef<'_>| found.push((record.seq.0, record.value.to_vec()));
        let (log, recovery) = Log::open(&env, Path::new(DIRECTORY), OPTIONS, replay).await?;
        log.close().await.expect("nothing was appended");
        Ok((found, recovery))
    })
    .unwrap()
}

/// The content of all files but the lock file.
fn files(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = disk.paths().into_iter().filter(|path| !path.ends_with("lock"));
    let paths = paths.map(|path| Path::new("/").join(path));
    paths.map(|path| (path.clone(), disk.read_file(&path).expect("it is listed"))).collect()
}

/// Recomputes the checksum of the segment's header.
fn seal_header(bytes: &mut [u8]) {
    let checksum = XxHash3_64::oneshot(&bytes[..72]);
    bytes[72..80].copy_from_slice(&checksum.to_le_bytes());
}
