//! Prometheus metrics at `GET /_node/_local/_prometheus`, CouchDB's path.
//!
//! Requests are counted where they are handled, each with one atomic operation; the engine's figures
//! (`settee_doc::Stats`) are collected when the metrics are scraped. The text is in the OpenMetrics format if
//! the client asks for it, otherwise in Prometheus' older format (0.0.4), which declares counters
//! differently. Only those features of OpenMetrics are used that the older format has, too.
//!
//! Invariants:
//! 1. No label value comes from a client, and the number of series doesn't depend on the number of databases.
//! 2. Every series exists from the start, with the value 0.

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
use crate::error::ApiError;
use crate::response::{self, HandlerResult};
use crate::server::RequestContext;
use crate::stats::Counters;

mod process;

use process::ProcessMetrics;

/// The methods with a label of their own; others are `other`.
const METHODS: [&str; 8] = ["GET", "HEAD", "PUT", "POST", "DELETE", "COPY", "OPTIONS", "other"];

/// The classes of response status.
const CODES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Upper bounds of the latency buckets, in seconds.
const LATENCY_BUCKETS: [f64; 14] =
    [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Name and value of each label of a series.
type Labels = [(&'static str, &'static str); 2];

/// The server's counters and their registry.
pub(crate) struct Metrics {
    registry: Registry,
    requests: [[Counter; CODES.len()]; METHODS.len()],
    /// In the order of [`EndpointClass::ALL`].
    latencies: [Histogram; EndpointClass::ALL.len()],
    accepted: Counter,
    connections: Gauge<i64, AtomicI64>,
    idle_closed: Counter,
    connections_refused: Counter,
    malformed: Counter,
    /// The counters shown by `_stats`.
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
        let help = "Seconds from the end of a request's head to the head of its response, by endpoint class";
        ours.register("httpd_request_seconds", help, latency);
        ours.register("httpd_connections_accepted", "Connections accepted", accepted.clone());
        ours.register("httpd_connections", "Connections open", connections.clone());
        let help = "Idle connections closed in favor of waiting ones";
        ours.register("httpd_connections_closed_idle", help, idle_closed.clone());
        let help = "Connections refused because their address had too many";
        ours.register("httpd_connections_refused", help, connections_refused.clone());
        let help = "Connections closed because of malformed requests";
        ours.register("httpd_malformed_requests", help, malformed.clone());
        let limit = ConstGauge::new(limits.max_connections as u64);
        ours.register("httpd_connections_max", "Maximum number of open connections", limit);
        let limit = ConstGauge::new(limits.spool_bytes_max);
        ours.register("httpd_spool_bytes_max", "Maximum bytes of spool files", limit);
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

    /// Counts a response.
    pub(crate) fn count_request(&self, method: &Method, status: StatusCode) {
        self.counters.count(method, status);
        let others = METHODS.len() - 1;
        let method = METHODS[..others].iter().position(|name| *name == method.as_str()).unwrap_or(others);
        let code = usize::from(status.as_u16() / 100).clamp(2, 5) - 2;
        self.requests[method][code].inc();
    }

    /// Records the time from a request's head to the head of its response.
    pub(crate) fn observe_latency(&self, class: EndpointClass, latency: Duration) {
        self.latencies[class as usize].observe(latency.as_secs_f64());
    }

    /// Number of requests answered.
    pub(crate) fn request_count(&self) -> u64 {
        self.requests.iter().flatten().map(Counter::get).sum()
    }

    /// Time since the server started.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Counts a connection as open until the returned guard is dropped.
    pub(crate) fn count_connection(&self) -> OpenConnection<'_> {
        self.accepted.inc();
        self.connections.inc();
        OpenConnection(&self.connections)
    }

    /// Counts an idle connection that was closed in favor of another.
    pub(crate) fn count_idle_closed(&self) {
        self.idle_closed.inc();
    }

    /// Counts a connection refused because its address had too many.
    pub(crate) fn count_refused_connection(&self) {
        self.connections_refused.inc();
    }

    /// Counts a request that isn't valid HTTP. It is in no other series.
    pub(crate) fn count_malformed(&self) {
        self.malformed.inc();
    }

    fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Counts a connection as open until it is dropped.
pub(crate) struct OpenConnection<'a>(&'a Gauge<i64, AtomicI64>);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Handles `GET /_node/_local/_prometheus`.
pub(crate) fn scrape(context: &RequestContext<'_>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET"));
    }
    let text = context.server.metrics.text().map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", "a metric can't be shown")
    })?;
    let accepted = context.header(header::ACCEPT).unwrap_or_default();
    let (text, content_type) = match accepted.contains("application/openmetrics-text") {
        true => (text, OPEN_METRICS),
        false => (in_older_format(&text), PLAIN_TEXT),
    };
    let mut response = response::json(StatusCode::OK, text);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

