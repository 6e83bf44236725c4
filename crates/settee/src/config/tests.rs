//! Goal: each setting has the value of its most specific source, and invalid settings are refused by name.
//! Method: flags parsed by the program's parser, and settings files.

use std::path::Path;

use clap::Parser;
use settee_http::Limits;
use settee_io::{PoolOptions, ThreadOptions};

use super::limits::Value;
use super::settings::{Kind, Origin, SETTINGS, TABLES};
use super::*;
use crate::secret;

mod documents;

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
    assert_eq!(config.limits.http, Limits::default());
}

#[test]
fn a_flag_takes_precedence_over_the_file_and_the_file_over_the_default() {
    let file = "listen = \"127.0.0.1:1\"\ndata_dir = \"from-file\"\n\
                [limits]\nstop_timeout_ms = 5\nhead_timeout_ms = 50";
    let config = resolve(flags(&["--listen", "127.0.0.1:2", "--stop-timeout-ms", "6"]), file).unwrap();
    assert_eq!(config.listen, "127.0.0.1:2");
    assert_eq!(config.data_dir, Path::new("from-file"));
    assert_eq!((config.limits.http.stop_timeout_ms, config.limits.http.head_timeout_ms), (6, 50));
    assert_eq!(config.limits.http.connections_max, Limits::default().connections_max);
}

#[test]
fn each_value_has_the_origin_of_its_source() {
    let given = flags(&["--listen", "127.0.0.1:2"]);
    let file = file::parse("listen = \"a:1\"\nlog_format = \"json\"", Path::new("a.toml")).unwrap();
    let merged = given.over(file);
    assert_eq!(merged.origin("listen"), Origin::Flag("--listen".to_owned()));
    assert_eq!(merged.origin("log_format"), Origin::File("a.toml".into()));
    assert_eq!(merged.origin("data_dir"), Origin::Default);
    assert_eq!(merged.value("log_format"), Some(Value::Text("json".to_owned())));
}

#[test]
fn an_address_gets_a_quarter_of_the_connections_unless_its_limit_is_set() {
    let per_address = |text: &str| {
        let config = resolve(Settings::default(), &format!("[limits]\n{text}")).unwrap();
        config.limits.http.connections_per_address_max
    };
    assert_eq!(per_address("connections_max = 100"), 25);
    assert_eq!(per_address("connections_max = 3"), 1);
    assert_eq!(per_address("connections_max = 100000"), Limits::default().connections_per_address_max);
    assert_eq!(per_address("connections_max = 100\nconnections_per_address_max = 90"), 90);
    let flags = flags(&["--connections-max", "100"]);
    let config = resolve(flags, "[limits]\nconnections_per_address_max = 90").unwrap();
    assert_eq!(config.limits.http.connections_per_address_max, 90);
    let mut config = resolve(Settings::default(), "").unwrap();
    config.limits.http.connections_max = 400;
    config.share_connections();
    assert_eq!(config.limits.http.connections_per_address_max, 100);
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
    let fits = resolve(flags(&["--document-bytes-max", &max.to_string()]), "").unwrap();
    assert_eq!(fits.limits.http.document_bytes_max, max);
    let file = format!("[limits]\ndocument_bytes_max = {}", max + 1);
    let error = resolve(Settings::default(), &file).unwrap_err();
    assert!(error.contains("document_bytes_max") && error.contains(&max.to_string()), "{error}");
}

#[test]
fn the_memory_for_bodies_must_hold_a_document_and_a_request_may_be_larger() {
    let error = resolve(flags(&["--request-bytes-in-flight-max", "1000000"]), "").unwrap_err();
    assert!(error.contains("request_bytes_in_flight_max") && error.contains("8000000"), "{error}");
    let large = ["--request-bytes-max", "4294967296", "--request-bytes-in-flight-max", "8000000"];
    assert_eq!(resolve(flags(&large), "").unwrap().limits.http.request_bytes_max, 4_294_967_296);
}

