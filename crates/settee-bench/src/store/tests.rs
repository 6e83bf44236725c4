//! Goal: every operation runs on the store and detects a store that returns other bytes; each part of the
//! table reports every row, judges it, and removes its files; a failed run is reported.
//! Method: the small form in this process; for the table, a shell script replaces all programs, this one
//! included. No timing is asserted.

use std::os::unix::fs::PermissionsExt;

use super::bench::BATCH_COUNT;
use super::work::data::Order;
use super::work::message::Report;
use super::work::{Message, Operation, Spec};
use super::*;

fn small_spec(operation: Operation, order: Order) -> Spec {
    Spec {
        operation,
        order,
        records: 500,
        value_bytes: 100,
        batch: BATCH_COUNT,
        count: 40,
        warm: 0,
        seconds_max: 0,
        lanes: 1,
        memory_bytes: 16 << 20,
        write_out: false,
        compaction: true,
        direct: false,
        group: None,
    }
}

/// Runs a spec in this process. Returns its report and its number of seconds.
fn run_spec(engine_id: &str, directory: &Path, spec: &Spec) -> Result<(Report, usize), String> {
    let spec = serde_json::to_string(spec).unwrap();
    let (mut report, mut seconds) = (None, 0);
    let each = |message| match message {
        Message::Report(found) => report = Some(*found),
        Message::Second(_) => seconds += 1,
        Message::Loaded => panic!("no spec waits to be killed"),
    };
    runs::run_here(engine_id, directory, &spec, EngineKind::Auto, each).map_err(|error| error.to_string())?;
    Ok((report.expect("a run ends with a report"), seconds))
}

#[test]
fn every_operation_runs_on_the_store_and_counts_its_operations() {
    for order in [Order::Sequential, Order::Random] {
        let directory = tempfile::tempdir().unwrap();
        let spec = |operation| small_spec(operation, order);
        let (loaded, _) =
            run_spec("settee", directory.path(), &Spec { write_out: true, ..spec(Operation::Ingest) })
                .unwrap();
        assert_eq!((loaded.operations, loaded.bytes), (500, 500 * 116));
        assert!(loaded.disk_bytes >= loaded.bytes, "{loaded:?}");
        for (operation, operations) in [
            (Operation::Read, 40),
            (Operation::ScanKeys, 500),
            (Operation::ScanValues, 40),
            (Operation::ReadInOrder, 40),
            (Operation::Open, 1),
            (Operation::Durable, 40),
            (Operation::Overwrite, 500 * 40),
        ] {
            let spec =
                Spec { warm: 8, lanes: if operation == Operation::Read { 4 } else { 1 }, ..spec(operation) };
            let (report, seconds) = run_spec("settee", directory.path(), &spec).unwrap();
            assert_eq!(report.operations, operations, "{operation:?} {report:?}");
            assert!(report.seconds > 0.0 && report.setup.contains("store"), "{operation:?} {report:?}");
            assert_eq!(seconds > 0, operation == Operation::Overwrite);
        }
    }
}

#[test]
fn a_reader_beside_a_load_of_reused_keys_finds_only_written_values() {
    let directory = tempfile::tempdir().unwrap();
    let spec = small_spec(Operation::IngestBesideReader, Order::Reuse);
    let (report, _) = run_spec("settee", directory.path(), &Spec { records: 5000, ..spec }).unwrap();
    assert_eq!(report.operations, 5000);
    assert!(report.beside_found <= report.beside_reads, "{report:?}");
}

#[test]
fn a_bare_lookup_supports_only_reads() {
    let directory = tempfile::tempdir().unwrap();
    let spec = small_spec(Operation::Read, Order::Random);
    for _ in 0..2 {
        assert_eq!(run_spec("bare", directory.path(), &spec).unwrap().0.operations, 40);
    }
    assert!(run_spec("bare", directory.path(), &small_spec(Operation::Ingest, Order::Random)).is_err());
    assert!(run_spec("other", directory.path(), &spec).unwrap_err().contains("other"));
}

#[test]
fn other_bytes_and_missing_records_are_detected() {
    let directory = tempfile::tempdir().unwrap();
    let spec = |operation| small_spec(operation, Order::Random);
    run_spec("settee", directory.path(), &spec(Operation::Ingest)).unwrap();
    for spoilt in [
        Spec { value_bytes: 101, ..spec(Operation::Read) },
        Spec { records: 1000, ..spec(Operation::Read) },
        Spec { records: 501, ..spec(Operation::ScanKeys) },
        Spec { value_bytes: 99, ..spec(Operation::ScanValues) },
        Spec { records: 501, ..spec(Operation::Open) },
    ] {
        assert!(run_spec("settee", directory.path(), &spoilt).is_err(), "{spoilt:?}");
    }
}

