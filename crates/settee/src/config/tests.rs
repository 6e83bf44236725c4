//! Goal: each setting has the value of its most specific source, and invalid settings are refused by name.
//! Method: flags parsed by the program's parser, and settings files.

use std::path::Path;

use clap::Parser;
use settee_doc::LogOptions;
use settee_http::Limits;
use settee_io::{EngineKind, PoolOptions, ThreadOptions};

use super::*;
use crate::secret;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    settings: Settings,
}

fn flags(flags: &[&str]) -> Settings {
    let line = CommandLine::try_parse_from(std::iter::once("settee").chain(flags.iter().copied()));
    line.unwrap_or_else(|error| panic!("{error}")).settings
}

fn resolve(given: Settings, file: &str) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("settee.toml");
    secret::write_private(&path, file);
    Config::resolve(given, Some(&path))
}

#[test]
fn without_sources_the_defaults_apply() {
    let config = Config::resolve(Settings::default(), None).unwrap();
    assert_eq!(config.listen, "127.0.0.1:5984");
    assert_eq!(config.data_dir, Path::new("./settee-data"));
    assert!(config.admin.is_none());
    assert_eq!(config.limits, Limits::default());
}

#[test]
fn a_flag_takes_precedence_over_the_file_and_the_file_over_the_default() {
    let file =
        "listen = \"127.0.0.1:1\"\ndata_dir = \"from-file\"\n[limits]\nmax_uuids = 5\nmax_headers = 50";
    let config = resolve(flags(&["--listen", "127.0.0.1:2", "--max-uuids", "6"]), file).unwrap();
    assert_eq!(config.listen, "127.0.0.1:2");
    assert_eq!(config.data_dir, Path::new("from-file"));
    assert_eq!((config.limits.max_uuids, config.limits.max_headers), (6, 50));
    assert_eq!(config.limits.max_connections, Limits::default().max_connections);
}

#[test]
fn an_address_gets_a_quarter_of_the_connections_unless_its_limit_is_set() {
    let per_address = |text: &str| {
        let config = resolve(Settings::default(), &format!("[limits]\n{text}")).unwrap();
        config.limits.max_connections_per_address
    };
    assert_eq!(per_address("max_connections = 100"), 25);
    assert_eq!(per_address("max_connections = 3"), 1);
    assert_eq!(per_address("max_connections = 100000"), Limits::default().max_connections_per_address);
    assert_eq!(per_address("max_connections = 100\nmax_connections_per_address = 90"), 90);
    let flags = flags(&["--max-connections", "100"]);
    let config = resolve(flags, "[limits]\nmax_connections_per_address = 90").unwrap();
    assert_eq!(config.limits.max_connections_per_address, 90);
    let mut config = resolve(Settings::default(), "").unwrap();
    config.limits.max_connections = 400;
    config.share_connections();
    assert_eq!(config.limits.max_connections_per_address, 100);
}

#[test]
fn an_unknown_key_is_an_error_that_names_it() {
    let error = resolve(Settings::default(), "listem = \"x\"").unwrap_err();
    assert!(error.contains("listem") && error.contains("line 1"), "{error}");
    let error = resolve(Settings::default(), "[limits]\n\nmax_fun = 1").unwrap_err();
    assert!(error.contains("max_fun") && error.contains("line 3"), "{error}");
}

#[test]
fn an_error_in_the_file_does_not_show_the_password() {
    let error = resolve(Settings::default(), "admin = \"ann:hidden\" oops").unwrap_err();
    assert!(!error.contains("hidden"), "{error}");
    let error = resolve(Settings::default(), "admin = \"hidden\"").unwrap_err();
    assert!(!error.contains("hidden") && error.contains("NAME:PASSWORD"), "{error}");
}

