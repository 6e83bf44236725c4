//! A model of a store's versions, and checks of what the store shows against it.
//!
//! The tests of power losses, failing disks and failpoints use only these checks, and none of the checks
//! knows what was done to the machine.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use settee_store::{Aggregates, OPERAND_COUNT_MAX, ReadError, Seq, Snapshot};

/// What a record does to its key.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Put { meta: Vec<u8>, value: Bytes, in_seq_index: bool },
    Merge { meta: Vec<u8>, operand: Bytes },
    Delete,
}

/// The entry of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) meta: Vec<u8>,
    pub(crate) in_seq_index: bool,
    /// Its records' `Seq`s and values, newest first.
    pub(crate) parts: Vec<(u64, Bytes)>,
}

impl Entry {
    pub(crate) fn seq(&self) -> u64 {
        self.parts[0].0
    }
}

/// The contents of a store at some `Seq`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Version {
    pub(crate) entries: BTreeMap<Vec<u8>, Entry>,
    /// The last record that was ever in the seq index.
    pub(crate) last_in_seq_index: u64,
}

/// The tests' aggregates: number of entries, size of the metas, and size of the newest records.
pub(crate) fn aggregate(_key: &[u8], meta: &[u8], length: u32) -> Aggregates {
    [1, meta.len() as u64, length.into()]
}

/// Combines several values, newest first.
pub(crate) fn merge_operator(values: &[Bytes]) -> Bytes {
    values.concat().into()
}

impl Version {
    /// Whether another operand would give this key too many records.
    pub(crate) fn has_most_operands(&self, key: &[u8]) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.parts.len() >= OPERAND_COUNT_MAX)
    }

    pub(crate) fn apply(&mut self, seq: u64, key: &[u8], change: &Change) {
        let entry = match change {
            Change::Delete => {
                self.entries.remove(key);
                return;
            }
            Change::Put { meta, value, in_seq_index } => {
                if *in_seq_index {
                    self.last_in_seq_index = seq;
                }
                Entry { meta: meta.clone(), in_seq_index: *in_seq_index, parts: vec![(seq, value.clone())] }
            }
            Change::Merge { meta, operand } => {
                let old = self.entries.get(key).map(|entry| entry.parts.clone()).unwrap_or_default();
                let parts = std::iter::once((seq, operand.clone())).chain(old).collect();
                let mut entry = Entry { meta: meta.clone(), in_seq_index: false, parts };
                if entry.parts.len() > OPERAND_COUNT_MAX {
                    let values: Vec<Bytes> = entry.parts.iter().map(|(_, value)| value.clone()).collect();
                    entry.parts = vec![(seq, merge_operator(&values))];
                }
                entry
            }
        };
        self.entries.insert(key.to_vec(), entry);
    }
}

/// Why a check failed.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Something wrong was shown.
    Wrong(String),
    /// Something could not be read.
    Unread(ReadError),
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Problem {
        Problem::Unread(error)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Wrong(what) => write!(f, "{what}"),
            Problem::Unread(error) => write!(f, "a read failed: {error}"),
        }
    }
}

macro_rules! same {
    ($found:expr, $expected:expr, $($what:tt)*) => {{
        let (found, expected) = (&$found, &$expected);
        if found != expected {
            let what = format!($($what)*);
            return Err(Problem::Wrong(format!("{what}: {found:?} and not {expected:?}")));
        }
    }};
}

