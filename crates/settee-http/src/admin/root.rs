//! The server's own resources: `/`, `_up`, `_uuids`, `_utils` and the icon.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};

use crate::context::{RequestContext, location, tagged_by_content};
use crate::error::ApiError;
use crate::response::{self, Body, HandlerResult};
use crate::settings::Maintenance;
use crate::{body, json};

/// Handles `GET /`: JSON, or a page for a browser that displays it.
pub(crate) fn welcome(context: &RequestContext<'_>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET,HEAD"));
    }
    let mut response = match context.header(FETCH_DEST) {
        Some("document") => html(StatusCode::OK, WELCOME_PAGE),
        _ => response::json(StatusCode::OK, context.server.welcome.clone()),
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Sec-Fetch-Dest"));
    Ok(response)
}

/// The destination of a browser's request.
///
/// Source: Fetch Metadata Request Headers, W3C working draft, section 2.1.
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

const WELCOME_PAGE: &str = concat!(
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Settee</title></head><body>\n\
     <h1>Settee ",
    env!("CARGO_PKG_VERSION"),
    "</h1>\n<p>A document database that speaks CouchDB's HTTP API. The console isn't there yet: this page is \
     for browsers, programs get JSON here.</p>\n<ul>\n\
     <li><a href=\"/_all_dbs\">/_all_dbs</a>: the databases</li>\n\
     <li><a href=\"/_up\">/_up</a>: whether the server works</li>\n\
     <li><a href=\"/_session\">/_session</a>: who you are</li>\n\
     <li><a href=\"/_node/_local/_prometheus\">/_node/_local/_prometheus</a>: metrics</li>\n\
     </ul>\n<p>The API is documented with \
     <a href=\"https://docs.couchdb.org/en/stable/api/index.html\">CouchDB</a>.</p>\n</body></html>\n"
);

/// A page that loads nothing and runs no script.
fn html(status: StatusCode, page: impl Into<Bytes>) -> Response<Body> {
    let mut response = response::json(status, page);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
    response
}

/// The body of `_up` while writes fail for lack of disk space.
const NO_SPACE: &str = "{\"status\":\"no_space\",\"reason\":\"The disk has no space: the last write was refused \
    with 507. Reads go on, and writes are accepted again once there is space.\",\"seeds\":{}}\n";

/// Handles `_up`: 200 while the server works, 503 with the reason once a log has stopped, 404 in maintenance
/// mode. If the last write failed for lack of disk space, the body's status says so with a 200, because reads
/// still work and a restart wouldn't help.
pub(crate) fn up(context: &RequestContext<'_>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET,HEAD"));
    }
    let worked_at = match context.server.maintenance {
        Maintenance::None => None,
        Maintenance::Mode => Some("{\"status\":\"maintenance_mode\"}\n"),
        Maintenance::NoBalancing => Some("{\"status\":\"nolb\"}\n"),
    };
    if let Some(text) = worked_at {
        return Ok(response::json(StatusCode::NOT_FOUND, text));
    }
    match context.server.databases.health() {
        Ok(()) if context.shared.is_disk_full.load(Ordering::Relaxed) => {
            Ok(response::json(StatusCode::OK, NO_SPACE))
        }
        Ok(()) => {
            Ok(response::json(StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\",\"seeds\":{}}\n")))
        }
        Err(error) => {
            let mut text = Vec::new();
            json::object(&mut text, |text| {
                text.extend_from_slice(b"\"status\":\"stopped\",\"reason\":");
                settee_doc::write_json_string(&error.to_string(), text);
            });
            text.push(b'\n');
            Ok(response::json(StatusCode::SERVICE_UNAVAILABLE, text))
        }
    }
}

