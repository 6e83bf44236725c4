//! The sparse block index of a rewritten segment, stored after its records.
//!
//! It gives the offset of each block of about [`BLOCK_BYTES`] bytes, so that a record is found by its first
//! location, its address, wherever it was copied to.
//!
//! Invariant: blocks begin at records; their addresses and offsets ascend. A record as long as a block has
//! one of its own: no small record is read together with a large one.

use settee_io::{Damage, File};

use crate::error::ReadError;
use crate::types::Location;

/// Size in bytes at which a block of a rewritten segment ends. A record of this size has a block of its own.
const BLOCK_BYTES: u32 = 2 << 10;

const BLOCK_ENTRY_SIZE: usize = 12;

/// Count, end of the records, checksum.
const BLOCK_INDEX_TRAILER_SIZE: usize = 16;

/// First location of a record as a number: its segment's number and its offset.
pub(super) fn address(segment: u32, offset: u32) -> u64 {
    u64::from(segment) << 32 | u64::from(offset)
}

/// The sparse block index of a rewritten segment: the address and the offset of each block, both ascending,
/// and the end of the last block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SparseBlockIndex {
    starts: Vec<(u64, u32)>,
    end: u32,
}

impl SparseBlockIndex {
    /// Adds the record that was first stored at `location` and follows those before it.
    ///
    /// # Panics
    /// If the records take 4 GiB or more.
    pub fn push(&mut self, location: Location) {
        let Location { segment, offset, length } = location;
        let address = address(segment, offset);
        let is_full = self.starts.last().is_none_or(|(_, file_offset)| self.end - file_offset >= BLOCK_BYTES);
        if is_full || length >= BLOCK_BYTES {
            self.starts.push((address, self.end));
        }
        self.end = self.end.checked_add(length).expect("a segment is smaller than 4 GiB");
    }

    /// Start and end of the block that holds an address.
    pub(super) fn find(&self, address: u64) -> (u32, u32) {
        let next = self.starts.partition_point(|(first, _)| *first <= address);
        let start = self.starts.get(next.saturating_sub(1)).map_or(0, |(_, file_offset)| *file_offset);
        (start, self.starts.get(next).map_or(self.end, |(_, file_offset)| *file_offset))
    }

    /// The bytes that follow the records in the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.starts.len() * BLOCK_ENTRY_SIZE + BLOCK_INDEX_TRAILER_SIZE);
        for (address, file_offset) in &self.starts {
            bytes.extend_from_slice(&address.to_le_bytes());
            bytes.extend_from_slice(&file_offset.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.starts.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.end.to_le_bytes());
        bytes.extend_from_slice(&twox_hash::XxHash3_64::oneshot(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the index of a file whose records and index together have `bytes` bytes.
    pub(super) async fn read(file: &File, bytes: u64) -> Result<SparseBlockIndex, ReadError> {
        let damaged =
            |what| ReadError::Damaged(Damage { path: file.path().to_path_buf(), offset: bytes, what });
        if bytes < BLOCK_INDEX_TRAILER_SIZE as u64 || bytes > file.length().await? {
            return Err(damaged("it is shorter than it was"));
        }
        let trailer =
            file.read_exact_at(bytes - BLOCK_INDEX_TRAILER_SIZE as u64, BLOCK_INDEX_TRAILER_SIZE).await?;
        let count = u32::from_le_bytes(trailer[..4].try_into().expect("4 bytes")) as u64;
        let size = count * BLOCK_ENTRY_SIZE as u64 + BLOCK_INDEX_TRAILER_SIZE as u64;
        let start = bytes.checked_sub(size).ok_or_else(|| damaged("its block index is invalid"))?;
        let table = file.read_exact_at(start, size as usize).await?;
        SparseBlockIndex::decode(&table).ok_or_else(|| damaged("its block index is damaged"))
    }

    fn decode(bytes: &[u8]) -> Option<SparseBlockIndex> {
        let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
        if twox_hash::XxHash3_64::oneshot(body).to_le_bytes() != checksum {
            return None;
        }
        let (entries, trailer) = body.split_at_checked(body.len().checked_sub(8)?)?;
        let end = u32::from_le_bytes(trailer[4..].try_into().ok()?);
        let (entries, rest) = entries.as_chunks::<BLOCK_ENTRY_SIZE>();
        let begin = |entry: &[u8; BLOCK_ENTRY_SIZE]| {
            let (address, file_offset) = entry.split_at(8);
            let file_offset = u32::from_le_bytes(file_offset.try_into().expect("4 bytes"));
            (u64::from_le_bytes(address.try_into().expect("8 bytes")), file_offset)
        };
        let starts: Vec<_> = entries.iter().map(begin).collect();
        let ascends = starts.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        let within = starts.last().is_none_or(|(_, file_offset)| *file_offset < end);
        (rest.is_empty() && ascends && within).then_some(SparseBlockIndex { starts, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u32, length: u32) -> Location {
        Location { segment: 1, offset, length }
    }

    /// Number of bytes read for a record.
    fn read_size(block_index: &SparseBlockIndex, address: u64) -> u32 {
        let (start, end) = block_index.find(address);
        end - start
    }

    #[test]
    fn a_small_record_beside_a_large_one_is_read_alone() {
        let mut block_index = SparseBlockIndex::default();
        let records = [(512, 100), (612, 10 << 20), (20 << 20, 100), ((20 << 20) + 100, BLOCK_BYTES)];
        records.iter().for_each(|(offset, length)| block_index.push(at(*offset, *length)));
        for (offset, length) in records {
            assert_eq!(read_size(&block_index, address(1, offset)), length, "the record at {offset}");
        }
        assert_eq!(SparseBlockIndex::decode(&block_index.encode()), Some(block_index));
    }

    #[test]
    fn small_records_share_blocks() {
        let mut block_index = SparseBlockIndex::default();
        (0..1000).for_each(|number| block_index.push(at(512 + 100 * number, 100)));
        let most = (0..1000).map(|number| read_size(&block_index, address(1, 512 + 100 * number))).max();
        assert!(most.is_some_and(|most| most < BLOCK_BYTES + 100), "{most:?} bytes");
        assert!(
            block_index.starts.len() <= 100_000 / BLOCK_BYTES as usize + 1,
            "{} blocks",
            block_index.starts.len()
        );
    }
}
