//! Clients that write their own documents, read them back, and compare them with their models.

use std::collections::BTreeMap;

use md5::{Digest as _, Md5};
use serde_json::{Value, json};

use super::client::{Context, Http, Reply, StepResult, wrong};
use super::model::{Doc, DocState, File, Model, Random, body, judge};

/// Number of documents of a client, deleted ones included, from which on it adds none singly, so that the
/// data stops growing.
const DOCS_MAX: usize = 1_200;

/// Maximum number of documents of a client that have an attachment.
const FILES_MAX: usize = 60;

/// Maximum size of an attachment in bytes.
const FILE_BYTES_MAX: u64 = 2 << 20;

/// Number of documents of a bulk request.
const BULK_COUNT: u64 = 20;

/// Maximum number of a client's documents with response 202 that aren't verified yet.
const ACCEPTED_MAX: usize = 200;

/// Number of local documents of a client.
const LOCALS: u64 = 20;

/// Runs a client until the soak ends.
pub(super) async fn run(context: &Context, index: usize) -> Result<(), String> {
    let mut random = Random::new(context.seed ^ (index as u64 + 1));
    while context.wait_until_running().await {
        let mut http = Http::new(&context.server);
        loop {
            // Unlocked between two steps, so that a backup can begin a window.
            let mut model = context.models[index].lock().await;
            if !context.is_running() {
                break;
            }
            let database = format!("/{}", context.databases[index % context.databases.len()]);
            let writer =
                Writer { context, index, database, http: &mut http, model: &mut model, random: &mut random };
            let done = writer.step().await;
            model.counts.requests += std::mem::take(&mut http.requests);
            if let Err(failure) = done {
                context.accept_if_killed(&format!("writer {index}"), failure).await?;
                break;
            }
        }
    }
    Ok(())
}

struct Writer<'a> {
    context: &'a Context,
    index: usize,
    database: String,
    http: &'a mut Http,
    model: &'a mut Model,
    random: &'a mut Random,
}

