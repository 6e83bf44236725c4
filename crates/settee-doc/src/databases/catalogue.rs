//! The catalogue: creation and deletion of databases, and recovery at open.
//!
//! Creations and deletions are ordered by the catalogue's writer and wait for their syncs without holding it,
//! so that concurrent ones share a sync. `Slots::names`, the visible state, changes once the catalogue's
//! commit is persisted.

use std::collections::HashSet;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::directory;
use settee_store::{Batch, Seq, Stage, Store, Writer};

use crate::{Error, ErrorKind, Result};

use super::slots::Slots;
use super::updates::EventKind;
use super::{CATALOGUE_DIRECTORY, DATABASES_DIRECTORY, Inner};

/// First byte of the keys of deleted databases' tombstones; no name begins with it.
const TOMBSTONE: u8 = 0;

/// Largest number of tombstones removed by one commit.
const TOMBSTONES_MAX: usize = 1000;

fn tombstone_key(directory_number: u64) -> [u8; 9] {
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

/// Reads the catalogue: the databases, and the directory numbers of deleted ones.
pub(super) async fn read(catalogue: &Store) -> Result<(Slots, Vec<u64>)> {
    let mut slots = Slots::default();
    slots.reserve(0);
    let mut deleted = Vec::new();
    let mut scan = catalogue.snapshot().scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(entry) = scan.next().await? {
        if let Some((&TOMBSTONE, number)) = entry.key.split_first() {
            let number = number.try_into().map_err(|_| Error::damaged("a tombstone in the catalogue"))?;
            deleted.push(u64::from_be_bytes(number));
            continue;
        }
        let found = CatalogueEntry::decode(entry.meta)?;
        let name = std::str::from_utf8(entry.key).map_err(|_| Error::damaged("a name in the catalogue"))?;
        slots.reserve(found.directory_number);
        slots.names.insert(name.into(), found.directory_number);
    }
    Ok((slots, deleted))
}

impl Inner {
    pub(super) fn database_directory(&self, number: u64) -> PathBuf {
        super::directory_of(&self.directory, number)
    }

    /// The catalogue's entry of a database.
    ///
    /// # Errors
    /// `NotFound` if the name was deleted, or has another directory by now.
    pub(super) async fn entry(&self, name: &str, directory_number: u64) -> Result<CatalogueEntry> {
        let found = self.catalogue.snapshot().get(name.as_bytes()).await?.ok_or_else(Error::no_database)?;
        let entry = CatalogueEntry::decode(&found.meta)?;
        if entry.directory_number == directory_number { Ok(entry) } else { Err(Error::no_database()) }
    }

    /// Records that a database has persisted data, so that it counts as damaged if it is found empty later.
    /// Nothing waits for this record, which shares its sync with others: if it is lost, an emptied directory
    /// isn't detected.
    pub(super) async fn record_written(&self, name: &str, directory_number: u64) -> Result<()> {
        if self.entry(name, directory_number).await?.was_written {
            return Ok(());
        }
        let mut writer = self.catalogue.writer().await;
        let Some(found) = writer.get(name.as_bytes()).await? else { return Ok(()) };
        let entry = CatalogueEntry::decode(&found.meta)?;
        if entry.directory_number == directory_number {
            let mut batch = Batch::new();
            let entry = CatalogueEntry { was_written: true, ..entry };
            batch.put(name.as_bytes(), &entry.encode(), Bytes::new(), false);
            writer.commit(&batch, Stage::Accepted).await?;
        }
        Ok(())
    }

    pub(super) async fn create(&self, name: &str, is_partitioned: bool) -> Result<()> {
        let mut writer = self.catalogue.writer().await;
        if writer.get(name.as_bytes()).await?.is_some() {
            self.persist_accepted(writer).await?;
            let reason = "The database could not be created, the file already exists.";
            return Err(Error::new(ErrorKind::DatabaseExists, reason));
        }
        let directory_number = {
            let mut slots = self.lock();
            slots.next_directory += 1;
            slots.next_directory - 1
        };
        let entry = CatalogueEntry {
            created_us: self.env.clock.unix_us(),
            directory_number,
            incarnation: self.env.random_bytes(),
            was_written: false,
            is_partitioned,
        };
        let mut batch = Batch::new();
        batch.put(name.as_bytes(), &entry.encode(), Bytes::new(), false);
        let seq = writer.commit(&batch, Stage::Persisted).await?;
        self.lock().creating.insert(name.into(), directory_number);
        drop(writer);
        let persisted = self.catalogue.wait(seq, Stage::Persisted).await;
        let mut slots = self.lock();
        // A deletion may have overtaken it.
        if slots.creating.get(name) == Some(&directory_number) {
            slots.creating.remove(name);
            if persisted.is_ok() {
                slots.names.insert(name.into(), directory_number);
                self.updates.register(EventKind::Created, name);
            }
        }
        Ok(persisted?)
    }

    pub(super) async fn delete(self: &Arc<Inner>, name: &str) -> Result<()> {
        let mut writer = self.catalogue.writer().await;
        let Some(found) = writer.get(name.as_bytes()).await? else {
            self.persist_accepted(writer).await?;
            return Err(Error::no_database());
        };
        let entry = CatalogueEntry::decode(&found.meta)?;
        let number = entry.directory_number;
        let mut batch = Batch::new();
        batch.delete(name.as_bytes());
        batch.put(&tombstone_key(number), b"", Bytes::new(), false);
        batch.use_reserve();
        let seq = writer.commit(&batch, Stage::Persisted).await?;
        self.lock().creating.remove(name);
        drop(writer);
        if let Err(stopped) = self.catalogue.wait(seq, Stage::Persisted).await {
            // The outcome of the deletion is known after the next opening: until then nothing may be stored
            // in the database.
            self.lock().undecided.insert(number);
            // Its log may have stopped too, which doesn't matter.
            let _ = self.close_for_good(number, async |database| database.close().await).await;
            return Err(stopped.into());
        }
        {
            let mut slots = self.lock();
            // The name may already belong to a new database.
            if slots.is_current(name, number) {
                slots.names.remove(name);
            }
            self.updates.register(EventKind::Deleted, name);
        }
        let closed = self.close_for_good(number, async |database| {
            database.close_deleted().await;
            Ok(())
        });
        closed.await?;
        let inner = self.clone();
        self.env.spawn("remove database", async move {
            // Directories that remain are removed when the databases are opened again.
            if let Err(error) = inner.remove_directories(&[number]).await {
                tracing::warn!(%error, directory = number, "could not remove a deleted database's files");
            }
        });
        Ok(())
    }

    /// Persists the newest accepted state, since the response reveals it and a crash must not undo it.
    async fn persist_accepted(&self, writer: Writer<'_>) -> Result<()> {
        let seq = writer.last_seq();
        drop(writer);
        Ok(self.catalogue.wait(seq, Stage::Persisted).await?)
    }

    /// Removes the directories of deleted databases, and then their tombstones.
    async fn remove_directories(&self, numbers: &[u64]) -> Result<()> {
        let engine = &*self.env.engine;
        for number in numbers {
            directory::remove_with_files(engine, &self.database_directory(*number)).await?;
        }
        let root = self.directory.join(DATABASES_DIRECTORY);
        match directory::sync(engine, &root).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        for some in numbers.chunks(TOMBSTONES_MAX) {
            let mut batch = Batch::new();
            some.iter().for_each(|number| batch.delete(&tombstone_key(*number)));
            batch.use_reserve();
            // Nothing waits for it: if it is lost, the next opening finds nothing to remove.
            self.catalogue.writer().await.commit(&batch, Stage::Accepted).await?;
        }
        Ok(())
    }

    /// Detects a lost catalogue: one that never had an entry, beside databases' directories, which are
    /// created after their entries.
    pub(super) async fn check_catalogue(&self) -> Result<()> {
        let root = self.directory.join(DATABASES_DIRECTORY);
        if self.catalogue.writer().await.last_seq() > Seq(0) {
            return Ok(());
        }
        let entries = directory::list(&*self.env.engine, &root).await?;
        if entries.iter().any(|entry| entry.name.parse::<u64>().is_ok()) {
            let (root, catalogue) = (root.display(), self.directory.join(CATALOGUE_DIRECTORY));
            let reason = format!(
                "there are databases in {root}, but {} is empty: put a copy of it back, or move {root} away",
                catalogue.display()
            );
            return Err(Error::new(ErrorKind::Internal, reason));
        }
        Ok(())
    }

    /// Removes remaining directories of deleted databases, and prevents the numbers of all others from being
    /// reused.
    pub(super) async fn tidy_directories(&self, deleted: &[u64]) -> Result<()> {
        deleted.iter().for_each(|number| self.lock().reserve(*number));
        if !deleted.is_empty() {
            self.remove_directories(deleted).await?;
        }
        let entries = directory::list(&*self.env.engine, &self.directory.join(DATABASES_DIRECTORY)).await?;
        let mut slots = self.lock();
        let known: HashSet<u64> = slots.names.values().copied().collect();
        for entry in entries {
            let Ok(number) = entry.name.parse::<u64>() else {
                continue;
            };
            slots.reserve(number);
            if !known.contains(&number) {
                tracing::warn!(
                    directory = entry.name,
                    "the catalogue names no database in this directory: left as it is"
                );
            }
        }
        Ok(())
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
