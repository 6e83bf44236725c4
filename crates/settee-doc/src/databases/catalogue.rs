//! The catalogue: creating and deleting databases, and what of it is found at open.
//!
//! Creations and deletions are ordered by the catalogue's writer and wait for their syncs without
//! it: many that come together share one. What others see, `Slots::known`, changes once the
//! catalogue's commit is persisted.

use std::collections::HashSet;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::folder;
use settee_store::{Batch, Seq, Stage, Store, Writer};

use crate::{Error, ErrorKind, Result};

use super::slots::Slots;
use super::updates::EventKind;
use super::{CATALOGUE_FOLDER, DATABASES_FOLDER, Inner};

/// Keys of the marks of deleted databases begin with this; no name does.
const DELETED_MARK: u8 = 0;

/// Marks that are removed by one commit.
const MARKS_MAX: usize = 1000;

fn deleted_key(folder_number: u64) -> [u8; 9] {
    let mut key = [DELETED_MARK; 9];
    key[1..].copy_from_slice(&folder_number.to_be_bytes());
    key
}

/// The number of the folder that a mark's key names.
pub(super) fn deleted_number(key: &[u8]) -> Option<u64> {
    let number = key.strip_prefix(&[DELETED_MARK])?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// What the catalogue says of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) created_us: u64,
    pub(super) folder_number: u64,
    pub(super) incarnation: [u8; 16],
    /// It holds something, which was persisted before this was noted.
    pub(super) was_written: bool,
    /// Its documents' ids name partitions.
    pub(super) is_partitioned: bool,
}

const ENTRY_SIZE: usize = 32;

/// Marks that follow the entry in a byte, where there are any: of a database that was written,
const WRITTEN_MARK: u8 = 1;
/// and of a partitioned one.
const PARTITIONED_MARK: u8 = 2;

impl Entry {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut meta = Vec::with_capacity(ENTRY_SIZE + 1);
        meta.extend_from_slice(&self.created_us.to_le_bytes());
        meta.extend_from_slice(&self.folder_number.to_le_bytes());
        meta.extend_from_slice(&self.incarnation);
        let marks = [(self.was_written, WRITTEN_MARK), (self.is_partitioned, PARTITIONED_MARK)];
        let marks: u8 = marks.iter().filter(|(is_set, _)| *is_set).map(|(_, mark)| mark).sum();
        meta.extend((marks != 0).then_some(marks));
        meta
    }

    pub(super) fn decode(meta: &[u8]) -> Result<Entry> {
        let damaged = || Error::damaged("an entry of the catalogue");
        let (meta, marks) = meta.split_first_chunk::<ENTRY_SIZE>().ok_or_else(damaged)?;
        let marks = match marks {
            [] => 0,
            [marks @ 1..=3] => *marks,
            _ => return Err(damaged()),
        };
        Ok(Entry {
            created_us: u64::from_le_bytes(meta[..8].try_into().expect("8 bytes")),
            folder_number: u64::from_le_bytes(meta[8..16].try_into().expect("8 bytes")),
            incarnation: meta[16..].try_into().expect("16 bytes"),
            was_written: marks & WRITTEN_MARK != 0,
            is_partitioned: marks & PARTITIONED_MARK != 0,
        })
    }
}

/// What the catalogue holds: the databases, and the numbers of folders whose databases were
/// deleted.
pub(super) async fn read(catalogue: &Store) -> Result<(Slots, Vec<u64>)> {
    let mut slots = Slots::default();
    slots.reserve(0);
    let mut deleted = Vec::new();
    let mut scan = catalogue.snapshot().scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(entry) = scan.next().await? {
        if let Some((&DELETED_MARK, number)) = entry.key.split_first() {
            let number = number.try_into().map_err(|_| Error::damaged("a mark in the catalogue"))?;
            deleted.push(u64::from_be_bytes(number));
            continue;
        }
        let found = Entry::decode(entry.meta)?;
        let name = std::str::from_utf8(entry.key).map_err(|_| Error::damaged("a name in the catalogue"))?;
        slots.reserve(found.folder_number);
        slots.known.insert(name.into(), found.folder_number);
    }
    Ok((slots, deleted))
}