impl Writer<'_> {
    async fn step(mut self) -> StepResult<()> {
        match self.random.below(100) {
            0..22 => self.put_new().await,
            22..42 => self.update().await,
            42..52 => self.delete().await,
            52..70 => self.read().await,
            70..76 => self.bulk().await,
            76..82 => self.local().await,
            82..88 => self.attach().await,
            88..92 => self.read_file().await,
            92..94 => self.stale().await,
            94..97 => self.put_accepted().await,
            _ => self.purge().await,
        }
    }

    fn path(&self, id: &str) -> String {
        format!("{}/{id}", self.database)
    }

    fn new_id(&mut self) -> String {
        self.model.next_id += 1;
        format!("w{}-{:08}", self.index, self.model.next_id)
    }

    fn draw(&mut self, wanted: impl Fn(&DocState) -> bool) -> Option<String> {
        self.model.draw(self.random, wanted)
    }

    /// Sends an edit and records its new revision.
    async fn edit(&mut self, id: &str, new: DocState, members: Value) -> StepResult<()> {
        self.model.send(id, new.clone());
        let answer = self.http.put(&self.path(id), &members).await?.expect("a put", &[201])?;
        self.acknowledge(id, new, &answer)
    }

    fn acknowledge(&mut self, id: &str, new: DocState, answer: &Reply) -> StepResult<()> {
        let body = answer.json()?;
        let Some(revision) = body["rev"].as_str() else {
            return wrong(format!("no revision: {}", answer.shown()));
        };
        self.model.set(id, with_revision(new, revision));
        Ok(())
    }

    async fn put_new(&mut self) -> StepResult<()> {
        let id = match self.model.ids.len() < DOCS_MAX {
            true => self.new_id(),
            // Recreates a deleted document.
            false => match self.draw(|state| matches!(state, DocState::Deleted(_))) {
                Some(id) => id,
                None => return self.delete().await,
            },
        };
        let seed = self.random.next();
        let new = DocState::Live { rev: String::new(), seed, files: BTreeMap::new() };
        self.edit(&id, new, Value::Object(body(seed))).await
    }

    async fn update(&mut self) -> StepResult<()> {
        let Some(id) = self.draw(DocState::is_live) else { return self.put_new().await };
        let (new, members) = self.updated(&id);
        self.edit(&id, new, members).await
    }

    /// An edit of a live document that keeps its attachments: the state after it, and the JSON text.
    fn updated(&mut self, id: &str) -> (DocState, Value) {
        let DocState::Live { rev, files, .. } = self.model.docs[id].state.clone() else {
            unreachable!("a live document was drawn");
        };
        let seed = self.random.next();
        let mut members = body(seed);
        members.insert("_id".to_owned(), id.into());
        members.insert("_rev".to_owned(), rev.into());
        if !files.is_empty() {
            let stubs = files.keys().map(|name| (name.clone(), json!({ "stub": true })));
            members.insert("_attachments".to_owned(), Value::Object(stubs.collect()));
        }
        (DocState::Live { rev: String::new(), seed, files }, Value::Object(members))
    }

    async fn delete(&mut self) -> StepResult<()> {
        let Some(id) = self.draw(DocState::is_live) else { return Ok(()) };
        let target =
            format!("{}?rev={}", self.path(&id), self.model.docs[&id].state.rev().unwrap_or_default());
        self.model.send(&id, DocState::Deleted(None));
        let answer = self.http.send("DELETE", &target, None).await?.expect("a delete", &[200])?;
        self.acknowledge(&id, DocState::Deleted(None), &answer)
    }

    async fn read(&mut self) -> StepResult<()> {
        let Some(id) = self.draw(|_| true) else { return Ok(()) };
        let answer = self.http.get(&self.path(&id)).await?;
        check(&id, &self.model.docs[&id], &answer).map(drop)
    }

    async fn bulk(&mut self) -> StepResult<()> {
        let mut docs: Vec<Value> = Vec::new();
        let mut news: Vec<(String, DocState)> = Vec::new();
        for _ in 0..BULK_COUNT {
            let drawn = self.draw(DocState::is_live);
            let (id, new, doc) = match drawn {
                Some(id) if self.random.below(2) == 0 || self.model.ids.len() >= DOCS_MAX => {
                    let (new, doc) = self.updated(&id);
                    (id, new, doc)
                }
                _ => {
                    let (id, seed) = (self.new_id(), self.random.next());
                    let mut members = body(seed);
                    members.insert("_id".to_owned(), id.as_str().into());
                    (id, DocState::Live { rev: String::new(), seed, files: BTreeMap::new() }, members.into())
                }
            };
            self.model.send(&id, new.clone());
            docs.push(doc);
            news.push((id, new));
        }
        let target = format!("{}/_bulk_docs", self.database);
        let answer = self.http.post(&target, &json!({ "docs": docs })).await?.expect("a bulk", &[201])?;
        let rows = answer.json()?;
        for (index, (id, new)) in news.into_iter().enumerate() {
            match (rows[index]["id"].as_str(), rows[index]["rev"].as_str()) {
                (Some(found), Some(revision)) if found == id => {
                    self.model.set(&id, with_revision(new, revision));
                }
                _ => return wrong(format!("a bulk's row for {id}: {}", rows[index])),
            }
        }
        Ok(())
    }

    async fn local(&mut self) -> StepResult<()> {
        let name = format!("l{}-{}", self.index, self.random.below(LOCALS));
        let target = format!("{}/_local/{name}", self.database);
        let (known, pending) = self.model.locals.get(&name).cloned().unwrap_or_default();
        if pending.is_some() {
            return Ok(());
        }
        let seed = self.random.next();
        let mut members = body(seed);
        if let Some((_, revision)) = &known {
            members.insert("_rev".to_owned(), revision.as_str().into());
        }
        self.model.send_local(&name, (known, Some(seed)));
        let answer = self.http.put(&target, &Value::Object(members)).await?.expect("a local put", &[201])?;
        let revision = answer.json()?["rev"].as_str().unwrap_or_default().to_owned();
        self.model.locals.insert(name, (Some((seed, revision)), None));
        self.model.counts.acknowledged += 1;
        Ok(())
    }

    async fn attach(&mut self) -> StepResult<()> {
        let has_file = |state: &DocState| matches!(state, DocState::Live { files, .. } if !files.is_empty());
        let holders = self.model.docs.values().filter(|doc| has_file(&doc.state)).count();
        let drawn = self.draw(|state| state.is_live() && (holders < FILES_MAX || has_file(state)));
        let Some(id) = drawn else { return Ok(()) };
        let DocState::Live { rev, seed, mut files } = self.model.docs[&id].state.clone() else {
            return Ok(());
        };
        let file = File {
            seed: self.random.next(),
            size: self.random.size(FILE_BYTES_MAX),
            is_text: self.random.below(2) == 0,
        };
        let name = format!("f{}", self.random.below(2));
        files.insert(name.clone(), file);
        let new = DocState::Live { rev: String::new(), seed, files };
        self.model.send(&id, new.clone());
        let target = format!("{}/{name}?rev={rev}", self.path(&id));
        let bytes = file.bytes();
        let answer = self.http.send("PUT", &target, Some((file.kind(), &bytes))).await?;
        let answer = answer.expect("an attachment", &[201])?;
        self.acknowledge(&id, new, &answer)
    }

    async fn read_file(&mut self) -> StepResult<()> {
        let drawn = self.draw(|state| matches!(state, DocState::Live { files, .. } if !files.is_empty()));
        let Some(id) = drawn else { return Ok(()) };
        let DocState::Live { files, .. } = &self.model.docs[&id].state else { return Ok(()) };
        let (name, file) = files.iter().next().map(|(name, file)| (name.clone(), *file)).expect("it has one");
        let target = format!("{}/{name}", self.path(&id));
        let answer = self.http.get(&target).await?;
        check_file(&target, &file, &answer)
    }

    /// Edits an outdated revision, which must be a conflict.
    async fn stale(&mut self) -> StepResult<()> {
        let Some(id) = self.draw(DocState::is_live) else { return Ok(()) };
        let stale = json!({ "_rev": "1-00000000000000000000000000000000", "stale": true });
        self.http.put(&self.path(&id), &stale).await?.expect("a stale put", &[409]).map(drop)
    }

    /// Writes a document with `batch=ok`, which the server may lose.
    async fn put_accepted(&mut self) -> StepResult<()> {
        if self.model.accepted.len() >= ACCEPTED_MAX {
            return Ok(());
        }
        let (id, seed) = (format!("m{}", self.new_id()), self.random.next());
        let target = format!("{}?batch=ok", self.path(&id));
        self.model.accepted.push((id, seed));
        self.http.put(&target, &Value::Object(body(seed))).await?.expect("batch=ok", &[202])?;
        self.model.counts.accepted += 1;
        Ok(())
    }

    async fn purge(&mut self) -> StepResult<()> {
        let drawn = self.draw(|state| matches!(state, DocState::Deleted(Some(_))));
        let Some(id) = drawn else { return Ok(()) };
        let revision = self.model.docs[&id].state.rev().unwrap_or_default().to_owned();
        // Recorded before the request: a follower may have received the document.
        self.context.purged.lock().expect("not poisoned").insert(id.clone());
        self.model.purged.insert(id.clone());
        self.model.remove(&id);
        let target = format!("{}/_purge", self.database);
        let answer =
            self.http.post(&target, &json!({ &id: [&revision] })).await?.expect("a purge", &[201])?;
        if answer.json()?["purged"][&id] != json!([&revision]) {
            return wrong(format!("{id} {revision} wasn't purged: {}", answer.shown()));
        }
        Ok(())
    }
}

