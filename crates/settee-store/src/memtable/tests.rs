//! Goal: a map behaves as an ordered map, and its snapshots never change.
//! Method: apply the same random operations to a map and a `BTreeMap`. Compare every answer with a plain loop
//! over the model, check the invariants as the tree grows and shrinks, and compare older snapshots again at
//! the end. Long keys make deep trees of few entries.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use proptest::prelude::*;
use proptest::sample::Index;

use super::entry::KEY_SIZE_MAX;
use super::page::{PAGE_SIZE_MAX, RECORD_COUNT_MAX};
use super::{Aggregates, Cursor, Found, MemtableMap};

/// Largest value that the store keeps with a key, older records excluded, in bytes.
const META_SIZE_MAX: usize = 512;

type Key = Vec<u8>;
type Model = BTreeMap<Key, Value>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    bytes: Vec<u8>,
    aggregates: Aggregates,
}

impl Value {
    /// A value that differs from others in every part.
    fn new(number: u64, size: usize) -> Value {
        let mut bytes = [number, !number].map(u64::to_le_bytes).concat();
        bytes.resize(20 + size, number as u8);
        Value { bytes, aggregates: [1, number % 3, number * number] }
    }

    fn found<'a>(&'a self, key: &'a [u8]) -> Found<'a> {
        Found { key, value: &self.bytes, aggregates: self.aggregates }
    }
}

/// A map and its model, changed together.
#[derive(Clone, Default)]
struct Pair {
    map: MemtableMap,
    model: Model,
    number: u64,
}

impl Pair {
    fn insert(&mut self, key: &[u8], size: usize) {
        self.number += 1;
        let value = Value::new(self.number, size);
        let old = self.model.insert(key.to_vec(), value.clone());
        self.map.upsert(key, |found, buffer| {
            assert_eq!(found, old.as_ref().map(|old| old.found(key)));
            buffer.extend_from_slice(&value.bytes);
            value.aggregates
        });
    }

    fn remove(&mut self, key: &[u8]) {
        assert_eq!(self.map.remove(key), self.model.remove(key).is_some());
    }

    /// A key of the model, or a key near one, or any key if the model is empty.
    fn key_near(&self, index: Index, change: u8) -> Key {
        if self.model.is_empty() {
            return vec![change];
        }
        let mut key = self.model.keys().nth(index.index(self.model.len())).expect("below the length").clone();
        match change % 4 {
            0 => key.push(0),
            1 => drop(key.pop()),
            _ => {}
        }
        key
    }

    fn check(&self) {
        self.map.root.check();
        assert_eq!(self.map.len(), self.model.len());
        assert_eq!(self.map.is_empty(), self.model.is_empty());
        assert_eq!(self.map.aggregates(), sum(self.model.values()));
        let mut cursor = self.map.cursor();
        for (key, value) in &self.model {
            assert_eq!(cursor.next(), Some(value.found(key)));
        }
        assert_eq!(cursor.next(), None);
    }

    /// Compares gets, scans, aggregates and skips within the bounds with plain loops.
    fn check_range(&self, start: Bound<&[u8]>, end: Bound<&[u8]>, descending: bool, skip: u64, amount: u64) {
        for bound in [start, end] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound {
                assert_eq!(self.map.get(key), self.model.get(key).map(|value| value.found(key)));
            }
        }
        let within = |key: &&Key| RangeBounds::<[u8]>::contains(&(start, end), &key[..]);
        let mut entries: Vec<_> = self.model.iter().filter(|(key, _)| within(key)).collect();
        assert_eq!(self.map.aggregates_in((start, end)), sum(entries.iter().map(|(_, value)| *value)));
        if descending {
            entries.reverse();
        }
        let cursor = Cursor::range(&self.map, start, end, descending);
        check_rest(cursor.clone(), &entries);

        let mut skipped = cursor.clone();
        skipped.next();
        skipped.skip(skip);
        check_rest(skipped, entries.get((skip as usize).saturating_add(1)..).unwrap_or(&[]));

        for component in 0..3 {
            let mut skipped = cursor.clone();
            let skipped_sum = skipped.skip_sum(component, amount);
            let (mut count, mut expected) = (0, 0);
            while expected < amount && count < entries.len() {
                expected += entries[count].1.aggregates[component];
                count += 1;
            }
            // Entries that add nothing are skipped if only they remain.
            assert_eq!(skipped_sum, expected);
            check_rest(skipped, &entries[count..]);
        }
    }
}

