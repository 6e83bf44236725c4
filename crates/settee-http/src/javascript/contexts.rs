//! JavaScript contexts of design documents, kept for further calls.
//!
//! A call takes an idle context of its design document's revision, or makes one, and gives it back. Contexts of
//! older revisions are the least recently used ones, and so go first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::StatusCode;
use settee_doc::{Database, Extras, Revision};
use settee_js::{DesignContext, Limits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::blocking;
use crate::error::ApiError;
use crate::json;

/// Largest number of idle contexts.
const IDLE_MAX: usize = 16;

/// Largest number of calls that run at a time. Further ones wait.
const CALLS_MAX: usize = 8;

/// Largest number of list functions that run at a time, each as long as its client reads. Further ones wait.
const LISTS_MAX: usize = 16;

/// A design document at one revision, of one incarnation of a database.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DesignSource {
    incarnation: [u8; 16],
    id: String,
    revision: Revision,
    json: String,
}

impl DesignSource {
    pub(crate) fn new(incarnation: [u8; 16], id: String, revision: Revision, json: String) -> DesignSource {
        DesignSource { incarnation, id, revision, json }
    }

    /// Reads a design document as it is now.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn read(database: &Database, id: &str) -> Result<Arc<DesignSource>, ApiError> {
        let snapshot = database.snapshot();
        let document = snapshot.document(id).await?;
        let document = snapshot.read_whole(document).await?;
        let mut json = Vec::new();
        document.write_json(&Extras::default(), &mut json);
        let json = String::from_utf8(json).map_err(|_| ApiError::bad_json())?;
        Ok(Arc::new(DesignSource::new(database.incarnation(), id.to_owned(), document.revision, json)))
    }

    /// Checks that the design document has a member at `kind` and `name`, such as `filters` and `f`.
    ///
    /// # Errors
    /// 404 with CouchDB's reason.
    pub(crate) fn check_function(&self, kind: &str, name: &str) -> Result<(), ApiError> {
        let [functions] = json::pick(self.json.as_bytes(), [kind])?;
        let functions = functions.ok_or_else(|| missing_key(kind))?;
        let [function] = json::pick(functions.as_bytes(), [name])?;
        function.map(|_| ()).ok_or_else(|| missing_key(name))
    }

    /// Checks that the design document has a map function for the view.
    ///
    /// # Errors
    /// As for [`DesignSource::check_function`].
    pub(crate) fn check_view(&self, view: &str) -> Result<(), ApiError> {
        self.check_function("views", view)?;
        let [views] = json::pick(self.json.as_bytes(), ["views"])?;
        let [view] = json::pick(views.unwrap_or("{}").as_bytes(), [view])?;
        let [map] = json::pick(view.unwrap_or("{}").as_bytes(), ["map"])?;
        map.map(|_| ()).ok_or_else(|| missing_key("map"))
    }

    /// The member `name`, as JSON text.
    ///
    /// # Errors
    /// 400 if the design document isn't JSON.
    pub(crate) fn member(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let [member] = json::pick(self.json.as_bytes(), [name])?;
        Ok(member)
    }

    pub(crate) fn revision(&self) -> &Revision {
        &self.revision
    }

    fn is_same(&self, other: &DesignSource) -> bool {
        (&self.incarnation, &self.id, &self.revision) == (&other.incarnation, &other.id, &other.revision)
    }
}

fn missing_key(name: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", format!("missing json key: {name}"))
}

/// The contexts of a server.
pub(crate) struct Contexts {
    /// The least recently used one first.
    idle: Mutex<VecDeque<(Arc<DesignSource>, DesignContext)>>,
    calls: Arc<Semaphore>,
    lists: Arc<Semaphore>,
}

impl Default for Contexts {
    fn default() -> Contexts {
        Contexts {
            idle: Mutex::default(),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            lists: Arc::new(Semaphore::new(LISTS_MAX)),
        }
    }
}

impl Contexts {
    /// Waits until a call may run.
    pub(crate) async fn call_permit(&self) -> OwnedSemaphorePermit {
        self.calls.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Waits until a list function may run.
    pub(crate) async fn list_permit(&self) -> OwnedSemaphorePermit {
        self.lists.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Runs `call` with a context of `design` on a blocking thread.
    ///
    /// # Errors
    /// Those of `call`; 500 if there can be no context.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Contexts>,
        design: &Arc<DesignSource>,
        call: impl FnOnce(&mut DesignContext) -> Result<T, settee_js::Error> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.call_permit().await;
        let (contexts, design) = (self.clone(), design.clone());
        let run = move || {
            let _permit = permit;
            contexts.with(&design, call)
        };
        Ok(blocking::run(run).await??)
    }

    /// Runs `call` with a context of `design` on this thread, which must be a blocking one.
    ///
    /// # Errors
    /// Those of `call`, or why there can be no context.
    pub(crate) fn with<T, E: From<settee_js::Error>>(
        &self,
        design: &Arc<DesignSource>,
        call: impl FnOnce(&mut DesignContext) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut context = match self.take(design) {
            Some(context) => context,
            None => DesignContext::new(&design.json, Limits::default())?,
        };
        let result = call(&mut context);
        for message in context.take_logs() {
            tracing::info!(design = design.id, "a design function logs: {}", crate::logged::text(&message));
        }
        let mut idle = self.lock();
        idle.push_back((design.clone(), context));
        if idle.len() > IDLE_MAX {
            idle.pop_front();
        }
        result
    }

    fn take(&self, design: &DesignSource) -> Option<DesignContext> {
        let mut idle = self.lock();
        let index = idle.iter().rposition(|(of, _)| of.is_same(design))?;
        idle.remove(index).map(|(_, context)| context)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Arc<DesignSource>, DesignContext)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> Arc<DesignSource> {
        let json = format!(
            "{{\"_id\":\"_design/d\",\"filters\":{{\"f\":\"function(d){{return d.n=={number}}}\"}}}}"
        );
        let revision = Revision { generation: number, id: [0; 16].into() };
        Arc::new(DesignSource::new([0; 16], "_design/d".to_owned(), revision, json))
    }

    fn passes(contexts: &Contexts, number: u32) -> bool {
        let call = |context: &mut DesignContext| context.filter(&["filters", "f"], &["{\"n\":1}"], "{}");
        contexts.with::<_, settee_js::Error>(&source(number), call).unwrap()[0]
    }

    #[test]
    fn each_revision_has_contexts_of_its_own_and_few_are_kept() {
        let contexts = Contexts::default();
        for number in 0..IDLE_MAX as u32 + 5 {
            assert_eq!(passes(&contexts, number), number == 1, "{number}");
            assert_eq!(passes(&contexts, number), number == 1, "{number}");
        }
        assert_eq!(contexts.lock().len(), IDLE_MAX);
    }
}
