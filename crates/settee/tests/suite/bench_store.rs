//! Goal: `settee bench store` runs completely on the real store and leaves no files.
//! Method: the benchmark with small parameters, without peers. No times are asserted.

use std::process::Command;

#[test]
fn the_small_benchmark_measures_every_part_and_leaves_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_settee"))
        .args(["bench", "store", "--small", "--json", "--data-dir"])
        .arg(directory.path())
        .output()
        .unwrap();
    let (stderr, rows) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{stderr}\n{rows}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files are left behind");
    let rows: Vec<serde_json::Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let judged = |row: &serde_json::Value| row["compared"].to_string().contains("\"aim\":{");
    assert!(!rows.iter().any(judged), "seconds are too short for a verdict: {rows:?}");
    for start in [
        "ingest 8192 B",
        "load 2000 of 1024 B",
        "read of 2000 of 100 B, ",
        "scan of",
        "load 6000 of",
        "durable writes of",
        "overwrite 2000",
        "open after SIGKILL",
    ] {
        let of_part = rows.iter().filter(|row| row["workload"].as_str().unwrap().starts_with(start));
        assert!(of_part.clone().count() > 0, "{start} in {rows:?}");
        assert!(of_part.clone().all(|row| row["rate"].as_f64().unwrap() > 0.0), "{start} in {rows:?}");
    }
}
