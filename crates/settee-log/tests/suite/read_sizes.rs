//! Goal: the memory of reading a segment is bounded by its largest frame, not by its size: when a log is
//! opened, when a segment is sealed, scanned or checked, and also if it is damaged.
//! Method: an engine that records the size of the largest read.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use settee_io::{Engine, Env, File, OpenMode, Operation, Outcome, Request};
use settee_log::{
    Batch, Flags, Log, LogOptions, ReadFormat, Seq, Stage, TimelineId, check_segment, scan_segment,
};
use settee_sim::{Sim, SimDisk};

const DIRECTORY: &str = "/data/log";
const SEGMENT_COUNT: usize = 3;
const SEGMENT_BYTES: u32 = 4 << 20;
/// A window, and what a direct read is rounded to.
const WINDOW_BYTES_MAX: usize = (256 << 10) + 8192;

fn path(segment: u32) -> String {
    format!("{DIRECTORY}/{segment:010}.log")
}

fn options() -> LogOptions {
    LogOptions {
        batch_bytes_max: SEGMENT_BYTES as usize / 4,
        segment_bytes_min: SEGMENT_BYTES,
        segment_bytes_max: SEGMENT_BYTES,
        ..LogOptions::default()
    }
}

/// Records the size of the largest read.
struct LargestRead {
    engine: Arc<dyn Engine>,
    bytes: AtomicUsize,
}

impl LargestRead {
    fn record(&self, operation: &Operation) {
        if let Operation::Read { buffer, .. } = operation {
            self.bytes.fetch_max(buffer.capacity(), Ordering::Relaxed);
        }
    }

    /// The size of the largest read since the last call.
    fn take(&self) -> usize {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

impl Engine for LargestRead {
    fn name(&self) -> &'static str {
        "largest read"
    }

    fn submit(&self, request: Request) {
        self.record(&request.operation);
        self.engine.submit(request);
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        self.record(&operation);
        self.engine.run(operation)
    }
}

/// A log of several segments, full of values of this size; returns the largest read of its sealing.
fn fill(disk: &SimDisk, value_bytes: usize) -> usize {
    run(disk, async |env, largest| {
        let (log, _) = Log::open(env, Path::new(DIRECTORY), options(), |_, _| {}).await.unwrap();
        let mut batch = Batch::new();
        batch.push(Flags::none(), b"key", b"meta", &vec![7; value_bytes]);
        // The last segment gets more than one batch.
        let mut more = (1 << 20) / value_bytes;
        while more > 0 {
            log.append(&batch, Stage::Accepted).await.unwrap();
            more -= usize::from(log.segments().len() == SEGMENT_COUNT);
        }
        log.flush().await.unwrap();
        let end = log.seal_soon();
        while log.sealed_below() < end {
            log.sealed_changed(log.sealed_below()).await.unwrap();
        }
        log.close().await.unwrap();
        largest.take()
    })
}

/// Opens the log, and then scans and checks each of its segments; returns the largest read.
fn read_all(disk: &SimDisk) -> usize {
    run(disk, async |env, largest| {
        let opened = Log::open(env, Path::new(DIRECTORY), options(), |_, _| {}).await;
        let segments = opened.map(|(log, _)| log.segment_infos()).unwrap_or_default();
        for segment in segments {
            let file =
                File::open(&env.engine, Path::new(&path(segment.number)), OpenMode::Read).await.unwrap();
            scan_segment(&file, segment.number, segment.frame_bytes, |_, _| {}).await.unwrap();
        }
        for number in 1..=SEGMENT_COUNT as u32 {
            if let Ok(file) = File::open(&env.engine, Path::new(&path(number)), OpenMode::Read).await {
                for timeline in [None, Some(TimelineId([1; 16]))] {
                    check_segment(&file, number, None, timeline, Seq(0), ReadFormat::Present, |_, _, _| {})
                        .await
                        .unwrap();
                }
            }
        }
        largest.take()
    })
}

fn run<T>(disk: &SimDisk, work: impl AsyncFnOnce(&Env, &LargestRead) -> T) -> T {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    let largest = Arc::new(LargestRead { engine: env.engine.clone(), bytes: AtomicUsize::new(0) });
    let env = Env { engine: largest.clone(), ..env };
    sim.run(work(&env, &largest)).unwrap()
}

#[test]
fn a_segment_is_read_in_windows_that_only_a_large_frame_exceeds() {
    for value_bytes in [100, 5_000, 200_000, 900_000] {
        let most = WINDOW_BYTES_MAX + if value_bytes > 250_000 { value_bytes + 8192 } else { 0 };
        let disk = SimDisk::new(value_bytes as u64);
        let sealing = fill(&disk, value_bytes);
        assert!((1..=most).contains(&sealing), "{value_bytes}: sealing reads {sealing} bytes at once");
        type Damage = fn(&mut Vec<u8>);
        let damages: [Damage; 4] = [
            |_| {},
            // A frame in the middle, the last one, and the header.
            |bytes| bytes[700_000..][..4096].fill(0xAB),
            |bytes| bytes.iter_mut().rev().take(1 << 20).for_each(|byte| *byte = 0xAB),
            |bytes| bytes[..100].fill(0xAB),
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            for segment in [1, SEGMENT_COUNT as u32] {
                let file = path(segment);
                let before = disk.read_file(&file).unwrap();
                disk.damage_file(&file, damage);
                let read = read_all(&disk);
                assert!((1..=most).contains(&read), "{value_bytes}, damage {number}: {read} bytes at once");
                disk.write_file(&file, before);
            }
        }
    }
}
