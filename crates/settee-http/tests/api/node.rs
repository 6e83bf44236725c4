//! The server's information on itself and its databases: `_node`, `_membership`, `_cluster_setup`,
//! `_dbs_info`, `_active_tasks`, and requests of browsers.

use serde_json::json;

use crate::client::Server;

#[test]
fn there_is_one_node_with_two_names() {
    let server = Server::start();
    let mut client = server.connect();
    for node in ["_local", "nonode@nohost"] {
        let reply = client.get(&format!("/_node/{node}")).expect_status(200);
        assert_eq!(reply.text(), "{\"name\":\"nonode@nohost\"}\n");
    }
    let reply = client.get("/_membership").expect_status(200);
    let nodes = json!(["nonode@nohost"]);
    assert_eq!(reply.json(), json!({"all_nodes": nodes, "cluster_nodes": nodes}));
    client.get("/_node").expect_error(400, "bad_request", "Incomplete path to _node request");
    client.get("/_node/other/_config").expect_error(404, "not_found", "no such node: other");
    client.get("/_node/_local/_nothing").expect_error(404, "not_found", "missing");
    client.post("/_node/_local/_stats", "{}").expect_error(405, "method_not_allowed", "Only GET allowed");
}

#[test]
fn figures_are_found_by_their_path_and_move_with_what_happens() {
    let server = Server::start();
    let mut client = server.connect();
    let path = "/_node/_local/_stats/couchdb/httpd_status_codes/404/value";
    let before = client.get(path).json().as_u64().unwrap();
    client.get("/none").expect_status(404);
    assert_eq!(client.get(path).json().as_u64().unwrap(), before + 1);
    let all = client.get("/_node/_local/_stats").json();
    let gets = &all["couchdb"]["httpd_request_methods"]["GET"];
    assert_eq!((gets["type"].as_str(), gets["value"].as_u64().unwrap() >= 3), (Some("counter"), true));
    assert!(gets["desc"].is_string());
    let reply = client.get("/_node/_local/_stats/couchdb/httpd_request_methods/GET");
    assert_eq!(reply.json()["type"], "counter");
    for nothing in ["none", "couchdb/none/x", "couchdb/httpd/requests/value/x"] {
        assert_eq!(client.get(&format!("/_node/_local/_stats/{nothing}")).text(), "null\n");
    }
}

#[test]
fn system_figures_and_versions_are_reported() {
    let server = Server::start();
    let mut client = server.connect();
    let system = client.get("/_node/_local/_system").expect_status(200).json();
    assert!(system["uptime"].is_u64() && system["process_count"].as_u64().unwrap() >= 1);
    assert!(system["memory"]["other"].as_u64().unwrap() > 1 << 20, "{system}");
    let versions = client.get("/_node/_local/_versions").expect_status(200).json();
    assert_eq!(versions["couchdb"]["version"], "3.5.0");
    assert_eq!(versions["collation_driver"]["name"], "icu4x");
    assert_eq!(versions["collation_driver"]["collator_version"], settee_view::COLLATION_VERSION);
    assert_eq!(versions["javascript_engine"], json!({"name": "quickjs-ng", "version": "0.16.2"}));
}

#[test]
fn versions_are_those_of_the_crates_in_use() {
    let server = Server::start();
    let versions = server.connect().get("/_node/_local/_versions").expect_status(200).json();
    let lock = include_str!("../../../../Cargo.lock");
    let has =
        |name: &str, version: &str| lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n"));
    assert!(has("icu_collator_data", versions["collation_driver"]["library_version"].as_str().unwrap()));
    // rquickjs-sys contains QuickJS-ng: another version of the crate means another QUICKJS_VERSION.
    assert!(has("rquickjs-sys", "0.14.0"), "see QJS_VERSION_* in the crate's quickjs.h");
}

#[test]
fn a_lone_machine_is_set_up_by_making_couchdbs_databases() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let ann = [("Authorization", "Basic YW5uOnNlY3JldA=="), ("Content-Type", "application/json")];
    let mut setup = |method: &str, body: &str| client.send(method, "/_cluster_setup", &ann, body.as_bytes());
    assert_eq!(setup("GET", "").json(), json!({"state": "single_node_disabled"}));
    let one = "{\"action\":\"enable_single_node\",\"ensure_dbs_exist\":[\"_users\"]}";
    assert_eq!(setup("POST", one).expect_status(201).text(), "{\"ok\":true}\n");
    assert_eq!(setup("GET", "").json(), json!({"state": "single_node_disabled"}));
    let named = "{\"action\":\"enable_single_node\",\"username\":\"ann\",\"password\":\"secret\"}";
    setup("POST", named).expect_status(201);
    let elsewhere = "{\"action\":\"enable_single_node\",\"username\":\"ann\",\"password\":\"secret\",\
                     \"bind_address\":\"0.0.0.0\",\"port\":5984,\"singlenode\":true}";
    setup("POST", elsewhere).expect_status(201);
    assert_eq!(setup("GET", "").json(), json!({"state": "single_node_enabled"}));
    let finish = "{\"action\":\"finish_cluster\"}";
    setup("POST", finish).expect_error(400, "bad_request", "Cluster is already finished");
    for nothing in ["{}", "{\"action\":\"dance\"}"] {
        setup("POST", nothing).expect_error(400, "bad_request", "Invalid Action'");
    }
    for (other, body) in [
        ("add_node", "{\"action\":\"add_node\",\"host\":\"x\"}"),
        ("an administrator", "{\"action\":\"enable_single_node\",\"username\":\"bob\",\"password\":\"x\"}"),
    ] {
        assert_eq!(setup("POST", body).status, 501, "{other}");
    }
    setup("PUT", "{}").expect_error(405, "method_not_allowed", "Only GET,POST allowed");
    let names = client.send("GET", "/_all_dbs", &ann, b"").json();
    assert_eq!(names, json!(["_global_changes", "_replicator", "_users"]));
}

