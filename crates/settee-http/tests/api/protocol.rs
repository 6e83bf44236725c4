//! HTTP itself: headers of all responses, method override, compressed responses, requests refused under load,
//! HTTP/2 and its slow clients.

use std::collections::HashSet;
use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::client::{Client, Server, lines};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn every_answer_has_an_id_of_its_own_and_says_who_and_when() {
    let server = Server::start();
    let mut client = server.connect();
    let mut ids = HashSet::new();
    for n in 0..500 {
        let path = ["/", "/none", "/_all_dbs", "/_node/x/y", "/%"][n % 5];
        let reply = client.get(path);
        let id = reply.header("x-couch-request-id").unwrap_or_else(|| panic!("{path}: {reply:?}"));
        assert!(id.len() == 10 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        assert!(ids.insert(id.to_owned()), "{id} twice");
        assert!(reply.header("server").unwrap().ends_with(" CouchDB/3.5.0"), "{path}");
        assert!(reply.header("date").unwrap().ends_with(" GMT"), "{path}");
    }
}

#[test]
fn a_request_keeps_the_id_that_its_client_gave_it() {
    let server = Server::start();
    let mut client = server.connect();
    let longest = "aZ09-_".repeat(6);
    for (sent, is_kept) in [
        ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", true),
        (longest.as_str(), true),
        ("x", true),
        (&format!("{longest}x"), false),
        ("a b", false),
        ("a.b", false),
        ("", false),
    ] {
        for path in ["/", "/none"] {
            let reply = client.send("GET", path, &[("X-Couch-Request-ID", sent)], b"");
            let id = reply.header("x-couch-request-id").unwrap();
            assert_eq!(id == sent, is_kept, "{sent}: {id}");
            assert!(is_kept || id.len() == 10, "{id}");
        }
    }
}

#[test]
fn what_is_not_modified_has_a_length_of_zero() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);
    client.put("/db/_local/a", "{}").expect_status(201);
    for path in ["/db/a", "/db/_local/a", "/db/_changes", "/_all_dbs"] {
        let tag = client.get(path).header("etag").unwrap_or_else(|| panic!("{path}")).to_owned();
        let again = client.send("GET", path, &[("If-None-Match", &tag)], b"").expect_status(304);
        assert_eq!(again.header("content-length"), Some("0"), "{path}");
    }
}

#[test]
fn uuids_and_posted_changes_have_tags() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", "{}").expect_status(201);
    let tags: HashSet<String> =
        (0..3).map(|_| client.get("/_uuids?count=2").header("etag").unwrap().to_owned()).collect();
    assert!(tags.len() == 3 && tags.iter().all(|tag| tag.starts_with('"') && tag.ends_with('"')), "{tags:?}");
    let tag = client.post("/db/_changes", "{}").header("etag").unwrap().to_owned();
    assert_eq!(client.get("/db/_changes").header("etag"), Some(&*tag));
    let sent = [("Content-Type", "application/json"), ("If-None-Match", &*tag)];
    client.send("POST", "/db/_changes", &sent, b"{}").expect_status(304);
    assert_eq!(client.post("/db/_changes?feed=longpoll&since=0", "{}").header("etag"), None);
    client.put("/db/b", "{}").expect_status(201);
    client.send("POST", "/db/_changes", &sent, b"{}").expect_status(200);
}

#[test]
fn a_plus_in_a_path_is_a_space_unless_it_is_configured_not_to_be() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    const KEY: &str = "/_node/_local/_config/chttpd/decode_plus_to_space";
    assert_eq!(client.get(KEY).expect_status(200).json(), "true");
    assert_eq!(client.put("/db/a+b%2Bc", "{}").expect_status(201).json()["id"], "a b+c");
    client.put(KEY, "\"maybe\"").expect_status(400);
    client.put(KEY, "\"false\"").expect_status(200);
    assert_eq!(client.put("/db/a+b%2Bc", "{}").expect_status(201).json()["id"], "a+b+c");
    assert_eq!(client.put("/db/a+b%2Bc/x+y", "z").status, 409);
    // A `+` in a query is always a space.
    let rows = client.get("/db/_all_docs?key=%22a+b%2Bc%22").json();
    assert_eq!(rows["rows"][0]["id"], "a b+c");
    let copied = client.send("COPY", "/db/a+b+c", &[("Destination", "d+e")], b"").expect_status(201);
    assert_eq!(copied.json()["id"], "d+e");
    client.put(KEY, "\"true\"").expect_status(200);
    client.get("/db/a+b%2Bc").expect_status(200);
}

