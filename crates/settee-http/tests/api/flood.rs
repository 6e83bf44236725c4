//! Goal: an unauthenticated client takes no resource that others need, and no single request takes all.
//! Method: hold half-sent requests open, then send requests as another client.

use settee_http::{Admin, ServerOptions};

use crate::client::{Client, Server};

/// `ann:secret`.
const AUTHORIZATION: (&str, &str) = ("Authorization", "Basic YW5uOnNlY3JldA==");

fn with_admin(change: impl FnOnce(&mut settee_http::Limits)) -> Server {
    let mut options =
        ServerOptions { admin: Some(Admin::parse("ann:secret").unwrap()), ..ServerOptions::default() };
    change(&mut options.limits);
    Server::start_with(options)
}

/// Begins a login whose body never arrives, and returns once it is in progress.
fn begin_login(server: &Server) -> Client {
    let mut client = server.connect();
    client.write_head("POST", "/_session", &[("Content-Length", "100"), ("Expect", "100-continue")]);
    assert_eq!(client.read_head().0, 100);
    client
}

#[test]
fn a_body_takes_memory_as_it_arrives_and_not_as_it_is_declared() {
    let server = Server::with_limits(|limits| {
        limits.request_bytes_max = 100_000;
        limits.request_bytes_in_flight_max = 200_000;
    });
    let mut client = server.connect();
    client.create("db");
    let mut slow: Vec<Client> = Vec::new();
    for n in 0..8 {
        let mut other = server.connect();
        let length = [("Content-Length", "100000"), ("Expect", "100-continue")];
        match n % 2 {
            0 => other.write_head("PUT", &format!("/db/{n}"), &length),
            _ => other.write_head("PUT", &format!("/db/{n}/att"), &length),
        }
        assert_eq!(other.read_head().0, 100);
        other.write(b"{\"a\":");
        slow.push(other);
    }
    for n in 0..4 {
        let document = format!("{{\"a\":\"{}\"}}", "x".repeat(90_000));
        client.put(&format!("/db/quick{n}"), &document).expect_status(201);
    }
    assert!(!slow.iter_mut().any(Client::has_answer), "one of them made way");
}

#[test]
fn bodies_that_fill_the_memory_are_all_stored_one_after_the_other() {
    let server = Server::with_limits(|limits| {
        limits.request_bytes_max = 1_000_000;
        limits.request_bytes_in_flight_max = 2_000_000;
    });
    let mut client = server.connect();
    client.create("db");
    let document = format!("{{\"a\":\"{}\"}}", "x".repeat(900_000));
    let (first, rest) = document.split_at(400_000);
    let length = document.len().to_string();
    // Each gets half of what it needs, as far as there is memory. None may wait in a circle.
    let mut halves: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    for (n, half) in halves.iter_mut().enumerate() {
        half.write_head("PUT", &format!("/db/{n}"), &[("Content-Length", &length)]);
        half.write(first.as_bytes());
    }
    client.put("/db/small", "{}").expect_status(201);
    let sent: Vec<_> = halves
        .into_iter()
        .map(|mut half| {
            let rest = rest.to_owned();
            std::thread::spawn(move || {
                half.write(rest.as_bytes());
                half.read("PUT").expect_status(201);
            })
        })
        .collect();
    for sent in sent {
        sent.join().unwrap();
    }
    assert_eq!(client.get("/db").json()["doc_count"], 9);
}

#[test]
fn unauthenticated_requests_do_not_count_against_the_limit() {
    let server = with_admin(|limits| limits.requests_in_flight_max = 1);
    let _logins = [begin_login(&server), begin_login(&server)];
    let mut client = server.connect();
    client.send("GET", "/_all_dbs", &[AUTHORIZATION], b"").expect_status(200);
    // `_up` answers under any load.
    let mut busy = server.connect();
    let declared = [AUTHORIZATION, ("Content-Length", "100"), ("Expect", "100-continue")];
    busy.write_head("PUT", "/_node/_local/_config/log/level", &declared);
    assert_eq!(busy.read_head().0, 100);
    client.send("GET", "/_all_dbs", &[AUTHORIZATION], b"").expect_status(503);
    client.get("/_up").expect_status(200);
}

#[test]
fn a_body_before_authentication_is_small_however_it_comes() {
    let server = with_admin(|_| {});
    let mut client = server.connect();
    let too_large = "the request entity is too large";
    let large = format!("name=ann&password={}", "x".repeat(20_000));
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    client.send("POST", "/_session", &[form], large.as_bytes()).expect_error(413, "too_large", too_large);
    client.write_head("POST", "/_session", &[form, ("Transfer-Encoding", "chunked")]);
    client.write(format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len()).as_bytes());
    client.read("POST").expect_error(413, "too_large", too_large);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &vec![b'x'; 4 << 20]).unwrap();
    let folded = encoder.finish().unwrap();
    let reply = client.send("POST", "/_session", &[form, ("Content-Encoding", "gzip")], &folded);
    reply.expect_error(413, "too_large", too_large);
    let reply = client.send("POST", "/_session", &[form], b"name=ann&password=secret");
    reply.expect_status(200);
}

