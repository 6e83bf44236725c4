//! `POST /_settee/backup`: a backup of all databases into a folder of the server's machine.
//!
//! 201 tells that the run has every database. Where one could not be copied the answer is a 500 with the same
//! members, `error` and `reason` before them, and those databases in `failed`: the run is there, with all
//! others.

use std::path::Path;

use hyper::{Method, StatusCode};
use settee_doc::{BackupSummary, FailedDatabase};

use crate::body;
use crate::config_store::CONFIG_FILE;
use crate::error::Failure;
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::{json, logged};

/// Files of a data folder that are backed up beside its databases. The server's uuid isn't one of them: a
/// restored copy draws its own, since replications tell servers apart by it, and both may run.
pub const BACKED_UP_FILES: &[&str] = &[CONFIG_FILE];

/// Databases that the reason names; `failed` has all of them.
const NAMED_MAX: usize = 10;

/// Makes a run of a backup, and answers once it is whole.
pub(crate) async fn handle(call: &mut Call<'_>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    body::check_json_type(&call.head.headers)?;
    let body = call.read_value_body().await?;
    let bad = || Failure::bad_request("The body must be {\"folder\": an absolute path}.");
    let mut folder = None;
    json::each_member(&body.text, |name, value| {
        folder = json::string(value).filter(|_| name == "folder" && folder.is_none());
        if folder.is_some() { Ok(()) } else { Err(bad()) }
    })
    .map_err(|_| bad())?;
    let folder = folder.ok_or_else(bad)?;
    let done = call.server.databases.backup(Path::new(&*folder), BACKED_UP_FILES).await?;
    let failed = &done.failed;
    let mut text = Vec::new();
    json::object(&mut text, |text| {
        if failed.is_empty() {
            text.extend_from_slice(b"\"ok\":true");
        } else {
            let reason = reason(&done);
            tracing::error!(reason = logged::text(&reason), "a backup lacks databases");
            text.extend_from_slice(b"\"error\":\"incomplete_backup\",\"reason\":");
            settee_doc::write_json_string(&reason, text);
        }
        text.extend_from_slice(b",\"folder\":");
        settee_doc::write_json_string(&done.folder.to_string_lossy(), text);
        let files = done.files;
        let counts = format!(
            ",\"databases\":{},\"files_copied\":{},\"bytes_copied\":{},\"files_linked\":{},\"bytes_linked\":{},\"failed\":[",
            done.database_count,
            files.copied_count,
            files.copied_bytes,
            files.linked_count,
            files.linked_bytes
        );
        text.extend_from_slice(counts.as_bytes());
        for (index, FailedDatabase { name, reason, .. }) in failed.iter().enumerate() {
            text.extend_from_slice(if index > 0 { b",{\"name\":" } else { b"{\"name\":" });
            settee_doc::write_json_string(name, text);
            text.extend_from_slice(b",\"reason\":");
            settee_doc::write_json_string(reason, text);
            text.push(b'}');
        }
        text.push(b']');
    });
    text.push(b'\n');
    let status = if failed.is_empty() { StatusCode::CREATED } else { StatusCode::INTERNAL_SERVER_ERROR };
    Ok(reply::json(status, text))
}

/// Which databases a run doesn't have, and why.
fn reason(done: &BackupSummary) -> String {
    let named: Vec<String> = done
        .failed
        .iter()
        .take(NAMED_MAX)
        .map(|FailedDatabase { name, reason, .. }| format!("{name}: {reason}"))
        .collect();
    let more = match done.failed.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        count => format!("; and {count} more"),
    };
    format!(
        "{} of {} databases could not be copied; all others are in {}. {}{more}",
        done.failed.len(),
        done.failed.len() as u64 + done.database_count,
        done.folder.display(),
        named.join("; ")
    )
}
