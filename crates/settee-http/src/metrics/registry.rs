//! The server's counters and the registry that encodes them in the OpenMetrics format.
//!
//! Only those features of OpenMetrics are used that Prometheus' older format has, too.
//!
//! Invariants:
//! 1. No label value comes from a client, and the number of series doesn't depend on the number of databases.
//! 2. Every series exists from the start, with the value 0.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::{Method, StatusCode};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use settee_doc::Databases;

use super::counters::Counters;
use super::endpoint::EndpointClass;
use super::engine::EngineMetrics;
use super::process::ProcessMetrics;
use crate::limits::Limits;

/// The methods with a label of their own; others are `other`.
const METHODS: [&str; 8] = ["GET", "HEAD", "PUT", "POST", "DELETE", "COPY", "OPTIONS", "other"];

/// The classes of response status.
const CODES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Upper bounds of the latency buckets, in seconds.
const LATENCY_BUCKETS: [f64; 14] =
    [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

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
        let limit = ConstGauge::new(limits.connections_max as u64);
        ours.register("httpd_connections_max", "Maximum number of open connections", limit);
        let limit = ConstGauge::new(limits.spool_bytes_max);
        ours.register("httpd_spool_bytes_max", "Maximum bytes of spool files", limit);
        let started = Instant::now();
        ours.register_collector(Box::new(EngineMetrics::new(databases, started, dropped_log_lines)));
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

    /// All metrics in the OpenMetrics format.
    ///
    /// # Errors
    /// A metric that can't be encoded.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
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
