//! Runs the built binary without inherited `SETTEE_*` variables and with umask 022.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The administrator of every [`Server`].
pub(crate) const ADMIN: &str = "ann:sesame";

/// Value of the `Authorization` header for [`ADMIN`].
pub(crate) const AUTHORIZATION: &str = "Basic YW5uOnNlc2FtZQ==";

/// A command that runs `settee` with these arguments and umask 022.
pub(crate) fn settee(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 022 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_settee")]).args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("SETTEE_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command with `input` on its standard input.
pub(crate) fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The write fails if the command refuses its arguments and exits.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a command that must succeed. Returns its standard output and error output.
pub(crate) fn ok(arguments: &[&str], input: &[u8]) -> (String, String) {
    let output = run(settee(arguments), input);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
}

/// Runs a command that must fail. Returns its exit code and error output.
pub(crate) fn fails(arguments: &[&str], input: &[u8]) -> (i32, String) {
    let output = run(settee(arguments), input);
    assert!(!output.status.success(), "{arguments:?}: {}", text(&output.stdout));
    (output.status.code().unwrap(), text(&output.stderr).to_owned())
}

pub(crate) fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server on a free port, with [`ADMIN`] as administrator.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(data: &Path) -> Server {
        let mut child = settee(&["serve", "--listen", "127.0.0.1:0", "--data-dir", name(data)])
            .env("SETTEE_ADMIN", ADMIN)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
        Server { child, url: url.expect("the server prints its address").trim_end_matches('/').to_owned() }
    }

    /// The URL including the administrator.
    pub(crate) fn admin_url(&self) -> String {
        self.url.replacen("://", &format!("://{ADMIN}@"), 1)
    }

    /// Sends a request as the administrator. Returns the response's status and body.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: {AUTHORIZATION}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    /// Sends a request that must succeed. Returns the response's body.
    pub(crate) fn send_ok(&self, method: &str, path: &str, body: &str) -> String {
        let (status, response) = self.send(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {response}");
        response
    }

    pub(crate) fn stop(mut self) {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
