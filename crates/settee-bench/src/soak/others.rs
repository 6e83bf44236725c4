//! Clients that list, that are slow or go away half-way, and one that makes and deletes databases.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{Http, Shared, Step, Trouble, wrong};
use super::model::{Random, content};

/// Documents of a database that is made to be deleted.
const TEMPORARY_DOCS: usize = 10;

/// Databases that are there at once, besides those of the writers.
const TEMPORARY_MAX: usize = 5;

/// Pause between two lists.
const LIST_EVERY: Duration = Duration::from_millis(50);

/// Pause between two things that the administrator does.
const ADMINISTER_EVERY: Duration = Duration::from_millis(500);

/// Reads lists, whose rows must be in order.
pub(super) async fn list(shared: &Shared, index: usize) -> Result<(), String> {
    let mut random = Random::new(shared.seed ^ 0x5ead ^ ((index as u64) << 20));
    while shared.runs().await {
        let mut http = Http::new(&shared.server);
        while shared.is_running() {
            if let Err(trouble) = list_once(shared, &mut http, &mut random).await {
                shared.excuse(&format!("reader {index}"), trouble).await?;
                break;
            }
            tokio::time::sleep(LIST_EVERY).await;
        }
    }
    Ok(())
}

async fn list_once(shared: &Shared, http: &mut Http, random: &mut Random) -> Step<()> {
    let database = &shared.databases[random.below(shared.databases.len() as u64) as usize];
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

/// Begins requests and goes away, or reads answers slowly. Nothing of it is ever stored.
pub(super) async fn dawdle(shared: &Shared, index: usize) -> Result<(), String> {
    let mut random = Random::new(shared.seed ^ 0xa807 ^ ((index as u64) << 20));
    let mut number = 0_u64;
    while shared.runs().await {
        while shared.is_running() {
            number += 1;
            let id = format!("abort{index}-{number}");
            let database = shared.databases[random.below(shared.databases.len() as u64) as usize].clone();
            shared.aborted.lock().expect("nobody panics with it").push((database.clone(), id.clone()));
            // It expects nothing of a server that it treats so: its errors are its own doing.
            let _ = dawdle_once(shared, &database, &id, &mut random).await;
            tokio::time::sleep(Duration::from_millis(20 + random.below(200))).await;
        }
    }
    Ok(())
}

async fn dawdle_once(shared: &Shared, database: &str, id: &str, random: &mut Random) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(shared.server.address()).await?;
    let host = shared.server.address();
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
        // Part of an attachment: chunks of it have been stored by then.
        2 | 3 => {
            let bytes = content(random.next(), 1 + random.size(3 << 20), random.below(2) == 0);
            stream.write_all(head(&format!("{id}/file"), bytes.len() + 100).as_bytes()).await?;
            stream.write_all(&bytes).await?;
            tokio::time::sleep(Duration::from_millis(random.below(300))).await;
        }
        // An answer that is read slowly, and never to its end.
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

/// Checks that nothing is there of what never came to its end.
pub(super) async fn verify_aborted(shared: &Shared, http: &mut Http) -> Step<usize> {
    let aborted = std::mem::take(&mut *shared.aborted.lock().expect("nobody panics with it"));
    for (database, id) in &aborted {
        http.get(&format!("/{database}/{id}")).await?.expect("half a request", &[404])?;
    }
    Ok(aborted.len())
}

/// What is known of a database that is made to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Temporary {
    /// Asked for, and not answered.
    Making,
    /// There, with documents or maybe with them.
    Made {
        has_docs: bool,
    },
    Deleting,
}

/// What the administrator knows.
#[derive(Debug, Default)]
pub(super) struct Admin {
    temporary: BTreeMap<String, Temporary>,
    deleted: Vec<String>,
    next: u64,
    pub(super) compactions: u64,
}

/// Compacts, makes databases and deletes them.
pub(super) async fn administer(shared: &Shared, admin: &tokio::sync::Mutex<Admin>) -> Result<(), String> {
    let mut random = Random::new(shared.seed ^ 0xad31);
    while shared.runs().await {
        let mut http = Http::new(&shared.server);
        let mut admin = admin.lock().await;
        while shared.is_running() {
            let trouble = match random.below(4) {
                0 => compact(shared, &mut http, &mut admin, &mut random).await,
                1 | 2 => make(&mut http, &mut admin).await,
                _ => delete(&mut http, &mut admin).await,
            };
            if let Err(trouble) = trouble {
                shared.excuse("the administrator", trouble).await?;
                break;
            }
            tokio::time::sleep(ADMINISTER_EVERY).await;
        }
    }
    Ok(())
}

async fn compact(shared: &Shared, http: &mut Http, admin: &mut Admin, random: &mut Random) -> Step<()> {
    let database = &shared.databases[random.below(shared.databases.len() as u64) as usize];
    http.post(&format!("/{database}/_compact"), &json!({})).await?.expect("a compaction", &[202])?;
    admin.compactions += 1;
    Ok(())
}

async fn make(http: &mut Http, admin: &mut Admin) -> Step<()> {
    if admin.temporary.len() >= TEMPORARY_MAX {
        return Ok(());
    }
    admin.next += 1;
    let name = format!("temporary-{}", admin.next);
    admin.temporary.insert(name.clone(), Temporary::Making);
    http.send("PUT", &format!("/{name}"), None).await?.expect("a database", &[201])?;
    admin.temporary.insert(name.clone(), Temporary::Made { has_docs: false });
    let docs: Vec<Value> = (0..TEMPORARY_DOCS).map(|number| json!({ "_id": format!("t{number}") })).collect();
    http.post(&format!("/{name}/_bulk_docs"), &json!({ "docs": docs })).await?.expect("a bulk", &[201])?;
    admin.temporary.insert(name, Temporary::Made { has_docs: true });
    Ok(())
}

async fn delete(http: &mut Http, admin: &mut Admin) -> Step<()> {
    let made = admin.temporary.iter().find(|(_, state)| matches!(state, Temporary::Made { .. }));
    let Some(name) = made.map(|(name, _)| name.clone()) else { return Ok(()) };
    admin.temporary.insert(name.clone(), Temporary::Deleting);
    http.send("DELETE", &format!("/{name}"), None).await?.expect("a deletion", &[200])?;
    admin.temporary.remove(&name);
    admin.deleted.push(name);
    Ok(())
}

impl Admin {
    /// Compares what is known with what is there. What was never answered is settled.
    pub(super) async fn verify(&mut self, http: &mut Http) -> Step<()> {
        for name in std::mem::take(&mut self.deleted) {
            http.get(&format!("/{name}")).await?.expect("a deleted database", &[404])?;
        }
        for (name, state) in std::mem::take(&mut self.temporary) {
            let answer = http.get(&format!("/{name}")).await?;
            let count = if answer.status == 200 { answer.json()?["doc_count"].as_u64() } else { None };
            let is_right = match state {
                Temporary::Making | Temporary::Deleting => [200, 404].contains(&answer.status),
                Temporary::Made { has_docs: false } => count.is_some(),
                Temporary::Made { has_docs: true } => count == Some(TEMPORARY_DOCS as u64),
            };
            if !is_right {
                return Err(Trouble::Wrong(format!("{name} ({state:?}): {}", answer.shown())));
            }
            if answer.status == 200 {
                self.temporary
                    .insert(name, Temporary::Made { has_docs: count == Some(TEMPORARY_DOCS as u64) });
            }
        }
        Ok(())
    }
}
