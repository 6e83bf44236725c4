//! Goal: an index has exactly the rows of the documents, whatever was edited, deleted or purged, however often it was
//! built, closed or compacted in between; and a snapshot of it keeps its rows.
//! Method: in the simulation; random edits, builds and queries, compared with rows made in Rust.

use settee_collate::Collation;
use settee_sim::{Sim, seeds};

use crate::common::{Random, Subject, check_queries, check_reduces, check_rows};

#[test]
fn an_index_has_the_rows_of_the_documents() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let mut subject = Subject::open(&env).await;
            let mut kept = Vec::new();
            for round in 0..12 {
                let case = format!("seed={seed} round={round}");
                subject.edit(&mut random).await;
                if random.one_in(5) {
                    let reduces = [&["_sum"][..], &["_sum", "_count"], &["_stats", "_count", "_sum"]];
                    subject.put_design(reduces[random.below(3) as usize]).await;
                }
                if random.one_in(3) {
                    continue;
                }
                let design = subject.built().await;
                let documents = subject.documents().await;
                for (view, collation) in [("rows", Collation::Unicode), ("raw", Collation::Raw)] {
                    let index = design.snapshot(design.view(view).unwrap()).unwrap();
                    check_rows(index.clone(), &documents, collation, &format!("{case} {view}")).await;
                    if collation == Collation::Unicode && random.one_in(3) {
                        kept.push((index, documents.clone(), case.clone()));
                    }
                }
                check_queries(&design, &documents, &mut random, &case).await;
                check_reduces(&design, &documents, &case).await;
                match random.below(4) {
                    0 => design.compact().await.unwrap(),
                    1 => {
                        drop(design);
                        kept.clear();
                        subject.databases.close().await.unwrap();
                        drop(subject);
                        subject = Subject::open(&env).await;
                    }
                    2 => drop(subject.views.clean_up(&subject.database).await.unwrap()),
                    _ => {}
                }
            }
            for (index, documents, case) in kept {
                check_rows(index, &documents, Collation::Unicode, &format!("a snapshot kept at {case}"))
                    .await;
            }
        })
        .unwrap_or_else(|| panic!("seed={seed}"));
    }
}