#[test]
fn the_administrator_may_be_read_from_a_separate_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin");
    secret::write_private(&path, "ann:secret\n");
    let given = flags(&["--admin-file", path.to_str().unwrap()]);
    let config = resolve(given, "admin = \"bob:x\"").unwrap();
    assert_eq!(config.admin.unwrap().name(), "ann");
}

#[test]
fn flags_take_precedence_over_the_file_for_the_administrator() {
    let bob = "admin = \"bob:x\"";
    let none = resolve(flags(&["--no-admin"]), bob).unwrap();
    assert!(none.no_admin && none.admin.is_none());
    let ann = resolve(flags(&["--admin", "ann:x"]), "no_admin = true").unwrap();
    assert_eq!((ann.no_admin, ann.admin.unwrap().name()), (false, "ann"));
    let made = resolve(flags(&["--no-admin=false"]), "no_admin = true").unwrap();
    assert!(!made.no_admin && made.admin.is_none());
    let error = resolve(Settings::default(), &format!("{bob}\nno_admin = true")).unwrap_err();
    assert!(error.contains("no_admin"), "{error}");
}

#[test]
fn a_document_size_over_the_storable_maximum_is_refused() {
    let max = settee_doc::DOCUMENT_BYTES_LIMIT;
    let fits = resolve(flags(&["--max-document-size", &max.to_string()]), "").unwrap();
    assert_eq!(fits.limits.max_document_size, max);
    let file = format!("[limits]\nmax_document_size = {}", max + 1);
    let error = resolve(Settings::default(), &file).unwrap_err();
    assert!(error.contains("max_document_size") && error.contains(&max.to_string()), "{error}");
}

#[test]
fn the_memory_for_bodies_must_hold_a_document_and_a_request_may_be_larger() {
    let error = resolve(flags(&["--request-bytes-in-flight-max", "1000000"]), "").unwrap_err();
    assert!(error.contains("request_bytes_in_flight_max") && error.contains("8000000"), "{error}");
    let large = ["--max-request-bytes", "4294967296", "--request-bytes-in-flight-max", "8000000"];
    assert_eq!(resolve(flags(&large), "").unwrap().limits.max_request_bytes, 4_294_967_296);
}

#[test]
fn limits_of_the_log_and_the_io_engine_come_from_tables_and_flags() {
    let file = "direct_io = true\n[log]\ngroup_delay_us_max = 7\nwrites_in_flight_max = 4\n\
                [io]\nio_threads = 3\nio_write_threads = 2\nbuffer_pool_bytes_max = 134217728";
    let config = resolve(flags(&["--group-delay-us-max", "0", "--io-ring-entries", "64"]), file).unwrap();
    assert!(config.databases.log.direct);
    assert_eq!((config.databases.log.group_delay_us_max, config.databases.log.writes_in_flight_max), (0, 4));
    assert_eq!(config.io.pool().bytes_max, 128 << 20);
    let engine = config.io.engine(EngineKind::Auto);
    assert_eq!((engine.threads.thread_count, engine.uring.entry_count), (3, 64));
    assert_eq!(engine.threads.write_thread_count, 2);
    assert_eq!(engine.threads.sync_thread_count, ThreadOptions::default().sync_thread_count);
    let buffered = resolve(flags(&["--direct-io", "false"]), file).unwrap();
    assert!(!buffered.databases.log.direct);
    assert!(!Config::resolve(Settings::default(), None).unwrap().databases.log.direct);
}

