//! Backups of the server while clients write to it, and of edited copies of it.
//!
//! A cycle has these steps. It backs the server up, restores the backup as a copy and compares the copy with
//! the writers' models. It edits the copy without changing sizes. It backs up the server again, and then the
//! copy, all to the same directory. It compares the copy's backup with the copy, and the server's with the
//! models. So the directory gets backups of two timelines, whose files have the same names and often the same
//! sizes.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::client::{Context, Failure, Http, Reply, StepResult, wrong};
use super::model::{BackupWindow, DocState, body};
use super::writers::check_file;
use crate::error::Error;
use crate::process::ServerProcess;

/// Pause between two cycles.
const CYCLE_PAUSE: Duration = Duration::from_secs(5);

/// Maximum number of documents of each database that are edited in a restored copy.
const EDITED_MAX: usize = 300;

/// Number of backups that are kept. The next backup shares files with the last.
const BACKUPS_KEPT: usize = 2;

/// The client that makes, restores and compares backups.
pub(super) struct Backups {
    program: PathBuf,
    directory: PathBuf,
    /// Number of restored copies.
    copies: u64,
    /// Number of the server's backups that were compared with the models.
    pub(super) compared: u64,
    /// Number of backups of edited copies that were compared with the copies.
    pub(super) compared_copies: u64,
}

/// A backup of the server under test.
struct Backup {
    path: PathBuf,
    /// The states that it may contain, for each writer.
    windows: Vec<BackupWindow>,
    /// Each database's `update_seq` before the backup.
    positions: Vec<String>,
    /// The server's uuid.
    uuid: Value,
}

/// A server on a restored backup.
struct Restored {
    directory: PathBuf,
    server: ServerProcess,
}

/// Runs cycles of backups for as long as the clients run.
pub(super) async fn run(context: &Context, backups: &Mutex<Backups>) -> Result<(), String> {
    while context.wait_until_running().await {
        let done = backups.lock().await.cycle(context).await;
        if let Err(failure) = done {
            context.accept_if_killed("the backups", failure).await?;
        }
        tokio::time::sleep(CYCLE_PAUSE).await;
    }
    Ok(())
}

impl Backups {
    pub(super) fn new(program: &Path, directory: &Path) -> Backups {
        let (program, directory) = (program.to_owned(), directory.join("backups"));
        Backups { program, directory, copies: 0, compared: 0, compared_copies: 0 }
    }

    /// Runs one cycle. It fails with [`Failure::Broken`] if the server is killed meanwhile.
    pub(super) async fn cycle(&mut self, context: &Context) -> StepResult<()> {
        self.remove_old().or_else(|error| wrong(error.to_string()))?;
        let first = self.back_up(context).await?;
        let copy = self.restore(&first.path).await?;
        compare_backup(context, &first, &copy).await.map_err(copy_failure)?;
        self.compared += 1;
        edit(context, &copy).await.map_err(copy_failure)?;
        let second = self.back_up(context).await?;
        let third = self.request_backup(&mut Http::new(copy.server.server())).await;
        let copy_of_copy = self.restore(&third.map_err(copy_failure)?).await?;
        compare_copies(context, &copy, &copy_of_copy).await.map_err(copy_failure)?;
        self.compared_copies += 1;
        drop((copy, copy_of_copy));
        let copy = self.restore(&second.path).await?;
        compare_backup(context, &second, &copy).await.map_err(copy_failure)?;
        self.compared += 1;
        Ok(())
    }

    /// Backs the server up and records the states that the backup may contain.
    async fn back_up(&self, context: &Context) -> StepResult<Backup> {
        let mut http = Http::new(&context.server);
        let uuid = http.get("/").await?.expect("a greeting", &[200])?.json()?["uuid"].clone();
        let mut positions = Vec::new();
        for database in &context.databases {
            let info = http.get(&format!("/{database}")).await?.expect("a database", &[200])?.json()?;
            positions.push(info["update_seq"].as_str().unwrap_or_default().to_owned());
        }
        for model in &context.models {
            model.lock().await.begin_window();
        }
        let path = self.request_backup(&mut http).await?;
        let mut windows = Vec::new();
        for model in &context.models {
            windows.push(model.lock().await.window.take().unwrap_or_default());
        }
        Ok(Backup { path, windows, positions, uuid })
    }