impl Inner {
    pub(super) fn database_folder(&self, number: u64) -> PathBuf {
        super::folder_of(&self.folder, number)
    }

    /// What the catalogue says of a database that was there a moment ago.
    ///
    /// # Errors
    /// `NotFound` where the one of this name has another folder by now, or there is none.
    pub(super) async fn entry(&self, name: &str, folder_number: u64) -> Result<Entry> {
        let found = self.catalogue.snapshot().get(name.as_bytes()).await?.ok_or_else(Error::no_database)?;
        let entry = Entry::decode(&found.meta)?;
        if entry.folder_number == folder_number { Ok(entry) } else { Err(Error::no_database()) }
    }

    /// Notes that a database holds something, which is persisted: it is damaged where it is found empty.
    /// Nobody waits for the note, which shares its sync with others: where it is lost, an emptied folder
    /// isn't noticed.
    pub(super) async fn note_written(&self, name: &str, folder_number: u64) -> Result<()> {
        if self.entry(name, folder_number).await?.was_written {
            return Ok(());
        }
        let mut writer = self.catalogue.writer().await;
        let Some(found) = writer.get(name.as_bytes()).await? else { return Ok(()) };
        let entry = Entry::decode(&found.meta)?;
        if entry.folder_number == folder_number {
            let mut batch = Batch::new();
            let entry = Entry { was_written: true, ..entry };
            batch.put(name.as_bytes(), &entry.encode(), Bytes::new(), false);
            writer.commit(&batch, Stage::Accepted).await?;
        }
        Ok(())
    }

    pub(super) async fn create(&self, name: &str, is_partitioned: bool) -> Result<()> {
        let mut writer = self.catalogue.writer().await;
        if writer.get(name.as_bytes()).await?.is_some() {
            self.persist_what_is_told(writer).await?;
            let reason = "The database could not be created, the file already exists.";
            return Err(Error::new(ErrorKind::DatabaseExists, reason));
        }
        let folder_number = {
            let mut slots = self.lock();
            slots.next_folder += 1;
            slots.next_folder - 1
        };
        let entry = Entry {
            created_us: self.env.clock.unix_us(),
            folder_number,
            incarnation: self.env.random_bytes(),
            was_written: false,
            is_partitioned,
        };
        let mut batch = Batch::new();
        batch.put(name.as_bytes(), &entry.encode(), Bytes::new(), false);
        let seq = writer.commit(&batch, Stage::Persisted).await?;
        self.lock().creating.insert(name.into(), folder_number);
        drop(writer);
        let persisted = self.catalogue.wait(seq, Stage::Persisted).await;
        let mut slots = self.lock();
        // A deletion may have come behind it already.
        if slots.creating.get(name) == Some(&folder_number) {
            slots.creating.remove(name);
            if persisted.is_ok() {
                slots.known.insert(name.into(), folder_number);
                self.updates.note(EventKind::Created, name);
            }
        }
        Ok(persisted?)
    }

    pub(super) async fn delete(self: &Arc<Inner>, name: &str) -> Result<()> {
        let mut writer = self.catalogue.writer().await;
        let Some(found) = writer.get(name.as_bytes()).await? else {
            self.persist_what_is_told(writer).await?;
            return Err(Error::no_database());
        };
        let entry = Entry::decode(&found.meta)?;
        let number = entry.folder_number;
        let mut batch = Batch::new();
        batch.delete(name.as_bytes());
        batch.put(&deleted_key(number), b"", Bytes::new(), false);
        batch.use_reserve();
        let seq = writer.commit(&batch, Stage::Persisted).await?;
        self.lock().creating.remove(name);
        drop(writer);
        if let Err(stopped) = self.catalogue.wait(seq, Stage::Persisted).await {
            // Whether it was deleted shows when the databases are opened again: until then
            // nothing more may be promised in it.
            self.lock().doubtful.insert(number);
            // Its log may have stopped too, which comes to the same.
            let _ = self.close_for_good(number, async |database| database.close().await).await;
            return Err(stopped.into());
        }
        {
            let mut slots = self.lock();
            // There may be a new one of this name by now.
            if slots.is_current(name, number) {
                slots.known.remove(name);
            }
            self.updates.note(EventKind::Deleted, name);
        }
        let closed = self.close_for_good(number, async |database| {
            database.close_deleted().await;
            Ok(())
        });
        closed.await?;
        let inner = self.clone();
        self.env.spawn("remove database", async move {
            // What stays behind is removed when the databases are opened again.
            if let Err(error) = inner.remove_folders(&[number]).await {
                tracing::warn!(%error, folder = number, "could not remove a deleted database's files");
            }
        });
        Ok(())
    }