#[test]
fn an_invalid_or_contradictory_limit_is_reported_by_name() {
    let cases: &[(&str, &[&str])] = &[
        ("segment_bytes_max", &["--segment-bytes-max", "1000000"]),
        ("segment_bytes_max", &["--segment-bytes-max", "4294967295"]),
        ("segment_bytes_min", &["--segment-bytes-min", "100000000"]),
        ("buffer_bytes_min", &["--buffer-bytes-min", "2000000"]),
        ("buffer_pool_bytes_max", &["--buffer-pool-bytes-max", "1000000"]),
        ("buffer_bytes_max", &["--buffer-bytes-max", "18446744073709551615"]),
        ("buffer_pool_bytes_max", &["--buffer-bytes-max", "1099511627776"]),
        ("writes_in_flight_max", &["--writes-in-flight-max", "0"]),
        ("spare_percent_max", &["--spare-percent-max", "101"]),
        ("io_threads", &["--io-threads", "1000000000"]),
        ("io_write_threads", &["--io-write-threads", "1000000000"]),
        ("io_sync_threads", &["--io-sync-threads", "0"]),
        ("io_ring_entries", &["--io-ring-entries", "100"]),
        ("io_ring_entries", &["--io-ring-entries", "8192"]),
        ("checkpoint_entries_min", &["--checkpoint-entries-min", "3000000"]),
        ("checkpoint_entries_min", &["--checkpoint-entries-max", "1000"]),
        ("checkpoint_garbage_min", &["--checkpoint-garbage-min", "1000000000"]),
        ("garbage_percent_max", &["--garbage-percent-max", "101"]),
        ("garbage_percent_max", &["--garbage-percent-max", "0"]),
        ("compaction_bytes_per_second", &["--compaction-bytes-per-second", "1048575"]),
        ("compaction_bytes_per_second", &["--compaction-bytes-per-second", "18446744073709551615"]),
        ("checkpoint_share", &["--checkpoint-share", "18446744073709551615"]),
        ("index_memory_bytes_max", &["--index-memory-bytes-max", "18446744073709551615"]),
        ("snapshot_age_s_max", &["--snapshot-age-s-max", "18446744073709551615"]),
        ("head_timeout_ms", &["--head-timeout-ms", "18446744073709551615"]),
        ("written_age_ms_max", &["--written-age-ms-max", "18446744073709551615"]),
        ("max_connections", &["--max-connections", "18446744073709551615"]),
        ("max_request_bytes", &["--max-request-bytes", "18446744073709551615"]),
        ("open_databases_max", &["--open-databases-max", "18446744073709551615"]),
    ];
    for (name, given) in cases {
        let error = resolve(flags(given), "").unwrap_err();
        assert!(error.contains(&format!("`{name}`")), "{given:?}: {error}");
    }
}

#[test]
fn zero_is_accepted_where_it_is_meaningful() {
    let given = ["--group-delay-us-max", "0", "--accepted-age-ms-max", "0", "--written-age-ms-max", "0"];
    let config = resolve(flags(&given), "[log]\nspare_percent_max = 0").unwrap();
    let LogOptions { group_delay_us_max, accepted_age_ms_max, spare_percent_max, .. } = config.databases.log;
    assert_eq!((group_delay_us_max, accepted_age_ms_max, spare_percent_max), (0, 0, 0));
    assert_eq!(config.databases.log.written_age_ms_max, 0);
}

#[test]
fn the_help_shows_every_limit_with_its_default() {
    use clap::CommandFactory;
    let help = CommandLine::command().render_long_help().to_string();
    for (flag, default) in [
        ("--group-delay-us-max", LogOptions::DEFAULT.group_delay_us_max.to_string()),
        ("--buffer-pool-bytes-max", PoolOptions::default().bytes_max.to_string()),
        ("--io-write-threads", ThreadOptions::default().write_thread_count.to_string()),
        ("--io-sync-threads", ThreadOptions::default().sync_thread_count.to_string()),
        ("--max-connections", Limits::default().max_connections.to_string()),
    ] {
        let (_, after) = help.split_once(&format!("{flag} <N>")).unwrap_or_else(|| panic!("{help}"));
        let shown = after.split_once("[default: ").unwrap().1.split_once(']').unwrap().0;
        assert_eq!(shown, default, "{flag}");
    }
    assert!(help.contains("Databases' logs:") && help.contains("Files and memory:"), "{help}");
}

