//! Goal: what is shown is what holds, says where it comes from, and holds again as a file.
//! Method: flags and variables through the same parser as the program's, files and what was set
//! over HTTP at random.

use std::fs;

use clap::Parser;
use proptest::prelude::*;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    given: Given,
}

fn given(flags: &[String]) -> Given {
    let line = Line::try_parse_from(std::iter::once("settee".to_owned()).chain(flags.iter().cloned()));
    line.unwrap_or_else(|error| panic!("{error}")).given
}

fn flags(data: &Path, others: &[&str]) -> Vec<String> {
    let data = ["--data-dir", data.to_str().unwrap()];
    data.iter().chain(others).map(|flag| (*flag).to_owned()).collect()
}

/// Names and values of what is in force.
fn values(shown: &Shown) -> Vec<(&'static str, Option<Value>)> {
    shown.rows.iter().map(|row| (row.name, row.value.clone())).collect()
}

fn row<'a>(shown: &'a Shown, name: &str) -> &'a Row {
    shown.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name} isn't shown"))
}

/// What is shown of a file's text alone.
fn shown_of_file(text: &str) -> Result<Shown, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("settee.toml");
    fs::write(&path, text).unwrap();
    Shown::gather(&Given::default(), Some(&path))
}

#[test]
fn every_setting_of_the_example_file_is_shown() {
    let data = tempfile::tempdir().unwrap();
    let shown = Shown::gather(&given(&flags(data.path(), &[])), None).unwrap();
    let (text, json) = (shown.toml(), shown.json());
    let example = include_str!("../../../../../docs/settee.toml");
    let mut table = "";
    let mut count = 0;
    for line in example.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']');
        }
        let setting = line.strip_prefix('#').filter(|line| !line.starts_with([' ', '#']));
        let Some((name, _)) = setting.and_then(|line| line.split_once(" = ")) else { continue };
        assert!(
            text.lines().any(|line| line.trim_start_matches('#').starts_with(&format!("{name} = "))),
            "{name}"
        );
        let of_table = if table.is_empty() { &json["settings"] } else { &json["settings"][table] };
        assert!(of_table[name]["source"].is_string(), "[{table}] {name}: {json}");
        count += 1;
    }
    assert_eq!(count, Settings::names().len() - 1, "admin is shown in prose there");
}

#[test]
fn each_source_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a file.toml");
    fs::write(&path, "listen = \"[::1]:0\"\n[limits]\nmax_uuids = 5\nmax_headers = 50").unwrap();
    fs::write(directory.path().join(CONFIG_FILE), "[couchdb]\nmax_document_size = \"1234\"\n").unwrap();
    let given = given(&flags(directory.path(), &["--max-uuids", "6"]));
    let shown = Shown::gather(&given, Some(&path)).unwrap();
    let of_http = Origin::Http(directory.path().join(CONFIG_FILE), "couchdb/max_document_size".to_owned());
    for (name, value, origin) in [
        ("max_uuids", json!(6), Origin::Flag("--max-uuids".to_owned())),
        ("max_headers", json!(50), Origin::File(path.clone())),
        ("listen", json!("[::1]:0"), Origin::File(path.clone())),
        ("max_connections", json!(4096), Origin::Default),
        ("max_document_size", json!(1234), of_http),
    ] {
        let row = row(&shown, name);
        assert_eq!((row.value.as_ref(), &row.origin), (Some(&value), &origin), "{name}");
    }
    let text = shown.toml();
    let line = text.lines().find(|line| line.starts_with("max_document_size = 1234 ")).unwrap();
    assert!(line.contains("over HTTP as couchdb/max_document_size") && line.contains(CONFIG_FILE), "{line}");
    assert_eq!(shown.json()["settings"]["limits"]["max_uuids"]["where"], "--max-uuids");
}

#[test]
fn a_value_that_is_no_flag_came_from_its_variable() {
    let given = Given {
        settings: Settings { listen: Some("127.0.0.1:1".to_owned()), ..Settings::default() },
        ..Given::default()
    };
    let shown = Shown::gather(&given, None).unwrap();
    assert_eq!(row(&shown, "listen").origin, Origin::Variable("SETTEE_LISTEN".to_owned()));
}

#[test]
fn passwords_are_hidden_and_a_file_that_holds_one_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("admin");
    crate::secret::write_private(&secret, "ann:se\"cret\n");
    let by_flag = given(&flags(directory.path(), &["--admin", "ann:se\"cret"]));
    let by_file = given(&flags(directory.path(), &["--admin-file", secret.to_str().unwrap()]));
    fs::write(directory.path().join(CONFIG_FILE), "[mine]\npassword = \"se\\\"cret\"\n").unwrap();
    for given in [&by_flag, &by_file] {
        let shown = Shown::gather(given, None).unwrap();
        for text in [shown.toml(), shown.json().to_string()] {
            assert!(!text.contains("cret"), "{text}");
        }
    }
    let shown = Shown::gather(&by_flag, None).unwrap();
    assert_eq!(row(&shown, "admin").value, Some(json!("ann:****")));
    assert!(file::parse(&shown.toml()).unwrap().admin.is_none(), "it would be the password");
    let shown = Shown::gather(&by_file, None).unwrap();
    assert_eq!(file::parse(&shown.toml()).unwrap().admin_file, Some(secret));
}

