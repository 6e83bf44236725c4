//! The log's vocabulary: update numbers, stages of durability, locations, counters.
//!
//! Every other file may use these types; this one uses none of them.

/// A record's update number: 1, 2, … in the order of the log. 0 is before the first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

/// The random id of a timeline: a history of the log that no other copy of it continues. A restored copy has a
/// timeline of its own. Clients never learn it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimelineId(pub [u8; 16]);

impl std::fmt::Display for TimelineId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for TimelineId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// How durable a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It is in this process's memory.
    Accepted,
    /// The operating system has accepted it and all records before it: they survive the end of the process.
    Written,
    /// It and all records before it are on stable storage: they survive a power loss.
    Persisted,
}

/// Where a record is stored. It never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The segment's number.
    pub segment: u32,
    /// Offset of the record in the segment, in bytes.
    pub offset: u32,
    /// The record's length in bytes.
    pub length: u32,
}

/// The result of an append: the batch's position in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The `Seq` of its first record; the others follow consecutively.
    pub first_seq: Seq,
    /// The `Seq` of its last record.
    pub last_seq: Seq,
    /// The location of each record.
    pub locations: Vec<Location>,
    /// Group number: batches with the same number are persisted by the same sync.
    pub group: u64,
}

/// Counters of a log since it was opened, and current sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Accepted batches.
    pub batch_count: u64,
    /// Completed writes.
    pub write_count: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Syncs of segments that persisted a group.
    pub sync_count: u64,
    /// Running average of the time of a sync in microseconds.
    pub sync_us: u64,
    /// Total size in bytes of the frames in all segments.
    pub file_bytes: u64,
    /// Disk space of the open segment in bytes that is reserved for the next batches.
    pub reserved_bytes: u64,
    /// Bytes of `file_bytes` that are padding, so that no synced block is written again.
    pub padding_bytes: u64,
    /// Bytes in memory: accepted and not yet written, or in the same buffer or frame as such bytes.
    pub memory_bytes: u64,
    /// Bytes of the segment being written that are written and not yet persisted.
    pub unsynced_bytes: u64,
}

/// Metadata of a segment, known without reading its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The segment's number.
    pub number: u32,
    /// Its epoch, with which its segment index is opened: see [`crate::SegmentIndex::open`].
    pub epoch: u32,
    /// The `Seq` of its first record, or of the next record if it has none yet.
    pub first_seq: Seq,
    /// The `Seq` of its last record so far; less than `first_seq` if it has none.
    pub last_seq: Seq,
    /// Offset in bytes where its frames end.
    pub frame_bytes: u64,
    /// Whether it has been sealed, and so has a segment index.
    pub is_sealed: bool,
}

/// The format of files that are only read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReadFormat {
    /// The format that this version writes.
    #[default]
    Present,
    /// That of the version before, which an upgrade reads.
    Previous,
}