    /// What is told of the newest accepted state must not be undone by a crash.
    async fn persist_what_is_told(&self, writer: Writer<'_>) -> Result<()> {
        let seq = writer.last_seq();
        drop(writer);
        Ok(self.catalogue.wait(seq, Stage::Persisted).await?)
    }

    /// Removes the folders of deleted databases, and then their marks.
    async fn remove_folders(&self, numbers: &[u64]) -> Result<()> {
        let engine = &*self.env.engine;
        for number in numbers {
            folder::remove_with_files(engine, &self.database_folder(*number)).await?;
        }
        let root = self.folder.join(DATABASES_FOLDER);
        match folder::sync(engine, &root).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        for some in numbers.chunks(MARKS_MAX) {
            let mut batch = Batch::new();
            some.iter().for_each(|number| batch.delete(&deleted_key(*number)));
            batch.use_reserve();
            // Nobody waits for it: where it is lost, the next opening finds nothing to remove.
            self.catalogue.writer().await.commit(&batch, Stage::Accepted).await?;
        }
        Ok(())
    }

    /// A catalogue that never held anything, beside databases' folders, has lost what it held: a
    /// folder comes after its entry.
    pub(super) async fn check_catalogue(&self) -> Result<()> {
        let root = self.folder.join(DATABASES_FOLDER);
        if self.catalogue.writer().await.last_seq() > Seq(0) {
            return Ok(());
        }
        let entries = folder::list(&*self.env.engine, &root).await?;
        if entries.iter().any(|entry| entry.name.parse::<u64>().is_ok()) {
            let (root, catalogue) = (root.display(), self.folder.join(CATALOGUE_FOLDER));
            let reason = format!(
                "there are databases in {root}, but {} is empty: put a copy of it back, or move {root} away",
                catalogue.display()
            );
            return Err(Error::new(ErrorKind::Internal, reason));
        }
        Ok(())
    }

    /// Removes the folders of deleted databases that are still there, and keeps the numbers of
    /// all others from being used again.
    pub(super) async fn tidy_folders(&self, deleted: &[u64]) -> Result<()> {
        deleted.iter().for_each(|number| self.lock().reserve(*number));
        if !deleted.is_empty() {
            self.remove_folders(deleted).await?;
        }
        let entries = folder::list(&*self.env.engine, &self.folder.join(DATABASES_FOLDER)).await?;
        let mut slots = self.lock();
        let known: HashSet<u64> = slots.known.values().copied().collect();
        for entry in entries {
            let Ok(number) = entry.name.parse::<u64>() else {
                continue;
            };
            slots.reserve(number);
            if !known.contains(&number) {
                tracing::warn!(
                    folder = entry.name,
                    "the catalogue names no database in this folder: left as it is"
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
    fn an_entry_is_as_the_format_has_it_and_others_are_refused() {
        let entry = Entry {
            created_us: 0x0102_0304_0506_0708,
            folder_number: 9,
            incarnation: [0xab; 16],
            was_written: false,
            is_partitioned: false,
        };
        let mut golden = vec![8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0];
        golden.extend([0xab; 16]);
        assert_eq!(entry.encode(), golden);
        assert_eq!(Entry::decode(&golden).unwrap(), entry);
        golden.push(1);
        let written = Entry { was_written: true, ..entry };
        assert_eq!(written.encode(), golden);
        assert_eq!(Entry::decode(&golden).unwrap(), written);
        golden[32] = 3;
        let partitioned = Entry { is_partitioned: true, ..written };
        assert_eq!(partitioned.encode(), golden);
        assert_eq!(Entry::decode(&golden).unwrap(), partitioned);
        for damaged in [&golden[..31], &[&golden[..32], &[4]].concat(), &[&golden[..], &[1]].concat()] {
            assert!(Entry::decode(damaged).is_err(), "{damaged:?}");
        }
    }
}
