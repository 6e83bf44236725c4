//! Goal: `check`, `compact`, `backup` and `restore` work, and their exit codes report failures. Method: the
//! built binary on temporary directories, with and without a server; a flipped bit in each kind of file.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A server on a free port.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(data: &Path) -> Server {
        let mut child = settee(&["serve", "--no-admin", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
        let url = url.expect("the server prints its address");
        let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Server { child, address }
    }

    /// Sends a request. Returns the response's status and body.
    fn send(&self, method: &str, path: &str, content_type: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {content_type}\r\n\
             Content-Length: {length}\r\n\r\n{body}",
            self.address
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    fn post(&self, path: &str, body: &str) -> (u16, String) {
        self.send("POST", path, "application/json", body)
    }

    fn stop(mut self) {
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

fn settee(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_settee"));
    command.args(arguments).env_remove("SETTEE_DATA_DIR");
    command
}

fn run(arguments: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } = settee(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout) + &text(stderr))
}

/// Writes 400 documents `rounds` times, so that the server makes checkpoints.
fn fill(server: &Server, database: &str, rounds: usize) {
    assert!(matches!(server.send("PUT", &format!("/{database}"), "application/json", "").0, 201 | 412));
    for round in 0..rounds {
        let mut documents = Vec::new();
        for number in 0..400 {
            let seed = (round * 400 + number) as u64;
            let noise: String = (0..100).map(|at| format!("{:016x}", mix(seed * 1000 + at))).collect();
            documents
                .push(format!("{{\"_id\":\"doc-{number:04}\",\"round\":{round},\"noise\":\"{noise}\"}}"));
        }
        let path = format!("/{database}/_bulk_docs");
        let revisions = server.post(&format!("/{database}/_all_docs"), "{}").1;
        let revisions: serde_json::Value = serde_json::from_str(&dechunked(&revisions)).unwrap();
        for row in revisions["rows"].as_array().unwrap() {
            let number: usize = row["id"].as_str().unwrap()[4..].parse().unwrap();
            let revision = row["value"]["rev"].as_str().unwrap();
            documents[number].insert_str(1, &format!("\"_rev\":\"{revision}\","));
        }
        let (status, response) = server.post(&path, &format!("{{\"docs\":[{}]}}", documents.join(",")));
        assert_eq!(status, 201, "{response}");
        assert!(!response.contains("\"error\""), "{response}");
    }
}

fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ mixed >> 32
}

/// Returns the text of a body, decoded if it is chunked.
fn dechunked(body: &str) -> String {
    let start = body.find('{').unwrap();
    if body[..start].trim().is_empty() {
        return body.to_owned();
    }
    let (mut rest, mut text) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    text
}