fn sum<'a>(values: impl Iterator<Item = &'a Value>) -> Aggregates {
    values.fold([0; 3], |aggregates, value| {
        std::array::from_fn(|index| aggregates[index] + value.aggregates[index])
    })
}

fn check_rest(mut cursor: Cursor, entries: &[(&Key, &Value)]) {
    assert_eq!(cursor.remaining(), entries.len() as u64);
    for (key, value) in entries {
        assert_eq!(cursor.next(), Some(value.found(key)));
    }
    assert_eq!(cursor.next(), None);
}

#[derive(Debug, Clone)]
enum Operation {
    Insert { key: Key, meta_size: usize },
    InsertRun { start: u32, count: u32, step: i32 },
    Replace { index: Index, meta_size: usize },
    Remove { index: Index },
    RemoveRun { index: Index, count: usize },
    Snapshot,
    Range { start: (Index, u8), end: (Index, u8), descending: bool, skip: u64, amount: u64 },
}

fn keys() -> impl Strategy<Value = Key> {
    prop_oneof![
        1 => Just(Key::new()),
        8 => prop::collection::vec(any::<u8>(), 0..4),
        8 => prop::collection::vec(prop::sample::select(vec![0, 1, 0xff]), 0..12),
        8 => (0..100_000u32).prop_map(|number| format!("d{number:017}").into_bytes()),
        2 => (0..40u8, 1000..KEY_SIZE_MAX - 1).prop_map(|(last, size)| [vec![b'k'; size], vec![last]].concat()),
        2 => (any::<u8>(), 1000..KEY_SIZE_MAX).prop_map(|(first, size)| vec![first; size]),
    ]
}

fn operations() -> impl Strategy<Value = Operation> {
    let near = || (any::<Index>(), any::<u8>());
    prop_oneof![
        30 => (keys(), 0..META_SIZE_MAX + 1).prop_map(|(key, meta_size)| Operation::Insert { key, meta_size }),
        6 => (0..50_000u32, 1..400u32, prop::sample::select(vec![1, 7, -1, -7]))
            .prop_map(|(start, count, step)| Operation::InsertRun { start, count, step }),
        20 => (any::<Index>(), 0..META_SIZE_MAX + 1)
            .prop_map(|(index, meta_size)| Operation::Replace { index, meta_size }),
        20 => any::<Index>().prop_map(|index| Operation::Remove { index }),
        4 => (any::<Index>(), 1..500usize).prop_map(|(index, count)| Operation::RemoveRun { index, count }),
        4 => Just(Operation::Snapshot),
        10 => (near(), near(), any::<bool>(), 0..200u64, prop_oneof![0..100u64, 0..5_000_000u64])
            .prop_map(|(start, end, descending, skip, amount)| Operation::Range { start, end, descending, skip, amount }),
    ]
}

fn bound(key: &[u8], kind: u8) -> Bound<&[u8]> {
    match kind / 4 % 8 {
        0 => Bound::Unbounded,
        1..4 => Bound::Excluded(key),
        _ => Bound::Included(key),
    }
}

