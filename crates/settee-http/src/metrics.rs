//! Metrics for Prometheus, where CouchDB has them: `GET /_node/_local/_prometheus`.
//!
//! What happens on a request's path is counted there, in one atomic; what the engine knows
//! (`settee_doc::Stats`) is asked for when somebody scrapes. The text is OpenMetrics' where it is
//! asked for, else Prometheus' older one (0.0.4), which differs in how a counter is declared: of
//! the new format only what the older has too is used.
//!
//! Invariants:
//! 1. No label's values come from a client: a server with many databases has as many series as
//!    one with none.
//! 2. A series is there from the start, at 0.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use settee_doc::{Databases, Stats};

use crate::Limits;
use crate::endpoint::EndpointClass;
use crate::error::Failure;
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::stats::Counters;

mod process;

use process::ProcessMetrics;

/// The methods that are told apart; all others are `other`.
const METHODS: [&str; 8] = ["GET", "HEAD", "PUT", "POST", "DELETE", "COPY", "OPTIONS", "other"];

/// The classes of status that an answer has.
const CODES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Upper bounds of the latency histograms' buckets, in seconds.
const LATENCY_BUCKETS: [f64; 14] =
    [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// The name and value of each label of a series.
type Labels = [(&'static str, &'static str); 2];

/// What a server counts, and how it is told.
pub(crate) struct Metrics {
    registry: Registry,
    requests: [[Counter; CODES.len()]; METHODS.len()],
    /// By the order of [`EndpointClass::ALL`].
    latencies: [Histogram; EndpointClass::ALL.len()],
    accepted: Counter,
    connections: Gauge<i64, AtomicI64>,
    idle_closed: Counter,
    connections_refused: Counter,
    malformed: Counter,
    /// What `_stats` tells.
    pub(crate) counters: Counters,
    started: Instant,
}

impl Metrics {
    /// The metrics of a server that starts now.
    pub(crate) fn new(
        databases: Arc<Databases>,
        limits: &Limits,
        dropped_log_lines: Arc<AtomicU64>,
    ) -> Metrics {
        let family = Family::<Labels, Counter>::default();
        let counter = |method, code| family.get_or_create_owned(&[("method", method), ("code", code)]);
        let requests = METHODS.map(|method| CODES.map(|code| counter(method, code)));
        let new_histogram: fn() -> Histogram = || Histogram::new(LATENCY_BUCKETS);
        let latency = Family::<[(&str, &str); 1], Histogram, _>::new_with_constructor(new_histogram);
        let latencies =
            EndpointClass::ALL.map(|class| latency.get_or_create_owned(&[("class", class.name())]));
        let (accepted, connections) = (Counter::default(), Gauge::default());
        let (idle_closed, connections_refused) = (Counter::default(), Counter::default());
        let malformed = Counter::default();

        let mut registry = Registry::default();
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start_time = ConstGauge::new(started.as_secs_f64());
        registry.register("process_start_time_seconds", "When the server started, since 1970", start_time);
        registry.register_collector(Box::new(ProcessMetrics));
        let ours = registry.sub_registry_with_prefix("settee");
        ours.register("httpd_requests", "Requests answered, by method and class of status", family);
        let help = "Seconds from the end of a request's head to the head of its answer, by class of endpoint";
        ours.register("httpd_request_seconds", help, latency);
        ours.register("httpd_connections_accepted", "Connections accepted", accepted.clone());
        ours.register("httpd_connections", "Connections open", connections.clone());
        let help = "Idle connections closed because others waited";
        ours.register("httpd_connections_closed_idle", help, idle_closed.clone());
        let help = "Connections refused to addresses that had their share";
        ours.register("httpd_connections_refused", help, connections_refused.clone());
        let help = "Connections closed since no request could be read from them";
        ours.register("httpd_malformed_requests", help, malformed.clone());
        let limit = ConstGauge::new(limits.max_connections as u64);
        ours.register("httpd_connections_max", "Connections served at once at most", limit);
        let limit = ConstGauge::new(limits.spool_bytes_max);
        ours.register("httpd_spool_bytes_max", "Bytes that spooled bodies may take on the disk", limit);
        let started = Instant::now();
        ours.register_collector(Box::new(EngineMetrics { databases, started, dropped_log_lines }));
        let counters = Counters::default();
        Metrics {
            registry,
            requests,
            latencies,
            accepted,
            connections,
            idle_closed,
            connections_refused,
            malformed,
            counters,
            started,
        }
    }

    /// Counts an answer.
    pub(crate) fn count_request(&self, method: &Method, status: StatusCode) {
        self.counters.count(method, status);
        let others = METHODS.len() - 1;
        let method = METHODS[..others].iter().position(|name| *name == method.as_str()).unwrap_or(others);
        let code = usize::from(status.as_u16() / 100).clamp(2, 5) - 2;
        self.requests[method][code].inc();
    }

    /// Notes how long a request waited for the head of its answer.
    pub(crate) fn observe_latency(&self, class: EndpointClass, latency: Duration) {
        self.latencies[class as usize].observe(latency.as_secs_f64());
    }

    /// Requests that were answered.
    pub(crate) fn request_count(&self) -> u64 {
        self.requests.iter().flatten().map(Counter::get).sum()
    }

    /// For how long the server has run.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Counts a connection, which is open until what this returns is dropped.
    pub(crate) fn count_connection(&self) -> OpenConnection<'_> {
        self.accepted.inc();
        self.connections.inc();
        OpenConnection(&self.connections)
    }

    /// Counts a connection that was closed while it was idle, because others waited.
    pub(crate) fn count_idle_closed(&self) {
        self.idle_closed.inc();
    }

    /// Counts a connection whose address had as many as it may.
    pub(crate) fn count_refused_connection(&self) {
        self.connections_refused.inc();
    }

    /// Counts a request that can't be read as HTTP; it is in no other series.
    pub(crate) fn count_malformed(&self) {
        self.malformed.inc();
    }

    fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// A connection that is counted as open.
pub(crate) struct OpenConnection<'a>(&'a Gauge<i64, AtomicI64>);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// `GET /_node/_local/_prometheus`.
pub(crate) fn scrape(call: &Call<'_>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET"));
    }
    let text = call.server.metrics.text().map_err(|_| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", "a metric can't be shown")
    })?;
    let accepted = call.header(header::ACCEPT).unwrap_or_default();
    let (text, content_type) = match accepted.contains("application/openmetrics-text") {
        true => (text, OPEN_METRICS),
        false => (in_older_format(&text), PLAIN_TEXT),
    };
    let mut response = reply::json(StatusCode::OK, text);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