fn files(directory: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.to_string_lossy().ends_with(kind)).collect();
    files.sort();
    files
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_bit_in_each_kind_of_file_is_found_and_reported_and_other_records_are_salvaged() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let server = Server::start(&data);
    fill(&server, "cities", 14);
    fill(&server, "small", 1);
    std::thread::sleep(std::time::Duration::from_secs(2));
    server.stop();
    let data_text = data.to_str().unwrap();
    let (code, text) = run(&["compact", data_text, "--database", "cities"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = run(&["check", data_text]);
    assert!(code == 0 && text.contains("sound"), "{text}");
    println!("$ settee check data\n{text}");

    let store = data.join("databases").join("0000000001");
    let named = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut kinds = vec![("the manifest", store.join("manifest"), 60)];
    let log = files(&store, ".log");
    kinds.push(("the log's open segment", log.last().unwrap().clone(), 5000));
    let tree = files(&store, ".tree").pop().expect("there is a tree");
    kinds.push(("the tree's root", tree.clone(), 4096 + 40));
    kinds.push(("a node of the tree", tree, 12_288 + 700));
    let rewritten = files(&store, ".seg");
    if let Some(path) = rewritten.first() {
        let length = std::fs::metadata(path).unwrap().len() as usize;
        kinds.push(("a rewritten segment's records", path.clone(), 3000));
        kinds.push(("a rewritten segment's directory", path.clone(), length - 100));
    }
    if log.len() > 1 {
        kinds.push(("a sealed segment of the log", log[0].clone(), 6000));
    }
    for (kind, path, at) in &kinds {
        flip(path, *at);
        let (code, text) = run(&["check", data_text, "--database", "cities"]);
        println!(
            "$ settee check data --database cities     # a bit flipped in {kind}, {} at {at}\n{}",
            named(path),
            text.replace(home.path().to_str().unwrap(), "")
        );
        assert!(code == 1 && text.contains(&named(path)), "{kind}: {code} {text}");
        flip(path, *at);
    }
    assert_eq!(run(&["check", data_text]).0, 0);

    // A live record: the damage is reported, and all other records are salvaged.
    let damaged_file = rewritten.first().unwrap_or(&log[0]);
    flip(damaged_file, 3000);
    let new = home.path().join("new");
    let (code, text) = run(&["check", data_text, "--repair", new.to_str().unwrap()]);
    println!("$ settee check data --repair new\n{}", text.replace(home.path().to_str().unwrap(), ""));
    assert_eq!(code, 1, "{text}");
    assert_eq!(run(&["check", new.to_str().unwrap()]).0, 0);
    // The repair completes even if its output is closed.
    let unread = home.path().join("unread");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut repair = settee(&["check", data_text, "--repair", unread.to_str().unwrap()]);
    assert_eq!(repair.stdout(writer).status().unwrap().code(), Some(1));
    assert_eq!(run(&["check", unread.to_str().unwrap()]).0, 0);
    let (code, dumped) = run(&["dump", "--db", "small", "--data-dir", new.to_str().unwrap()]);
    assert_eq!((code, dumped.lines().count()), (0, 401), "{dumped}");
    let (_, dumped) = run(&["dump", "--db", "cities", "--data-dir", new.to_str().unwrap()]);
    assert!(dumped.lines().count() >= 400, "{}", dumped.lines().count());
    assert_eq!(run(&["check", "/nonexistent"]).0, 2);
    assert_eq!(run(&["check", data_text, "--database", "none"]).0, 2);

    flip(damaged_file, 3000);
    std::fs::write(data.join("server-uuid"), [0xff; 32]).unwrap();
    let (code, text) = run(&["check", data_text]);
    assert!(code == 1 && text.contains("server-uuid is damaged"), "{code} {text}");
    let another = home.path().join("another");
    assert_eq!(run(&["check", data_text, "--repair", another.to_str().unwrap()]).0, 1);
    assert_eq!(run(&["check", another.to_str().unwrap()]).0, 0);
}

#[test]
fn a_backup_of_a_running_server_is_sound_incremental_and_restorable() {
    let home = tempfile::tempdir().unwrap();
    let (data, backup) = (home.path().join("data"), home.path().join("backup"));
    let server = Server::start(&data);
    fill(&server, "cities", 6);
    let url = format!("http://{}", server.address);
    let backup_text = backup.to_str().unwrap();
    for _ in 0..2 {
        let (code, text) = run(&["backup", backup_text, "--url", &url]);
        assert!(code == 0 && text.contains("\"databases\":1"), "{text}");
        println!("$ settee backup backup --url …\n{}", text.replace(home.path().to_str().unwrap(), ""));
    }
    let second: serde_json::Value = serde_json::from_str(
        &server.post("/_settee/backup", &format!("{{\"directory\":\"{backup_text}\"}}")).1,
    )
    .unwrap();
    assert_eq!(second["bytes_copied"], 0, "{second}");
    assert_eq!(server.post("/_settee/backup", "{\"directory\":\"relative\"}").0, 400);
    let former = server.post("/_settee/backup", &format!("{{\"folder\":\"{backup_text}\"}}"));
    assert!(former.0 == 400 && former.1.contains("directory"), "{former:?}");
    assert_eq!(server.send("POST", "/_settee/backup", "text/plain", "{}").0, 415);
    fill(&server, "cities", 2);
    assert_eq!(server.send("POST", "/cities/_compact", "text/plain", "{}").0, 415);
    assert_eq!(server.post("/cities/_compact", "{}"), (202, "{\"ok\":true}\n".to_owned()));
    assert_eq!(server.send("GET", "/cities/_compact", "application/json", "").0, 405);
    assert!(server.send("GET", "/cities", "application/json", "").1.contains("\"compact_running\":"));
    let in_use = run(&["check", data.to_str().unwrap()]);
    assert!(in_use.0 == 2 && in_use.1.contains("in use"), "{in_use:?}");
    server.stop();
    for run_name in ["000001", "000002", "000003"] {
        let (code, text) = run(&["check", backup.join(run_name).to_str().unwrap()]);
        assert_eq!(code, 0, "{text}");
    }
    let new = home.path().join("new");
    let (code, text) = run(&["restore", backup_text, new.to_str().unwrap()]);
    assert!(code == 0 && text.contains("000003"), "{text}");
    assert_eq!(run(&["check", new.to_str().unwrap()]).0, 0);
    let (_, dumped) = run(&["dump", "--db", "cities", "--data-dir", new.to_str().unwrap()]);
    assert!(dumped.lines().count() == 401 && dumped.contains("\"round\":5"), "{}", dumped.lines().count());
    assert!(!new.join("server-uuid").exists());
    assert_eq!(check_refusals(home.path(), &data, &backup), 0);
    // Without a server the data directory is backed up directly.
    let (code, text) = run(&["backup", backup_text, "--data-dir", data.to_str().unwrap()]);
    assert!(code == 0 && text.contains("000004"), "{text}");
    assert_ne!(run(&["restore", backup_text, new.to_str().unwrap()]).0, 0, "it isn't empty");
}

/// Runs commands that must be refused and checks their exit codes and messages. Returns the number of
/// directories that they left.
fn check_refusals(home: &Path, data: &Path, backup: &Path) -> usize {
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (run_directory, empty) = (backup.join("000001"), home.join("empty"));
    let unrelated = home.join("unrelated");
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::create_dir_all(&unrelated).unwrap();
    std::fs::write(unrelated.join("letter"), "dear").unwrap();
    std::os::unix::fs::symlink(data, home.join("link")).unwrap();
    let (data_text, backup_text, run_text) = (path(data), path(backup), path(&run_directory));
    let before = |directory: &Path| std::fs::read_dir(directory).unwrap().count();
    let counts = [before(&empty), before(&unrelated), before(&run_directory), before(data), before(backup)];
    let cases: &[(&[&str], &str)] = &[
        (&["compact", &path(&empty)], "there are no databases in"),
        (&["backup", &path(&home.join("bk")), "--data-dir", &path(&empty)], "there are no databases in"),
        (&["dump", "--db", "x", "--data-dir", &path(&unrelated)], "there are no databases in"),
        (&["load", "/dev/null", "--db", "x", "--data-dir", &path(&unrelated)], "there are no databases in"),
        (&["compact", &run_text], "settee restore"),
        (&["dump", "--db", "cities", "--data-dir", &run_text], "settee restore"),
        (&["load", "/dev/null", "--db", "x", "--create", "--data-dir", &run_text], "settee restore"),
        (&["serve", "--listen", "127.0.0.1:0", "--data-dir", &run_text], "settee restore"),
        (&["backup", &data_text, "--data-dir", &data_text], "isn't in the data directory"),
        (&["backup", &path(&data.join("bk")), "--data-dir", &data_text], "isn't in the data directory"),
        (&["backup", &path(&home.join("link/bk")), "--data-dir", &data_text], "isn't in the data directory"),
        (&["backup", &path(&unrelated), "--data-dir", &data_text], "is not empty"),
        (&["backup", &path(&unrelated.join("letter")), "--data-dir", &data_text], "can't hold a backup"),
        (&["restore", &backup_text, &path(&run_directory.join("x"))], "which is a run of a backup"),
        (&["restore", &backup_text, &path(&backup.join("x"))], "which holds the runs"),
        (&["restore", &backup_text, &path(&data.join("x"))], "which is a data directory"),
    ];
    for (arguments, message) in cases {
        let (code, text) = run(arguments);
        assert!(code == 1 && text.contains(message), "{arguments:?}: {code} {text}");
    }
    let (code, text) = run(&["check", &data_text, "--repair", &path(&data.join("new"))]);
    assert!(code == 2 && text.contains("which is a data directory"), "{text}");
    let (code, text) = run(&["check", &backup_text]);
    assert!(code == 2 && text.contains("runs of a backup"), "{text}");
    let after = [before(&empty), before(&unrelated), before(&run_directory), before(data), before(backup)];
    assert_eq!(counts, after);
    std::fs::remove_file(home.join("link")).unwrap();
    usize::from(home.join("bk").exists())
}

fn get(server: &Server, path: &str) -> serde_json::Value {
    let (status, text) = server.send("GET", path, "application/json", "");
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&dechunked(&text)).unwrap()
}

