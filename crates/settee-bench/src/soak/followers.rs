//! Clients that follow a database's changes feed: each change must arrive, in order, and only once.

use std::collections::HashMap;
use std::sync::Mutex as StdMutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use settee_client::{Connection, HttpError, Request};

use super::client::{Context, Failure, Http, StepResult, wrong};

/// The requested interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Longest time without data after which a continuous feed counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Pause before a follower reconnects, and between two checks of its progress.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Longest time until a follower has received the last change once the writers have stopped.
const CATCH_UP_MAX: Duration = Duration::from_secs(30);

/// The feed's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeedMode {
    Continuous,
    Longpoll,
}

/// A follower and the changes that it has received.
pub(super) struct Follower {
    pub(super) database: String,
    pub(super) mode: FeedMode,
    pub(super) received: StdMutex<Received>,
}

/// The changes that a follower has received.
#[derive(Debug)]
pub(super) struct Received {
    since: String,
    number: u64,
    /// Each document's revision, and whether it is a deletion.
    docs: HashMap<String, (String, bool)>,
    pub(super) changes: u64,
}

impl Follower {
    pub(super) fn new(database: &str, mode: FeedMode) -> Follower {
        let received = Received { since: "0".to_owned(), number: 0, docs: HashMap::new(), changes: 0 };
        Follower { database: database.to_owned(), mode, received: StdMutex::new(received) }
    }

    fn received(&self) -> std::sync::MutexGuard<'_, Received> {
        self.received.lock().expect("not poisoned")
    }

    /// Follows until the task is cancelled. Reconnects while the server is down.
    pub(super) async fn run(&self, context: &Context, index: usize) -> Result<(), String> {
        loop {
            let failure = match self.mode {
                FeedMode::Continuous => self.stream(context).await,
                FeedMode::Longpoll => self.poll(context).await,
            };
            if let Err(failure) = failure {
                let name = format!("follower {index} of {} ({:?})", self.database, self.mode);
                context.accept_if_killed(&name, failure).await?;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn stream(&self, context: &Context) -> StepResult<()> {
        let mut connection = Connection::open(&context.server).await?;
        let (since, heartbeat) = (self.received().since.clone(), HEARTBEAT.as_millis());
        let target =
            format!("/{}/_changes?feed=continuous&heartbeat={heartbeat}&since={since}", self.database);
        let status = connection.begin(Request::get(&target)).await?;
        if status != 200 {
            return wrong(format!("a feed has status {status}"));
        }
        let mut line = Vec::new();
        loop {
            let late = |_| HttpError::Malformed("a feed sent no heartbeat");
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

    fn take_line(&self, line: &[u8]) -> StepResult<()> {
        match serde_json::from_slice::<Value>(line) {
            Ok(row) => self.received().take(&row).or_else(wrong),
            Err(error) => wrong(format!("a feed's line isn't JSON: {error}")),
        }
    }

    async fn poll(&self, context: &Context) -> StepResult<()> {
        let mut http = Http::new(&context.server);
        loop {
            let since = self.received().since.clone();
            let target = format!("/{}/_changes?feed=longpoll&timeout=5000&since={since}", self.database);
            let answer = http.get(&target).await?.expect("a longpoll", &[200])?.json()?;
            let mut received = self.received();
            for row in answer["results"].as_array().into_iter().flatten() {
                received.take(row).or_else(wrong)?;
            }
            match answer["last_seq"].as_str() {
                Some(last) => received.since = last.to_owned(),
                None => return wrong("a longpoll has no last_seq"),
            }
        }
    }

    /// Waits until the follower has received the last change, and compares it with the whole feed.
    pub(super) async fn compare(&self, context: &Context, feed: &Feed) -> StepResult<()> {
        let started = Instant::now();
        while self.received().number < feed.number {
            if started.elapsed() > CATCH_UP_MAX {
                return wrong(format!(
                    "a {:?} follower of {} has received up to {}, the feed is at {}",
                    self.mode,
                    self.database,
                    self.received().number,
                    feed.number
                ));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        let mut received = self.received();
        for (id, known) in &feed.docs {
            if received.docs.get(id) != Some(known) {
                let found = received.docs.get(id);
                return wrong(format!("a {:?} follower has {found:?} of {id}, not {known:?}", self.mode));
            }
        }
        let purged = context.purged.lock().expect("not poisoned");
        received.docs.retain(|id, _| feed.docs.contains_key(id) || !purged.contains(id));
        match received.docs.keys().find(|id| !feed.docs.contains_key(*id)) {
            Some(id) => wrong(format!("a follower received {id}, which the feed doesn't have")),
            None => Ok(()),
        }
    }
}

impl Received {
    fn take(&mut self, row: &Value) -> Result<(), String> {
        let (seq, number, id, state) = parse_row(row)?;
        if number <= self.number {
            return Err(format!("change {number} ({id}) came after {}", self.number));
        }
        if self.docs.get(&id) == Some(&state) {
            return Err(format!("change {number} repeats {id} at {}", state.0));
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
    /// Reads the feed and checks that each document occurs once, in order.
    pub(super) async fn read(http: &mut Http, database: &str) -> StepResult<Feed> {
        let answer = http.get(&format!("/{database}/_changes")).await?.expect("a feed", &[200])?.json()?;
        let mut feed = Feed { number: 0, docs: HashMap::new() };
        for row in answer["results"].as_array().into_iter().flatten() {
            let (_, number, id, state) = parse_row(row).map_err(Failure::Wrong)?;
            if number <= feed.number || feed.docs.insert(id.clone(), state).is_some() {
                return wrong(format!("the feed has {id} twice, or out of order"));
            }
            feed.number = number;
        }
        Ok(feed)
    }
}

/// Parses a row: its `seq`, the number in that, the document's id, its revision and whether it is deleted.
fn parse_row(row: &Value) -> Result<(String, u64, String, (String, bool)), String> {
    let text =
        |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| format!("an unexpected row: {row}"));
    let seq = text(&row["seq"])?;
    let number = seq.split('-').next().and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| format!("an unexpected seq: {seq}"))?;
    let revision = text(&row["changes"][0]["rev"])?;
    Ok((seq, number, text(&row["id"])?, (revision, row["deleted"] == true)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_repeated_or_late_change_is_an_error() {
        let follower = Follower::new("db", FeedMode::Longpoll);
        let row = |seq: &str, rev: &str| json!({ "seq": seq, "id": "a", "changes": [{ "rev": rev }] });
        let mut received = follower.received();
        assert_eq!(received.take(&row("1-x", "1-a")), Ok(()));
        assert_eq!(received.take(&row("2-x", "2-b")), Ok(()));
        assert!(received.take(&row("2-x", "3-c")).is_err(), "the same position");
        assert!(received.take(&row("3-x", "2-b")).is_err(), "the same revision");
        assert!(received.take(&json!({ "seq": 4 })).is_err(), "no row");
        assert_eq!((received.number, received.changes), (2, 2));
    }
}
