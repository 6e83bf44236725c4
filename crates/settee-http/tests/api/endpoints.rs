//! Goal: the list of endpoints in `docs/endpoints.md` is correct.
//! Method: parse its tables, send a request for each row to a database created for it, and compare the status
//! with the row's. Endpoints listed as 501 must say so with a reason, and no others may.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::{Client, Reply, Server};

const LIST: &str = include_str!("../../../../docs/endpoints.md");

/// `ann:secret`
const ADMIN: (&str, &str) = ("Authorization", "Basic YW5uOnNlY3JldA==");

/// All names by which CouchDB 3.5.0's handlers route.
const NAMES: &str = "_active_tasks _all_dbs _all_docs _bulk_delete _bulk_docs _bulk_get _changes \
    _cluster_setup _compact _config _db_updates _dbs_info _design _design_docs _ensure_full_commit _explain \
    _find _index _info _list _local _local_docs _membership _missing_revs _node _nouveau _nouveau_analyze \
    _nouveau_cleanup _nouveau_info _partition _prometheus _purge _purged_infos _purged_infos_limit _reload \
    _reload_query_servers _replicate _reshard _restart _revs_diff _revs_limit _rewrite _scheduler _search \
    _search_analyze _search_cleanup _search_disk_size _search_info _security _session _shards _show _smoosh \
    _stats _sync_shards _system _temp_view _up _update _utils _uuids _versions _view _view_cleanup queries \
    favicon.ico";

/// A row of a table of endpoints.
#[derive(Debug)]
struct Row<'a> {
    method: &'a str,
    path: &'a str,
    status: u16,
    state: &'a str,
    differs: &'a str,
}

/// The rows of the tables that begin with a method.
fn rows() -> Vec<Row<'static>> {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let is_method = !cells[0].is_empty() && cells[0].bytes().all(|byte| byte.is_ascii_uppercase());
        let [method, path, status, state, differs] = cells[..] else { return None };
        let status =
            if is_method { status.parse().unwrap_or_else(|_| panic!("no status: {line}")) } else { 0 };
        is_method.then(|| Row { method, path: path.trim_matches('`'), status, state, differs })
    };
    LIST.lines().filter(|line| !line.starts_with("| method ")).filter_map(row).collect()
}

/// A server that receives the rows' requests, and the number of requests so far.
struct Probe {
    client: Client,
    host: String,
    count: usize,
}

impl Probe {
    fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.client.send(method, path, &[&[ADMIN], headers].concat(), body)
    }

    /// Creates a database with everything that the rows' paths name. Returns the revisions of its documents.
    fn fixture(&mut self, name: &str, is_partitioned: bool) -> (String, String) {
        const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
        let path = format!("/{name}?partitioned={is_partitioned}");
        self.send("PUT", &path, &[], b"").expect_status(201);
        let attachments = json!({"att": {"data": "YQ==", "content_type": "text/plain"}});
        let id = if is_partitioned { "p:doc" } else { "doc" };
        let docs = json!([
            {"_id": id, "_attachments": attachments},
            {"_id": "_design/ddoc", "_attachments": attachments, "views": {"view": {"map": "function(doc) {}"}},
                "shows": {"function": "function() { return 'x' }"},
                "lists": {"function": "function() { return 'x' }"},
                "updates": {"function": "function(doc, req) { return [doc || {_id: req.uuid}, 'x'] }"},
                "rewrites": [{"from": "path", "to": "_show/function"}]},
            {"_id": "_design/other", "views": {"view": {"map": "function(doc) {}"}}},
            {"_id": "_local/doc"},
        ]);
        let body = json!({ "docs": docs }).to_string();
        let rows = self.send("POST", &format!("/{name}/_bulk_docs"), &JSON, body.as_bytes());
        let rows = rows.expect_status(201).json();
        let rev = |index: usize| rows[index]["rev"].as_str().unwrap_or_else(|| panic!("{rows}")).to_owned();
        (rev(0), rev(1))
    }

    /// Sends the request of a row, and for a GET also a HEAD.
    fn ask(&mut self, row: &Row<'_>) -> Reply {
        self.count += 1;
        let name = format!("db{}", self.count);
        let makes_it = (row.method, row.path) == ("PUT", "/{db}");
        let (mut rev, mut ddoc_rev) = Default::default();
        if row.path.starts_with("/{db}") && !makes_it {
            (rev, ddoc_rev) = self.fixture(&name, row.path.contains("_partition"));
        }
        if row.path.ends_with("/{type}/{name}") {
            let index = json!({"ddoc": "indexes", "name": "name", "index": {"fields": ["n"]}}).to_string();
            let (path, headers) = (format!("/{name}/_index"), [("Content-Type", "application/json")]);
            self.send("POST", &path, &headers, index.as_bytes()).expect_status(200);
        }
        let path = path_of(row.path, &name).replace("/ddoc/type/", "/indexes/json/");
        if row.path.ends_with("{key}") {
            self.send("PUT", &path, &[], b"\"value\"").expect_status(200);
        }
        let rev = if row.path.contains("_design/{ddoc}") { ddoc_rev } else { rev };
        let (form, referer) = (form(&rev), format!("http://{}/", self.host));
        let mut headers = vec![("Content-Type", "application/json")];
        let tail = row.path.strip_prefix("/{db}").unwrap_or("-");
        let is_document = ["/{docid}", "/_design/{ddoc}"].contains(&tail);
        let is_attachment = tail.ends_with("/{attname}");
        let mut body = body_of(row.method, row.path).as_bytes();
        match row.method {
            "POST" if is_document => {
                headers = vec![("Content-Type", "multipart/form-data; boundary=b"), ("Referer", &referer)];
                body = form.as_bytes();
            }
            "PUT" | "DELETE" if is_document || is_attachment => headers.push(("If-Match", &rev)),
            "COPY" => headers.push(("Destination", if tail.contains("_local") { "_local/x" } else { "x" })),
            _ => {}
        }
        let reply = self.send(row.method, &path, &headers, body);
        if row.method == "GET" {
            assert_eq!(self.send("HEAD", &path, &headers, b"").status, reply.status, "HEAD of {row:?}");
        }
        reply
    }
}

