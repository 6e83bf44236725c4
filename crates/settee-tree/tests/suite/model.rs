//! Goal: a tree is an ordered map; its roots never change; all ways to read one agree.
//! Method: compare seeded updates in the simulation with a `BTreeMap`. Nodes are small, so that the trees are
//! high; cache sizes range from none to large. Keep roots over later updates, and reopen now and then.
//! Updates that take several batches cover the boundaries between batches.

use crate::common;

use std::ops::Bound;
use std::path::Path;

use common::{
    FILE, Model, Polynomial, Random, Range, Shape, compare, create, open, options, summary_of, update,
};
use settee_sim::{Sim, seeds};
use settee_tree::{Change, Root, Tree, TreeBuilder, TreeError};

fn random_bound(shape: Shape, random: &mut Random) -> Bound<Vec<u8>> {
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(shape.key(random)),
        _ => Bound::Excluded(shape.key(random)),
    }
}

/// The model's entries in the range.
fn part<'a>(model: &'a Model, range: Range<'_>) -> Vec<(&'a Vec<u8>, &'a Vec<u8>)> {
    let is_in = |key: &[u8]| {
        let after = match range.0 {
            Bound::Unbounded => true,
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
        };
        let before = match range.1 {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        };
        after && before
    };
    model.iter().filter(|(key, _)| is_in(key)).collect()
}

/// Reads ranges in every way, and keys one by one and together.
async fn read(root: &Root<Polynomial>, model: &Model, shape: Shape, random: &mut Random, case: &str) {
    for _ in 0..4 {
        let bounds = (random_bound(shape, random), random_bound(shape, random));
        let range: Range<'_> = (bounds.0.as_ref().map(Vec::as_slice), bounds.1.as_ref().map(Vec::as_slice));
        let expected = part(model, range);
        for descending in [false, true] {
            let mut scan = root.scan(range, descending);
            let mut found = Vec::new();
            loop {
                // Both ways to continue, mixed.
                let next = match scan.next_in_memory().map(|(key, value)| (key.to_vec(), value.to_vec())) {
                    Some(entry) => Some(entry),
                    None => scan.next().await.unwrap().map(|(key, value)| (key.to_vec(), value.to_vec())),
                };
                let Some(entry) = next else { break };
                found.push(entry);
            }
            if descending {
                found.reverse();
            }
            let found: Vec<_> = found.iter().map(|(key, value)| (key, value)).collect();
            assert!(found == expected, "{case} descending={descending}");
        }
        assert_eq!(root.count_in(range).await.unwrap(), expected.len() as u64, "{case}");
        let summary = root.summary_in(range).await.unwrap();
        assert_eq!(summary, summary_of(expected.iter().copied()), "{case}");
        seek(root, range, &expected, random, case).await;
    }
    let mut keys: Vec<_> = (0..random.below(40)).map(|_| shape.key(random)).collect();
    keys.sort();
    let mut found = Vec::new();
    root.get_many(&keys, |index, value| found.push((index, value.map(<[u8]>::to_vec)))).await.unwrap();
    let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).enumerate().collect();
    assert_eq!(found, expected, "{case}");
    for key in keys.iter().take(10) {
        assert_eq!(root.get(key).await.unwrap().as_ref(), model.get(key), "{case}");
        if let Some(cached) = root.get_cached(key) {
            assert_eq!(cached.as_ref(), model.get(key), "{case}");
        }
    }
}

