//! Goal: on a full disk, files that aren't needed are removed, so that appends succeed again.
//! Method: everything is truncated as soon as it is persisted; disks of many sizes.

use std::path::Path;
use std::time::Duration;

use settee_log::{AppendError, Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk};

#[test]
fn truncated_segments_are_removed_also_on_a_full_disk() {
    let options = LogOptions {
        batch_bytes_max: 48 << 10,
        segment_bytes_min: 128 << 10,
        segment_bytes_max: 128 << 10,
        ..LogOptions::default()
    };
    let mut stuck = Vec::new();
    for capacity in (300_000..480_000).step_by(1_000) {
        let disk = SimDisk::new(1).capacity(Some(capacity));
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
            let mut refused_count = 0;
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"key", b"", &[1; 40_000]);
            let mut done = 0;
            while done < 100 {
                match log.append(&batch, Stage::Persisted).await {
                    Ok(appended) => {
                        log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
                        log.truncate_before(appended.last_seq);
                        (done, refused_count) = (done + 1, 0);
                    }
                    Err(AppendError::NoSpace { .. }) if refused_count < 20 => {
                        refused_count += 1;
                        env.clock.sleep(Duration::from_secs(1)).await;
                    }
                    Err(error) => {
                        // The last segment's header is persisted, and says that the first can be removed.
                        if log.segments().len() > 2 {
                            stuck.push(format!(
                                "{capacity}: after {done}, segments {:?}: {error}",
                                log.segments()
                            ));
                        }
                        break;
                    }
                }
            }
        })
        .unwrap();
    }
    assert!(stuck.is_empty(), "{} stuck: {stuck:#?}", stuck.len());
}
