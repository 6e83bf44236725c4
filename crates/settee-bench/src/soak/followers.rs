//! Clients that follow the changes of a database: each change comes, in order, and comes once.

use std::collections::HashMap;
use std::sync::Mutex as StdMutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Http, Shared, Step, Trouble, wrong};
use crate::http::{Connection, HttpError};

/// A sign of life is asked for as often.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Past this a feed that gives signs of life has died.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Pause before a connection is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How long a follower may take to hear of the last change once nobody writes.
const CATCH_UP_MAX: Duration = Duration::from_secs(30);

/// How a follower follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Continuous,
    Longpoll,
}

/// A follower, and what it has heard.
pub(super) struct Follower {
    pub(super) database: String,
    pub(super) kind: Kind,
    pub(super) heard: StdMutex<Heard>,
}

/// What a follower has heard.
#[derive(Debug)]
pub(super) struct Heard {
    since: String,
    number: u64,
    /// Of each document its revision, and whether that deletes it.
    docs: HashMap<String, (String, bool)>,
    pub(super) changes: u64,
}

impl Follower {
    pub(super) fn new(database: &str, kind: Kind) -> Follower {
        let heard = Heard { since: "0".to_owned(), number: 0, docs: HashMap::new(), changes: 0 };
        Follower { database: database.to_owned(), kind, heard: StdMutex::new(heard) }
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().expect("nobody panics with it")
    }

