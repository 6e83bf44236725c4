//! What a request can fail with: a status, CouchDB's name for the error, and a reason.
//!
//! The status and name of an engine's error derive from its kind in one exhaustive match.

use std::borrow::Cow;

use hyper::StatusCode;
use hyper::header::{self, HeaderName};
use settee_doc::{ErrorKind, SpoolError};

/// An error on its way to the client.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) error: &'static str,
    pub(crate) reason: Cow<'static, str>,
    /// A header that belongs to it: the methods that a 405 lists, when to try a 503 again.
    pub(crate) header: Option<(HeaderName, &'static str)>,
}

impl Failure {
    pub(crate) fn new(
        status: StatusCode,
        error: &'static str,
        reason: impl Into<Cow<'static, str>>,
    ) -> Failure {
        Failure { status, error, reason: reason.into(), header: None }
    }

    pub(crate) fn bad_request(reason: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// CouchDB's answer to a body, or a query's value, that isn't JSON.
    pub(crate) fn bad_json() -> Failure {
        Failure::bad_request("invalid UTF-8 JSON")
    }

    pub(crate) fn query_parse_error(reason: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    pub(crate) fn missing() -> Failure {
        Failure::new(StatusCode::NOT_FOUND, "not_found", "missing")
    }

    pub(crate) fn unauthorized(reason: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    pub(crate) fn forbidden(reason: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub(crate) fn bad_content_type(reason: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason)
    }

    /// 410: what there was in versions long past.
    pub(crate) fn gone_for_good(reason: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::GONE, "gone", reason)
    }

    pub(crate) fn not_implemented(reason: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason)
    }

    pub(crate) fn body_too_large() -> Failure {
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the request entity is too large")
    }

    /// 413: the body may be so large, and isn't one of those that needn't fit into memory.
    pub(crate) fn exceeds_memory() -> Failure {
        let reason = "the request entity exceeds the memory for request bodies: only attachments and the \
                      documents of _bulk_docs may";
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
    }

    /// 503: the memory for request bodies is in use.
    pub(crate) fn no_room() -> Failure {
        let reason = "The server holds as many request bodies as it may.";
        let mut failure = Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", reason);
        failure.header = Some((header::RETRY_AFTER, "1"));
        failure
    }

    /// 503: the client has more answers to take than it may have.
    pub(crate) fn unread() -> Failure {
        let reason = "Too many answers wait on this connection: take them first.";
        let mut failure = Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", reason);
        failure.header = Some((header::RETRY_AFTER, "1"));
        failure
    }

    /// 503: as many requests as may be are at work.
    pub(crate) fn too_many_requests() -> Failure {
        let reason = "The server works at as many requests as it may.";
        let mut failure = Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", reason);
        failure.header = Some((header::RETRY_AFTER, "1"));
        failure
    }

    /// 405 with the methods there are, as CouchDB lists them.
    pub(crate) fn method_not_allowed(methods: &'static str) -> Failure {
        let reason = format!("Only {methods} allowed");
        let mut failure = Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason);
        failure.header = Some((header::ALLOW, methods));
        failure
    }

    /// The client has gone: nobody reads this one.
    pub(crate) fn gone() -> Failure {
        Failure::bad_request("the client closed the connection")
    }

    /// Appends `"error":…,"reason":…`.
    pub(crate) fn write_members(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"error\":");
        settee_doc::write_json_string(self.error, out);
        out.extend_from_slice(b",\"reason\":");
        settee_doc::write_json_string(&self.reason, out);
    }
}

impl From<settee_doc::Error> for Failure {
    fn from(error: settee_doc::Error) -> Failure {
        let (status, name) = status_and_name(error.kind());
        Failure::new(status, name, error.to_string())
    }
}

impl From<SpoolError> for Failure {
    fn from(error: SpoolError) -> Failure {
        match error {
            SpoolError::TooLarge { bytes_max } => {
                let reason =
                    format!("the request entity is too large: at most {bytes_max} bytes are spooled");
                Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
            }
            SpoolError::Busy => {
                let reason = "Other spooled requests take the space that spool_bytes_max allows.";
                Failure { reason: reason.into(), ..Failure::no_room() }
            }
            SpoolError::Disk(error) => error.into(),
        }
    }
}

/// HTTP's and CouchDB's words for a kind of error.
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
        // Spelled as CouchDB spells it.
        ErrorKind::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "insufficent_storage"),
        ErrorKind::NoDescriptor | ErrorKind::Stopped => {
            (StatusCode::SERVICE_UNAVAILABLE, "service unavailable")
        }
        ErrorKind::NotImplemented => (StatusCode::NOT_IMPLEMENTED, "not_implemented"),
        ErrorKind::InUse => (StatusCode::CONFLICT, "conflict"),
        ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_507_in_couchdbs_spelling() {
        let failure = Failure::from(settee_doc::Error::new(ErrorKind::NoSpace, "full"));
        assert_eq!(
            (failure.status.as_u16(), failure.error, failure.reason.as_ref()),
            (507, "insufficent_storage", "full")
        );
    }

    #[test]
    fn a_405_lists_the_methods_in_header_and_reason() {
        let failure = Failure::method_not_allowed("GET,HEAD");
        assert_eq!(failure.header, Some((header::ALLOW, "GET,HEAD")));
        assert_eq!(failure.reason, "Only GET,HEAD allowed");
    }
}
