//! Goal: `settee config` prints the effective settings of `settee serve`, or fails with the same message; it
//! converts CouchDB's files into a settings file that mentions every key. Method: the built binary with
//! flags, variables and files, and CouchDB's files as documented.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn settee(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_settee"));
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("SETTEE_")) {
            command.env_remove(name);
        }
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn done(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

fn json(command: Command) -> Value {
    serde_json::from_slice(&done(command).stdout).unwrap()
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The values by table and name.
fn values(shown: &Value) -> Vec<(String, Value)> {
    let mut values = Vec::new();
    for (name, member) in shown["settings"].as_object().unwrap() {
        match member.get("source") {
            Some(_) => values.push((name.clone(), member["value"].clone())),
            None => {
                let table = member.as_object().unwrap().iter();
                values.extend(table.map(|(key, member)| (format!("{name}.{key}"), member["value"].clone())));
            }
        }
    }
    values
}

/// The path of a sample file of CouchDB.
fn couchdb(file: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/couchdb");
    name(&directory.join(file)).to_owned()
}

#[test]
fn each_value_is_printed_with_its_flag_variable_or_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settee.toml");
    std::fs::write(
        &file,
        "[limits]\nrequests_in_flight_max = 5\nhead_timeout_ms = 50\nstop_timeout_ms = 9\n",
    )
    .unwrap();
    std::fs::write(directory.path().join("config.toml"), "[chttpd]\nchanges_timeout = \"7\"\n").unwrap();
    let command = || {
        let data = name(directory.path());
        let mut command =
            settee(&["config", "--data-dir", data, "--requests-in-flight-max", "6", "--config", name(&file)]);
        command
            .env("SETTEE_HEAD_TIMEOUT_MS", "60")
            .env("SETTEE_REQUESTS_IN_FLIGHT_MAX", "8")
            .env("SETTEE_ADMIN", "ann:hidden");
        command
    };
    let printed = text(&done(command()).stdout);
    for (begin, end) in [
        ("requests_in_flight_max = 6 ", "# flag --requests-in-flight-max"),
        ("head_timeout_ms = 60 ", "# variable SETTEE_HEAD_TIMEOUT_MS"),
        ("stop_timeout_ms = 9 ", &format!("# file {}", name(&file))),
        ("connections_max = 4096 ", "# default"),
        (
            "#admin = \"ann:****\" ",
            "# variable SETTEE_ADMIN; the password isn't printed and has to be set again",
        ),
    ] {
        let matches = |line: &&str| line.starts_with(begin) && line.ends_with(end);
        assert!(printed.lines().any(|line| matches(&line)), "{begin}… {end}: {printed}");
    }
    assert!(printed.contains("changes_timeout_ms = 7 ") && !printed.contains("hidden"), "{printed}");
    let mut as_json = command();
    as_json.arg("--json");
    let shown = json(as_json);
    assert_eq!(shown["settings"]["limits"]["head_timeout_ms"]["source"], "variable");
    assert_eq!(shown["settings"]["limits"]["changes_timeout_ms"]["where"]["key"], "chttpd/changes_timeout");
    assert!(!shown.to_string().contains("hidden"), "{shown}");
}

#[test]
fn the_output_is_a_file_with_the_same_settings() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("printed.toml");
    let data = name(directory.path());
    let given =
        ["--data-dir", data, "--requests-in-flight-max", "6", "--io-threads", "3", "--listen", "[::1]:0"];
    let first = json(settee(&[&["config", "--json"], &given[..]].concat()));
    let printed = done(settee(&[&["config"], &given[..]].concat())).stdout;
    std::fs::write(&file, &printed).unwrap();
    let again = json(settee(&["config", "--json", "--config", name(&file)]));
    assert_eq!(values(&first), values(&again));
    let limits = again["settings"]["limits"].as_object().unwrap();
    assert!(limits.values().all(|limit| limit["source"] == "file"), "{again}");
}

