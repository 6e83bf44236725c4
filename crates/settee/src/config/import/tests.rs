//! Goal: every key of CouchDB's files appears in the result, and the result is a valid settings file.
//! Method: files with documented keys, and random files with these and other keys.

use proptest::prelude::*;

use super::*;

fn convert(text: &str) -> Conversion {
    Conversion::new(&[("local.ini".to_owned(), text.to_owned())]).unwrap()
}

/// The converted value of a setting.
fn setting(conversion: &Conversion, name: &str) -> Option<Value> {
    conversion.converted.get(name).map(|converted| converted.value.clone())
}

#[test]
fn each_numeric_key_becomes_its_setting() {
    for numeric in NUMERIC_KEYS {
        for section in numeric.sections {
            let conversion = convert(&format!("[{section}]\n{} = 1234 ; a comment", numeric.key));
            assert_eq!(
                setting(&conversion, numeric.setting),
                Some(Value::Number(1234)),
                "{section}/{}",
                numeric.key
            );
            assert!(conversion.unconverted.is_empty(), "{conversion:?}");
            let text = conversion.toml();
            assert!(text.contains(&format!("{section}/{} (local.ini:2)", numeric.key)), "{text}");
        }
    }
}

#[test]
fn the_newer_section_takes_precedence_and_the_older_one_is_listed() {
    let conversion = convert("[httpd]\nchanges_timeout = 1\n[chttpd]\nchanges_timeout = 2");
    assert_eq!(setting(&conversion, "changes_timeout_ms"), Some(Value::Number(2)));
    let text = conversion.toml();
    assert!(text.contains("httpd/changes_timeout = 1 (local.ini:2)"), "{text}");
    assert!(text.contains("chttpd/changes_timeout takes precedence"), "{text}");
}

#[test]
fn a_key_that_only_http_changes_is_listed_with_the_request() {
    let conversion = convert("[uuids]\nmax_count = 7\n[chttpd]\nmax_db_number_for_dbs_info_req = 100");
    assert!(conversion.converted.is_empty(), "{conversion:?}");
    let text = conversion.toml();
    assert!(text.contains("PUT /_node/_local/_config/uuids/max_count \"7\""), "{text}");
    assert!(text.contains(reasons::FIXED), "100 is the value here too: {text}");
}

#[test]
fn an_invalid_number_is_listed_with_the_reason() {
    for value in ["many", "-1", "0", "1.5", "infinity"] {
        let conversion = convert(&format!("[couchdb]\nmax_document_size = {value}"));
        assert_eq!(setting(&conversion, "document_bytes_max"), None, "{value}");
        assert_eq!(conversion.unconverted.len(), 1, "{value}");
    }
}

#[test]
fn a_number_over_the_maximum_becomes_the_maximum_with_a_warning() {
    let max = settee_doc::DOCUMENT_BYTES_LIMIT;
    let conversion = convert("[couchdb]\nmax_document_size = 100000000\nmax_attachment_size = infinity");
    assert_eq!(setting(&conversion, "document_bytes_max"), Some(Value::Number(max as u64)));
    assert_eq!(setting(&conversion, "attachment_bytes_max"), Some(Value::Number(BYTES_MAX)));
    let warned = |words: &[&str]| {
        conversion.warnings.iter().any(|warning| words.iter().all(|word| warning.contains(word)))
    };
    assert!(warned(&["couchdb/max_document_size", "100000000", &max.to_string()]), "{conversion:?}");
    assert!(warned(&["couchdb/max_attachment_size", "infinity"]), "{conversion:?}");
}

#[test]
fn contradicting_sizes_are_made_consistent() {
    let large = convert("[chttpd]\nmax_http_request_size = 4294967296");
    assert_eq!(setting(&large, "request_bytes_max"), Some(Value::Number(4294967296)));
    assert!(setting(&large, "request_bytes_in_flight_max").is_none(), "larger ones are spooled");
    let small = convert("[chttpd]\nmax_http_request_size = 1000");
    assert_eq!(setting(&small, "document_bytes_max"), Some(Value::Number(1000)));
    assert!(setting(&small, "request_bytes_in_flight_max").is_none(), "{small:?}");
}

#[test]
fn address_and_port_become_one_setting() {
    for (text, listen) in [
        ("port = 80", "127.0.0.1:80"),
        ("bind_address = 0.0.0.0", "0.0.0.0:5984"),
        ("bind_address = any\nport = 0", "0.0.0.0:0"),
        ("bind_address = ::\nport = 5985", "[::]:5985"),
        ("bind_address = ::1", "[::1]:5984"),
        ("bind_address = db.example.org\nport=1", "db.example.org:1"),
    ] {
        assert_eq!(
            setting(&convert(&format!("[chttpd]\n{text}")), "listen"),
            Some(Value::Text(listen.to_owned())),
            "{text}"
        );
    }
    let bad = convert("[chttpd]\nbind_address = 0.0.0.0\nport = 65536");
    assert_eq!((setting(&bad, "listen"), bad.unconverted.len()), (None, 2), "both are listed");
    assert_eq!(setting(&convert("[httpd]\nport = 5986"), "listen"), None, "the node-local port is another");
}

