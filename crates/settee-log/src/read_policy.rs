//! How many records of one file are read at once.

use settee_io::{Alignment, ReadAt, ReadPolicy};

/// Reads with a gap of less than this many bytes are joined: the gap is read too.
const NEAR_BYTES: usize = 4 << 10;

const BY_PAGES: ReadPolicy = match Alignment::new(NEAR_BYTES) {
    Ok(page) => ReadPolicy::chunked(page),
    Err(_) => panic!("a page is a power of two"),
};

/// The read policy for records of one segment, sorted by offset. If most of them begin at or shortly after
/// the end of the previous one, as in neighbouring frames, the gaps between them are read too; otherwise only
/// the requested bytes are read.
pub fn read_policy(reads: &[ReadAt]) -> ReadPolicy {
    let near = |pair: &&[ReadAt]| pair[1].offset < pair[0].offset + (pair[0].length + NEAR_BYTES) as u64;
    let is_dense = 2 * reads.windows(2).filter(near).count() >= reads.len();
    if is_dense { BY_PAGES } else { ReadPolicy::ADJACENT_ONLY }
}