#[test]
fn invalid_settings_get_the_same_message_from_config_and_serve() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settee.toml");
    let none = directory.path().join("none.toml");
    for (written, words) in [
        ("[limits]\nmax_fun = 1", "line 2: unknown key `max_fun` in [limits]"),
        (
            "[store]\n\nrequests_in_flight_max = 1",
            "line 3: unknown key `requests_in_flight_max` in [store]; it belongs in [limits]",
        ),
        (
            "requests_in_flight_max = 1",
            "line 1: unknown key `requests_in_flight_max` before the first table; it belongs in [limits]",
        ),
        (
            "limits = { listen = \"x\" }",
            "unknown key `listen` in [limits]; it belongs before the first table",
        ),
        ("[limitz]\nrequests_in_flight_max = 1", "line 1: unknown key `limitz`"),
        (
            "[limits]\nrequests_in_flight_max = \"many\"",
            "line 2: `requests_in_flight_max` in [limits]: invalid type",
        ),
        ("[limits]\nmax_uuids = 1", "line 2: `max_uuids` isn't a setting any more"),
        ("[limits]\nrequests_in_flight_max = 0", "the limit `requests_in_flight_max` must be at least 1"),
        ("[limits]\nrequests_in_flight_max = 1\nrequests_in_flight_max = 2", "line 3: "),
        ("admin = \"hidden\" oops", "line 1: "),
        ("admin = \"hidden\"", "NAME:PASSWORD"),
        ("admin_file = \"/nowhere/at all\"", "cannot read /nowhere/at all"),
    ] {
        std::fs::write(&file, written).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let refusals = ["config", "serve"].map(|command| {
            let output =
                settee(&[command, "--config", name(&file), "--data-dir", name(&none)]).output().unwrap();
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{command}: {written}");
            text(&output.stderr)
        });
        assert_eq!(refusals[0], refusals[1], "{written}");
        assert!(refusals[0].contains(words) && !refusals[0].contains("hidden"), "{written}: {}", refusals[0]);
    }
    assert!(!none.exists(), "the data directory was created");
}

#[test]
fn a_former_flag_or_variable_is_an_error_of_every_command_with_the_present_name() {
    for command in [&["serve"][..], &["load", "--db", "a", "b.json"]] {
        let output = settee(&[command, &["--max-document-size", "5"]].concat()).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("--max-document-size is --document-bytes-max now"), "{error}");
        let output = settee(command).env("SETTEE_MAX_HEADERS", "5").output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains("SETTEE_MAX_HEADERS isn't a setting any more: the value is always 100"),
            "{error}"
        );
    }
}

#[test]
fn all_limits_are_printed_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let data = name(directory.path());
    let printed = text(&done(settee(&["config", "--limits", "--data-dir", data])).stdout);
    for line in ["connections_max = 4096 ", "# group_delay_us_max = 500 ", "# BATCH_SIZE_MAX = 16777216 "] {
        assert!(printed.lines().any(|printed| printed.starts_with(line)), "{line}: {printed}");
    }
    let shown = json(settee(&["config", "--limits", "--json", "--data-dir", data]));
    assert!(shown["fixed"].as_array().unwrap().len() > 100, "{shown}");
}

