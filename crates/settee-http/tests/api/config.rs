//! `_node/_local/_config`: showing, changing and storing values, and their effects.

use settee_http::{Admin, CONFIG_FILE, ServerOptions};

use crate::client::{Client, Server};

const CONFIG: &str = "/_node/_local/_config";

fn start_in(directory: &std::path::Path) -> Server {
    let config_file = Some(directory.join(CONFIG_FILE));
    Server::start_in(directory, ServerOptions { config_file, ..ServerOptions::default() })
}

/// Sets a key and returns its old value.
#[track_caller]
fn set(client: &mut Client, key: &str, value: &str) -> String {
    let reply = client.put(&format!("{CONFIG}/{key}"), &format!("\"{value}\"")).expect_status(200);
    reply.json().as_str().unwrap().to_owned()
}

#[test]
fn a_key_is_set_shown_and_deleted_with_its_old_value_as_the_answer() {
    let server = Server::start();
    let mut client = server.connect();
    assert_eq!(set(&mut client, "my_section/my_key", "  one "), "");
    assert_eq!(set(&mut client, "my_section/my_key", "two"), "one");
    for node in ["_local", "nonode@nohost"] {
        let path = format!("/_node/{node}/_config/my_section");
        assert_eq!(client.get(&format!("{path}/my_key")).text(), "\"two\"\n");
        assert_eq!(client.get(&path).text(), "{\"my_key\":\"two\"}\n");
    }
    assert_eq!(client.get(CONFIG).json()["my_section"]["my_key"], "two");
    let path = format!("{CONFIG}/my_section/my_key");
    assert_eq!(client.delete(&path).expect_status(200).text(), "\"two\"\n");
    for reply in [client.get(&path), client.delete(&path)] {
        reply.expect_error(404, "not_found", "unknown_config_value");
    }
    assert_eq!(client.get(&format!("{CONFIG}/my_section")).text(), "{}\n");
    assert_eq!(client.get(CONFIG).json().get("my_section"), None);
}

#[test]
fn what_holds_without_any_change_is_shown() {
    let server = Server::with_limits(|limits| limits.document_bytes_max = 4321);
    let mut client = server.connect();
    let all = client.get(CONFIG).expect_status(200).json();
    assert_eq!(all["couchdb"]["max_document_size"], "4321");
    assert_eq!(all["couchdb"]["uuid"], client.get("/").json()["uuid"]);
    assert_eq!(all["chttpd"]["port"], server.address.port().to_string());
    assert_eq!(all["uuids"]["algorithm"], "sequential");
    assert_eq!(client.head(CONFIG).status, 200);
}

#[test]
fn changes_outlive_the_server_where_they_are_to() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_in(directory.path());
    let mut client = server.connect();
    set(&mut client, "my_log/level", "debug");
    set(&mut client, "couchdb/max_document_size", "1000");
    let in_memory = [("X-Couch-Persist", "false")];
    let body = b"\"here only\"";
    client.send("PUT", &format!("{CONFIG}/my_log/file"), &in_memory, body).expect_status(200);
    client.send("DELETE", &format!("{CONFIG}/uuids/max_count"), &in_memory, b"").expect_status(200);
    assert_eq!(client.get(&format!("{CONFIG}/my_log/file")).text(), "\"here only\"\n");
    client.get(&format!("{CONFIG}/uuids/max_count")).expect_status(404);
    // Reloading restores the values of the file.
    client.post(&format!("{CONFIG}/_reload"), "").expect_status(200);
    client.get(&format!("{CONFIG}/my_log/file")).expect_status(404);
    client.get(&format!("{CONFIG}/uuids/max_count")).expect_status(200);
    drop((client, server));

    let server = start_in(directory.path());
    let mut client = server.connect();
    assert_eq!(client.get(&format!("{CONFIG}/my_log")).text(), "{\"level\":\"debug\"}\n");
    client.create("db");
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(1000));
    client.put("/db/big", &large).expect_error(413, "document_too_large", "big");
}

