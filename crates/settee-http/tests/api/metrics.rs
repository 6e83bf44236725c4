//! Goal: `_node/_local/_prometheus` is valid text in either format, and its figures change with the events
//! they count.
//! Method: a strict parser, and scrapes before and after the events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::client::{Client, Server};

const PATH: &str = "/_node/_local/_prometheus";

/// The `Accept` header of Prometheus.
const PROMETHEUS_ACCEPTS: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
    application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    OpenMetrics,
    Older,
}

/// A scrape: the type of each family, and each series with its value.
struct Scrape {
    families: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

impl Scrape {
    fn of(client: &mut Client) -> Scrape {
        parse(client.get(PATH).expect_status(200).text(), Format::Older)
    }

    #[track_caller]
    fn value(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("no {series} in {:?}", self.series.keys()))
    }

    fn names(&self) -> BTreeSet<&str> {
        self.series.keys().map(String::as_str).collect()
    }
}

fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    name.bytes().all(legal) && name.starts_with(|first: char| !first.is_ascii_digit())
}

/// The name before a series' labels. Label values here need no escapes.
#[track_caller]
fn family_of(series: &str) -> &str {
    let Some((name, labels)) = series.split_once('{') else {
        return series;
    };
    let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("no end of labels: {series}"));
    let mut names = BTreeSet::new();
    for label in labels.split(',') {
        let (label, value) = label.split_once('=').unwrap_or_else(|| panic!("no label: {series}"));
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        assert!(is_name(label) && names.insert(label), "{series}");
        assert!(value.is_some_and(|value| !value.contains(['"', '\\'])), "{series}");
    }
    name
}

/// Parses a whole scrape: one family after another, each with its help, its type and its samples, none of
/// them twice.
#[track_caller]
fn parse(text: &str, format: Format) -> Scrape {
    let body = match format {
        Format::OpenMetrics => text.strip_suffix("# EOF\n").expect("a mark at the end"),
        Format::Older => text,
    };
    assert!(body.ends_with('\n'), "the last line is whole");
    let mut scrape = Scrape { families: BTreeMap::new(), series: BTreeMap::new() };
    let (mut helped, mut family, mut kind) = ("", "", "");
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(name) && !help.is_empty() && !help.contains('\\'), "{line}");
            helped = name;
        } else if let Some(declared) = line.strip_prefix("# TYPE ") {
            (family, kind) = declared.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert_eq!(family, helped, "the help precedes the type: {line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(scrape.families.insert(family.to_owned(), kind.to_owned()), None, "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let expected = match (format, kind) {
                (Format::OpenMetrics, "counter") => format!("{family}_total"),
                (Format::Older, "counter") => {
                    assert!(family.ends_with("_total"), "{line}");
                    family.to_owned()
                }
                _ => family.to_owned(),
            };
            let sample = family_of(series);
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| sample.strip_suffix(end));
            let sample = of_histogram.filter(|_| kind == "histogram").unwrap_or(sample);
            assert_eq!(sample, expected, "a sample is in its family");
            let value: f64 = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert_eq!(scrape.series.insert(series.to_owned(), value), None, "twice: {line}");
        }
    }
    for (family, kind) in &scrape.families {
        let end = match (format, kind.as_str()) {
            (_, "histogram") => "_count",
            (Format::OpenMetrics, "counter") => "_total",
            _ => "",
        };
        let name = format!("{family}{end}");
        let has_samples = scrape.series.keys().any(|series| family_of(series) == name);
        assert!(has_samples, "{family} has no samples");
    }
    scrape
}

#[test]
fn the_text_is_valid_in_the_format_that_is_asked_for_and_says_the_same_in_both() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let older = client.get(PATH).expect_status(200);
    assert_eq!(older.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let newer = client.send("GET", PATH, &[("Accept", PROMETHEUS_ACCEPTS)], b"").expect_status(200);
    let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(newer.header("content-type"), Some(open_metrics));

    let (older, newer) = (parse(older.text(), Format::Older), parse(newer.text(), Format::OpenMetrics));
    assert_eq!(older.names(), newer.names());
    let kinds = |scrape: &Scrape| {
        let strip = |name: &String| name.strip_suffix("_total").unwrap_or(name).to_owned();
        scrape.families.iter().map(|(name, kind)| (strip(name), kind.clone())).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&older), kinds(&newer));
    assert_eq!(older.value("settee_databases"), 1.0);
    assert_eq!(older.value(&format!("settee_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"))), 1.0);
    assert_eq!(older.value("settee_io_engine_info{engine=\"threads\"}"), 1.0);
}