#[test]
fn limits_of_the_store_and_of_files_come_from_tables_and_flags() {
    let file = "direct_io = true\n[store]\ngarbage_percent_max = 7\nindex_memory_bytes_max = 2_000_000\n\
                [io]\nio_threads = 3\nbuffer_pool_bytes_max = 0x8000000";
    let given = ["--garbage-percent-max", "9", "--value-cache-bytes-max", "64"];
    let limits = resolve(flags(&given), file).unwrap().limits;
    assert!(limits.databases.log.direct);
    assert_eq!(
        (limits.databases.store.garbage_percent_max, limits.databases.store.value_cache_bytes_max),
        (9, 64)
    );
    assert_eq!(limits.databases.store.index_memory_bytes_max, 2_000_000);
    assert_eq!((limits.buffers.bytes_max, limits.threads.thread_count), (128 << 20, 3));
    assert_eq!(limits.threads.sync_thread_count, ThreadOptions::default().sync_thread_count);
    let buffered = resolve(flags(&["--direct-io", "false"]), file).unwrap();
    assert!(!buffered.limits.databases.log.direct);
    assert!(!Config::resolve(Settings::default(), None).unwrap().limits.databases.log.direct);
}

#[test]
fn an_invalid_or_contradictory_limit_is_reported_by_name() {
    let huge = "18446744073709551615";
    let cases: &[(&str, &[&str])] = &[
        ("buffer_pool_bytes_max", &["--buffer-pool-bytes-max", "1000000"]),
        ("io_threads", &["--io-threads", "1000000000"]),
        ("io_threads", &["--io-threads", "0"]),
        ("garbage_percent_max", &["--garbage-percent-max", "101"]),
        ("garbage_percent_max", &["--garbage-percent-max", "0"]),
        ("compaction_bytes_per_second", &["--compaction-bytes-per-second", "1048575"]),
        ("compaction_bytes_per_second", &["--compaction-bytes-per-second", huge]),
        ("index_memory_bytes_max", &["--index-memory-bytes-max", "1048575"]),
        ("index_memory_bytes_max", &["--index-memory-bytes-max", huge]),
        ("index_cache_bytes_max", &["--index-cache-bytes-max", "65535"]),
        ("head_timeout_ms", &["--head-timeout-ms", huge]),
        ("session_timeout_s", &["--session-timeout-s", huge]),
        ("connections_max", &["--connections-max", huge]),
        ("request_bytes_max", &["--request-bytes-max", huge]),
        ("open_databases_max", &["--open-databases-max", huge]),
    ];
    for (name, given) in cases {
        let error = resolve(flags(given), "").unwrap_err();
        assert!(error.contains(&format!("`{name}`")), "{given:?}: {error}");
    }
}

#[test]
fn zero_is_accepted_where_it_is_meaningful() {
    let limits =
        resolve(flags(&["--spool-bytes-max", "0"]), "[store]\nvalue_cache_bytes_max = 0").unwrap().limits;
    assert_eq!((limits.http.spool_bytes_max, limits.databases.store.value_cache_bytes_max), (0, 0));
    let is_zero_allowed = |setting: &&settings::Setting| match &setting.kind {
        Kind::Number(limit) => limit.min == 0,
        _ => false,
    };
    let allowed: Vec<&str> = SETTINGS.iter().filter(is_zero_allowed).map(|setting| setting.name).collect();
    assert_eq!(allowed, ["spool_bytes_max", "value_cache_bytes_max", "replaced_segments_max"]);
}