/// The example file with its commented settings enabled. A commented setting follows its `#` directly; prose
/// has a space after it.
fn example_with_all_settings() -> String {
    let example = include_str!("../../../../docs/settee.toml");
    let setting = |line: &'static str| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with([' ', '#']) => setting,
        _ => line,
    };
    example.lines().map(setting).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_file_contains_every_setting_with_its_default() {
    use clap::CommandFactory;
    let text = example_with_all_settings();
    let table: toml::Table = toml::from_str(&text).unwrap();
    let names = |(name, value): (&String, &toml::Value)| match value {
        toml::Value::Table(table) => table.keys().cloned().collect(),
        _ => vec![name.clone()],
    };
    let shown: Vec<String> = table.iter().flat_map(names).collect();
    for argument in CommandLine::command().get_arguments().map(|argument| argument.get_id().as_str()) {
        // `admin` excludes `admin_file`, which the example has.
        let is_exception = argument == "admin" || argument == "help";
        assert!(is_exception || shown.iter().any(|name| name == argument), "{argument} is missing");
    }
    let settings = file::parse(&text).unwrap();
    assert!(settings.admin_file.is_some(), "how to set an administrator");
    assert!(settings.log_file.is_some(), "how to set a log file");
    let given = Settings { admin_file: None, log_file: None, ..settings };
    let mut example = Config::resolve(given, None).unwrap();
    let default = Config::resolve(Settings::default(), None).unwrap();
    example.has_address_limit = default.has_address_limit;
    for (shown, default) in example.limits_text().split(' ').zip(default.limits_text().split(' ')) {
        assert_eq!(shown, default, "docs/settee.toml");
    }
    assert_eq!(format!("{example:?}"), format!("{default:?}"));
}

#[test]
fn the_unmodified_example_file_changes_nothing() {
    let example = resolve(Settings::default(), include_str!("../../../../docs/settee.toml")).unwrap();
    let default = Config::resolve(Settings::default(), None).unwrap();
    assert_eq!(format!("{example:?}"), format!("{default:?}"));
}

#[test]
fn every_setting_has_a_flag_and_a_variable_derived_from_its_name() {
    use clap::CommandFactory;
    let command = CommandLine::command();
    for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
        let expected = settings::variable_name(argument.get_id().as_str());
        assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(expected.as_str()));
        let flag = argument.get_id().as_str().replace('_', "-");
        assert_eq!(argument.get_long(), Some(flag.as_str()));
    }
}

#[test]
fn an_unknown_level_is_refused_by_flag_and_file() {
    for resolved in
        [resolve(flags(&["--log-level", "warning"]), ""), resolve(flags(&[]), "log_level = \"warning\"")]
    {
        let error = resolved.unwrap_err();
        assert!(
            error.contains("`log_level`") && error.contains("\"warning\" is not one of the levels"),
            "{error}"
        );
    }
    let config = resolve(flags(&["--log", "warn,settee_http=debug"]), "log_level = \"error\"").unwrap();
    assert_eq!(config.log.level.as_str(), "warn,settee_http=debug");
}

#[test]
fn the_limits_text_contains_all_limits() {
    let config = resolve(flags(&["--max-uuids", "7"]), "[log]\ngroup_writes_max = 9").unwrap();
    let text = config.limits_text();
    let limits: Vec<(&str, &str)> = text.split(' ').map(|limit| limit.split_once('=').unwrap()).collect();
    assert!(limits.contains(&("max_uuids", "7")) && limits.contains(&("group_writes_max", "9")), "{text}");
    assert!(limits.contains(&("io_threads", "8")), "{text}");
    assert_eq!(limits.len(), 26 + 3 + 12 + 12 + 6, "{text}");
}

#[test]
fn a_limit_of_zero_is_refused() {
    let error = resolve(flags(&["--changes-timeout-ms", "0"]), "").unwrap_err();
    assert!(error.contains("changes_timeout_ms"), "{error}");
}
