//! Goal: a server that can't start reports the reason, exits with code 1 and changes nothing; a server that
//! starts reports its configuration. Method: the built binary, on directories, files and data that it can't
//! use.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// User id of a user other than root.
const NOBODY: u32 = 65534;

fn serve_with(program: &Path, data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["serve", "--data-dir"]).arg(data).args(arguments);
    if !arguments.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("SETTEE_")) {
            command.env_remove(name);
        }
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn serve(data: &Path, arguments: &[&str]) -> Command {
    serve_with(Path::new(env!("CARGO_BIN_EXE_settee")), data, arguments)
}

/// Reads the lines that a server prints at start, up to the example command.
fn start_text(server: &mut Child) -> String {
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut text = String::new();
    for line in lines {
        text += &line;
        text.push('\n');
        if line.starts_with("  curl") {
            return text;
        }
    }
    panic!("the server doesn't start: {text}");
}

/// Sends a request to the server that printed `start_text`. Returns the status.
fn status(start_text: &str, request: &str, body: &str) -> u16 {
    let line = start_text.lines().find_map(|line| line.strip_prefix("listening on http://")).unwrap();
    let address = line.trim_end_matches('/');
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head = "Connection: close\r\nContent-Type: application/json";
    let length = body.len();
    write!(stream, "{request}\r\nHost: {address}\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response[9..12].parse().unwrap()
}

/// Runs a server that fails to start. Returns the last line of its error output.
fn start_error(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty(), "the server started: {}", String::from_utf8_lossy(&output.stdout));
    assert!(!text.contains("panicked"), "{text}");
    text.lines().last().unwrap_or_default().to_owned()
}

/// A running server that has printed its first line.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("Settee"), "{line}");
        Running(child)
    }

    /// Kills the server. Returns its error output.
    fn kill(mut self) -> String {
        self.0.kill().unwrap();
        self.log()
    }

    /// Stops the server gracefully. Returns its error output.
    fn stop(mut self) -> String {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.log()
    }

    fn log(&mut self) -> String {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.0.stderr.take().unwrap(), &mut text).unwrap();
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_file_instead_of_the_data_directory_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "not mine").unwrap();
    for data in [file.clone(), file.join("below")] {
        let error = start_error(serve(&data, &[]));
        assert!(error.contains(name(&data)) && error.contains("Not a directory"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "not mine");
}

#[test]
fn a_data_directory_that_cannot_be_created_is_reported() {
    let error = start_error(serve(Path::new("/proc/settee-data"), &[]));
    assert!(error.contains("cannot open the data in /proc/settee-data"), "{error}");
}

#[test]
fn a_data_directory_without_permission_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(directory.path(), 0o755);
    // A copy, since other users may have no access to the build directory.
    let program = directory.path().join("settee");
    std::fs::copy(env!("CARGO_BIN_EXE_settee"), &program).unwrap();
    let data = directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    open(&data, 0o500);
    for data in [data.clone(), data.join("below")] {
        let mut command = serve_with(&program, &data, &[]);
        // Permissions don't apply to root.
        if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(directory.path()).unwrap()) == 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
        let error = start_error(command);
        assert!(error.contains(name(&data)) && error.contains("Permission denied"), "{error}");
    }
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
    open(&data, 0o700);
}

#[test]
fn a_data_directory_that_is_in_use_is_reported() {
    let data = tempfile::tempdir().unwrap();
    let first = Running::start(serve(data.path(), &[]));
    let error = start_error(serve(data.path(), &[]));
    assert!(error.contains(name(data.path())) && error.contains("in use by another process"), "{error}");
    first.kill();
    Running::start(serve(data.path(), &[])).kill();
}

#[test]
fn a_damaged_catalogue_is_reported_and_left_unchanged() {
    let data = tempfile::tempdir().unwrap();
    Running::start(serve(data.path(), &[])).kill();
    let segment = data.path().join("catalogue/0000000001.log");
    // A valid header of a future format: the magic number, version 99, and the checksum.
    let mut header = [0; 512];
    header[..8].copy_from_slice(b"SETTEELG");
    header[8] = 99;
    header[12] = 1;
    header[72..80].copy_from_slice(&CHECKSUM_OF_99.to_le_bytes());
    std::fs::create_dir_all(segment.parent().unwrap()).unwrap();
    std::fs::write(&segment, header).unwrap();
    // Opening the catalogue locks its directory.
    std::fs::write(data.path().join("catalogue/lock"), "").unwrap();
    let before = files(data.path());
    let error = start_error(serve(data.path(), &[]));
    let words = "has format 99; this version reads";
    assert!(error.contains(name(&segment)) && error.contains(words), "{error}");
    assert!(files(data.path()) == before, "changed a damaged catalogue");

    std::fs::remove_file(&segment).unwrap();
    std::fs::create_dir(&segment).unwrap();
    let error = start_error(serve(data.path(), &[]));
    assert!(error.contains(name(&segment)), "{error}");
}