#[test]
fn an_invalid_file_in_the_data_directory_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.toml"), "[uuids\n").unwrap();
    let output = done(settee(&["config", "--data-dir", name(directory.path())]));
    assert!(text(&output.stderr).contains("is ignored"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("is ignored"), "{}", text(&output.stdout));
}

/// Converts the sample files. Returns the standard output and the error output.
fn import(others: &[&str]) -> (String, String) {
    let (default, local, directory) = (couchdb("default.ini"), couchdb("local.ini"), couchdb("local.d"));
    let mut command = settee(&["config", "import-ini"]);
    command.args(others).args([default, local, directory]);
    let output = command.output().unwrap();
    // The administrators' passwords are hashes.
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn couchdbs_files_become_valid_settings() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settee.toml");
    let (stdout, stderr) = import(&["-o", name(&file)]);
    assert!(stdout.is_empty(), "{stdout}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = json(settee(&["config", "--json", "--config", name(&file)]));
    for (table, name, value) in [
        ("", "listen", Value::from("[::]:5985")),
        ("limits", "document_bytes_max", Value::from(67_108_864)),
        ("limits", "attachment_bytes_max", Value::from(1 << 30)),
        ("limits", "request_bytes_max", Value::from(64 << 20)),
        ("limits", "changes_timeout_ms", Value::from(60_000)),
        ("limits", "session_timeout_s", Value::from(3600)),
        ("databases", "open_databases_max", Value::from(3000)),
    ] {
        let member =
            if table.is_empty() { &shown["settings"][name] } else { &shown["settings"][table][name] };
        assert_eq!((&member["value"], &member["source"]), (&value, &Value::from("file")), "{name}");
    }
    assert!(!std::fs::read_to_string(&file).unwrap().contains("uuids/max_count"), "the last file deleted it");
    for words in
        ["administrator admin ", "administrator architect ", "67108864", "no administrator for [::]:5985"]
    {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
}

#[test]
fn administrators_with_only_hashed_passwords_are_an_error_that_the_file_mentions() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settee.toml");
    let (_, stderr) = import(&["-o", name(&file)]);
    let written = std::fs::read_to_string(&file).unwrap();
    for text in [&stderr, &written] {
        assert!(text.contains("no administrator was converted (admin, architect)"), "{text}");
    }
    let data = directory.path().join("data");
    let mut serve =
        settee(&["serve", "--config", name(&file), "--listen", "127.0.0.1:0", "--data-dir", name(&data)]);
    let mut server = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let url = lines.filter_map(|line| line.strip_prefix("listening on ").map(str::to_owned)).next().unwrap();
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /_all_dbs HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut response = String::new();
    let read = stream.read_to_string(&mut response);
    server.kill().unwrap();
    server.wait().unwrap();
    read.unwrap();
    assert!(response.contains(" 401 "), "the server accepts requests without a user: {response}");

    let ini = directory.path().join("local.ini");
    std::fs::write(&ini, "[admins]\nann = -pbkdf2-1,2,3\nben = in the clear\n").unwrap();
    let taken = text(&done(settee(&["config", "import-ini", name(&ini)])).stdout);
    assert!(taken.contains("admin = \"ben:in the clear\"") && !taken.contains("INCOMPLETE"), "{taken}");
}

#[test]
fn every_key_of_couchdbs_files_is_listed_and_no_secret() {
    let (result, stderr) = import(&[]);
    let mut files = vec![couchdb("default.ini"), couchdb("local.ini")];
    files.extend(["local.d/10-admins.ini", "local.d/20-size.ini"].map(couchdb));
    // Parses only sections and keys, line by line.
    let mut keys = std::collections::BTreeSet::new();
    for file in &files {
        let mut section = String::new();
        for line in
            std::fs::read_to_string(file).unwrap().lines().filter(|line| !line.starts_with([';', '#']))
        {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']').to_owned();
            } else if let Some((key, value)) = line.split_once('=') {
                // An empty value deletes the key.
                let key = format!("{section}/{}", key.trim());
                if value.trim().is_empty() {
                    keys.remove(&key)
                } else {
                    keys.insert(key)
                };
            }
        }
    }
    assert!(keys.len() > 60, "{keys:?}");
    for key in &keys {
        let forms = [format!("# {key} = "), format!("{key} (")];
        assert!(forms.iter().any(|form| result.contains(form)), "{key}: {result}");
    }
    for secret in ["92de07df", "open-sesame", "aGVsbG8", "43ecbd25", "2f3e9d1c", "8c7d6e5f"] {
        assert!(!result.contains(secret) && !stderr.contains(secret), "{secret}: {result}{stderr}");
    }
    for (key, words) in [
        ("ssl/cert_file", "TLS isn't supported yet"),
        ("cors/origins", "PUT /_node/_local/_config/cors/origins"),
        ("uuids/algorithm", "PUT /_node/_local/_config/uuids/algorithm \"utc_id\""),
        ("couchdb/database_dir", "data_dir"),
        ("couchdb/single_node", "always does that"),
        ("my_plugin/favourite", "no counterpart"),
    ] {
        let (_, after) =
            result.split_once(&format!("# {key} = ")).unwrap_or_else(|| panic!("{key}: {result}"));
        assert!(after.lines().nth(1).unwrap().contains(words), "{key}: {after}");
    }
    assert!(result.contains("\nlog_level = \"warn\" "), "{result}");
    assert!(result.contains("local.ini:29: neither a section nor a key"), "{result}");
}

#[test]
fn an_existing_file_is_replaced_only_with_force() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settee.toml");
    std::fs::write(&file, "mine").unwrap();
    let ini = couchdb("local.ini");
    let import = |out: &Path, more: &[&str]| {
        let arguments = [&["config", "import-ini", "-o", name(out), &ini], more].concat();
        settee(&arguments).output().unwrap()
    };
    let refused = import(&file, &[]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("--force"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let link = directory.path().join("link.toml");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert!(import(&link, &["--force"]).status.success());
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink(), "the link was replaced");
    assert!(std::fs::read_to_string(&file).unwrap().contains("listen = \"[::]:5985\""));
    assert!(!import(directory.path(), &["--force"]).status.success(), "a directory was replaced");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "a temporary file is left");
}

#[test]
fn an_unreadable_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let none = directory.path().join("none.ini");
    for (path, words) in [(&none, "No such file"), (&PathBuf::from(directory.path()), "there is no *.ini")] {
        let output = settee(&["config", "import-ini", name(path)]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
        assert!(text(&output.stderr).contains(words), "{output:?}");
    }
}

#[test]
fn variables_of_the_server_do_not_affect_the_import() {
    let mut command = settee(&["config", "import-ini", &couchdb("local.ini")]);
    command.env("SETTEE_REQUESTS_IN_FLIGHT_MAX", "5").env("SETTEE_CONFIG", "/nowhere");
    assert!(text(&done(command).stdout).contains("listen = "));
}
