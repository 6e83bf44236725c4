//! Compares the tree with the segments: every entry and every record.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, RangeInclusive};
use std::path::{Path, PathBuf};

use settee_io::{File, OpenMode};
use settee_log::{Flags, SegmentSet};
use settee_tree::{Tree, TreeError};

use super::problem::{CheckEvent, Problem, Touched};
use super::row::{RecordRow, key_hash, meta_hash};
use super::survey::Survey;
use crate::error::StoreError;
use crate::index::{BY_KEY, BY_SEQ, EntryView, IndexAggregates, Location, Pointer, SEQ_SIZE, decode};
use crate::manifest::tree_name;
use crate::version::Live;

/// Records, by the hash of their keys, of which the index has neither them nor a newer record, so far.
#[derive(Default)]
pub(super) struct Suspects {
    by_key: HashMap<u64, Location>,
}

/// Totals over the tree's entries.
#[derive(Default)]
struct IndexTotals {
    live: BTreeMap<u32, Live>,
    /// Number of entries by key that are also in the seq index, and the sum of their hashes, which does not
    /// depend on their order.
    in_seq_index: (u64, u64),
    by_seq: (u64, u64),
    last_in_seq_index: u64,
    entry_count: u64,
}

impl IndexTotals {
    fn take(&mut self, key: &[u8], entry: &EntryView<'_>) {
        self.entry_count += 1;
        let hash = |seq: u64, key: &[u8]| {
            let bytes = [&seq.to_be_bytes()[..], key, &[0], entry.meta].concat();
            key_hash(&bytes)
        };
        match key.split_first() {
            Some((&BY_KEY, key)) => {
                for Pointer { location, .. } in entry.pointers() {
                    let live = self.live.entry(location.segment).or_default();
                    live.bytes += u64::from(location.length);
                    live.count += 1;
                }
                if entry.is_in_seq_index() {
                    self.in_seq_index.0 += 1;
                    self.in_seq_index.1 = self.in_seq_index.1.wrapping_add(hash(entry.location.seq, key));
                }
            }
            Some((&BY_SEQ, key)) if key.len() >= SEQ_SIZE => {
                let (seq, key) = key.split_at(SEQ_SIZE);
                let seq = u64::from_be_bytes(seq.try_into().expect("8 bytes"));
                self.by_seq.0 += 1;
                self.by_seq.1 = self.by_seq.1.wrapping_add(hash(seq, key));
                self.last_in_seq_index = self.last_in_seq_index.max(seq);
            }
            _ => {}
        }
    }
}

/// One pass over the tree with some rows.
struct Pass<'a> {
    rows: &'a mut [RecordRow],
    /// Indexes of the rows, ordered by key hash and `Seq`.
    order: Vec<u32>,
    numbers: RangeInclusive<u32>,
    segments: &'a SegmentSet,
    log_segments: Vec<u32>,
    totals: Option<IndexTotals>,
    problems: Vec<(Option<Location>, String, Touched)>,
    lost: Vec<(u64, Vec<u8>)>,
    covered: Vec<bool>,
    /// No problem was found so far: no row is missing.
    is_sound: bool,
}

impl Pass<'_> {
    fn entry(&mut self, key: &[u8], value: &[u8]) {
        let entry = match decode(value) {
            Ok(entry) => entry,
            Err(_) => {
                let touched = Touched::Key(key.get(1..).unwrap_or_default().to_vec());
                self.problems.push((None, "an entry of the index is invalid".to_owned(), touched));
                return;
            }
        };
        if let Some(totals) = &mut self.totals {
            totals.take(key, &entry);
        }
        let Some((&BY_KEY, key)) = key.split_first() else { return };
        self.cover(key, entry.location.seq);
        for (index, pointer) in entry.pointers().enumerate() {
            let location = pointer.location;
            if self.numbers.contains(&location.segment)
                && let Err(what) = self.follow(key, &entry, &pointer, index == 0)
            {
                let what = format!("the index points to update {}, {what}", location.seq);
                self.problems.push((Some(location), what, Touched::Key(key.to_vec())));
                self.lost.push((location.seq, key.to_vec()));
            }
        }
    }

    /// Notes that the index has a record of the key: rows up to its `Seq` need not be in the index.
    fn cover(&mut self, key: &[u8], seq: u64) {
        let hash = key_hash(key);
        let end = self.order.partition_point(|at| self.rows[*at as usize].key_hash <= hash);
        let newest = end.checked_sub(1).map(|at| self.order[at]);
        if let Some(newest) = newest
            && self.rows[newest as usize].key_hash == hash
            && self.rows[newest as usize].seq <= seq
        {
            self.covered[newest as usize] = true;
        }
    }

    /// Checks that a pointer leads to its record.
    fn follow(
        &mut self,
        key: &[u8],
        entry: &EntryView<'_>,
        pointer: &Pointer,
        is_newest: bool,
    ) -> Result<(), &'static str> {
        let Location { seq, segment, offset, length } = pointer.location;
        let Ok(at) = self.rows.binary_search_by_key(&seq, |row| row.seq) else {
            let is_there = self.segments.get(segment).is_some() || self.log_segments.contains(&segment);
            return Err(if is_there {
                "which isn't in its segment, or can't be read"
            } else {
                "whose segment is missing"
            });
        };
        self.rows[at].is_referenced = true;
        let row = self.rows[at];
        let is_here = row.offset == u32::MAX || (row.segment, row.offset) == (segment, offset);
        let require = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
        require(row.key_hash == key_hash(key), "which is a record of another key")?;
        require(is_here && row.length == length, "but to another location than the record's")?;
        require(!row.is_damaged, "whose record can't be read")?;
        // An operand merged onto a tombstone needs no older record.
        let needs_older = row.flags.has(Flags::OPERAND) && !(pointer.is_base && self.is_first_of_value(&row));
        require(pointer.is_base != needs_older, "and is wrong about its being a merge operand")?;
        if is_newest {
            require(
                entry.is_in_seq_index() == row.flags.has(Flags::IN_SEQ_INDEX),
                "and is wrong about its being in the seq index",
            )?;
            require(!row.flags.has(Flags::TOMBSTONE), "which is a deletion")?;
            require(row.meta_hash == meta_hash(entry.meta), "and has another meta than the record")?;
        }
        Ok(())
    }

    /// Whether the record before this one of its key may have been a tombstone, as far as the rows tell. A
    /// tombstone is dropped only when all that it hid has been dropped too.
    fn is_first_of_value(&self, row: &RecordRow) -> bool {
        let order_of = |row: &RecordRow| (row.key_hash, row.seq);
        let next = self.order.partition_point(|at| order_of(&self.rows[*at as usize]) < order_of(row));
        let before = next.checked_sub(1).map(|before| &self.rows[self.order[before] as usize]);
        let before = before.filter(|before| before.key_hash == row.key_hash);
        !self.is_sound || before.is_none_or(|before| before.flags.has(Flags::TOMBSTONE))
    }
}

