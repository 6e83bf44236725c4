//! Goal: each part of the table runs from end to end, reports every row, and removes its files.
//! Method: the smallest amounts; no timing is asserted. A shell script replaces the peers' binary, which no
//! test builds.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use settee_io::EngineKind;

use super::*;

/// Runs `parts` in a directory that must be empty afterwards, and returns the rows.
fn rows(parts: &[Part], peers: Option<PathBuf>) -> Vec<LogRow> {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        directory: directory.path().to_owned(),
        peers,
        program: "false".into(),
        engine: EngineKind::Auto,
        scale: 0.001,
        parts: parts.to_vec(),
    };
    let mut rows = Vec::new();
    run(&config, |row| rows.push(row)).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files are left behind");
    assert!(config.title().unwrap().starts_with("the log on "));
    for row in &rows {
        assert!(row.ours.is_finite() && row.ours > 0.0, "{row:?}");
        assert_eq!(row.met.is_some(), row.aim.is_some() && row.against.is_some(), "{row:?}");
    }
    rows
}

#[test]
fn streams_are_measured_against_memcpy_and_fio() {
    let rows = rows(&[Part::Memory, Part::Disk], None);
    let names: Vec<&str> = rows.iter().map(|row| &*row.workload).collect();
    assert_eq!(
        names,
        ["append 1 MiB of 8 KiB values to memory", "append 8 MiB of 8 KiB values to the disk, direct"]
    );
    assert!(rows.iter().all(|row| row.aim.is_some()), "{rows:?}");
    // If fio isn't installed or doesn't work, a note has the reason.
    assert!(rows[1].against.is_some() || rows[1].notes.iter().any(|note| note.contains("fio")), "{rows:?}");
}

#[test]
fn writers_are_measured_one_and_many() {
    let rows = rows(&[Part::Durable, Part::Writers], None);
    assert_eq!(rows.len(), 3 + 2 * 5);
    assert!(rows[0].met.is_some() && rows[1].met.is_some(), "{rows:?}");
    assert!(rows[2].against.is_none(), "{rows:?}");
}

#[test]
fn batches_are_measured_against_the_best_peer_and_without_one_there_is_no_ratio() {
    let alone = rows(&[Part::Batches], None);
    assert_eq!(alone.len(), 2);
    assert!(alone.iter().all(|row| row.ratio.is_none()), "{alone:?}");
    assert!(alone[0].lines().contains("no peer"), "{}", alone[0].lines());

    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("peers");
    let report = r#"{"bytes": 1000000, "seconds": '$seconds', "p50_us": 5.0, "setup": "'"$1 $2 $4"'"}"#;
    let text = format!("#!/bin/sh\nseconds=1; [ $1 = rocksdb ] && seconds=0.5\necho '{report}'\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let beside = rows(&[Part::Batches, Part::Durable], Some(script));
    for row in &beside[..2] {
        let against = row.against.as_ref().unwrap();
        assert_eq!((&*against.name, against.figure), ("rocksdb", 2.0), "{row:?}");
    }
    let text: String = beside.iter().map(LogRow::lines).collect();
    for setup in ["fjall batches-buffered 1", "rocksdb batches-written 1", "fjall durable 8"] {
        assert!(text.contains(setup), "{setup} in {text}");
    }
}
