//! Goal: the printed settings are the effective ones, with their origins, and yield the same settings as a
//! file. Method: flags and variables parsed by the program's parser; random files and values set over HTTP.

use std::fs;

use clap::Parser;
use proptest::prelude::*;

use super::*;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    given: GivenSettings,
}

fn given(flags: &[String]) -> GivenSettings {
    let line = CommandLine::try_parse_from(std::iter::once("settee".to_owned()).chain(flags.iter().cloned()));
    line.unwrap_or_else(|error| panic!("{error}")).given
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
    EffectiveSettings::resolve(&GivenSettings::default(), Some(&path))
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
    assert_eq!(count, Settings::names().len() - 1, "the example mentions admin only in prose");
}

#[test]
fn each_origin_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a file.toml");
    fs::write(&path, "listen = \"[::1]:0\"\n[limits]\nmax_uuids = 5\nmax_headers = 50").unwrap();
    fs::write(directory.path().join(CONFIG_FILE), "[couchdb]\nmax_document_size = \"1234\"\n").unwrap();
    let given = given(&flags(directory.path(), &["--max-uuids", "6"]));
    let shown = EffectiveSettings::resolve(&given, Some(&path)).unwrap();
    let of_http = Origin::Http(directory.path().join(CONFIG_FILE), "couchdb/max_document_size".to_owned());
    for (name, value, origin) in [
        ("max_uuids", json!(6), Origin::Flag("--max-uuids".to_owned())),
        ("max_headers", json!(50), Origin::File(path.clone())),
        ("listen", json!("[::1]:0"), Origin::File(path.clone())),
        ("max_connections", json!(4096), Origin::Default),
        ("max_document_size", json!(1234), of_http),
    ] {
        let setting = setting(&shown, name);
        assert_eq!((setting.value.as_ref(), &setting.origin), (Some(&value), &origin), "{name}");
    }
    let text = shown.toml();
    let line = text.lines().find(|line| line.starts_with("max_document_size = 1234 ")).unwrap();
    assert!(line.contains("over HTTP as couchdb/max_document_size") && line.contains(CONFIG_FILE), "{line}");
    assert_eq!(shown.json()["settings"]["limits"]["max_uuids"]["where"], "--max-uuids");
}

#[test]
fn a_given_value_without_a_flag_has_its_variable_as_origin() {
    let given = GivenSettings {
        settings: Settings { listen: Some("127.0.0.1:1".to_owned()), ..Settings::default() },
        ..GivenSettings::default()
    };
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
    assert_eq!(setting(&shown, "admin").value, Some(json!("ann:****")));
    assert!(file::parse(&shown.toml()).unwrap().admin.is_none(), "it would be the password");
    let shown = EffectiveSettings::resolve(&by_file, None).unwrap();
    assert_eq!(file::parse(&shown.toml()).unwrap().admin_file, Some(secret));
}

#[test]
fn a_value_that_contradicts_others_in_a_file_is_printed_in_a_comment() {
    let directory = tempfile::tempdir().unwrap();
    let changed =
        "[chttpd]\nmax_http_request_size = \"1000\"\n[couchdb]\nmax_attachment_size = \"infinity\"\n";
    fs::write(directory.path().join(CONFIG_FILE), changed).unwrap();
    let shown = EffectiveSettings::resolve(&given(&flags(directory.path(), &[])), None).unwrap();
    assert_eq!(setting(&shown, "max_request_bytes").value, Some(json!(1000)));
    let text = shown.toml();
    assert!(
        text.contains("\n#max_request_bytes = 1000 ") && text.contains("\nmax_request_bytes = 4294967296 ")
    );
    assert!(text.contains("\n#max_attachment_size = 18446744073709551615 "), "{text}");
    // With a smaller document limit the value is valid, in either order of the two.
    let both = changed.to_owned() + "max_document_size = \"10\"\n";
    fs::write(directory.path().join(CONFIG_FILE), both).unwrap();
    let shown = EffectiveSettings::resolve(&given(&flags(directory.path(), &[])), None).unwrap();
    assert!(shown.toml().contains("\nmax_request_bytes = 1000 "), "{}", shown.toml());
}

#[test]
fn http_configuration_without_a_setting_and_invalid_values_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    let changed = "[uuids]\nalgorithm = \"random\"\nmax_count = \"none\"\n[\"my\\nown\"]\na = \"\"\n";
    fs::write(directory.path().join(CONFIG_FILE), changed).unwrap();
    let shown = EffectiveSettings::resolve(&given(&flags(directory.path(), &[])), None).unwrap();
    let text = shown.toml();
    assert!(text.contains("# uuids/algorithm = \"random\" "), "{text}");
    assert!(text.contains("# my\u{fffd}own/a = (deleted) "), "{text}");
    assert!(text.contains("uuids/max_count: the value configured over HTTP is ignored"), "{text}");
    assert!(file::parse(&text).is_ok(), "{text}");
}

/// Flags for some limits, near their defaults.
fn any_limits() -> impl Strategy<Value = Vec<(TableName, &'static str, u64)>> {
    let numbers: Vec<(TableName, &'static str, u64)> =
        Config::merge(Settings::default(), Settings::default())
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

/// Configuration set over HTTP.
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
    fn printed_settings_yield_the_same_settings_as_a_file(
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
        // Without the values set over HTTP, the settings that the file can represent are the same.
        fs::remove_file(directory.path().join(CONFIG_FILE)).unwrap();
        let alone = shown_of_file(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        for (setting, found) in first.settings.iter().zip(&alone.settings) {
            let is_same = setting.file_form.is_some() || setting.value == found.value;
            prop_assert!(is_same, "{}: {}", setting.name, text);
        }
    }
}