/// A row's path with its placeholders filled in.
fn path_of(template: &str, database: &str) -> String {
    let mut path = String::new();
    for part in template.split('/').skip(1) {
        path.push('/');
        path.push_str(match part {
            "{db}" => database,
            "{docid}" => "doc",
            "{partition}" => "p",
            "{attname}" => "att",
            "{node}" => "_local",
            "{stat}" => "couchdb",
            other => other.trim_matches(['{', '}']),
        });
    }
    path
}

/// A body with which a request succeeds.
fn body_of(method: &str, path: &str) -> &'static str {
    match (method, path) {
        ("GET" | "DELETE" | "COPY", _) => "",
        (_, "/_session") => "{\"name\":\"ann\",\"password\":\"secret\"}",
        (_, "/_cluster_setup") => "{\"action\":\"finish_cluster\"}",
        (_, "/_dbs_info") => "{\"keys\":[]}",
        (_, path) if path.ends_with("{key}") => "\"value\"",
        (_, path) if path.ends_with("_limit") => "7",
        (_, path) if path.ends_with("/_find") || path.ends_with("/_explain") => "{\"selector\":{}}",
        (_, path) if path.ends_with("/_index") => "{\"index\":{\"fields\":[\"n\"]}}",
        (_, path) if path.ends_with("/_bulk_delete") => "{\"docids\":[]}",
        (_, path) if path.ends_with("/queries") => "{\"queries\":[]}",
        (_, path) if path.contains("_bulk") => "{\"docs\":[]}",
        _ => "{}",
    }
}

fn form(rev: &str) -> String {
    let part = |name: &str, value: &str| {
        format!("--b\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n")
    };
    part("\"_rev\"", rev) + &part("\"_attachments\"; filename=\"f\"", "x") + "--b--\r\n"
}

#[test]
fn every_endpoint_answers_as_the_list_says() {
    let server = Server::with_admin();
    let mut probe = Probe { client: server.connect(), host: server.address.to_string(), count: 0 };
    let mut wrong = Vec::new();
    for row in rows() {
        let reply = probe.ask(&row);
        let json = || serde_json::from_slice::<Value>(&reply.body).unwrap_or_default();
        let has_reason = || json()["reason"].as_str().is_some_and(|reason| !reason.is_empty());
        let is_501 = reply.status == 501 && json()["error"] == "not_implemented" && has_reason();
        if reply.status != row.status || is_501 != (row.state == "501") {
            wrong.push(format!("{row:?}: {} {}", reply.status, String::from_utf8_lossy(&reply.body)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_list_is_whole_and_has_nothing_twice() {
    let rows = rows();
    let mut listed = BTreeSet::new();
    for row in &rows {
        assert!(["same", "deviates", "501"].contains(&row.state), "{row:?}");
        assert!(row.state != "deviates" || !row.differs.is_empty(), "it doesn't say how: {row:?}");
        assert!(listed.insert((row.method, row.path)), "twice: {row:?}");
    }
    let named: BTreeSet<&str> = rows.iter().flat_map(|row| row.path.split('/')).collect();
    for name in NAMES.split_ascii_whitespace() {
        assert!(named.contains(name), "{name} isn't listed");
    }
}

#[test]
fn a_name_that_couchdb_does_not_know_is_no_501() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/_design/ddoc", "{}").expect_status(201);
    for path in ["/_nothing", "/db/_nothing", "/db/_design/ddoc/_nothing", "/_node/_local/_nothing"] {
        assert_eq!(client.get(path).status, 404, "{path}");
    }
}
