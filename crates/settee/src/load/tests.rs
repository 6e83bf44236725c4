//! Goal: a load counts stored, existing and refused documents, stores none twice and overwrites none; a dump
//! that is loaded yields the same documents.
//! Method: whole loads and dumps on a data directory.

use std::path::Path;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Loads `text` into the database `cities` of the directory. Returns the counts.
fn load_text(directory: &Path, text: &str, options: &[&str]) -> Counts {
    let data = directory.join("data");
    let fixed = ["load", "-", "--db", "cities", "--create", "--data-dir", data.to_str().unwrap()];
    let args = Cli::parse_from(fixed.iter().chain(options)).args;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let input = text.as_bytes().to_vec();
    runtime.block_on(async {
        let missing = MissingDatabase::of_load(args.create);
        let target = Target::open(&args.target, args.options(), missing).await.unwrap();
        let (mut loader, mut receiver) =
            start_reader(target, None, Box::new(io::Cursor::new(input)), &args).unwrap();
        let failed = loader.store_all(&mut receiver).await;
        let counts = Counts {
            loaded: loader.loaded_count,
            existing: loader.existing_count,
            errors: loader.error_count,
            stopped: loader.stopped.clone(),
        };
        // Closing releases the lock on the directory.
        loader.target.close().await.unwrap();
        assert!(failed.is_none(), "{failed:?}");
        counts
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Counts {
    loaded: u64,
    existing: u64,
    errors: u64,
    stopped: Option<String>,
}

fn counts(loaded: u64, existing: u64, errors: u64) -> Counts {
    Counts { loaded, existing, errors, stopped: None }
}

/// Dumps the database. Returns the lines.
fn dumped(directory: &Path, options: &[&str]) -> Vec<String> {
    let (data, out) = (directory.join("data"), directory.join("out.jsonl"));
    let written = out.clone();
    let (data, out) = (data.to_str().unwrap(), out.to_str().unwrap());
    let fixed = ["dump", "--db", "cities", "--data-dir", data, "--force", "--out", out];
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: crate::dump::Args,
    }
    crate::dump::run(Cli::parse_from(fixed.iter().chain(options)).args).unwrap();
    std::fs::read_to_string(written).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_second_load_adds_nothing_and_equal_documents_get_distinct_ids() {
    let directory = tempfile::tempdir().unwrap();
    let text = "{\"a\":1}\n{\"a\":1}\n{\"a\":2}\n{\"_id\":\"x\",\"b\":1}\n";
    assert_eq!(load_text(directory.path(), text, &[]), counts(4, 0, 0));
    assert_eq!(load_text(directory.path(), text, &[]), counts(0, 4, 0));
    assert_eq!(load_text(directory.path(), "[{\"a\" : 1}, {\"a\":2}, {\"a\":3}]", &[]), counts(1, 2, 0));
    assert_eq!(dumped(directory.path(), &[]).len(), 5);
}

#[test]
fn a_repeated_load_completes_an_interrupted_one() {
    let directory = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..100).map(|number| format!("{{\"n\":{number}}}\n")).collect();
    assert_eq!(load_text(directory.path(), &lines[..37].concat(), &["--batch", "10"]), counts(37, 0, 0));
    assert_eq!(load_text(directory.path(), &lines.concat(), &["--batch", "10"]), counts(63, 37, 0));
    assert_eq!(dumped(directory.path(), &[]).len(), 100);
}

#[test]
fn other_content_under_the_same_id_is_an_error_and_overwrites_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let text = "{\"k\":\"x\",\"v\":1}\n{\"k\":\"x\",\"v\":2}\n{\"k\":\"x\",\"v\":1}\n";
    assert_eq!(load_text(directory.path(), text, &["--id", "k"]), counts(1, 1, 1));
    assert_eq!(load_text(directory.path(), text, &["--id", "k"]), counts(0, 2, 1));
    assert_eq!(dumped(directory.path(), &["--no-rev"]), ["{\"_id\":\"x\",\"k\":\"x\",\"v\":1}"]);
}

#[test]
fn an_invalid_line_stops_the_load_or_is_skipped() {
    let text = "{\"a\":1}\n{\"a\":2}\n{\"a\":\n{\"a\":3}\n";
    let directory = tempfile::tempdir().unwrap();
    let stopped = load_text(directory.path(), text, &[]);
    assert_eq!((stopped.loaded, stopped.errors), (2, 1));
    assert!(stopped.stopped.as_ref().unwrap().starts_with("line 3: "), "{stopped:?}");
    assert_eq!(load_text(directory.path(), text, &["--skip-errors"]), counts(1, 2, 1));
}

#[test]
fn a_refused_document_is_reported_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let text = "{\"a\":1}\n{\"_id\":\"_x\"}\n{\"_nope\":1}\n{\"a\":3}\n";
    assert_eq!(load_text(directory.path(), text, &["--skip-errors"]), counts(2, 0, 2));
    let stopped = load_text(directory.path(), text, &[]);
    assert!(stopped.stopped.as_ref().unwrap().starts_with("line 2: "), "{stopped:?}");
}

