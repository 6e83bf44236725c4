//! Authentication and permissions.

use serde_json::json;

use crate::client::Server;

/// `ann:secret` and `ann:wrong`
const RIGHT: (&str, &str) = ("Authorization", "Basic YW5uOnNlY3JldA==");
const WRONG: (&str, &str) = ("Authorization", "Basic YW5uOndyb25n");

const INCORRECT: &str = "Name or password is incorrect.";

#[test]
fn without_an_administrator_everyone_is_one() {
    let server = Server::start();
    let session = server.connect().get("/_session").expect_status(200).json();
    assert_eq!(session["userCtx"], json!({"name": null, "roles": ["_admin"]}));
    assert_eq!(
        (&session["ok"], &session["info"]["authentication_handlers"]),
        (&json!(true), &json!(["cookie", "default"]))
    );
}

#[test]
fn without_an_administrator_strangers_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    for host in ["example.org", "example.org:5984", "192.168.0.1", "localhost.evil.org"] {
        let reply = client.send("GET", "/", &[("Host", host)], b"").expect_status(403);
        assert_eq!(reply.json()["error"], "forbidden", "{host}");
    }
    for origin in ["http://example.org", "null"] {
        let reply = client.send("PUT", "/db", &[("Origin", origin)], b"").expect_status(403);
        assert_eq!(reply.json()["error"], "forbidden", "{origin}");
    }
    client.send("GET", "http://example.org/", &[], b"").expect_status(403);
    client.get("/db").expect_status(404);
    for host in ["localhost", "localhost:80", "127.0.0.1:5984", "[::1]:5984"] {
        client.send("GET", "/", &[("Host", host)], b"").expect_status(200);
    }
    client.send("PUT", "/db", &[("Origin", "http://localhost:3000")], b"").expect_status(201);
}

#[test]
fn anonymous_callers_get_the_welcome_and_the_session_and_no_more() {
    let server = Server::with_admin();
    let mut client = server.connect();
    client.send("PUT", "/db", &[RIGHT], b"").expect_status(201);
    client.send("PUT", "/db/a", &[RIGHT], b"{}").expect_status(201);
    for path in ["/", "/_up", "/_session"] {
        client.get(path).expect_status(200);
    }
    let not_admin = "You are not a server admin.";
    for (method, path) in
        [("GET", "/_all_dbs"), ("GET", "/_uuids"), ("PUT", "/new"), ("DELETE", "/db"), ("GET", "/_node/x")]
    {
        client.send(method, path, &[], b"").expect_error(401, "unauthorized", not_admin);
    }
    let not_member = "You are not authorized to access this db.";
    let within =
        ["/db", "/db/a", "/db/_all_docs", "/db/_changes", "/none", "/_users/x", "/db/_design/x/_view/y"];
    for path in within {
        client.get(path).expect_error(401, "unauthorized", not_member);
    }
    client.put("/db/b", "{}").expect_error(401, "unauthorized", not_member);
    client.post("/db/_bulk_docs", "{\"docs\":[{}]}").expect_error(401, "unauthorized", not_member);
    let info = client.send("GET", "/db", &[RIGHT], b"").json();
    assert_eq!(info["doc_count"], 1);
    let session = client.get("/_session").json();
    assert_eq!(session["userCtx"], json!({"name": null, "roles": []}));
    client.get("/_session?basic=true").expect_error(401, "unauthorized", "Please login.");
}

#[test]
fn with_an_administrator_any_host_is_served() {
    let server = Server::with_admin();
    server.connect().send("GET", "/", &[("Host", "db.example.org")], b"").expect_status(200);
}

#[test]
fn wrong_credentials_are_refused_everywhere() {
    let server = Server::with_admin();
    let mut client = server.connect();
    for path in ["/", "/_up", "/db"] {
        client.send("GET", path, &[WRONG], b"").expect_error(401, "unauthorized", INCORRECT);
    }
    client.get("/").expect_status(200);
}

#[test]
fn an_authorization_of_another_scheme_is_anonymous() {
    let server = Server::with_admin();
    let mut client = server.connect();
    for value in ["Bearer abc", "Negotiate YII=", "Basic", "Digest username=\"ann\"", ""] {
        let sent = [("Authorization", value)];
        client.send("GET", "/", &sent, b"").expect_status(200);
        let session = client.send("GET", "/_session", &sent, b"").expect_status(200).json();
        assert_eq!(session["userCtx"], json!({"name": null, "roles": []}), "{value}");
        let refused = client.send("GET", "/_all_dbs", &sent, b"");
        refused.expect_error(401, "unauthorized", "You are not a server admin.");
    }
}

#[test]
fn a_login_of_another_content_type_is_refused() {
    let server = Server::with_admin();
    let mut client = server.connect();
    for kind in ["text/plain", "multipart/form-data", ""] {
        let reply = client.send("POST", "/_session", &[("Content-Type", kind)], b"name=ann&password=secret");
        let reason = "Content-Type must be application/x-www-form-urlencoded or application/json";
        reply.expect_error(415, "bad_content_type", reason);
    }
}