#[test]
fn the_max_of_server_options_becomes_connections_max() {
    let conversion = convert("[chttpd]\nserver_options = [{backlog, 128}, {max, 50}]");
    assert_eq!(setting(&conversion, "connections_max"), Some(Value::Number(50)));
    let other = convert("[chttpd]\nserver_options = [{recbuf, undefined}]");
    assert_eq!((setting(&other, "connections_max"), other.unconverted.len()), (None, 1));
}

#[test]
fn the_first_administrator_with_a_plain_password_is_converted_and_others_are_listed() {
    let text = "[admins]\nzoe = -pbkdf2:sha256-31d2,5c2b,600000\nann = in the clear\nbob = of bobs own\n\
                old = -hashed-12,34\n";
    let conversion = convert(text);
    assert_eq!(setting(&conversion, "admin"), Some(Value::Text("ann:in the clear".to_owned())));
    let listed: Vec<&str> = conversion.unconverted.iter().map(|key| &*key.key).collect();
    assert_eq!(listed, ["admins/zoe", "admins/bob", "admins/old"]);
    for name in ["zoe", "bob", "old"] {
        let words = format!("administrator {name} ");
        assert!(conversion.warnings.iter().any(|warning| warning.contains(&words)), "{name}: {conversion:?}");
    }
    let text = conversion.toml();
    for secret in ["31d2", "bobs own", "-12,34"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[test]
fn a_public_address_without_an_administrator_is_warned_of() {
    let warned =
        |text: &str| convert(text).warnings.iter().any(|warning| warning.contains("no administrator for"));
    assert!(warned("[chttpd]\nbind_address = 0.0.0.0\n[admins]\nann = -pbkdf2-1,2,3"));
    assert!(!warned("[chttpd]\nbind_address = 0.0.0.0\n[admins]\nann = x"));
    assert!(!warned("[chttpd]\nport = 80") && !warned("[chttpd]\nbind_address = ::1"));
}

#[test]
fn text_that_looks_like_toml_remains_a_comment() {
    let conversion = convert("[my]\na = 1\u{85}\nb = x\u{c}[limits]\n[admins]\na\"b = c\\d\"\u{7}");
    let text = conversion.toml();
    let settings = file::parse(&text, Path::new("")).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(settings.text("admin").as_deref(), Some("a\"b:c\\d\"\u{7}"));
}

/// A line with a key of CouchDB or an unknown key, and a valid or invalid value.
fn any_line() -> impl Strategy<Value = String> {
    let keys: Vec<&str> = NUMERIC_KEYS.iter().map(|numeric| numeric.key).collect();
    let key = prop_oneof![
        4 => prop::sample::select(keys),
        3 => prop::sample::select(vec!["port", "bind_address", "server_options", "algorithm", "secret", "level"]),
        2 => prop::sample::select(vec!["ann", "bob", "my key", "[x", "é"]),
    ];
    let value = prop_oneof![
        4 => any::<u64>().prop_map(|number| number.to_string()),
        3 => (0_u64..100_000).prop_map(|number| number.to_string()),
        2 => prop::sample::select(vec!["infinity", "-1", "any", "::1", "[{max, 7}]", "true", "-pbkdf2-1,2,3"])
            .prop_map(str::to_owned),
        2 => "[ -~\\t]{0,20}",
    ];
    let sections =
        ["couchdb", "chttpd", "httpd", "chttpd_auth", "couch_httpd_auth", "uuids", "admins", "log", "my"];
    (prop::sample::select(sections.to_vec()), key, value)
        .prop_map(|(section, key, value)| format!("[{section}]\n{key} = {value}\n"))
}

proptest! {
    #[test]
    fn every_key_is_listed_and_the_result_is_valid(
        lines in prop::collection::vec(any_line(), 0..20),
        later in prop::collection::vec(any_line(), 0..5),
    ) {
        let files = [("a.ini".to_owned(), lines.concat()), ("b.ini".to_owned(), later.concat())];
        let mut ini = Ini::default();
        files.iter().for_each(|(name, text)| ini.read(name, text));
        let conversion = Conversion::new(&files).unwrap();
        let text = conversion.toml();
        prop_assert!(file::parse(&text, Path::new("")).is_ok(), "{}", text);
        for ((section, key), entry) in &ini.entries {
            let forms = [format!("{section}/{key} ({})", entry.source), format!("{section}/{key} = ")];
            prop_assert!(forms.iter().any(|form| text.contains(&plain(form))), "{section}/{key}: {text}");
        }
    }
}
