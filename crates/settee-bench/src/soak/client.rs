//! One connection of the soak's, and what all its tasks share.

use std::collections::HashSet;
use std::sync::Mutex as StdMutex;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, watch};

use super::model::Model;
use crate::http::{Connection, HttpError, Server};

/// Past this a request should have been answered.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long after a broken connection it must be known that the server was killed.
const KILL_NEWS_WAIT_MAX: Duration = Duration::from_secs(5);

/// What the tasks are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Write and read.
    Running,
    /// Let go: the server was killed, or what it holds is compared.
    Paused,
    /// End.
    Done,
}

/// Why a step of a task wasn't done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection broke: right after a kill, and only then.
    Broken(HttpError),
    /// The server contradicts what it acknowledged.
    Wrong(String),
}

impl From<HttpError> for Trouble {
    fn from(error: HttpError) -> Trouble {
        Trouble::Broken(error)
    }
}

pub(super) type Step<T> = Result<T, Trouble>;

pub(super) fn wrong<T>(text: impl Into<String>) -> Step<T> {
    Err(Trouble::Wrong(text.into()))
}

/// What all tasks share.
pub(super) struct Shared {
    pub(super) server: Server,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) databases: Vec<String>,
    /// A model for each client; held while the client runs.
    pub(super) models: Vec<Mutex<Model>>,
    /// Ids that were purged: they are in no feed any more, and whoever followed it has them still.
    pub(super) purged: StdMutex<HashSet<String>>,
    /// Documents of requests that never came to their end.
    pub(super) aborted: StdMutex<Vec<(String, String)>>,
    pub(super) seed: u64,
}

impl Shared {
    pub(super) fn is_running(&self) -> bool {
        *self.phase.borrow() == Phase::Running
    }

    /// Waits until there is something to do; false at the end.
    pub(super) async fn runs(&self) -> bool {
        let mut phase = self.phase.clone();
        let found = phase.wait_for(|phase| *phase != Phase::Paused).await;
        found.is_ok_and(|phase| *phase == Phase::Running)
    }

    /// What trouble comes to: nothing, where the server was killed.
    ///
    /// # Errors
    /// What the server did wrong.
    pub(super) async fn excuse(&self, who: &str, trouble: Trouble) -> Result<(), String> {
        let error = match trouble {
            Trouble::Wrong(text) => return Err(format!("{who}: {text}")),
            Trouble::Broken(error) => error,
        };
        let mut phase = self.phase.clone();
        let paused = phase.wait_for(|phase| *phase != Phase::Running);
        match tokio::time::timeout(KILL_NEWS_WAIT_MAX, paused).await {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("{who}: the connection broke while the server ran: {error}")),
        }
    }
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn json(&self) -> Step<Value> {
        match serde_json::from_slice(&self.body) {
            Ok(value) => Ok(value),
            Err(error) => wrong(format!("an answer is no JSON: {error}: {}", self.shown())),
        }
    }

    pub(super) fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(300)]).into_owned();
        format!("{} {}", self.status, text.trim_end())
    }

    /// Checks the status.
    pub(super) fn expect(self, what: &str, allowed: &[u16]) -> Step<Answer> {
        match allowed.contains(&self.status) {
            true => Ok(self),
            false => wrong(format!("{what}: {}", self.shown())),
        }
    }
}

/// A client with one connection, which it opens when it needs one.
pub(super) struct Http {
    server: Server,
    connection: Option<Connection>,
    pub(super) requests: u64,
}

impl Http {
    pub(super) fn new(server: &Server) -> Http {
        Http { server: server.clone(), connection: None, requests: 0 }
    }

    /// One request with its whole answer; `content` is a body and its media type.
    pub(super) async fn send(
        &mut self,
        method: &str,
        target: &str,
        content: Option<(&str, &[u8])>,
    ) -> Step<Answer> {
        let mut head = Vec::new();
        let declared = content.map(|(kind, body)| (kind, body.len()));
        self.server.render_head(method, target, declared, &mut head);
        let body = content.map_or(&[][..], |(_, body)| body);
        let late = || HttpError::Malformed("it didn't come in time");
        // Taken out while it is in use, so that a broken exchange is never resumed.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.server).await?,
        };
        let exchange = tokio::time::timeout(ANSWER_WAIT_MAX, connection.exchange_parts(&head, body));
        let answer = exchange.await.map_err(|_| late())??;
        let answer = Answer { status: answer.status, body: answer.body.to_vec() };
        if !connection.is_closing() {
            self.connection = Some(connection);
        }
        self.requests += 1;
        if answer.status >= 500 {
            return wrong(format!("{method} {target}: {}", answer.shown()));
        }
        Ok(answer)
    }

    pub(super) async fn get(&mut self, target: &str) -> Step<Answer> {
        self.send("GET", target, None).await
    }

    pub(super) async fn post(&mut self, target: &str, body: &Value) -> Step<Answer> {
        let text = body.to_string();
        self.send("POST", target, Some(("application/json", text.as_bytes()))).await
    }

    pub(super) async fn put(&mut self, target: &str, body: &Value) -> Step<Answer> {
        let text = body.to_string();
        self.send("PUT", target, Some(("application/json", text.as_bytes()))).await
    }
}
