//! Goal: revisions with ids of any text are handled as in CouchDB.
//! Method: such revisions are replicated, read, edited, compared and purged, and the limit of their size is
//! reached and exceeded.

use serde_json::{Value, json};

use crate::client::{Client, Server};

/// A revision that no document has.
const UNKNOWN: &str = "1-abc";

const CONFLICT: &str = "Document update conflict.";

fn rev(digit: &str, generation: u32) -> String {
    format!("{generation}-{}", digit.repeat(32))
}

/// Creates a database with the document `a`; returns its revision.
fn one(client: &mut Client) -> String {
    client.create("db");
    client.put("/db/a", "{\"n\":1}").rev()
}

/// Replicates documents into the database.
fn replicate(client: &mut Client, docs: &Value) {
    let body = json!({"new_edits": false, "docs": docs}).to_string();
    assert_eq!(client.post("/db/_bulk_docs", &body).expect_status(201).json(), json!([]));
}

/// A database whose document `a` has the leaves `2-y`, a deleted `3-z`, `1-x`, and one with a hash.
fn mixed(client: &mut Client) -> String {
    client.create("db");
    let hex = rev("7", 2);
    let docs = json!([
        {"_id": "a", "_rev": "1-x", "n": "x"},
        {"_id": "a", "_revisions": {"start": 2, "ids": ["y", "root"]}, "n": "y"},
        {"_id": "a", "_revisions": {"start": 2, "ids": [hex[2..], "root"]}, "n": "hex"},
        {"_id": "a", "_revisions": {"start": 3, "ids": ["z", "q", "root"]}, "_deleted": true},
    ]);
    replicate(client, &docs);
    hex
}

fn encode(list: &Value) -> String {
    list.to_string().replace('"', "%22")
}

#[test]
fn an_unknown_revision_is_missing() {
    let server = Server::start();
    let mut client = server.connect();
    let known = one(&mut client);
    client.get("/db/a?rev=1-abc").expect_error(404, "not_found", "missing");
    client.get("/db/a?rev=0-abc").expect_error(404, "not_found", "missing");
    client.get("/db/a?rev=1-").expect_error(404, "not_found", "missing");
    client.get("/db/a/x?rev=1-abc").expect_error(404, "not_found", "missing");
    for junk in ["junk", "-a", "x-a", "1.5-a"] {
        client.get(&format!("/db/a?rev={junk}")).expect_error(400, "bad_request", "Invalid rev format");
    }
    // `atts_since` with an unknown revision returns all attachments.
    client.get("/db/a?atts_since=%5B%221-abc%22%5D").expect_status(200);

    let path = format!("/db/a?open_revs={}", encode(&json!([UNKNOWN, known])));
    let found = client.send("GET", &path, &[("Accept", "application/json")], b"").expect_status(200).json();
    assert_eq!(found[0], json!({"missing": UNKNOWN}));
    assert_eq!(found[1]["ok"]["_rev"], json!(known));
    let parts = client.get(&path).expect_status(200);
    let missing = "\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{\"missing\":\"1-abc\"}\r\n--";
    assert!(parts.text().contains(missing), "{}", parts.text());

    let body = json!({"docs": [{"id": "a", "rev": UNKNOWN}, {"id": "a", "rev": known}]}).to_string();
    let found = client.post("/db/_bulk_get", &body).expect_status(200).json();
    let error = json!({"id": "a", "rev": UNKNOWN, "error": "not_found", "reason": "missing"});
    assert_eq!(found["results"][0], json!({"id": "a", "docs": [{"error": error}]}));
    assert_eq!(found["results"][1]["docs"][0]["ok"]["n"], 1);
}

#[test]
fn revs_diff_reports_it_as_missing() {
    let server = Server::start();
    let mut client = server.connect();
    let known = one(&mut client);
    let body = json!({"a": [UNKNOWN, known, "2-\"x"], "b": [UNKNOWN, rev("b", 1)], "c": [known]}).to_string();
    let diff = client.post("/db/_revs_diff", &body).expect_status(200).json();
    let b = json!([UNKNOWN, rev("b", 1)]);
    let expected = json!({
        "a": {"missing": [UNKNOWN, "2-\"x"], "possible_ancestors": [known]},
        "b": {"missing": b},
        "c": {"missing": [known]},
    });
    assert_eq!(diff, expected);
    let missing = client.post("/db/_missing_revs", &body).expect_status(200).json();
    assert_eq!(missing["missing_revs"]["b"], b);
    client.post("/db/_revs_diff", "{\"a\":[\"x\"]}").expect_error(400, "bad_request", "Invalid rev format");

    let purged = client.post("/db/_purge", &json!({"a": [UNKNOWN]}).to_string()).expect_status(201).json();
    assert_eq!(purged["purged"], json!({"a": []}));
}

