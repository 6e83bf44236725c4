//! A store and a `BTreeMap` that are changed together and compared.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

use settee_io::Env;
use settee_store::{Batch, LogOptions, Seq, Snapshot, Stage, Store, StoreOptions};

pub(crate) const OPTIONS: StoreOptions = StoreOptions {
    // Small segments, so that a run goes through several.
    log: LogOptions {
        batch_bytes_max: 16 << 10,
        segment_bytes_min: 8 << 10,
        segment_bytes_max: 40 << 10,
        ..LogOptions::DEFAULT
    },
    measure: Some(|key, meta, _| [1, meta.len() as u64, u64::from(key[0])]),
    ..StoreOptions::DEFAULT
};

/// `Seq`, meta, value, and whether it is listed.
pub(crate) type Value = (u64, Vec<u8>, Vec<u8>, bool);

/// What a store holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    /// By key.
    pub(crate) entries: BTreeMap<Vec<u8>, Value>,
    /// The last listed record that there ever was.
    pub(crate) last_listed: u64,
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
        (self.0 % count as u64) as usize
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

pub(crate) async fn open(env: &Env, options: &StoreOptions) -> Store {
    Store::open(env, Path::new("/data/store"), options.clone()).await.unwrap().0
}

/// Compares all that a snapshot shows: by key and by `Seq`, in both directions, its values, its sums.
pub(crate) async fn check(snapshot: &Snapshot, model: &Model, case: &str) {
    let all = (Bound::Unbounded, Bound::Unbounded);
    let mut found = Vec::new();
    for descending in [false, true] {
        let mut scan = snapshot.scan(all.0, all.1, descending);
        found.clear();
        while let Some(entry) = scan.next().await.unwrap() {
            found.push((entry.key.to_vec(), entry.seq().0, entry.meta.to_vec(), entry.location));
        }
        if descending {
            found.reverse();
        }
        let keys: Vec<_> = found.iter().map(|(key, seq, ..)| (key, *seq)).collect();
        let expected: Vec<_> = model.entries.iter().map(|(key, (seq, ..))| (key, *seq)).collect();
        assert_eq!(keys, expected, "{case} descending={descending}");
    }
    for ((key, _, meta, location), (_, (_, expected_meta, value, listed))) in found.iter().zip(&model.entries)
    {
        assert_eq!(meta, expected_meta, "{case}");
        let record = snapshot.read(*location).await.unwrap();
        assert_eq!((record.key(), &record.value()[..]), (&key[..], &value[..]), "{case}");
        let entry = snapshot.get(key).await.unwrap().unwrap();
        assert_eq!((entry.location, entry.listed), (*location, *listed), "{case}");
    }
    check_listed(snapshot, model, case).await;
    let sums = snapshot.sums(all.0, all.1).await.unwrap();
    assert_eq!(sums, snapshot.sums_of_all(), "{case}");
    let metas = model.entries.values().map(|(_, meta, ..)| meta.len() as u64).sum::<u64>();
    assert_eq!((sums[0], sums[1]), (model.entries.len() as u64, metas), "{case}");
}

async fn check_listed(snapshot: &Snapshot, model: &Model, case: &str) {
    let listed = model.entries.iter().filter(|(_, (.., listed))| *listed);
    let mut listed: Vec<_> = listed.map(|(key, (seq, ..))| (*seq, key.clone())).collect();
    listed.sort_unstable();
    for after in [0, listed.get(listed.len() / 2).map_or(0, |(seq, _)| *seq)] {
        let expected: Vec<_> = listed.iter().filter(|(seq, _)| *seq > after).cloned().collect();
        for descending in [false, true] {
            let mut scan = snapshot.scan_listed(Seq(after), descending);
            let mut found = Vec::new();
            while let Some(entry) = scan.next().await.unwrap() {
                found.push((entry.seq().0, entry.key.to_vec()));
            }
            if descending {
                found.reverse();
            }
            assert_eq!(found, expected, "{case} after={after} descending={descending}");
        }
        assert_eq!(snapshot.sums_listed(Seq(after)).await.unwrap()[0], expected.len() as u64, "{case}");
    }
    assert_eq!(snapshot.last_listed().0, model.last_listed, "{case}");
}

/// Compares a range: what it holds, its sums, and what is left of it when a part was skipped.
pub(crate) async fn check_range(snapshot: &Snapshot, model: &Model, random: &mut Random, case: &str) {
    let mut key = || (0..1 + random.below(2)).map(|_| b'a' + random.below(6) as u8).collect::<Vec<u8>>();
    let (start, end) = (key(), key());
    let (start, end) = if start <= end { (start, end) } else { (end, start) };
    let (amount, descending) = (random.below(40) as u64, random.below(2) == 0);
    let rows = model.entries.range(start.clone()..end.clone());
    let mut rows: Vec<(Vec<u8>, u64)> =
        rows.map(|(key, (_, meta, ..))| (key.clone(), meta.len() as u64)).collect();
    let (from, to) = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
    let case = format!("{case} range={start:?}..{end:?} descending={descending} amount={amount}");
    let sums = snapshot.sums(from, to).await.unwrap();
    assert_eq!(sums[1], rows.iter().map(|(_, own)| own).sum::<u64>(), "{case}");
    if descending {
        rows.reverse();
    }
    let (mut count, mut expected) = (0, 0);
    while expected < amount && count < rows.len() {
        expected += rows[count].1;
        count += 1;
    }
    let mut scan = snapshot.scan(from, to, descending);
    assert_eq!(scan.skip_sum(1, amount).await.unwrap(), expected, "{case}");
    // What adds nothing may be passed over at the end, where nothing else is left.
    let mut left = Vec::new();
    while let Some(entry) = scan.next().await.unwrap() {
        left.push(entry.key.to_vec());
    }
    assert_eq!(left, rows[count..].iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), "{case}");
}

/// Commits one random batch to both.
pub(crate) async fn commit(store: &Store, model: &mut Model, random: &mut Random, stage: Stage) -> Seq {
    let mut batch = Batch::new();
    let mut changes = Vec::new();
    for _ in 0..1 + random.below(5) {
        let length = 1 + random.below(2);
        let key: Vec<u8> = (0..length).map(|_| b'a' + random.below(6) as u8).collect();
        if random.below(4) == 0 {
            batch.delete(&key);
            changes.push((key, None));
        } else {
            let (meta_size, value_size) = (random.below(30), random.below(600));
            let (meta, value, listed) =
                (random.bytes(meta_size), random.bytes(value_size), random.below(2) == 0);
            batch.put(&key, &meta, value.clone().into(), listed);
            changes.push((key, Some((meta, value, listed))));
        }
    }
    let mut writer = store.writer().await;
    let last = writer.commit(&batch, stage).await.unwrap();
    let first = last.0 + 1 - changes.len() as u64;
    for (seq, (key, change)) in (first..).zip(changes) {
        match change {
            Some((meta, value, listed)) => {
                model.last_listed = if listed { seq } else { model.last_listed };
                model.entries.insert(key, (seq, meta, value, listed));
            }
            None => drop(model.entries.remove(&key)),
        }
    }
    for (key, (seq, ..)) in &model.entries {
        assert_eq!(writer.get(key).await.unwrap().unwrap().seq().0, *seq);
    }
    last
}
