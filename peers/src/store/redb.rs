//! redb as a store.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};

use super::work::{Failure, Key, Operation, Spec};
use super::{Engine, View};

const TABLE: TableDefinition<&Key, &[u8]> = TableDefinition::new("values");

pub(super) struct Redb {
    database: Arc<Database>,
    /// Whether the process will be killed, so that pages only in its memory would be lost.
    is_killed: bool,
    setup: String,
}

impl Redb {
    /// Commits an empty transaction, which makes all transactions before it durable.
    fn sync(&self) -> Result<(), Failure> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction.commit()?)
    }
}

impl Engine for Redb {
    type View = RedbView;

    fn open(directory: &Path, spec: &Spec) -> Result<Redb, Failure> {
        let database =
            Database::builder().set_cache_size(spec.memory_bytes as usize).create(directory.join("redb"))?;
        let transaction = database.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        let setup = format!(
            "redb 4.5: cache {} MiB, a transaction for each batch, Durability::None (kept in its memory) unless durable",
            spec.memory_bytes >> 20
        );
        let is_killed = spec.operation == Operation::LoadAndHold;
        Ok(Redb { database: Arc::new(database), is_killed, setup })
    }

    fn write(&self, pairs: &[(Key, Bytes)], durable: bool) -> Result<(), Failure> {
        let mut transaction = self.database.begin_write()?;
        let durability = if durable { Durability::Immediate } else { Durability::None };
        transaction.set_durability(durability)?;
        let mut table = transaction.open_table(TABLE)?;
        for (key, value) in pairs {
            table.insert(key, &value[..])?;
        }
        drop(table);
        Ok(transaction.commit()?)
    }

    /// redb can't write its pages to the kernel without a sync. They stay in its memory, which makes its
    /// loads look better than those of engines that write them.
    fn flush_to_kernel(&self) -> Result<(), Failure> {
        if self.is_killed { self.sync() } else { Ok(()) }
    }

    fn write_out(&self) -> Result<(), Failure> {
        self.sync()
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn view(&self) -> Result<RedbView, Failure> {
        Ok(RedbView(self.database.begin_read()?.open_table(TABLE)?))
    }

    fn setup(&self) -> String {
        self.setup.clone()
    }

    fn counters(&self) -> String {
        String::new()
    }
}

pub(super) struct RedbView(ReadOnlyTable<&'static Key, &'static [u8]>);

impl View for RedbView {
    fn get(&mut self, key: &Key, check: impl FnOnce(&[u8])) -> Result<bool, Failure> {
        Ok(self.0.get(key)?.map(|value| check(value.value())).is_some())
    }

    fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<u64, Failure> {
        let mut found = 0;
        for pair in self.0.range::<&Key>(start..)?.take(count as usize) {
            let (key, value) = pair?;
            each(key.value(), if values { value.value() } else { &[] });
            found += 1;
        }
        Ok(found)
    }
}
