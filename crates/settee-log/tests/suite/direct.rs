//! Goal: direct mode makes no visible difference to users of the log, also when it is switched during a run.
//! Method: batches of odd sizes at every stage while the mode is switched; everything is read by position,
//! and found again after a power loss.

use std::path::Path;

use settee_log::{Batch, Flags, Log, LogOptions, Seq, Stage};
use settee_sim::{Sim, SimDisk, seeds};

const DIRECTORY: &str = "/data/log";

fn value(seed: u64, number: usize) -> Vec<u8> {
    vec![number as u8; (seed as usize * 7_919 + number * 1_031) % 40_000]
}

#[test]
fn the_mode_can_change_at_any_time() {
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let options = LogOptions {
            direct: seed.is_multiple_of(2),
            segment_bytes_max: 1 << 20,
            batch_bytes_max: 64 << 10,
            writes_in_flight_max: 1 + seed as usize % 4,
            bypass_bytes_min: 20_000,
            ..LogOptions::default()
        };
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
            let mut places = Vec::new();
            for number in 0..60 {
                if (number + seed as usize).is_multiple_of(7) {
                    log.set_direct(number % 2 == 0).await.unwrap();
                }
                let mut batch = Batch::new();
                batch.push_bytes(Flags::none(), b"key", b"", value(seed, number).into());
                let stage = [Stage::Accepted, Stage::Written, Stage::Persisted][number % 3];
                let appended = log.append(&batch, stage).await.unwrap();
                places.push(appended.locations[0]);
                if number % 5 == 0 {
                    log.wait(appended.last_seq, stage).await.unwrap();
                }
                let read = log.read(places[number / 2]).await.unwrap();
                assert_eq!(read.value(), value(seed, number / 2), "seed={seed}");
            }
            log.flush().await.unwrap();
            assert_eq!(log.persisted(), Seq(60), "seed={seed}");
        })
        .unwrap();
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        let mut found = Vec::new();
        sim.run(async {
            let replay = |_, record: settee_log::RecordRef<'_>| found.push(record.value.to_vec());
            Log::open(&env, Path::new(DIRECTORY), options, replay).await.unwrap();
        })
        .unwrap();
        assert_eq!(found, (0..60).map(|number| value(seed, number)).collect::<Vec<_>>(), "seed={seed}");
    }
}