/// Seeks by count, and by key.
async fn seek(
    root: &Root<Polynomial>,
    range: Range<'_>,
    expected: &[(&Vec<u8>, &Vec<u8>)],
    random: &mut Random,
    case: &str,
) {
    let skip = random.below(expected.len() + 3);
    let passes = |_: &(u64, u64), count: u64, _: &[u8]| count <= skip as u64;
    let (boundary, summary, count) = root.seek(range, passes).await.unwrap();
    assert!(count <= skip as u64, "{case}");
    assert_eq!(summary, summary_of(expected[..count as usize].iter().copied()), "{case}");
    let is_before = |(key, _): &&(&Vec<u8>, &Vec<u8>)| **key < boundary;
    assert_eq!(count as usize, expected.iter().filter(is_before).count(), "{case}");
    match expected.get(skip) {
        Some((key, _)) => assert!(boundary == **key, "{case} skip={skip}"),
        // The last entry, or a separator behind it.
        None => assert!(count as usize + 1 >= expected.len(), "{case} skip={skip}"),
    }
    // By key: the greatest boundary that isn't above one of the entries.
    if let Some((middle, _)) = expected.get(expected.len() / 2) {
        let (boundary, _, count) = root.seek(range, |_, _, key| key <= middle.as_slice()).await.unwrap();
        assert_eq!((&boundary, count as usize), (*middle, expected.len() / 2), "{case}");
    }
}

#[test]
fn a_tree_is_an_ordered_map_and_its_roots_are_immutable() {
    let mut height_max = 0;
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let shape = Shape::ALL[seed as usize % 4];
            let options =
                options([256, 512, 4096][random.below(3)], [0, 4 << 10, 64 << 10, 4 << 20][random.below(4)]);
            let mut tree = create(&env, &options).await.unwrap();
            let mut root = tree.root();
            let mut model = Model::new();
            let mut kept: Vec<(Root<Polynomial>, Model)> = Vec::new();
            let mut seq = 0;
            for step in 0..30 {
                let case = format!("seed={seed} step={step} shape={shape:?}");
                // Phases of growth, and of shrinking to an empty tree.
                let put_share = if step % 10 < 6 { 70 } else { 10 };
                let count = [3, 40, 400][random.below(3)];
                let changes = shape.changes(&mut random, count, put_share);
                root = update(&tree, &root, &mut model, changes, &case).await.unwrap();
                compare(&root, &model, &case).await;
                read(&root, &model, shape, &mut random, &case).await;
                height_max = height_max.max(root.height());
                if random.below(4) == 0 {
                    kept.push((root.clone(), model.clone()));
                }
                if random.below(3) == 0 {
                    seq += 1 + random.below(3) as u64;
                    let size = [0, 10, 5000][random.below(3)];
                    let attachment = random.bytes(size);
                    tree.commit(&root, seq, &attachment).await.unwrap();
                    root = tree.root();
                    assert_eq!((root.seq(), tree.committed().seq()), (seq, seq), "{case}");
                    assert_eq!(root.attachment().await.unwrap(), attachment, "{case}");
                    if random.below(2) == 0 {
                        tree = open(&env, &options).await.unwrap();
                        root = tree.root();
                        assert_eq!(root.seq(), seq, "{case}");
                        assert_eq!(root.attachment().await.unwrap(), attachment, "{case}");
                        compare(&root, &model, &case).await;
                    }
                }
                assert!(root.live_bytes() <= tree.file_bytes(), "{case}");
            }
            for (root, model) in &kept {
                compare(root, model, &format!("seed={seed}: kept")).await;
            }
        })
        .unwrap();
    }
    assert!(height_max >= 4, "{height_max}");
}

#[test]
fn a_bulk_load_equals_updates() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let shape = Shape::ALL[seed as usize % 4];
            let options = options([256, 4096][random.below(2)], 64 << 10);
            let case = format!("seed={seed} shape={shape:?}");
            let mut model = Model::new();
            for _ in 0..[0, 1, 2, 100, 6000][random.below(5)] {
                model.insert(shape.key(&mut random), shape.value(&mut random));
            }
            let path = Path::new("/built");
            let mut builder = TreeBuilder::create(&env, path, options.clone(), Polynomial).await.unwrap();
            for (key, value) in &model {
                builder.push(key, value).await.unwrap();
            }
            let tree = builder.finish(7, b"attached").await.unwrap();
            compare(&tree.root(), &model, &case).await;
            read(&tree.root(), &model, shape, &mut random, &case).await;
            assert_eq!(tree.root().seq(), 7);
            let tree = Tree::open(&env, path, options.clone(), Polynomial).await.unwrap();
            compare(&tree.root(), &model, &case).await;
            let changes = shape.changes(&mut random, 100, 50);
            let root = update(&tree, &tree.root(), &mut model, changes, &case).await.unwrap();
            compare(&root, &model, &case).await;
        })
        .unwrap();
    }
}