#[test]
fn limits_hold_from_the_next_request_on() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let document = format!("{{\"a\":\"{}\"}}", "x".repeat(1000));
    client.put("/db/a", &document).expect_status(201);
    set(&mut client, "couchdb/max_document_size", "500");
    client.put("/db/b", &document).expect_error(413, "document_too_large", "b");
    set(&mut client, "chttpd/max_http_request_size", "900");
    client.put("/db/b", &document).expect_error(413, "too_large", "the request entity is too large");
    client.delete(&format!("{CONFIG}/chttpd/max_http_request_size")).expect_status(200);
    set(&mut client, "couchdb/max_document_size", "2000");
    client.put("/db/b", &document).expect_status(201);
    set(&mut client, "uuids/max_count", "3");
    client.get("/_uuids?count=4").expect_error(400, "bad_request", "count parameter too large");
}

#[test]
fn couchdbs_largest_request_size_acts_and_what_is_not_spooled_fits_into_memory() {
    let server = Server::with_limits(|limits| {
        limits.request_bytes_max = 1000;
        limits.request_bytes_in_flight_max = 100_000;
    });
    let mut client = server.connect();
    client.create("db");
    let body = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes));
    let too_large = "the request entity is too large";
    client.put("/db/a", &body(2000)).expect_error(413, "too_large", too_large);
    assert_eq!(set(&mut client, "chttpd/max_http_request_size", "4294967296"), "1000");
    client.put("/db/a", &body(2000)).expect_status(201);
    let exceeds = "the request entity exceeds the memory for request bodies: only attachments and the \
                   documents of _bulk_docs may";
    client.put("/db/b", &body(100_000)).expect_error(413, "too_large", exceeds);
    let bulk = format!("{{\"docs\":[{}]}}", vec![body(1_000); 200].join(","));
    assert_eq!(client.post("/db/_bulk_docs", &bulk).expect_status(201).json().as_array().unwrap().len(), 200);
}

#[test]
fn a_server_that_is_worked_at_says_so() {
    let server = Server::start();
    let mut client = server.connect();
    for (mode, status) in [("true", "maintenance_mode"), ("nolb", "nolb")] {
        set(&mut client, "couchdb/maintenance_mode", mode);
        let reply = client.get("/_up").expect_status(404);
        assert_eq!(reply.text(), format!("{{\"status\":\"{status}\"}}\n"));
    }
    set(&mut client, "couchdb/maintenance_mode", "false");
    client.get("/_up").expect_status(200);
}

#[test]
fn identifiers_are_made_as_is_configured() {
    let server = Server::start();
    let mut client = server.connect();
    let mut uuids = |algorithm: &str| {
        set(&mut client, "uuids/algorithm", algorithm);
        let reply = client.get("/_uuids?count=3").expect_status(200).json();
        reply["uuids"].as_array().unwrap().iter().map(|uuid| uuid.as_str().unwrap().to_owned()).collect()
    };
    let sequential: Vec<String> = uuids("sequential");
    assert_eq!(sequential[0][..26], sequential[1][..26]);
    let random: Vec<String> = uuids("random");
    assert_ne!(random[0][..26], random[1][..26]);
    let utc_random: Vec<String> = uuids("utc_random");
    assert!(utc_random.is_sorted() && utc_random.iter().all(|uuid| uuid.len() == 32));
    set(&mut client, "uuids/utc_id_suffix", "here");
    set(&mut client, "uuids/algorithm", "utc_id");
    let reply = client.get("/_uuids").expect_status(200).json();
    assert!(reply["uuids"][0].as_str().unwrap().ends_with("here"));
}