/// XXH3-64 of that header's first 72 bytes.
const CHECKSUM_OF_99: u64 = 0x250b_a85d_9680_58c9;

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => drop(found.insert(entry.path(), std::fs::read(entry.path()).unwrap())),
        }
    }
    found
}

#[test]
fn a_damaged_identity_is_reported() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("server-uuid"), "no identity").unwrap();
    let error = start_error(serve(data.path(), &[]));
    assert!(error.contains("server-uuid is damaged"), "{error}");
}

#[test]
fn an_invalid_setting_is_reported_before_anything_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let file = directory.path().join("settee.toml");
    std::fs::write(&file, "[io]\nbuffer_pool_bytes_max = 5\n").unwrap();
    let error = start_error(serve(&data, &["--config", name(&file)]));
    assert!(error.contains("`buffer_pool_bytes_max` is 5"), "{error}");
    let error = start_error(serve(&data, &["--config", name(&directory.path().join("none"))]));
    assert!(error.contains("none: No such file"), "{error}");
    assert!(!data.exists());
}

#[test]
fn an_unknown_level_of_the_log_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let mut command = serve(data.path(), &[]);
    command.env("SETTEE_LOG", "warning");
    let error = start_error(command);
    assert!(
        error.contains("SETTEE_LOG") && error.contains("\"warning\" is not one of the levels off,"),
        "{error}"
    );
    let error = start_error(serve(data.path(), &["--log-file", name(&data.path().join("none/log"))]));
    assert!(error.contains("cannot open `log_file`") && error.contains("none/log: No such file"), "{error}");
}

#[test]
fn the_first_start_creates_an_administrator_and_prints_it_once() {
    let data = tempfile::tempdir().unwrap();
    let start = || {
        let mut server = serve(data.path(), &[]).spawn().unwrap();
        let text = start_text(&mut server);
        (Running(server), text)
    };
    let (first, text) = start();
    let file = data.path().join("admin");
    let kept = std::fs::read_to_string(&file).unwrap();
    let (name, password) = kept.trim_end().split_once(':').unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(text.contains(&format!("curl -u {name}:{password} ")), "{text}");
    let session = format!("{{\"name\":\"{name}\",\"password\":\"{password}\"}}");
    assert_eq!(status(&text, "GET /_all_dbs HTTP/1.1", ""), 401);
    assert_eq!(status(&text, "POST /_session HTTP/1.1", &session), 200);
    assert!(!first.kill().contains(password), "the log shows the password");

    let (second, text) = start();
    assert!(text.contains(name) && !text.contains(password), "{text}");
    assert_eq!(status(&text, "POST /_session HTTP/1.1", &session), 200);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), kept);
    second.kill();

    std::fs::write(&file, "nonsense\n").unwrap();
    let error = start_error(serve(data.path(), &[]));
    assert!(error.contains(file.to_str().unwrap()) && error.contains("NAME:PASSWORD"), "{error}");
}

#[test]
fn no_admin_is_required_to_run_without_an_administrator_and_each_start_reports_it() {
    let data = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut server = serve(data.path(), &["--no-admin"]).spawn().unwrap();
        let text = start_text(&mut server);
        assert!(text.contains("every caller on this machine has all rights"), "{text}");
        assert_eq!(status(&text, "GET /_all_dbs HTTP/1.1", ""), 200);
        assert_eq!(status(&text, "GET /_all_dbs HTTP/1.1\r\nVia: 1.1 proxy", ""), 403);
        let log = Running(server).stop();
        assert!(log.contains("every caller on this machine has all rights"), "{log}");
    }
    assert!(!data.path().join("admin").exists());
    let error = start_error(serve(data.path(), &["--no-admin", "--listen", "0.0.0.0:0"]));
    assert!(error.contains("without an administrator"), "{error}");
    let mut both = serve(data.path(), &["--no-admin"]);
    both.env("SETTEE_ADMIN", "ann:secret");
    let error = start_error(both);
    assert!(error.contains("an administrator or `no_admin`"), "{error}");
}

#[test]
fn the_log_contains_the_effective_settings_at_start() {
    let data = tempfile::tempdir().unwrap();
    let arguments =
        ["--io-engine", "threads", "--direct-io", "true", "--log-format", "json", "--stop-timeout-ms", "7"];
    let mut command = serve(data.path(), &arguments);
    command.env("SETTEE_LOG", "debug");
    let text = Running::start(command).stop();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fields = lines
        .iter()
        .map(|line| &line["fields"])
        .find(|fields| fields["message"] == "settings in force")
        .unwrap_or_else(|| panic!("{text}"));
    assert_eq!((fields["engine"].as_str(), fields["direct_io"].as_bool()), (Some("threads"), Some(true)));
    let limits = fields["limits"].as_str().unwrap();
    for limit in ["stop_timeout_ms=7", "garbage_percent_max=30", "buffer_pool_bytes_max=67108864"] {
        assert!(limits.split(' ').any(|shown| shown == limit), "{limit}: {limits}");
    }
}