#[test]
fn an_update_of_many_batches_is_one_update() {
    let sim = Sim::new(1).step_count_max(1 << 40);
    let env = sim.env();
    sim.run(async {
        for cache_bytes in [0, 16 << 20] {
            let options = options(1024, cache_bytes);
            let path = format!("/many-{cache_bytes}");
            let tree = Tree::create(&env, Path::new(&path), options, Polynomial).await.unwrap();
            let mut model = Model::new();
            let key = |number: u32| (number.wrapping_mul(2_654_435_761)).to_be_bytes().to_vec();
            let mut puts: Vec<_> = (0..30_000_u32)
                .map(|number| (key(number), Change::Put(number.to_le_bytes().to_vec())))
                .collect();
            puts.sort_by(|a, b| a.0.cmp(&b.0));
            let full = update(&tree, &tree.root(), &mut model, puts, "puts").await.unwrap();
            compare(&full, &model, "full").await;
            let full_model = model.clone();
            let half: Vec<_> = model
                .keys()
                .enumerate()
                .map(|(index, key)| {
                    (
                        key.clone(),
                        if index % 97 == 0 { Change::Put(b"stays".to_vec()) } else { Change::Remove },
                    )
                })
                .collect();
            let sparse = update(&tree, &full, &mut model, half, "removals").await.unwrap();
            compare(&sparse, &model, "sparse").await;
            compare(&full, &full_model, "full, later").await;
            // Removals leave no sparse nodes behind.
            let bytes: usize = model.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
            assert!(sparse.live_bytes() < 3 * bytes as u64 + 2048, "{} for {bytes}", sparse.live_bytes());
            let all = model.clone().into_keys().map(|key| (key, Change::Remove)).collect();
            let none = update(&tree, &sparse, &mut model, all, "all").await.unwrap();
            assert_eq!((none.len(), none.height(), none.live_bytes()), (0, 0, 0));
        }
    })
    .unwrap();
}

#[test]
fn entries_in_ascending_order_leave_full_nodes() {
    let sim = Sim::new(1).step_count_max(1 << 40);
    let env = sim.env();
    sim.run(async {
        for per_update in [1, 7, 500] {
            let path = format!("/ascending-{per_update}");
            let options = options(1024, 16 << 20);
            let tree = Tree::create(&env, Path::new(&path), options, Polynomial).await.unwrap();
            let mut root = tree.root();
            let mut model = Model::new();
            for first in (0..4000_u64).step_by(per_update) {
                let changes = (first..first + per_update as u64)
                    .map(|number| (number.to_be_bytes().to_vec(), Change::Put(vec![7; 20])));
                root = update(&tree, &root, &mut model, changes.collect(), "ascending").await.unwrap();
            }
            compare(&root, &model, "ascending").await;
            let bytes: usize = model.iter().map(|(key, value)| key.len() - 6 + value.len() + 4).sum();
            assert!(
                root.live_bytes() < bytes as u64 * 6 / 5,
                "{} for {bytes}: {per_update}",
                root.live_bytes()
            );
        }
    })
    .unwrap();
}

