//! Goal: each leaf's path keeps and shows as many revisions as the limit allows, whatever happens to other
//! leaves; storage and the cost of an update don't grow with the history.
//! Method: random trees compared with a model that keeps every path completely, and long runs of updates
//! whose bytes are counted.

use std::path::Path;

use settee_doc::{Database, Databases, Edit, Options, Revision, RevisionId, Stage};
use settee_sim::{Sim, SimDisk, seeds};

use crate::common::{any_id, with_database};

fn edit(revision: Option<Revision>) -> Edit {
    let mut edit = Edit::parse(b"{\"n\":1}", &Options::default()).unwrap();
    (edit.id, edit.revision) = ("a".into(), revision);
    edit
}

async fn update(db: &Database, count: u32, mut last: Option<Revision>) -> Revision {
    for _ in 0..count {
        last = Some(db.update(edit(last), Stage::Accepted).await.unwrap());
    }
    db.barrier().await.unwrap();
    last.unwrap()
}

#[test]
fn paths_and_storage_stay_within_the_limit() {
    for limit in [1, 2, 15, 16, 17, 40, 1000] {
        with_database(limit, async |db| {
            db.set_revs_limit(limit).await.unwrap();
            assert_eq!(db.revs_limit(), limit);
            let settled = 2 * limit as u32 + 64;
            let last = update(&db, settled, None).await;
            let history = db.snapshot().history("a", &last).await.unwrap();
            assert_eq!(history.len() as u64, limit);
            let before = db.info().active_bytes;
            // A multiple of a long chunk's generations: the same number is left over.
            let last = update(&db, 288, Some(last)).await;
            assert_eq!(db.snapshot().history("a", &last).await.unwrap().len() as u64, limit);
            let after = db.info().active_bytes;
            println!("limit {limit}: {before} bytes live after {settled} updates, {after} after 288 more");
            assert_eq!(after, before);
        });
    }
}

#[test]
fn a_lower_limit_applies_at_once_and_storage_follows() {
    with_database(1, async |db| {
        let last = update(&db, 500, None).await;
        assert_eq!(db.snapshot().history("a", &last).await.unwrap().len(), 500);
        let before = db.info().active_bytes;
        db.set_revs_limit(3).await.unwrap();
        assert_eq!(db.snapshot().history("a", &last).await.unwrap().len(), 3);
        let last = update(&db, 16, Some(last)).await;
        let after = db.info().active_bytes;
        println!("{before} bytes live before, {after} after 16 updates under the lower limit");
        assert!(after + 6_000 < before, "the chunks stayed");
        assert_eq!(db.snapshot().history("a", &last).await.unwrap().len(), 3);
        assert!(db.set_revs_limit(0).await.is_err());
    });
}

#[test]
fn a_limit_survives_a_restart() {
    let disk = SimDisk::new(7);
    for expected in [1000, 12] {
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            let db = match expected {
                1000 => databases.create("db").await.unwrap(),
                _ => databases.get("db").await.unwrap(),
            };
            assert_eq!(db.revs_limit(), expected);
            db.set_revs_limit(12).await.unwrap();
            drop(db);
            databases.close().await.unwrap();
        })
        .unwrap();
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }
}

/// The complete paths of the leaves, newest first; a path is as long as its leaf's generation.
type Model = Vec<Vec<RevisionId>>;

fn leaf(path: &[RevisionId]) -> Revision {
    Revision { generation: path.len() as u32, id: path[0].clone() }
}

async fn step(db: &Database, model: &mut Model, random: &mut Random) {
    let chosen = random.below(model.len());
    match random.below(12) {
        // A branch from an earlier revision, sent by a replica that knows the complete path.
        0 | 1 => {
            let back = random.below(model[chosen].len().min(60));
            let mut path = model[chosen][back..].to_vec();
            for _ in 0..1 + random.below(20) {
                path.insert(0, any_id(&mut |count| random.below(count)));
            }
            let mut new = edit(Some(leaf(&path)));
            new.history = path.clone();
            db.replicate_all(vec![new], Stage::Accepted).await.unwrap().pop().unwrap().unwrap();
            model.retain(|known| !path.contains(&known[0]));
            model.push(path);
        }
        2 if model.len() > 1 => {
            let removed = model.swap_remove(chosen);
            assert_eq!(
                db.purge(&[("a".into(), vec![leaf(&removed)])]).await.unwrap(),
                [vec![leaf(&removed)]]
            );
        }
        _ => {
            for _ in 0..1 + random.below(12) {
                let parent = leaf(&model[chosen]);
                let new = db.update(edit(Some(parent)), Stage::Accepted).await.unwrap();
                model[chosen].insert(0, new.id);
            }
        }
    }
}

#[test]
fn every_leaf_keeps_the_revisions_it_may_show() {
    let mut compared = 0;
    for seed in seeds(60) {
        let limit = [1, 5, 16, 17, 33, 100][seed as usize % 6];
        with_database(seed, async |db| {
            db.set_revs_limit(limit).await.unwrap();
            let first = db.update(edit(None), Stage::Accepted).await.unwrap();
            let mut model: Model = vec![vec![first.id]];
            let mut random = Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            for _ in 0..60 {
                step(&db, &mut model, &mut random).await;
                db.barrier().await.unwrap();
                let view = db.snapshot();
                assert_eq!(view.leaves("a").await.unwrap().len(), model.len(), "seed={seed}");
                for path in &model {
                    let shown = view.history("a", &leaf(path)).await.unwrap();
                    let expected = &path[..path.len().min(limit as usize)];
                    assert_eq!(shown, expected, "seed={seed} limit={limit}");
                    compared += 1;
                }
            }
        });
    }
    println!("{compared} paths compared");
}