/// OpenMetrics' text in the format before it: there a counter is declared under its samples' name,
/// which ends in `_total`, or else its samples have no type; and no mark ends the text.
///
/// Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>
fn in_older_format(text: &str) -> String {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: BTreeSet<&str> = types.filter_map(|family| family.strip_suffix(" counter")).collect();
    let mut older = String::with_capacity(text.len() + counters.len() * 16);
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(name) => {
                writeln!(older, "# {what} {name}_total {rest}").expect("a String takes all");
            }
            _ => {
                older.push_str(line);
                older.push('\n');
            }
        }
    }
    older
}

/// Asks the engine when somebody scrapes.
struct EngineMetrics {
    databases: Arc<Databases>,
    started: Instant,
    dropped_log_lines: Arc<AtomicU64>,
}

impl fmt::Debug for EngineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineMetrics")
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.databases.stats();
        let Stats { engine, buffers, database_count, open_count, stopped_count, log, .. } = stats;
        let out = &mut encoder;
        let version = env!("CARGO_PKG_VERSION");
        info(out, "build_info", "The server's version", ("version", version))?;
        info(out, "io_engine_info", "What runs the operations on files", ("engine", engine))?;
        let uptime = self.started.elapsed().as_secs();
        gauge(out, "uptime_seconds", "Seconds since the server started", uptime)?;

        let help =
            "Lines of the server's own log that were dropped: it could not be written fast enough, or at all";
        counter(out, "server_log_dropped_lines", help, self.dropped_log_lines.load(Ordering::Relaxed))?;

        let help = "Bytes that the bodies of requests under way have reserved on the disk";
        gauge(out, "httpd_spool_bytes", help, self.databases.spools().reserved_bytes())?;

        gauge(out, "databases", "Databases that exist", database_count as u64)?;
        let help = "Databases that are open: in use, or a while ago";
        gauge(out, "open_databases", help, open_count as u64)?;
        let help = "Logs, the catalogue's included, that a failed write or sync has stopped";
        gauge(out, "stopped_logs", help, stopped_count as u64)?;

        gauge(out, "buffer_pool_bytes_max", "The limit of the memory for writes", buffers.bytes_max as u64)?;
        gauge(out, "buffer_pool_leased_bytes", "Bytes of it in use", buffers.leased_bytes as u64)?;
        gauge(out, "buffer_pool_kept_bytes", "Bytes of it kept for the next use", buffers.kept_bytes as u64)?;
        gauge(out, "buffer_pool_waiting", "How many wait for bytes of it", buffers.waiting_count as u64)?;

        counter(out, "log_batches", "Batches accepted by all logs", log.batch_count)?;
        counter(out, "log_extents", "Extents accepted by all logs", log.extent_count)?;
        counter(out, "log_writes", "Writes handed to the system", log.write_count)?;
        counter(out, "log_written_bytes", "Bytes written", log.written_bytes)?;
        counter(out, "log_syncs", "Syncs that carried a group of batches", log.sync_count)?;
        let help = "What a sync takes: each open log's running average, of these the mean";
        gauge(out, "log_sync_seconds_mean", help, seconds(log.sync_us))?;
        let help = "What a sync takes: each open log's running average, of these the longest";
        gauge(out, "log_sync_seconds_max", help, seconds(stats.sync_us_max))?;
        gauge(out, "log_file_bytes", "Bytes that the open logs' frames take", log.file_bytes)?;
        let help = "Of these, bytes left empty so that no synced block is written again";
        gauge(out, "log_padding_bytes", help, log.padding_bytes)?;
        gauge(out, "log_memory_bytes", "Bytes accepted and not yet written", log.memory_bytes)?;
        gauge(out, "log_unsynced_bytes", "Bytes written and not yet persisted", log.unsynced_bytes)?;
        encode_store(out, &stats)
    }
}

