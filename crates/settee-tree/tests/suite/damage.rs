//! Goal: damage is detected and located; it causes an error, never wrong data and never a panic.
//! Method: flip every bit of a small file in turn, open, check and read it, and compare the results with the
//! tree's entries. Then overwrite larger ranges, and open files that are not trees.

use crate::common;
use settee_io::Damage;

use std::path::Path;

use common::{FILE, Model, Polynomial, Random, Shape, create, entries, open, options, update};
use settee_sim::{Sim, SimDisk, seeds};
use settee_tree::{HEAD_SIZE, Tree, TreeError};

/// A tree of two commits: its file, and the entries of the two roots.
fn small_tree(seed: u64) -> (Vec<u8>, [Model; 2]) {
    let sim = Sim::new(seed);
    let env = sim.env();
    let models = sim.run(async {
        let mut random = Random::new(seed);
        let tree = create(&env, &options(256, 0)).await.unwrap();
        let mut model = Model::new();
        let mut models = Vec::new();
        for seq in 1..3 {
            let changes = Shape::Short.changes(&mut random, 60, 90);
            let root = update(&tree, &tree.root(), &mut model, changes, "").await.unwrap();
            tree.commit(&root, seq, b"an attachment").await.unwrap();
            models.push(model.clone());
        }
        models
    });
    let models = models.unwrap().try_into().unwrap();
    (sim.disk().read_file(FILE).unwrap(), models)
}

/// The outcome of opening, checking and reading.
enum Found {
    Refused,
    /// The entries, if they could be read, and the number of problems that the check reported.
    Read {
        seq: u64,
        is_torn: bool,
        content: Option<Model>,
        problem_count: usize,
    },
}

fn look(file: Vec<u8>, case: &str) -> Found {
    let disk = SimDisk::new(1).short_reads(0.0);
    disk.write_file(FILE, file);
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    sim.run(async {
        let tree = match open(&env, &options(256, 0)).await {
            Ok(tree) => tree,
            Err(TreeError::Io(error)) => panic!("{case}: {error}"),
            Err(_) => return Found::Refused,
        };
        let root = tree.root();
        let problems = root.check(|_, _| {}, |_| {}).await.unwrap();
        for problem in &problems {
            assert!(problem.offset >= HEAD_SIZE || !problem.what.is_empty(), "{case}: {problem}");
        }
        let content = entries(&root).await.ok().map(|entries| entries.into_iter().collect());
        // A lookup agrees with the scan.
        if let Some(content) = &content {
            let content: &Model = content;
            for (key, value) in content.iter().take(3) {
                assert_eq!(root.get(key).await.unwrap().as_ref(), Some(value), "{case}");
            }
        }
        Found::Read { seq: root.seq(), is_torn: tree.is_torn(), content, problem_count: problems.len() }
    })
    .unwrap()
}

#[test]
fn every_flipped_bit_is_detected_or_has_no_effect() {
    let (file, models) = small_tree(1);
    let Found::Read { seq: 2, problem_count: 0, is_torn: false, content } = look(file.clone(), "whole")
    else {
        panic!("the tree is sound")
    };
    assert_eq!(content.as_ref(), Some(&models[1]));
    let (mut refused, mut problems, mut fell_back, mut untouched) = (0, 0, 0, 0);
    for bit in 0..file.len() * 8 {
        // Much of the file is zeros, where one bit in a few suffices.
        let byte = bit / 8;
        let is_zeros =
            file[byte.saturating_sub(16)..(byte + 16).min(file.len())].iter().all(|byte| *byte == 0);
        if is_zeros && bit % 97 != 0 {
            continue;
        }
        let mut damaged = file.clone();
        damaged[byte] ^= 1 << (bit % 8);
        let case = format!("bit {} of byte {byte}", bit % 8);
        match look(damaged, &case) {
            Found::Refused => refused += 1,
            Found::Read { seq, is_torn, content, problem_count } => {
                if seq == 1 {
                    // As if the second commit had been torn.
                    assert!(is_torn && byte < HEAD_SIZE as usize, "{case}");
                    fell_back += 1;
                    continue;
                }
                if let Some(content) = &content {
                    assert!(content == &models[seq as usize - 1], "{case}: wrong data");
                }
                // The check finds every problem that reading finds.
                assert!(content.is_some() || problem_count > 0, "{case}");
                if problem_count > 0 { problems += 1 } else { untouched += 1 }
            }
        }
    }
    println!(
        "refused {refused}, calls by the check {problems}, fell back {fell_back}, untouched {untouched}"
    );
    assert!(refused > 0 && problems > 1000 && fell_back > 0);
}

