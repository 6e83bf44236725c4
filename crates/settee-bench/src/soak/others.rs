//! Clients that list, that are slow or abort requests, and one that creates and deletes databases.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{Context, Failure, Http, StepResult, wrong};
use super::model::{Random, content};

/// Number of documents of a temporary database.
const TEMPORARY_DOCS: usize = 10;

/// Maximum number of temporary databases at the same time.
const TEMPORARY_MAX: usize = 5;

/// Pause between two listings.
const LIST_PAUSE: Duration = Duration::from_millis(50);

/// Pause between two operations of the administrator.
const ADMINISTER_PAUSE: Duration = Duration::from_millis(500);

/// Reads listings and checks that their rows are in order.
pub(super) async fn list(context: &Context, index: usize) -> Result<(), String> {
    let mut random = Random::new(context.seed ^ 0x5ead ^ ((index as u64) << 20));
    while context.wait_until_running().await {
        let mut http = Http::new(&context.server);
        while context.is_running() {
            if let Err(failure) = list_once(context, &mut http, &mut random).await {
                context.accept_if_killed(&format!("reader {index}"), failure).await?;
                break;
            }
            tokio::time::sleep(LIST_PAUSE).await;
        }
    }
    Ok(())
}

async fn list_once(context: &Context, http: &mut Http, random: &mut Random) -> StepResult<()> {
    let database = &context.databases[random.below(context.databases.len() as u64) as usize];
    let start = format!("w{}-{:08}", random.below(10), random.below(2_000));
    match random.below(4) {
        0 | 1 => {
            let target = format!("/{database}/_all_docs?limit=100&include_docs=true&startkey=%22{start}%22");
            let answer = http.get(&target).await?.expect("a list", &[200])?.json()?;
            let rows = answer["rows"].as_array().map_or(&[][..], Vec::as_slice);
            let ids: Vec<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
            if ids.len() != rows.len() || !ids.is_sorted() || ids.first().is_some_and(|id| **id < *start) {
                return wrong(format!("{target}: its rows are out of order"));
            }
            if rows.iter().any(|row| row["doc"]["_rev"] != row["value"]["rev"]) {
                return wrong(format!("{target}: a row's document has another revision"));
            }
        }
        2 => {
            let target = format!("/{database}/_changes?limit=100&descending=true&include_docs=true");
            http.get(&target).await?.expect("changes", &[200])?.json()?;
        }
        _ => {
            let wanted = json!({ "docs": [{ "id": start }, { "id": "none" }] });
            let target = format!("/{database}/_bulk_get?revs=true");
            http.post(&target, &wanted).await?.expect("a bulk get", &[200])?.json()?;
        }
    }
    Ok(())
}

/// Aborts requests, or reads responses slowly. None of its requests may store anything.
pub(super) async fn run_slow_client(context: &Context, index: usize) -> Result<(), String> {
    let mut random = Random::new(context.seed ^ 0xa807 ^ ((index as u64) << 20));
    let mut number = 0_u64;
    while context.wait_until_running().await {
        while context.is_running() {
            number += 1;
            let id = format!("abort{index}-{number}");
            let database = context.databases[random.below(context.databases.len() as u64) as usize].clone();
            context.aborted.lock().expect("not poisoned").push((database.clone(), id.clone()));
            // Errors are expected: the client aborts its requests.
            let _ = abort_once(context, &database, &id, &mut random).await;
            tokio::time::sleep(Duration::from_millis(20 + random.below(200))).await;
        }
    }
    Ok(())
}

