//! The tree against the segments: every entry and every record.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use settee_log::Flags;
use settee_tree::TreeError;

use super::sources::Row;
use super::{CheckEvent, Problem, Survey, Touched, key_hash, meta_hash};
use crate::entry::{EntryView, Location, Pointer};
use crate::error::StoreError;
use crate::manifest::tree_name;
use crate::segments::Segments;
use crate::state::{BY_KEY, BY_SEQ, Live, SEQ_SIZE, decode};

/// Records whose keys the index doesn't have, nor anything newer of them so far: by the key's hash.
#[derive(Default)]
pub(super) struct Suspects {
    by_key: HashMap<u64, Location>,
}

/// What the tree's entries say together.
#[derive(Default)]
struct Totals {
    live: BTreeMap<u32, Live>,
    /// Of the listed ones: how many, and a sum of their hashes, which has no order.
    listed: (u64, u64),
    by_seq: (u64, u64),
    last_listed: u64,
    entry_count: u64,
}

impl Totals {
    fn take(&mut self, key: &[u8], entry: &EntryView<'_>) {
        self.entry_count += 1;
        let hash = |seq: u64, key: &[u8]| {
            let listed = [&seq.to_be_bytes()[..], key, &[0], entry.meta].concat();
            key_hash(&listed)
        };
        match key.split_first() {
            Some((&BY_KEY, key)) => {
                for Pointer { location, .. } in entry.pointers() {
                    let live = self.live.entry(location.segment).or_default();
                    live.bytes += u64::from(location.length);
                    live.count += 1;
                }
                if entry.is_listed() {
                    self.listed.0 += 1;
                    self.listed.1 = self.listed.1.wrapping_add(hash(entry.location.seq, key));
                }
            }
            Some((&BY_SEQ, key)) if key.len() >= SEQ_SIZE => {
                let (seq, key) = key.split_at(SEQ_SIZE);
                let seq = u64::from_be_bytes(seq.try_into().expect("8 bytes"));
                self.by_seq.0 += 1;
                self.by_seq.1 = self.by_seq.1.wrapping_add(hash(seq, key));
                self.last_listed = self.last_listed.max(seq);
            }
            _ => {}
        }
    }
}

/// One pass over the tree with some rows.
struct Pass<'a> {
    rows: &'a mut [Row],
    /// The rows' places by their keys' hashes, and of one by `Seq`.
    order: Vec<u32>,
    numbers: RangeInclusive<u32>,
    segments: &'a Segments,
    log_segments: Vec<u32>,
    totals: Option<Totals>,
    problems: Vec<(Option<Location>, String, Touched)>,
    lost: Vec<(u64, Vec<u8>)>,
    covered: Vec<bool>,
    /// Nothing was found to be wrong so far: no row is missing.
    is_sound: bool,
}

impl Pass<'_> {
    fn entry(&mut self, key: &[u8], value: &[u8]) {
        let entry = match decode(value) {
            Ok(entry) => entry,
            Err(_) => {
                let touched = Touched::Key(key.get(1..).unwrap_or_default().to_vec());
                self.problems.push((None, "an entry of the index makes no sense".to_owned(), touched));
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

    /// The index has this of the key: rows up to there needn't be in it.
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

    /// Whether a pointer leads to its record.
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
                "whose segment is gone"
            });
        };
        self.rows[at].is_referenced = true;
        let row = self.rows[at];
        let is_here = row.offset == u32::MAX || (row.segment, row.offset) == (segment, offset);
        let require = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
        require(row.key_hash == key_hash(key), "which is that of another key")?;
        require(is_here && row.length == length, "and not to where it lies")?;
        require(!row.is_damaged, "whose record can't be read")?;
        // A delta needs no older ones where it was merged onto a deletion.
        let needs_older = row.flags.has(Flags::DELTA) && !(pointer.init && self.is_first_of_value(&row));
        require(pointer.init != needs_older, "and has it wrong whether it needs older ones")?;
        if is_newest {
            require(
                entry.is_listed() == row.flags.has(Flags::LISTED),
                "and has it wrong whether it is listed",
            )?;
            require(!row.flags.has(Flags::TOMBSTONE), "which is a deletion")?;
            require(row.meta_hash == meta_hash(entry.meta), "and has another meta than it")?;
        }
        Ok(())
    }

    /// Whether what came before a record may have been a deletion, as far as the rows tell. One that isn't
    /// there any more took with it all that it hid.
    fn is_first_of_value(&self, row: &Row) -> bool {
        let place = |row: &Row| (row.key_hash, row.seq);
        let next = self.order.partition_point(|at| place(&self.rows[*at as usize]) < place(row));
        let before = next.checked_sub(1).map(|before| &self.rows[self.order[before] as usize]);
        let before = before.filter(|before| before.key_hash == row.key_hash);
        !self.is_sound || before.is_none_or(|before| before.flags.has(Flags::TOMBSTONE))
    }
}

