//! Goal: connections never use the descriptors that databases need for new segments and for syncing
//! directories. Method: the built binary with few descriptors and more idle connections than descriptors,
//! while others write many segments.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DESCRIPTOR_COUNT: u32 = 192;
const IDLE_COUNT: usize = 300;

/// A connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(address: &str) -> Client {
        Client(BufReader::new(TcpStream::connect(address).unwrap()))
    }

    fn put(&mut self, path: &str, body: &str) -> u16 {
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic cm9vdDpzZWNyZXQ=\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.get_mut().write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        let (mut status, mut length, mut line) = (None, 0, String::new());
        while line != "\r\n" {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the server closed the connection");
            status = status.or_else(|| line.split(' ').nth(1).map(|status| status.parse().unwrap()));
            let lower = line.to_ascii_lowercase();
            length =
                lower.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().unwrap());
        }
        self.0.read_exact(&mut vec![0; length]).unwrap();
        status.unwrap()
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn connections_do_not_exhaust_the_descriptors_for_new_segments() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {DESCRIPTOR_COUNT} && exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_settee"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "root:secret", "--data-dir"]);
    command.arg(directory.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server(command.spawn().unwrap());
    let lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let address = lines
        .map(|line| line.unwrap())
        .find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_owned()))
        .expect("the server prints its address");

    let mut writer = Client::new(&address);
    assert_eq!(writer.put("/db", ""), 201);
    assert_eq!(writer.put("/db/first", "{}"), 201);
    // Connecting fails once the listen queue is full too.
    let wait = Duration::from_millis(100);
    let connect = |_| TcpStream::connect_timeout(&address.parse().unwrap(), wait).ok();
    let _idle: Vec<_> = (0..IDLE_COUNT).map_while(connect).collect();
    for number in 0..40_u64 {
        // Random text, so that the documents fill several segments.
        let mut state = number + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + ((state >> 33) % 26) as u8)
        };
        let body = format!("{{\"text\":\"{}\"}}", (0..60_000).map(|_| next()).collect::<String>());
        // A new connection for each document, since the server closes idle ones for others.
        let mut writer = Client::new(&address);
        assert_eq!(writer.put(&format!("/db/{number}"), &body), 201, "document {number}");
    }
}
