//! Why a segment index can't be read.

use std::path::PathBuf;

use settee_io::{Damage, File};

/// Why a segment index can't be read. The segment's frames may be sound nevertheless, and contain the same
/// information.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SegmentIndexError {
    /// The file doesn't end with a footer: the segment is not sealed, or the footer's last bytes are damaged.
    #[error("{} doesn't end with a segment index", path.display())]
    Absent {
        /// The segment's file.
        path: PathBuf,
    },

    /// The footer's bytes are not those that were written.
    #[error("damaged segment index in {0}")]
    Damaged(Damage),

    /// The footer was written by a later version.
    #[error("the segment index in {} has format {found}; this version reads up to {known}", path.display())]
    NewerFormat {
        /// The segment's file.
        path: PathBuf,
        /// The format version of the footer.
        found: u32,
        /// The newest format version that can be read.
        known: u32,
    },

    /// The read failed.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

/// The error for damaged bytes of `file` at `offset`.
pub(super) fn damaged(file: &File, offset: u64, what: &'static str) -> SegmentIndexError {
    SegmentIndexError::Damaged(Damage { path: file.path().to_path_buf(), offset, what })
}
