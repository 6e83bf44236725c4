//! What a check reports: problems and the keys they touch, progress, and counts.

use std::fmt;
use std::path::PathBuf;

use settee_log::Timelines;

/// A problem found in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// The keys it touches.
    pub touched: Touched,
    /// It may as well be the rest of a write that was never acknowledged, left by a crash; then opening the
    /// store removes it.
    pub is_doubtful: bool,
}

/// Which keys a problem touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// None: the damaged part can be rebuilt from the rest.
    Nothing,
    /// Unknown, or named by other problems.
    Unknown,
    /// A version of this key. If it is the newest, another problem says so.
    OldVersion(Vec<u8>),
    /// A version of this key that may be its newest.
    Key(Vec<u8>),
    /// Index entries of the keys from the first up to, not including, the second, or to the last key: lookups
    /// fail, and the values are still in the segments.
    IndexOf(Vec<u8>, Option<Vec<u8>>),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}: {}", self.path.display(), self.offset, self.what)
    }
}

/// An event of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckEvent {
    /// The log's timelines, if there are several: it was restored from a backup.
    Timelines(Timelines),
    /// Bytes checked, and bytes to check in all; both may grow.
    Progress(u64, u64),
    /// A problem was found.
    Problem(Problem),
}

/// Counts of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckSummary {
    /// Files read.
    pub file_count: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Records in the segments, replaced ones included.
    pub record_count: u64,
    /// Entries of the index on disk.
    pub entry_count: u64,
    /// The store's last record.
    pub last_seq: u64,
    /// Problems reported, doubtful ones included.
    pub problem_count: u64,
    /// Problems that a crash may have left.
    pub doubtful_count: u64,
}