impl Survey<'_> {
    /// Compares the tree with the rows of the segments with these numbers.
    pub(super) async fn check_index(
        &mut self,
        rows: &mut [RecordRow],
        numbers: RangeInclusive<u32>,
        is_first: bool,
        suspects: &mut Suspects,
    ) -> Result<(), StoreError> {
        let Some(tree) = self.tree.take() else { return Ok(()) };
        rows.sort_by_key(|row| row.seq);
        let root = tree.root();
        let path = self.context.directory.join(tree_name(self.tree_number));
        let checkpoint = root.seq();
        let known = rows.partition_point(|row| row.seq <= checkpoint);
        let mut order: Vec<u32> = (0..known as u32).collect();
        order.sort_unstable_by_key(|at| (rows[*at as usize].key_hash, rows[*at as usize].seq));
        let covered = vec![false; known];
        let mut pass = Pass {
            rows: &mut *rows,
            order,
            numbers,
            segments: &self.segments,
            log_segments: self.log_segments.clone(),
            totals: is_first.then(IndexTotals::default),
            problems: Vec::new(),
            lost: Vec::new(),
            covered,
            is_sound: self.summary.problem_count == 0,
        };
        let (mut done, all, on_event) = (self.done_bytes, self.all_bytes, &mut self.on_event);
        let damage = root
            .check(
                |key, value| pass.entry(key, value),
                |bytes| {
                    done += bytes;
                    on_event(CheckEvent::Progress(done, all.max(done)));
                },
            )
            .await;
        let Pass { order, totals, problems, lost, covered, .. } = pass;
        let damage = damage?;
        if is_first {
            self.done_bytes = done;
            for problem in &damage {
                let strip = |key: &[u8]| key.get(1..).unwrap_or_default().to_vec();
                let is_seq_index = problem.start.first() == Some(&BY_SEQ);
                let end = problem.end.as_ref().filter(|end| end.first() == Some(&BY_KEY));
                let touched = match is_seq_index {
                    true => Touched::Unknown,
                    false => Touched::IndexOf(strip(&problem.start), end.map(|end| strip(end))),
                };
                let of = if is_seq_index { " (of the feed of changes)" } else { "" };
                self.report(
                    &path,
                    problem.offset,
                    format!("a node of the index: {}{of}", problem.what),
                    touched,
                );
            }
        }
        for (location, what, touched) in problems {
            let (path, offset) = location.map_or((path.clone(), 0), |location| self.file_of(location));
            self.report(&path, offset, what, touched);
        }
        self.lost.extend(lost);
        self.find_suspects(rows, &order, &covered, suspects);
        if let Some(totals) = totals.filter(|_| damage.is_empty()) {
            self.compare_totals(&path, &tree, totals).await?;
        }
        self.tree = Some(tree);
        Ok(())
    }

    /// The file that has a record, and its offset there; in a rewritten segment, the record's first offset.
    fn file_of(&self, location: Location) -> (PathBuf, u64) {
        let path = match self.segments.get(location.segment) {
            Some(segment) => segment.path().to_path_buf(),
            None => self.context.directory.join(format!("{:010}.log", location.segment)),
        };
        (path, location.offset.into())
    }

    /// The newest row of each key must be in the index or a tombstone, unless there is a newer record.
    fn find_suspects(&self, rows: &[RecordRow], order: &[u32], covered: &[bool], suspects: &mut Suspects) {
        for (index, at) in order.iter().enumerate() {
            let row = &rows[*at as usize];
            let next = order.get(index + 1).map(|at| &rows[*at as usize]);
            if next.is_some_and(|next| next.key_hash == row.key_hash) {
                continue;
            }
            suspects.by_key.remove(&row.key_hash);
            let is_well = row.is_referenced || covered[*at as usize] || row.flags.has(Flags::TOMBSTONE);
            if !is_well {
                let RecordRow { seq, segment, offset, length, .. } = *row;
                suspects.by_key.insert(row.key_hash, Location { seq, segment, offset, length });
            }
        }
    }

    /// Looks up the suspects that no newer record explained.
    pub(super) async fn check_suspects(&mut self, suspects: Suspects) -> Result<(), StoreError> {
        let Some(tree) = self.tree.take() else { return Ok(()) };
        let mut all: Vec<Location> = suspects.by_key.into_values().collect();
        all.sort_by_key(|location| location.seq);
        for location in all {
            let Some(record) = self.read_record(location).await else { continue };
            let key = [&[BY_KEY], record.key()].concat();
            let known = match tree.root().get(&key).await {
                Ok(value) => {
                    value.as_deref().and_then(|value| decode(value).ok().map(|entry| entry.location.seq))
                }
                Err(TreeError::Io(error)) => return Err(error.into()),
                // Reported as the node's own problem.
                Err(_) => continue,
            };
            if known.is_none_or(|seq| seq < location.seq) {
                let path = self.context.directory.join(tree_name(self.tree_number));
                let what = format!("update {}, the newest of its key, is not in the index", location.seq);
                self.report(&path, 0, what, Touched::Key(record.key().to_vec()));
            }
        }
        self.tree = Some(tree);
        Ok(())
    }

    async fn read_record(&mut self, location: Location) -> Option<settee_log::Record> {
        if let Some(segment) = self.segments.get(location.segment) {
            return segment.read(location.seq(), location.at()).await.ok();
        }
        let path = self.context.directory.join(format!("{:010}.log", location.segment));
        let file = File::open(&self.context.env.engine, &path, OpenMode::Read).await.ok()?;
        settee_log::read_record(&file, location.offset.into(), location.length).await.ok()
    }

    /// Compares the root's totals and attachment with all entries.
    async fn compare_totals(
        &mut self,
        path: &Path,
        tree: &Tree<IndexAggregates>,
        totals: IndexTotals,
    ) -> Result<(), StoreError> {
        self.summary.entry_count = totals.entry_count;
        if totals.in_seq_index != totals.by_seq {
            self.report_index_mismatches(path, tree).await?;
        }
        let Some(facts) = self.facts.take() else { return Ok(()) };
        let numbers = facts.live.keys().chain(totals.live.keys()).copied();
        for number in numbers.collect::<BTreeSet<u32>>() {
            let said = facts.live.get(&number).copied().unwrap_or_default();
            let found = totals.live.get(&number).copied().unwrap_or_default();
            if said != found {
                let what = format!(
                    "segment {number} has {} live records of {} bytes, and the root says {} of {}",
                    found.count, found.bytes, said.count, said.bytes
                );
                self.report(path, 0, what, Touched::Nothing);
            }
        }
        if facts.last_in_seq_index < totals.last_in_seq_index {
            let what = "the root's last update in the seq index is before the last one found";
            self.report(path, 0, what, Touched::Nothing);
        }
        self.facts = Some(facts);
        Ok(())
    }

    /// Reports the keys that are not in both the index by key and the seq index.
    async fn report_index_mismatches(
        &mut self,
        path: &Path,
        tree: &Tree<IndexAggregates>,
    ) -> Result<(), StoreError> {
        let root = tree.root();
        let mut scan = root.scan((Bound::Unbounded, Bound::Unbounded), false);
        while let Some((key, value)) = scan.next().await? {
            let Ok(entry) = decode(value) else { continue };
            let (other, own) = match key.split_first() {
                Some((&BY_KEY, own)) if entry.is_in_seq_index() => {
                    ([&[BY_SEQ], &entry.location.seq.to_be_bytes()[..], own].concat(), own)
                }
                Some((&BY_SEQ, rest)) if rest.len() >= SEQ_SIZE => {
                    let own = &rest[SEQ_SIZE..];
                    ([&[BY_KEY], own].concat(), own)
                }
                _ => continue,
            };
            let found = root.get(&other).await?;
            let agrees = found.as_deref().and_then(|value| decode(value).ok()).is_some_and(|found| {
                (found.location, found.meta) == (entry.location, entry.meta) && found.is_in_seq_index()
            });
            if !agrees {
                let (touched, seq) = (Touched::Key(own.to_vec()), entry.location.seq);
                let what = format!("update {seq} is not both in the index by key and in the one by update");
                let path = path.to_path_buf();
                self.report_problem(Problem { path, offset: 0, what, touched, is_doubtful: false });
            }
        }
        Ok(())
    }
}
