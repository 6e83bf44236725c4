//! Goal: what users stored, and passwords, are read by nobody but the user who runs the server.
//! Method: the built binary under umask 022, with and without a server; every file that it leaves.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::{ADMIN, Server, fails, name, ok, run, settee, text};

/// All that a directory holds, itself included, whose permissions let others in.
fn open_to_others(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_path_buf()];
    let mut count = 0;
    while let Some(directory) = directories.pop() {
        let entries: Vec<PathBuf> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        directories.extend(entries.iter().filter(|path| path.is_dir()).cloned());
        for path in entries.into_iter().chain([directory]) {
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            count += 1;
            if mode != expected {
                found.push((path, mode));
            }
        }
    }
    assert!(count > 5, "{count} files are no data");
    found
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// As an older version left its data.
fn open_all(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { open_all(&entry) } else { set(&entry, 0o644) }
    }
    set(directory, 0o755);
}

#[test]
fn data_backups_restored_and_repaired_data_are_closed_to_others() {
    let home = tempfile::tempdir().unwrap();
    let [data, backup, restored, repaired] =
        ["data", "backup", "restored", "repaired"].map(|name| home.path().join(name));
    let server = Server::start(&data);
    server.done("PUT", "/cities", "");
    server.done("PUT", "/cities/ulm", "{\"spire_m\":161}");
    server.done("PUT", "/_node/_local/_config/uuids/algorithm", "\"random\"");
    server.done("POST", "/_settee/backup", &format!("{{\"folder\":{:?}}}", name(&backup)));
    server.stop();
    ok(&["restore", name(&backup), name(&restored)], b"");
    ok(&["check", name(&data), "--repair", name(&repaired)], b"");
    for directory in [&data, &backup, &restored, &repaired] {
        assert_eq!(open_to_others(directory), [], "{}", directory.display());
    }
}

#[test]
fn an_older_versions_data_are_closed_to_others_at_the_next_start_and_by_commands() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let server = Server::start(&data);
    server.done("PUT", "/cities", "");
    server.done("PUT", "/cities/ulm", "{}");
    server.stop();
    open_all(&data);
    let (_, said) = ok(&["dump", "--db", "cities", "--data-dir", name(&data)], b"");
    assert!(said.contains("could be read by others"), "{said}");
    assert_eq!(open_to_others(&data), []);
    open_all(&data);
    Server::start(&data).stop();
    assert_eq!(open_to_others(&data), []);
}

#[test]
fn a_file_with_a_password_that_others_can_read_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (admin, config) = (home.path().join("admin"), home.path().join("settee.toml"));
    fs::write(&admin, ADMIN).unwrap();
    fs::write(&config, format!("admin = \"{ADMIN}\"")).unwrap();
    let data = home.path().join("data");
    let files = [["--admin-file", name(&admin)], ["--config", name(&config)]];
    for file in files {
        set(Path::new(file[1]), 0o604);
        for command in ["serve", "config"] {
            let (code, said) = fails(&[&[command, "--data-dir", name(&data)], &file[..]].concat(), b"");
            assert!(code == 1 && said.contains("others can read it") && !said.contains("sesame"), "{said}");
        }
        set(Path::new(file[1]), 0o600);
        ok(&[&["config", "--data-dir", name(&data)], &file[..]].concat(), b"");
    }
    assert!(!data.exists(), "nothing was begun");
}

#[test]
fn a_variable_that_nobody_knows_is_an_error_and_kubernetes_own_are_not() {
    for arguments in [&["config"][..], &["serve"], &["check", "/nowhere"]] {
        let mut command = settee(arguments);
        command.env("SETTEE_LISTENN", "127.0.0.1:1");
        let output = run(command, b"");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("SETTEE_LISTENN is no setting; did you mean SETTEE_LISTEN?"), "{said}");
    }
    let mut command = settee(&["config"]);
    command.env("SETTEE_PORT", "tcp://10.0.0.1:5984").env("SETTEE_SERVICE_HOST", "10.0.0.1");
    assert!(run(command, b"").status.success());
}