#[test]
fn more_copies_than_there_are_is_an_acceptance_of_what_is_persisted() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let json = [("Content-Type", "application/json")];
    let form = "multipart/form-data;boundary=b";
    let host = server.address.to_string();
    let referer = format!("http://{host}/");
    let rev = client.put("/db/f", "{}").rev();
    let fields = format!("--b\r\nContent-Disposition: form-data; name=\"_rev\"\r\n\r\n{rev}\r\n--b--");
    let headers = [("Content-Type", form), ("Referer", &*referer), ("Host", &*host)];
    for (w, status) in [("1", 201), ("2", 202), ("0", 201)] {
        let mut send = |method: &str, path: &str, body: &str| {
            client.send(method, &path.replace('W', w), &json, body.as_bytes())
        };
        assert_eq!(send("PUT", "/db/W-a?w=W", "{}").status, status, "w={w}");
        assert_eq!(send("POST", "/db?w=W", "{}").status, status, "w={w}");
        assert_eq!(send("PUT", "/db/_local/W?w=W", "{}").status, status, "w={w}");
        assert_eq!(send("PUT", "/db/W-att/x?w=W", "x").status, status, "w={w}");
        let rows = send("POST", "/db/_bulk_docs?w=W", "{\"docs\":[{}]}");
        assert_eq!((rows.status, rows.json()[0]["accepted"] == true), (status, status == 202), "w={w}");
        let rows = send("POST", "/db/_bulk_docs", &format!("{{\"docs\":[{{}}],\"w\":{w}}}"));
        assert_eq!(rows.status, status, "w={w} in the body");
        let rev = send("PUT", "/db/W-gone", "{}").rev();
        let deleted = send("DELETE", &format!("/db/W-gone?w=W&rev={rev}"), "");
        assert_eq!(deleted.status, if status == 201 { 200 } else { 202 }, "w={w}");
        send("GET", "/db/W-a", "").expect_status(200);
    }
    client.send("POST", "/db/f?w=3", &headers, fields.as_bytes()).expect_status(202);
    let reason = "`w` must be a number.";
    client.put("/db/x?w=x", "{}").expect_error(400, "bad_request", reason);
}

#[test]
fn a_post_may_mean_another_method_and_no_other_method_may() {
    let server = Server::start();
    let mut client = server.connect();
    let meant = |method: &'static str| [("X-HTTP-Method-Override", method)];
    client.send("POST", "/db", &meant("PUT"), b"").expect_status(201);
    client.send("POST", "/db/a", &meant("PUT"), b"{\"n\":1}").expect_status(201);
    assert_eq!(client.send("POST", "/db/a", &meant("GET"), b"").json()["n"], 1);
    assert_eq!(client.send("POST", "/db/a", &meant("HEAD"), b"").expect_status(200).json()["n"], 1);
    // Only a POST can be overridden.
    assert_eq!(client.send("GET", "/db/a", &meant("DELETE"), b"").expect_status(200).json()["n"], 1);
    client.send("PUT", "/db/b", &meant("DELETE"), b"{}").expect_status(201);
    // Method names are case-sensitive, and unknown ones are ignored.
    let reply = client.send("POST", "/_all_dbs", &meant("get"), b"");
    reply.expect_error(405, "method_not_allowed", "Only GET,HEAD allowed");
    client.send("POST", "/db", &meant("DELETE"), b"").expect_status(200);
    client.get("/db").expect_status(404);
}

#[test]
fn a_head_with_no_host_or_two_or_with_bare_line_feeds_is_400() {
    let server = Server::start();
    let host = format!("Host: {}", server.address);
    let bad = [
        "GET /_up HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET /_up HTTP/1.1\r\n{host}\r\n{host}\r\n\r\n"),
        format!("GET /_up HTTP/1.0\r\n{host}\r\n{host}\r\n\r\n"),
        format!("GET /_up HTTP/1.1\n{host}\r\n\r\n"),
        format!("GET /_up HTTP/1.1\r\n{host}\n\r\n"),
        format!("GET /_up HTTP/1.1\r\n{host}\r\n\n"),
    ];
    for head in &bad {
        let mut client = server.connect();
        // The bytes after it aren't taken for a request.
        client.write(format!("{head}GET /_up HTTP/1.1\r\n{host}\r\n\r\n").as_bytes());
        let reply = client.read("GET");
        assert_eq!((reply.status, reply.json()["error"].as_str()), (400, Some("bad_request")), "{head:?}");
        assert!(reply.header("x-couch-request-id").is_some());
        assert!(client.is_closed(), "{head:?}");
    }
    let mut client = server.connect();
    client.write(format!("\r\nGET /_up HTTP/1.1\r\n{host}\r\n\r\n").as_bytes());
    client.read("GET").expect_status(200);
    client.write(b"GET /_up HTTP/1.0\r\n\r\n");
    client.read("GET").expect_status(200);
}

