//! Goal: each part of the table runs from end to end, reports every row, and removes its files.
//! Method: the smallest amounts; no timing is asserted.

use settee_io::EngineKind;

use super::*;

/// Runs `parts` in a directory, and returns the rows.
fn rows(parts: &[Part]) -> Vec<Row> {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { engine: EngineKind::Auto, scale: 0.001, parts: parts.to_vec() };
    let mut rows = Vec::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(&config, directory.path(), &mut |row| rows.push(row))).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files are left behind");
    for row in &rows {
        assert!(row.rate.is_some_and(|rate| rate.is_finite() && rate > 0.0), "{row:?}");
    }
    rows
}

#[test]
fn streams_are_measured_against_memcpy_and_fio() {
    let rows = rows(&[Part::Memory, Part::Disk]);
    let names: Vec<&str> = rows.iter().map(|row| &*row.workload).collect();
    assert_eq!(
        names,
        [
            "append 1 MiB of 8 KiB values to memory, accepted",
            "append 8 MiB of 8 KiB values to the disk, direct, persisted"
        ]
    );
    assert!(rows.iter().all(|row| row.aims().count() == 1), "{rows:?}");
    assert!(rows[0].compared[0].met.is_some(), "{rows:?}");
    // If fio isn't installed or doesn't work, a note has the reason.
    assert!(rows[1].compared[0].met.is_some() || rows[1].notes.iter().any(|note| note.contains("fio")));
}

#[test]
fn writers_are_measured_one_and_many() {
    let rows = rows(&[Part::Durable, Part::Writers]);
    assert_eq!(rows.len(), 3 + 5);
    assert!(rows[1].compared[0].met.is_some() && rows[2].compared[0].met.is_some(), "{rows:?}");
    // The rate over that of fewer writers, and the p99 over a sync's time.
    let compared: Vec<usize> = rows[3..].iter().map(|row| row.compared.len()).collect();
    assert_eq!(compared, [1, 2, 2, 2, 2]);
    assert!(rows[3..].iter().all(|row| row.compared.last().unwrap().met.is_some()), "{rows:?}");
}
