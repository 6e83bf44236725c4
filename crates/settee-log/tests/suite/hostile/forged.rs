//! Goal: client data can't make a torn tail look like damage.
//! Method: a value contains bytes that look like frames, at every offset; the power fails before its batch is
//! persisted. Frames forged with the log's id are accepted, which shows that they are otherwise correct;
//! frames forged without it are not.

use std::path::Path;
use std::time::Duration;

use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk, seeds};
use twox_hash::XxHash3_64;

use super::{DIRECTORY, segment_path};

/// A forged commit of an empty record in segment 1, with the `Seq` 2 and any value of `persisted`.
fn forged(log_id: &[u8], persisted: u32) -> Vec<u8> {
    let seed = XxHash3_64::oneshot(log_id);
    let head = [0_u8; 12];
    let hash = XxHash3_64::oneshot(&head) ^ XxHash3_64::oneshot(&[]).rotate_left(32);
    let record_checksum = hash.wrapping_add(2_u64.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();

    let mut bytes = (seed as u16).to_le_bytes().to_vec();
    bytes.extend_from_slice(&[1, 0]);
    for number in [28_u32, 1, 1] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&2_u64.to_le_bytes());
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    bytes.extend_from_slice(&persisted.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    let checksum = XxHash3_64::oneshot_with_seed(seed, &[&bytes[..], &record_checksum].concat());
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(&record_checksum);
    bytes.extend_from_slice(&2_u64.to_le_bytes());
    bytes.extend_from_slice(&head);
    bytes
}

/// Number of logs that are refused after a power loss in which a value with forged frames was torn. `log_id`
/// is the forger's guess of the id, given the log's first segment.
fn refused_count(log_id: impl Fn(&[u8]) -> Vec<u8>) -> u32 {
    let mut refused = 0;
    for seed in seeds(40) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let options = LogOptions::default();
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new(DIRECTORY), options, |_, _| {}).await.unwrap();
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"key", b"", b"value");
            let appended = log.append(&batch, Stage::Persisted).await.unwrap();
            log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
            let frame = forged(&log_id(&disk.read_file(segment_path(1)).unwrap()), 4_100);
            let mut value = Vec::new();
            for _ in 0..400 {
                value.extend_from_slice(&frame);
                // Each at another offset modulo 8: one of eight is where a frame may be.
                value.push(0);
            }
            let mut batch = Batch::new();
            batch.push(Flags::none(), b"forged", b"", &value);
            log.append(&batch, Stage::Accepted).await.unwrap();
            env.clock.sleep(Duration::from_millis(60)).await;
        })
        .unwrap();
        let sim = Sim::with_disk(&disk.after_power_loss());
        let env = sim.env();
        let opened = sim.run(Log::open(&env, Path::new(DIRECTORY), options, |_, _| {})).unwrap();
        refused += u32::from(opened.is_err());
    }
    refused
}

#[test]
fn a_torn_tail_with_forged_frames_in_a_value_is_cut() {
    let guesses: [&[u8]; 3] = [&[], &[0; 16], b"0123456789abcdef"];
    for guess in guesses {
        assert_eq!(refused_count(|_| guess.to_vec()), 0, "of 40, with the id {guess:?}");
    }
    let informed = refused_count(|segment| segment[24..40].to_vec());
    assert!(informed > 0, "the frames are such that the log's own would be believed");
}