#[test]
fn what_can_not_be_configured_is_refused_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    let before = client.get(CONFIG).json();
    let bad = |client: &mut Client, path: &str, body: &str, reason: &str| {
        client.put(&format!("{CONFIG}/{path}"), body).expect_error(400, "bad_request", reason);
    };
    bad(&mut client, "a/b", "17", "a JSON string expected");
    bad(&mut client, "a/b", "nothing", "invalid UTF-8 JSON");
    bad(&mut client, "a/b", "\"x\\ny\"", "Invalid configuration value");
    bad(&mut client, "a%5Bb/c", "\"x\"", "Invalid configuration section");
    bad(&mut client, "a/b%0A", "\"x\"", "Invalid configuration key");
    let reason = "uuids/algorithm must be random, sequential, utc_random or utc_id";
    bad(&mut client, "uuids/algorithm", "\"dice\"", reason);
    bad(
        &mut client,
        "couchdb/maintenance_mode",
        "\"?\"",
        "couchdb/maintenance_mode must be true, false or nolb",
    );
    for section in ["query_servers", "os_daemons", "feature_flags"] {
        let reason = "Config section blacklisted for modification over HTTP API.";
        client.put(&format!("{CONFIG}/{section}/x"), "\"y\"").expect_error(403, "forbidden", reason);
    }
    for key in [
        "couchdb/uuid",
        "chttpd/port",
        "cluster/n",
        "vendor/name",
        // Keys that have an effect in CouchDB.
        "couchdb/single_node",
        "log/level",
        "replicator/max_jobs",
        "smoosh.ratio_dbs/min_priority",
        "cors:example.org/origins",
        "ssl/enable",
    ] {
        let reply = client.put(&format!("{CONFIG}/{key}"), "\"5\"");
        assert_eq!((reply.status, &reply.json()["error"]), (501, &"not_implemented".into()), "{key}");
    }
    assert_eq!(client.get(CONFIG).json(), before);
    client.get(&format!("{CONFIG}/a/b/c")).expect_error(404, "not_found", "missing");
    client.post(&format!("{CONFIG}/a/b"), "\"x\"").expect_error(
        405,
        "method_not_allowed",
        "Only GET,PUT,DELETE allowed",
    );
    client.put(CONFIG, "\"x\"").expect_error(405, "method_not_allowed", "Only GET allowed");
    client.put(&format!("{CONFIG}/a"), "\"x\"").expect_error(405, "method_not_allowed", "Only GET allowed");
    client.get(&format!("{CONFIG}/_reload")).expect_error(405, "method_not_allowed", "Only POST allowed");
}

#[test]
fn passwords_are_not_shown_and_only_the_administrator_sees_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let config_file = Some(directory.path().join(CONFIG_FILE));
    let admin = Some(Admin::parse("ann:secret").unwrap());
    let server = Server::start_with(ServerOptions { admin, config_file, ..ServerOptions::default() });
    let mut client = server.connect();
    client.get(CONFIG).expect_error(401, "unauthorized", "You are not a server admin.");
    let ann = [("Authorization", "Basic YW5uOnNlY3JldA==")];
    let all = client.send("GET", CONFIG, &ann, b"").expect_status(200);
    assert!(!all.text().contains("secret"), "{}", all.text());
    assert_eq!(all.json()["admins"]["ann"], "****");
    let path = format!("{CONFIG}/admins/bob");
    assert_eq!(client.send("PUT", &path, &ann, b"\"pass\"").status, 501);
    assert!(!directory.path().join(CONFIG_FILE).exists());
}

#[test]
fn a_change_whose_client_has_gone_is_made_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_in(directory.path());
    let mut client = server.connect();
    for n in 0..200 {
        let mut gone = server.connect();
        let length = [("Content-Length", "3")];
        gone.write_head("PUT", &format!("{CONFIG}/gone/{n}"), &length);
        gone.write(b"\"x\"");
        drop(gone);
        // The next one follows while it is in progress.
        set(&mut client, &format!("kept/{n}"), "y");
    }
    let in_force = client.get(CONFIG).json();
    assert_eq!(in_force["kept"].as_object().unwrap().len(), 200);
    // When no change is in progress, the values in effect are those of the file.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let in_force = client.get(CONFIG).json();
    client.post(&format!("{CONFIG}/_reload"), "").expect_status(200);
    let in_file = client.get(CONFIG).json();
    assert_eq!((&in_file["kept"], &in_file["gone"]), (&in_force["kept"], &in_force["gone"]));
}