fn with_revision(state: DocState, revision: &str) -> DocState {
    match state {
        DocState::Live { seed, files, .. } => DocState::Live { rev: revision.to_owned(), seed, files },
        DocState::Deleted(_) => DocState::Deleted(Some(revision.to_owned())),
        DocState::Absent => DocState::Absent,
    }
}

/// Compares the response to a document's GET with the model. Returns the document's state.
fn check(id: &str, doc: &Doc, answer: &Reply) -> StepResult<DocState> {
    let found = match answer.status {
        200 => Some(answer.json()?),
        404 => None,
        _ => return wrong(format!("{id}: {}", answer.shown())),
    };
    judge(doc, found.as_ref()).or_else(|reason| wrong(format!("{id}: {reason}")))
}

pub(super) fn check_file(target: &str, file: &File, answer: &Reply) -> StepResult<()> {
    if answer.status != 200 {
        return wrong(format!("{target}: {}", answer.shown()));
    }
    let digest = |bytes: &[u8]| <[u8; 16]>::from(Md5::digest(bytes));
    if digest(&answer.body) != digest(&file.bytes()) {
        return wrong(format!("{target}: {} bytes, not the {} that were put", answer.body.len(), file.size));
    }
    Ok(())
}

/// Compares a client's model with the server's content, and resolves the writes without a response.
pub(super) async fn verify(http: &mut Http, database: &str, model: &mut Model) -> StepResult<()> {
    for id in model.ids.clone() {
        let (doc, path) = (model.docs[&id].clone(), format!("/{database}/{id}"));
        let answer = http.get(&path).await?;
        let state = check(&id, &doc, &answer)?;
        if doc.pending.is_some() {
            let is_done = state != doc.state;
            let count =
                if is_done { &mut model.counts.unanswered_done } else { &mut model.counts.unanswered_undone };
            *count += 1;
        }
        model.counts.verified += 1;
        if let DocState::Live { files, .. } = &state {
            for (name, file) in files {
                let target = format!("{path}/{name}");
                check_file(&target, file, &http.get(&target).await?)?;
                model.counts.verified_files += 1;
            }
        }
        match state {
            // A creation without a response wasn't executed.
            DocState::Absent => model.remove(&id),
            state => {
                model.docs.insert(id, Doc { state, pending: None });
            }
        }
    }
    for id in &model.purged {
        http.get(&format!("/{database}/{id}")).await?.expect("a purged document", &[404])?;
    }
    verify_locals(http, database, model).await?;
    for (id, seed) in std::mem::take(&mut model.accepted) {
        let path = format!("/{database}/{id}");
        let answer = http.get(&path).await?.expect("a document written with 202", &[200, 404])?;
        if answer.status == 404 {
            model.counts.accepted_lost += 1;
            continue;
        }
        let (state, found) =
            (DocState::Live { rev: String::new(), seed, files: BTreeMap::new() }, answer.json()?);
        let doc = Doc { state: DocState::Absent, pending: Some(state) };
        judge(&doc, Some(&found)).or_else(|reason| wrong(format!("{id}: {reason}")))?;
        model.counts.accepted_found += 1;
        let target = format!("{path}?rev={}", found["_rev"].as_str().unwrap_or_default());
        http.send("DELETE", &target, None).await?.expect("a delete", &[200])?;
    }
    Ok(())
}

async fn verify_locals(http: &mut Http, database: &str, model: &mut Model) -> StepResult<()> {
    for (name, known) in &mut model.locals {
        let answer = http.get(&format!("/{database}/_local/{name}")).await?;
        let answer =
            answer.expect("a local document", if known.0.is_none() { &[200, 404] } else { &[200] })?;
        if answer.status == 404 {
            known.1 = None;
            continue;
        }
        let found = answer.json()?;
        let seed = found["seed"].as_str().and_then(|text| text.parse::<u64>().ok());
        let revision = found["_rev"].as_str().unwrap_or_default().to_owned();
        let is_known = known.0.as_ref().is_some_and(|(one, rev)| Some(*one) == seed && *rev == revision);
        let is_whole = seed.is_some_and(|seed| body(seed).iter().all(|(name, value)| found[name] == *value));
        if !is_whole || !(is_known || known.1.is_some() && known.1 == seed) {
            return wrong(format!("_local/{name}: {}; expected: {known:?}", answer.shown()));
        }
        *known = (seed.map(|seed| (seed, revision)), None);
        model.counts.verified += 1;
    }
    Ok(())
}
