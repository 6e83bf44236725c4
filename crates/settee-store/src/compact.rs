//! Compaction: what lives of some neighbouring segments is written to one new file, and they go.
//!
//! Which records live is told by the index: a record does where its key's entry in the tree points
//! to it. The segment's directory and the tree are both read in the order of keys, once; then the
//! records are copied in the order of the log. Pointers to them don't change (`segments.rs`), so no
//! update is ever in the way: what is replaced while it is being copied is garbage in the new file,
//! and counted as such.
//!
//! A tombstone hides nothing in the tree, where its key is simply missing. It is for who builds the
//! tree anew from the segments: without it an older record of its key would be back. So it is
//! copied until nothing that was dead when it was checkpointed is in any older segment: because that was
//! rewritten since, or because nothing in it is dead. Which segments are taken: `compact/choose.rs`.
//!
//! Whoever waits here, for its turn or to keep within its pace, keeps nobody else from working in the
//! background; but so many rewrite at once, as they have directories in memory.
//!
//! Invariants:
//! 1. Only what was dead as of a durable checkpoint is left out.
//! 2. The new file is on stable storage, its name too, before the manifest names it; the old ones'
//!    names go after that, while whoever has them open reads on.
//! 3. A record that can't be read is never left out: the segments then stay as they are.
//! 4. What is written holds no more bytes, tombstones included, than a segment may, nor more than
//!    [`RECORD_COUNT_MAX`] records, but for one segment that had more of them before.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, select};
use settee_io::{File, OnPanic, OpenMode, ReadAt, ReadPolicy, folder, yield_now};
use settee_log::{Directory, DirectoryBuilder, Entry, EntryRef, Flags, Record, footer_start};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::{ReadError, StoreError};
use crate::manifest::SegmentName;
use crate::planted::Planted;
use crate::segments::{Contents, Pieces, Segment, address};
use crate::state::{BY_KEY, Base, State, TreeBase, decode};
use crate::store::Shared;

mod choose;

use choose::{Overview, live_of};

/// How many keys are looked up in the tree at once.
const LOOKUP_COUNT: usize = 4096;

/// How much is copied at once, in bytes.
const COPY_BYTES: u64 = 1 << 20;

/// Segments become one up to so many records: their directory is in memory.
const RECORD_COUNT_MAX: usize = 1 << 20;

/// What compaction did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Segments that went.
    pub segment_count: u64,
    /// What they took, in bytes.
    pub bytes_before: u64,
    /// What took their place.
    pub bytes_after: u64,
}

/// Neighbouring segments that become one.
struct Victims {
    /// In the order of the log.
    plans: VecDeque<Plan>,
    /// Tombstones up to this `Seq` aren't needed any more in them.
    tombstones_to: u64,
    base: Arc<Base>,
    /// Segments in which nothing is dead as of that base.
    clean: Vec<Arc<Segment>>,
}

/// What of a segment is copied.
struct Plan {
    segment: Arc<Segment>,
    /// None where nothing is.
    directory: Option<Directory>,
    survivors: Survivors,
}

/// The records of a segment that don't go, by their `Seq`s, ascending.
#[derive(Default)]
struct Survivors {
    live: Vec<u64>,
    /// What these take, in bytes.
    live_bytes: u64,
    /// Each with its bytes.
    tombstones: Vec<(u64, u32)>,
}

impl Survivors {
    /// Bytes and records, where tombstones up to this `Seq` go.
    fn size(&self, tombstones_to: u64) -> (u64, usize) {
        let first = self.tombstones.partition_point(|(seq, _)| *seq <= tombstones_to);
        let kept = &self.tombstones[first..];
        let bytes = kept.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
        (self.live_bytes + bytes, self.live.len() + kept.len())
    }

    fn has(&self, seq: u64, tombstones_to: u64) -> bool {
        let is_tombstone = || self.tombstones.binary_search_by_key(&seq, |(seq, _)| *seq).is_ok();
        self.live.binary_search(&seq).is_ok() || (seq > tombstones_to && is_tombstone())
    }
}

