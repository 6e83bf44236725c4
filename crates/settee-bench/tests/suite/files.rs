//! Goal: the table of `bench io` runs from end to end, counts its operations, and removes its files; without a
//! peer it has no ratio.
//! Method: the small form of a full run's parameters; no timing is asserted.

use std::path::Path;
use std::process::Command;

use settee_bench::io::{self, Config, Part};
use settee_bench::report::Row;
use settee_io::{DirectMode, EngineKind, EngineOptions, File, OpenMode};

fn block_on<T>(test: impl Future<Output = T>) -> T {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap().block_on(test)
}

/// Runs parts, without fio if `no_fio` is set. Checks that each figure is finite and not negative, that a row
/// without figures says why, and that each aim with a figure is judged.
fn rows(directory: &Path, parts: &[Part], no_fio: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    let config = Config { small: true, parts: parts.to_vec(), no_fio };
    block_on(io::run(&config, directory, &mut |row| rows.push(row))).unwrap();
    for row in &rows {
        let figures = [row.rate, row.p50_us, row.p99_us, row.cpu_us, row.sleeps];
        let compared = row.compared.iter().map(|compared| compared.figure);
        for figure in figures.into_iter().chain(compared).flatten() {
            assert!(figure.is_finite() && figure >= 0.0, "{row:?}");
        }
        assert_eq!(row.rate.is_some(), row.operations > 0, "{row:?}");
        assert_eq!(row.rate.is_none(), row.missing.is_some(), "a row without figures says why: {row:?}");
        for compared in row.aims() {
            assert_eq!(compared.met, compared.figure.map(|figure| compared.aim.unwrap().is_met(figure)));
        }
    }
    rows
}

/// Whether a row has a ratio to `peer`.
fn has_ratio(row: &Row, peer: &str) -> bool {
    row.compared.iter().any(|compared| compared.what == format!("× {peer}") && compared.figure.is_some())
}

fn has_fio() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn has_uring() -> bool {
    EngineOptions { kind: EngineKind::Uring, ..EngineOptions::default() }.start().is_ok()
}

/// Whether files in `directory` can be read past the page cache.
fn has_direct(directory: &Path) -> bool {
    let path = directory.join("direct");
    std::fs::write(&path, [1; 4096]).unwrap();
    let is_direct = block_on(async {
        let engine = EngineOptions::default().start().unwrap();
        let file = File::open(&engine, &path, OpenMode::Read).await.unwrap();
        matches!(file.set_direct(true).await.unwrap(), DirectMode::Direct(_))
    });
    std::fs::remove_file(path).unwrap();
    is_direct
}

#[test]
fn reads_and_durable_writes_have_every_row() {
    let directory = tempfile::tempdir().unwrap();
    let rows = rows(directory.path(), &[Part::Cold, Part::Cached, Part::Sync], false);
    let starting =
        |start: &str| rows.iter().filter(|row| row.workload.starts_with(start)).collect::<Vec<_>>();
    // For depth 1: fio, the blocking call, and a task of each engine. For the others: fio, and one task and
    // many tasks of each engine.
    for (depth, count) in [(1, 4), (32, 5), (128, 5)] {
        let reads = starting(&format!("4 KiB, direct, {depth} outstanding"));
        assert_eq!(reads.len(), count, "{depth}");
        for row in reads.iter().filter(|row| !row.workload.contains("outstanding: fio")) {
            let is_supported =
                (has_uring() || !row.workload.contains("io_uring")) && has_direct(directory.path());
            assert_eq!(row.operations > 0, is_supported, "{row:?}");
        }
    }
    let cached = starting("4 KiB, cached");
    assert!(cached.iter().all(|row| row.operations > 0), "{cached:?}");
    assert_eq!(cached.iter().filter(|row| has_ratio(row, "pread")).count(), 3);
    // Three layouts by five methods.
    assert_eq!(starting("durable write of 4 KiB").len(), 15);
    let with_fio = rows.iter().filter(|row| has_ratio(row, "fio")).count();
    assert_eq!(with_fio > 0, has_fio(), "ratios to fio where there is one, and nowhere else");
}

#[test]
fn without_fio_rows_have_a_reason_and_no_ratio() {
    let directory = tempfile::tempdir().unwrap();
    let rows = rows(directory.path(), &[Part::Cold], true);
    assert!(rows.iter().all(|row| !has_ratio(row, "fio")), "{rows:?}");
    let fio: Vec<&Row> = rows.iter().filter(|row| row.workload.ends_with("outstanding: fio")).collect();
    assert_eq!(fio.len(), 3);
    assert!(fio.iter().all(|row| row.missing.as_deref() == Some("no fio")), "{fio:?}");
}

#[test]
fn reads_beside_a_writer_are_compared_with_an_idle_control() {
    let directory = tempfile::tempdir().unwrap();
    let rows = rows(directory.path(), &[Part::Beside], false);
    let cached = rows.iter().filter(|row| row.workload.contains("cached reads") && row.operations > 0);
    let one_core = std::thread::available_parallelism().unwrap().get() < 2;
    assert_eq!(cached.clone().count(), if one_core { 0 } else { 2 });
    assert_eq!(cached.flat_map(Row::aims).filter(|aim| aim.met.is_some()).count(), usize::from(!one_core));
    assert_eq!(rows.iter().any(|row| row.unit == "syncs/s" && row.operations > 0), !one_core);
}
