//! Goal: builds use bounded memory, and none goes on that nobody needs.
//! Method: in the simulation; builds of some thousand documents are watched while they run.

use std::time::Duration;

use serde_json::json;
use settee_doc::Seq;
use settee_sim::Sim;

use crate::common::Subject;

const DOCUMENT_COUNT: u64 = 1_500;

async fn fill(subject: &Subject) -> Seq {
    for n in 0..DOCUMENT_COUNT {
        subject.update(&json!({"_id": format!("doc{n}"), "n": n})).await.unwrap();
    }
    subject.database.snapshot().update_seq()
}

#[test]
fn a_build_that_nobody_needs_any_more_stops() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        let seq = fill(&subject).await;
        let former = subject.views.design(&subject.database, "_design/d").await.unwrap();
        former.build_in_background(&subject.database, seq);
        let rev = subject.database.snapshot().find("_design/d").await.unwrap().unwrap().revision.to_string();
        subject.update(&json!({"_id": "_design/d", "_rev": rev, "_deleted": true})).await.unwrap();
        env.clock.sleep(Duration::from_millis(1)).await;
        assert_eq!(subject.views.tasks().len(), 1, "a build of a former revision is a task");
        env.clock.sleep(Duration::from_secs(60)).await;
        assert!(subject.views.tasks().is_empty());
        assert!(former.info().await.update_seq < seq);
        // For a client that has the former revision, it goes on.
        former.build(&subject.database, seq).await.unwrap();
        assert!(former.info().await.update_seq >= seq);
    })
    .unwrap();
}

#[test]
fn few_large_builds_run_at_once() {
    let sim = Sim::new(2);
    let env = sim.env();
    sim.run(async {
        let subject = Subject::open(&env).await;
        let mut designs = Vec::new();
        for n in 0..8 {
            let map = format!("function (doc) {{ emit(doc.n, {n}); }}");
            let id = format!("_design/{n}");
            subject.update(&json!({"_id": id, "views": {"v": {"map": map}}})).await.unwrap();
            designs.push(subject.views.design(&subject.database, &id).await.unwrap());
        }
        let seq = fill(&subject).await;
        for design in &designs {
            design.build_in_background(&subject.database, seq);
        }
        let mut most = 0;
        for _ in 0..10_000 {
            most = most.max(subject.views.tasks().len());
            env.clock.sleep(Duration::from_millis(1)).await;
            if subject.views.tasks().is_empty() && most > 0 {
                break;
            }
        }
        assert_eq!(most, 4);
        for design in &designs {
            design.build(&subject.database, seq).await.unwrap();
            assert_eq!(design.info().await.update_seq, seq);
        }
    })
    .unwrap();
}
