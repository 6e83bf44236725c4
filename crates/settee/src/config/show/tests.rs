//! Goal: the printed settings are the effective ones, with their origins, and yield the same settings as a
//! file. Method: flags and variables parsed by the program's parser; random files and values set over HTTP.

use std::fs;

use clap::Parser;
use proptest::prelude::*;

use super::*;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    given: Settings,
}

fn given(flags: &[String]) -> Settings {
    let line = CommandLine::try_parse_from(std::iter::once("settee".to_owned()).chain(flags.iter().cloned()));
    line.unwrap_or_else(|error| panic!("{error}")).given
}

fn parse(text: &str) -> Result<Settings, String> {
    file::parse(text, Path::new("settee.toml"))
}

fn flags(data: &Path, others: &[&str]) -> Vec<String> {
    let data = ["--data-dir", data.to_str().unwrap()];
    data.iter().chain(others).map(|flag| (*flag).to_owned()).collect()
}

/// Names and effective values.
fn values(shown: &EffectiveSettings) -> Vec<(&'static str, Option<Value>)> {
    shown.settings.iter().map(|setting| (setting.name, setting.value.clone())).collect()
}

fn setting<'a>(shown: &'a EffectiveSettings, name: &str) -> &'a EffectiveSetting {
    shown.settings.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("{name} isn't shown"))
}

/// The effective settings of a file without flags and variables.
fn shown_of_file(text: &str) -> Result<EffectiveSettings, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("settee.toml");
    fs::write(&path, text).unwrap();
    EffectiveSettings::resolve(&Settings::default(), Some(&path))
}

#[test]
fn every_setting_of_the_example_file_is_shown() {
    let data = tempfile::tempdir().unwrap();
    let shown = EffectiveSettings::resolve(&given(&flags(data.path(), &[])), None).unwrap();
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
    assert_eq!(count, SETTINGS.len());
}

#[test]
fn fixed_limits_are_printed_on_request_in_comments() {
    let data = tempfile::tempdir().unwrap();
    let shown = EffectiveSettings::resolve(&given(&flags(data.path(), &[])), None).unwrap();
    assert!(shown.json()["fixed"].is_null() && !shown.toml().contains("STREAM_SYNC_BYTES"));
    let before = values(&shown);
    let shown = shown.with_fixed();
    let (text, json) = (shown.toml(), shown.json());
    for (name, value, meaning) in [
        ("headers_max", "100", "Headers of a request."),
        ("STREAMS_MAX", "100", "Maximum number of concurrent requests of a connection"),
        ("STREAM_SYNC_BYTES", "8388608", "A stream (appends that no caller waits for) is synced"),
        ("CLOSE_TIMEOUT", "1 s", "Longest time that"),
    ] {
        let row = text.lines().find(|line| line.starts_with(&format!("# {name} = {value} ")));
        assert!(row.is_some_and(|row| row.contains(meaning)), "{name}: {text}");
        let fixed = json["fixed"].as_array().unwrap();
        assert!(fixed.iter().any(|fixed| fixed["name"] == name && fixed["value"] == value), "{name}: {json}");
    }
    assert!(RETIRED.iter().all(|(_, fate)| match fate {
        Fate::Renamed(present) => SETTINGS.iter().any(|setting| setting.name == *present),
        Fate::Constant(name) | Fate::Field { name, .. } => text.contains(&format!("# {name} = ")),
    }));
    let file = data.path().join("printed.toml");
    fs::write(&file, &text).unwrap();
    let again = EffectiveSettings::resolve(&Settings::default(), Some(&file)).unwrap();
    assert_eq!(before, values(&again), "{text}");
}

#[test]
fn each_origin_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a file.toml");
    fs::write(&path, "listen = \"[::1]:0\"\n[limits]\nrequests_in_flight_max = 5\nstop_timeout_ms = 50")
        .unwrap();
    fs::write(directory.path().join(CONFIG_FILE), "[couchdb]\nmax_document_size = \"1234\"\n").unwrap();
    let given = given(&flags(directory.path(), &["--requests-in-flight-max", "6"]));
    let shown = EffectiveSettings::resolve(&given, Some(&path)).unwrap();
    let of_http = Origin::Http(directory.path().join(CONFIG_FILE), "couchdb/max_document_size".to_owned());
    for (name, value, origin) in [
        ("requests_in_flight_max", Value::Number(6), Origin::Flag("--requests-in-flight-max".to_owned())),
        ("stop_timeout_ms", Value::Number(50), Origin::File(path.clone())),
        ("listen", Value::Text("[::1]:0".to_owned()), Origin::File(path.clone())),
        ("connections_max", Value::Number(4096), Origin::Default),
        ("document_bytes_max", Value::Number(1234), of_http),
    ] {
        let setting = setting(&shown, name);
        assert_eq!((setting.value.as_ref(), &setting.origin), (Some(&value), &origin), "{name}");
    }
    let text = shown.toml();
    let line = text.lines().find(|line| line.starts_with("document_bytes_max = 1234 ")).unwrap();
    assert!(line.contains("over HTTP as couchdb/max_document_size") && line.contains(CONFIG_FILE), "{line}");
    assert_eq!(
        shown.json()["settings"]["limits"]["requests_in_flight_max"]["where"],
        "--requests-in-flight-max"
    );
}

#[test]
fn a_given_value_without_a_flag_has_its_variable_as_origin() {
    let mut given = Settings::default();
    let variable = Origin::Variable("SETTEE_LISTEN".to_owned());
    given.insert("listen", Value::Text("127.0.0.1:1".to_owned()), variable);
    let shown = EffectiveSettings::resolve(&given, None).unwrap();
    assert_eq!(setting(&shown, "listen").origin, Origin::Variable("SETTEE_LISTEN".to_owned()));
}

