//! The files of a store: those that the manifest names, the log's segments, and the tree.
//!
//! Without a readable manifest the files are found by their names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_io::{Damage, Env, File, OpenMode, directory};
use settee_log::{
    MANIFEST_FILE, ReadFormat, Segment, SegmentHead, SegmentIndex, SegmentName, Timelines, segment_head,
};
use settee_tree::{Tree, TreeError};

use super::previous;
use super::problem::{CheckEvent, Problem, Touched};
use super::survey::{SegmentSource, Survey};
use crate::error::StoreError;
use crate::index::IndexAggregates;
use crate::manifest::{StoreManifest, tree_name};
use crate::version::CheckpointFacts;

/// Number of bytes read at once of a file that may be all zeros.
const ZEROS_READ_BYTES: usize = 1 << 20;

impl Survey<'_> {
    /// Reads the manifest. If it is damaged, the file names are used instead.
    pub(crate) async fn read_manifest(&mut self) -> Result<(), StoreError> {
        let (env, directory) = (self.context.env.clone(), self.context.directory.clone());
        let read = match self.format {
            ReadFormat::Present => StoreManifest::read(&env, &directory).await,
            ReadFormat::Previous => previous::read_manifest(&env, &directory).await,
        };
        match read {
            Ok(manifest) => self.manifest = manifest,
            Err(StoreError::Damaged(Damage { path, offset, what })) => {
                let what = format!("{what}: the store can't be opened; its files are found by their names");
                self.report(&path, offset, what, Touched::Unknown);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Finds the segments: those that the manifest names, and the log's.
    pub(crate) async fn find_sources(&mut self) -> Result<(), StoreError> {
        let entries = directory::list(&*self.context.env.engine, &self.context.directory).await?;
        let is_there = |name: &str| entries.iter().any(|entry| entry.name == name);
        let first_of_log = self.manifest.as_ref().map_or(0, |manifest| manifest.log.listed_to + 1);
        for name in
            self.manifest.iter().flat_map(|manifest| manifest.log.segments.clone()).collect::<Vec<_>>()
        {
            let path = self.context.directory.join(name.file_name());
            if !is_there(&name.file_name()) {
                self.report(&path, 0, "it is missing: the manifest names it", Touched::Unknown);
                continue;
            }
            let end = (name.generation == 0).then_some(name.bytes);
            self.sources.push(SegmentSource { name, path, is_listed: true, end });
        }
        if self.manifest.is_none() {
            for entry in &entries {
                self.take_rewritten(&entry.name).await?;
            }
            self.drop_covered();
        }
        let mut of_log: Vec<u32> = entries.iter().filter_map(|entry| log_number(&entry.name)).collect();
        of_log
            .retain(|number| *number >= first_of_log && self.sources.iter().all(|one| !covers(one, *number)));
        self.take_log(of_log).await?;
        self.sources.sort_by_key(|source| source.name.first);
        for source in &self.sources {
            let segment = Segment::new(&self.context.env, &self.context.directory, source.name, false);
            if source.is_listed {
                // Without a manifest, two files may hold the same segments.
                if !self.segments.overlaps(&source.name) {
                    self.segments.insert(Arc::new(segment));
                }
            } else {
                self.log_segments.push(source.name.first);
            }
        }
        Ok(())
    }

    /// Adds a rewritten segment by its name and trailer, if there is no manifest.
    async fn take_rewritten(&mut self, file_name: &str) -> Result<(), StoreError> {
        let Some(mut name) = rewritten_name(file_name) else { return Ok(()) };
        let path = self.context.directory.join(file_name);
        let file = Arc::new(File::open(&self.context.env.engine, &path, OpenMode::Read).await?);
        if let Ok(segment_index) = SegmentIndex::open_covering(file, name.first, name.last, name.epoch).await
        {
            name.bytes = segment_index.trailer().frames_end;
        }
        self.sources.push(SegmentSource { name, path, is_listed: true, end: None });
        Ok(())
    }

    /// Of segments that cover the same numbers, keeps those of the newest generation.
    fn drop_covered(&mut self) {
        let names: Vec<SegmentName> = self.sources.iter().map(|source| source.name).collect();
        self.sources.retain(|source| {
            let own = source.name;
            !names.iter().any(|other| {
                other.generation > own.generation && other.first <= own.first && own.last <= other.last
            })
        });
    }

    /// Adds the log's segments, using their headers.
    async fn take_log(&mut self, numbers: Vec<u32>) -> Result<(), StoreError> {
        let mut found: Vec<(u32, u64, PathBuf, Result<SegmentHead, bool>)> = Vec::new();
        for number in numbers {
            let path = self.context.directory.join(format!("{number:010}.log"));
            let file = File::open(&self.context.env.engine, &path, OpenMode::Read).await?;
            let head = segment_head(&file, self.format).await?;
            found.push((number, file.length().await?, path, head));
        }
        // A preallocated segment without records. One with more than zeros after its header was begun.
        while let Some((_, length, path, Err(true))) = found.last()
            && is_all_zeros(&self.context.env, path, *length).await?
        {
            found.pop();
        }
        let heads = || found.iter().rev().filter_map(|(_, _, _, head)| head.as_ref().ok());
        if let Some(manifest) = &self.manifest {
            self.timelines = manifest.log.timelines.clone();
            if self.timelines.count() > 1 {
                (self.on_event)(CheckEvent::Timelines(self.timelines.clone()));
            }
        }
        if let Some(head) = heads().next_back().filter(|_| self.timelines.count() == 0) {
            self.timelines = Timelines::first(head.timeline);
        }
        let oldest = heads().next().map_or(0, |head| head.oldest);
        // A log writes its first manifest before it rewrites anything.
        let had_one = oldest > 1 || self.sources.iter().any(|source| source.is_listed);
        if self.manifest.is_none() && self.summary.problem_count == 0 && had_one {
            let path = self.context.directory.join(MANIFEST_FILE);
            let what = "it is missing: a segment's header, or a rewritten segment, shows that there was one";
            self.report(&path, 0, what, Touched::Unknown);
        }
        // Older segments were listed or removed by a manifest.
        found.retain(|(number, ..)| *number >= oldest || self.manifest.is_none());
        let first =
            self.manifest.as_ref().map_or(1, |manifest| manifest.log.listed_to + 1).max(oldest).max(1);
        let mut expected = found.first().map_or(first, |(number, ..)| *number.min(&first));
        if found.is_empty() && self.manifest.is_some() {
            let path = self.context.directory.join(format!("{first:010}.log"));
            self.report(&path, 0, "it is missing: the log continues there", Touched::Unknown);
        }
        for index in 0..found.len() {
            let (number, _, path, head) = found[index].clone();
            if number != expected && self.sources.iter().all(|one| !covers(one, expected)) {
                let missing = self.context.directory.join(format!("{expected:010}.log"));
                let what = format!("it is missing, and so may be others up to {}", number - 1);
                self.report(&missing, 0, what, Touched::Unknown);
            }
            expected = number + 1;
            let next =
                found.get(index + 1).and_then(|(next, _, _, head)| head.ok().filter(|_| *next == expected));
            let epoch = head.map_or(0, |head| head.epoch);
            let mut end = next.map(|next| next.previous_end);
            if end.is_none() && index + 1 < found.len() {
                end = self.end_by_trailer(&path, number, epoch).await?;
            }
            let name = SegmentName::of_log(number, epoch, 0);
            self.sources.push(SegmentSource { name, path, is_listed: false, end });
        }
        Ok(())
    }

    async fn end_by_trailer(
        &mut self,
        path: &Path,
        number: u32,
        epoch: u32,
    ) -> Result<Option<u64>, StoreError> {
        let file = Arc::new(File::open(&self.context.env.engine, path, OpenMode::Read).await?);
        let segment_index = SegmentIndex::open(file, number, epoch).await.ok();
        Ok(segment_index.map(|segment_index| segment_index.trailer().frames_end))
    }

    /// Opens the tree, and reports problems of its roots.
    pub(crate) async fn open_tree(&mut self) -> Result<(), StoreError> {
        let mut number = self.manifest.as_ref().and_then(|manifest| manifest.section.tree);
        if self.manifest.is_none() {
            let entries = directory::list(&*self.context.env.engine, &self.context.directory).await?;
            number = entries.iter().filter_map(|entry| entry.name.strip_suffix(".tree")?.parse().ok()).max();
        }
        let Some(number) = number else { return Ok(()) };
        self.tree_number = number;
        let path = self.context.directory.join(tree_name(number));
        let mut options = self.context.tree_options(&[0; 16]);
        options.incarnation = self.manifest.as_ref().map(|manifest| manifest.section.incarnation);
        let aggregates = IndexAggregates(self.context.options.aggregate);
        let all_index = || Touched::IndexOf(Vec::new(), None);
        let tree = match Tree::open_to_read(&self.context.env, &path, options, aggregates).await {
            Ok(tree) => tree,
            Err(TreeError::Io(error)) if error.is_not_found() => {
                let what = "it is missing: the manifest names it; opening the store rebuilds it";
                self.report(&path, 0, what, all_index());
                return Ok(());
            }
            Err(TreeError::Io(error)) => return Err(error.into()),
            Err(error) => {
                let offset = if let TreeError::Damaged(Damage { offset, .. }) = &error { *offset } else { 0 };
                let what = format!("{error}; opening the store rebuilds it");
                self.report(&path, offset, what, all_index());
                return Ok(());
            }
        };
        if tree.is_torn() {
            let what = "a slot holds no whole root: a crash interrupted its commit, or it is damaged";
            let (touched, what) = (Touched::Nothing, what.to_owned());
            let offset = settee_tree::HEAD_SIZE / 3;
            self.report_problem(Problem { path: path.clone(), offset, what, touched, is_doubtful: true });
        }
        match tree.root().attachment().await {
            Ok(attachment) => {
                self.facts = CheckpointFacts::decode(&attachment);
                if self.facts.is_none() {
                    let what = "the segment table in its root is invalid";
                    self.report(&path, 0, what, Touched::Nothing);
                }
            }
            Err(TreeError::Io(error)) => return Err(error.into()),
            // Reported when the tree is checked.
            Err(_) => {}
        }
        self.summary.file_count += 1;
        self.summary.bytes += tree.file_bytes();
        self.tree = Some(tree);
        Ok(())
    }
}

fn covers(source: &SegmentSource, number: u32) -> bool {
    (source.name.first..=source.name.last).contains(&number)
}

/// Whether a store's log is in the format of the version before, as far as the headers of its segments show.
///
/// # Errors
/// An I/O error.
pub async fn is_previous_format(env: &Env, directory: &Path) -> Result<bool, StoreError> {
    for entry in directory::list(&*env.engine, directory).await? {
        if log_number(&entry.name).is_some() {
            let file = File::open(&env.engine, &directory.join(entry.name), OpenMode::Read).await?;
            if segment_head(&file, ReadFormat::Previous).await?.is_ok() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn log_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".log")?;
    digits.parse().ok().filter(|number| digits.len() == 10 && *number > 0)
}

fn rewritten_name(name: &str) -> Option<SegmentName> {
    let mut parts = name.strip_suffix(".seg")?.split('-');
    let mut number = || parts.next()?.parse::<u32>().ok();
    let (first, last, generation) = (number()?, number()?, number()?);
    let name = SegmentName { first, last, generation, epoch: generation, ..SegmentName::default() };
    (parts.next().is_none() && first <= last).then_some(name)
}

/// Whether a file holds only zeros.
async fn is_all_zeros(env: &Env, path: &Path, length: u64) -> Result<bool, StoreError> {
    let file = File::open(&env.engine, path, OpenMode::Read).await?;
    let mut at = 0;
    while at < length {
        let bytes = file.read_at(at, ZEROS_READ_BYTES).await?;
        if bytes.is_empty() || bytes.iter().any(|byte| *byte != 0) {
            return Ok(bytes.is_empty());
        }
        at += bytes.len() as u64;
    }
    Ok(true)
}
