//! `_dbs_info`: what many databases tell of themselves, in one answer.
//!
//! Each is opened where it wasn't: the least recently used ones that nobody uses are closed for
//! it, and the answer is streamed, so that its length costs no memory.

use std::sync::Arc;

use hyper::Method;
use settee_doc::{Databases, ErrorKind, NameRange};

use crate::body::{self, Charge};
use crate::error::Failure;
use crate::json;
use crate::reply::Answer;
use crate::root;
use crate::server::Call;
use crate::stream::{self, Out};

/// `GET`: the databases in a range of names; `POST`: those that are listed.
pub(crate) async fn handle(call: &mut Call<'_>) -> Answer {
    let (names, is_asked) = match *call.method() {
        Method::GET | Method::HEAD => (range(call)?, false),
        Method::POST => (listed(call).await?, true),
        _ => return Err(Failure::method_not_allowed("GET,HEAD,POST")),
    };
    let databases = call.server.databases.clone();
    stream::respond(call.output(), async move |mut out: Out| {
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

fn range(call: &Call<'_>) -> Result<Vec<String>, Failure> {
    let range: NameRange = root::name_range(call.query())?;
    let mut names = Vec::new();
    call.server.databases.visit_names(range, |name| names.push(name.to_owned()));
    Ok(names)
}

async fn listed(call: &mut Call<'_>) -> Result<Vec<String>, Failure> {
    let held = call.read_json_body().await?;
    let names_max = call.server.limits.max_dbs_info_names;
    let parse = move |text: &[u8], _: &mut Charge| {
        let [keys] = json::pick(text, ["keys"])?;
        let keys = keys.ok_or_else(|| Failure::bad_request("`keys` member must exist."))?;
        if !keys.starts_with('[') {
            return Err(Failure::bad_request("`keys` member must be an array."));
        }
        let no_names = || Failure::bad_request("`keys` must be strings.");
        let too_many = || Failure::bad_request("too_many_keys");
        json::strings(keys, names_max, no_names, too_many)
    };
    let (names, _share) = body::parse_held(held, &call.server.room, parse).await?;
    Ok(names)
}

/// Writes a database's row. Of one that isn't there (any more) it writes that where it `is_asked`
/// for, and nothing otherwise: it returns false.
async fn write_row(
    databases: &Arc<Databases>,
    name: &str,
    is_asked: bool,
    out: &mut Vec<u8>,
) -> Result<bool, Failure> {
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
            let info = crate::database::info(&database);
            out.extend_from_slice(info.trim_ascii_end());
        }
        None => out.extend_from_slice(b",\"error\":\"not_found\""),
    }
    out.push(b'}');
    Ok(true)
}