#[test]
fn passwords_are_hidden_and_password_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("admin");
    crate::secret::write_private(&secret, "ann:se\"cret\n");
    let by_flag = given(&flags(directory.path(), &["--admin", "ann:se\"cret"]));
    let by_file = given(&flags(directory.path(), &["--admin-file", secret.to_str().unwrap()]));
    fs::write(directory.path().join(CONFIG_FILE), "[mine]\npassword = \"se\\\"cret\"\n").unwrap();
    for given in [&by_flag, &by_file] {
        let shown = EffectiveSettings::resolve(given, None).unwrap();
        for text in [shown.toml(), shown.json().to_string()] {
            assert!(!text.contains("cret"), "{text}");
        }
    }
    let shown = EffectiveSettings::resolve(&by_flag, None).unwrap();
    assert_eq!(setting(&shown, "admin").value, Some(Value::Text("ann:****".to_owned())));
    assert!(!parse(&shown.toml()).unwrap().has("admin"), "it would be the password");
    let shown = EffectiveSettings::resolve(&by_file, None).unwrap();
    assert_eq!(parse(&shown.toml()).unwrap().path("admin_file"), Some(secret));
}

#[test]
fn a_value_that_contradicts_others_in_a_file_is_printed_in_a_comment() {
    let directory = tempfile::tempdir().unwrap();
    let changed =
        "[chttpd]\nmax_http_request_size = \"1000\"\n[couchdb]\nmax_attachment_size = \"infinity\"\n";
    fs::write(directory.path().join(CONFIG_FILE), changed).unwrap();
    let shown = EffectiveSettings::resolve(&given(&flags(directory.path(), &[])), None).unwrap();
    assert_eq!(setting(&shown, "request_bytes_max").value, Some(Value::Number(1000)));
    let text = shown.toml();
    assert!(
        text.contains("\n#request_bytes_max = 1000 ") && text.contains("\nrequest_bytes_max = 4294967296 ")
    );
    assert!(text.contains("\n#attachment_bytes_max = 18446744073709551615 "), "{text}");
    // With a smaller document limit the value is valid, in either order of the two.
    let both = changed.to_owned() + "max_document_size = \"10\"\n";
    fs::write(directory.path().join(CONFIG_FILE), both).unwrap();
    let shown = EffectiveSettings::resolve(&given(&flags(directory.path(), &[])), None).unwrap();
    assert!(shown.toml().contains("\nrequest_bytes_max = 1000 "), "{}", shown.toml());
}

#[test]
fn http_configuration_without_a_setting_and_invalid_values_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    let changed = "[uuids]\nalgorithm = \"random\"\nmax_count = \"none\"\n\
                   [chttpd]\nmax_db_number_for_dbs_info_req = \"7\"\n[\"my\\nown\"]\na = \"\"\n";
    fs::write(directory.path().join(CONFIG_FILE), changed).unwrap();
    let shown = EffectiveSettings::resolve(&given(&flags(directory.path(), &[])), None).unwrap();
    let text = shown.toml();
    assert!(text.contains("# uuids/algorithm = \"random\" "), "{text}");
    assert!(text.contains("# chttpd/max_db_number_for_dbs_info_req = \"7\" "), "{text}");
    assert!(text.contains("# my\u{fffd}own/a = (deleted) "), "{text}");
    assert!(text.contains("uuids/max_count: the value configured over HTTP is ignored"), "{text}");
    assert!(parse(&text).is_ok(), "{text}");
}

/// Settings of some limits, near their defaults.
fn any_limits() -> impl Strategy<Value = Vec<(TableName, &'static str, u64)>> {
    let numbers: Vec<(TableName, &'static str, u64)> = SETTINGS
        .iter()
        .filter_map(|setting| match setting.default()? {
            super::Value::Number(number) => Some((setting.table, setting.name, number)),
            _ => None,
        })
        .collect();
    let one = (prop::sample::select(numbers), 1_u64..5, 0_u64..3)
        .prop_map(|((table, name, value), part, more)| (table, name, value / part + more));
    prop::collection::vec(one, 0..6).prop_map(|mut limits| {
        limits.sort();
        limits.dedup_by_key(|(_, name, _)| *name);
        limits
    })
}

/// Configuration set over HTTP.
fn any_changes() -> impl Strategy<Value = String> {
    let keys = [
        ("couchdb", "max_document_size"),
        ("couchdb", "max_attachment_size"),
        ("chttpd", "max_http_request_size"),
        ("chttpd", "changes_timeout"),
        ("uuids", "max_count"),
        ("settee", "requests_in_flight_max"),
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
    fn printed_settings_yield_the_same_settings_as_a_file(
        limits in any_limits(),
        changes in any_changes(),
        listen in "[ -~é\\t]{1,20}",
        direct in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(CONFIG_FILE), &changes).unwrap();
        let mut settings = vec![format!("direct_io = {direct}"), format!("listen = {}", quoted(&listen))];
        settings.push(format!("data_dir = {}", quoted(directory.path().to_str().unwrap())));
        settings.extend(limits.iter().map(|(table, name, value)| format!("{table}.{name} = {value}")));
        let Ok(first) = shown_of_file(&settings.join("\n")) else { return Ok(()) };
        let text = first.toml();
        let again = shown_of_file(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        prop_assert_eq!(values(&first), values(&again), "{}", text);
        // Without the values set over HTTP, the settings that the file can represent are the same.
        fs::remove_file(directory.path().join(CONFIG_FILE)).unwrap();
        let alone = shown_of_file(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        for (setting, found) in first.settings.iter().zip(&alone.settings) {
            let is_same = setting.file_form.is_some() || setting.value == found.value;
            prop_assert!(is_same, "{}: {}", setting.name, text);
        }
    }
}