#[test]
fn a_value_of_another_type_is_refused_by_name() {
    for (text, words) in [
        ("listen = 1", "`listen`: invalid type: it must be a text"),
        ("data_dir = true", "`data_dir`"),
        ("log_format = \"xml\"", "`log_format`: invalid type: it must be one of [\"text\", \"json\"]"),
        ("access_log = \"true\"", "`access_log`: invalid type: it must be true or false"),
        ("io_engine = \"none\"", "`io_engine`"),
        ("[limits]\nconnections_max = -1", "line 2: `connections_max` in [limits]: invalid type"),
        ("[limits]\nconnections_max = 1.5", "`connections_max` in [limits]: invalid type"),
        ("limits = 1", "unknown key `limits` before the first table"),
    ] {
        let error = resolve(Settings::default(), text).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn a_former_name_is_refused_with_its_present_name_or_its_fixed_value() {
    for (text, words) in [
        ("[limits]\nmax_connections = 1", "line 2: `max_connections` is `connections_max` now"),
        ("[limits]\ncompress_answers = true", "`compress_answers` is `compress_responses` now"),
        (
            "[log]\n\ngroup_delay_us_max = 1",
            "line 3: `group_delay_us_max` isn't a setting any more: the value is always 500",
        ),
        ("[store]\nfrozen_layers_max = 1", "the value is always 8"),
        ("[limits]\nmax_uuids = 1", "PUT /_node/_local/_config/uuids/max_count"),
    ] {
        let error = resolve(Settings::default(), text).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
    for (name, _) in retired::RETIRED {
        assert!(settings::find(name).is_none(), "{name}");
        assert!(retired::message(name).unwrap().contains(name), "{name}");
    }
    resolve(Settings::default(), "[log]\n# every setting of this table is a comment").unwrap();
}

#[test]
fn a_flag_of_a_former_name_is_refused_with_its_present_name_or_its_fixed_value() {
    let check = |flags: &[&str]| retired::check_flags(flags.iter());
    assert_eq!(check(&["serve", "--listen", "max_uuids", "--", "--max-headers"]), Ok(()));
    let error = check(&["load", "--max-document-size=5"]).unwrap_err();
    assert_eq!(error, "--max-document-size is --document-bytes-max now");
    let error = check(&["serve", "--io-queue-max", "1"]).unwrap_err();
    assert_eq!(error, "--io-queue-max isn't a setting any more: the value is always 1024");
}

#[test]
fn the_help_shows_every_setting_with_its_default() {
    use clap::CommandFactory;
    let help = CommandLine::command().term_width(10_000).render_long_help().to_string();
    for (flag, default) in [
        ("--buffer-pool-bytes-max <N>", PoolOptions::default().bytes_max.to_string()),
        ("--io-threads <N>", ThreadOptions::default().thread_count.to_string()),
        ("--connections-max <N>", Limits::default().connections_max.to_string()),
        ("--listen <HOST:PORT>", "127.0.0.1:5984".to_owned()),
        ("--access-log <BOOL>", "false".to_owned()),
    ] {
        let (_, after) = help.split_once(flag).unwrap_or_else(|| panic!("{help}"));
        let shown = after.split_once("[default: ").unwrap().1.split_once(']').unwrap().0;
        assert_eq!(shown, default, "{flag}");
    }
    for setting in SETTINGS {
        assert!(help.contains(&setting.meaning()), "{}: {help}", setting.name);
    }
    assert!(TABLES.iter().all(|(_, heading)| help.contains(&format!("{heading}:"))), "{help}");
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
    let text = example_with_all_settings();
    let shown = file::parse(&text, Path::new("settee.toml")).unwrap();
    for setting in SETTINGS {
        assert!(shown.has(setting.name), "{} is missing", setting.name);
        match setting.default() {
            None => assert!(["admin", "admin_file", "log_file"].contains(&setting.name), "{}", setting.name),
            default => assert_eq!(shown.value(setting.name), default, "{}", setting.name),
        }
    }
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
    let arguments = command.get_arguments().filter(|argument| argument.get_id() != "help");
    for (argument, setting) in arguments.zip(SETTINGS) {
        let name = argument.get_id().as_str();
        assert_eq!(name, setting.name);
        let expected = match name {
            "log_level" => "SETTEE_LOG".to_owned(),
            name => format!("SETTEE_{}", name.to_uppercase()),
        };
        assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(expected.as_str()));
        assert_eq!(argument.get_long(), Some(name.replace('_', "-").as_str()));
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
    let given = flags(&["--log", "warn,settee_http=debug"]);
    assert_eq!(given.text("log_level").as_deref(), Some("warn,settee_http=debug"));
    resolve(given, "log_level = \"error\"").unwrap();
}

#[test]
fn the_limits_text_contains_all_limits() {
    let config = resolve(flags(&["--stop-timeout-ms", "7"]), "[store]\ngarbage_percent_max = 9").unwrap();
    let text = config.limits_text();
    let limits: Vec<(&str, &str)> = text.split(' ').map(|limit| limit.split_once('=').unwrap()).collect();
    assert!(
        limits.contains(&("stop_timeout_ms", "7")) && limits.contains(&("garbage_percent_max", "9")),
        "{text}"
    );
    assert!(limits.contains(&("io_threads", "8")), "{text}");
    let in_tables = SETTINGS.iter().filter(|setting| !setting.table.is_empty()).count();
    assert_eq!(limits.len(), in_tables + 1, "all settings of tables, and direct_io: {text}");
}

#[test]
fn a_limit_of_zero_is_refused() {
    let error = resolve(flags(&["--changes-timeout-ms", "0"]), "").unwrap_err();
    assert!(error.contains("changes_timeout_ms"), "{error}");
}
