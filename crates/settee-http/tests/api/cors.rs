//! Goal: a browser lets pages of listed origins use the server, and no others.
//! Method: send requests as browsers do, and compare with the responses of CouchDB 3.5.0.

use crate::client::{Client, Reply, Server};

const PAGE: &str = "app://obsidian.md";

/// A server that lists some origins.
fn start(settings: &[(&str, &str)]) -> (Server, Client) {
    let server = Server::with_admin();
    let mut client = server.connect();
    for (key, value) in [("chttpd/enable_cors", "true")].iter().chain(settings) {
        let ann = [("Authorization", "Basic YW5uOnNlY3JldA==")];
        let path = format!("/_node/_local/_config/{key}");
        client.send("PUT", &path, &ann, format!("\"{value}\"").as_bytes()).expect_status(200);
    }
    (server, client)
}

fn preflight(client: &mut Client, origin: &str, method: &str, headers: &str) -> Reply {
    let asked = [
        ("Origin", origin),
        ("Access-Control-Request-Method", method),
        ("Access-Control-Request-Headers", headers),
    ];
    client.send("OPTIONS", "/db/doc", &asked, b"")
}

/// The CORS headers of a response.
fn of_cors(reply: &Reply) -> Vec<(&str, &str)> {
    let headers = reply.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut found: Vec<_> = headers.filter(|(name, _)| name.starts_with("access-control-")).collect();
    found.sort_unstable();
    found
}

#[test]
fn a_listed_page_may_do_what_it_asks_for_before_it_signs_in() {
    let (_server, mut client) = start(&[("cors/origins", "http://a.example, app://obsidian.md")]);
    let reply = preflight(&mut client, PAGE, "PUT", "Authorization,content-type").expect_status(204);
    let methods = "CONNECT, COPY, DELETE, GET, HEAD, OPTIONS, POST, PUT, TRACE";
    let expected = [
        ("access-control-allow-headers", "Authorization,content-type"),
        ("access-control-allow-methods", methods),
        ("access-control-allow-origin", PAGE),
        ("access-control-max-age", "600"),
    ];
    assert_eq!(of_cors(&reply), expected);
    for (origin, method, header) in
        [("http://b.example", "PUT", "accept"), (PAGE, "PATCH", "accept"), (PAGE, "PUT", "x-other")]
    {
        let refused = preflight(&mut client, origin, method, header);
        assert_eq!(refused.status, 401, "{origin} {method} {header}: a request like any other");
        assert_eq!(refused.header("access-control-allow-methods"), None);
    }
}

#[test]
fn without_an_administrator_a_preflight_promises_a_foreign_page_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    for (key, value) in [("chttpd/enable_cors", "true"), ("cors/origins", "*")] {
        client.put(&format!("/_node/_local/_config/{key}"), &format!("\"{value}\"")).expect_status(200);
    }
    preflight(&mut client, "http://localhost:3000", "PUT", "accept").expect_status(204);
    let refused = preflight(&mut client, PAGE, "PUT", "accept").expect_status(403);
    assert_eq!(refused.header("access-control-allow-methods"), None);
}

#[test]
fn answers_and_errors_are_open_to_listed_pages_alone() {
    let (_server, mut client) =
        start(&[("cors/origins", "capacitor://localhost,app://obsidian.md"), ("cors/credentials", "true")]);
    let exposed = "content-type, cache-control, accept-ranges, etag, server, x-couch-request-id, \
                   x-couch-update-newrev, x-couchdb-body-time";
    for (path, status, origin) in [("/", 200, PAGE), ("/_all_dbs", 401, "capacitor://localhost")] {
        let reply = client.send("GET", path, &[("Origin", origin)], b"").expect_status(status);
        let expected = [
            ("access-control-allow-credentials", "true"),
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", exposed),
        ];
        assert_eq!(of_cors(&reply), expected, "{path}");
    }
    for origin in ["app://other", "App://obsidian.md", "null"] {
        let reply = client.send("GET", "/", &[("Origin", origin)], b"").expect_status(200);
        assert_eq!(of_cors(&reply), [], "{origin}");
    }
    assert_eq!(of_cors(&client.get("/")), []);
}

#[test]
fn every_key_of_the_section_acts() {
    let (_server, mut client) = start(&[
        ("cors/origins", "*"),
        ("cors/credentials", "true"),
        ("cors/methods", "GET, PUT"),
        ("cors/headers", "X-Mine, accept"),
        ("cors/exposed_headers", "X-Yours"),
        ("cors/max_age", "7"),
    ]);
    let reply = preflight(&mut client, "http://any.example", "PUT", "x-mine").expect_status(204);
    let expected = [
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-headers", "x-mine"),
        ("access-control-allow-methods", "GET, PUT"),
        ("access-control-allow-origin", "http://any.example"),
        ("access-control-max-age", "7"),
    ];
    assert_eq!(of_cors(&reply), expected);
    preflight(&mut client, "http://any.example", "DELETE", "x-mine").expect_status(401);
    preflight(&mut client, "http://any.example", "PUT", "authorization").expect_status(401);
    let reply = client.send("GET", "/", &[("Origin", "null")], b"");
    let exposed = reply.header("access-control-expose-headers");
    assert_eq!(exposed, Some("content-type, cache-control, x-yours"));
}

#[test]
fn without_cors_no_page_gets_access() {
    let (_server, mut client) = start(&[("cors/origins", "*"), ("chttpd/enable_cors", "false")]);
    assert_eq!(preflight(&mut client, PAGE, "GET", "accept").status, 401);
    assert_eq!(of_cors(&client.send("GET", "/", &[("Origin", PAGE)], b"")), []);
    let refused = [("cors/max_age", "soon"), ("cors/credentials", "yes"), ("chttpd/enable_cors", "1")];
    for (key, value) in refused {
        let ann = [("Authorization", "Basic YW5uOnNlY3JldA==")];
        let path = format!("/_node/_local/_config/{key}");
        client.send("PUT", &path, &ann, format!("\"{value}\"").as_bytes()).expect_status(400);
    }
}