/// Sends one byte at a time until the server responds.
fn trickle(client: &mut Client) -> u16 {
    for _ in 0..1_000 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        if !client.try_write(b" ") || client.has_answer() {
            return client.read("POST").status;
        }
    }
    panic!("no answer after 1,000 bytes");
}

#[test]
fn a_body_before_authentication_has_one_deadline_for_all_of_it() {
    let server = with_admin(|limits| limits.body_timeout_ms = 300);
    let mut client = server.connect();
    client.write_head("POST", "/_session", &[("Content-Length", "10000")]);
    assert_eq!(trickle(&mut client), 408);
    // A refused request's body isn't read any longer, either.
    let mut client = server.connect();
    client.write_head("POST", "/db", &[("Content-Length", "10000")]);
    assert_eq!(trickle(&mut client), 401);
}

#[test]
fn a_body_that_comes_too_slowly_is_given_up_and_one_that_pauses_is_not() {
    let server = Server::with_limits(|limits| {
        limits.body_timeout_ms = 300;
        limits.body_bytes_per_second_min = 1_000_000;
    });
    let mut client = server.connect();
    client.create("db");
    client.write_head("POST", "/db", &[("Content-Length", "10000"), ("Content-Type", "application/json")]);
    assert_eq!(trickle(&mut client), 408);
    let mut client = server.connect();
    client.write_head("PUT", "/db/a", &[("Content-Length", "2")]);
    client.write(b"{");
    std::thread::sleep(std::time::Duration::from_millis(50));
    client.write(b"}");
    client.read("PUT").expect_status(201);
}

/// Sends requests on a connection until it is closed; returns their number.
fn requests_until_closed(client: &mut Client) -> usize {
    (0..3).take_while(|_| client.try_get("/_up")).count()
}

#[test]
fn the_longest_idle_connections_are_closed_and_active_ones_stay() {
    let server = Server::with_limits(|limits| limits.connections_max = 4);
    let mut feed = server.connect();
    feed.put("/db", "").expect_status(201);
    feed.write_head("GET", "/db/_changes?feed=continuous&heartbeat=60000", &[]);
    assert_eq!(feed.read_head().0, 200);
    assert_eq!(feed.read_chunk().unwrap(), b"\n");
    // One with half a head, one that sent nothing, one that was answered.
    let mut half = server.connect();
    half.write(b"GET / HTTP/1.1\r\nHost: loc");
    let mut silent = server.connect();
    let mut used = server.connect();
    used.get("/_up").expect_status(200);
    let mut first = server.connect();
    first.get("/_up").expect_status(200);
    assert!(half.is_closed(), "it is idle longest");
    let mut second = server.connect();
    second.get("/_up").expect_status(200);
    assert!(silent.is_closed(), "and then the next");
    assert_eq!(requests_until_closed(&mut used), 3);
    first.put("/db/a", "{}").expect_status(201);
    let change = feed.read_chunk().unwrap();
    assert!(String::from_utf8(change).unwrap().contains("\"id\":\"a\""), "the feed goes on");
    let metrics = first.get("/_node/_local/_prometheus");
    assert!(metrics.text().contains("settee_httpd_connections_closed_idle_total 2\n"), "{}", metrics.text());
}

#[test]
fn connections_are_limited_per_address_unless_it_is_trusted() {
    let limit = |options: &mut ServerOptions| options.limits.connections_per_address_max = 2;
    let mut options = ServerOptions::default();
    limit(&mut options);
    let server = Server::start_with(options.clone());
    let mut many: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    many.iter_mut().for_each(|client| assert_eq!(requests_until_closed(client), 3));

    options.trusted_proxies = "".parse().unwrap();
    let server = Server::start_with(options);
    let mut feeds = [server.connect(), server.connect()];
    for feed in &mut feeds {
        feed.write_head("GET", "/_db_updates?feed=continuous&heartbeat=60000", &[]);
        assert_eq!(feed.read_head().0, 200);
    }
    let mut third = server.connect();
    assert!(third.is_closed(), "two have a request under way");
    let [first, _second] = feeds;
    drop(first);
    // The server notices the end of a connection with a delay.
    let mut again = server.connect();
    while !again.try_get("/_up") {
        again = server.connect();
    }
}
