//! The server as a whole: the addresses it may listen on, and its shutdown.

use std::net::TcpStream;

use settee_http::{Admin, ServeError, ServerOptions, check_listener};

use crate::client::{Client, Server, lines};

#[test]
fn only_loopback_is_served_without_an_administrator() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let anywhere = runtime.block_on(tokio::net::TcpListener::bind("0.0.0.0:0")).unwrap();
    let open = ServerOptions::default();
    let refused = check_listener(&anywhere, &open);
    assert!(matches!(refused, Err(ServeError::NoAdministrator(_))), "{refused:?}");
    let admin = Some(Admin::parse("ann:secret").unwrap());
    let closed = ServerOptions { admin, ..ServerOptions::default() };
    assert!(check_listener(&anywhere, &closed).is_ok());
    let loopback = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    assert!(check_listener(&loopback, &open).is_ok());
}

#[test]
fn a_stop_ends_feeds_and_idle_connections_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start_in(directory.path(), ServerOptions::default());
    let mut idle = server.connect();
    idle.create("db");
    let mut feed = server.connect();
    feed.write_head("GET", "/db/_changes?feed=continuous&heartbeat=60000", &[]);
    assert_eq!(feed.read_head().0, 200);
    assert_eq!(feed.read_chunk().unwrap(), b"\n");
    idle.put("/db/a?batch=ok", "{\"n\":1}").expect_status(202);

    server.begin_stop();
    let mut text = Vec::new();
    while let Some(chunk) = feed.read_chunk() {
        text.extend_from_slice(&chunk);
    }
    assert!(lines(&text).last().unwrap()["last_seq"].is_string());
    assert!(idle.is_closed());
    server.finish_stop().unwrap();
    assert!(TcpStream::connect(server.address).is_err());
    drop(server);

    let again = Server::start_in(directory.path(), ServerOptions::default());
    assert_eq!(again.connect().get("/db/a").expect_status(200).json()["n"], 1);
}

#[test]
fn a_request_in_flight_is_answered_before_the_server_ends() {
    let mut server = Server::start();
    let mut client = server.connect();
    client.create("db");
    client.write_head("PUT", "/db/a", &[("Content-Length", "2"), ("Expect", "100-continue")]);
    // From here on the server waits for the body: the request is in flight.
    assert_eq!(client.read_head().0, 100);
    server.begin_stop();
    client.write(b"{}");
    client.read("PUT").expect_status(201);
    assert!(client.is_closed());
    server.finish_stop().unwrap();
}

#[test]
fn a_request_that_does_not_end_is_cut_off_at_the_stop() {
    let mut server = Server::with_limits(|limits| limits.stop_timeout_ms = 50);
    let mut client = server.connect();
    client.create("db");
    client.write_head("PUT", "/db/a", &[("Content-Length", "2"), ("Expect", "100-continue")]);
    assert_eq!(client.read_head().0, 100);
    server.begin_stop();
    server.finish_stop().unwrap();
    assert!(client.is_closed());
}

#[test]
fn a_connection_serves_many_requests_and_pipelines_them() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    for n in 0..50 {
        client.write_head("GET", &format!("/db/missing{n}"), &[]);
    }
    for _ in 0..50 {
        client.read("GET").expect_error(404, "not_found", "missing");
    }
}

#[test]
fn what_is_no_http_does_not_disturb_others() {
    let server = Server::start();
    let mut other = server.connect();
    other.create("db");
    for junk in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "get / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ] {
        let mut client = Client::connect(server.address);
        client.write(junk.as_bytes());
        assert!(client.is_closed(), "{junk:?}");
    }
    other.get("/db").expect_status(200);
}

#[test]
fn a_subscriber_that_disconnects_releases_its_database() {
    let server = Server::start();
    let mut client = server.connect();
    client.create("db");
    let mut feed = server.connect();
    feed.write_head("GET", "/db/_changes?feed=continuous&heartbeat=60000", &[]);
    assert_eq!(feed.read_head().0, 200);
    let database = server.run(server.databases.get("db")).unwrap();
    drop(feed);
    // The feed's task holds a reference until it notices that its client is gone.
    server.run(async {
        while std::sync::Arc::strong_count(&database) > 2 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    assert_eq!(std::sync::Arc::strong_count(&database), 2);
}