/// Compares everything that a snapshot shows with what it should show.
pub(crate) async fn check(snapshot: &Snapshot, version: &Version, measured: bool) -> Result<(), Problem> {
    let at = snapshot.seq().0;
    let mut aggregates = Aggregates::default();
    let mut in_seq_index = BTreeMap::new();
    let mut rows = Vec::new();
    let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(entry) = scan.next().await? {
        rows.push((entry.key.to_vec(), entry.to_entry()));
    }
    let keys = |rows: &mut dyn Iterator<Item = (&[u8], u64)>| {
        rows.map(|(key, seq)| format!("{}@{seq}", key.escape_ascii())).collect::<Vec<_>>().join(" ")
    };
    same!(
        keys(&mut rows.iter().map(|(key, entry)| (&key[..], entry.seq().0))),
        keys(&mut version.entries.iter().map(|(key, entry)| (&key[..], entry.seq()))),
        "the keys at Seq {at}"
    );
    // Of many keys, looks up some and reads their values.
    let stride = if rows.len() > 10 { 5 } else { 1 };
    for (index, ((key, found), expected)) in rows.iter().zip(version.entries.values()).enumerate() {
        let is_read = (index + at as usize).is_multiple_of(stride);
        let name = key.escape_ascii();
        same!(found.meta, expected.meta, "the meta of {name} at Seq {at}");
        same!(found.in_seq_index, expected.in_seq_index, "whether {name} is in the seq index at Seq {at}");
        let own = aggregate(key, &found.meta, found.location.length);
        aggregates = add(aggregates, own);
        if found.in_seq_index {
            in_seq_index.insert(found.seq().0, (key.clone(), own));
        }
        let seqs = |parts: &mut dyn Iterator<Item = u64>| parts.collect::<Vec<_>>();
        let expected_seqs = seqs(&mut expected.parts.iter().map(|(seq, _)| *seq));
        same!(
            seqs(&mut found.pointers().map(|pointer| pointer.location.seq)),
            expected_seqs,
            "the records of {name}, scanned at Seq {at}"
        );
        if !is_read {
            continue;
        }
        let Some(entry) = snapshot.get(key).await? else {
            return Err(Problem::Wrong(format!("{name} is scanned and not found at Seq {at}")));
        };
        same!(entry.meta, expected.meta, "the meta of {name}, looked up at Seq {at}");
        let pointers: Vec<_> = entry.pointers().collect();
        same!(
            seqs(&mut pointers.iter().map(|pointer| pointer.location.seq)),
            expected_seqs,
            "the records of {name} at Seq {at}"
        );
        for (record, (seq, value)) in snapshot.read_parts(pointers).await?.iter().zip(&expected.parts) {
            same!((record.seq().0, record.key()), (*seq, &key[..]), "a record of {name} at Seq {at}");
            if record.value() != *value {
                return Err(Problem::Wrong(format!("the value of {name} at Seq {at} is another")));
            }
        }
    }
    check_absent(snapshot, version).await?;
    let mut scan = snapshot.scan(Bound::Unbounded, Bound::Unbounded, true);
    for (key, _) in rows.iter().rev() {
        let found = scan.next().await?.map(|entry| entry.key.to_vec());
        same!(found.as_ref(), Some(key), "a key of the scan backwards at Seq {at}");
    }
    same!(scan.next().await?.map(|entry| entry.key.to_vec()), None, "a key behind all at Seq {at}");
    same!(snapshot.last_in_seq_index().0, version.last_in_seq_index, "the last in the seq index at Seq {at}");
    if measured {
        let all = (Bound::Unbounded, Bound::Unbounded);
        same!(snapshot.total_aggregates(), aggregates, "the aggregates of all at Seq {at}");
        same!(snapshot.aggregates(all.0, all.1).await?, aggregates, "the aggregates at Seq {at}");
        check_part(snapshot, &rows, at).await?;
        check_listed(snapshot, &in_seq_index, at).await?;
    }
    Ok(())
}

fn add(left: Aggregates, right: Aggregates) -> Aggregates {
    std::array::from_fn(|index| left[index].wrapping_add(right[index]))
}

/// Keys that are not in the model have no entry.
async fn check_absent(snapshot: &Snapshot, version: &Version) -> Result<(), Problem> {
    for number in 0..4_u8 {
        let key = super::trial::key(number.into());
        if !version.entries.contains_key(&key) {
            let found = snapshot.get(&key).await?;
            same!(found.map(|entry| entry.seq()), None, "the entry of {}", key.escape_ascii());
        }
    }
    Ok(())
}