/// Converts OpenMetrics text to the older format. There a counter is declared under the name of its samples,
/// which ends in `_total`, and there is no end marker.
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
                writeln!(older, "# {what} {name}_total {rest}").expect("writing to a String succeeds");
            }
            _ => {
                older.push_str(line);
                older.push('\n');
            }
        }
    }
    older
}

/// Collects the engine's figures at each scrape.
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
        info(out, "io_engine_info", "The I/O engine", ("engine", engine))?;
        let uptime = self.started.elapsed().as_secs();
        gauge(out, "uptime_seconds", "Seconds since the server started", uptime)?;

        let help =
            "Lines dropped from the server's own log because it couldn't be written fast enough or at all";
        counter(out, "server_log_dropped_lines", help, self.dropped_log_lines.load(Ordering::Relaxed))?;

        let help = "Bytes of disk space reserved for spooled bodies";
        gauge(out, "httpd_spool_bytes", help, self.databases.spools().reserved_bytes())?;

        gauge(out, "databases", "Databases that exist", database_count as u64)?;
        let help = "Databases that are open: in use, or used recently";
        gauge(out, "open_databases", help, open_count as u64)?;
        let help = "Logs stopped by a failed write or sync, including the catalogue's";
        gauge(out, "stopped_logs", help, stopped_count as u64)?;

        gauge(
            out,
            "buffer_pool_bytes_max",
            "The limit of the buffer pool's bytes",
            buffers.bytes_max as u64,
        )?;
        gauge(
            out,
            "buffer_pool_leased_bytes",
            "Bytes of the buffer pool in use",
            buffers.leased_bytes as u64,
        )?;
        gauge(
            out,
            "buffer_pool_kept_bytes",
            "Free bytes kept in the buffer pool",
            buffers.kept_bytes as u64,
        )?;
        gauge(out, "buffer_pool_waiting", "Number of waiters for buffers", buffers.waiting_count as u64)?;

        counter(out, "log_batches", "Batches accepted by all logs", log.batch_count)?;
        counter(out, "log_writes", "Writes handed to the system", log.write_count)?;
        counter(out, "log_written_bytes", "Bytes written", log.written_bytes)?;
        counter(out, "log_syncs", "Syncs that carried a group of batches", log.sync_count)?;
        let help = "Duration of a sync: mean over the open logs of their running averages";
        gauge(out, "log_sync_seconds_mean", help, seconds(log.sync_us))?;
        let help = "Duration of a sync: maximum over the open logs of their running averages";
        gauge(out, "log_sync_seconds_max", help, seconds(stats.sync_us_max))?;
        gauge(out, "log_file_bytes", "Bytes that the open logs' frames take", log.file_bytes)?;
        let help = "Of these, padding bytes, so that no synced block is rewritten";
        gauge(out, "log_padding_bytes", help, log.padding_bytes)?;
        gauge(out, "log_memory_bytes", "Bytes accepted and not yet written", log.memory_bytes)?;
        gauge(out, "log_unsynced_bytes", "Bytes written and not yet persisted", log.unsynced_bytes)?;
        encode_store(out, &stats)
    }
}

/// The figures of the databases' indexes and background jobs.
fn encode_store(out: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    let store = &stats.store;
    let help = "Bytes of the memtables";
    gauge(out, "index_memory_bytes", help, store.memory_bytes)?;
    gauge(out, "index_memory_bytes_max", "The limit of the memtables' bytes", stats.index_memory_bytes_max)?;
    gauge(out, "index_file_bytes", "Bytes of the open databases' indexes on disk", store.tree_bytes)?;
    counter(
        out,
        "checkpoints",
        "Checkpoints: memtables merged into an index on disk",
        store.checkpoint_count,
    )?;
    counter(out, "checkpoints_whole", "Of these, those that rewrote the whole index", store.whole_count)?;
    let help = "Indexes rebuilt from the data because they were missing or damaged";
    counter(out, "indexes_rebuilt", help, store.rebuild_count)?;
    gauge(out, "segment_bytes", "Bytes of segments that can be compacted", store.segment_bytes)?;
    gauge(out, "segment_live_bytes", "Of these, bytes of live records", store.segment_live_bytes)?;
    counter(out, "compacted_segments", "Segments rewritten by compaction", store.compacted_count)?;
    counter(out, "compacted_bytes", "Bytes of the segments rewritten by compaction", store.compacted_bytes)?;
    counter(out, "compaction_copied_bytes", "Bytes written by compaction", store.copied_bytes)?;
    let help = "Age in seconds of the oldest snapshot that keeps replaced files";
    gauge(out, "oldest_snapshot_seconds", help, store.oldest_snapshot_ms as f64 / 1e3)?;
    let help = "Open databases with a snapshot older than snapshot_age_s_max";
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

/// A gauge that is always 1, because the older format has no info metrics.
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