#[test]
fn requests_with_bodies_are_pipelined_too() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let mut text = String::new();
    for n in 0..100 {
        let body = format!("{{\"n\":{n}}}");
        let host = server.address;
        text.push_str(&format!(
            "PUT /db/{n} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        text.push_str(&format!("GET /db/{n} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
    client.write(text.as_bytes());
    for n in 0..100 {
        client.read("PUT").expect_status(201);
        assert_eq!(client.read("GET").expect_status(200).json()["n"], n);
    }
}

fn unfolded(body: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut text).unwrap();
    text
}

#[test]
fn answers_are_compressed_where_the_server_and_the_client_want_it() {
    let gzip = [("Accept-Encoding", "gzip, deflate")];
    let plain = Server::start();
    let mut client = plain.connect();
    assert_eq!(client.send("GET", "/_node/_local/_stats", &gzip, b"").header("content-encoding"), None);

    let server = Server::with_limits(|limits| limits.compress_responses = true);
    let mut client = server.connect();
    client.create("db");
    // One compressed at once, one in chunks, and one that is streamed.
    for (id, count) in [("small", 2_000), ("large", 500_000), ("larger", 500_000)] {
        let body = format!("{{\"a\":\"{}\"}}", "abcde".repeat(count / 5));
        client.put(&format!("/db/{id}"), &body).expect_status(201);
    }
    for path in ["/db/small", "/db/large", "/db/_all_docs?include_docs=true"] {
        let as_it_is = client.get(path).expect_status(200);
        assert_eq!(as_it_is.header("content-encoding"), None);
        let reply = client.send("GET", path, &gzip, b"").expect_status(200);
        assert_eq!(reply.header("content-encoding"), Some("gzip"), "{path}");
        assert_eq!(reply.header("vary"), Some("Accept-Encoding"), "{path}");
        assert!(reply.body.len() < as_it_is.body.len() / 10, "{path}: {}", reply.body.len());
        assert_eq!(unfolded(&reply.body), as_it_is.body, "{path}");
    }
    assert_eq!(client.send("GET", "/", &gzip, b"").header("content-encoding"), None, "it isn't worth it");
    // An attachment has an encoding of its own and isn't compressed.
    let text = "x".repeat(5_000);
    client.send("PUT", "/db/b/text", &[("Content-Type", "text/plain")], text.as_bytes()).expect_status(201);
    let reply = client.send("GET", "/db/b/text", &gzip, b"").expect_status(200);
    assert_eq!(unfolded(&reply.body), text.as_bytes(), "compressed once");
}

#[test]
fn a_compressed_feed_arrives_as_it_happens() {
    let server = Server::with_limits(|limits| limits.compress_responses = true);
    let mut client = server.connect();
    client.create("db");
    let mut feed = server.connect();
    let path = "/db/_changes?feed=continuous&heartbeat=60000";
    feed.write_head("GET", path, &[("Accept-Encoding", "gzip")]);
    assert_eq!(feed.read_head().0, 200);
    let mut came = feed.read_chunk().unwrap();
    let so_far = |came: &[u8]| {
        let mut text = Vec::new();
        // The stream hasn't ended.
        assert!(flate2::read::GzDecoder::new(came).read_to_end(&mut text).is_err());
        text
    };
    assert_eq!(so_far(&came), b"\n");
    client.put("/db/a", "{}").expect_status(201);
    came.extend(feed.read_chunk().unwrap());
    assert_eq!(lines(&so_far(&came))[0]["id"], "a");
}

#[test]
fn a_request_refused_under_load_can_be_retried() {
    let server = Server::with_limits(|limits| limits.requests_in_flight_max = 1);
    let mut first = server.connect();
    first.create("db");
    first.write_head("PUT", "/db/a", &[("Content-Length", "2"), ("Expect", "100-continue")]);
    // From here on it is in progress and waits for its body.
    assert_eq!(first.read_head().0, 100);
    let mut second = server.connect();
    let refused = second.put("/db/b", &format!("{{\"a\":\"{}\"}}", "x".repeat(100_000)));
    refused.expect_error(503, "service unavailable", "Too many requests are in progress.");
    assert_eq!(refused.header("retry-after"), Some("1"));
    first.write(b"{}");
    first.read("PUT").expect_status(201);
    second.get("/db/a").expect_status(200);
    // A feed isn't in progress any more once its response has begun.
    first.write_head("GET", "/db/_changes?feed=continuous&heartbeat=60000", &[]);
    assert_eq!(first.read_head().0, 200);
    second.get("/db/a").expect_status(200);
    let path = "/_node/_local/_stats/couchdb/httpd/refused_requests/value";
    assert_eq!(second.get(path).json(), 1);
}

/// A client that speaks HTTP/2 with prior knowledge.
async fn connect(
    address: SocketAddr,
    change: impl FnOnce(&mut Builder<TokioExecutor>),
) -> (SendRequest<Full<Bytes>>, JoinHandle<()>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut builder = Builder::new(TokioExecutor::new());
    change(&mut builder);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    let ended = tokio::spawn(async move {
        connection.await.ok();
    });
    (sender, ended)
}

fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(format!("http://{address}{path}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap()
}

async fn json(response: Response<hyper::body::Incoming>) -> (StatusCode, serde_json::Value) {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

#[test]
fn http2_answers_as_http1_does() {
    let server = Server::start();
    let address = server.address;
    server.run(async {
        let (mut sender, _) = connect(address, |_| {}).await;
        let mut send = async |method: &str, path: &str, body: &str| {
            sender.send_request(request(address, method, path, body)).await.unwrap()
        };
        let made = send("PUT", "/db", "").await;
        let place = format!("http://{address}/db");
        assert_eq!((made.status().as_u16(), made.headers()["location"].to_str().unwrap()), (201, &*place));
        assert_eq!(send("PUT", "/db/a", "{\"n\":1}").await.status(), 201);
        let found = send("GET", "/db/a", "").await;
        assert!(found.headers().contains_key("x-couch-request-id"));
        assert_eq!(json(found).await.1["n"], 1);
        let (status, error) = json(send("GET", "/db/none", "").await).await;
        assert_eq!((status.as_u16(), &error["reason"]), (404, &"missing".into()));
        let head = send("HEAD", "/db", "").await;
        let length = head.headers()["content-length"].to_str().unwrap().to_owned();
        assert!(head.into_body().collect().await.unwrap().to_bytes().is_empty());
        let whole = send("GET", "/db", "").await.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(whole.len().to_string(), length);
        // A foreign host, as a page of another site would send it.
        let foreign = Request::builder().uri("http://example.org/_all_dbs").body(Full::default()).unwrap();
        assert_eq!(sender.send_request(foreign).await.unwrap().status(), 403);
    });
    // Both protocols at the same time.
    assert_eq!(server.connect().get("/db/a").json()["n"], 1);
}

#[test]
fn an_http2_connection_has_many_requests_under_way_and_large_ones() {
    let server = Server::start();
    let address = server.address;
    server.run(async {
        let (mut sender, _) = connect(address, |_| {}).await;
        let made = sender.send_request(request(address, "PUT", "/db", "")).await.unwrap();
        assert_eq!(made.status(), 201);
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(3_000_000));
        let mut tasks = Vec::new();
        for n in 0..300 {
            let mut sender = sender.clone();
            let body = if n % 100 == 0 { large.clone() } else { format!("{{\"n\":{n}}}") };
            tasks.push(tokio::spawn(async move {
                let path = format!("/db/{n}");
                sender.ready().await.unwrap();
                let put = sender.send_request(request(address, "PUT", &path, &body)).await.unwrap();
                assert_eq!(put.status(), 201, "{path}");
                let got = sender.send_request(request(address, "GET", &path, "")).await.unwrap();
                let got = got.into_body().collect().await.unwrap().to_bytes();
                assert!(got.len() > body.len(), "{path}: {}", got.len());
            }));
        }
        for task in tasks {
            tokio::time::timeout(TIMEOUT, task).await.unwrap().unwrap();
        }
    });
    assert_eq!(server.connect().get("/db").json()["doc_count"], 300);
}

#[test]
fn an_http2_client_that_takes_nothing_of_its_answer_is_cut_off() {
    let server = Server::with_limits(|limits| limits.send_timeout_ms = 100);
    let address = server.address;
    let mut client = server.connect();
    client.create("db");
    client.put("/db/a", &format!("{{\"a\":\"{}\"}}", "x".repeat(1_000_000))).expect_status(201);
    for path in ["/db/a", "/db/_changes?feed=continuous&include_docs=true"] {
        server.run(async {
            let small = |builder: &mut Builder<TokioExecutor>| {
                builder.initial_stream_window_size(1000).initial_connection_window_size(65_535);
            };
            let (mut sender, ended) = connect(address, small).await;
            let response = sender.send_request(request(address, "GET", path, "")).await.unwrap();
            assert_eq!(response.status(), 200);
            tokio::time::timeout(TIMEOUT, ended).await.expect("the server ends the connection").unwrap();
            assert!(response.into_body().collect().await.is_err(), "{path}: a part passed for the whole");
        });
    }
}

#[test]
fn a_bulk_whose_answer_has_no_memory_is_refused_before_anything_is_stored() {
    let server = Server::with_limits(|limits| limits.response_bytes_in_flight_max = 1 << 20);
    let address = server.address;
    let mut other = server.connect();
    other.create("db");
    other.put("/db/a", &format!("{{\"a\":\"{}\"}}", "x".repeat(250_000))).expect_status(201);
    let docs = vec!["{}"; 2_000].join(",");
    let bulk = format!("{{\"docs\":[{docs}]}}");
    let (status, error) = server.run(async {
        let small = |builder: &mut Builder<TokioExecutor>| {
            builder.initial_stream_window_size(1000).initial_connection_window_size(65_535);
        };
        let (mut sender, _) = connect(address, small).await;
        let _unread = sender.send_request(request(address, "GET", "/db/a", "")).await.unwrap();
        json(sender.send_request(request(address, "POST", "/db/_bulk_docs", &bulk)).await.unwrap()).await
    });
    assert_eq!(status, 503, "{error}");
    assert_eq!(other.get("/db").json()["doc_count"], 1, "it was refused and stored");
}

#[test]
fn an_http2_connection_without_requests_ends_and_one_with_a_feed_does_not() {
    let server = Server::with_limits(|limits| {
        limits.head_timeout_ms = 100;
        limits.send_timeout_ms = 100;
    });
    let address = server.address;
    server.run(async {
        let (_sender, ended) = connect(address, |_| {}).await;
        tokio::time::timeout(TIMEOUT, ended).await.expect("it does nothing").unwrap();

        let (mut sender, ended) = connect(address, |_| {}).await;
        let path = "/_db_updates?feed=continuous&heartbeat=20";
        let mut feed = sender.send_request(request(address, "GET", path, "")).await.unwrap().into_body();
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < Duration::from_millis(600) {
            let frame = tokio::time::timeout(TIMEOUT, feed.frame()).await.unwrap();
            assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "\n");
        }
        assert!(!ended.is_finished());
        drop(feed);
        tokio::time::timeout(TIMEOUT, ended).await.expect("it does nothing any more").unwrap();
    });
}

#[test]
fn what_begins_like_http2_and_does_not_go_on_is_cut_off() {
    let server = Server::with_limits(|limits| {
        limits.head_timeout_ms = 50;
        limits.send_timeout_ms = 50;
    });
    for begun in ["P", "PRI * HT", "PRI * HTTP/2.0\r\n\r\nSM\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""] {
        let mut client = server.connect();
        client.write(begun.as_bytes());
        assert!(client.is_closed(), "{begun:?}");
    }
}

#[test]
fn an_http2_head_past_its_limits_is_refused() {
    let server = Server::with_limits(|limits| limits.headers_max = 20);
    let address = server.address;
    server.run(async {
        let (mut sender, _) = connect(address, |_| {}).await;
        let mut many = request(address, "GET", "/", "");
        for n in 0..30 {
            let name = hyper::header::HeaderName::from_bytes(format!("x-{n}").as_bytes()).unwrap();
            many.headers_mut().insert(name, hyper::header::HeaderValue::from_static("x"));
        }
        assert_eq!(sender.send_request(many).await.unwrap().status(), 431);
        let ordinary = sender.send_request(request(address, "GET", "/", "")).await.unwrap();
        assert_eq!(ordinary.status(), 200);
    });
}

#[test]
fn a_stop_ends_http2_connections_once_they_are_answered() {
    let mut server = Server::start();
    let address = server.address;
    let (mut sender, ended) = server.run(connect(address, |_| {}));
    let feed = server.run(async {
        let path = "/_db_updates?feed=continuous&heartbeat=60000";
        sender.send_request(request(address, "GET", path, "")).await.unwrap()
    });
    server.begin_stop();
    let text = server.run(async {
        let text = tokio::time::timeout(TIMEOUT, feed.into_body().collect()).await.unwrap();
        tokio::time::timeout(TIMEOUT, ended).await.unwrap().unwrap();
        text.unwrap().to_bytes()
    });
    assert!(lines(&text).last().unwrap()["last_seq"].is_string());
    server.finish_stop().unwrap();
}

/// Heads that end in the segment after the request before them, bodies of quotes, and targets with quotes.
#[test]
fn quotes_are_encoded_in_targets_and_nowhere_else_however_requests_come() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let host = server.address;
    let head = |first: &str, more: &str| format!("{first} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    let get = head("GET /db/_all_docs?startkey=\"a\"&endkey=\"b\"", "");
    for (n, body) in ["a\"b\"c", "\"", "\"\r\n\r\nGET /\" HTTP/1.1\r\n\r\n"].iter().enumerate() {
        let length = format!("Content-Length: {}\r\n", body.len());
        let put = head(&format!("PUT /db/d{n}/att?x=\"y\""), &length);
        let read = head(&format!("GET /db/d{n}/att?x=\"y\""), "If-None-Match: \"x\"\r\n");
        let whole = [get.as_str(), &put, body, &get, &read].concat();
        // The body alone in a segment, a head split in its middle, everything at once.
        let cuts =
            [vec![get.len() + put.len(), get.len() + put.len() + body.len()], vec![get.len() + 8], vec![]];
        for cuts in cuts {
            let rev = tag(&mut client, n);
            client.delete(&format!("/db/d{n}?rev={rev}"));
            let mut start = 0;
            for cut in cuts.into_iter().chain([whole.len()]) {
                client.write(&whole.as_bytes()[start..cut]);
                std::thread::sleep(Duration::from_millis(30));
                start = cut;
            }
            client.read("GET").expect_status(200);
            client.read("PUT").expect_status(201);
            client.read("GET").expect_status(200);
            let found = client.read("GET").expect_status(200);
            assert_eq!(std::str::from_utf8(&found.body).unwrap(), *body);
        }
    }
    // A chunked body has an end, too.
    client.write(head("PUT /db/chunked", "Transfer-Encoding: chunked\r\n").as_bytes());
    client.write(b"9\r\n{\"a\":\"b\"}\r\n0\r\n\r\n");
    client.read("PUT").expect_status(201);
    assert_eq!(client.get("/db/chunked?x=\"y\"").json()["a"], "b");
}

