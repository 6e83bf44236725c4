//! A `BTreeMap` that is changed together with a store and compared with it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

use settee_io::Env;
use settee_store::{Batch, LogOptions, Seq, Snapshot, Stage, Store, StoreOptions};

pub(crate) const OPTIONS: StoreOptions = StoreOptions {
    // Small segments, so that a run fills several.
    log: LogOptions {
        batch_bytes_max: 16 << 10,
        segment_bytes_min: 8 << 10,
        segment_bytes_max: 40 << 10,
        ..LogOptions::DEFAULT
    },
    aggregate: Some(|key, meta, _| [1, meta.len() as u64, u64::from(key[0])]),
    ..StoreOptions::DEFAULT
};

/// `Seq`, meta, value, and whether it is in the seq index.
pub(crate) type Value = (u64, Vec<u8>, Vec<u8>, bool);

/// The expected contents of a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    /// By key.
    pub(crate) entries: BTreeMap<Vec<u8>, Value>,
    /// The last record that was ever in the seq index.
    pub(crate) last_in_seq_index: u64,
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

/// Compares everything that a snapshot shows: by key and by `Seq`, in both directions, with values and
/// aggregates.
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
    for ((key, _, meta, location), (_, (_, expected_meta, value, in_seq_index))) in
        found.iter().zip(&model.entries)
    {
        assert_eq!(meta, expected_meta, "{case}");
        let record = snapshot.read(*location).await.unwrap();
        assert_eq!((record.key(), &record.value()[..]), (&key[..], &value[..]), "{case}");
        let entry = snapshot.get(key).await.unwrap().unwrap();
        assert_eq!((entry.location, entry.in_seq_index), (*location, *in_seq_index), "{case}");
    }
    check_listed(snapshot, model, case).await;
    let aggregates = snapshot.aggregates(all.0, all.1).await.unwrap();
    assert_eq!(aggregates, snapshot.total_aggregates(), "{case}");
    let metas = model.entries.values().map(|(_, meta, ..)| meta.len() as u64).sum::<u64>();
    assert_eq!((aggregates[0], aggregates[1]), (model.entries.len() as u64, metas), "{case}");
}

async fn check_listed(snapshot: &Snapshot, model: &Model, case: &str) {
    let in_seq_index = model.entries.iter().filter(|(_, (.., in_seq_index))| *in_seq_index);
    let mut in_seq_index: Vec<_> = in_seq_index.map(|(key, (seq, ..))| (*seq, key.clone())).collect();
    in_seq_index.sort_unstable();
    for after in [0, in_seq_index.get(in_seq_index.len() / 2).map_or(0, |(seq, _)| *seq)] {
        let expected: Vec<_> = in_seq_index.iter().filter(|(seq, _)| *seq > after).cloned().collect();
        for descending in [false, true] {
            let mut scan = snapshot.scan_by_seq(Seq(after), descending);
            let mut found = Vec::new();
            while let Some(entry) = scan.next().await.unwrap() {
                found.push((entry.seq().0, entry.key.to_vec()));
            }
            if descending {
                found.reverse();
            }
            assert_eq!(found, expected, "{case} after={after} descending={descending}");
        }
        assert_eq!(snapshot.aggregates_after(Seq(after)).await.unwrap()[0], expected.len() as u64, "{case}");
    }
    assert_eq!(snapshot.last_in_seq_index().0, model.last_in_seq_index, "{case}");
}

/// Compares a range: its entries, its aggregate, and the rest of it after a skip.
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
    let aggregates = snapshot.aggregates(from, to).await.unwrap();
    assert_eq!(aggregates[1], rows.iter().map(|(_, own)| own).sum::<u64>(), "{case}");
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
    // Entries that add nothing may be skipped at the end if only they remain.
    let mut left = Vec::new();
    while let Some(entry) = scan.next().await.unwrap() {
        left.push(entry.key.to_vec());
    }
    assert_eq!(left, rows[count..].iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), "{case}");
}

/// Commits one random batch to the store and the model.
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
            let (meta, value, in_seq_index) =
                (random.bytes(meta_size), random.bytes(value_size), random.below(2) == 0);
            batch.put(&key, &meta, value.clone().into(), in_seq_index);
            changes.push((key, Some((meta, value, in_seq_index))));
        }
    }
    let mut writer = store.writer().await;
    let last = writer.commit(&batch, stage).await.unwrap();
    let first = last.0 + 1 - changes.len() as u64;
    for (seq, (key, change)) in (first..).zip(changes) {
        match change {
            Some((meta, value, in_seq_index)) => {
                model.last_in_seq_index = if in_seq_index { seq } else { model.last_in_seq_index };
                model.entries.insert(key, (seq, meta, value, in_seq_index));
            }
            None => drop(model.entries.remove(&key)),
        }
    }
    for (key, (seq, ..)) in &model.entries {
        assert_eq!(writer.get(key).await.unwrap().unwrap().seq().0, *seq);
    }
    last
}