#[test]
fn logins_lead_on_to_a_path_of_this_server() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let form = [("Content-Type", "application/x-www-form-urlencoded"), ("Host", "couch.example:5984")];
    let right = b"name=ann&password=secret";
    let reply = client.send("POST", "/_session?next=/db/x&fail=/no", &form, right).expect_status(302);
    assert_eq!(reply.header("location"), Some("http://couch.example:5984/db/x"));
    assert!(reply.header("set-cookie").unwrap().starts_with("AuthSession=YW5u"), "{reply:?}");
    assert_eq!(reply.json()["name"], "ann");
    let wrong = client.send("POST", "/_session?next=/db/x&fail=/no", &form, b"name=ann&password=x");
    assert_eq!((wrong.status, wrong.header("location")), (302, Some("http://couch.example:5984/no")));
    assert_eq!(wrong.json()["error"], "unauthorized");
    client.send("POST", "/_session?next=/db/x", &form, b"name=ann&password=x").expect_status(401);
    let ended = client.send("DELETE", "/_session?next=/bye", &form[1..], b"").expect_status(302);
    assert_eq!(ended.header("location"), Some("http://couch.example:5984/bye"));
    for elsewhere in ["http:%2F%2Fevil.example%2F", "evil.example", "%0d%0ax"] {
        let reply = client.send("POST", &format!("/_session?next={elsewhere}"), &form, right);
        reply.expect_error(400, "bad_request", "path_must_begin_with_slash");
        assert_eq!(reply.header("location"), None);
    }
}

#[test]
fn a_challenge_is_sent_to_who_asks_for_one() {
    let server = Server::with_admin();
    let mut client = server.connect();
    assert_eq!(client.get("/_all_dbs").header("www-authenticate"), None);
    let asks = [("X-CouchDB-WWW-Authenticate", "Basic realm=\"x\"")];
    let reply = client.send("GET", "/_all_dbs", &asks, b"").expect_status(401);
    assert_eq!(reply.header("www-authenticate"), Some("Basic realm=\"x\""));
}

/// Logs in and returns the cookie's name and value.
fn log_in(server: &Server) -> String {
    let reply = server.connect().post("/_session", "{\"name\":\"ann\",\"password\":\"secret\"}");
    let reply = reply.expect_status(200);
    assert_eq!(reply.json(), json!({"ok": true, "name": "ann", "roles": ["_admin"]}));
    let cookie = reply.header("set-cookie").unwrap();
    for attribute in ["Version=1", "Expires=", "Max-Age=600", "Path=/", "HttpOnly"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    cookie.split(';').next().unwrap().to_owned()
}

#[test]
fn a_session_is_begun_used_and_ended() {
    let server = Server::with_admin();
    let cookie = log_in(&server);
    assert!(cookie.starts_with("AuthSession="));
    let mut client = server.connect();
    let with = [("Cookie", cookie.as_str())];
    client.send("PUT", "/db", &with, b"").expect_status(201);
    let session = client.send("GET", "/_session", &with, b"").json();
    assert_eq!(session["userCtx"], json!({"name": "ann", "roles": ["_admin"]}));
    assert_eq!(session["info"]["authenticated"], "cookie");
    let basic = client.send("GET", "/_session", &[RIGHT], b"").json();
    assert_eq!(basic["info"]["authenticated"], "default");

    let ended = client.send("DELETE", "/_session", &with, b"").expect_status(200);
    assert_eq!(ended.text(), "{\"ok\":true}\n");
    let cleared = ended.header("set-cookie").unwrap();
    assert!(cleared.starts_with("AuthSession=;") && cleared.contains("Max-Age=600"), "{cleared}");
}

#[test]
fn a_form_logs_in_as_well() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    client.send("POST", "/_session", &form, b"name=ann&password=secret").expect_status(200);
    client.send("POST", "/_session", &form, b"username=ann&password=s%65cret").expect_status(200);
    let wrong = client.send("POST", "/_session", &form, b"name=ann&password=x");
    wrong.expect_error(401, "unauthorized", INCORRECT);
    assert!(wrong.header("set-cookie").unwrap().starts_with("AuthSession=;"));
    let none = client.send("POST", "/_session", &form, b"password=x");
    none.expect_error(400, "bad_request", "request body must contain a username");
    let two = client.send("POST", "/_session", &form, b"name=ann&username=bob");
    two.expect_error(400, "bad_request", "request body contains different usernames");
}

#[test]
fn forged_and_junk_cookies_open_nothing() {
    let server = Server::with_admin();
    let other = Server::with_admin();
    let mut client = server.connect();
    let foreign = log_in(&other);
    let reply = client.send("GET", "/_all_dbs", &[("Cookie", &foreign)], b"");
    reply.expect_error(401, "unauthorized", "You are not a server admin.");
    let junk = client.send("GET", "/_all_dbs", &[("Cookie", "AuthSession=junk")], b"");
    junk.expect_error(400, "bad_request", "Malformed AuthSession cookie. Please clear your cookies.");
}

#[test]
fn without_an_administrator_nobody_can_log_in() {
    let server = Server::start();
    let reply = server.connect().post("/_session", "{\"name\":\"ann\",\"password\":\"\"}");
    reply.expect_error(401, "unauthorized", INCORRECT);
}