    /// Follows until the task is ended. While the server is away it tries again.
    pub(super) async fn run(&self, shared: &Shared, index: usize) -> Result<(), String> {
        loop {
            let trouble = match self.kind {
                Kind::Continuous => self.stream(shared).await,
                Kind::Longpoll => self.poll(shared).await,
            };
            if let Err(trouble) = trouble {
                let who = format!("follower {index} of {} ({:?})", self.database, self.kind);
                shared.excuse(&who, trouble).await?;
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn stream(&self, shared: &Shared) -> Step<()> {
        let mut connection = Connection::open(&shared.server).await?;
        let (since, heartbeat) = (self.heard().since.clone(), HEARTBEAT.as_millis());
        let target =
            format!("/{}/_changes?feed=continuous&heartbeat={heartbeat}&since={since}", self.database);
        let mut request = Vec::new();
        shared.server.render_head("GET", &target, None, &mut request);
        let status = connection.begin(&request).await?;
        if status != 200 {
            return wrong(format!("a feed answers {status}"));
        }
        let mut line = Vec::new();
        loop {
            let late = |_| HttpError::Malformed("a feed gives no sign of life");
            let chunk = tokio::time::timeout(SILENCE_MAX, connection.chunk()).await.map_err(late)??;
            let Some(chunk) = chunk else { return wrong("a continuous feed ended") };
            for byte in chunk {
                match byte {
                    b'\n' if !line.is_empty() => {
                        self.take_line(&line)?;
                        line.clear();
                    }
                    b'\n' => {}
                    byte => line.push(*byte),
                }
            }
        }
    }

    fn take_line(&self, line: &[u8]) -> Step<()> {
        match serde_json::from_slice::<Value>(line) {
            Ok(row) => self.heard().take(&row).or_else(wrong),
            Err(error) => wrong(format!("a feed's line is no JSON: {error}")),
        }
    }

    async fn poll(&self, shared: &Shared) -> Step<()> {
        let mut http = Http::new(&shared.server);
        loop {
            let since = self.heard().since.clone();
            let target = format!("/{}/_changes?feed=longpoll&timeout=5000&since={since}", self.database);
            let answer = http.get(&target).await?.expect("a longpoll", &[200])?.json()?;
            let mut heard = self.heard();
            for row in answer["results"].as_array().into_iter().flatten() {
                heard.take(row).or_else(wrong)?;
            }
            match answer["last_seq"].as_str() {
                Some(last) => heard.since = last.to_owned(),
                None => return wrong("a longpoll has no last_seq"),
            }
        }
    }

    /// Compares what was heard with the whole feed, once all of that could be heard.
    pub(super) async fn compare(&self, shared: &Shared, feed: &Feed) -> Step<()> {
        let begun = Instant::now();
        while self.heard().number < feed.number {
            if begun.elapsed() > CATCH_UP_MAX {
                return wrong(format!(
                    "a {:?} follower of {} has heard up to {}, the feed is at {}",
                    self.kind,
                    self.database,
                    self.heard().number,
                    feed.number
                ));
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        let mut heard = self.heard();
        for (id, known) in &feed.docs {
            if heard.docs.get(id) != Some(known) {
                let found = heard.docs.get(id);
                return wrong(format!("a {:?} follower has {found:?} of {id}, not {known:?}", self.kind));
            }
        }
        let purged = shared.purged.lock().expect("nobody panics with it");
        heard.docs.retain(|id, _| feed.docs.contains_key(id) || !purged.contains(id));
        match heard.docs.keys().find(|id| !feed.docs.contains_key(*id)) {
            Some(id) => wrong(format!("a follower heard of {id}, which the feed doesn't have")),
            None => Ok(()),
        }
    }
}

impl Heard {
    fn take(&mut self, row: &Value) -> Result<(), String> {
        let (seq, number, id, state) = parse_row(row)?;
        if number <= self.number {
            return Err(format!("change {number} ({id}) came after {}", self.number));
        }
        if self.docs.get(&id) == Some(&state) {
            return Err(format!("change {number} tells of {id} at {} again", state.0));
        }
        self.docs.insert(id, state);
        (self.since, self.number) = (seq, number);
        self.changes += 1;
        Ok(())
    }
}

/// A database's whole feed.
pub(super) struct Feed {
    pub(super) number: u64,
    pub(super) docs: HashMap<String, (String, bool)>,
}

impl Feed {
    /// Reads it: each document is there once, in order.
    pub(super) async fn read(http: &mut Http, database: &str) -> Step<Feed> {
        let answer = http.get(&format!("/{database}/_changes")).await?.expect("a feed", &[200])?.json()?;
        let mut feed = Feed { number: 0, docs: HashMap::new() };
        for row in answer["results"].as_array().into_iter().flatten() {
            let (_, number, id, state) = parse_row(row).map_err(Trouble::Wrong)?;
            if number <= feed.number || feed.docs.insert(id.clone(), state).is_some() {
                return wrong(format!("the feed tells of {id} twice, or out of order"));
            }
            feed.number = number;
        }
        Ok(feed)
    }
}

/// A row's position, its number, its document, and what became of that.
fn parse_row(row: &Value) -> Result<(String, u64, String, (String, bool)), String> {
    let text =
        |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| format!("a strange row: {row}"));
    let seq = text(&row["seq"])?;
    let number = seq.split('-').next().and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| format!("a strange position: {seq}"))?;
    let revision = text(&row["changes"][0]["rev"])?;
    Ok((seq, number, text(&row["id"])?, (revision, row["deleted"] == true)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_that_comes_twice_or_too_late_is_seen() {
        let follower = Follower::new("db", Kind::Longpoll);
        let row = |seq: &str, rev: &str| json!({ "seq": seq, "id": "a", "changes": [{ "rev": rev }] });
        let mut heard = follower.heard();
        assert_eq!(heard.take(&row("1-x", "1-a")), Ok(()));
        assert_eq!(heard.take(&row("2-x", "2-b")), Ok(()));
        assert!(heard.take(&row("2-x", "3-c")).is_err(), "the same position");
        assert!(heard.take(&row("3-x", "2-b")).is_err(), "the same revision");
        assert!(heard.take(&json!({ "seq": 4 })).is_err(), "no row");
        assert_eq!((heard.number, heard.changes), (2, 2));
    }
}
