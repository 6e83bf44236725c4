//! API errors: a status, CouchDB's name for the error, and a reason.
//!
//! Status and name of an engine error derive from its kind in one exhaustive match.

use std::borrow::Cow;

use hyper::StatusCode;
use hyper::header::{self, HeaderName};
use settee_doc::{ErrorKind, SpoolError};
use settee_view::mango::{MangoError, MangoErrorKind};
use settee_view::{ViewError, ViewErrorKind};

/// An error response.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) error: Cow<'static, str>,
    pub(crate) reason: Cow<'static, str>,
    /// The reason as JSON text, if a design function gave one that isn't a string.
    pub(crate) reason_json: Option<Box<str>>,
    /// An additional header: `Allow` of a 405, `Retry-After` of a 503.
    pub(crate) header: Option<(HeaderName, &'static str)>,
}

impl ApiError {
    pub(crate) fn new(
        status: StatusCode,
        error: impl Into<Cow<'static, str>>,
        reason: impl Into<Cow<'static, str>>,
    ) -> ApiError {
        ApiError { status, error: error.into(), reason: reason.into(), reason_json: None, header: None }
    }

    pub(crate) fn bad_request(reason: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// CouchDB's error for a body, or a query value, that isn't JSON.
    pub(crate) fn bad_json() -> ApiError {
        ApiError::bad_request("invalid UTF-8 JSON")
    }

    pub(crate) fn query_parse_error(reason: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    pub(crate) fn missing() -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", "missing")
    }

    pub(crate) fn unauthorized(reason: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    pub(crate) fn forbidden(reason: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub(crate) fn bad_content_type(reason: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason)
    }

    /// 410: a feature that CouchDB has removed.
    pub(crate) fn gone_for_good(reason: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::GONE, "gone", reason)
    }

    pub(crate) fn not_implemented(reason: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason)
    }

    pub(crate) fn body_too_large() -> ApiError {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the request entity is too large")
    }

    /// Whether this is [`ApiError::body_too_large`].
    pub(crate) fn is_body_too_large(&self) -> bool {
        self.status == StatusCode::PAYLOAD_TOO_LARGE && self.error == "too_large"
    }

    /// 413: the body is within `request_bytes_max`, but must fit into the memory for request bodies and
    /// doesn't.
    pub(crate) fn exceeds_memory() -> ApiError {
        let reason = "the request entity exceeds the memory for request bodies: only attachments and the \
                      documents of _bulk_docs may";
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
    }

    /// 503: the memory for request bodies is exhausted.
    pub(crate) fn no_body_memory() -> ApiError {
        let reason = "The memory for request bodies is exhausted.";
        let mut failure = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", reason);
        failure.header = Some((header::RETRY_AFTER, "1"));
        failure
    }

    /// 503: too many responses of the connection are unread.
    pub(crate) fn unread_responses() -> ApiError {
        let reason = "Too many responses on this connection are unread: read them first.";
        let mut failure = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", reason);
        failure.header = Some((header::RETRY_AFTER, "1"));
        failure
    }

    /// 503: `requests_in_flight_max` requests are in progress, or the body of this unauthenticated request
    /// was evicted because too many others wait for theirs.
    pub(crate) fn overloaded() -> ApiError {
        let reason = "Too many requests are in progress.";
        let mut failure = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", reason);
        failure.header = Some((header::RETRY_AFTER, "1"));
        failure
    }

    /// 405 with the allowed methods, listed as CouchDB lists them.
    pub(crate) fn method_not_allowed(methods: &'static str) -> ApiError {
        let reason = format!("Only {methods} allowed");
        let mut failure = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason);
        failure.header = Some((header::ALLOW, methods));
        failure
    }

    /// The client has closed the connection, so nobody receives this error.
    pub(crate) fn gone() -> ApiError {
        ApiError::bad_request("the client closed the connection")
    }

    /// Appends `"error":…,"reason":…`.
    pub(crate) fn write_members(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"error\":");
        settee_doc::write_json_string(&self.error, out);
        out.extend_from_slice(b",\"reason\":");
        match &self.reason_json {
            Some(json) => out.extend_from_slice(json.as_bytes()),
            None => settee_doc::write_json_string(&self.reason, out),
        }
    }
}

impl From<settee_doc::Error> for ApiError {
    fn from(error: settee_doc::Error) -> ApiError {
        let (status, name) = status_and_name(error.kind());
        let name = error.function_error().map_or(Cow::Borrowed(name), |name| Cow::Owned(name.to_owned()));
        let reason_json = error.reason_json().map(Into::into);
        ApiError { reason_json, ..ApiError::new(status, name, error.to_string()) }
    }
}

