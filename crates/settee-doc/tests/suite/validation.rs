//! Goal: validation functions get each write that they have to check, with the revision that it replaces, and the
//! design documents are read only after one of them was written.
//! Method: in the simulation, an implementation that records its calls and refuses by a member of the document.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use settee_doc::{
    Database, Databases, DesignFunctions, Edit, Error, ErrorKind, FunctionFuture, Options, ProposedWrite,
    Revision, Stage, ValidatingDesign, Validator, ViewFunction,
};
use settee_sim::Sim;

#[derive(Default)]
struct Recorder {
    compiled: Mutex<Vec<ViewFunction>>,
    validator_count: AtomicUsize,
    designs: Mutex<Vec<String>>,
    writes: Arc<Mutex<Vec<ProposedWrite>>>,
}

struct Refuser(Arc<Mutex<Vec<ProposedWrite>>>);

impl DesignFunctions for Recorder {
    fn compile(&self, functions: Vec<ViewFunction>) -> FunctionFuture<()> {
        let bad = functions.iter().any(|function| function.source == "bad");
        self.compiled.lock().unwrap().extend(functions);
        Box::pin(async move { if bad { Err(Error::new(ErrorKind::Uncompilable, "bad")) } else { Ok(()) } })
    }

    fn validator(
        &self,
        _database: &str,
        _incarnation: [u8; 16],
        designs: Vec<ValidatingDesign>,
    ) -> Arc<dyn Validator> {
        self.validator_count.fetch_add(1, Ordering::Relaxed);
        *self.designs.lock().unwrap() = designs.into_iter().map(|design| design.id).collect();
        Arc::new(Refuser(self.writes.clone()))
    }
}

impl Validator for Refuser {
    fn validate(&self, writes: Vec<ProposedWrite>) -> FunctionFuture<Vec<Result<(), Error>>> {
        let outcome = |write: &ProposedWrite| match &write.document {
            text if text.contains("\"refused\"") => {
                Err(Error::of_function(ErrorKind::Forbidden, "forbidden", "{\"a\":1}"))
            }
            text if text.contains("\"endless\"") => Err(Error::of_stopped_function("stopped", "\"endless\"")),
            _ => Ok(()),
        };
        let mut outcomes: Vec<Result<(), Error>> = Vec::new();
        for write in writes {
            outcomes.push(outcome(&write));
            self.0.lock().unwrap().push(write);
            if outcomes.last().unwrap().as_ref().is_err_and(Error::is_of_stopped_function) {
                break;
            }
        }
        Box::pin(async move { Ok(outcomes) })
    }
}

fn edit(id: &str, revision: Option<&Revision>, json: &str) -> Edit {
    let mut edit = Edit::parse(json.as_bytes(), &Options::default()).unwrap();
    (edit.id, edit.revision) = (id.into(), revision.cloned());
    edit
}

async fn put(db: &Database, id: &str, revision: Option<&Revision>, json: &str) -> Result<Revision, Error> {
    db.update(edit(id, revision, json), Stage::Persisted).await
}

/// Runs a test with a database whose design functions are recorded.
fn recorded<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Arc<Database>, Arc<Recorder>) -> F) {
    let sim = Sim::new(seed);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env, Path::new("/data")).await.unwrap();
        let recorder = Arc::new(Recorder::default());
        databases.set_design_functions(recorder.clone());
        test(databases.create("db").await.unwrap(), recorder).await;
    })
    .unwrap();
}

const VALIDATING: &str = r#"{"validate_doc_update":"f"}"#;

