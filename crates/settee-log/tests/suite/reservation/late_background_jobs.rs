//! Goal: disk space is never reserved beyond a segment's capacity.
//! Method: segments with large footers are truncated and recycled, so that a file is longer than its new
//! segment may be; a background job that was to reserve space for the previous segment runs late.

use std::path::Path;
use std::time::Duration;

use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk, seeds};

#[test]
fn a_late_background_job_reserves_no_space_beyond_the_segment() {
    let options = LogOptions {
        batch_bytes_max: 256 << 10,
        segment_bytes_min: 640 << 10,
        segment_bytes_max: 640 << 10,
        recycled_percent_max: 100,
        ..LogOptions::default()
    };
    for seed in seeds(15) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
            let tiny = |count: u64| {
                let mut batch = Batch::new();
                (0..count as u32).for_each(|key| batch.push(Flags::none(), &key.to_be_bytes(), b"", b""));
                batch
            };
            let mut seqs = Vec::new();
            for turn in 0..24 {
                // The first of these begins a segment, the second truncates. After the third, space is to be
                // reserved in advance, while the next round's first begins another segment.
                for (count, stage) in
                    [(7_400, Stage::Persisted), (10, Stage::Persisted), (5_500, Stage::Accepted)]
                {
                    let last = log.append(&tiny(count), stage).await.unwrap().last_seq;
                    if stage == Stage::Persisted {
                        log.wait(last, stage).await.unwrap();
                        env.clock.sleep(Duration::from_secs(1)).await;
                    }
                    seqs.push(last);
                }
                if turn % 2 == 0 && seqs.len() > 12 {
                    log.truncate_before(seqs[seqs.len() - 10]);
                }
                for path in disk.paths() {
                    let length = disk.read_file(Path::new("/").join(&path)).unwrap().len();
                    assert!(length < 4 << 20, "seed={seed}: {} has {length} bytes", path.display());
                }
            }
        })
        .unwrap();
    }
}