async fn abort_once(context: &Context, database: &str, id: &str, random: &mut Random) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(context.server.address()).await?;
    let host = context.server.address();
    let head = |target: &str, length: usize| {
        format!(
            "PUT /{database}/{target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: text/plain\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    match random.below(5) {
        // Half a head.
        0 => stream.write_all(format!("PUT /{database}/{id} HTT").as_bytes()).await?,
        // Half a document.
        1 => {
            stream.write_all(head(id, 1_000).as_bytes()).await?;
            stream.write_all(b"{\"half\":[1,2,").await?;
        }
        // Part of an attachment, of which the server has stored chunks by then.
        2 | 3 => {
            let bytes = content(random.next(), 1 + random.size(3 << 20), random.below(2) == 0);
            stream.write_all(head(&format!("{id}/file"), bytes.len() + 100).as_bytes()).await?;
            stream.write_all(&bytes).await?;
            tokio::time::sleep(Duration::from_millis(random.below(300))).await;
        }
        // A response that is read slowly, and not to its end.
        _ => {
            let request =
                format!("GET /{database}/_all_docs?include_docs=true HTTP/1.1\r\nHost: {host}\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut buffer = vec![0; 4 << 10];
            for _ in 0..20 {
                if stream.read(&mut buffer).await? == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    Ok(())
}

/// Checks that aborted requests have stored nothing. Returns their number.
pub(super) async fn verify_aborted(context: &Context, http: &mut Http) -> StepResult<usize> {
    let aborted = std::mem::take(&mut *context.aborted.lock().expect("not poisoned"));
    for (database, id) in &aborted {
        http.get(&format!("/{database}/{id}")).await?.expect("half a request", &[404])?;
    }
    Ok(aborted.len())
}

/// The expected state of a temporary database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Temporary {
    /// Its creation has no response yet.
    Creating,
    /// Created. `has_docs` is set once its documents are acknowledged.
    Created { has_docs: bool },
    /// Its deletion has no response yet.
    Deleting,
}

/// The administrator's model of the temporary databases.
#[derive(Debug, Default)]
pub(super) struct Admin {
    temporary: BTreeMap<String, Temporary>,
    deleted: Vec<String>,
    next: u64,
    pub(super) compactions: u64,
}

/// Compacts databases and creates and deletes temporary ones.
pub(super) async fn administer(context: &Context, admin: &tokio::sync::Mutex<Admin>) -> Result<(), String> {
    let mut random = Random::new(context.seed ^ 0xad31);
    while context.wait_until_running().await {
        let mut http = Http::new(&context.server);
        let mut admin = admin.lock().await;
        while context.is_running() {
            let failure = match random.below(4) {
                0 => compact(context, &mut http, &mut admin, &mut random).await,
                1 | 2 => create(&mut http, &mut admin).await,
                _ => delete(&mut http, &mut admin).await,
            };
            if let Err(failure) = failure {
                context.accept_if_killed("the administrator", failure).await?;
                break;
            }
            tokio::time::sleep(ADMINISTER_PAUSE).await;
        }
    }
    Ok(())
}

async fn compact(
    context: &Context,
    http: &mut Http,
    admin: &mut Admin,
    random: &mut Random,
) -> StepResult<()> {
    let database = &context.databases[random.below(context.databases.len() as u64) as usize];
    http.post(&format!("/{database}/_compact"), &json!({})).await?.expect("a compaction", &[202])?;
    admin.compactions += 1;
    Ok(())
}

async fn create(http: &mut Http, admin: &mut Admin) -> StepResult<()> {
    if admin.temporary.len() >= TEMPORARY_MAX {
        return Ok(());
    }
    admin.next += 1;
    let name = format!("temporary-{}", admin.next);
    admin.temporary.insert(name.clone(), Temporary::Creating);
    http.send("PUT", &format!("/{name}"), None).await?.expect("a database", &[201])?;
    admin.temporary.insert(name.clone(), Temporary::Created { has_docs: false });
    let docs: Vec<Value> = (0..TEMPORARY_DOCS).map(|number| json!({ "_id": format!("t{number}") })).collect();
    http.post(&format!("/{name}/_bulk_docs"), &json!({ "docs": docs })).await?.expect("a bulk", &[201])?;
    admin.temporary.insert(name, Temporary::Created { has_docs: true });
    Ok(())
}

async fn delete(http: &mut Http, admin: &mut Admin) -> StepResult<()> {
    let created = admin.temporary.iter().find(|(_, state)| matches!(state, Temporary::Created { .. }));
    let Some(name) = created.map(|(name, _)| name.clone()) else { return Ok(()) };
    admin.temporary.insert(name.clone(), Temporary::Deleting);
    http.send("DELETE", &format!("/{name}"), None).await?.expect("a deletion", &[200])?;
    admin.temporary.remove(&name);
    admin.deleted.push(name);
    Ok(())
}

impl Admin {
    /// Compares the model with the server and resolves the operations without a response.
    pub(super) async fn verify(&mut self, http: &mut Http) -> StepResult<()> {
        for name in std::mem::take(&mut self.deleted) {
            http.get(&format!("/{name}")).await?.expect("a deleted database", &[404])?;
        }
        for (name, state) in std::mem::take(&mut self.temporary) {
            let answer = http.get(&format!("/{name}")).await?;
            let count = if answer.status == 200 { answer.json()?["doc_count"].as_u64() } else { None };
            let is_right = match state {
                Temporary::Creating | Temporary::Deleting => [200, 404].contains(&answer.status),
                Temporary::Created { has_docs: false } => count.is_some(),
                Temporary::Created { has_docs: true } => count == Some(TEMPORARY_DOCS as u64),
            };
            if !is_right {
                return Err(Failure::Wrong(format!("{name} ({state:?}): {}", answer.shown())));
            }
            if answer.status == 200 {
                self.temporary
                    .insert(name, Temporary::Created { has_docs: count == Some(TEMPORARY_DOCS as u64) });
            }
        }
        Ok(())
    }
}
