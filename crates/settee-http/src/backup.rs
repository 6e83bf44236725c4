//! `POST /_settee/backup`: a backup of all databases into a folder of the server's machine.

use std::path::Path;

use hyper::{Method, StatusCode};
use serde::Deserialize;

use crate::error::Failure;
use crate::json;
use crate::reply::{self, Answer};
use crate::server::Call;

/// Files of a data folder that make a server the one that it is to others, beside its databases.
pub const IDENTITY_FILES: &[&str] = &["server-uuid"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request<'a> {
    #[serde(borrow)]
    folder: std::borrow::Cow<'a, str>,
}

/// Makes a run of a backup, and answers once it is whole.
pub(crate) async fn handle(call: &mut Call<'_>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let body = call.read_json_body().await?;
    let request: Request<'_> = serde_json::from_slice(&body.text)
        .map_err(|_| Failure::bad_request("The body must be {\"folder\": an absolute path}."))?;
    let done = call.server.databases.backup(Path::new(&*request.folder), IDENTITY_FILES).await?;
    let mut text = Vec::new();
    json::object(&mut text, |text| {
        text.extend_from_slice(b"\"ok\":true,\"folder\":");
        settee_doc::write_json_string(&done.folder.to_string_lossy(), text);
        let files = done.files;
        let counts = format!(
            ",\"databases\":{},\"files_copied\":{},\"bytes_copied\":{},\"files_linked\":{},\"bytes_linked\":{}",
            done.database_count,
            files.copied_count,
            files.copied_bytes,
            files.linked_count,
            files.linked_bytes
        );
        text.extend_from_slice(counts.as_bytes());
    });
    text.push(b'\n');
    Ok(reply::json(StatusCode::CREATED, text))
}