#[test]
fn every_series_is_there_from_the_start_and_databases_add_none() {
    let server = Server::start();
    let mut client = server.connect();
    let before = Scrape::of(&mut client);
    let requests = before.series.iter().filter(|(name, _)| name.starts_with("settee_httpd_requests_total{"));
    assert_eq!(requests.clone().count(), 8 * 4);
    assert!(requests.clone().all(|(_, value)| *value == 0.0));
    for name in ["batches", "written_bytes"] {
        assert_eq!(before.value(&format!("settee_log_{name}_total")), 0.0, "{name}");
    }
    for name in ["settee_databases", "settee_open_databases", "settee_stopped_logs"] {
        assert_eq!(before.value(name), 0.0, "{name}");
    }
    for number in 0..20 {
        client.create(&format!("db{number}"));
        client.put(&format!("/db{number}/a"), "{}").expect_status(201);
    }
    let after = Scrape::of(&mut client);
    assert_eq!(before.names(), after.names());
    assert_eq!((after.value("settee_databases"), after.value("settee_open_databases")), (20.0, 20.0));
}

#[test]
fn answers_are_counted_by_method_and_class_of_status() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);
    client.put("/db/a", "{}").expect_status(409);
    let tag = client.get("/db/a").header("etag").unwrap().to_owned();
    client.send("GET", "/db/a", &[("If-None-Match", &tag)], b"").expect_status(304);
    client.head("/db/a").expect_status(200);
    client.send("PATCH", "/db", &[], b"").expect_status(405);
    client.post("/db/_search_cleanup", "{}").expect_status(501);
    client.delete("/db/none").expect_status(404);
    let scrape = Scrape::of(&mut client);
    let count = |method: &str, code: &str| {
        scrape.value(&format!("settee_httpd_requests_total{{method=\"{method}\",code=\"{code}\"}}"))
    };
    assert_eq!((count("PUT", "2xx"), count("PUT", "4xx")), (2.0, 1.0));
    assert_eq!((count("GET", "2xx"), count("GET", "3xx"), count("HEAD", "2xx")), (1.0, 1.0, 1.0));
    assert_eq!((count("other", "4xx"), count("POST", "5xx"), count("DELETE", "4xx")), (1.0, 1.0, 1.0));
    let all = scrape.series.iter().filter(|(name, _)| name.starts_with("settee_httpd_requests_total{"));
    assert_eq!(all.map(|(_, value)| value).sum::<f64>(), 9.0);
}

#[test]
fn latencies_are_counted_by_class_of_endpoint() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);
    for _ in 0..3 {
        client.get("/db/a").expect_status(200);
    }
    client.get("/db/_all_docs").expect_status(200);
    let scrape = Scrape::of(&mut client);
    let count =
        |class: &str| scrape.value(&format!("settee_httpd_request_seconds_count{{class=\"{class}\"}}"));
    assert_eq!((count("database"), count("document_write"), count("document_read")), (1.0, 1.0, 3.0));
    assert_eq!((count("listing"), count("bulk_write"), count("changes")), (1.0, 0.0, 0.0));
    let name = "settee_httpd_request_seconds";
    let all = format!("{name}_bucket{{le=\"+Inf\",class=\"document_read\"}}");
    assert_eq!(scrape.value(&all), 3.0);
    assert!(scrape.value(&format!("{name}_sum{{class=\"document_read\"}}")) > 0.0);
}

#[test]
fn the_process_shows_its_processor_time_memory_and_descriptors() {
    let server = Server::start();
    let mut client = server.connect();
    let before = Scrape::of(&mut client);
    for name in ["process_resident_memory_bytes", "process_virtual_memory_bytes", "process_threads"] {
        assert!(before.value(name) > 1.0, "{name}");
    }
    assert!(before.value("process_open_fds") > 3.0);
    assert!(before.value("process_open_fds") < before.value("process_max_fds"));
    assert!(
        Scrape::of(&mut client).value("process_cpu_seconds_total")
            >= before.value("process_cpu_seconds_total")
    );
}

#[test]
fn open_connections_are_counted_and_those_that_end_are_not() {
    let server = Server::start();
    let mut client = server.connect();
    let mut second = server.connect();
    second.get("/").expect_status(200);
    let scrape = Scrape::of(&mut client);
    assert_eq!(scrape.value("settee_httpd_connections"), 2.0);
    assert_eq!(scrape.value("settee_httpd_connections_accepted_total"), 2.0);
    assert_eq!(scrape.value("settee_httpd_connections_max"), 4096.0);
    drop(second);
    let begun = Instant::now();
    while Scrape::of(&mut client).value("settee_httpd_connections") > 1.0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the server doesn't notice that it ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(Scrape::of(&mut client).value("settee_httpd_connections_accepted_total"), 2.0);
}