#[test]
fn changes_without_effect_are_not_written() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let tree = create(&env, &options(512, 1 << 20)).await.unwrap();
        let mut model = Model::new();
        let changes =
            (0..500_u32).map(|number| (number.to_be_bytes().to_vec(), Change::Put(b"value".to_vec())));
        let root = update(&tree, &tree.root(), &mut model, changes.clone().collect(), "").await.unwrap();
        let file_bytes = tree.file_bytes();
        for same in [
            changes.collect::<Vec<_>>(),
            vec![(b"absent".to_vec(), Change::Remove)],
            vec![(vec![0; 4], Change::Keep)],
            vec![],
        ] {
            let again = update(&tree, &root, &mut model, same, "").await.unwrap();
            assert_eq!(tree.file_bytes(), file_bytes);
            assert_eq!(again.summary(), root.summary());
        }
        // One change writes one path.
        update(&tree, &root, &mut model, vec![(vec![0; 4], Change::Remove)], "").await.unwrap();
        assert!(tree.file_bytes() <= file_bytes + 8192, "{} after {file_bytes}", tree.file_bytes());
    })
    .unwrap();
}

#[test]
fn changes_out_of_order_or_too_large_are_refused_without_effect() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let tree = create(&env, &options(512, 1 << 20)).await.unwrap();
        let root = tree.root();
        let put = |_: &[u8], value: Vec<u8>, _: Option<&[u8]>| Change::Put(value);
        let keys = |keys: &[&[u8]]| keys.iter().map(|key| (key.to_vec(), b"v".to_vec())).collect::<Vec<_>>();
        let refused = tree.update(&root, keys(&[b"a", b"c", b"b"]), put).await;
        assert!(matches!(refused, Err(TreeError::KeyOrder { index: 2 })), "{refused:?}");
        let refused = tree.update(&root, keys(&[b"a", b"a"]), put).await;
        assert!(matches!(refused, Err(TreeError::KeyOrder { index: 1 })), "{refused:?}");
        let refused = tree.update(&root, keys(&[&[0; settee_tree::KEY_SIZE_MAX + 1]]), put).await;
        assert!(matches!(refused, Err(TreeError::TooLarge { .. })), "{refused:?}");
        let refused = tree.update(&root, [(b"k", vec![0; settee_tree::VALUE_SIZE_MAX + 1])], put).await;
        assert!(matches!(refused, Err(TreeError::TooLarge { .. })), "{refused:?}");
        assert!(tree.root().is_empty());
        let root = tree.update(&root, keys(&[b"a"]), put).await.unwrap();
        tree.commit(&root, 5, b"").await.unwrap();
        let refused = tree.commit(&root, 5, b"").await;
        assert!(matches!(refused, Err(TreeError::StaleSeq { seq: 5, last: 5 })), "{refused:?}");
        // The same root once more: its handles keep their `seq`.
        tree.commit(&root, 6, b"again").await.unwrap();
        assert_eq!((root.seq(), tree.root().seq(), tree.committed().seq()), (5, 6, 6));
        assert_eq!(tree.root().attachment().await.unwrap(), "again");
        let refused = root.get_many(&[b"b", b"a"], |_, _| {}).await;
        assert!(matches!(refused, Err(TreeError::KeyOrder { index: 1 })), "{refused:?}");
    })
    .unwrap();
}

#[test]
fn a_copy_of_a_root_with_its_head_is_a_tree() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let options = options(512, 1 << 20);
        let tree = create(&env, &options).await.unwrap();
        let (mut model, mut random) = (Model::new(), Random::new(3));
        let changes = Shape::Numbers.changes(&mut random, 900, 90);
        let root = update(&tree, &tree.root(), &mut model, changes, "").await.unwrap();
        assert_eq!(root.head(), None);
        tree.commit(&root, 1, b"one").await.unwrap();
        let at_one = model.clone();
        for seq in 2..5 {
            let changes = Shape::Numbers.changes(&mut random, 900, 50);
            let root = update(&tree, &tree.root(), &mut model, changes, "").await.unwrap();
            tree.commit(&root, seq, b"later").await.unwrap();
        }
        let mut copy = root.head().unwrap();
        let file = sim.disk().read_file(FILE).unwrap();
        copy.extend_from_slice(&file[settee_tree::HEAD_SIZE as usize..root.end() as usize]);
        sim.disk().write_file("/copy", copy);
        let tree = Tree::open(&env, Path::new("/copy"), options, Polynomial).await.unwrap();
        assert_eq!((tree.root().seq(), tree.is_torn()), (1, false));
        assert_eq!(tree.root().attachment().await.unwrap(), "one");
        compare(&tree.root(), &at_one, "copy").await;
    })
    .unwrap();
}