#[test]
fn what_clients_set_up_scripts_do_works_from_start_to_end() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let ann = ("Authorization", "Basic YW5uOnNlY3JldA==");
    let json = [ann, ("Content-Type", "application/json")];
    let setup = "{\"action\":\"enable_single_node\",\"username\":\"ann\",\"password\":\"secret\",\
                 \"bind_address\":\"0.0.0.0\",\"port\":5984,\"singlenode\":true}";
    client.send("POST", "/_cluster_setup", &json, setup.as_bytes()).expect_status(201);
    for (key, value) in [
        ("chttpd/require_valid_user", "true"),
        ("chttpd_auth/require_valid_user", "true"),
        ("chttpd/require_valid_user_except_for_up", "true"),
        ("httpd/WWW-Authenticate", "Basic realm=\\\"couchdb\\\""),
        ("httpd/enable_cors", "true"),
        ("chttpd/enable_cors", "true"),
        ("cors/credentials", "true"),
        ("cors/origins", "app://obsidian.md,capacitor://localhost,http://localhost"),
        ("cors/headers", "accept, authorization, content-type, origin, referer, x-csrf-token"),
        ("cors/methods", "GET, PUT, POST, HEAD, DELETE"),
        ("cors/max_age", "3600"),
        ("chttpd_auth/timeout", "10800"),
        ("chttpd/max_http_request_size", "4294967296"),
        ("uuids/algorithm", "random"),
    ] {
        let body = format!("\"{value}\"");
        for node in ["_local", "nonode@nohost"] {
            let path = format!("/_node/{node}/_config/{key}");
            client.send("PUT", &path, &json, body.as_bytes()).expect_status(200);
            assert_eq!(client.send("GET", &path, &[ann], b"").text(), format!("{body}\n"));
        }
    }
    client.send("PUT", "/notes?q=2&n=1", &json, b"").expect_status(201);
    let state = client.send("GET", "/_cluster_setup", &[ann], b"").json();
    assert_eq!(state["state"], "single_node_enabled");
    let login = [("Content-Type", "application/x-www-form-urlencoded")];
    let session = client.send("POST", "/_session", &login, b"name=ann&password=secret").expect_status(200);
    assert!(session.header("set-cookie").unwrap().contains("Max-Age=10800;"), "{session:?}");
}

#[test]
fn sign_in_is_required_as_configured() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let ann = [("Authorization", "Basic YW5uOnNlY3JldA==")];
    let put = |client: &mut Client, key: &str, value: &str| {
        let body = format!("\"{value}\"");
        client.send("PUT", &format!("{CONFIG}/{key}"), &ann, body.as_bytes()).expect_status(200);
    };
    client.get("/").expect_status(200);
    assert_eq!(client.get("/_all_dbs").expect_status(401).header("www-authenticate"), None);

    put(&mut client, "couch_httpd_auth/require_valid_user", "true");
    let asked = client.get("/_all_dbs").expect_status(401);
    assert_eq!(asked.header("www-authenticate"), Some("Basic realm=\"server\""));
    client.get("/").expect_status(200);

    put(&mut client, "chttpd/require_valid_user", "true");
    for path in ["/", "/_up", "/_session", "/_utils/", "/missing/doc"] {
        let refused = client.get(path);
        refused.expect_error(401, "unauthorized", "Authentication required.");
        assert_eq!(refused.header("www-authenticate"), Some("Basic realm=\"server\""), "{path}");
    }
    client.send("GET", "/", &ann, b"").expect_status(200);
    let login = [("Content-Type", "application/x-www-form-urlencoded")];
    client.send("POST", "/_session", &login, b"name=ann&password=secret").expect_status(200);

    put(&mut client, "chttpd/require_valid_user_except_for_up", "true");
    client.get("/_up").expect_status(200);
    client.get("/").expect_status(401);
    put(&mut client, "chttpd/WWW-Authenticate", "Basic realm=\\\"here\\\"");
    assert_eq!(client.get("/").header("www-authenticate"), Some("Basic realm=\"here\""));

    let open = Server::start();
    let path = format!("{CONFIG}/chttpd/require_valid_user");
    let reason = "chttpd/require_valid_user: without an administrator nobody can sign in";
    open.connect().put(&path, "\"true\"").expect_error(400, "bad_request", reason);
}
