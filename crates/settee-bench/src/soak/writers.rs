//! Clients that write documents of their own, read them back, and compare them with what they know.

use std::collections::BTreeMap;

use md5::{Digest as _, Md5};
use serde_json::{Value, json};

use super::client::{Answer, Http, Shared, Step, wrong};
use super::model::{Doc, File, Model, Random, State, body, judge};

/// Documents of a client, deleted ones included: then what a run holds stays as large as it is.
const DOCS_MAX: usize = 1_200;

/// Documents of a client that have an attachment.
const FILES_MAX: usize = 60;

/// Bytes of the largest attachment.
const FILE_BYTES_MAX: u64 = 2 << 20;

/// Documents in a bulk request.
const BULK_COUNT: u64 = 20;

/// Documents of a client that were answered with 202 and wait to be looked for.
const MAYBE_MAX: usize = 200;

/// Local documents of a client.
const LOCALS: u64 = 20;

/// Runs a client for as long as the soak lasts.
pub(super) async fn run(shared: &Shared, index: usize) -> Result<(), String> {
    let mut random = Random::new(shared.seed ^ (index as u64 + 1));
    while shared.runs().await {
        let mut http = Http::new(&shared.server);
        loop {
            // Free between two steps: a backup notes what is known then.
            let mut model = shared.models[index].lock().await;
            if !shared.is_running() {
                break;
            }
            let database = format!("/{}", shared.databases[index % shared.databases.len()]);
            let writer =
                Writer { shared, index, database, http: &mut http, model: &mut model, random: &mut random };
            let done = writer.step().await;
            model.counts.requests += std::mem::take(&mut http.requests);
            if let Err(trouble) = done {
                shared.excuse(&format!("writer {index}"), trouble).await?;
                break;
            }
        }
    }
    Ok(())
}

struct Writer<'a> {
    shared: &'a Shared,
    index: usize,
    database: String,
    http: &'a mut Http,
    model: &'a mut Model,
    random: &'a mut Random,
}