#[test]
fn a_lookup_reads_a_node_a_level_and_one_where_inner_nodes_are_cached() {
    let sim = Sim::new(1).step_count_max(1 << 40);
    let env = sim.env();
    sim.run(async {
        // Enough space for the inner nodes and a few leaves.
        for (cache_bytes, reads_max) in [(0, 99), (200 << 10, 1)] {
            let path = format!("/tree-{cache_bytes}");
            let options = options(512, cache_bytes);
            let mut builder =
                TreeBuilder::create(&env, Path::new(&path), options.clone(), Polynomial).await.unwrap();
            for number in 0..20_000_u32 {
                builder.push(&number.to_be_bytes(), b"some value").await.unwrap();
            }
            let tree = builder.finish(1, b"").await.unwrap();
            let root = tree.root();
            assert!(root.height() >= 3);
            let reads_max = reads_max.min(root.height() - 1);
            for number in (0..20_000_u32).rev().step_by(37) {
                let before = tree.node_read_count();
                assert!(root.get(&number.to_be_bytes()).await.unwrap().is_some());
                let reads = (tree.node_read_count() - before) as usize;
                assert!(reads <= reads_max, "{reads} reads of {reads_max}, cache {cache_bytes}");
                assert!(cache_bytes > 0 || reads == root.height() - 1, "the root node is in memory");
                let stats = options.cache.stats();
                assert!(stats.bytes <= cache_bytes as u64, "{stats:?}");
            }
            // A whole node's neighbours cost one read each way, not one for each key.
            let keys: Vec<_> = (0..400_u32).map(u32::to_be_bytes).collect();
            let before = tree.node_read_count();
            let mut found_count = 0;
            root.get_many(&keys, |_, value| found_count += usize::from(value.is_some())).await.unwrap();
            assert_eq!(found_count, 400);
            assert!(tree.node_read_count() - before < 40);
            drop((tree, root));
            assert_eq!(options.cache.stats().bytes, 0, "a dropped tree leaves nothing");
        }
    })
    .unwrap();
}

#[test]
fn a_dropped_update_leaves_the_tree_as_it_was() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let tree = create(&env, &options(256, [0, 1 << 20][random.below(2)])).await.unwrap();
            let mut model = Model::new();
            let mut root = tree.root();
            for step in 0..6 {
                let case = format!("seed={seed} step={step}");
                let abandoned = Shape::Numbers.changes(&mut random, 1500, 80);
                let mut polls_left = random.below(60);
                let mut update_future = Box::pin(tree.update(&root, abandoned, |_, change, _| change));
                let is_done = std::future::poll_fn(|context| {
                    if update_future.as_mut().poll(context).is_ready() {
                        return std::task::Poll::Ready(true);
                    }
                    polls_left = polls_left.saturating_sub(1);
                    if polls_left == 0 { std::task::Poll::Ready(false) } else { std::task::Poll::Pending }
                })
                .await;
                drop(update_future);
                assert!(is_done || root.summary() == tree.root().summary(), "{case}");
                compare(&root, &model, &case).await;
                let changes = Shape::Numbers.changes(&mut random, 300, 80);
                root = update(&tree, &root, &mut model, changes, &case).await.unwrap();
                compare(&root, &model, &case).await;
                tree.commit(&root, step + 1, b"").await.unwrap();
            }
        })
        .unwrap();
    }
}
