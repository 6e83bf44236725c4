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
//! copied until all older segments have been rewritten after it was checkpointed.
//!
//! Invariants:
//! 1. Only what was dead as of a durable checkpoint is left out.
//! 2. The new file is on stable storage, its name too, before the manifest names it; the old ones'
//!    names go after that, while whoever has them open reads on.
//! 3. A record that can't be read is never left out: the segments then stay as they are.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use settee_io::{File, OpenMode, ReadAt, ReadPolicy, folder, yield_now};
use settee_log::{Directory, DirectoryBuilder, Entry, EntryRef, Flags, Record, footer_start};

use crate::error::{ReadError, StoreError};
use crate::manifest::SegmentName;
use crate::planted::Planted;
use crate::segments::{Pieces, Segment, address};
use crate::state::{BY_KEY, Base, State, TreeBase, decode};
use crate::store::Shared;

/// How many keys are looked up in the tree at once.
const LOOKUP_COUNT: usize = 4096;

/// How much is copied at once, in bytes.
const COPY_BYTES: u64 = 1 << 20;

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
    segments: Vec<Arc<Segment>>,
    base: Arc<Base>,
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
        while !self.is_closed()
            && let Some(victims) = self.choose(garbage_percent_max, &unreadable).await
        {
            let known_count = unreadable.len();
            let one = match self.rewrite(&victims, &mut unreadable).await {
                Ok(one) => one,
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
        if bytes.saturating_sub(live) * 100 <= percent_max * bytes
            || self.is_closed()
            || self.is_compacting.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let shared = self.clone();
        self.place.env.spawn("store compaction", async move {
            let compacted = async {
                shared.take_over_soon().await?;
                shared.compact(percent_max, false).await
            };
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

    /// The neighbours whose rewriting frees the most for what is copied; none where there is no more
    /// garbage than may be.
    async fn choose(&self, garbage_percent_max: u64, unreadable: &BTreeSet<u32>) -> Option<Victims> {
        let base = self.accepted.lock().await.base.clone();
        base.tree.as_ref()?;
        let facts: Vec<(u64, u64)> = base
            .segments
            .iter()
            .map(|segment| {
                let name = segment.name;
                let live = base.live.range(name.first..=name.last).map(|(_, live)| live.bytes).sum::<u64>();
                (name.bytes, live.min(name.bytes))
            })
            .collect();
        let (all, live) = facts.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let segments: Vec<_> = base.segments.iter().cloned().collect();
        let is_readable = |index: usize| !unreadable.contains(&segments[index].name.last);
        // What tombstones and the pieces' index take is no garbage: what was rewritten as of this
        // checkpoint can't get smaller.
        let can_shrink = |index: usize| {
            let (bytes, live) = facts[index];
            segments[index].name.clean_to < base.seq && garbage_of(bytes, live) > 0 && is_readable(index)
        };
        if (all - live) * 100 <= garbage_percent_max * all {
            return None;
        }
        let gain = |index: &usize| {
            let (bytes, live) = facts[*index];
            garbage_of(bytes, live) as f64 / (live + COPY_BYTES) as f64
        };
        let best =
            (0..facts.len()).filter(|index| can_shrink(*index)).max_by(|a, b| gain(a).total_cmp(&gain(b)))?;
        // Small neighbours come along, as long as what lives of all fits one segment.
        let most = u64::from(self.place.options.log.segment_bytes_max);
        let aim = (live / SEGMENT_COUNT_AIM).clamp(u64::from(self.place.options.log.segment_bytes_min), most);
        let (mut first, mut last, mut size) = (best, best, facts[best].1);
        loop {
            let joins = |index: usize| {
                let is_small = facts[index].1 * 2 <= aim || facts[index].1 * 2 <= facts[index].0;
                is_small && is_readable(index) && size + facts[index].1 <= aim
            };
            if last + 1 < facts.len() && joins(last + 1) {
                last += 1;
                size += facts[last].1;
            } else if first > 0 && joins(first - 1) {
                first -= 1;
                size += facts[first].1;
            } else {
                break;
            }
        }
        Some(Victims { segments: segments[first..=last].to_vec(), base })
    }

    /// Writes what lives of the victims to a new file, and puts that in their place. Where one of them
    /// can't be read, its number is entered in `unreadable`.
    async fn rewrite(
        &self,
        victims: &Victims,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Compaction, StoreError> {
        let turn = self.place.env.background.acquire().await;
        let (first, last) = (victims.segments[0].name, victims.segments[victims.segments.len() - 1].name);
        let generation =
            victims.segments.iter().map(|segment| segment.name.generation).max().unwrap_or(0) + 1;
        let name = SegmentName {
            first: first.first,
            last: last.last,
            generation,
            epoch: generation,
            bytes: 0,
            clean_to: victims.base.seq,
        };
        let path = self.place.folder.join(name.file_name());
        match folder::remove(&*self.place.env.engine, &path).await {
            // Left by one that failed.
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        let tombstones_to = self.tombstones_to(victims);
        let mut copy = Copy::new(self, &path, name).await?;
        for segment in &victims.segments {
            if let Err(error) = self.copy_live(segment, &victims.base, tombstones_to, &mut copy).await {
                if error.is_of_reading() {
                    unreadable.insert(segment.name.last);
                }
                drop(copy);
                self.remove_file(&path).await;
                return Err(error);
            }
        }
        let segment = copy.finish().await.map_err(|error| self.failed_sync(error))?;
        #[cfg(feature = "planted-faults")]
        let segment = self.with_stale_chunks(segment, &victims.segments[0]);
        // Whoever has the manifest may be waiting for its turn.
        drop(turn);
        let new = segment.as_ref().map(|segment| segment.name);
        self.replace(victims, segment).await?;
        Ok(Compaction {
            segment_count: victims.segments.len() as u64,
            bytes_before: victims.segments.iter().map(|segment| segment.name.bytes).sum(),
            bytes_after: new.map_or(0, |name| name.bytes),
        })
    }

    /// Copies what lives of a segment.
    async fn copy_live(
        &self,
        segment: &Segment,
        base: &Base,
        tombstones_to: u64,
        copy: &mut Copy<'_>,
    ) -> Result<(), StoreError> {
        let directory = segment.directory().await?;
        let trailer = directory.trailer();
        let name = segment.name;
        let has_live = base.live.range(name.first..=name.last).next().is_some();
        let has_tombstones = trailer.tombstone_count > 0 && trailer.last_seq.0 > tombstones_to;
        if !has_live && !has_tombstones {
            return Ok(());
        }
        let state = match self.place.options.is_planted(Planted::UpdateLost) {
            true => Some(self.accepted.lock().await.clone()),
            false => None,
        };
        let live = live_seqs(&directory, base, tombstones_to, state.as_ref()).await?;
        copy.take(segment, &directory, &live).await
    }

    /// Tombstones up to this `Seq` aren't needed any more in these segments: whatever they hide was
    /// left out of all older ones.
    fn tombstones_to(&self, victims: &Victims) -> u64 {
        if self.place.options.is_planted(Planted::TombstoneTooSoon) {
            return u64::MAX;
        }
        let first = victims.segments[0].name.first;
        let older = victims.base.segments.iter().filter(|segment| segment.name.first < first);
        older.map(|segment| segment.name.clean_to).min().unwrap_or(u64::MAX).min(victims.base.seq)
    }

    /// Puts the new segment in the victims' place.
    async fn replace(&self, victims: &Victims, new: Option<Arc<Segment>>) -> Result<(), StoreError> {
        let mut manifest = self.manifest.lock().await;
        self.check_files()?;
        let base = self.accepted.lock().await.base.clone();
        let mut segments = (*base.segments).clone();
        for segment in &victims.segments {
            // Open, so that whoever has it can go on reading.
            segment.file().await?;
            segments.remove(segment.name.last);
        }
        if let Some(new) = new {
            segments.insert(new);
        }
        if self.place.options.is_planted(Planted::FileRemovedEarly) {
            for segment in &victims.segments {
                self.remove_file(segment.path()).await;
            }
        }
        let mut next = manifest.clone();
        next.number += 1;
        next.segments = segments.names();
        next.checkpoint = base.seq;
        next.last_listed = base.last_listed;
        self.install(&mut manifest, next).await?;
        let base = Base { segments: Arc::new(segments), ..(*base).clone() };
        self.rebase(Arc::new(base), 0).await;
        for segment in &victims.segments {
            #[cfg(feature = "planted-faults")]
            self.recycle(segment).await?;
            self.remove_file(segment.path()).await;
        }
        Ok(())
    }
}

/// What a log's segments aim at, in number.
const SEGMENT_COUNT_AIM: u64 = 16;

/// Bytes that a rewriting would free, but for what it adds itself.
fn garbage_of(bytes: u64, live: u64) -> u64 {
    let own = live / 64 + 8192;
    (bytes - live).saturating_sub(own)
}

/// The `Seq`s of a segment's records that live, or that are tombstones past `tombstones_to`,
/// ascending.
async fn live_seqs(
    directory: &Directory,
    base: &Base,
    tombstones_to: u64,
    planted: Option<&State>,
) -> Result<Vec<u64>, StoreError> {
    let Some(TreeBase { root, .. }) = &base.tree else { return Ok(Vec::new()) };
    let mut live = Vec::new();
    let mut scan = directory.scan_keys(..);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut rows: Vec<(usize, u64)> = Vec::new();
    loop {
        let entry = scan.next().await?;
        let is_end = entry.is_none();
        if let Some(entry) = entry {
            if entry.flags.has(Flags::TOMBSTONE) {
                live.extend((entry.seq.0 > tombstones_to).then_some(entry.seq.0));
                continue;
            }
            if planted.is_some_and(|state| state.layers().any(|layer| layer.by_key.get(entry.key).is_some()))
            {
                continue;
            }
            if keys.last().is_none_or(|last| last[1..] != *entry.key) {
                keys.push([&[BY_KEY], entry.key].concat());
            }
            rows.push((keys.len() - 1, entry.seq.0));
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
            live.extend(rows.drain(..).filter(|(key, seq)| pointers[*key].contains(seq)).map(|(_, seq)| seq));
            keys.clear();
        }
        if is_end {
            live.sort_unstable();
            return Ok(live);
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
    record_count: u64,
}

impl<'a> Copy<'a> {
    async fn new(
        shared: &'a Shared,
        path: &std::path::Path,
        name: SegmentName,
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
            record_count: 0,
            name,
        })
    }

    /// Copies the records of a segment that are named.
    async fn take(
        &mut self,
        segment: &Segment,
        directory: &Directory,
        live: &[u64],
    ) -> Result<(), StoreError> {
        let file = segment.file().await?.clone();
        let is_original = segment.name.generation == 0;
        let mut scan = directory.scan_seq(settee_log::Seq(0));
        let mut survivors: Vec<Survivor> = Vec::new();
        let (mut place, mut bytes) = (0, 0);
        while let Some((entry, _)) = scan.next().await? {
            let length = u64::from(entry.location.length);
            let at = if is_original { entry.location.offset.into() } else { place };
            place += length;
            if live.binary_search(&entry.seq.0).is_err() {
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
            let entry = EntryRef { seq: *seq, flags: *flags, key, meta, location: *location };
            self.directory.push(entry, record.checksum());
            self.buffer.extend_from_slice(record.bytes());
            self.record_count += 1;
        }
        self.write().await
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let bytes = self.buffer.split().freeze();
        let size = bytes.len() as u64;
        self.file.write_at(self.written, bytes).await?;
        self.written += size;
        self.shared.pace(size).await;
        Ok(())
    }

    /// Completes the file, on stable storage; none where nothing lived.
    async fn finish(mut self) -> Result<Option<Arc<Segment>>, StoreError> {
        let engine = &*self.shared.place.env.engine;
        if self.record_count == 0 {
            folder::remove(engine, &self.path).await?;
            return Ok(None);
        }
        self.buffer.extend_from_slice(&self.pieces.encode());
        self.write().await?;
        let bytes = self.written;
        let footer = self.directory.finish(bytes, 0).await;
        self.file.write_at(footer_start(bytes), Bytes::from(footer)).await?;
        self.file.sync().await?;
        folder::sync(engine, &self.shared.place.folder).await?;
        let name = SegmentName { bytes, ..self.name };
        let shared = self.shared;
        let segment =
            Segment::new(&shared.place.env, &shared.place.folder, name, shared.place.options.log.direct);
        if shared.place.options.log.direct {
            self.file.set_direct(true).await?;
        }
        let segment = segment.with_chunks(shared.place.chunks.as_ref());
        Ok(Some(Arc::new(segment.with_file(self.file).with_pieces(self.pieces))))
    }
}
