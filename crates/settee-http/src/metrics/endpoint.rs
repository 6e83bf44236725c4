//! Classes of endpoints, a label of the request metrics.

use hyper::Method;

/// Databases whose names begin like server endpoints.
const SYSTEM_DATABASES: [&str; 3] = ["_users", "_replicator", "_global_changes"];

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointClass {
    /// The server itself: sessions, configuration, metrics.
    Server,
    /// A database itself, and its settings.
    Database,
    DocumentRead,
    /// One document, local documents included.
    DocumentWrite,
    BulkRead,
    BulkWrite,
    /// Sorted lists: `_all_docs` and similar ones, also of partitions, and `_find`.
    Listing,
    /// Feeds, which may wait for changes.
    Changes,
    Attachment,
    /// Requests that a replicator makes before it copies.
    Replication,
}

impl EndpointClass {
    pub(crate) const ALL: [EndpointClass; 10] = [
        EndpointClass::Server,
        EndpointClass::Database,
        EndpointClass::DocumentRead,
        EndpointClass::DocumentWrite,
        EndpointClass::BulkRead,
        EndpointClass::BulkWrite,
        EndpointClass::Listing,
        EndpointClass::Changes,
        EndpointClass::Attachment,
        EndpointClass::Replication,
    ];

    /// The label in the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EndpointClass::Server => "server",
            EndpointClass::Database => "database",
            EndpointClass::DocumentRead => "document_read",
            EndpointClass::DocumentWrite => "document_write",
            EndpointClass::BulkRead => "bulk_read",
            EndpointClass::BulkWrite => "bulk_write",
            EndpointClass::Listing => "listing",
            EndpointClass::Changes => "changes",
            EndpointClass::Attachment => "attachment",
            EndpointClass::Replication => "replication",
        }
    }

    /// The class of a request, by its undecoded path. The path needn't exist.
    pub(crate) fn of(method: &Method, path: &str) -> EndpointClass {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let Some(first) = segments.next() else { return EndpointClass::Server };
        let document = match *method {
            Method::GET | Method::HEAD => EndpointClass::DocumentRead,
            _ => EndpointClass::DocumentWrite,
        };
        let below = segments.next().map(|second| (second, segments.next(), segments.next()));
        match (first, below) {
            ("_db_updates", _) => EndpointClass::Changes,
            (first, _) if first.starts_with('_') && !SYSTEM_DATABASES.contains(&first) => {
                EndpointClass::Server
            }
            (_, None) => EndpointClass::Database,
            (_, Some((second, third, fourth))) => match second {
                "_bulk_docs" => EndpointClass::BulkWrite,
                "_bulk_get" => EndpointClass::BulkRead,
                "_all_docs" | "_design_docs" | "_local_docs" | "_partition" | "_find" => {
                    EndpointClass::Listing
                }
                "_changes" => EndpointClass::Changes,
                "_revs_diff" | "_missing_revs" => EndpointClass::Replication,
                "_local" => document,
                "_design" if fourth.is_some() => EndpointClass::Attachment,
                "_design" => document,
                second if second.starts_with('_') => EndpointClass::Database,
                _ if third.is_some() => EndpointClass::Attachment,
                _ => document,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_is_of_a_class() {
        let class = |method: &str, path: &str| {
            EndpointClass::of(&Method::from_bytes(method.as_bytes()).unwrap(), path).name()
        };
        for (method, path, expected) in [
            ("GET", "/", "server"),
            ("GET", "/_up", "server"),
            ("GET", "/_node/_local/_prometheus", "server"),
            ("GET", "/_db_updates", "changes"),
            ("PUT", "/db", "database"),
            ("GET", "/_users", "database"),
            ("GET", "/_users/_changes", "changes"),
            ("PUT", "/db/_revs_limit", "database"),
            ("GET", "/db/a", "document_read"),
            ("HEAD", "//db//a/", "document_read"),
            ("COPY", "/db/a", "document_write"),
            ("PUT", "/db/_local/a", "document_write"),
            ("GET", "/db/_design/a", "document_read"),
            ("GET", "/db/_design/a/picture", "attachment"),
            ("PUT", "/db/a/picture", "attachment"),
            ("POST", "/db/_bulk_docs", "bulk_write"),
            ("POST", "/db/_bulk_get", "bulk_read"),
            ("GET", "/db/_partition/p/_all_docs", "listing"),
            ("POST", "/db/_find", "listing"),
            ("GET", "/db/_changes", "changes"),
            ("POST", "/db/_revs_diff", "replication"),
        ] {
            assert_eq!(class(method, path), expected, "{method} {path}");
        }
        let mut names = EndpointClass::ALL.map(EndpointClass::name).to_vec();
        names.dedup();
        assert_eq!(names.len(), EndpointClass::ALL.len());
    }
}