    /// Makes a server back itself up to the directory of all backups. Returns the backup's path.
    async fn request_backup(&self, http: &mut Http) -> StepResult<PathBuf> {
        let request = json!({ "directory": self.directory.join("runs") });
        let answer = http.post("/_settee/backup", &request).await?.expect("a backup", &[201])?;
        Ok(PathBuf::from(answer.json()?["directory"].as_str().unwrap_or_default()))
    }

    /// Checks a backup, restores it, and starts a server on the copy.
    async fn restore(&mut self, backup: &Path) -> StepResult<Restored> {
        self.copies += 1;
        let directory = self.directory.join(format!("copy-{}", self.copies));
        self.command(&["check".as_ref(), backup]).await?;
        self.command(&["restore".as_ref(), backup, &directory.join("data")]).await?;
        let started = ServerProcess::start(&self.program, &directory, None, &[]).await;
        Ok(Restored { server: started.or_else(|error| wrong(error.to_string()))?, directory })
    }

    async fn command(&self, arguments: &[&Path]) -> StepResult<()> {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null());
        let shown = format!("{command:?}");
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        match output {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let text = [output.stdout, output.stderr].concat();
                wrong(format!("{shown}: {}: {}", output.status, String::from_utf8_lossy(&text)))
            }
            failed => wrong(format!("{shown}: {failed:?}")),
        }
    }

    /// Removes copies and backups of earlier cycles, except for the last backups.
    fn remove_old(&self) -> Result<(), Error> {
        let error = |error| Error::file(&self.directory, error);
        for directory in [self.directory.clone(), self.directory.join("runs")] {
            fs::create_dir_all(&directory).map_err(error)?;
            let entries = fs::read_dir(&directory).map_err(error)?;
            let paths: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            let kept = if directory == self.directory { 1 } else { BACKUPS_KEPT };
            let last = paths.len().saturating_sub(kept);
            // In the outer directory, `runs` sorts last and is kept.
            paths.iter().take(last).try_for_each(fs::remove_dir_all).map_err(error)?;
        }
        Ok(())
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        self.server.kill();
        // The next cycle removes it if this fails.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Makes a broken connection to a copy a violation: copies aren't killed.
fn copy_failure(failure: Failure) -> Failure {
    match failure {
        Failure::Broken(error) => Failure::Wrong(format!("a restored copy broke the connection: {error}")),
        wrong => wrong,
    }
}

/// Compares a restored backup with the writers' models.
async fn compare_backup(context: &Context, backup: &Backup, copy: &Restored) -> StepResult<()> {
    let mut http = Http::new(copy.server.server());
    let shown = backup.path.display();
    if http.get("/").await?.json()?["uuid"] == backup.uuid {
        return wrong(format!("{shown}: the copy has the server's uuid"));
    }
    for (number, database) in context.databases.iter().enumerate() {
        let rows = rows(&http.get(&format!("/{database}/_all_docs?include_docs=true")).await?)?;
        let mut docs: HashMap<String, Value> = HashMap::new();
        for mut row in rows {
            docs.insert(row["id"].as_str().unwrap_or_default().to_owned(), row["doc"].take());
        }
        for window in backup.windows.iter().skip(number).step_by(context.databases.len()) {
            for id in window.ids() {
                let found = docs.remove(id);
                match window.state_of(id, found.as_ref()) {
                    Ok(DocState::Live { files, .. }) => {
                        for (name, file) in files {
                            let target = format!("/{database}/{id}/{name}");
                            check_file(&target, file, &http.get(&target).await?)?;
                        }
                    }
                    Ok(_) => {}
                    Err(reason) => return wrong(format!("{shown}: {database}/{id}: {reason}")),
                }
            }
            compare_locals(&mut http, database, window).await?;
        }
        // Documents written with response 202, whose ids begin with `m`, may be there or not.
        if let Some(id) = docs.keys().find(|id| !id.starts_with('m')) {
            return wrong(format!("{shown}: no writer wrote {database}/{id} before"));
        }
        let since = &backup.positions[number];
        let [all, rest] = ["0", since.as_str()].map(|since| format!("/{database}/_changes?since={since}"));
        let (all, rest) = (changes(&http.get(&all).await?)?, changes(&http.get(&rest).await?)?);
        if all != rest {
            let (rest, all) = (rest.len(), all.len());
            return wrong(format!("{shown}: a follower at {since} receives {rest} changes of {all}"));
        }
    }
    Ok(())
}

async fn compare_locals(http: &mut Http, database: &str, window: &BackupWindow) -> StepResult<()> {
    for (name, (may_be_missing, seeds)) in window.locals() {
        let target = format!("/{database}/_local/{name}");
        let answer = http.get(&target).await?.expect("a local document", &[200, 404])?;
        let found = answer.json()?;
        let seed = found["seed"].as_str().and_then(|text| text.parse::<u64>().ok());
        let is_whole = |seed| body(seed).iter().all(|(name, value)| found[name] == *value);
        let is_right = match seed {
            Some(seed) => seeds.contains(&seed) && is_whole(seed),
            None => may_be_missing && answer.status == 404,
        };
        if !is_right {
            return wrong(format!("{target}: {}; expected: {seeds:?}", answer.shown()));
        }
    }
    Ok(())
}

/// Replaces texts in a restored copy by texts of the same size.
async fn edit(context: &Context, copy: &Restored) -> StepResult<()> {
    let mut http = Http::new(copy.server.server());
    for database in &context.databases {
        let target = format!("/{database}/_all_docs?include_docs=true&limit={EDITED_MAX}");
        let mut docs = Vec::new();
        for mut row in rows(&http.get(&target).await?)? {
            let mut doc = row["doc"].take();
            let text: String = doc["text"].as_str().unwrap_or_default().chars().rev().collect();
            doc["text"] = text.into();
            docs.push(doc);
        }
        let target = format!("/{database}/_bulk_docs");
        let answer = http.post(&target, &json!({ "docs": docs })).await?.expect("a bulk", &[201])?;
        if answer.json()?.as_array().into_iter().flatten().any(|row| row["rev"].is_null()) {
            return wrong(format!("a copy's edits: {}", answer.shown()));
        }
    }
    Ok(())
}

/// Compares a restored backup of a copy with the copy, which no client writes to: documents, attachments and
/// changes.
async fn compare_copies(context: &Context, copy: &Restored, copy_of_copy: &Restored) -> StepResult<()> {
    let mut servers = [copy, copy_of_copy].map(|copy| Http::new(copy.server.server()));
    for database in &context.databases {
        let [http, other] = &mut servers;
        let target = format!("/{database}/_all_docs?include_docs=true&attachments=true");
        let (one, two) = (http.get(&target).await?, other.get(&target).await?);
        if one.status != 200 || (one.status, &one.body) != (two.status, &two.body) {
            return wrong(format!("a backup of a copy has other documents in {database} than the copy"));
        }
        let target = format!("/{database}/_changes?style=all_docs");
        if changes(&http.get(&target).await?)? != changes(&other.get(&target).await?)? {
            return wrong(format!("a backup of a copy has other changes in {database} than the copy"));
        }
    }
    Ok(())
}

fn rows(answer: &Reply) -> StepResult<Vec<Value>> {
    match answer.json()?["rows"].take() {
        Value::Array(rows) => Ok(rows),
        _ => wrong(format!("a list has no rows: {}", answer.shown())),
    }
}

/// The rows of a changes feed without their `seq`.
fn changes(answer: &Reply) -> StepResult<Vec<Value>> {
    let Value::Array(mut rows) = answer.json()?["results"].take() else {
        return wrong(format!("no changes: {}", answer.shown()));
    };
    rows.iter_mut().for_each(|row| row["seq"] = Value::Null);
    Ok(rows)
}