#[test]
fn an_edit_of_an_unknown_revision_is_a_conflict() {
    let server = Server::start();
    let mut client = server.connect();
    let known = one(&mut client);
    for unknown in [UNKNOWN, "0-x"] {
        let body = json!({"_rev": unknown}).to_string();
        client.put("/db/a", &body).expect_error(409, "conflict", CONFLICT);
        client.put("/db/new", &body).expect_error(409, "conflict", CONFLICT);
        client.put(&format!("/db/a?rev={unknown}"), "{}").expect_error(409, "conflict", CONFLICT);
        client.delete(&format!("/db/a?rev={unknown}")).expect_error(409, "conflict", CONFLICT);
        let tag = format!("\"{unknown}\"");
        let tag = [("If-Match", tag.as_str())];
        client.send("PUT", "/db/a", &tag, b"{}").expect_error(409, "conflict", CONFLICT);
        client.send("DELETE", "/db/a", &tag, b"").expect_error(409, "conflict", CONFLICT);
        client.put(&format!("/db/a/x.txt?rev={unknown}"), "x").expect_error(409, "not_found", "missing_rev");
        let path = format!("/db/a?rev={unknown}");
        client.send("COPY", &path, &[("Destination", "b")], b"").expect_status(404);
        let destination = format!("a?rev={unknown}");
        let to_conflict = [("Destination", destination.as_str())];
        client.send("COPY", "/db/a", &to_conflict, b"").expect_error(409, "conflict", CONFLICT);
        let docs = json!({"docs": [{"_id": "a", "_rev": unknown}]}).to_string();
        let rows = client.post("/db/_bulk_docs", &docs).expect_status(201).json();
        assert_eq!(rows[0]["error"], "conflict");
        let reason = "Document rev from request body and query string have different values";
        client.put(&format!("/db/a?rev={known}"), &body).expect_error(400, "bad_request", reason);
    }
    assert_eq!(client.get("/db/a").rev_of_document(), known);
}

#[test]
fn hex_digits_may_be_capitals_or_the_text_of_16_bytes() {
    let server = Server::start();
    let mut client = server.connect();
    let known = one(&mut client);
    let capitals = known.to_uppercase();
    assert_eq!(client.get(&format!("/db/a?rev={capitals}")).expect_status(200).json()["_rev"], json!(known));
    let next = client.put("/db/a", &json!({"_rev": capitals}).to_string()).expect_status(201).rev();
    let history = client.get("/db/a?revs=true").json()["_revisions"].clone();
    assert_eq!(history, json!({"start": 2, "ids": [next[2..], known[2..]]}));
    let upper = json!({"_rev": rev("B", 1)}).to_string();
    assert_eq!(client.put("/db/b?new_edits=false", &upper).expect_status(201).rev(), rev("b", 1));
    // As in CouchDB, 16 bytes are written as hex digits.
    let text = json!({"_rev": "1-0123456789abcdef"}).to_string();
    let hex = "1-30313233343536373839616263646566";
    assert_eq!(client.put("/db/c?new_edits=false", &text).expect_status(201).rev(), hex);
    assert_eq!(client.get("/db/c?rev=1-0123456789abcdef").expect_status(200).json()["_rev"], hex);
    let no_hex = json!({"_revisions": {"start": 1, "ids": ["z".repeat(32)]}}).to_string();
    let reply = client.put("/db/d?new_edits=false", &no_hex);
    reply.expect_error(400, "doc_validation", "RevId isn't a valid hexadecimal");
    let no_hex = json!({"_rev": rev("z", 1)}).to_string();
    client.put("/db/d?new_edits=false", &no_hex).expect_error(400, "bad_request", "Invalid rev format");
}

