//! Backups of the server while clients write to it, and of restored copies of it beside them.
//!
//! A cycle backs the server up, restores the run and compares it with what the writers know; edits the
//! restored copy, keeping sizes; backs the server up again, and then the copy, all to the same place; and
//! compares the copy's run with the copy, and the server's with what the writers know. So runs of two
//! timelines follow each other, whose files have the same names and often the same sizes.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::client::{Answer, Http, Shared, Step, Trouble, wrong};
use super::model::{State, Window, body};
use super::server::Subject;
use super::writers::check_file;
use crate::error::Error;

/// Pause between two cycles.
const CYCLE_EVERY: Duration = Duration::from_secs(5);

/// Documents of each database that are edited in a restored copy.
const EDITED_MAX: usize = 300;

/// Runs that are kept: the next one shares files with the last.
const RUNS_KEPT: usize = 2;

/// Makes backups, restores and compares them.
pub(super) struct Backups {
    program: PathBuf,
    directory: PathBuf,
    copies: u64,
    /// Runs of the server that were compared with what its writers know.
    pub(super) compared: u64,
    /// Runs of restored and edited copies that were compared with those.
    pub(super) compared_copies: u64,
}

/// A run of the server under test.
struct Run {
    path: PathBuf,
    /// What it may hold of each writer's documents.
    windows: Vec<Window>,
    /// Where each database was before.
    positions: Vec<String>,
    uuid: Value,
}

/// A server on a restored run.
struct Restored {
    directory: PathBuf,
    subject: Subject,
}

/// Makes backups for as long as the clients run.
pub(super) async fn run(shared: &Shared, backups: &Mutex<Backups>) -> Result<(), String> {
    while shared.runs().await {
        let done = backups.lock().await.cycle(shared).await;
        if let Err(trouble) = done {
            shared.excuse("the backups", trouble).await?;
        }
        tokio::time::sleep(CYCLE_EVERY).await;
    }
    Ok(())
}

impl Backups {
    pub(super) fn new(program: &Path, directory: &Path) -> Backups {
        let (program, directory) = (program.to_owned(), directory.join("backups"));
        Backups { program, directory, copies: 0, compared: 0, compared_copies: 0 }
    }

    /// One cycle. Where the server is killed meanwhile, it is left off.
    pub(super) async fn cycle(&mut self, shared: &Shared) -> Step<()> {
        self.tidy().or_else(|error| wrong(error.to_string()))?;
        let first = self.back_up(shared).await?;
        let copy = self.restore(&first.path).await?;
        compare_run(shared, &first, &copy).await.map_err(of_copy)?;
        self.compared += 1;
        edit(shared, &copy).await.map_err(of_copy)?;
        let second = self.back_up(shared).await?;
        let third = self.back_up_to_same_place(&mut Http::new(&copy.subject.server())).await;
        let again = self.restore(&third.map_err(of_copy)?).await?;
        compare_copies(shared, &copy, &again).await.map_err(of_copy)?;
        self.compared_copies += 1;
        drop((copy, again));
        let copy = self.restore(&second.path).await?;
        compare_run(shared, &second, &copy).await.map_err(of_copy)?;
        self.compared += 1;
        Ok(())
    }

    /// Backs the server up.
    async fn back_up(&self, shared: &Shared) -> Step<Run> {
        let mut http = Http::new(&shared.server);
        let uuid = http.get("/").await?.expect("a greeting", &[200])?.json()?["uuid"].clone();
        let mut positions = Vec::new();
        for database in &shared.databases {
            let info = http.get(&format!("/{database}")).await?.expect("a database", &[200])?.json()?;
            positions.push(info["update_seq"].as_str().unwrap_or_default().to_owned());
        }
        for model in &shared.models {
            model.lock().await.begin_window();
        }
        let path = self.back_up_to_same_place(&mut http).await?;
        let mut windows = Vec::new();
        for model in &shared.models {
            windows.push(model.lock().await.window.take().unwrap_or_default());
        }
        Ok(Run { path, windows, positions, uuid })
    }

    async fn back_up_to_same_place(&self, http: &mut Http) -> Step<PathBuf> {
        let asked = json!({ "folder": self.directory.join("runs") });
        let answer = http.post("/_settee/backup", &asked).await?.expect("a backup", &[201])?;
        Ok(PathBuf::from(answer.json()?["folder"].as_str().unwrap_or_default()))
    }

    /// Checks a run, restores it, and starts a server on the copy.
    async fn restore(&mut self, run: &Path) -> Step<Restored> {
        self.copies += 1;
        let directory = self.directory.join(format!("copy-{}", self.copies));
        self.command(&["check".as_ref(), run]).await?;
        self.command(&["restore".as_ref(), run, &directory.join("data")]).await?;
        let started = Subject::start(&self.program, &directory).await;
        Ok(Restored { subject: started.or_else(|error| wrong(error.to_string()))?, directory })
    }