impl Writer<'_> {
    async fn step(mut self) -> Step<()> {
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
            94..97 => self.maybe().await,
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

    fn draw(&mut self, wanted: impl Fn(&State) -> bool) -> Option<String> {
        self.model.draw(self.random, wanted)
    }

    /// Sends an edit, whose answer names the new revision.
    async fn edit(&mut self, id: &str, new: State, members: Value) -> Step<()> {
        self.model.send(id, new.clone());
        let answer = self.http.put(&self.path(id), &members).await?.expect("a put", &[201])?;
        self.acknowledge(id, new, &answer)
    }

    fn acknowledge(&mut self, id: &str, new: State, answer: &Answer) -> Step<()> {
        let said = answer.json()?;
        let Some(revision) = said["rev"].as_str() else {
            return wrong(format!("no revision: {}", answer.shown()));
        };
        self.model.set(id, with_revision(new, revision));
        Ok(())
    }

    async fn put_new(&mut self) -> Step<()> {
        let id = match self.model.ids.len() < DOCS_MAX {
            true => self.new_id(),
            // A deleted one begins anew.
            false => match self.draw(|state| matches!(state, State::Deleted(_))) {
                Some(id) => id,
                None => return self.delete().await,
            },
        };
        let seed = self.random.next();
        let new = State::Live { rev: String::new(), seed, files: BTreeMap::new() };
        self.edit(&id, new, Value::Object(body(seed))).await
    }

    async fn update(&mut self) -> Step<()> {
        let Some(id) = self.draw(State::is_live) else { return self.put_new().await };
        let (new, members) = self.updated(&id);
        self.edit(&id, new, members).await
    }

    /// An edit of a live document, and its text: its attachments stay.
    fn updated(&mut self, id: &str) -> (State, Value) {
        let State::Live { rev, files, .. } = self.model.docs[id].state.clone() else {
            unreachable!("it was drawn for being live");
        };
        let seed = self.random.next();
        let mut members = body(seed);
        members.insert("_id".to_owned(), id.into());
        members.insert("_rev".to_owned(), rev.into());
        if !files.is_empty() {
            let stubs = files.keys().map(|name| (name.clone(), json!({ "stub": true })));
            members.insert("_attachments".to_owned(), Value::Object(stubs.collect()));
        }
        (State::Live { rev: String::new(), seed, files }, Value::Object(members))
    }

    async fn delete(&mut self) -> Step<()> {
        let Some(id) = self.draw(State::is_live) else { return Ok(()) };
        let target =
            format!("{}?rev={}", self.path(&id), self.model.docs[&id].state.rev().unwrap_or_default());
        self.model.send(&id, State::Deleted(None));
        let answer = self.http.send("DELETE", &target, None).await?.expect("a delete", &[200])?;
        self.acknowledge(&id, State::Deleted(None), &answer)
    }

    async fn read(&mut self) -> Step<()> {
        let Some(id) = self.draw(|_| true) else { return Ok(()) };
        let answer = self.http.get(&self.path(&id)).await?;
        check(&id, &self.model.docs[&id], &answer).map(drop)
    }

    async fn bulk(&mut self) -> Step<()> {
        let mut docs: Vec<Value> = Vec::new();
        let mut news: Vec<(String, State)> = Vec::new();
        for _ in 0..BULK_COUNT {
            let drawn = self.draw(State::is_live);
            let (id, new, doc) = match drawn {
                Some(id) if self.random.below(2) == 0 || self.model.ids.len() >= DOCS_MAX => {
                    let (new, doc) = self.updated(&id);
                    (id, new, doc)
                }
                _ => {
                    let (id, seed) = (self.new_id(), self.random.next());
                    let mut members = body(seed);
                    members.insert("_id".to_owned(), id.as_str().into());
                    (id, State::Live { rev: String::new(), seed, files: BTreeMap::new() }, members.into())
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

    async fn local(&mut self) -> Step<()> {
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

    async fn attach(&mut self) -> Step<()> {
        let has_file = |state: &State| matches!(state, State::Live { files, .. } if !files.is_empty());
        let holders = self.model.docs.values().filter(|doc| has_file(&doc.state)).count();
        let drawn = self.draw(|state| state.is_live() && (holders < FILES_MAX || has_file(state)));
        let Some(id) = drawn else { return Ok(()) };
        let State::Live { rev, seed, mut files } = self.model.docs[&id].state.clone() else { return Ok(()) };
        let file = File {
            seed: self.random.next(),
            size: self.random.size(FILE_BYTES_MAX),
            is_text: self.random.below(2) == 0,
        };
        let name = format!("f{}", self.random.below(2));
        files.insert(name.clone(), file);
        let new = State::Live { rev: String::new(), seed, files };
        self.model.send(&id, new.clone());
        let target = format!("{}/{name}?rev={rev}", self.path(&id));
        let bytes = file.bytes();
        let answer = self.http.send("PUT", &target, Some((file.kind(), &bytes))).await?;
        let answer = answer.expect("an attachment", &[201])?;
        self.acknowledge(&id, new, &answer)
    }

    async fn read_file(&mut self) -> Step<()> {
        let drawn = self.draw(|state| matches!(state, State::Live { files, .. } if !files.is_empty()));
        let Some(id) = drawn else { return Ok(()) };
        let State::Live { files, .. } = &self.model.docs[&id].state else { return Ok(()) };
        let (name, file) = files.iter().next().map(|(name, file)| (name.clone(), *file)).expect("it has one");
        let target = format!("{}/{name}", self.path(&id));
        let answer = self.http.get(&target).await?;
        check_file(&target, &file, &answer)
    }

    /// An edit of a revision that isn't the newest is a conflict.
    async fn stale(&mut self) -> Step<()> {
        let Some(id) = self.draw(State::is_live) else { return Ok(()) };
        let stale = json!({ "_rev": "1-00000000000000000000000000000000", "stale": true });
        self.http.put(&self.path(&id), &stale).await?.expect("a stale put", &[409]).map(drop)
    }

    /// An edit that the server may lose, as its 202 says.
    async fn maybe(&mut self) -> Step<()> {
        if self.model.maybe.len() >= MAYBE_MAX {
            return Ok(());
        }
        let (id, seed) = (format!("m{}", self.new_id()), self.random.next());
        let target = format!("{}?batch=ok", self.path(&id));
        self.model.maybe.push((id, seed));
        self.http.put(&target, &Value::Object(body(seed))).await?.expect("batch=ok", &[202])?;
        self.model.counts.accepted += 1;
        Ok(())
    }

    async fn purge(&mut self) -> Step<()> {
        let drawn = self.draw(|state| matches!(state, State::Deleted(Some(_))));
        let Some(id) = drawn else { return Ok(()) };
        let revision = self.model.docs[&id].state.rev().unwrap_or_default().to_owned();
        // Known before it is done: a feed may show it until then.
        self.shared.purged.lock().expect("nobody panics with it").insert(id.clone());
        self.model.purged.insert(id.clone());
        self.model.forget(&id);
        let target = format!("{}/_purge", self.database);
        let answer =
            self.http.post(&target, &json!({ &id: [&revision] })).await?.expect("a purge", &[201])?;
        let said = answer.json()?;
        if said["purged"][&id] != json!([&revision]) {
            return wrong(format!("{id} {revision} wasn't purged: {}", answer.shown()));
        }
        Ok(())
    }
}

fn with_revision(state: State, revision: &str) -> State {
    match state {
        State::Live { seed, files, .. } => State::Live { rev: revision.to_owned(), seed, files },
        State::Deleted(_) => State::Deleted(Some(revision.to_owned())),
        State::Absent => State::Absent,
    }
}

/// What an answer to a document's read makes of it.
fn check(id: &str, doc: &Doc, answer: &Answer) -> Step<State> {
    let found = match answer.status {
        200 => Some(answer.json()?),
        404 => None,
        _ => return wrong(format!("{id}: {}", answer.shown())),
    };
    judge(doc, found.as_ref()).or_else(|reason| wrong(format!("{id}: {reason}")))
}

pub(super) fn check_file(target: &str, file: &File, answer: &Answer) -> Step<()> {
    if answer.status != 200 {
        return wrong(format!("{target}: {}", answer.shown()));
    }
    let digest = |bytes: &[u8]| <[u8; 16]>::from(Md5::digest(bytes));
    if digest(&answer.body) != digest(&file.bytes()) {
        return wrong(format!("{target}: {} bytes, not the {} that were put", answer.body.len(), file.size));
    }
    Ok(())
}

/// Compares all that a client knows with what the server has. What was never answered is settled.
pub(super) async fn verify(http: &mut Http, database: &str, model: &mut Model) -> Step<()> {
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
        if let State::Live { files, .. } = &state {
            for (name, file) in files {
                let target = format!("{path}/{name}");
                check_file(&target, file, &http.get(&target).await?)?;
                model.counts.verified_files += 1;
            }
        }
        match state {
            // What was never answered and never came to be leaves nothing behind.
            State::Absent => model.forget(&id),
            state => {
                model.docs.insert(id, Doc { state, pending: None });
            }
        }
    }
    for id in &model.purged {
        http.get(&format!("/{database}/{id}")).await?.expect("a purged document", &[404])?;
    }
    verify_locals(http, database, model).await?;
    for (id, seed) in std::mem::take(&mut model.maybe) {
        let path = format!("/{database}/{id}");
        let answer = http.get(&path).await?.expect("a document that may be there", &[200, 404])?;
        if answer.status == 404 {
            model.counts.accepted_lost += 1;
            continue;
        }
        let (state, found) =
            (State::Live { rev: String::new(), seed, files: BTreeMap::new() }, answer.json()?);
        let doc = Doc { state: State::Absent, pending: Some(state) };
        judge(&doc, Some(&found)).or_else(|reason| wrong(format!("{id}: {reason}")))?;
        model.counts.accepted_found += 1;
        let target = format!("{path}?rev={}", found["_rev"].as_str().unwrap_or_default());
        http.send("DELETE", &target, None).await?.expect("a delete", &[200])?;
    }
    Ok(())
}

async fn verify_locals(http: &mut Http, database: &str, model: &mut Model) -> Step<()> {
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
            return wrong(format!("_local/{name}: {}; known: {known:?}", answer.shown()));
        }
        *known = (seed.map(|seed| (seed, revision)), None);
        model.counts.verified += 1;
    }
    Ok(())
}
