//! Goal: opening touches no file but the log's own segments.
//! Method: files with names similar to a segment's, and with the numbers of truncated segments.

use std::path::Path;

use settee_io::Damage;
use settee_log::OpenError;
use settee_sim::SimDisk;

use super::mutations::truncated_log;
use super::{DIRECTORY, files, open, seal_header, segment_path};

#[test]
fn a_file_whose_name_is_not_a_segments_is_not_changed() {
    let names = [
        "+000000001.log",
        "0000000000.log",
        "00000000001.log",
        "000000001.log",
        "4294967296.log",
        "0000000001.LOG",
    ];
    for name in names {
        let disk = SimDisk::new(1);
        disk.write_file(Path::new(DIRECTORY).join(name), b"something else".to_vec());
        let before = files(&disk);
        assert_eq!(open(&disk).unwrap().1.segment_count, 0, "{name}");
        assert_eq!(files(&disk), before, "{name}");
    }
}

/// A log whose first segments were truncated, and the number of its oldest.
fn log() -> (SimDisk, u32) {
    let disk = truncated_log(1).0;
    let oldest = (1..).find(|number| disk.read_file(segment_path(*number)).is_some()).unwrap();
    assert!(oldest > 1);
    (disk, oldest)
}

#[test]
fn another_logs_file_with_a_truncated_segments_number_is_refused_and_kept() {
    let (disk, oldest) = log();
    let mut bytes = disk.read_file(segment_path(oldest)).unwrap();
    bytes[12..16].copy_from_slice(&(oldest - 1).to_le_bytes());
    bytes[20..24].copy_from_slice(&1_u32.to_le_bytes());
    bytes[24] ^= 1;
    seal_header(&mut bytes);
    disk.write_file(segment_path(oldest - 1), bytes.clone());
    let before = files(&disk);
    match open(&disk) {
        Err(OpenError::Damaged(Damage { path, what, .. })) => {
            let foreign = "it belongs to another log, or to another timeline of this one";
            assert_eq!((path, what), (segment_path(oldest - 1), foreign))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(files(&disk), before);

    // The log's own file is removed.
    bytes[24] ^= 1;
    seal_header(&mut bytes);
    disk.write_file(segment_path(oldest - 1), bytes);
    open(&disk).unwrap();
    assert_eq!(disk.read_file(segment_path(oldest - 1)), None);
}

#[test]
fn a_file_with_a_truncated_segments_number_and_no_header_is_set_aside() {
    for (byte, is_kept) in [(0, false), (0xAB, true)] {
        let (disk, oldest) = log();
        let path = segment_path(oldest - 1);
        disk.write_file(&path, vec![byte; 8192]);
        open(&disk).unwrap();
        assert_eq!(disk.read_file(&path), None, "{byte}");
        assert_eq!(disk.read_file(path.with_extension("torn")).is_some(), is_kept, "{byte}");
    }
}
