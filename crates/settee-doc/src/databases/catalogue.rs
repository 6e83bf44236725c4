//! The catalogue: creation and deletion of databases, and recovery at open.
//!
//! Creations and deletions are ordered by the catalogue's writer and wait for their syncs without holding it,
//! so that concurrent ones share a sync. `Slots::names`, the visible state, changes once the catalogue's
//! commit is persisted.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::directory;
use settee_store::{Batch, Seq, Stage, Store, Writer};

use super::catalogue_entry::{CatalogueEntry, TOMBSTONE, tombstone_key};
use super::data_directory::{CATALOGUE_DIRECTORY, DATABASES_DIRECTORY};
use super::slots::Slots;
use super::state::DatabasesInner;
use crate::events::EventKind;
use crate::{Error, ErrorKind, Result};

/// Largest number of tombstones removed by one commit.
const TOMBSTONES_MAX: usize = 1000;

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

/// The incarnations of all databases.
pub(super) async fn incarnations(catalogue: &Store) -> Result<HashSet<[u8; 16]>> {
    let mut incarnations = HashSet::new();
    let mut scan = catalogue.snapshot().scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(entry) = scan.next().await? {
        if entry.key.first() != Some(&TOMBSTONE) {
            incarnations.insert(CatalogueEntry::decode(entry.meta)?.incarnation);
        }
    }
    Ok(incarnations)
}

impl DatabasesInner {
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

    pub(super) async fn delete(self: &Arc<DatabasesInner>, name: &str) -> Result<()> {
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
            self.lock().deletion_unknown.insert(number);
            // Its log may have stopped too, which doesn't matter.
            let _ = self.close_regardless_of_use(number, async |database| database.close().await).await;
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
        let closed = self.close_regardless_of_use(number, async |database| {
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
