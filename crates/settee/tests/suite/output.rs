//! Goal: a command whose output is closed stops without a message or completes its work; error messages
//! contain a hint; a password can be given without an argument. Method: the built binary, with a closed pipe
//! as its output, and with a server.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{ADMIN, Server, fails, name, ok, run, settee, text};

/// Runs a command with a closed stdout. Returns its exit code and its error output.
fn run_with_closed_output(mut command: Command) -> (i32, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    (output.status.code().unwrap(), text(&output.stderr).to_owned())
}

#[test]
fn a_command_whose_output_is_closed_prints_no_error() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let documents: String = (0..100).map(|number| format!("{{\"_id\":\"{number}\"}}\n")).collect();
    ok(&["load", "-", "--db", "x", "--create", "--data-dir", name(&data)], documents.as_bytes());
    let backup = home.path().join("backup");
    let (data, backup) = (name(&data), name(&backup));
    let restored = home.path().join("restored");
    // 141: the command's work is its output, and it stops as if by SIGPIPE. 0: the command completes its
    // work.
    for (arguments, code) in [
        (&["dump", "--db", "x", "--data-dir", data][..], 141),
        (&["config", "--data-dir", data], 141),
        (&["bench", "--docs", "20", "--updates", "2", "--data-dir", name(home.path())], 141),
        (&["check", data], 0),
        (&["compact", data], 0),
        (&["backup", backup, "--data-dir", data], 0),
        (&["restore", backup, name(&restored)], 0),
        (&["load", "/dev/null", "--db", "x", "--data-dir", data], 0),
        (&["load", "--help"], 0),
    ] {
        let (found, stderr) = run_with_closed_output(settee(arguments));
        assert_eq!(found, code, "{arguments:?}: {stderr}");
        // The benchmark warns of a file system in memory.
        let stderr: Vec<&str> =
            stderr.lines().filter(|line| !line.contains("file system in memory")).collect();
        assert!(stderr.is_empty(), "{arguments:?}: {stderr:?}");
    }
    let (checked, _) = ok(&["check", name(&restored)], b"");
    assert!(checked.lines().last().unwrap().starts_with("sound"), "{checked}");
}

#[test]
fn all_commands_accept_db_as_the_databases_name() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    ok(&["load", "-", "--db", "x", "--create", "--data-dir", name(&data)], b"{}");
    ok(&["dump", "--db", "x", "--data-dir", name(&data)], b"");
    assert!(ok(&["check", name(&data), "--db", "x"], b"").0.starts_with("sound"));
    assert!(ok(&["compact", name(&data), "--db", "x"], b"").0.starts_with("x: "));
    // The former name of the flag.
    ok(&["check", name(&data), "--database", "x"], b"");
}

#[test]
fn missing_directories_and_databases_are_reported_with_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let (nowhere, empty) = (home.path().join("nowhere"), home.path().join("empty"));
    std::fs::create_dir(&empty).unwrap();
    let data = home.path().join("data");
    ok(&["load", "-", "--db", "x", "--create", "--data-dir", name(&data)], b"{}");
    let (nowhere, empty, data) = (name(&nowhere), name(&empty), name(&data));
    let no_directory = format!("there is no data directory {nowhere}");
    let no_databases = format!("there are no databases in {empty}");
    for (arguments, code, message, hints) in [
        (&["check", nowhere][..], 2, &*no_directory, false),
        (&["check", empty], 2, &no_databases, false),
        (&["check", data, "--db", "y"], 2, "there is no database y", false),
        (&["compact", nowhere], 1, &no_directory, false),
        (&["compact", data, "--db", "y"], 1, "there is no database y", false),
        (&["backup", "b", "--data-dir", nowhere], 1, &no_directory, false),
        (&["restore", nowhere, "r"], 1, "there is no backup", false),
        (&["dump", "--db", "x", "--data-dir", nowhere], 1, &no_directory, false),
        (&["dump", "--db", "x", "--data-dir", empty], 1, &no_databases, false),
        (&["dump", "--db", "y", "--data-dir", data], 1, "there is no database y", false),
        (&["load", "-", "--db", "y", "--data-dir", data], 1, "there is no database y", true),
        (&["load", "-", "--db", "y", "--data-dir", empty], 1, &no_databases, true),
        (&["load", "-", "--db", "y", "--data-dir", nowhere], 1, &no_directory, true),
    ] {
        let (found, stderr) = fails(arguments, b"");
        assert_eq!(found, code, "{arguments:?}: {stderr}");
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
        assert_eq!(stderr.contains("--create creates it"), hints, "{arguments:?}: {stderr}");
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn clients_read_their_user_from_a_file_or_a_variable() {
    let home = tempfile::tempdir().unwrap();
    let (data, user) = (home.path().join("data"), home.path().join("user"));
    let server = Server::start(&data);
    server.send_ok("PUT", "/cities", "");
    server.send_ok("PUT", "/cities/ulm", "{}");
    let dump = ["dump", "--db", "cities", "--url", &server.url];
    let (_, stderr) = fails(&dump, b"");
    assert!(stderr.contains("401") && stderr.contains("--user-file, SETTEE_USER"), "{stderr}");
    let (_, stderr) = fails(&["check", name(&data)], b"");
    assert!(stderr.contains("stop it, or check a backup"), "{stderr}");

    fs::write(&user, format!("{ADMIN}\n")).unwrap();
    set_mode(&user, 0o644);
    let with_file = [&dump[..], &["--user-file", name(&user)]].concat();
    let (_, stderr) = fails(&with_file, b"");
    assert!(stderr.contains("others can read it"), "{stderr}");
    set_mode(&user, 0o600);
    assert_eq!(ok(&with_file, b"").0.lines().count(), 1);
    let load = ["load", "-", "--db", "more", "--create", "--url", &server.url, "--user-file", name(&user)];
    ok(&load, b"{}");
    let backup = home.path().join("backup");
    ok(&["backup", name(&backup), "--url", &server.url, "--user-file", name(&user)], b"");

    for (variable, value) in [("SETTEE_USER", ADMIN), ("SETTEE_USER_FILE", name(&user))] {
        let mut command = settee(&dump);
        command.env(variable, value);
        let output = run(command, b"");
        assert!(output.status.success(), "{variable}: {}", text(&output.stderr));
    }
    let mut command = settee(&["dump", "--db", "cities", "--url", &server.admin_url()]);
    command.env("SETTEE_USER", "ben:other");
    assert!(run(command, b"").status.success(), "the URL's user takes precedence");
    let mut command = settee(&dump);
    command.env("SETTEE_USER", "sesame");
    let output = run(command, b"");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("SETTEE_USER must hold NAME:PASSWORD") && !stderr.contains("sesame"), "{stderr}");
}