/// Handles `_uuids`: new identifiers, which must not be cached.
pub(crate) fn uuids(context: &RequestContext<'_>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET"));
    }
    let not_positive = || ApiError::bad_request("count must be a positive integer");
    let count = match context.query().get("count") {
        None => 1,
        Some(text) => text.parse::<i64>().map_err(|_| not_positive())?,
    };
    let count = u64::try_from(count).map_err(|_| not_positive())?;
    if count > context.server.limits.uuids_max {
        return Err(ApiError::bad_request("count parameter too large"));
    }
    let mut text = b"{\"uuids\":[".to_vec();
    (0..count).for_each(|_| json::item(&context.server.uuids.next(), &mut text));
    text.extend_from_slice(b"]}\n");
    let mut response = tagged_by_content(context, text);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    headers.insert(header::EXPIRES, HeaderValue::from_static("Mon, 01 Jan 1990 00:00:00 GMT"));
    Ok(response)
}

/// Handles `POST /_reload_query_servers`, which has no effect because there are none.
pub(crate) fn reload_query_servers(context: &RequestContext<'_>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    Ok(response::ok(StatusCode::OK))
}

/// Handles `_utils`, the path of CouchDB's console. `/_utils` redirects to `/_utils/`, as in CouchDB.
pub(crate) fn utils(context: &RequestContext<'_>, rest: &str) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET,HEAD"));
    }
    if rest.is_empty() && !context.head.uri.path().ends_with('/') {
        let mut response = response::empty(StatusCode::MOVED_PERMANENTLY);
        response.headers_mut().remove(header::CONTENT_TYPE);
        response::set_header(&mut response, header::LOCATION, location(context, "_utils", Some("")));
        return Ok(response);
    }
    const REASON: &str = "The console is not implemented yet.";
    if !context.header(header::ACCEPT).unwrap_or_default().contains("text/html") {
        return Err(ApiError::not_implemented(REASON));
    }
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Settee</title>\
         <h1>Settee</h1><p>{REASON} The API is at <a href=\"/\">/</a>.</html>\n"
    );
    Ok(html(StatusCode::NOT_IMPLEMENTED, page))
}

/// Serves `favicon.ico`, cacheable for a year.
pub(crate) fn favicon(context: &RequestContext<'_>) -> HandlerResult {
    const AGE_S: u64 = 365 * 24 * 60 * 60;
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET,HEAD"));
    }
    let mut response = response::json(StatusCode::OK, favicon_bytes());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("image/x-icon"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000"));
    let expires = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(AGE_S));
    response::set_header(&mut response, header::EXPIRES, expires);
    Ok(response)
}

/// The icon: a settee seen from the front, 16 lines of 16 points, the lowest line last.
const ICON: [u16; 16] = [
    0x0000, 0x0000, 0x0ff0, 0x1ff8, 0x1818, 0x1818, 0x7bde, 0xfbdf, 0xdbdb, 0xd81b, 0xdffb, 0xdffb, 0xfe7f,
    0x6006, 0x6006, 0x0000,
];

/// The icon as a file with one image of two colors. Lines are stored from the lowest up, four bytes each.
///
/// Source: the structures ICONDIR, ICONDIRENTRY and BITMAPINFOHEADER of the Windows API.
fn favicon_bytes() -> Vec<u8> {
    const IMAGE_BYTES: u32 = 40 + 8 + 2 * 64;
    let mut file = vec![0, 0, 1, 0, 1, 0, 16, 16, 2, 0, 1, 0, 1, 0];
    file.extend(IMAGE_BYTES.to_le_bytes());
    file.extend(22_u32.to_le_bytes());
    // The height counts the image and its mask.
    for number in [40_u32, 16, 32] {
        file.extend(number.to_le_bytes());
    }
    file.extend([1, 0, 1, 0]);
    file.extend([0; 24]);
    // The colors: transparent, and a red.
    file.extend([0, 0, 0, 0, 0x2b, 0x24, 0xb5, 0]);
    for is_mask in [false, true] {
        for line in ICON.iter().rev() {
            let line = if is_mask { !line } else { *line };
            file.extend(line.to_be_bytes());
            file.extend([0, 0]);
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_icon_is_as_long_as_it_says() {
        let file = favicon_bytes();
        let declared = u32::from_le_bytes(file[14..18].try_into().unwrap());
        assert_eq!((file.len() as u32 - 22, declared), (176, 176));
    }
}