/// Replaces all programs: `bench store-run WHO DIRECTORY SPEC ENGINE` and `WHO store DIRECTORY SPEC`.
const SCRIPT: &str = r#"#!/bin/sh
case "$*" in *FAIL*) echo told why >&2; exit 3;; *LoadAndHold*) echo '"Held"'; cat; exit;; esac
case "$1" in bench) seconds=2;; redb) seconds=1;; *) seconds=4;; esac
case "$*" in *Overwrite*) echo '{"Second":{"second":1,"writes":9,"reads":7,"read_p50_us":2,"read_p99_us":3,"disk_bytes":30,"live_bytes":20,"engine":"well"}}';; esac
echo '{"Report":{"operations":100,"bytes":1000,"seconds":'$seconds',"p50_us":5,"p99_us":6,"cpu_seconds":1,"written_bytes_in_all":1500,"device_reads":105,"beside_reads":10,"setup":"as it comes"}}'
"#;

fn small() -> Config {
    Config {
        peers: None,
        engine: EngineKind::Auto,
        small: true,
        records: None,
        memory_mib: None,
        rounds: None,
        parts: Vec::new(),
    }
}

/// The number of judged aims of rows.
fn judged(rows: &[Row]) -> usize {
    rows.iter().flat_map(Row::aims).filter(|aim| aim.met.is_some()).count()
}

/// The ratios of rows to a peer.
fn ratios(rows: &[Row], peer: &str) -> Vec<f64> {
    let compared = rows.iter().flat_map(|row| &row.compared);
    compared.filter(|compared| compared.what == format!("× {peer}")).filter_map(|one| one.figure).collect()
}

/// Runs `parts` in a directory that must be empty afterwards, and returns the rows.
fn rows(script: &str, parts: &[Part], has_peers: bool) -> (Vec<Row>, Result<()>) {
    let directory = tempfile::tempdir().unwrap();
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("program");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = Config { peers: has_peers.then_some(program.clone()), parts: parts.to_vec(), ..small() };
    let mut rows = Vec::new();
    let result = run(&config, &program, directory.path(), &mut |row| rows.push(row));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files are left behind");
    for row in &rows {
        assert!(row.aims().all(|aim| aim.met.is_some() == aim.figure.is_some()), "{row:?}");
        assert!(row.rate.is_some() != row.missing.is_some(), "a row without figures says why: {row:?}");
    }
    (rows, result)
}

#[test]
fn every_part_compares_its_rows_with_the_best_peer() {
    for (part, judged_count) in [
        // Two sizes, three orders, with and without writing out: alone, beside, beside over alone.
        (Part::Ingest, 2 * 3 * 2 * 3),
        (Part::Growth, 1),
        (Part::Durable, 2),
        (Part::Overwrite, 4),
        (Part::Open, 1),
    ] {
        let (rows, result) = rows(SCRIPT, &[part], true);
        result.unwrap();
        assert_eq!(judged(&rows), judged_count, "{part:?} {rows:?}");
        let against = ratios(&rows, "redb");
        assert!(against.iter().all(|ratio| *ratio == 0.5), "{part:?} {rows:?}");
        assert_eq!(against.is_empty(), matches!(part, Part::Growth | Part::Overwrite | Part::Open));
    }
}

#[test]
fn data_sets_are_loaded_and_every_step_is_measured() {
    let (rows, result) = rows(SCRIPT, &[Part::Large, Part::Small], true);
    result.unwrap();
    let find = |start: &str| rows.iter().filter(|row| row.workload.trim_start().starts_with(start)).count();
    assert_eq!((find("load "), find("read of "), find("scan of ")), (2, 2 * 5, 2 * 2));
    assert_eq!(find("bytes written for bytes given"), 2);
    assert_eq!(find("cached, over "), 2 * runs::PEERS.len());
    assert_eq!((find("over a bare lookup"), find("the scan over a loop")), (2, 2));
    let reads = rows.iter().filter(|row| row.workload.contains("device reads"));
    let reads: Vec<_> = reads.map(|row| row.compared[0].met).collect();
    assert_eq!(reads, [Some(true), Some(true)], "1.05 reads each are within both aims");
}

#[test]
fn without_peers_no_row_is_compared_with_one() {
    let (rows, result) = rows(SCRIPT, &[Part::Durable, Part::Large], false);
    result.unwrap();
    assert!(ratios(&rows, "redb").is_empty(), "{rows:?}");
    assert!(rows[0].aims().count() == 1 && rows[0].compared[0].met.is_none(), "{rows:?}");
}

#[test]
fn a_failed_run_has_a_row_and_is_an_error_at_the_end() {
    let script = SCRIPT.replace("*FAIL*", "lmdb*|*Durable*");
    let (rows, result) = rows(&script, &[Part::Ingest, Part::Durable, Part::Open], true);
    assert!(result.unwrap_err().to_string().contains("failed"));
    let failed: Vec<_> = rows.iter().filter(|row| row.rate.is_none()).collect();
    assert!(failed.iter().all(|row| row.missing.as_deref().unwrap().contains("told why")), "{failed:?}");
    assert_eq!(failed.len(), 24 + 2 * 5 + 1);
}

#[test]
fn amounts_beyond_the_free_space_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { records: Some(1 << 45), ..small() };
    let error = run(&config, Path::new("false"), directory.path(), &mut |row| panic!("{row:?}")).unwrap_err();
    assert!(matches!(error, Error::Space { .. }), "{error}");
}
