//! Prometheus metrics at `GET /_node/_local/_prometheus`, CouchDB's path.
//!
//! The text is in the OpenMetrics format if the client asks for it, otherwise in Prometheus' older format
//! (0.0.4), which declares counters differently.

use std::collections::BTreeSet;
use std::fmt::Write;

use hyper::StatusCode;
use hyper::header::{self, HeaderValue};

use crate::context::RequestContext;
use crate::error::ApiError;
use crate::response::{self, HandlerResult};

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

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
