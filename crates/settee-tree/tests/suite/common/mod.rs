//! Shared by the tests: an order-sensitive reduction, a model, random changes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use settee_io::Env;
use settee_tree::{Change, NodeCache, Reduction, Root, Tree, TreeError, TreeOptions};

pub(crate) const FILE: &str = "/data/tree";

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// A polynomial in the entries' hashes, and their factor: its value changes when two entries change places.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Polynomial;

impl Reduction for Polynomial {
    type Summary = (u64, u64);

    fn zero(&self) -> (u64, u64) {
        (0, 1)
    }

    fn of(&self, key: &[u8], value: &[u8]) -> (u64, u64) {
        let mut hash = 14_695_981_039_346_656_037_u64;
        for byte in key.iter().chain(&[0xff]).chain(value) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
        }
        (hash, 0x9E37_79B9_7F4A_7C15)
    }

    fn join(&self, left: &(u64, u64), right: &(u64, u64)) -> (u64, u64) {
        (left.0.wrapping_mul(right.1).wrapping_add(right.0), left.1.wrapping_mul(right.1))
    }

    fn encode(&self, summary: &(u64, u64), out: &mut Vec<u8>) {
        out.extend_from_slice(&summary.0.to_le_bytes());
        out.extend_from_slice(&summary.1.to_le_bytes());
    }

    fn decode(&self, bytes: &[u8]) -> Option<(u64, u64)> {
        let (first, second) = bytes.split_at_checked(8)?;
        Some((u64::from_le_bytes(first.try_into().ok()?), u64::from_le_bytes(second.try_into().ok()?)))
    }
}

pub(crate) fn summary_of<'a>(entries: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>) -> (u64, u64) {
    entries.fold(Polynomial.zero(), |sum, (key, value)| Polynomial.join(&sum, &Polynomial.of(key, value)))
}

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % count
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

/// The kinds of keys and values of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// Few letters, so that keys are prefixes of each other and are hit again.
    Short,
    /// Long common prefixes.
    Prefixed,
    /// Numbers.
    Numbers,
    /// A few have the largest size allowed.
    Large,
}

impl Shape {
    pub(crate) const ALL: [Shape; 4] = [Shape::Short, Shape::Prefixed, Shape::Numbers, Shape::Large];

    pub(crate) fn key(self, random: &mut Random) -> Vec<u8> {
        match self {
            Shape::Short => {
                let length = random.below(7);
                (0..length).map(|_| b'a' + random.below(4) as u8).collect()
            }
            Shape::Prefixed => {
                let mut key = vec![b'p'; [0, 40, 200, 1000][random.below(4)]];
                key.extend(random.below(300).to_string().into_bytes());
                key
            }
            Shape::Numbers => (random.below(3000) as u64).to_be_bytes().to_vec(),
            Shape::Large => {
                let number = random.below(200).to_string().into_bytes();
                let mut key = if random.below(2) == 0 { vec![b'x'; 40] } else { number.clone() };
                if random.below(5) == 0 {
                    key.resize(settee_tree::KEY_SIZE_MAX - number.len(), b'-');
                }
                key.extend(number);
                key
            }
        }
    }

    pub(crate) fn value(self, random: &mut Random) -> Vec<u8> {
        let length = match self {
            Shape::Large if random.below(4) == 0 => settee_tree::VALUE_SIZE_MAX - random.below(2),
            _ => random.below(40),
        };
        random.bytes(length)
    }

    /// Up to `count` changes, sorted by key, each with the result of `decide`.
    pub(crate) fn changes(
        self,
        random: &mut Random,
        count: usize,
        put_share: usize,
    ) -> Vec<(Vec<u8>, Change)> {
        let mut changes = BTreeMap::new();
        for _ in 0..1 + random.below(count) {
            let change = match random.below(100) {
                0..5 => Change::Keep,
                at if at < 5 + put_share => Change::Put(self.value(random)),
                _ => Change::Remove,
            };
            changes.insert(self.key(random), change);
        }
        changes.into_iter().collect()
    }
}

pub(crate) fn options(node_bytes: usize, cache_bytes: usize) -> TreeOptions {
    TreeOptions {
        node_bytes,
        write_buffer_bytes: 8 << 10,
        read_ahead_bytes_max: 8 << 10,
        ..TreeOptions::new(Arc::new(NodeCache::new(cache_bytes)))
    }
}

pub(crate) async fn create(env: &Env, options: &TreeOptions) -> Result<Tree<Polynomial>, TreeError> {
    settee_io::directory::create(&*env.engine, Path::new("/data")).await?;
    let tree = Tree::create(env, Path::new(FILE), options.clone(), Polynomial).await?;
    settee_io::directory::sync(&*env.engine, Path::new("/data")).await?;
    Ok(tree)
}

pub(crate) async fn open(env: &Env, options: &TreeOptions) -> Result<Tree<Polynomial>, TreeError> {
    Tree::open(env, Path::new(FILE), options.clone(), Polynomial).await
}

/// Applies the changes to tree and model, and verifies the arguments of `decide`.
pub(crate) async fn update(
    tree: &Tree<Polynomial>,
    root: &Root<Polynomial>,
    model: &mut Model,
    changes: Vec<(Vec<u8>, Change)>,
    case: &str,
) -> Result<Root<Polynomial>, TreeError> {
    let before = model.clone();
    for (key, change) in &changes {
        match change {
            Change::Keep => {}
            Change::Put(value) => drop(model.insert(key.clone(), value.clone())),
            Change::Remove => drop(model.remove(key)),
        }
    }
    let expected: Vec<Vec<u8>> = changes.iter().map(|(key, _)| key.clone()).collect();
    let mut calls = Vec::new();
    let root = tree
        .update(root, changes, |key, change, previous| {
            assert_eq!(previous, before.get(key).map(Vec::as_slice), "{case} key={key:?}");
            calls.push(key.to_vec());
            change
        })
        .await?;
    assert_eq!(calls, expected, "{case}: calls in order, each once");
    Ok(root)
}

pub(crate) async fn entries(root: &Root<Polynomial>) -> Result<Vec<(Vec<u8>, Vec<u8>)>, TreeError> {
    let mut scan = root.scan((Bound::Unbounded, Bound::Unbounded), false);
    let mut found = Vec::new();
    while let Some((key, value)) = scan.next().await? {
        found.push((key.to_vec(), value.to_vec()));
    }
    Ok(found)
}

/// Verifies that the root has the model's entries, by a scan, and that a check finds no problem.
pub(crate) async fn compare(root: &Root<Polynomial>, model: &Model, case: &str) {
    let found = entries(root).await.unwrap();
    let expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(found, expected, "{case}");
    assert_eq!(root.len(), model.len() as u64, "{case}");
    assert_eq!(root.summary(), summary_of(model.iter()), "{case}");
    let (mut checked, mut bytes) = (0, 0);
    let problems = root.check(|_, _| checked += 1, |node_bytes| bytes += node_bytes).await.unwrap();
    assert_eq!(problems, [], "{case}");
    assert_eq!((checked, bytes), (root.len(), root.live_bytes()), "{case}");
}
