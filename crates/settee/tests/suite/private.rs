//! Goal: only the user who runs the server can read the data and passwords.
//! Method: the modes of all files that the built binary creates with umask 022, with and without a server.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::{ADMIN, Server, fails, name, ok, run, settee, text};

/// Returns the files and directories in `directory`, including itself, whose modes aren't 0600 or 0700.
fn accessible_to_others(directory: &Path) -> Vec<(PathBuf, u32)> {
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
    assert!(count > 5, "only {count} files");
    found
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Sets the modes that an older version left.
fn set_default_modes(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { set_default_modes(&entry) } else { set(&entry, 0o644) }
    }
    set(directory, 0o755);
}

#[test]
fn data_backups_and_restored_and_repaired_data_are_private() {
    let home = tempfile::tempdir().unwrap();
    let [data, backup, restored, repaired] =
        ["data", "backup", "restored", "repaired"].map(|name| home.path().join(name));
    let server = Server::start(&data);
    server.send_ok("PUT", "/cities", "");
    server.send_ok("PUT", "/cities/ulm", "{\"spire_m\":161}");
    server.send_ok("PUT", "/_node/_local/_config/uuids/algorithm", "\"random\"");
    server.send_ok("POST", "/_settee/backup", &format!("{{\"directory\":{:?}}}", name(&backup)));
    server.stop();
    ok(&["restore", name(&backup), name(&restored)], b"");
    ok(&["check", name(&data), "--repair", name(&repaired)], b"");
    for directory in [&data, &backup, &restored, &repaired] {
        assert_eq!(accessible_to_others(directory), [], "{}", directory.display());
    }
}

#[test]
fn the_server_and_commands_make_an_older_versions_data_private() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let server = Server::start(&data);
    server.send_ok("PUT", "/cities", "");
    server.send_ok("PUT", "/cities/ulm", "{}");
    server.stop();
    set_default_modes(&data);
    let (_, stderr) = ok(&["dump", "--db", "cities", "--data-dir", name(&data)], b"");
    assert!(stderr.contains("could be read by others"), "{stderr}");
    assert_eq!(accessible_to_others(&data), []);
    set_default_modes(&data);
    Server::start(&data).stop();
    assert_eq!(accessible_to_others(&data), []);
}

#[test]
fn a_password_file_that_other_users_can_read_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (admin, config) = (home.path().join("admin"), home.path().join("settee.toml"));
    fs::write(&admin, ADMIN).unwrap();
    fs::write(&config, format!("admin = \"{ADMIN}\"")).unwrap();
    let data = home.path().join("data");
    let files = [["--admin-file", name(&admin)], ["--config", name(&config)]];
    for file in files {
        set(Path::new(file[1]), 0o604);
        for command in ["serve", "config"] {
            let (code, stderr) = fails(&[&[command, "--data-dir", name(&data)], &file[..]].concat(), b"");
            assert!(
                code == 1 && stderr.contains("others can read it") && !stderr.contains("sesame"),
                "{stderr}"
            );
        }
        set(Path::new(file[1]), 0o600);
        ok(&[&["config", "--data-dir", name(&data)], &file[..]].concat(), b"");
    }
    assert!(!data.exists(), "the data directory was created");
}

#[test]
fn an_unknown_variable_is_an_error_unless_kubernetes_sets_it() {
    for arguments in [&["config"][..], &["serve"], &["check", "/nowhere"]] {
        let mut command = settee(arguments);
        command.env("SETTEE_LISTENN", "127.0.0.1:1");
        let output = run(command, b"");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains("SETTEE_LISTENN is not a setting; did you mean SETTEE_LISTEN?"), "{stderr}");
    }
    let mut command = settee(&["config"]);
    command.env("SETTEE_PORT", "tcp://10.0.0.1:5984").env("SETTEE_SERVICE_HOST", "10.0.0.1");
    assert!(run(command, b"").status.success());
}