#[test]
fn what_no_file_can_say_beside_the_rest_is_told_in_a_comment() {
    let directory = tempfile::tempdir().unwrap();
    let changed =
        "[chttpd]\nmax_http_request_size = \"1000\"\n[couchdb]\nmax_attachment_size = \"infinity\"\n";
    fs::write(directory.path().join(CONFIG_FILE), changed).unwrap();
    let shown = Shown::gather(&given(&flags(directory.path(), &[])), None).unwrap();
    assert_eq!(row(&shown, "max_request_bytes").value, Some(json!(1000)));
    let text = shown.toml();
    assert!(
        text.contains("\n#max_request_bytes = 1000 ") && text.contains("\nmax_request_bytes = 4294967296 ")
    );
    assert!(text.contains("\n#max_attachment_size = 18446744073709551615 "), "{text}");
    // With a smaller document it goes, in whatever order they are found.
    let both = changed.to_owned() + "max_document_size = \"10\"\n";
    fs::write(directory.path().join(CONFIG_FILE), both).unwrap();
    let shown = Shown::gather(&given(&flags(directory.path(), &[])), None).unwrap();
    assert!(shown.toml().contains("\nmax_request_bytes = 1000 "), "{}", shown.toml());
}

#[test]
fn what_is_set_over_http_without_a_setting_is_told_and_what_is_left_out_too() {
    let directory = tempfile::tempdir().unwrap();
    let changed = "[uuids]\nalgorithm = \"random\"\nmax_count = \"none\"\n[\"my\\nown\"]\na = \"\"\n";
    fs::write(directory.path().join(CONFIG_FILE), changed).unwrap();
    let shown = Shown::gather(&given(&flags(directory.path(), &[])), None).unwrap();
    let text = shown.toml();
    assert!(text.contains("# uuids/algorithm = \"random\" "), "{text}");
    assert!(text.contains("# my\u{fffd}own/a = (deleted) "), "{text}");
    assert!(text.contains("uuids/max_count: what was configured over HTTP is left out"), "{text}");
    assert!(file::parse(&text).is_ok(), "{text}");
}

/// Flags for some limits, near their defaults.
fn any_limits() -> impl Strategy<Value = Vec<(Table, &'static str, u64)>> {
    let numbers: Vec<(Table, &'static str, u64)> = Config::merge(Settings::default(), Settings::default())
        .unwrap()
        .groups()
        .into_iter()
        .flat_map(|(table, limits)| limits.into_iter().map(move |(name, value)| (table, name, value)))
        .filter_map(|(table, name, value)| Some((table, name, value.as_u64()?)))
        .collect();
    let one = (prop::sample::select(numbers), 1_u64..5, 0_u64..3)
        .prop_map(|((table, name, value), part, more)| (table, name, value / part + more));
    prop::collection::vec(one, 0..6).prop_map(|mut limits| {
        limits.sort();
        limits.dedup_by_key(|(_, name, _)| *name);
        limits
    })
}

/// What may have been set over HTTP.
fn any_changes() -> impl Strategy<Value = String> {
    let keys = [
        ("couchdb", "max_document_size"),
        ("couchdb", "max_attachment_size"),
        ("chttpd", "max_http_request_size"),
        ("chttpd", "changes_timeout"),
        ("uuids", "max_count"),
        ("settee", "max_requests_in_flight"),
        ("my", "own"),
    ];
    let value = prop_oneof![
        4 => (0_u64..20_000_000).prop_map(|number| number.to_string()),
        1 => prop::sample::select(vec!["infinity", "", "\\u0007 \\\" = #"]).prop_map(str::to_owned),
    ];
    let one = (prop::sample::select(keys.to_vec()), value);
    prop::collection::btree_map(prop::sample::select(keys.to_vec()), one.prop_map(|(_, value)| value), 0..5)
        .prop_map(|changes| {
            let line = |((section, key), value): (&(&str, &str), &String)| {
                format!("{section}.{key} = \"{value}\"\n")
            };
            changes.iter().map(line).collect()
        })
}

proptest! {
    #[test]
    fn what_is_shown_says_the_same_as_a_file(
        limits in any_limits(),
        changes in any_changes(),
        listen in "[ -~é\\t]{1,20}",
        direct in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(CONFIG_FILE), &changes).unwrap();
        let mut settings: Vec<String> = vec![format!("direct_io = {direct}"), format!("listen = {}", quoted(&listen))];
        settings.push(format!("data_dir = {}", quoted(directory.path().to_str().unwrap())));
        settings.extend(limits.iter().map(|(table, name, value)| format!("{table}.{name} = {value}")));
        let Ok(first) = shown_of_file(&settings.join("\n")) else { return Ok(()) };
        let text = first.toml();
        let again = shown_of_file(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        prop_assert_eq!(values(&first), values(&again), "{}", text);
        // And where nothing was set over HTTP, for all that a file can say.
        fs::remove_file(directory.path().join(CONFIG_FILE)).unwrap();
        let alone = shown_of_file(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        for (row, told) in first.rows.iter().zip(&alone.rows) {
            prop_assert!(row.aside.is_some() || row.value == told.value, "{}: {}", row.name, text);
        }
    }
}