#[test]
fn a_loaded_dump_yields_the_same_documents_and_revisions() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let text =
        "{\"_id\":\"b\",\"x\":[1.50,\"\\u00e9\"]}\n{\"_id\":\"_design/d\",\"views\":{}}\n{\"_id\":\"a\"}\n";
    assert_eq!(load_text(one.path(), text, &[]), counts(3, 0, 0));
    let first = dumped(one.path(), &[]);
    assert_eq!(load_text(other.path(), &first.join("\n"), &[]), counts(3, 0, 0));
    assert_eq!(load_text(other.path(), &first.join("\n"), &[]), counts(0, 3, 0));
    assert_eq!(dumped(other.path(), &[]), first);
    let rewritten = first[1].replace("\"_rev\":\"1-", "\"_rev\":\"2-");
    assert_eq!(load_text(other.path(), &rewritten, &[]), counts(0, 0, 1));
    assert_eq!(dumped(other.path(), &[]), first);
}

#[test]
fn a_document_over_the_limit_is_an_error_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let text = "{\"a\":1}\n{\"a\":\"xxxxxxxxxxxxxxxxxxxx\"}\n{\"a\":2}\n";
    let stopped = load_text(directory.path(), text, &["--document-bytes-max", "20"]);
    assert_eq!(
        stopped.stopped.as_deref(),
        Some("line 2: the document exceeds 20 bytes: see --document-bytes-max")
    );
    assert_eq!(load_text(directory.path(), text, &[]), counts(2, 1, 0));
}

#[test]
fn a_document_of_just_the_limit_is_loaded_from_its_dump() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let text = "{\"_id\":\"a\",\"f\":\"xxxxxxxxxxxxxxxx\"}\n";
    let limit = ["--document-bytes-max", "22"];
    assert_eq!(load_text(one.path(), text, &limit), counts(1, 0, 0));
    for flags in [&[][..], &["--all-revisions"]] {
        let dump = dumped(one.path(), flags).join("\n");
        assert!(dump.len() > 60, "{dump}");
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load_text(directory.path(), &dump, &limit), counts(1, 0, 0));
        assert_eq!(load_text(directory.path(), &dump.replace("xx", "xxx"), &limit).errors, 1);
    }
    assert_eq!(load_text(other.path(), text, &["--document-bytes-max", "21"]).errors, 1);
}

#[test]
fn the_error_of_a_missing_database_names_the_create_flag() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let args = Cli::parse_from(["load", "/dev/null", "--db", "cities", "--data-dir", data]).args;
    let error = run(args).unwrap_err().to_string();
    assert!(error.contains("--create"), "{error}");
}

#[test]
fn the_summary_has_a_stable_format() {
    let line = summary(10, 20, 1, Duration::from_secs(2));
    assert_eq!(line, "loaded 10 documents (20 already there, 1 errors) in 2.0 s, 15 docs/s");
}

#[test]
fn documents_are_compared_regardless_of_member_order_and_revision() {
    assert!(is_same(b"{\"_id\":\"a\",\"_rev\":\"1-x\",\"b\":1,\"c\":2}", b"{\"c\":2,\"b\":1,\"_id\":\"a\"}"));
    assert!(!is_same(b"{\"_id\":\"a\",\"b\":1}", b"{\"_id\":\"a\",\"b\":\"1\"}"));
    assert!(!is_same(b"[]", b"[]"));
}