#[test]
fn a_replicated_text_is_read_updated_and_deleted() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let reply = client.put("/db/a?new_edits=false", "{\"_rev\":\"1-x\",\"n\":1}").expect_status(201);
    assert_eq!(reply.json(), json!({"ok": true, "id": "a", "rev": "1-x"}));
    assert_eq!(reply.header("etag"), Some("\"1-x\""));
    for path in ["/db/a", "/db/a?rev=1-x"] {
        let reply = client.get(path).expect_status(200);
        assert_eq!(reply.json(), json!({"_id": "a", "_rev": "1-x", "n": 1}));
        assert_eq!(reply.header("etag"), Some("\"1-x\""));
    }
    client.send("GET", "/db/a", &[("If-None-Match", "\"1-y\", \"1-x\"")], b"").expect_status(304);
    client.put("/db/a", "{\"_rev\":\"1-y\"}").expect_error(409, "conflict", CONFLICT);
    let second = client.put("/db/a", "{\"_rev\":\"1-x\",\"n\":2}").expect_status(201).rev();
    assert!(second.starts_with("2-") && second.len() == 34, "{second}");
    assert!(second[2..].bytes().all(|byte| byte.is_ascii_hexdigit()));
    let document = client.get("/db/a?revs=true&revs_info=true").json();
    assert_eq!(document["_revisions"], json!({"start": 2, "ids": [second[2..], "x"]}));
    assert_eq!(document["_revs_info"][1], json!({"rev": "1-x", "status": "available"}));
    assert_eq!(client.get("/db/a?rev=1-x").expect_status(200).json()["n"], 1);

    replicate(&mut client, &json!([{"_id": "b", "_rev": "1-x"}, {"_id": "c", "_rev": "4-x"}]));
    assert!(client.delete("/db/b?rev=1-x").expect_status(200).rev().starts_with("2-"));
    client.get("/db/b").expect_error(404, "not_found", "deleted");
    let deleted = client.send("DELETE", "/db/c", &[("If-Match", "\"4-x\"")], b"").expect_status(200).rev();
    assert!(deleted.starts_with("5-"));
}

#[test]
fn mixed_leaves_have_couchdbs_winner_and_order() {
    let server = Server::start();
    let mut client = server.connect();
    let hex = mixed(&mut client);
    // Bytes are compared: 0x77 is less than `y` (0x79).
    let document = client.get("/db/a?conflicts=true&deleted_conflicts=true").json();
    let expected = json!({"_id": "a", "_rev": "2-y", "n": "y", "_conflicts": [hex, "1-x"],
        "_deleted_conflicts": ["3-z"]});
    assert_eq!(document, expected);
    let changes = client.get("/db/_changes?style=all_docs").json()["results"][0]["changes"].clone();
    assert_eq!(changes, json!([{"rev": "2-y"}, {"rev": hex}, {"rev": "1-x"}, {"rev": "3-z"}]));
    let row = client.get("/db/_all_docs").json()["rows"][0].clone();
    assert_eq!(row, json!({"id": "a", "key": "a", "value": {"rev": "2-y"}}));

    let path = format!("/db/a?open_revs={}", encode(&json!(["1-x", "1-y", "2-y"])));
    let found = client.send("GET", &path, &[("Accept", "application/json")], b"").expect_status(200).json();
    let ok = |rev: &str, n: &str| json!({"ok": {"_id": "a", "_rev": rev, "n": n}});
    assert_eq!(found, json!([ok("1-x", "x"), {"missing": "1-y"}, ok("2-y", "y")]));
    let path = format!("/db/a?latest=true&open_revs={}", encode(&json!(["1-root"])));
    let found = client.send("GET", &path, &[("Accept", "application/json")], b"").expect_status(200).json();
    assert_eq!(found.as_array().unwrap().len(), 3, "{found}");

    let body =
        json!({"docs": [{"id": "a", "rev": "2-y"}, {"id": "a", "rev": hex}, {"id": "a", "rev": "2-q"}]});
    let found = client.post("/db/_bulk_get?revs=true", &body.to_string()).json()["results"].clone();
    assert_eq!(found[0]["docs"][0]["ok"]["_revisions"], json!({"start": 2, "ids": ["y", "root"]}));
    assert_eq!(found[1]["docs"][0]["ok"]["n"], "hex");
    assert_eq!(found[2]["docs"][0]["error"]["rev"], "2-q");

    let body = json!({"a": ["1-root", "2-q", "2-y", "2-x", "3-y", "1-y"]}).to_string();
    let diff = client.post("/db/_revs_diff", &body).json();
    let ancestors = json!(["2-y", hex, "1-x"]);
    assert_eq!(diff, json!({"a": {"missing": ["2-x", "3-y", "1-y"], "possible_ancestors": ancestors}}));

    // Conflicts are resolved by deleting leaves.
    client.delete("/db/a?rev=2-y").expect_status(200);
    assert_eq!(client.get("/db/a").rev_of_document(), hex);
    client.delete(&format!("/db/a?rev={hex}")).expect_status(200);
    assert_eq!(client.get("/db/a?conflicts=true").json(), json!({"_id": "a", "_rev": "1-x", "n": "x"}));

    let purged = client.post("/db/_purge", "{\"a\":[\"1-x\",\"3-z\",\"2-q\"]}").expect_status(201).json();
    assert_eq!(purged["purged"], json!({"a": ["1-x", "3-z"]}));
    let infos = client.get("/db/_purged_infos").json();
    assert_eq!(infos["purged_infos"][0]["revs"], json!(["1-x", "3-z", "2-q"]));
}

