//! Keeps indexes up to date in the background: after writes to a database, the indexes of its design documents are
//! built, unless a design document says `"autoupdate": false`. CouchDB calls this ken.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use settee_doc::{Database, Databases, ErrorKind, EventKind};
use tokio::sync::Semaphore;

use crate::error::{Result, ViewError, ViewErrorKind};
use crate::views::Views;

/// Time from a write to the build that it causes: writes meanwhile share it.
const DELAY: Duration = Duration::from_millis(1000);

/// Databases whose indexes are built at once.
const DATABASES_AT_ONCE: usize = 2;

/// Events taken at once.
const EVENTS_AT_ONCE: usize = 10_000;

/// Databases whose builds wait or run, by name.
#[derive(Default)]
struct Due {
    waiting: BTreeSet<String>,
    running: BTreeSet<String>,
}

/// A database whose indexes are being built; also if that panics, it isn't any more on drop.
struct Running {
    due: Arc<Mutex<Due>>,
    name: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.due).running.remove(&self.name);
    }
}

impl Views {
    /// Builds indexes after writes, until the future is dropped; never if the options say so.
    pub async fn keep_up(self: Arc<Views>, databases: Arc<Databases>) {
        if !self.options().autoupdate {
            return std::future::pending().await;
        }
        let due = Arc::new(Mutex::new(Due::default()));
        let permits = Arc::new(Semaphore::new(DATABASES_AT_ONCE));
        let mut since = databases.last_event();
        loop {
            databases.event_after(since).await;
            databases.env().clock.sleep(DELAY).await;
            match databases.events_after(since, EVENTS_AT_ONCE) {
                Some(events) => {
                    since = events.last().map_or(since, |event| event.seq);
                    let updated = events.into_iter().filter(|event| event.kind == EventKind::Updated);
                    lock(&due).waiting.extend(updated.map(|event| event.name.to_string()));
                }
                // Some events are gone: the databases of later ones count.
                None => since = databases.first_event(),
            }
            self.start_due(&databases, &due, &permits);
        }
    }

    fn start_due(
        self: &Arc<Views>,
        databases: &Arc<Databases>,
        due: &Arc<Mutex<Due>>,
        permits: &Arc<Semaphore>,
    ) {
        let mut lists = lock(due);
        let next: Vec<String> = lists.waiting.difference(&lists.running).cloned().collect();
        for name in next {
            lists.waiting.remove(&name);
            lists.running.insert(name.clone());
            let (views, databases, due, permits) =
                (self.clone(), databases.clone(), due.clone(), permits.clone());
            databases.env().clone().spawn("keeping views up", async move {
                let running = Running { due: due.clone(), name: name.clone() };
                let permit = permits.acquire().await;
                if let Err(error) = views.build_all(&databases, &name).await {
                    tracing::warn!(database = name, %error, "indexes aren't kept up");
                }
                drop(permit);
                drop(running);
                // Writes meanwhile.
                if lock(&due).waiting.contains(&name) {
                    views.start_due(&databases, &due, &permits);
                }
            });
        }
    }

    /// Builds the indexes of all design documents that are kept up.
    async fn build_all(&self, databases: &Databases, name: &str) -> Result<()> {
        let is_gone = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::Stopped);
        let database = match databases.get(name).await {
            Err(error) if is_gone(error.kind()) => return Ok(()),
            database => database?,
        };
        for id in self.design_ids(&database).await? {
            match self.keep_up_design(&database, &id).await {
                Err(ViewError { kind: ViewErrorKind::Storage(kind), .. }) if is_gone(kind) => return Ok(()),
                // It was deleted or edited, or has functions in another language or that stop.
                Ok(()) | Err(ViewError { kind: ViewErrorKind::NotFound | ViewErrorKind::Function, .. }) => {}
                // The others are kept up nevertheless.
                Err(error) => tracing::warn!(database = name, design = id, %error, "indexes aren't kept up"),
            }
        }
        Ok(())
    }

    async fn keep_up_design(&self, database: &Arc<Database>, id: &str) -> Result<()> {
        let views = self.design(database, id).await?;
        if !views.design.autoupdate || views.design.views.is_empty() {
            return Ok(());
        }
        views.build_unattended(database, database.snapshot().update_seq()).await
    }
}

fn lock(due: &Mutex<Due>) -> std::sync::MutexGuard<'_, Due> {
    due.lock().unwrap_or_else(PoisonError::into_inner)
}
