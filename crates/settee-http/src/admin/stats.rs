//! `_node/_local/_stats`: figures as a tree of names, in CouchDB's format.
//!
//! The tree has only the figures counted here. CouchDB has more names; a name without a figure answers
//! `null`, as in CouchDB. All figures, including those that CouchDB doesn't have, are in `_prometheus`.

use hyper::StatusCode;

use crate::context::Server;
use crate::json;

/// A figure, or a subtree of names.
enum Node {
    Figure { value: u64, is_gauge: bool, about: String },
    Names(Vec<(String, Node)>),
}

fn counter(value: u64, about: impl Into<String>) -> Node {
    Node::Figure { value, is_gauge: false, about: about.into() }
}

fn gauge(value: u64, about: &str) -> Node {
    Node::Figure { value, is_gauge: true, about: about.to_owned() }
}

fn names<const N: usize>(list: [(&str, Node); N]) -> Node {
    Node::Names(list.map(|(name, node)| (name.to_owned(), node)).into())
}

/// The subtree at a path, as JSON; `null` if the path doesn't exist.
pub(crate) fn text(server: &Server, path: &[String]) -> Vec<u8> {
    let tree = tree(server);
    let found = path.iter().try_fold(&tree, |node, name| match node {
        Node::Names(list) => list.iter().find(|(found, _)| found == name).map(|(_, node)| node),
        Node::Figure { .. } => None,
    });
    let mut text = Vec::new();
    match (found, path.split_last()) {
        (Some(node), _) => write(node, &mut text),
        (None, Some((member, above))) => write_member(&tree, above, member, &mut text),
        (None, None) => unreachable!("the tree itself is there"),
    }
    text.push(b'\n');
    text
}

/// Appends one member of the figure at a path.
fn write_member(tree: &Node, path: &[String], member: &str, out: &mut Vec<u8>) {
    let found = path.iter().try_fold(tree, |node, name| match node {
        Node::Names(list) => list.iter().find(|(found, _)| found == name).map(|(_, node)| node),
        Node::Figure { .. } => None,
    });
    match (found, member) {
        (Some(Node::Figure { value, .. }), "value") => json::number(*value, out),
        (Some(Node::Figure { is_gauge, .. }), "type") => {
            settee_doc::write_json_string(kind(*is_gauge), out);
        }
        (Some(Node::Figure { about, .. }), "desc") => settee_doc::write_json_string(about, out),
        _ => out.extend_from_slice(b"null"),
    }
}

fn kind(is_gauge: bool) -> &'static str {
    if is_gauge { "gauge" } else { "counter" }
}

fn write(node: &Node, out: &mut Vec<u8>) {
    match node {
        Node::Figure { value, is_gauge, about } => json::object(out, |out| {
            out.extend_from_slice(b"\"value\":");
            json::number(*value, out);
            out.extend_from_slice(b",\"type\":");
            settee_doc::write_json_string(kind(*is_gauge), out);
            out.extend_from_slice(b",\"desc\":");
            settee_doc::write_json_string(about, out);
        }),
        Node::Names(list) => json::object(out, |out| {
            for (index, (name, node)) in list.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                settee_doc::write_json_string(name, out);
                out.push(b':');
                write(node, out);
            }
        }),
    }
}

fn tree(server: &Server) -> Node {
    let counters = &server.metrics.counters;
    let stats = server.databases.stats();
    let by_method = counters.by_method().map(|(method, count)| {
        (method.to_owned(), counter(count, format!("requests whose method is {method}")))
    });
    let by_code = counters.by_code().map(|(code, count)| {
        let reason = StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason());
        let about = format!("answers with status {code} {}", reason.unwrap_or_default());
        (code.to_string(), counter(count, about))
    });
    let requests = server.metrics.request_count();
    let httpd = names([
        ("requests", counter(requests, "requests answered")),
        (
            "refused_requests",
            counter(counters.refused(), "requests refused because too many were in progress"),
        ),
    ]);
    let couchdb = names([
        ("httpd", httpd),
        ("httpd_request_methods", Node::Names(by_method.collect())),
        ("httpd_status_codes", Node::Names(by_code.collect())),
        ("open_databases", gauge(stats.open_count as u64, "databases that are open")),
        ("commits", counter(stats.log.batch_count, "batches committed to the logs")),
    ]);
    let fsync = names([("count", counter(stats.log.sync_count, "syncs of the logs"))]);
    names([("couchdb", couchdb), ("fsync", fsync)])
}