#[test]
fn a_damaged_node_is_reported_with_its_keys_and_the_rest_is_read() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let tree = create(&env, &options(256, 0)).await.unwrap();
            let mut model = Model::new();
            let mut random = Random::new(seed);
            let changes = Shape::Numbers.changes(&mut random, 1500, 95);
            let root = update(&tree, &tree.root(), &mut model, changes, "").await.unwrap();
            tree.commit(&root, 1, b"").await.unwrap();
            let used = (root.end() - HEAD_SIZE) as usize;
            let at = HEAD_SIZE as usize + random.below(used);
            sim.disk().damage_file(FILE, |bytes| bytes[at] ^= 0x10);
            let mut found = Model::new();
            let take = |key: &[u8], value: &[u8]| drop(found.insert(key.to_vec(), value.to_vec()));
            let problems = root.check(take, |_| {}).await.unwrap();
            let touched = |key: &[u8]| {
                problems.iter().any(|problem| {
                    key >= &problem.start[..] && problem.end.as_ref().is_none_or(|end| key < &end[..])
                })
            };
            // Every untouched entry was reported, and nothing else.
            for (key, value) in &model {
                let is_reported = found.get(key) == Some(value);
                assert!(is_reported || touched(key), "seed={seed}: {key:?} is lost without a report");
            }
            assert!(found.iter().all(|(key, value)| model.get(key) == Some(value)), "seed={seed}");
            assert!(problems.len() <= 1, "seed={seed}: {problems:?}");
            for (key, value) in &model {
                match root.get(key).await {
                    Ok(found) => assert_eq!(found.as_ref(), Some(value), "seed={seed}"),
                    Err(TreeError::Damaged(Damage { offset, .. })) => {
                        assert!(touched(key) && offset <= at as u64, "seed={seed}");
                    }
                    Err(error) => panic!("seed={seed}: {error}"),
                }
            }
        })
        .unwrap();
    }
}

#[test]
fn files_that_are_not_trees_are_refused() {
    let (file, _) = small_tree(2);
    let opened = |file: Vec<u8>| {
        let sim = Sim::new(1);
        sim.disk().write_file(FILE, file);
        let env = sim.env();
        sim.run(async { open(&env, &options(256, 0)).await.map(|tree| tree.root().seq()) }).unwrap()
    };
    assert!(matches!(opened(file.clone()), Ok(2)));
    assert!(matches!(opened(Vec::new()), Err(TreeError::NoRoot { .. })));
    assert!(matches!(opened(vec![0; 4096]), Err(TreeError::NoRoot { .. })));
    assert!(matches!(opened(b"some other file".to_vec()), Err(TreeError::NoRoot { .. })));
    // A file without root slots was never committed.
    let cut = opened(file[..4096].to_vec());
    assert!(matches!(cut, Err(TreeError::NoRoot { .. })), "{cut:?}");
    // A root whose nodes are missing isn't torn: they were synced before it was written.
    let cut = opened(file[..HEAD_SIZE as usize].to_vec());
    assert!(matches!(cut, Err(TreeError::Damaged(_))), "{cut:?}");
    let mut headless = file.clone();
    headless[..4096].fill(0);
    assert!(matches!(opened(headless), Err(TreeError::Damaged(Damage { offset: 0, .. }))));
    // The incarnation is checked on opening.
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let named = settee_tree::TreeOptions { incarnation: Some([9; 16]), ..options(256, 0) };
        let tree = Tree::create(&env, Path::new("/named"), named.clone(), Polynomial).await.unwrap();
        tree.commit(&tree.root(), 1, b"").await.unwrap();
        assert_eq!(tree.incarnation(), [9; 16]);
        let other = settee_tree::TreeOptions { incarnation: Some([8; 16]), ..named.clone() };
        let refused = Tree::open(&env, Path::new("/named"), other, Polynomial).await;
        assert!(matches!(refused, Err(TreeError::OtherIncarnation { .. })), "{refused:?}");
        assert!(Tree::open(&env, Path::new("/named"), named, Polynomial).await.unwrap().root().is_empty());
    })
    .unwrap();
}

/// Copies blocks between two trees, and nodes to other offsets.
#[test]
fn bytes_of_another_offset_or_file_never_pass() {
    for seed in seeds(10) {
        let (file, models) = small_tree(seed);
        let (other, _) = small_tree(seed + 100);
        let mut random = Random::new(seed);
        for _ in 0..60 {
            let mut mixed = file.clone();
            let source = if random.below(2) == 0 { &file } else { &other };
            let length = [8, 256, 4096][random.below(3)];
            let unit = if length == 4096 { 4096 } else { 8 };
            let from = random.below((source.len() - length) / unit + 1) * unit;
            let to = random.below((mixed.len() - length) / unit + 1) * unit;
            mixed[to..to + length].copy_from_slice(&source[from..from + length]);
            let case = format!("seed={seed} {length} bytes from {from} to {to}");
            if let Found::Read { seq, content: Some(content), .. } = look(mixed, &case) {
                assert!(content == models[seq as usize - 1], "{case}");
            }
        }
    }
}