/// The aggregate of the middle of the range.
async fn check_part(
    snapshot: &Snapshot,
    rows: &[(Vec<u8>, settee_store::Entry)],
    at: u64,
) -> Result<(), Problem> {
    let part = &rows[rows.len() / 4..rows.len() - rows.len() / 3];
    let (Some((first, _)), Some((last, _))) = (part.first(), part.last()) else { return Ok(()) };
    let own = |(key, entry): &(Vec<u8>, settee_store::Entry)| {
        let length = entry.location.length;
        aggregate(key, &entry.meta, length)
    };
    let expected = part.iter().map(own).fold(Aggregates::default(), add);
    let found = snapshot.aggregates(Bound::Included(first), Bound::Included(last)).await?;
    same!(found, expected, "the aggregates of a part at Seq {at}");
    Ok(())
}

async fn check_listed(
    snapshot: &Snapshot,
    in_seq_index: &BTreeMap<u64, (Vec<u8>, Aggregates)>,
    at: u64,
) -> Result<(), Problem> {
    let middle = in_seq_index.keys().nth(in_seq_index.len() / 2).copied().unwrap_or(0);
    for after in [0, middle] {
        let expected = in_seq_index.range(after + 1..);
        for descending in [false, true] {
            let mut scan = snapshot.scan_by_seq(Seq(after), descending);
            let mut found = Vec::new();
            while let Some(entry) = scan.next().await? {
                found.push(entry.seq().0);
            }
            if descending {
                found.reverse();
            }
            let expected: Vec<u64> = expected.clone().map(|(seq, _)| *seq).collect();
            same!(found, expected, "the seq index after {after} at Seq {at}");
        }
        let expected = expected.map(|(_, (_, own))| *own).fold(Aggregates::default(), add);
        same!(
            snapshot.aggregates_after(Seq(after)).await?,
            expected,
            "the aggregates after {after} at Seq {at}"
        );
    }
    Ok(())
}

/// What may be found, and what must be.
#[derive(Debug)]
pub(crate) struct Model {
    /// By the last `Seq` of the batch that made it.
    versions: BTreeMap<u64, Arc<Version>>,
    /// The last `Seq` acknowledged as written.
    written: u64,
    /// The last `Seq` shown, or acknowledged as persisted.
    persisted: u64,
}

impl Default for Model {
    fn default() -> Model {
        Model { versions: BTreeMap::from([(0, Arc::default())]), written: 0, persisted: 0 }
    }
}

impl Model {
    /// The newest version, and its `Seq`.
    pub(crate) fn newest(&self) -> (u64, Arc<Version>) {
        let (seq, version) = self.versions.last_key_value().expect("there is always one");
        (*seq, version.clone())
    }

    /// Notes that a batch was accepted, whose last record got the `Seq` `last`.
    pub(crate) fn accept(&mut self, last: u64, changes: &[(Vec<u8>, Change)]) -> Result<(), String> {
        let (newest, version) = self.newest();
        let first = last + 1 - changes.len() as u64;
        if first != newest + 1 {
            return Err(format!("a batch got the Seqs {first} to {last}, behind {newest}"));
        }
        let mut version = (*version).clone();
        (first..).zip(changes).for_each(|(seq, (key, change))| version.apply(seq, key, change));
        self.versions.insert(last, Arc::new(version));
        Ok(())
    }

    pub(crate) fn see_written(&mut self, seq: u64) {
        self.written = self.written.max(seq);
    }

    pub(crate) fn see_persisted(&mut self, seq: u64) {
        self.persisted = self.persisted.max(seq);
        self.see_written(seq);
    }

    /// What a snapshot must show; from now on that can't be undone.
    pub(crate) fn show(&mut self, seq: u64) -> Result<Arc<Version>, String> {
        let version = self.versions.get(&seq).cloned();
        let version =
            version.ok_or_else(|| format!("a snapshot shows Seq {seq}, with which no batch ends"))?;
        self.see_persisted(seq);
        Ok(version)
    }

    /// What is found after the process has ended: a prefix, with everything acknowledged.
    pub(crate) fn recover(&mut self, seq: u64, after_kill: bool) -> Result<Arc<Version>, String> {
        let promised = if after_kill { self.written } else { self.persisted };
        if seq < promised {
            return Err(format!("Seq {promised} was promised, {seq} is left"));
        }
        let version = self.show(seq)?;
        self.versions.split_off(&(seq + 1));
        self.written = seq;
        Ok(version)
    }
}