impl Survey<'_> {
    /// Compares the tree with the rows of the segments with these numbers.
    pub(super) async fn check_index(
        &mut self,
        rows: &mut [Row],
        numbers: RangeInclusive<u32>,
        is_first: bool,
        suspects: &mut Suspects,
    ) -> Result<(), StoreError> {
        let Some(tree) = self.tree.take() else { return Ok(()) };
        rows.sort_by_key(|row| row.seq);
        let root = tree.root();
        let path = self.place.folder.join(tree_name(self.tree_number));
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
            totals: is_first.then(Totals::default),
            problems: Vec::new(),
            lost: Vec::new(),
            covered,
            is_sound: self.summary.problem_count == 0,
        };
        let (mut done, all, told) = (self.done_bytes, self.all_bytes, &mut self.told);
        let damage = root
            .check(
                |key, value| pass.entry(key, value),
                |bytes| {
                    done += bytes;
                    told(CheckEvent::Progress(done, all.max(done)));
                },
            )
            .await;
        let Pass { order, totals, problems, lost, covered, .. } = pass;
        let damage = damage?;
        if is_first {
            self.done_bytes = done;
            for problem in &damage {
                let strip = |key: &[u8]| key.get(1..).unwrap_or_default().to_vec();
                let is_listing = problem.start.first() == Some(&BY_SEQ);
                let end = problem.end.as_ref().filter(|end| end.first() == Some(&BY_KEY));
                let touched = match is_listing {
                    true => Touched::Unknown,
                    false => Touched::IndexOf(strip(&problem.start), end.map(|end| strip(end))),
                };
                let of = if is_listing { " (of the feed of changes)" } else { "" };
                self.report(
                    &path,
                    problem.offset,
                    format!("a node of the index: {}{of}", problem.what),
                    touched,
                );
            }
        }
        for (location, what, touched) in problems {
            let (path, offset) = location.map_or((path.clone(), 0), |location| self.place_of(location));
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

    /// The file that has a record, and where in it; of a rewritten one, where the record was first.
    fn place_of(&self, location: Location) -> (std::path::PathBuf, u64) {
        let path = match self.segments.get(location.segment) {
            Some(segment) => segment.path().to_path_buf(),
            None => self.place.folder.join(format!("{:010}.log", location.segment)),
        };
        (path, location.offset.into())
    }

    /// Of each key the newest row must be in the index, or a deletion, or there is a newer one of it.
    fn find_suspects(&self, rows: &[Row], order: &[u32], covered: &[bool], suspects: &mut Suspects) {
        for (index, at) in order.iter().enumerate() {
            let row = &rows[*at as usize];
            let next = order.get(index + 1).map(|at| &rows[*at as usize]);
            if next.is_some_and(|next| next.key_hash == row.key_hash) {
                continue;
            }
            suspects.by_key.remove(&row.key_hash);
            let is_well = row.is_referenced || covered[*at as usize] || row.flags.has(Flags::TOMBSTONE);
            if !is_well {
                let Row { seq, segment, offset, length, .. } = *row;
                suspects.by_key.insert(row.key_hash, Location { seq, segment, offset, length });
            }
        }
    }

    /// Looks up what no newer record explained.
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
                // The node's own problem says so.
                Err(_) => continue,
            };
            if known.is_none_or(|seq| seq < location.seq) {
                let path = self.place.folder.join(tree_name(self.tree_number));
                let what = format!("update {}, the newest of its key, is not in the index", location.seq);
                self.report(&path, 0, what, Touched::Key(record.key().to_vec()));
            }
        }
        self.tree = Some(tree);
        Ok(())
    }

    async fn read_record(&mut self, location: Location) -> Option<settee_log::Record> {
        if let Some(segment) = self.segments.get(location.segment) {
            return segment.read(location).await.ok();
        }
        let path = self.place.folder.join(format!("{:010}.log", location.segment));
        let file =
            settee_io::File::open(&self.place.env.engine, &path, settee_io::OpenMode::Read).await.ok()?;
        settee_log::read_record(&file, location.offset.into(), location.length).await.ok()
    }

    /// What the root and its attachment say of all entries.
    async fn compare_totals(
        &mut self,
        path: &std::path::Path,
        tree: &settee_tree::Tree<crate::state::IndexSums>,
        totals: Totals,
    ) -> Result<(), StoreError> {
        self.summary.entry_count = totals.entry_count;
        if totals.listed != totals.by_seq {
            self.name_unlisted(path, tree).await?;
        }
        let Some(facts) = self.facts.take() else { return Ok(()) };
        let numbers = facts.live.keys().chain(totals.live.keys()).copied();
        for number in numbers.collect::<std::collections::BTreeSet<u32>>() {
            let said = facts.live.get(&number).copied().unwrap_or_default();
            let found = totals.live.get(&number).copied().unwrap_or_default();
            if said != found {
                let what = format!(
                    "of segment {number} {} records with {} bytes live, and the root says {} with {}",
                    found.count, found.bytes, said.count, said.bytes
                );
                self.report(path, 0, what, Touched::Nothing);
            }
        }
        if facts.last_listed < totals.last_listed {
            let what = "the root says of the last listed update that it is before the last one";
            self.report(path, 0, what, Touched::Nothing);
        }
        self.facts = Some(facts);
        Ok(())
    }

    /// Says which keys the two orders of the index don't both have.
    async fn name_unlisted(
        &mut self,
        path: &std::path::Path,
        tree: &settee_tree::Tree<crate::state::IndexSums>,
    ) -> Result<(), StoreError> {
        let root = tree.root();
        let mut scan = root.scan((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded), false);
        while let Some((key, value)) = scan.next().await? {
            let Ok(entry) = decode(value) else { continue };
            let (other, own) = match key.split_first() {
                Some((&BY_KEY, own)) if entry.is_listed() => {
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
                (found.location, found.meta) == (entry.location, entry.meta) && found.is_listed()
            });
            if !agrees {
                let (touched, seq) = (Touched::Key(own.to_vec()), entry.location.seq);
                let what = format!("update {seq} is not in both orders of the index, by key and by update");
                let path = path.to_path_buf();
                self.tell(Problem { path, offset: 0, what, touched, is_doubtful: false });
            }
        }
        Ok(())
    }
}