/// What the databases' indexes are like, and what was done in the background.
fn encode_store(out: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    let store = &stats.store;
    let help = "Bytes of memory for index entries of recent changes";
    gauge(out, "index_memory_bytes", help, store.memory_bytes)?;
    gauge(out, "index_memory_bytes_max", "The limit of that memory", stats.index_memory_bytes_max)?;
    gauge(out, "index_file_bytes", "Bytes of the open databases' indexes on disk", store.tree_bytes)?;
    counter(
        out,
        "checkpoints",
        "Checkpoints: memory was merged into an index on disk",
        store.checkpoint_count,
    )?;
    counter(out, "checkpoints_whole", "Of these, how many wrote the index anew", store.whole_count)?;
    let help = "Indexes that were missing or damaged, and were built anew from the data";
    counter(out, "indexes_rebuilt", help, store.rebuild_count)?;
    gauge(out, "segment_bytes", "Bytes of segments that can be compacted", store.segment_bytes)?;
    gauge(out, "segment_live_bytes", "Of these, bytes of records that live", store.segment_live_bytes)?;
    counter(out, "compacted_segments", "Segments that were rewritten", store.compacted_count)?;
    counter(out, "compacted_bytes", "Bytes that these took", store.compacted_bytes)?;
    counter(out, "compaction_copied_bytes", "Bytes that took their place", store.copied_bytes)?;
    let help = "For how long files have been kept that were replaced, because somebody still reads them";
    gauge(out, "oldest_snapshot_seconds", help, store.oldest_snapshot_ms as f64 / 1e3)?;
    let help = "Open databases that have kept such files for longer than snapshot_age_s_max";
    gauge(out, "old_snapshots", help, stats.old_snapshot_count as u64)
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn counter<N>(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: N) -> fmt::Result
where
    ConstCounter<N>: EncodeMetric,
{
    let counter = ConstCounter::new(value);
    counter.encode(out.encode_descriptor(name, help, None, counter.metric_type())?)
}

fn gauge<N>(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: N) -> fmt::Result
where
    ConstGauge<N>: EncodeMetric,
{
    let gauge = ConstGauge::new(value);
    gauge.encode(out.encode_descriptor(name, help, None, gauge.metric_type())?)
}

/// A gauge that is always 1: the older format knows no other kind of information.
fn info(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: (&'static str, &'static str),
) -> fmt::Result {
    let one = ConstGauge::new(1_u64);
    let mut metric = out.encode_descriptor(name, help, None, one.metric_type())?;
    let labels = [label];
    one.encode(metric.encode_family(&labels)?)
}
