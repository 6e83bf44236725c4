//! `_info` of a design document.

use std::sync::Arc;

use hyper::StatusCode;
use settee_doc::Database;
use settee_view::DesignInfo;

use crate::context::RequestContext;
use crate::error::ApiError;
use crate::json;
use crate::response::{self, HandlerResult};

/// Handles `_design/…/_info`.
pub(crate) async fn info(
    context: &RequestContext<'_>,
    database: Arc<Database>,
    design: &str,
) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET"));
    }
    let views = context.server.views.design(&database, design).await?;
    let DesignInfo {
        file_bytes,
        active_bytes,
        update_seq,
        purge_seq,
        is_building,
        is_compacting,
        waiting_count,
        stopped,
        runs,
    } = views.info().await;
    let pending = database.snapshot().pending(update_seq).await?;
    let mut text = b"{\"name\":".to_vec();
    settee_doc::write_json_string(design.strip_prefix("_design/").unwrap_or(design), &mut text);
    let figures = format!(
        ",\"view_index\":{{\"updates_pending\":{{\"minimum\":{pending},\"preferred\":{pending},\"total\":{pending}}},\
         \"waiting_commit\":false,\"waiting_clients\":{waiting_count},\"updater_running\":{is_building},\
         \"update_seq\":{},\"sizes\":{{\"file\":{file_bytes},\"external\":{active_bytes},\"active\":{active_bytes}}},\
         \"signature\":\"{}\",\"purge_seq\":{purge_seq},\"language\":",
        update_seq.0,
        views.design.signature.text()
    );
    text.extend_from_slice(figures.as_bytes());
    settee_doc::write_json_string(views.design.language_text(), &mut text);
    text.extend_from_slice(
        format!(",\"compact_running\":{is_compacting},\"collator_versions\":[").as_bytes(),
    );
    settee_doc::write_json_string(settee_view::COLLATION_VERSION, &mut text);
    text.push(b']');
    if !stopped.is_empty() {
        text.extend_from_slice(b",\"stopped\":{");
        for (index, (view, error)) in stopped.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(view, &mut text);
            text.push(b':');
            json::object(&mut text, |text| ApiError::from(error.clone()).write_members(text));
        }
        text.push(b'}');
    }
    if !runs.is_empty() {
        text.extend_from_slice(b",\"runs\":{");
        for (index, (view, how)) in runs.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(view, &mut text);
            text.push(b':');
            settee_doc::write_json_string(how, &mut text);
        }
        text.push(b'}');
    }
    text.extend_from_slice(b"}}\n");
    Ok(response::json(StatusCode::OK, text))
}
