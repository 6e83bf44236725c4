//! Goal: a scan that has reached its end stays there, whatever is called next.
//! Method: in the simulation, scan rows in memory, in the tree and in both, in both directions, and skip
//! parts of the range before and after the end.

use crate::common::model;

use std::ops::Bound;

use bytes::Bytes;
use model::{OPTIONS, open};
use settee_sim::Sim;
use settee_store::{Batch, Seq, Stage, Store};

async fn put(store: &Store, keys: std::ops::Range<u8>) {
    let mut batch = Batch::new();
    keys.for_each(|key| batch.put(&[key], &[], Bytes::from_static(b"1"), true));
    let seq = store.writer().await.commit(&batch, Stage::Persisted).await.unwrap();
    store.wait(seq, Stage::Persisted).await.unwrap();
}

#[test]
fn a_scan_that_has_ended_stays_at_its_end() {
    for (in_tree, in_memory) in [(0..0, 0..10), (0..10, 0..0), (0..6, 4..10)] {
        let sim = Sim::new(7);
        let env = sim.env();
        sim.run(async {
            let store = open(&env, &OPTIONS).await;
            if !in_tree.is_empty() {
                put(&store, in_tree.clone()).await;
                store.checkpoint().await.unwrap().unwrap();
            }
            if !in_memory.is_empty() {
                put(&store, in_memory.clone()).await;
            }
            let snapshot = store.snapshot();
            let all = (Bound::Unbounded, Bound::Unbounded);
            let after = Bound::Excluded(&[2][..]);
            let bounds = [all, (Bound::Included(&[2][..]), Bound::Excluded(&[8][..])), (after, all.1)];
            for (descending, (start, end)) in
                [false, true].into_iter().flat_map(|way| bounds.map(|b| (way, b)))
            {
                for scans in [
                    [snapshot.scan(start, end, descending), snapshot.scan(start, end, descending)],
                    [snapshot.scan_by_seq(Seq(1), descending), snapshot.scan_by_seq(Seq(1), descending)],
                ] {
                    let case = format!("{in_tree:?} {in_memory:?} {descending} {start:?} {end:?}");
                    let [mut read, mut passed] = scans;
                    let mut count = 0;
                    while read.next().await.unwrap().is_some() {
                        count += 1;
                    }
                    assert!(count > 2, "{case}");
                    assert_eq!(passed.skip_sum(0, count + 1).await.unwrap(), count, "{case}");
                    for mut scan in [read, passed] {
                        for _ in 0..2 {
                            assert_eq!(scan.skip_sum(0, 3).await.unwrap(), 0, "{case}");
                            assert!(scan.next().await.unwrap().is_none(), "{case}");
                        }
                    }
                }
            }
        })
        .unwrap();
    }
}