#[test]
fn attachments_of_texts_are_kept_and_compared() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let attached = |rev: &str, ids: &Value, data: &str| {
        json!({"_id": "a", "_rev": rev, "_revisions": {"start": ids.as_array().unwrap().len(), "ids": ids},
            "_attachments": {"f": {"content_type": "text/plain", "data": data}}})
    };
    replicate(&mut client, &json!([attached("1-x", &json!(["x"]), "QUFB")]));
    let stub = json!({"f": {"stub": true, "revpos": 1}});
    let docs = json!([{"_id": "a", "_revisions": {"start": 2, "ids": ["y", "x"]}, "_attachments": stub}]);
    replicate(&mut client, &docs);
    assert_eq!(client.get("/db/a/f?rev=2-y").expect_status(200).text(), "AAA");
    let third = client.put("/db/a/g?rev=2-y", "BBB").expect_status(201).rev();
    let path = format!("/db/a?atts_since={}", encode(&json!(["2-y", "9-none"])));
    let document = client.send("GET", &path, &[("Accept", "application/json")], b"").json();
    assert_eq!(document["_rev"], json!(third));
    assert_eq!(document["_attachments"]["f"]["stub"], json!(true));
    assert_eq!(document["_attachments"]["g"]["data"], json!("QkJC"));
    let body = json!({"docs": [{"id": "a", "atts_since": ["1-x"]}]}).to_string();
    let found = client.post("/db/_bulk_get", &body).json();
    let attachments = &found["results"][0]["docs"][0]["ok"]["_attachments"];
    assert_eq!((&attachments["f"]["stub"], &attachments["g"]["data"]), (&json!(true), &json!("QkJC")));
}

#[test]
fn a_text_of_255_bytes_is_stored_and_a_longer_one_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let longest = format!("1-{}", "x".repeat(255));
    let longer = format!("{longest}x");
    let reason = "Invalid rev format: more than 255 bytes behind the number";
    let body = |rev: &str| json!({"_rev": rev}).to_string();
    assert_eq!(client.put("/db/a?new_edits=false", &body(&longest)).expect_status(201).rev(), longest);
    assert_eq!(client.get(&format!("/db/a?rev={longest}")).expect_status(200).rev_of_document(), longest);
    client.put("/db/b?new_edits=false", &body(&longer)).expect_error(400, "bad_request", reason);
    client.put("/db/b", &body(&longer)).expect_error(400, "bad_request", reason);
    client.get(&format!("/db/a?rev={longer}")).expect_error(400, "bad_request", reason);
    client.delete(&format!("/db/a?rev={longer}")).expect_error(400, "bad_request", reason);
    let tag = format!("\"{longer}\"");
    client.send("PUT", "/db/a", &[("If-Match", &tag)], b"{}").expect_error(400, "bad_request", reason);
    let list = json!({"a": [longer]}).to_string();
    for endpoint in ["_revs_diff", "_missing_revs", "_purge"] {
        client.post(&format!("/db/{endpoint}"), &list).expect_error(400, "bad_request", reason);
    }
    let path = format!("/db/a?open_revs={}", encode(&json!([longer])));
    client.get(&path).expect_error(400, "bad_request", reason);
    let found = client.post("/db/_bulk_get", &json!({"docs": [{"id": "a", "rev": longer}]}).to_string());
    assert_eq!(found.json()["results"][0]["docs"][0]["error"]["reason"], reason);
    let docs = json!([
        {"_id": "c", "_revisions": {"start": 2, "ids": ["x", &longer[2..]]}},
        {"_id": "d", "_rev": "1-x"},
    ]);
    let body = json!({"new_edits": false, "docs": docs}).to_string();
    client.post("/db/_bulk_docs", &body).expect_error(400, "bad_request", reason);
    client.get("/db/d").expect_status(404);
    let huge = "Invalid rev format: a number above 4294967295";
    client.get("/db/a?rev=4294967296-x").expect_error(400, "bad_request", huge);
    let last = json!([{"_id": "e", "_rev": "4294967295-x"}]);
    replicate(&mut client, &last);
    let full = client.put("/db/e", "{\"_rev\":\"4294967295-x\"}");
    full.expect_error(400, "bad_request", "the document has too many revisions");
}

