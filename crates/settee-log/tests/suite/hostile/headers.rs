//! Goal: a whole header that no log writes is an error, not a panic, and no file is removed because of it.
//! Method: such a header, alone in a directory, with a valid checksum.

use std::path::Path;

use settee_io::Damage;
use settee_log::{Manifest, OpenError, TimelineId, Timelines};
use settee_sim::{Sim, SimDisk};

use super::{files, open, seal_header, segment_path};

/// A header's fields about its segment, the log, and the previous segment.
#[derive(Debug, Clone, Copy)]
struct Header {
    version: u32,
    segment: u32,
    epoch: u32,
    oldest: u32,
    first_seq: u64,
    previous_end: u64,
    flags: u32,
}

const SOUND: Header =
    Header { version: 3, segment: 2, epoch: 1, oldest: 2, first_seq: 1, previous_end: 512, flags: 0 };

impl Header {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"SETTEELG".to_vec();
        for number in [self.version, self.segment, self.epoch, self.oldest] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&[7; 16]);
        bytes.extend_from_slice(&self.first_seq.to_le_bytes());
        bytes.extend_from_slice(&self.previous_end.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.flags.to_le_bytes());
        bytes.resize(4096, 0);
        seal_header(&mut bytes);
        bytes
    }
}

/// Writes a manifest that excludes the segments up to this one.
fn write_manifest(disk: &SimDisk, listed_to: u32) {
    let sim = Sim::with_disk(disk);
    let timelines = Timelines::first(TimelineId([7; 16]));
    let manifest = Manifest { number: 1, listed_to, timelines, ..Manifest::default() };
    sim.run(manifest.write(&sim.env(), Path::new("/log"))).unwrap().unwrap();
}

#[test]
fn a_header_that_no_log_writes_is_refused_and_not_removed() {
    let impossible = [
        Header { first_seq: 0, ..SOUND },
        Header { first_seq: u64::MAX, ..SOUND },
        Header { epoch: 0, ..SOUND },
        Header { epoch: u32::MAX, ..SOUND },
        Header { oldest: 0, ..SOUND },
        Header { oldest: 3, ..SOUND },
        Header { oldest: u32::MAX, ..SOUND },
        Header { previous_end: 0, ..SOUND },
        Header { previous_end: (1 << 30) + 1, ..SOUND },
        Header { previous_end: u64::MAX, ..SOUND },
        Header { flags: 2, ..SOUND },
        Header { segment: u32::MAX, oldest: u32::MAX, ..SOUND },
        Header { segment: u32::MAX, oldest: 1, ..SOUND },
    ];
    for header in impossible {
        let disk = SimDisk::new(1);
        disk.write_file(segment_path(header.segment), header.bytes());
        let before = files(&disk);
        let opened = open(&disk);
        assert!(
            matches!(opened, Err(OpenError::Damaged(Damage { offset: 0, .. }))),
            "{header:?}: {opened:?}"
        );
        assert_eq!(files(&disk), before, "{header:?}");
    }
    let disk = SimDisk::new(1);
    disk.write_file(segment_path(2), SOUND.bytes());
    write_manifest(&disk, 1);
    assert_eq!(open(&disk).unwrap().0, [], "the others differ from a sound one");
}

#[test]
fn a_segment_of_another_number_does_not_say_which_are_truncated() {
    // Segment 2 claims the number 9, and that everything before 9 is truncated.
    let disk = SimDisk::new(1);
    disk.write_file(segment_path(1), Header { segment: 1, oldest: 1, previous_end: 0, ..SOUND }.bytes());
    disk.write_file(segment_path(2), Header { segment: 9, oldest: 9, ..SOUND }.bytes());
    let before = files(&disk);
    assert!(matches!(open(&disk), Err(OpenError::Damaged(Damage { offset: 0, .. }))));
    assert_eq!(files(&disk), before);
}

#[test]
fn a_log_of_another_format_is_refused_before_anything_is_changed() {
    for version in [2, 4] {
        let other = Header { version, ..SOUND };
        let first = Header { segment: 1, oldest: 1, previous_end: 0, ..other };
        let torn = vec![7; 4096];
        // A log without a manifest; one with later segments in which nothing was persisted; and one whose first
        // segments a manifest excludes, of which one is left.
        let cases = [
            (None, vec![(1, first.bytes())], 1),
            (None, vec![(1, first.bytes()), (2, torn.clone())], 1),
            (Some(1), vec![(2, other.bytes())], 2),
            (Some(1), vec![(1, first.bytes()), (2, SOUND.bytes())], 1),
            (Some(1), vec![(2, SOUND.bytes()), (3, Header { segment: 3, ..other }.bytes())], 3),
        ];
        for (listed_to, segments, refused) in cases {
            let disk = SimDisk::new(1);
            for (number, bytes) in segments {
                disk.write_file(segment_path(number), bytes);
            }
            if let Some(listed_to) = listed_to {
                write_manifest(&disk, listed_to);
            }
            let before = files(&disk);
            let opened = open(&disk);
            let is_refused = matches!(&opened, Err(OpenError::OtherFormat { path, found, known: 3 })
                if *path == segment_path(refused) && *found == version);
            assert!(is_refused, "version {version}, segment {refused}: {opened:?}");
            assert_eq!(files(&disk), before, "version {version}, segment {refused}");
        }
    }
}
