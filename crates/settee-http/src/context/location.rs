//! URLs of this server's resources as its clients see them.

use hyper::header::{self, HeaderName};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::request::RequestContext;

/// Characters that aren't percent-encoded in a `Location`.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The URL of a database, or of a document in it, as seen by the client.
pub(crate) fn location(context: &RequestContext<'_>, name: &str, id: Option<&str>) -> String {
    let mut address = format!("{}/{}", origin(context), utf8_percent_encode(name, KEPT));
    if let Some(id) = id {
        address.push('/');
        address.extend(utf8_percent_encode(id, KEPT));
    }
    address
}

/// The server's URL as seen by the client, without a path.
pub(crate) fn origin(context: &RequestContext<'_>) -> String {
    const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
    const FORWARDED_SSL: HeaderName = HeaderName::from_static("x-forwarded-ssl");
    const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
    let host = context.header(FORWARDED_HOST).or_else(|| context.header(header::HOST)).unwrap_or("localhost");
    let is_tls =
        context.header(FORWARDED_SSL) == Some("on") || context.header(FORWARDED_PROTO) == Some("https");
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{host}")
}

/// The URL of a document's attachment.
pub(crate) fn location_of_attachment(
    context: &RequestContext<'_>,
    database: &str,
    id: &str,
    name: &str,
) -> String {
    format!("{}/{}", location(context, database, Some(id)), utf8_percent_encode(name, KEPT))
}
