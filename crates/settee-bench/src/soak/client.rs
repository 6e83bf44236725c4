//! The HTTP client of the soak, and the context that all its tasks share.

use std::collections::HashSet;
use std::sync::Mutex as StdMutex;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, watch};

use settee_client::{Couch, HttpError, JSON, Request, Server};

use super::model::Model;

/// Longest wait for a response.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(60);

/// Longest time from a broken connection to the change of phase that follows a kill.
const PAUSE_WAIT_MAX: Duration = Duration::from_secs(5);

/// The phase of the soak, which controls its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Clients write and read.
    Running,
    /// Clients release their models: the server was killed, or its content is being compared.
    Paused,
    /// Clients end.
    Done,
}

/// Why a client's step failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection broke, which is allowed only after a kill.
    Broken(HttpError),
    /// The server contradicts its acknowledgements.
    Wrong(String),
}

impl From<HttpError> for Failure {
    fn from(error: HttpError) -> Failure {
        Failure::Broken(error)
    }
}

pub(super) type StepResult<T> = Result<T, Failure>;

pub(super) fn wrong<T>(text: impl Into<String>) -> StepResult<T> {
    Err(Failure::Wrong(text.into()))
}

/// The context that all tasks of a soak share.
pub(super) struct Context {
    pub(super) server: Server,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) databases: Vec<String>,
    /// Each writer's model, locked while the writer runs a step.
    pub(super) models: Vec<Mutex<Model>>,
    /// Ids of purged documents, which no feed contains any more; a follower may have received them before.
    pub(super) purged: StdMutex<HashSet<String>>,
    /// Databases and ids of the documents of aborted requests.
    pub(super) aborted: StdMutex<Vec<(String, String)>>,
    pub(super) seed: u64,
}

impl Context {
    pub(super) fn is_running(&self) -> bool {
        *self.phase.borrow() == Phase::Running
    }

    /// Waits while the soak is paused. Returns false if it is done.
    pub(super) async fn wait_until_running(&self) -> bool {
        let mut phase = self.phase.clone();
        let found = phase.wait_for(|phase| *phase != Phase::Paused).await;
        found.is_ok_and(|phase| *phase == Phase::Running)
    }

    /// Accepts a failed step if the server was killed.
    ///
    /// # Errors
    /// The server's fault, after the name of `client`.
    pub(super) async fn accept_if_killed(&self, client: &str, failure: Failure) -> Result<(), String> {
        let error = match failure {
            Failure::Wrong(text) => return Err(format!("{client}: {text}")),
            Failure::Broken(error) => error,
        };
        let mut phase = self.phase.clone();
        let paused = phase.wait_for(|phase| *phase != Phase::Running);
        match tokio::time::timeout(PAUSE_WAIT_MAX, paused).await {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("{client}: the connection broke while the server ran: {error}")),
        }
    }
}

/// A response with its whole body.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn json(&self) -> StepResult<Value> {
        match serde_json::from_slice(&self.body) {
            Ok(value) => Ok(value),
            Err(error) => wrong(format!("a response isn't JSON: {error}: {}", self.shown())),
        }
    }

    pub(super) fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(300)]).into_owned();
        format!("{} {}", self.status, text.trim_end())
    }

    /// Returns the response if its status is allowed; otherwise fails with `what`.
    pub(super) fn expect(self, what: &str, allowed: &[u16]) -> StepResult<Reply> {
        match allowed.contains(&self.status) {
            true => Ok(self),
            false => wrong(format!("{what}: {}", self.shown())),
        }
    }
}

/// A client with one connection, opened on demand.
pub(super) struct Http {
    couch: Couch,
    /// Number of responses received.
    pub(super) requests: u64,
}

impl Http {
    pub(super) fn new(server: &Server) -> Http {
        Http { couch: Couch::new(server.clone()), requests: 0 }
    }

    /// Sends a request and returns the whole response. `content` is the body and its media type.
    pub(super) async fn send(
        &mut self,
        method: &str,
        target: &str,
        content: Option<(&str, &[u8])>,
    ) -> StepResult<Reply> {
        let sent = self.couch.send(Request { method, target, content });
        let late = |_| HttpError::Malformed("it didn't arrive in time");
        let settee_client::Reply { status, body } =
            tokio::time::timeout(RESPONSE_WAIT_MAX, sent).await.map_err(late)??;
        let reply = Reply { status, body };
        self.requests += 1;
        if status >= 500 {
            return wrong(format!("{method} {target}: {}", reply.shown()));
        }
        Ok(reply)
    }

    pub(super) async fn get(&mut self, target: &str) -> StepResult<Reply> {
        self.send("GET", target, None).await
    }

    pub(super) async fn post(&mut self, target: &str, body: &Value) -> StepResult<Reply> {
        let text = body.to_string();
        self.send("POST", target, Some((JSON, text.as_bytes()))).await
    }

    pub(super) async fn put(&mut self, target: &str, body: &Value) -> StepResult<Reply> {
        let text = body.to_string();
        self.send("PUT", target, Some((JSON, text.as_bytes()))).await
    }
}