#[test]
fn a_durable_write_shows_in_the_logs_figures() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/first", "{}").expect_status(201);
    // The catalogue records in the background that the database isn't empty.
    let settled = (0..500).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        Scrape::of(&mut client)
    });
    let is_settled = |scrape: &Scrape| {
        let unsynced =
            ["settee_log_memory_bytes", "settee_log_unsynced_bytes"].map(|name| scrape.value(name));
        scrape.value("settee_log_batches_total") == 3.0 && unsynced == [0.0, 0.0]
    };
    let before = settled.into_iter().find(is_settled).expect("creation, write and note are persisted");
    let value = "v".repeat(10_000);
    for id in ["a", "b"] {
        client.put(&format!("/db/{id}"), &format!("{{\"v\":\"{value}\"}}")).expect_status(201);
    }
    let after = Scrape::of(&mut client);
    let grew = |name: &str| after.value(name) - before.value(name);
    assert_eq!(grew("settee_log_batches_total"), 2.0);
    assert!(grew("settee_log_writes_total") >= 2.0);
    // With one client, each write waits for its own sync.
    assert!(grew("settee_log_syncs_total") >= 2.0);
    assert!(grew("settee_log_written_bytes_total") >= 20_000.0);
    assert!(grew("settee_log_file_bytes") >= 20_000.0);
    let padding = grew("settee_log_padding_bytes");
    assert!(padding > 0.0 && padding < 2.0 * 4096.0, "{padding}");
    assert!(after.value("settee_log_sync_seconds_max") > 0.0);
    assert!(after.value("settee_log_sync_seconds_mean") <= after.value("settee_log_sync_seconds_max"));
    // All of it was acknowledged as persisted.
    assert_eq!(
        (after.value("settee_log_memory_bytes"), after.value("settee_log_unsynced_bytes")),
        (0.0, 0.0)
    );
    assert_eq!(after.value("settee_buffer_pool_waiting"), 0.0);
    let leased =
        after.value("settee_buffer_pool_leased_bytes") + after.value("settee_buffer_pool_kept_bytes");
    assert!(leased <= after.value("settee_buffer_pool_bytes_max"), "{leased}");
}

#[test]
fn counters_keep_what_a_deleted_database_did() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", &format!("{{\"v\":\"{}\"}}", "v".repeat(100_000))).expect_status(201);
    let before = Scrape::of(&mut client);
    client.delete("/db").expect_status(200);
    let after = Scrape::of(&mut client);
    let counters = before.families.iter().filter(|(_, kind)| *kind == "counter");
    for (name, _) in counters.filter(|(name, _)| name.starts_with("settee_log_")) {
        assert!(after.value(name) >= before.value(name), "{name}");
    }
    assert_eq!(after.value("settee_databases"), 0.0);
    let went = before.value("settee_log_file_bytes") - after.value("settee_log_file_bytes");
    // The rest is the catalogue's, which has grown by the deletion.
    assert!(went > 90_000.0, "{went}");
}

#[test]
fn every_series_that_the_documentation_explains_is_there() {
    let (_, section) = include_str!("../../../../docs/metrics.md").split_once("\n## Series\n").unwrap();
    let server = Server::start();
    let scrape = Scrape::of(&mut server.connect());
    let explained: Vec<&str> = section
        .split('`')
        .filter(|code| code.starts_with("settee_"))
        .map(|code| code.split('{').next().unwrap())
        .collect();
    assert!(explained.len() > 10, "{explained:?}");
    for name in explained {
        assert!(scrape.families.contains_key(name), "{name}");
    }
}

#[test]
fn what_is_no_request_is_counted() {
    let server = Server::start();
    let mut broken = server.connect();
    broken.write(b"\x01 / HTTP/1.1\r\n\r\n");
    assert_eq!(broken.read("GET").status, 400);
    assert!(broken.is_closed());
    let mut client = server.connect();
    // It is counted once its connection has ended.
    let count = |client: &mut Client| Scrape::of(client).value("settee_httpd_malformed_requests_total");
    assert!((0..1_000).any(|_| count(&mut client) == 1.0));
}

#[test]
fn metrics_are_only_read() {
    let server = Server::start();
    let mut client = server.connect();
    for method in ["POST", "PUT", "DELETE"] {
        let refused = client.send(method, PATH, &[], b"");
        refused.expect_error(405, "method_not_allowed", "Only GET allowed");
        assert_eq!(refused.header("allow"), Some("GET"));
    }
    client.head(PATH).expect_status(200);
}

#[test]
fn metrics_are_for_the_administrator() {
    let server = Server::with_admin();
    let mut client = server.connect();
    client.get(PATH).expect_error(401, "unauthorized", "You are not a server admin.");
    // ann:secret
    let basic = [("Authorization", "Basic YW5uOnNlY3JldA==")];
    let text = client.send("GET", PATH, &basic, b"").expect_status(200);
    assert!(parse(text.text(), Format::Older).value("settee_uptime_seconds") < 3600.0);
}

#[test]
fn of_nodes_there_is_this_one_and_its_metrics_are_at_one_place() {
    let server = Server::start();
    let mut client = server.connect();
    client.get("/_node/other/_prometheus").expect_error(404, "not_found", "no such node: other");
    client.get("/_node/_local/_prometheus/x").expect_error(404, "not_found", "missing");
    client.get("/_node/nonode@nohost/_prometheus").expect_status(200);
}
