//! `_dbs_info`: information on many databases in one response.
//!
//! Databases that aren't open are opened; the least recently used idle ones are closed for them. The response
//! is streamed, so its length costs no memory.

use std::sync::Arc;

use hyper::Method;
use settee_doc::{Databases, ErrorKind, NameRange};

use super::info::info;
use super::names::name_range;
use crate::body::{self, BodyBudget};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::json;
use crate::response::HandlerResult;
use crate::response::writer::{self, ResponseWriter};

/// Handles `GET` for a range of names, and `POST` for a list of names.
pub(crate) async fn handle(context: &mut RequestContext<'_>) -> HandlerResult {
    let (names, is_asked) = match *context.method() {
        Method::GET | Method::HEAD => (range(context)?, false),
        Method::POST => (requested_names(context).await?, true),
        _ => return Err(ApiError::method_not_allowed("GET,HEAD,POST")),
    };
    let databases = context.server.databases.clone();
    writer::respond(context.output(), async move |mut out: ResponseWriter| {
        out.buffer.push(b'[');
        let mut sent_any = false;
        for name in &names {
            let begun = out.buffer.len();
            if sent_any {
                out.buffer.push(b',');
            }
            if write_row(&databases, name, is_asked, &mut out.buffer).await? {
                sent_any = true;
            } else {
                out.buffer.truncate(begun);
            }
            out.flush_full().await?;
        }
        out.buffer.extend_from_slice(b"]\n");
        Ok(out)
    })
    .await
}

fn range(context: &RequestContext<'_>) -> Result<Vec<String>, ApiError> {
    let range: NameRange = name_range(context.query())?;
    let mut names = Vec::new();
    context.server.databases.visit_names(range, |name| names.push(name.to_owned()));
    Ok(names)
}

async fn requested_names(context: &mut RequestContext<'_>) -> Result<Vec<String>, ApiError> {
    let body = context.read_json_body().await?;
    let names_max = context.server.limits.dbs_info_names_max;
    let parse = move |text: &[u8], _: &mut BodyBudget| {
        let [keys] = json::pick(text, ["keys"])?;
        let keys = keys.ok_or_else(|| ApiError::bad_request("`keys` member must exist."))?;
        if !keys.starts_with('[') {
            return Err(ApiError::bad_request("`keys` member must be an array."));
        }
        let no_names = || ApiError::bad_request("`keys` must be strings.");
        let too_many = || ApiError::bad_request("too_many_keys");
        json::strings(keys, names_max, no_names, too_many)
    };
    let (names, _permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
    Ok(names)
}

/// Writes a database's row. If the database doesn't exist, writes an error row if it `is_asked` for, and
/// otherwise nothing and returns false.
async fn write_row(
    databases: &Arc<Databases>,
    name: &str,
    is_asked: bool,
    out: &mut Vec<u8>,
) -> Result<bool, ApiError> {
    let database = match databases.get(name).await {
        Ok(database) => Some(database),
        Err(error) if error.kind() == ErrorKind::NotFound && is_asked => None,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    out.extend_from_slice(b"{\"key\":");
    settee_doc::write_json_string(name, out);
    match database {
        Some(database) => {
            out.extend_from_slice(b",\"info\":");
            let info = info(&database);
            out.extend_from_slice(info.trim_ascii_end());
        }
        None => out.extend_from_slice(b",\"error\":\"not_found\""),
    }
    out.push(b'}');
    Ok(true)
}
