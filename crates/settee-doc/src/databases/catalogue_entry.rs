//! The catalogue's records: a database's entry under its name, and the tombstones of deleted databases.
//!
//! Bytes: `docs/format.md`.

use crate::{Error, Result};

/// First byte of the keys of deleted databases' tombstones; no name begins with it.
pub(super) const TOMBSTONE: u8 = 0;

/// The key of the tombstone of the database with this directory number.
pub(super) fn tombstone_key(directory_number: u64) -> [u8; 9] {
    let mut key = [TOMBSTONE; 9];
    key[1..].copy_from_slice(&directory_number.to_be_bytes());
    key
}

/// The directory number in a tombstone's key.
pub(super) fn tombstone_number(key: &[u8]) -> Option<u64> {
    let number = key.strip_prefix(&[TOMBSTONE])?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// A database's entry in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CatalogueEntry {
    pub(super) created_us: u64,
    pub(super) directory_number: u64,
    pub(super) incarnation: [u8; 16],
    /// Whether it has data; recorded after that data was persisted.
    pub(super) was_written: bool,
    /// Whether its documents' ids name partitions.
    pub(super) is_partitioned: bool,
}

const ENTRY_SIZE: usize = 32;

/// Flag in the byte behind the entry: the database has data. The byte is absent without flags.
const FLAG_WRITTEN: u8 = 1;
/// Flag in the byte behind the entry: the database is partitioned.
const FLAG_PARTITIONED: u8 = 2;

impl CatalogueEntry {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut meta = Vec::with_capacity(ENTRY_SIZE + 1);
        meta.extend_from_slice(&self.created_us.to_le_bytes());
        meta.extend_from_slice(&self.directory_number.to_le_bytes());
        meta.extend_from_slice(&self.incarnation);
        let flags = [(self.was_written, FLAG_WRITTEN), (self.is_partitioned, FLAG_PARTITIONED)];
        let flags: u8 = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        meta.extend((flags != 0).then_some(flags));
        meta
    }

    pub(super) fn decode(meta: &[u8]) -> Result<CatalogueEntry> {
        let damaged = || Error::damaged("an entry of the catalogue");
        let (meta, flags) = meta.split_first_chunk::<ENTRY_SIZE>().ok_or_else(damaged)?;
        let flags = match flags {
            [] => 0,
            [flags @ 1..=3] => *flags,
            _ => return Err(damaged()),
        };
        Ok(CatalogueEntry {
            created_us: u64::from_le_bytes(meta[..8].try_into().expect("8 bytes")),
            directory_number: u64::from_le_bytes(meta[8..16].try_into().expect("8 bytes")),
            incarnation: meta[16..].try_into().expect("16 bytes"),
            was_written: flags & FLAG_WRITTEN != 0,
            is_partitioned: flags & FLAG_PARTITIONED != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_golden_bytes_and_damaged_ones_are_refused() {
        let entry = CatalogueEntry {
            created_us: 0x0102_0304_0506_0708,
            directory_number: 9,
            incarnation: [0xab; 16],
            was_written: false,
            is_partitioned: false,
        };
        let mut golden = vec![8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0];
        golden.extend([0xab; 16]);
        assert_eq!(entry.encode(), golden);
        assert_eq!(CatalogueEntry::decode(&golden).unwrap(), entry);
        golden.push(1);
        let written = CatalogueEntry { was_written: true, ..entry };
        assert_eq!(written.encode(), golden);
        assert_eq!(CatalogueEntry::decode(&golden).unwrap(), written);
        golden[32] = 3;
        let partitioned = CatalogueEntry { is_partitioned: true, ..written };
        assert_eq!(partitioned.encode(), golden);
        assert_eq!(CatalogueEntry::decode(&golden).unwrap(), partitioned);
        for damaged in [&golden[..31], &[&golden[..32], &[4]].concat(), &[&golden[..], &[1]].concat()] {
            assert!(CatalogueEntry::decode(damaged).is_err(), "{damaged:?}");
        }
    }
}