/// A record that is to be copied.
struct Survivor {
    entry: Entry,
    /// Where it lies in its file.
    place: u64,
}

impl Shared {
    /// Rewrites segments until no more than `garbage_percent_max` hundredths of them are garbage. One
    /// that can't be read is left alone from then on, unless compaction is asked for: then it is tried
    /// again, and the error returned when all others are done.
    pub(crate) async fn compact(
        &self,
        garbage_percent_max: u64,
        is_asked_for: bool,
    ) -> Result<Compaction, StoreError> {
        let mut unreadable = self.compacting.lock().await;
        if is_asked_for {
            unreadable.clear();
        }
        let mut done = Compaction::default();
        let mut failed = None;
        while !self.is_closed() {
            let known_count = unreadable.len();
            let one = match self.compact_some(garbage_percent_max, &mut unreadable).await {
                Ok(Some(one)) => one,
                Ok(None) => break,
                // The others need not wait for it.
                Err(error) if unreadable.len() > known_count => {
                    tracing::warn!(%error, folder = %self.place.folder.display(), "a segment stays as it is");
                    failed = failed.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            done.segment_count += one.segment_count;
            done.bytes_before += one.bytes_before;
            done.bytes_after += one.bytes_after;
            self.count(|counts| {
                counts.compacted_count += one.segment_count;
                counts.compacted_bytes += one.bytes_before;
                counts.copied_bytes += one.bytes_after;
            });
        }
        failed.map_or(Ok(done), Err)
    }

    /// Starts compaction in the background where more is garbage than may be, unless it is under way.
    pub(crate) fn start_compaction(self: &Arc<Self>, base: &Base) {
        let live: u64 = base.live_bytes();
        let bytes = base.segments.bytes() + self.log.stats().file_bytes;
        let percent_max = self.place.options.garbage_percent_max;
        let is_too_much = |needed: u64| bytes.saturating_sub(needed) * 100 > percent_max * bytes;
        if !is_too_much(live) || self.is_closed() {
            return;
        }
        // What tombstones take that have to stay is told as far as it is known; else it is found out.
        let overview = self.overview(base);
        let is_due = is_too_much(live + overview.kept()) || overview.holder(&BTreeSet::new()).is_some();
        if !is_due || self.is_compacting.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.clone();
        self.place.env.spawn("store compaction", async move {
            let compacted = async {
                shared.take_over_soon().await?;
                shared.compact(percent_max, false).await
            };
            let _end = OnPanic(|| shared.is_compacting.store(false, Ordering::Release));
            if let Err(error) = compacted.await {
                tracing::warn!(%error, folder = %shared.place.folder.display(), "compaction failed");
            }
            shared.is_compacting.store(false, Ordering::Release);
        });
    }

    /// Takes over what the log has left so far, as soon as it is sealed.
    pub(crate) async fn take_over_soon(&self) -> Result<(), StoreError> {
        let open = self.log.seal_soon();
        let mut sealed = self.log.sealed_below();
        while sealed < open && !self.is_closed() {
            sealed = self.log.sealed_changed(sealed).await?;
        }
        self.take_over_sealed().await
    }

    fn overview(&self, base: &Base) -> Overview {
        Overview::new(base, self.place.options.is_planted(Planted::TombstoneTooSoon))
    }

    /// Rewrites what frees the most; `None` where there is no more garbage than may be, or the store was
    /// closed. Where a segment can't be read, its number is entered in `unreadable`.
    async fn compact_some(
        &self,
        garbage_percent_max: u64,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Option<Compaction>, StoreError> {
        let base = self.accepted.lock().await.base.clone();
        let Some((best, overview)) = self.choose(&base, garbage_percent_max, unreadable).await? else {
            return Ok(None);
        };
        let env = &self.place.env;
        // In this order: whoever waits for the first has no turn.
        let Some(slot) = self.permit(&env.compaction).await else { return Ok(None) };
        let Some(turn) = self.permit(&env.background).await else { return Ok(None) };
        let victims = self.gather(base, best, &overview, unreadable).await?;
        let segment = self.rewrite(&victims, turn, unreadable).await?;
        // Whoever has the manifest may be waiting for its turn.
        drop(slot);
        let name = segment.as_ref().map(|segment| segment.name);
        if let Err(error) = self.replace(&victims, segment).await {
            if let Some(name) = name {
                self.give_up(&self.place.folder.join(name.file_name())).await;
            }
            return Err(error);
        }
        let plans = &victims.plans;
        Ok(Some(Compaction {
            segment_count: plans.len() as u64,
            bytes_before: plans.iter().map(|plan| plan.segment.name.bytes).sum(),
            bytes_after: name.map_or(0, |name| name.bytes),
        }))
    }

    /// Waits for a permit; `None` where the store is closed meanwhile.
    async fn permit<'a>(&self, semaphore: &'a Semaphore) -> Option<SemaphorePermit<'a>> {
        let mut permit = pin!(semaphore.acquire());
        loop {
            let mut told = pin!(self.checkpointed.notified());
            told.as_mut().enable();
            if self.is_closed() {
                return None;
            }
            if let Either::Left((permit, _)) = select(permit.as_mut(), told).await {
                return permit.ok();
            }
        }
    }

    /// Which segment is rewritten, and all that led to it; none where there is no more garbage than may
    /// be.
    async fn choose(
        &self,
        base: &Base,
        garbage_percent_max: u64,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Option<(usize, Overview)>, StoreError> {
        let bytes = base.segments.bytes();
        let live: u64 = base.segments.iter().map(|segment| live_of(base, segment).bytes).sum();
        if base.tree.is_none() || bytes.saturating_sub(live) * 100 <= garbage_percent_max * bytes {
            return Ok(None);
        }
        for segment in base.segments.iter() {
            // Nothing is known of one that can't be read: where it is to be rewritten that is told.
            let _ = segment.contents().await;
        }
        loop {
            let overview = self.overview(base);
            let Some(best) = overview.best(garbage_percent_max, unreadable) else { return Ok(None) };
            if overview.facts[best].is_exact {
                return Ok(Some((best, overview)));
            }
            // What looks like garbage may be tombstones that have to stay.
            let segment = &overview.segments[best];
            noted(segment.find_tombstone_bytes().await.map_err(Into::into), segment, unreadable)?;
        }
    }

    /// The neighbours that come along, as long as what is copied of all fits one segment.
    async fn gather(
        &self,
        base: Arc<Base>,
        best: usize,
        overview: &Overview,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Victims, StoreError> {
        let log = &self.place.options.log;
        let aim = overview.aim(log.segment_bytes_min, log.segment_bytes_max);
        let (mut first, mut last) = (best, best);
        let mut plans = VecDeque::from([self.plan(best, overview, &base, unreadable).await?]);
        let (mut bytes, mut count) = plans[0].survivors.size(overview.facts[best].tombstones_to);
        let (mut goes_on, mut goes_back) = (true, true);
        loop {
            goes_on = goes_on && overview.joins(last + 1, aim, unreadable);
            goes_back = goes_back && first > 0 && overview.joins(first - 1, aim, unreadable);
            let next = match (goes_on, goes_back) {
                (true, _) => last + 1,
                (false, true) => first - 1,
                (false, false) => break,
            };
            let plan = self.plan(next, overview, &base, unreadable).await?;
            let own = plan.survivors.size(overview.facts[next.min(first)].tombstones_to);
            if bytes + own.0 > aim || count + own.1 > RECORD_COUNT_MAX {
                *(if next > last { &mut goes_on } else { &mut goes_back }) = false;
                continue;
            }
            (bytes, count) = (bytes + own.0, count + own.1);
            if next > last {
                last = next;
                plans.push_back(plan);
            } else {
                first = next;
                plans.push_front(plan);
            }
        }
        let tombstones_to = overview.facts[first].tombstones_to;
        Ok(Victims { plans, tombstones_to, base, clean: overview.clean() })
    }

    /// What of a segment is copied.
    async fn plan(
        &self,
        index: usize,
        overview: &Overview,
        base: &Base,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Plan, StoreError> {
        let (segment, tombstones_to) =
            (overview.segments[index].clone(), overview.facts[index].tombstones_to);
        let planned = async {
            let directory = segment.directory().await?;
            let trailer = directory.trailer();
            let has_live = live_of(base, &segment).count > 0;
            let has_tombstones = trailer.tombstone_count > 0 && trailer.last_seq.0 > tombstones_to;
            if !has_live && !has_tombstones {
                return Ok((None, Survivors::default()));
            }
            let state = match self.place.options.is_planted(Planted::UpdateLost) {
                true => Some(self.accepted.lock().await.clone()),
                false => None,
            };
            let survivors = find_survivors(&directory, base, state.as_ref()).await?;
            Ok((Some(directory), survivors))
        };
        let (directory, survivors) = noted(planned.await, &segment, unreadable)?;
        Ok(Plan { segment, directory, survivors })
    }

    /// Writes what lives of the victims to a new file.
    async fn rewrite(
        &self,
        victims: &Victims,
        turn: SemaphorePermit<'_>,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Option<Arc<Segment>>, StoreError> {
        let names = || victims.plans.iter().map(|plan| plan.segment.name);
        let generation = names().map(|name| name.generation).max().unwrap_or(0) + 1;
        let name = SegmentName {
            first: names().map(|name| name.first).min().expect("there is one"),
            last: names().map(|name| name.last).max().expect("there is one"),
            generation,
            epoch: generation,
            bytes: 0,
            clean_to: victims.base.seq,
        };
        let path = self.place.folder.join(name.file_name());
        // A manifest that names such a file may be there, of a compaction that could not tell.
        self.check_files()?;
        match folder::remove(&*self.place.env.engine, &path).await {
            // Left by one that failed.
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        let mut copy = Copy::new(self, &path, name, turn).await?;
        for plan in &victims.plans {
            let copied = copy.take(plan, victims.tombstones_to).await;
            if let Err(error) = noted(copied, &plan.segment, unreadable) {
                drop(copy);
                self.remove_file(&path).await;
                return Err(error);
            }
        }
        let segment = match copy.finish().await {
            Ok(segment) => segment,
            Err(error) => {
                let error = self.failed_sync(error);
                self.give_up(&path).await;
                return Err(error);
            }
        };
        #[cfg(feature = "planted-faults")]
        let segment = self.with_stale_chunks(segment, &victims.plans[0].segment);
        Ok(segment)
    }

    /// Removes a new segment that no manifest names, unless nobody can tell.
    async fn give_up(&self, path: &Path) {
        if self.check_files().is_ok() {
            self.remove_file(path).await;
        }
    }

    /// Puts the new segment in the victims' place.
    async fn replace(&self, victims: &Victims, new: Option<Arc<Segment>>) -> Result<(), StoreError> {
        let mut manifest = self.manifest.lock().await;
        self.check_files()?;
        let base = self.accepted.lock().await.base.clone();
        let mut segments = (*base.segments).clone();
        for Plan { segment, .. } in &victims.plans {
            // Open, so that whoever has it can go on reading.
            segment.file().await?;
            segments.remove(segment.name.last);
        }
        // It costs nothing to say so now: nothing that is dead was in these.
        victims.clean.iter().for_each(|segment| segment.raise_clean_to(victims.base.seq));
        if let Some(new) = new {
            segments.insert(new);
        }
        if self.place.options.is_planted(Planted::FileRemovedEarly) {
            for plan in &victims.plans {
                self.remove_file(plan.segment.path()).await;
            }
        }
        let stop = self.stop_on_panic();
        let mut next = manifest.clone();
        next.number += 1;
        next.segments = segments.names();
        next.checkpoint = base.seq;
        next.last_listed = base.last_listed;
        self.install(&mut manifest, next).await?;
        let base = Base { segments: Arc::new(segments), ..(*base).clone() };
        self.rebase(Arc::new(base), 0).await;
        drop(stop);
        for Plan { segment, .. } in &victims.plans {
            #[cfg(feature = "planted-faults")]
            self.recycle(segment).await?;
            self.remove_file(segment.path()).await;
        }
        Ok(())
    }
}

/// Enters a segment's number where it could not be read.
fn noted<T>(
    result: Result<T, StoreError>,
    segment: &Segment,
    unreadable: &mut BTreeSet<u32>,
) -> Result<T, StoreError> {
    if result.as_ref().is_err_and(StoreError::is_of_reading) {
        unreadable.insert(segment.name.last);
    }
    result
}

/// A segment's records that live, and its tombstones.
async fn find_survivors(
    directory: &Directory,
    base: &Base,
    planted: Option<&State>,
) -> Result<Survivors, StoreError> {
    let mut found = Survivors::default();
    let Some(TreeBase { root, .. }) = &base.tree else { return Ok(found) };
    let mut scan = directory.scan_keys(..);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut rows: Vec<(usize, u64, u32)> = Vec::new();
    loop {
        let entry = scan.next().await?;
        let is_end = entry.is_none();
        if let Some(entry) = entry {
            if entry.flags.has(Flags::TOMBSTONE) {
                found.tombstones.push((entry.seq.0, entry.location.length));
                continue;
            }
            if planted.is_some_and(|state| state.layers().any(|layer| layer.by_key.get(entry.key).is_some()))
            {
                continue;
            }
            if keys.last().is_none_or(|last| last[1..] != *entry.key) {
                keys.push([&[BY_KEY], entry.key].concat());
            }
            rows.push((keys.len() - 1, entry.seq.0, entry.location.length));
        }
        if is_end || keys.len() >= LOOKUP_COUNT {
            // The last key may go on.
            let mut pointers: Vec<Vec<u64>> = vec![Vec::new(); keys.len()];
            let mut damaged: Result<(), ReadError> = Ok(());
            root.get_many(&keys, |index, value| match value.map(decode).transpose() {
                Ok(Some(entry)) => {
                    pointers[index] = entry.pointers().map(|pointer| pointer.location.seq).collect();
                }
                Ok(None) => {}
                Err(error) => damaged = Err(error),
            })
            .await?;
            damaged?;
            yield_now().await;
            for (_, seq, length) in rows.drain(..).filter(|(key, seq, _)| pointers[*key].contains(seq)) {
                found.live.push(seq);
                found.live_bytes += u64::from(length);
            }
            keys.clear();
        }
        if is_end {
            found.live.sort_unstable();
            found.tombstones.sort_unstable();
            return Ok(found);
        }
    }
}

/// A segment that is being written.
struct Copy<'a> {
    shared: &'a Shared,
    path: PathBuf,
    name: SegmentName,
    file: Arc<File>,
    /// What is to be written next, and where.
    buffer: BytesMut,
    written: u64,
    pieces: Pieces,
    directory: DirectoryBuilder,
    contents: Contents,
    tombstone_bytes: u64,
    /// Its turn to work in the background; not while it sleeps.
    turn: Option<SemaphorePermit<'a>>,
}

impl<'a> Copy<'a> {
    async fn new(
        shared: &'a Shared,
        path: &std::path::Path,
        name: SegmentName,
        turn: SemaphorePermit<'a>,
    ) -> Result<Copy<'a>, StoreError> {
        let file = File::open(&shared.place.env.engine, path, OpenMode::CreateNew).await?;
        Ok(Copy {
            shared,
            path: path.to_path_buf(),
            file: Arc::new(file),
            buffer: BytesMut::new(),
            written: 0,
            pieces: Pieces::default(),
            directory: DirectoryBuilder::covering(name.first, name.last, name.epoch),
            contents: Contents::default(),
            tombstone_bytes: 0,
            turn: Some(turn),
            name,
        })
    }

    /// Copies what doesn't go of a segment.
    async fn take(&mut self, plan: &Plan, tombstones_to: u64) -> Result<(), StoreError> {
        let Plan { segment, directory: Some(directory), survivors: wanted } = plan else { return Ok(()) };
        let file = segment.file().await?.clone();
        let is_original = segment.name.generation == 0;
        let mut scan = directory.scan_seq(settee_log::Seq(0));
        let mut survivors: Vec<Survivor> = Vec::new();
        let (mut place, mut bytes) = (0, 0);
        while let Some((entry, _)) = scan.next().await? {
            let length = u64::from(entry.location.length);
            let at = if is_original { entry.location.offset.into() } else { place };
            place += length;
            if !wanted.has(entry.seq.0, tombstones_to) {
                continue;
            }
            survivors.push(Survivor { entry: entry.to_entry(), place: at });
            bytes += length;
            if bytes >= COPY_BYTES {
                self.copy(&file, &mut survivors).await?;
                bytes = 0;
            }
        }
        self.copy(&file, &mut survivors).await
    }

    /// Copies records, each checked.
    async fn copy(&mut self, file: &File, survivors: &mut Vec<Survivor>) -> Result<(), StoreError> {
        let reads: Vec<_> = survivors
            .iter()
            .map(|survivor| ReadAt::new(survivor.place, survivor.entry.location.length as usize))
            .collect();
        let values = file.read_many(&reads, ReadPolicy::ADJACENT_ONLY).await;
        for (value, survivor) in values.into_iter().zip(survivors.drain(..)) {
            let entry = survivor.entry;
            let damaged =
                |what| StoreError::Damaged { path: file.path().to_path_buf(), offset: survivor.place, what };
            let record = Record::decode(value?).map_err(damaged)?;
            if record.seq() != entry.seq {
                return Err(damaged("another record stands there"));
            }
            let is_lost = self.shared.place.options.is_planted(Planted::RemapLost);
            let offset = if is_lost { 0 } else { entry.location.offset };
            self.pieces.push(address(entry.location.segment, offset), entry.location.length);
            let Entry { seq, flags, key, meta, location } = &entry;
            let entry_ref = EntryRef { seq: *seq, flags: *flags, key, meta, location: *location };
            self.directory.push(entry_ref, record.checksum());
            self.buffer.extend_from_slice(record.bytes());
            self.contents.last_seq = seq.0;
            self.contents.record_count += 1;
            self.contents.record_bytes += u64::from(location.length);
            if flags.has(Flags::TOMBSTONE) {
                self.contents.tombstone_count += 1;
                self.tombstone_bytes += u64::from(location.length);
            }
        }
        self.write().await
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let bytes = self.buffer.split().freeze();
        let size = bytes.len() as u64;
        self.file.write_at(self.written, bytes).await?;
        self.written += size;
        if !self.shared.is_closed() {
            // Others work meanwhile, and whoever closes the store need not wait for long.
            self.turn = None;
            self.shared.pace(size).await;
            self.turn = self.shared.place.env.background.acquire().await.ok();
        }
        Ok(())
    }

    /// Completes the file, on stable storage; none where nothing lived.
    async fn finish(mut self) -> Result<Option<Arc<Segment>>, StoreError> {
        let engine = &*self.shared.place.env.engine;
        if self.contents.record_count == 0 {
            folder::remove(engine, &self.path).await?;
            return Ok(None);
        }
        self.buffer.extend_from_slice(&self.pieces.encode());
        self.write().await?;
        let bytes = self.written;
        let footer = self.directory.finish(bytes, 0).await;
        self.file.write_at(footer_start(bytes), Bytes::from(footer)).await?;
        self.file.sync().await?;
        self.shared.place.sync_directory().await?;
        let name = SegmentName { bytes, ..self.name };
        let shared = self.shared;
        let segment =
            Segment::new(&shared.place.env, &shared.place.folder, name, shared.place.options.log.direct);
        if shared.place.options.log.direct {
            self.file.set_direct(true).await?;
        }
        let segment = segment.with_chunks(shared.place.chunks.as_ref());
        let segment = segment.with_file(self.file).with_pieces(self.pieces);
        Ok(Some(Arc::new(segment.with_contents(self.contents, self.tombstone_bytes))))
    }
}