#[test]
fn writes_are_validated_against_what_they_replace() {
    recorded(1, async |db, recorder| {
        let first = put(&db, "a", None, r#"{"n":1}"#).await.unwrap();
        put(&db, "_design/v", None, VALIDATING).await.unwrap();
        assert!(recorder.writes.lock().unwrap().is_empty(), "design documents aren't validated");
        let second = put(&db, "a", Some(&first), r#"{"n":2}"#).await.unwrap();
        let error = put(&db, "a", Some(&second), r#"{"refused":1}"#).await.unwrap_err();
        assert_eq!((error.kind(), error.reason_json()), (ErrorKind::Forbidden, Some("{\"a\":1}")));
        assert_eq!(put(&db, "a", Some(&first), "{}").await.unwrap_err().kind(), ErrorKind::Conflict);
        db.put_local(edit("_local/l", None, "{}"), Stage::Accepted).await.unwrap();
        let writes = std::mem::take(&mut *recorder.writes.lock().unwrap());
        assert_eq!(writes.len(), 2, "neither a conflict nor a local document is validated");
        let id = &first.to_string()[2..];
        let revisions = format!(r#""_revisions":{{"start":1,"ids":["{id}"]}}"#);
        assert_eq!(writes[0].document, format!(r#"{{"_id":"a","_rev":"{first}","n":2,{revisions}}}"#));
        let previous = format!(r#"{{"_id":"a","_rev":"{first}","n":1,{revisions}}}"#);
        assert_eq!(writes[0].previous.as_deref(), Some(&*previous));
        assert!(writes[1].document.contains(&second.to_string()));
        // What was refused isn't stored.
        assert_eq!(db.snapshot().find("a").await.unwrap().map(|found| found.revision.generation), Some(2));
    });
}

#[test]
fn design_documents_are_read_once_per_change_of_one() {
    recorded(2, async |db, recorder| {
        put(&db, "_design/b", None, VALIDATING).await.unwrap();
        let other = put(&db, "_design/a", None, VALIDATING).await.unwrap();
        for id in ["x", "y", "z"] {
            put(&db, id, None, "{}").await.unwrap();
        }
        assert_eq!(recorder.validator_count.load(Ordering::Relaxed), 1);
        assert_eq!(
            *recorder.designs.lock().unwrap(),
            ["_design/a", "_design/b"],
            "in the order of their ids"
        );
        put(&db, "_design/a", Some(&other), "{}").await.unwrap();
        put(&db, "w", None, "{}").await.unwrap();
        assert_eq!(recorder.validator_count.load(Ordering::Relaxed), 2);
        assert_eq!(*recorder.designs.lock().unwrap(), ["_design/b"]);
    });
}

#[test]
fn without_validation_functions_nothing_is_called() {
    recorded(3, async |db, recorder| {
        put(&db, "_design/b", None, "{}").await.unwrap();
        for id in ["x", "y", "z"] {
            put(&db, id, None, r#"{"refused":1}"#).await.unwrap();
        }
        assert_eq!(recorder.validator_count.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn only_the_javascript_functions_of_views_are_compiled() {
    recorded(4, async |db, recorder| {
        let views =
            r#""views":{"lib":{"m":"x"},"a":{"map":"m","reduce":"_sum"},"b":{"map":"n","reduce":"r"}}"#;
        put(&db, "_design/a", None, &format!("{{{views}}}")).await.unwrap();
        put(&db, "_design/q", None, r#"{"language":"query","views":{"a":{"map":{}}}}"#).await.unwrap();
        put(&db, "_design/e", None, &format!(r#"{{"language":"erlang",{views}}}"#)).await.unwrap();
        let compiled = std::mem::take(&mut *recorder.compiled.lock().unwrap());
        let sources: Vec<_> = compiled.iter().map(|f| (&*f.view, f.is_reduce, &*f.source)).collect();
        assert_eq!(sources, [("a", false, "m"), ("b", false, "n"), ("b", true, "r")]);
        let bad = r#"{"views":{"a":{"map":"bad"}}}"#;
        let error = put(&db, "_design/x", None, bad).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Uncompilable, "bad"));
        let deletion = r#"{"_deleted":true,"views":{"a":{"map":"bad"}}}"#;
        put(&db, "_design/x", None, deletion).await.unwrap();
    });
}

#[test]
fn many_writes_of_a_request_are_validated_once_each() {
    recorded(5, async |db, recorder| {
        put(&db, "_design/v", None, VALIDATING).await.unwrap();
        let first = put(&db, "a", None, "{}").await.unwrap();
        recorder.writes.lock().unwrap().clear();
        let edits = vec![
            edit("a", Some(&first), r#"{"n":1}"#),
            edit("b", None, r#"{"refused":1}"#),
            edit("c", None, "{}"),
            edit("c", None, r#"{"again":1}"#),
        ];
        let outcomes = db.update_all(edits, Stage::Persisted).await.unwrap();
        let kinds: Vec<_> = outcomes.into_iter().map(|outcome| outcome.err().map(|e| e.kind())).collect();
        assert_eq!(kinds, [None, Some(ErrorKind::Forbidden), None, Some(ErrorKind::Conflict)]);
        let count = recorder.writes.lock().unwrap().len();
        assert_eq!(count, 4, "before the conflict is known, both are validated");
    });
}

/// The kinds of errors of edits.
fn kinds(outcomes: &[Result<Revision, Error>]) -> Vec<Option<ErrorKind>> {
    outcomes.iter().map(|outcome| outcome.as_ref().err().map(Error::kind)).collect()
}

#[test]
fn after_a_function_that_does_not_end_no_further_write_of_the_request_runs_it() {
    recorded(6, async |db, recorder| {
        put(&db, "_design/v", None, VALIDATING).await.unwrap();
        put(&db, "a", None, "{}").await.unwrap();
        // More than one group of edits.
        let mut edits = vec![edit("ok", None, "{}")];
        edits.extend((0..3000).map(|n| edit(&format!("e{n:04}"), None, r#"{"endless":1}"#)));
        edits.push(edit("after", None, "{}"));
        recorder.writes.lock().unwrap().clear();
        let outcomes = db.update_all(edits, Stage::Persisted).await.unwrap();
        let failed = Some(ErrorKind::FunctionFailed);
        assert_eq!(kinds(&outcomes[..2]), [None, failed]);
        assert!(outcomes[1..].iter().all(|outcome| outcome == &outcomes[1]), "the last one is refused too");
        assert_eq!(recorder.writes.lock().unwrap().len(), 2);

        // A replica is validated ahead too; so the functions run once for each.
        let replica = |id: &str, revision: &str, json: &str| edit(id, Some(&revision.parse().unwrap()), json);
        let one = "1-11111111111111111111111111111111";
        recorder.writes.lock().unwrap().clear();
        let edits =
            vec![replica("x", one, "{}"), replica("y", one, r#"{"endless":1}"#), replica("z", one, "{}")];
        let outcomes = db.replicate_all(edits, Stage::Persisted).await.unwrap();
        assert_eq!(kinds(&outcomes), [None, failed, failed]);
        assert_eq!(recorder.writes.lock().unwrap().len(), 2);

        // The next request runs them again.
        assert!(put(&db, "after", None, "{}").await.is_ok());
    });
}

#[test]
fn replicas_are_validated_once_against_the_leaf_that_they_replace() {
    recorded(7, async |db, recorder| {
        put(&db, "_design/v", None, VALIDATING).await.unwrap();
        let first = put(&db, "a", None, r#"{"n":1}"#).await.unwrap();
        recorder.writes.lock().unwrap().clear();
        let revision = |text: &str| text.parse::<Revision>().unwrap();
        let (second, other) = ("2-22222222222222222222222222222222", "2-33333333333333333333333333333333");
        let follows = |revision: &Revision, ancestor: &Revision| {
            let mut edit = edit("a", Some(revision), r#"{"n":2}"#);
            edit.history = vec![revision.id.clone(), ancestor.id.clone()];
            edit
        };
        let edits = vec![follows(&revision(second), &first), edit("a", Some(&revision(other)), "{}")];
        let outcomes = db.replicate_all(edits, Stage::Persisted).await.unwrap();
        assert_eq!(kinds(&outcomes), [None, None]);
        let writes = std::mem::take(&mut *recorder.writes.lock().unwrap());
        assert_eq!(writes.len(), 2);
        let ids = |write: &ProposedWrite| write.previous.as_ref().map(|text| text.contains("\"n\":1"));
        assert_eq!(writes.iter().map(ids).collect::<Vec<_>>(), [Some(true), None]);
        assert!(
            writes[0].document.contains(&second[2..]) && writes[0].document.contains(&first.to_string()[2..])
        );
        // What is known isn't validated.
        db.replicate_all(vec![follows(&revision(second), &first)], Stage::Persisted).await.unwrap();
        assert!(recorder.writes.lock().unwrap().is_empty());
    });
}
