//! Goal: after a power loss at any operation, the index continues and has exactly the rows of the documents.
//! Method: in the simulation; the power is lost at seeded operations of edits and builds, then the indexes are built
//! again, and compared with rows made in Rust.

use settee_collate::Collation;
use settee_sim::{Sim, SimDisk, seeds};

use crate::common::{Random, Subject, check_reduces, check_rows};

/// Edits, builds and compacts.
async fn work(subject: &Subject, random: &mut Random) {
    for _ in 0..6 {
        subject.edit(random).await;
        if !random.one_in(3) {
            let design = subject.built().await;
            if random.one_in(4) {
                design.compact().await.unwrap();
            }
        }
        if random.one_in(6) {
            subject.put_design(&["_sum", "_count"]).await;
        }
    }
}

#[test]
fn an_index_continues_after_a_power_loss() {
    let mut lost = 0;
    for seed in seeds(6) {
        let whole = SimDisk::new(seed);
        let sim = Sim::with_disk(&whole);
        let env = sim.env();
        sim.run(async { work(&Subject::open(&env).await, &mut Random::new(seed)).await }).unwrap();
        let count = whole.operation_count();
        for at in 0..12 {
            let mut random = Random::new(seed * 100 + at);
            let mut disk = SimDisk::new(seed).crash_at_operation(random.below(count));
            // Also while the index continues.
            for _ in 0..3 {
                let sim = Sim::with_disk(&disk);
                let env = sim.env();
                let ended = sim.run(async { work(&Subject::open(&env).await, &mut Random::new(seed)).await });
                lost += u64::from(ended.is_none());
                disk = disk.after_power_loss();
                if random.one_in(2) {
                    break;
                }
                disk = disk.crash_at_operation(random.below(count));
            }
            let sim = Sim::with_disk(&disk.after_power_loss());
            let env = sim.env();
            let case = format!("seed={seed} at={at}");
            sim.run(async {
                let subject = Subject::open(&env).await;
                let design = subject.built().await;
                let documents = subject.documents().await;
                for (view, collation) in [("rows", Collation::Unicode), ("raw", Collation::Raw)] {
                    let index = design.snapshot(design.view(view).unwrap()).unwrap();
                    check_rows(index, &documents, collation, &format!("{case} {view}")).await;
                }
                check_reduces(&design, &documents, &case).await;
            })
            .unwrap_or_else(|| panic!("{case}"));
        }
    }
    println!("power losses: {lost}");
    assert!(lost > 50, "{lost}");
}
