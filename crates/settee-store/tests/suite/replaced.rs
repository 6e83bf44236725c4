//! Goal: a search finds all records of its keys that no compaction has left out, the newest first, and says how
//! far back any may have been left out; it ends at a limit or at damage, and passes over nothing.
//! Method: in the simulation, write keys to small segments, compact some, and compare what is found in sealed,
//! rewritten and open segments with all records ever written.

use std::collections::BTreeMap;
use std::time::Duration;

use settee_sim::{Sim, SimDisk, seeds};
use settee_store::{Batch, ReplacedRecords, Snapshot, Stage, Store, StoreOptions};

use crate::common::model::{OPTIONS, Random, open};

const QUIET: StoreOptions =
    StoreOptions { replaced_segments_max: 1_000, garbage_percent_max: 100, ..OPTIONS };

/// All records of each key by `Seq`: the value, or `None` for a tombstone.
type History = BTreeMap<Vec<u8>, BTreeMap<u64, Option<Vec<u8>>>>;

fn keys() -> Vec<Vec<u8>> {
    [&b"a"[..], b"ab", b"b", b"never"].map(<[u8]>::to_vec).into()
}

/// Commits a few records, the last of which is one of `a`.
async fn write(store: &Store, history: &mut History, random: &mut Random) {
    let mut writes: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    for _ in 0..random.below(4) {
        let key = keys().swap_remove(random.below(3));
        let length = random.below(600);
        writes.push((key, (random.below(4) > 0).then(|| random.bytes(length))));
    }
    writes.push((format!("filler{}", random.below(50)).into(), Some(random.bytes(1_500))));
    writes.push((b"a".to_vec(), Some(random.bytes(20))));
    for (key, value) in writes {
        let mut batch = Batch::new();
        match &value {
            Some(value) => batch.put(&key, b"meta", value.clone().into(), true),
            None => batch.delete(&key),
        }
        let seq = store.writer().await.commit(&batch, Stage::Accepted).await.unwrap();
        history.entry(key).or_default().insert(seq.0, value);
    }
    store.flush().await.unwrap();
}

/// What a search finds of each key: the `Seq` and `left_out_to` of each record, newest first.
async fn search(snapshot: &Snapshot, history: &History, case: &str) -> Vec<Vec<(u64, u64)>> {
    let from = snapshot.get(b"a").await.unwrap().expect("it was written last").location;
    let mut records = ReplacedRecords::new(snapshot);
    let mut last = None;
    // The second search uses what the first has opened.
    for _ in 0..2 {
        let mut found = vec![Vec::new(); keys().len()];
        let mut locations = Vec::new();
        let mut search = records.search(from, keys());
        while search
            .next_segment(|key, record| {
                found[key].push((record.location.seq, record.left_out_to.0));
                locations.push((key, record.location, record.is_tombstone));
                true
            })
            .await
            .unwrap()
        {}
        for (key, location, is_tombstone) in locations {
            let written = &history[&keys()[key]][&location.seq];
            assert_eq!(is_tombstone, written.is_none(), "{case}");
            let record = snapshot.read(location).await.unwrap();
            assert_eq!(record.key(), keys()[key], "{case}");
            assert_eq!(record.value(), written.clone().unwrap_or_default(), "{case}");
        }
        assert!(last.is_none_or(|last| last == found), "{case}");
        last = Some(found);
    }
    last.unwrap()
}

#[test]
fn a_search_finds_what_no_compaction_has_left_out() {
    let (mut found_count, mut left_out_count) = (0, 0);
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let env = sim.env();
        sim.run(async {
            let mut random = Random::new(seed);
            let mut store = open(&env, &QUIET).await;
            let mut history = History::new();
            let mut is_compacted = false;
            for step in 0..30 {
                write(&store, &mut history, &mut random).await;
                match random.below(12) {
                    0 => {
                        store.compact().await.unwrap();
                        is_compacted = true;
                    }
                    1 => drop(store.checkpoint().await.unwrap()),
                    2 => env.clock.sleep(Duration::from_secs(2)).await,
                    3 => {
                        store.close().await.unwrap();
                        drop(store);
                        store = open(&env, &QUIET).await;
                    }
                    _ => {}
                }
                let case = format!("seed={seed} step={step}");
                let found = search(&store.snapshot(), &history, &case).await;
                for (key, found) in keys().into_iter().zip(found) {
                    let all = history.get(&key).cloned().unwrap_or_default();
                    assert!(found.is_sorted_by(|a, b| a.0 > b.0), "{case}");
                    if !is_compacted {
                        assert!(found.iter().map(|(seq, _)| seq).eq(all.keys().rev()), "{case}");
                    }
                    for &(seq, left_out_to) in found.iter().filter(|(seq, _)| all[seq].is_some()) {
                        let newer: Vec<u64> = all.range(seq..).skip(1).map(|(seq, _)| *seq).collect();
                        for replaced in newer.windows(2) {
                            if !found.iter().any(|(seq, _)| *seq == replaced[0])
                                && all[&replaced[0]].is_some()
                            {
                                assert!(replaced[1] <= left_out_to, "{case}: {replaced:?} {seq}");
                                left_out_count += 1;
                            }
                        }
                    }
                    found_count += found.len();
                }
            }
        })
        .unwrap();
    }
    println!("{found_count} records found, {left_out_count} times one was left out before an older one");
    assert!(std::env::var_os("SETTEE_SEED").is_some() || (found_count > 10_000 && left_out_count > 0));
}

#[test]
fn a_search_ends_at_its_limit_and_at_damage() {
    let disk = SimDisk::new(7);
    let mut history = History::new();
    let mut counts = Vec::new();
    for replaced_segments_max in [1_000, 0, 1, 3, 1_000] {
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let options = StoreOptions { replaced_segments_max, ..QUIET };
            let store = open(&env, &options).await;
            let mut random = Random::new(3);
            if history.is_empty() {
                for _ in 0..40 {
                    write(&store, &mut history, &mut random).await;
                }
                env.clock.sleep(Duration::from_secs(2)).await;
                store.checkpoint().await.unwrap();
            }
            let found = search(&store.snapshot(), &history, "limit").await;
            let all: Vec<u64> = history[&b"a"[..]].keys().rev().copied().collect();
            let of_key: Vec<u64> = found[0].iter().map(|(seq, _)| *seq).collect();
            assert!(all.starts_with(&of_key));
            counts.push(of_key.len());
            store.close().await.unwrap();
        })
        .unwrap();
        if counts.len() == 4 {
            // The segment index of a segment in the middle.
            let mut segments: Vec<_> = disk.paths().into_iter().collect();
            segments.retain(|path| path.extension().is_some_and(|kind| kind == "log"));
            segments.sort();
            let path = &segments[segments.len() / 2];
            let mut bytes = disk.read_file(path).unwrap();
            assert!(bytes.len() > 8 << 10);
            // The first frame too, so that the frames don't tell the same.
            bytes[600] ^= 1;
            let end = bytes.len() - 200;
            bytes[end] ^= 1;
            disk.write_file(path, bytes);
        }
    }
    println!("{counts:?} of {} records", history[&b"a"[..]].len());
    let all = history[&b"a"[..]].len();
    assert_eq!((counts[0], counts[1]), (all, 0));
    assert!(0 < counts[2] && counts[2] < counts[3] && counts[3] < all);
    assert!(0 < counts[4] && counts[4] < all, "it passes over a damaged segment");
}