#[test]
fn a_replicated_revision_of_position_0_fails_alone() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let docs = json!([{"_id": "a", "_rev": "0-x"}, {"_id": "b", "_rev": "1-"}, {"_id": "_local/l"},
        {"_id": "c", "_rev": "0-1"}, {"_id": "d", "_revisions": {"start": 0, "ids": ["2"]}}]);
    let body = json!({"new_edits": false, "docs": docs}).to_string();
    let rows = client.post("/db/_bulk_docs", &body).expect_status(201).json();
    let refused = |id: &str| json!({"id": id, "error": "bad_request", "reason": "Invalid rev format"});
    let mut expected = json!([refused("a"), refused("c"), refused("d")]);
    expected[0]["rev"] = "0-x".into();
    assert_eq!(rows, expected);
    for rev in ["0-x", "0-1"] {
        let body = json!({"_rev": rev}).to_string();
        client.put("/db/a?new_edits=false", &body).expect_error(400, "bad_request", "Invalid rev format");
    }
    client.get("/db/a").expect_status(404);
    // As in CouchDB, a text may be empty.
    assert_eq!(client.get("/db/b?rev=1-").expect_status(200).rev_of_document(), "1-");
    client.get("/db/_local/l").expect_status(200);
}

#[test]
fn an_etag_has_every_text_that_it_can() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let texts = [
        ("1-a,b", true),
        ("1-%22", true),
        ("1-\u{fc}", true),
        ("1-a b", false),
        ("1-a\"b", false),
        ("1-a\r\nX: y", false),
        ("1-\u{7f}", false),
    ];
    for (index, (rev, has_tag)) in texts.into_iter().enumerate() {
        let path = format!("/db/d{index}");
        let body = json!({"_rev": rev}).to_string();
        let saved = client.put(&format!("{path}?new_edits=false"), &body).expect_status(201);
        assert_eq!(saved.rev(), rev);
        for reply in [saved, client.get(&path), client.head(&path)] {
            assert_eq!(reply.header("etag").is_some(), has_tag, "{rev:?}: {:?}", reply.header("etag"));
            assert_eq!(reply.header("x"), None);
        }
        assert_eq!(client.get(&path).rev_of_document(), rev);
        if let Some(tag) = client.get(&path).header("etag").map(str::to_owned) {
            for known in [tag.clone(), format!("W/{tag}"), format!("\"1-x,y\" , {tag},\"z\"")] {
                client.send("GET", &path, &[("If-None-Match", &known)], b"").expect_status(304);
            }
            for other in [format!("\"{}", &tag[2..]), tag.replace('"', "")] {
                client.send("GET", &path, &[("If-None-Match", &other)], b"").expect_status(200);
            }
        }
        let attached = json!([{"_id": format!("d{index}"),
            "_revisions": {"start": 2, "ids": [rev[2..], rev[2..]]},
            "_attachments": {"f": {"data": "QUFB"}}}]);
        replicate(&mut client, &attached);
        let body = json!({"docs": [{"id": format!("d{index}")}]}).to_string();
        let headers = [("Content-Type", "application/json"), ("Accept", "multipart/mixed")];
        let parts = client.send("POST", "/db/_bulk_get?attachments=true", &headers, body.as_bytes());
        assert!(!parts.expect_status(200).text().contains("\r\nX: y"));
    }
    // The tag is compared as it is sent.
    client.send("GET", "/db/d2", &[("If-None-Match", "\"2-\u{fc}\"")], b"").expect_status(304);
    client.send("PUT", "/db/d2", &[("If-Match", "\"1-\u{fc}\"")], b"{}").expect_status(409);
    client.send("PUT", "/db/d2", &[("If-Match", "\"2-\u{fc}\"")], b"{}").expect_status(201);
}
