//! `_active_tasks`: background jobs that a client has started.

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use settee_view::BuildTask;

use crate::context::RequestContext;
use crate::error::ApiError;
use crate::identity::NODE;
use crate::json;
use crate::response::{self, HandlerResult};

/// Handles `_active_tasks`: the running compactions, whose progress isn't known and not reported, and the builds of
/// indexes.
pub(crate) fn active(context: &RequestContext<'_>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET,HEAD"));
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut text = vec![b'['];
    for task in context.server.databases.compactions() {
        if text.len() > 1 {
            text.push(b',');
        }
        json::object(&mut text, |text| {
            text.extend_from_slice(
                format!("\"node\":\"{NODE}\",\"pid\":\"<0.{}.0>\",", task.number).as_bytes(),
            );
            text.extend_from_slice(b"\"database\":");
            settee_doc::write_json_string(&task.database, text);
            let started_s = task.started_us / 1_000_000;
            let times = format!(",\"started_on\":{started_s},\"updated_on\":{}", now_s.max(started_s));
            text.extend_from_slice(times.as_bytes());
            text.extend_from_slice(b",\"type\":\"database_compaction\"");
        });
    }
    for (number, task) in context.server.views.tasks().into_iter().enumerate() {
        let BuildTask { database, design, changes_done, total_changes, started_us } = task;
        let progress = (changes_done * 100).checked_div(total_changes).unwrap_or(100).min(100);
        let started_s = started_us / 1_000_000;
        if text.len() > 1 {
            text.push(b',');
        }
        json::object(&mut text, |text| {
            let place =
                format!("\"node\":\"{NODE}\",\"pid\":\"<0.{number}.1>\",\"type\":\"indexer\",\"database\":");
            text.extend_from_slice(place.as_bytes());
            settee_doc::write_json_string(&database, text);
            text.extend_from_slice(b",\"design_document\":");
            settee_doc::write_json_string(&design, text);
            let figures = format!(
                ",\"changes_done\":{changes_done},\"total_changes\":{total_changes},\"progress\":{progress},\
                 \"started_on\":{started_s},\"updated_on\":{}",
                now_s.max(started_s)
            );
            text.extend_from_slice(figures.as_bytes());
        });
    }
    text.extend_from_slice(b"]\n");
    Ok(response::json(StatusCode::OK, text))
}