fn tag(client: &mut Client, n: usize) -> String {
    let reply = client.head(&format!("/db/d{n}"));
    reply.header("etag").map(|tag| tag.trim_matches('"').to_owned()).unwrap_or_default()
}

#[test]
fn the_content_length_of_a_compressed_response_is_correct() {
    let server = Server::with_limits(|limits| limits.compress_responses = true);
    let mut client = server.connect();
    client.create("db");
    let document =
        format!("{{\"a\":\"{}\",\"_attachments\":{{\"x\":{{\"data\":\"eHg=\"}}}}}}", "x".repeat(5_000));
    let rev = client.put("/db/a", &document).rev();
    let path = format!("/db/a?atts_since=%5B%22{rev}%22%5D");
    let headers = [("Accept-Encoding", "gzip"), ("Accept", "multipart/related, application/json")];
    let reply = client.send("GET", &path, &headers, b"").expect_status(200);
    let text = match reply.header("content-encoding") {
        Some(_) => unfolded(&reply.body),
        None => reply.body.clone(),
    };
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((&json["_rev"], &json["_attachments"]["x"]["stub"]), (&rev.into(), &true.into()));
    let reply = client.send("GET", &path, &[("Accept-Encoding", "gzip")], b"").expect_status(200);
    assert_eq!(reply.header("content-encoding"), Some("gzip"), "{reply:?}");
    client.get("/db").expect_status(200);
}