/// Returns the number of changes that a follower receives after `since`.
fn change_count(server: &Server, since: &serde_json::Value) -> usize {
    let since = since.as_str().unwrap();
    get(server, &format!("/cities/_changes?since={since}"))["results"].as_array().unwrap().len()
}

#[test]
fn followers_of_the_original_receive_every_change_of_a_restored_copy_which_is_another_server() {
    let home = tempfile::tempdir().unwrap();
    let (data, backup, new) = (home.path().join("data"), home.path().join("backup"), home.path().join("new"));
    let server = Server::start(&data);
    let docs = |from: usize, to: usize| {
        let docs: Vec<_> =
            (from..to).map(|id| serde_json::json!({ "_id": format!("doc-{id:03}") })).collect();
        serde_json::json!({ "docs": docs }).to_string()
    };
    assert_eq!(server.send("PUT", "/cities", "application/json", "").0, 201);
    assert_eq!(server.post("/cities/_bulk_docs", &docs(0, 100)).0, 201);
    let directory = serde_json::json!({ "directory": backup }).to_string();
    assert_eq!(server.post("/_settee/backup", &directory).0, 201);
    // The follower has received these changes, which the copy doesn't have.
    assert_eq!(server.post("/cities/_bulk_docs", &docs(100, 200)).0, 201);
    let (before, database) = (get(&server, "/"), get(&server, "/cities"));
    let since = &database["update_seq"];
    assert_eq!(change_count(&server, since), 0);
    let (code, text) = run(&["restore", backup.to_str().unwrap(), new.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    let copy = Server::start(&new);
    assert_eq!(copy.post("/cities/_bulk_docs", &docs(200, 350)).0, 201);
    assert_eq!(change_count(&copy, since), 250);
    let after = get(&copy, "/cities");
    assert_eq!(change_count(&copy, &after["update_seq"]), 0);
    assert_ne!(after["instance_start_time"], database["instance_start_time"]);
    assert_ne!(get(&copy, "/")["uuid"], before["uuid"]);
    server.stop();
    copy.stop();
}

#[test]
fn a_lost_database_is_reported_and_does_not_prevent_the_backup_of_others() {
    let home = tempfile::tempdir().unwrap();
    let (data, backup) = (home.path().join("data"), home.path().join("backup"));
    let (data_text, backup_text) = (data.to_str().unwrap(), backup.to_str().unwrap());
    let mut server = Server::start(&data);
    fill(&server, "lost", 1);
    fill(&server, "sound", 1);
    std::thread::sleep(std::time::Duration::from_secs(2));
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    std::fs::remove_dir_all(data.join("databases/0000000001")).unwrap();
    let (code, text) = run(&["check", data_text]);
    assert!(code == 1 && text.contains("lost: ") && text.contains("are gone"), "{text}");
    let server = Server::start(&data);
    let (status, text) = server.send("GET", "/lost", "application/json", "");
    assert!(status == 500 && text.contains("are gone"), "{text}");
    assert_eq!(server.send("GET", "/sound", "application/json", "").0, 200);

    let (status, text) = server.post("/_settee/backup", &format!("{{\"directory\":\"{backup_text}\"}}"));
    let response: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status, &response["error"], &response["databases"]),
        (500, &"incomplete_backup".into(), &1.into())
    );
    assert_eq!(response["failed"][0]["name"], "lost", "{text}");
    let url = format!("http://{}", server.address);
    let (code, text) = run(&["backup", backup_text, "--url", &url]);
    assert!(code == 1 && text.contains("lost: ") && text.contains("1 of 2 databases"), "{text}");
    for directory in ["relative", "/dev/null", "/dev/null/x", &format!("{data_text}/x"), data_text] {
        let (status, text) = server.post("/_settee/backup", &format!("{{\"directory\":\"{directory}\"}}"));
        assert_eq!(status, 400, "{directory}: {text}");
    }
    server.stop();
    let (code, text) = run(&["backup", backup_text, "--data-dir", data_text]);
    assert!(code == 1 && text.contains("1 databases in") && text.contains("lost could not be"), "{text}");
    let (code, text) = run(&["check", backup.join("000003").to_str().unwrap()]);
    assert!(code == 1 && text.contains("the database lost isn't in this run"), "{text}");
    let new = home.path().join("new");
    let (code, text) = run(&["restore", backup_text, new.to_str().unwrap()]);
    assert!(code == 1 && text.contains("lost could not be copied") && text.contains("000003"), "{text}");
    let (code, dumped) = run(&["dump", "--db", "sound", "--data-dir", new.to_str().unwrap()]);
    assert_eq!((code, dumped.lines().count()), (0, 401));

    // A run with a missing file isn't restored, nor is a run without the file `complete`.
    let file = files(&backup.join("000003/databases/0000000002"), ".log").pop().unwrap();
    std::fs::remove_file(file).unwrap();
    let (code, text) = run(&["restore", backup_text, home.path().join("newer").to_str().unwrap()]);
    assert!(code == 1 && text.contains("it is missing"), "{text}");
    std::fs::remove_file(backup.join("000003/complete")).unwrap();
    let (code, text) = run(&["check", backup.join("000003").to_str().unwrap()]);
    assert!(code == 1 && text.contains("this run isn't whole"), "{text}");
    let (code, text) = run(&["restore", backup_text, home.path().join("newer").to_str().unwrap()]);
    assert!(code == 1 && text.contains("000002"), "{text}");
}
