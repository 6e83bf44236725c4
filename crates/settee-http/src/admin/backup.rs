//! `POST /_settee/backup`: backs up all databases to a directory on the server's machine.
//!
//! 201 means that the backup run has every database. If a database couldn't be copied, the response is a 500
//! with `error` and `reason` before the same members, and with those databases in `failed`. The run exists
//! and has all other databases.

use std::path::Path;

use hyper::{Method, StatusCode};
use settee_doc::{BackupSummary, FailedDatabase};

use crate::body;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::response::{self, HandlerResult};
use crate::settings::CONFIG_FILE;
use crate::{json, logged};

/// Files of a data directory that are backed up with its databases. The server's uuid is not among them:
/// replicators distinguish servers by it, so a restored copy generates its own.
pub const BACKED_UP_FILES: &[&str] = &[CONFIG_FILE];

/// Maximum number of databases named in the reason; `failed` lists all of them.
const NAMED_MAX: usize = 10;

/// The former name of the member `directory`.
const OLD_NAME: &str = "folder";

/// Makes a backup run and answers when it is complete.
pub(crate) async fn handle(context: &mut RequestContext<'_>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    let body = context.read_value_body().await?;
    let bad = || ApiError::bad_request("The body must be {\"directory\": an absolute path}.");
    let (mut directory, mut has_old_name) = (None, false);
    json::each_member(&body.text, |name, value| {
        has_old_name |= name == OLD_NAME;
        directory = json::string(value).filter(|_| name == "directory" && directory.is_none());
        if directory.is_some() { Ok(()) } else { Err(bad()) }
    })
    .map_err(|_| match has_old_name {
        true => ApiError::bad_request(format!("The member {OLD_NAME:?} is \"directory\" now.")),
        false => bad(),
    })?;
    let directory = directory.ok_or_else(bad)?;
    let done = context.server.databases.backup(Path::new(&*directory), BACKED_UP_FILES).await?;
    let failed = &done.failed;
    let mut text = Vec::new();
    json::object(&mut text, |text| {
        if failed.is_empty() {
            text.extend_from_slice(b"\"ok\":true");
        } else {
            let reason = reason(&done);
            tracing::error!(reason = logged::text(&reason), "a backup is missing databases");
            text.extend_from_slice(b"\"error\":\"incomplete_backup\",\"reason\":");
            settee_doc::write_json_string(&reason, text);
        }
        text.extend_from_slice(b",\"directory\":");
        settee_doc::write_json_string(&done.directory.to_string_lossy(), text);
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
    Ok(response::json(status, text))
}

/// The reason of the 500: which databases the run doesn't have, and why.
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
        done.directory.display(),
        named.join("; ")
    )
}