    async fn command(&self, arguments: &[&Path]) -> Step<()> {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null());
        let shown = format!("{command:?}");
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        match output {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let said = [output.stdout, output.stderr].concat();
                wrong(format!("{shown}: {}: {}", output.status, String::from_utf8_lossy(&said)))
            }
            failed => wrong(format!("{shown}: {failed:?}")),
        }
    }

    /// Removes what earlier cycles left, but for the last runs.
    fn tidy(&self) -> Result<(), Error> {
        let error = |error| Error::file(&self.directory, error);
        for place in [self.directory.clone(), self.directory.join("runs")] {
            fs::create_dir_all(&place).map_err(error)?;
            let entries = fs::read_dir(&place).map_err(error)?;
            let paths: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            let kept = if place == self.directory { 1 } else { RUNS_KEPT };
            let last = paths.len().saturating_sub(kept);
            // Of the directory itself the runs come last.
            paths.iter().take(last).try_for_each(fs::remove_dir_all).map_err(error)?;
        }
        Ok(())
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        self.subject.kill();
        // What stays is removed by the next cycle.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Nobody kills a copy: it may not break off.
fn of_copy(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Broken(error) => Trouble::Wrong(format!("a restored copy broke off: {error}")),
        wrong => wrong,
    }
}

/// Compares a restored run with what the writers know.
async fn compare_run(shared: &Shared, run: &Run, copy: &Restored) -> Step<()> {
    let mut http = Http::new(&copy.subject.server());
    let shown = run.path.display();
    if http.get("/").await?.json()?["uuid"] == run.uuid {
        return wrong(format!("{shown}: the copy has the server's uuid"));
    }
    for (number, database) in shared.databases.iter().enumerate() {
        let rows = rows(&http.get(&format!("/{database}/_all_docs?include_docs=true")).await?)?;
        let mut docs: HashMap<String, Value> = HashMap::new();
        for mut row in rows {
            docs.insert(row["id"].as_str().unwrap_or_default().to_owned(), row["doc"].take());
        }
        for window in run.windows.iter().skip(number).step_by(shared.databases.len()) {
            for id in window.ids() {
                let found = docs.remove(id);
                match window.state_of(id, found.as_ref()) {
                    Ok(State::Live { files, .. }) => {
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
        // Of what a 202 promised nothing of there may be anything.
        if let Some(id) = docs.keys().find(|id| !id.starts_with('m')) {
            return wrong(format!("{shown}: nobody wrote {database}/{id} before"));
        }
        let since = &run.positions[number];
        let [all, told] = ["0", since.as_str()].map(|since| format!("/{database}/_changes?since={since}"));
        let (all, told) = (changes(&http.get(&all).await?)?, changes(&http.get(&told).await?)?);
        if all != told {
            return wrong(format!("{shown}: a follower at {since} is told {} of {}", told.len(), all.len()));
        }
    }
    Ok(())
}

async fn compare_locals(http: &mut Http, database: &str, window: &Window) -> Step<()> {
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
            return wrong(format!("{target}: {}; known: {seeds:?}", answer.shown()));
        }
    }
    Ok(())
}

/// Replaces texts in a restored copy by others of the same size.
async fn edit(shared: &Shared, copy: &Restored) -> Step<()> {
    let mut http = Http::new(&copy.subject.server());
    for database in &shared.databases {
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

/// Compares a run of a copy with the copy, which nobody writes to: documents, attachments and changes.
async fn compare_copies(shared: &Shared, copy: &Restored, again: &Restored) -> Step<()> {
    let mut servers = [copy, again].map(|copy| Http::new(&copy.subject.server()));
    for database in &shared.databases {
        let [http, other] = &mut servers;
        let target = format!("/{database}/_all_docs?include_docs=true&attachments=true");
        let (one, two) = (http.get(&target).await?, other.get(&target).await?);
        if one.status != 200 || (one.status, &one.body) != (two.status, &two.body) {
            return wrong(format!("a run of a copy has other documents in {database} than the copy"));
        }
        let target = format!("/{database}/_changes?style=all_docs");
        if changes(&http.get(&target).await?)? != changes(&other.get(&target).await?)? {
            return wrong(format!("a run of a copy has other changes in {database} than the copy"));
        }
    }
    Ok(())
}

fn rows(answer: &Answer) -> Step<Vec<Value>> {
    match answer.json()?["rows"].take() {
        Value::Array(rows) => Ok(rows),
        _ => wrong(format!("a list has no rows: {}", answer.shown())),
    }
}

/// Rows of the changes without their positions.
fn changes(answer: &Answer) -> Step<Vec<Value>> {
    let Value::Array(mut rows) = answer.json()?["results"].take() else {
        return wrong(format!("no changes: {}", answer.shown()));
    };
    rows.iter_mut().for_each(|row| row["seq"] = Value::Null);
    Ok(rows)
}