#[test]
fn dbs_info_describes_several_databases() {
    let server = Server::with_limits(|limits| limits.dbs_info_names_max = 3);
    let mut client = server.connect();
    for name in ["a", "b", "c"] {
        client.create(name);
    }
    client.put("/b/doc", "{}").expect_status(201);
    let all = client.get("/_dbs_info").expect_status(200).json();
    let keys: Vec<_> = all.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(all[1]["info"], client.get("/b").json());
    let range = client.get("/_dbs_info?startkey=%22b%22&limit=1").json();
    assert_eq!((range.as_array().unwrap().len(), &range[0]["key"]), (1, &json!("b")));
    let asked = client.post("/_dbs_info", "{\"keys\":[\"c\",\"none\",\"a\"]}").expect_status(200).json();
    assert_eq!(asked[0]["info"]["db_name"], "c");
    assert_eq!(asked[1], json!({"key": "none", "error": "not_found"}));
    assert_eq!(asked[2]["info"]["doc_count"], 0);
    assert_eq!(client.post("/_dbs_info", "{\"keys\":[]}").text(), "[]\n");
    let refused = [
        ("{}", "`keys` member must exist."),
        ("{\"keys\":5}", "`keys` member must be an array."),
        ("{\"keys\":[1]}", "`keys` must be strings."),
        ("{\"keys\":[\"a\",\"a\",\"a\",\"a\"]}", "too_many_keys"),
    ];
    for (body, reason) in refused {
        client.post("/_dbs_info", body).expect_error(400, "bad_request", reason);
    }
    let reply = client.send("POST", "/_dbs_info", &[], b"{}");
    reply.expect_error(415, "bad_content_type", "Content-Type must be application/json");
    assert_eq!(client.head("/_dbs_info").status, 200);
}

#[test]
fn active_tasks_are_the_compactions_under_way() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    assert_eq!(client.get("/_active_tasks").expect_status(200).text(), "[]\n");
    client.put("/db/a", "{}").expect_status(201);
    client.post("/db/_compact", "").expect_status(202);
    // The compaction may have ended already; until then it is reported.
    loop {
        let tasks = client.get("/_active_tasks").json();
        if tasks == json!([]) {
            break;
        }
        assert_eq!(tasks[0]["type"], "database_compaction");
        assert_eq!((&tasks[0]["database"], &tasks[0]["node"]), (&json!("db"), &json!("nonode@nohost")));
    }
    let reply = client.post("/_active_tasks", "{}");
    reply.expect_error(405, "method_not_allowed", "Only GET,HEAD allowed");
}

#[test]
fn browsers_get_an_icon_and_are_told_that_there_is_no_console() {
    let server = Server::with_admin();
    let mut client = server.connect();
    let reply = client.get("/_utils");
    let address = format!("http://{}/_utils/", server.address);
    assert_eq!((reply.status, reply.header("location")), (301, Some(&*address)));
    let reply = client.get("/_utils/");
    reply.expect_error(501, "not_implemented", "The console is not implemented yet.");
    let reply = client.send("GET", "/_utils/index.html", &[("Accept", "text/html,*/*")], b"");
    assert_eq!((reply.status, reply.header("content-type")), (501, Some("text/html; charset=utf-8")));
    assert!(reply.text().contains("not implemented yet"));
    let icon = client.get("/favicon.ico").expect_status(200);
    assert_eq!(icon.header("content-type"), Some("image/x-icon"));
    assert_eq!(&icon.body[..6], &[0, 0, 1, 0, 1, 0]);
    assert_eq!(icon.header("cache-control"), Some("public, max-age=31536000"));
    client.post("/_reload_query_servers", "{}").expect_error(
        401,
        "unauthorized",
        "You are not a server admin.",
    );
}

#[test]
fn query_servers_are_reloaded_since_there_are_none() {
    let server = Server::start();
    let mut client = server.connect();
    client.post("/_reload_query_servers", "").expect_status(200);
    client.get("/_reload_query_servers").expect_error(405, "method_not_allowed", "Only POST allowed");
}