fn run(pair: &mut Pair, snapshots: &mut Vec<Pair>, operation: &Operation) {
    match operation {
        Operation::Insert { key, meta_size } => pair.insert(key, *meta_size),
        Operation::InsertRun { start, count, step } => {
            for index in 0..*count {
                let number = i64::from(*start) + i64::from(index) * i64::from(*step);
                pair.insert(format!("d{:017}", number.max(0)).as_bytes(), 24);
            }
        }
        Operation::Replace { index, meta_size } => {
            let key = pair.key_near(*index, 2);
            pair.insert(&key, *meta_size);
        }
        Operation::Remove { index } => {
            let key = pair.key_near(*index, 2);
            pair.remove(&key);
            pair.remove(&key);
        }
        Operation::RemoveRun { index, count } => {
            let start = pair.key_near(*index, 2);
            let keys: Vec<_> = pair.model.range(start..).map(|(key, _)| key.clone()).take(*count).collect();
            keys.iter().for_each(|key| pair.remove(key));
        }
        Operation::Snapshot => snapshots.push(pair.clone()),
        Operation::Range { start, end, descending, skip, amount } => {
            let (start_key, end_key) = (pair.key_near(start.0, start.1), pair.key_near(end.0, end.1));
            let (start, end) = (bound(&start_key, start.1), bound(&end_key, end.1));
            pair.check_range(start, end, *descending, *skip, *amount);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn layer_answers_as_a_sorted_map_and_snapshots_never_change(
        operations in prop::collection::vec(operations(), 1..300),
    ) {
        let (mut pair, mut snapshots) = (Pair::default(), Vec::new());
        for operation in &operations {
            run(&mut pair, &mut snapshots, operation);
            pair.map.root.check();
        }
        snapshots.iter().for_each(Pair::check);
        pair.check();
        // Changing an old snapshot makes a branch that no other map shows.
        if let Some(mut branch) = snapshots.first().cloned() {
            branch.insert(b"branch", 1);
            branch.check();
            snapshots.iter().for_each(Pair::check);
        }
        while let Some(key) = pair.model.keys().next().cloned() {
            pair.remove(&key);
        }
        pair.check();
    }
}

/// A pseudo-random permutation of the numbers below 2^bits.
fn shuffled(bits: u32) -> impl Iterator<Item = u64> {
    (0..1u64 << bits)
        .map(move |index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15).reverse_bits() >> (64 - bits))
}

fn key(number: u64) -> Key {
    format!("d{number:017}").into_bytes()
}

fn filled(numbers: impl Iterator<Item = u64>) -> Pair {
    let mut pair = Pair::default();
    numbers.for_each(|number| pair.insert(&key(number), 24));
    pair.check();
    pair
}

/// Average number of entries per leaf, as a share of a full leaf.
fn fill(pair: &Pair) -> f64 {
    pair.map.len() as f64 / pair.map.root.leaf_count() as f64 / RECORD_COUNT_MAX as f64
}

#[test]
fn ascending_keys_fill_the_leaves() {
    assert!(fill(&filled(0..20_000)) > 0.99);
}

#[test]
fn ascending_runs_between_other_keys_fill_the_leaves() {
    let mut pair = filled([0, 1_000_000, 2_000_000].into_iter());
    for index in 0..10_000 {
        pair.insert(&key(index), 24);
        pair.insert(&key(1_000_000 + index), 24);
    }
    pair.check();
    assert!(fill(&pair) > 0.95, "{}", fill(&pair));
}

#[test]
fn keys_in_random_order_fill_the_leaves_by_two_thirds() {
    assert!(fill(&filled(shuffled(15))) > 0.6);
}

#[test]
fn descending_keys_fill_the_leaves_by_half() {
    assert!(fill(&filled((0..20_000).rev())) > 0.49);
}

#[test]
fn keys_below_the_end_of_a_full_leaf_make_no_sparse_leaves() {
    let mut pair = filled((0..200).map(|number| number * 1_000_000));
    (0..20_000).for_each(|number| pair.insert(&key(50_900_000 - number), 24));
    pair.check();
    assert!(fill(&pair) > 0.45, "{}", fill(&pair));
}

#[test]
fn leaves_stay_filled_when_most_entries_are_removed() {
    let mut pair = filled(shuffled(15));
    shuffled(15).filter(|number| number % 16 != 0).for_each(|number| pair.remove(&key(number)));
    pair.check();
    assert!(fill(&pair) > 0.25, "{}", fill(&pair));
}

#[test]
fn a_layer_emptied_in_any_order_is_small_again() {
    for order in [shuffled(13).collect::<Vec<_>>(), (0..1 << 13).collect(), (0..1 << 13).rev().collect()] {
        let mut pair = filled(shuffled(13));
        for number in order {
            pair.remove(&key(number));
        }
        pair.check();
        assert_eq!(pair.map.memory_bytes(), MemtableMap::new().memory_bytes());
    }
}

#[test]
fn replacing_entries_over_and_over_takes_no_more_memory() {
    let mut pair = filled(0..5_000);
    let before = pair.map.memory_bytes();
    for round in 1..50 {
        (0..5_000).for_each(|number| pair.insert(&key(number), (24 + number as usize * round) % 25));
    }
    pair.check();
    assert!(pair.map.memory_bytes() < before * 3 / 2, "{before} {}", pair.map.memory_bytes());
}

#[test]
fn entries_of_the_largest_size_are_kept() {
    let mut pair = Pair::default();
    for number in shuffled(8) {
        let mut key = vec![0xff; KEY_SIZE_MAX];
        key[KEY_SIZE_MAX - 1] = number as u8;
        pair.insert(&key, META_SIZE_MAX);
        key[0] = number as u8;
        pair.insert(&key, META_SIZE_MAX);
    }
    pair.check();
    shuffled(8).for_each(|number| pair.insert(&key(number), 0));
    pair.check();
    assert!(pair.map.memory_bytes() > 512 * KEY_SIZE_MAX);
    while let Some(key) = pair.model.keys().nth(pair.model.len() / 2).cloned() {
        pair.remove(&key);
        pair.map.root.check();
    }
}

#[test]
fn neighbours_evened_out_by_size_keep_to_the_largest_count() {
    let mut pair = Pair::default();
    pair.insert(&[0; 1600], 0);
    (0..200).for_each(|last| pair.insert(&[1, last], 0));
    // Leaves few entries beside the long one, but too many to merge with the full leaf after it.
    (0..60).for_each(|last| {
        pair.remove(&[1, last]);
        pair.map.root.check();
    });
    pair.check();
}

#[test]
fn large_metas_that_grow_in_place_split_their_leaf() {
    let mut pair = filled(0..RECORD_COUNT_MAX as u64);
    assert_eq!(pair.map.root.leaf_count(), 1);
    (0..RECORD_COUNT_MAX as u64).for_each(|number| pair.insert(&key(number), META_SIZE_MAX));
    pair.check();
    assert!(pair.map.root.leaf_count() >= RECORD_COUNT_MAX * META_SIZE_MAX / PAGE_SIZE_MAX);
}

#[test]
fn a_snapshot_shares_all_but_what_was_touched_since() {
    let mut pair = filled(shuffled(15));
    let snapshot = pair.map.clone();
    assert_eq!(pair.map.root.unshared_count(&snapshot.root), 0);
    // The path to a leaf that is changed again and again is copied once.
    let mut unshared_counts = vec![];
    for _ in 0..10 {
        pair.insert(&key(77), 24);
        unshared_counts.push(pair.map.root.unshared_count(&snapshot.root));
    }
    assert_eq!(unshared_counts, vec![pair.map.root.height(); 10]);
}

#[test]
fn removing_what_is_not_there_copies_nothing() {
    let mut pair = filled(shuffled(10));
    let snapshot = pair.map.clone();
    pair.remove(b"nothing");
    assert_eq!(pair.map.root.unshared_count(&snapshot.root), 0);
}

#[test]
fn sums_of_any_size_are_kept() {
    let mut map = MemtableMap::new();
    for shift in 0..64 {
        let aggregates = [1 << shift, (1 << shift) - 1, !(1 << shift)];
        map.insert(b"key", b"value", aggregates);
        assert_eq!(map.get(b"key"), Some(Found { key: b"key", value: b"value", aggregates }));
        assert_eq!(map.aggregates(), aggregates);
    }
    map.insert(b"other", b"", [1, u64::MAX, 0]);
    let all = (Bound::Unbounded, Bound::Unbounded);
    assert_eq!(map.aggregates_in(all), [(1 << 63) + 1, (1 << 63) - 2, !(1 << 63)], "they wrap around");
}

#[test]
fn a_cursor_on_bounds_the_wrong_way_round_is_empty() {
    let pair = filled(0..1_000);
    pair.check_range(Bound::Included(&key(700)), Bound::Included(&key(300)), false, 0, 1);
    pair.check_range(Bound::Excluded(&key(500)), Bound::Excluded(&key(500)), true, 5, u64::MAX);
    assert_eq!(
        Cursor::range(&pair.map, Bound::Included(&key(700)), Bound::Unbounded, false).remaining(),
        300
    );
}

#[test]
#[should_panic = "key of"]
fn a_key_over_the_limit_is_refused() {
    Pair::default().insert(&vec![0; KEY_SIZE_MAX + 1], 0);
}
