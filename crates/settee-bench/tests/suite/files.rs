//! Goal: the tables of `bench io` and `bench reads` run from end to end, count their operations, and remove
//! their files; without a peer they have no ratio.
//! Method: the small form of a full run's parameters; no timing is asserted.

use std::path::Path;
use std::process::Command;

use settee_bench::io::{self, IN_FLIGHT_COUNTS, IoRow, SIZES};
use settee_bench::reads::{self, FILE_COUNT};
use settee_io::{DirectMode, EngineKind, EngineOptions, File, OpenMode};

fn block_on<T>(test: impl Future<Output = T>) -> T {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap().block_on(test)
}

fn io_rows(config: &io::Config) -> Vec<IoRow> {
    let mut rows = Vec::new();
    block_on(io::run(config, |row| rows.push(row))).unwrap();
    rows
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

/// Checks that figures are finite and not negative, and that a row with an aim and a ratio is judged.
fn assert_sound(row: &IoRow) {
    for figure in
        [row.rate, row.p50_us, row.p99_us, row.cpu_us, row.switches, row.ratio].into_iter().flatten()
    {
        assert!(figure.is_finite(), "{row:?}");
        assert!(figure >= 0.0, "{row:?}");
    }
    assert_eq!(row.rate.is_some(), row.operations > 0, "{row:?}");
    assert!(row.rate.is_some() || row.note.is_some(), "a row without figures says why: {row:?}");
    assert_eq!(row.met.is_some(), row.aim.is_some() && row.ratio.is_some(), "{row:?}");
    if let (Some(aim), Some(ratio)) = (row.aim, row.ratio) {
        assert_eq!(row.met, Some(aim.is_met(ratio)), "{row:?}");
    }
}

fn assert_empty(directory: &Path) {
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "files are left behind");
}

#[test]
fn reads_and_flushes_have_every_row_and_leave_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let config = io::Config::new(directory.path()).small();
    let rows = io_rows(&config);
    rows.iter().for_each(assert_sound);
    assert_empty(directory.path());
    let starting =
        |start: &str| rows.iter().filter(|row| row.workload.starts_with(start)).collect::<Vec<_>>();
    // For depth 1: fio, the blocking call, and a task of each engine. For the others: fio, and one task and
    // many tasks of each engine.
    assert_eq!(starting("4 KiB, direct, 1 outstanding").len(), 4);
    assert_eq!(starting("4 KiB, direct, 32 outstanding").len(), 5);
    assert_eq!(starting("4 KiB, direct, 128 outstanding").len(), 5);
    let cached = starting("4 KiB, cached");
    assert!(cached.iter().all(|row| row.operations > 0), "{cached:?}");
    assert_eq!(cached.iter().filter(|row| row.ratio.is_some()).count(), 3);
    // Buffered and direct, by both engines.
    let flushes: Vec<_> =
        starting("flush: ").into_iter().filter(|row| !row.workload.contains("fio")).collect();
    assert_eq!(flushes.len(), 4 * SIZES.len() * IN_FLIGHT_COUNTS.len());
    let mib = config.flush_bytes >> 20;
    for row in &flushes {
        let is_supported = (has_uring() || !row.workload.contains("io_uring"))
            && (has_direct(directory.path()) || !row.workload.contains("direct"));
        assert_eq!(row.operations, if is_supported { mib } else { 0 }, "{row:?}");
    }
    let modes = if has_direct(directory.path()) { 2 } else { 1 };
    assert_eq!(starting("flush, the best ").len(), modes);
    let with_fio =
        rows.iter().filter(|row| row.peer.as_deref() == Some("fio") && row.ratio.is_some()).count();
    assert_eq!(with_fio > 0, has_fio(), "ratios to fio where there is one, and nowhere else");
}

#[test]
fn without_fio_rows_have_a_note_and_no_ratio() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = io::Config::new(directory.path()).small().without_fio();
    config.parts = vec![io::Part::Cold, io::Part::Flush];
    let rows = io_rows(&config);
    rows.iter().for_each(assert_sound);
    for row in &rows {
        assert_eq!((row.ratio, row.met), (None, None), "{row:?}");
    }
    assert_eq!(rows.iter().filter(|row| row.workload.ends_with("outstanding: fio")).count(), 3);
    assert!(rows.iter().any(|row| row.note.as_deref() == Some("no fio")), "{rows:?}");
}

#[test]
fn small_reads_are_counted_in_every_order_and_leave_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let config = reads::Config::new(directory.path()).small();
    let mut rows: Vec<IoRow> = Vec::new();
    block_on(reads::run(&config, |row| rows.push(row))).unwrap();
    rows.iter().for_each(assert_sound);
    assert_empty(directory.path());
    let read_count = (config.read_count * FILE_COUNT * config.rounds) as u64;
    for mode in ["buffered", "direct"] {
        if mode == "direct" && !has_direct(directory.path()) {
            continue;
        }
        let start = format!("parread, cold, {mode}: ");
        let orders: Vec<_> = rows.iter().filter(|row| row.workload.starts_with(&start)).collect();
        assert_eq!(orders.len(), 5, "{mode}");
        assert!(orders.iter().all(|row| row.operations == read_count), "{orders:?}");
        assert_eq!(orders.iter().filter(|row| row.ratio.is_some()).count(), 4, "{mode}");
        assert_eq!(orders.iter().filter(|row| row.aim.is_some()).count(), 3, "{mode}");
    }
    let beside =
        rows.iter().filter(|row| row.workload.contains("cached reads") && row.operations > 0).count();
    let one_core = std::thread::available_parallelism().unwrap().get() < 2;
    assert_eq!(beside, if one_core { 0 } else { 2 });
    assert_eq!(rows.iter().any(|row| row.unit == "syncs/s" && row.operations > 0), !one_core);
}

#[test]
fn invalid_sizes_are_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let spoilt: [fn(&mut io::Config); 5] = [
        |config| config.file_bytes = 0,
        |config| config.file_bytes = 5000,
        |config| config.flush_bytes = 1 << 20,
        |config| config.rounds = 0,
        |config| config.flush_rounds = 0,
    ];
    for spoil in spoilt {
        let mut config = io::Config::new(directory.path()).small();
        spoil(&mut config);
        let error = block_on(io::run(&config, |row| panic!("{row:?}"))).unwrap_err();
        assert!(error.to_string().contains("whole blocks"), "{error}");
    }
    let small = reads::Config::new(directory.path()).small();
    for config in [
        reads::Config { file_bytes: 4096, ..small.clone() },
        reads::Config { read_count: 0, ..small.clone() },
        reads::Config { beside_rounds: 0, ..small.clone() },
    ] {
        let error = block_on(reads::run(&config, |row| panic!("{row:?}"))).unwrap_err();
        assert!(error.to_string().contains("whole blocks"), "{error}");
    }
    let mut huge = io::Config::new(directory.path()).small();
    huge.file_bytes = 1 << 50;
    let error = block_on(io::run(&huge, |row| panic!("{row:?}"))).unwrap_err();
    assert!(error.to_string().contains("MB free"), "{error}");
    assert_empty(directory.path());
}