impl From<settee_js::Error> for ApiError {
    /// CouchDB knows a few names of errors that design functions raise; others are 500.
    fn from(error: settee_js::Error) -> ApiError {
        let status = match error.error() {
            "bad_request" => StatusCode::BAD_REQUEST,
            "unauthorized" => StatusCode::UNAUTHORIZED,
            "forbidden" => StatusCode::FORBIDDEN,
            "not_found" => StatusCode::NOT_FOUND,
            "method_not_allowed" => StatusCode::METHOD_NOT_ALLOWED,
            "not_acceptable" => StatusCode::NOT_ACCEPTABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, error.error().to_owned(), error.reason())
    }
}

impl From<ViewError> for ApiError {
    fn from(error: ViewError) -> ApiError {
        if let Some(detail) = &error.detail {
            tracing::warn!("an index can't be used: {detail}");
        }
        let ViewError { kind, error, reason, .. } = error;
        match kind {
            ViewErrorKind::BadRequest => ApiError::new(StatusCode::BAD_REQUEST, error, reason),
            ViewErrorKind::NotFound => ApiError::new(StatusCode::NOT_FOUND, error, reason),
            ViewErrorKind::Function => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error, reason),
            ViewErrorKind::Storage(kind) => {
                let (status, name) = status_and_name(kind);
                ApiError::new(status, name, reason)
            }
        }
    }
}

impl From<MangoError> for ApiError {
    fn from(error: MangoError) -> ApiError {
        let status = match error.kind {
            MangoErrorKind::Invalid => StatusCode::BAD_REQUEST,
            MangoErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            MangoErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, error.error, error.reason)
    }
}

impl From<SpoolError> for ApiError {
    fn from(error: SpoolError) -> ApiError {
        match error {
            SpoolError::TooLarge { bytes_max } => {
                let reason =
                    format!("the request entity is too large: at most {bytes_max} bytes are spooled");
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
            }
            SpoolError::Busy => {
                let reason = "Other spooled requests use up spool_bytes_max.";
                ApiError { reason: reason.into(), ..ApiError::no_body_memory() }
            }
            SpoolError::Disk(error) => error.into(),
        }
    }
}

/// The HTTP status and CouchDB's error name of an error kind.
fn status_and_name(kind: ErrorKind) -> (StatusCode, &'static str) {
    match kind {
        ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        ErrorKind::Conflict => (StatusCode::CONFLICT, "conflict"),
        ErrorKind::BadRequest => (StatusCode::BAD_REQUEST, "bad_request"),
        ErrorKind::IllegalDocId => (StatusCode::BAD_REQUEST, "illegal_docid"),
        ErrorKind::IllegalPartition => (StatusCode::BAD_REQUEST, "illegal_partition"),
        ErrorKind::IllegalDatabaseName => (StatusCode::BAD_REQUEST, "illegal_database_name"),
        ErrorKind::DatabaseExists => (StatusCode::PRECONDITION_FAILED, "file_exists"),
        ErrorKind::DocValidation => (StatusCode::BAD_REQUEST, "doc_validation"),
        ErrorKind::InvalidDesignDoc => (StatusCode::BAD_REQUEST, "invalid_design_doc"),
        ErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "document_too_large"),
        ErrorKind::AttachmentTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "attachment_too_large"),
        ErrorKind::DigestMismatch => (StatusCode::BAD_REQUEST, "content_md5_mismatch"),
        ErrorKind::MissingStub => (StatusCode::PRECONDITION_FAILED, "missing_stub"),
        ErrorKind::PartitionOverflow => (StatusCode::FORBIDDEN, "partition_overflow"),
        // CouchDB's spelling.
        ErrorKind::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "insufficent_storage"),
        ErrorKind::NoDescriptor | ErrorKind::Stopped => {
            (StatusCode::SERVICE_UNAVAILABLE, "service unavailable")
        }
        ErrorKind::Forbidden => (StatusCode::FORBIDDEN, "forbidden"),
        ErrorKind::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
        ErrorKind::Uncompilable => (StatusCode::BAD_REQUEST, "compilation_error"),
        ErrorKind::FunctionFailed => (StatusCode::INTERNAL_SERVER_ERROR, "unknown_error"),
        ErrorKind::InUse => (StatusCode::CONFLICT, "conflict"),
        ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_507_in_couchdbs_spelling() {
        let failure = ApiError::from(settee_doc::Error::new(ErrorKind::NoSpace, "full"));
        assert_eq!(
            (failure.status.as_u16(), failure.error.as_ref(), failure.reason.as_ref()),
            (507, "insufficent_storage", "full")
        );
    }

    #[test]
    fn a_405_lists_the_methods_in_header_and_reason() {
        let failure = ApiError::method_not_allowed("GET,HEAD");
        assert_eq!(failure.header, Some((header::ALLOW, "GET,HEAD")));
        assert_eq!(failure.reason, "Only GET,HEAD allowed");
    }
}
