//! LMDB as a store, through heed.
//!
//! LMDB maps its file, so that no setting limits its memory; a control group does.

use std::ops::Bound;
use std::path::Path;

use bytes::Bytes;
use heed::{CommitOrAbort, Env, EnvFlags, EnvOpenOptions, RoTxn, WithoutTls, types};

use super::work::{Failure, Key, Operation, Spec};
use super::{Engine, View};

type Pairs = heed::Database<'static, types::Bytes, types::Bytes>;

/// Size of the map in bytes, more than any run fills.
const MAP_BYTES: usize = 256 << 30;

/// Maximum number of concurrent readers, more than any run has.
const READER_COUNT_MAX: u32 = 256;

pub(super) struct Lmdb {
    env: Env<WithoutTls>,
    pairs: Pairs,
    setup: String,
}

impl Engine for Lmdb {
    type View = LmdbView;

    fn open(directory: &Path, spec: &Spec) -> Result<Lmdb, Failure> {
        let is_durable = spec.operation == Operation::Durable;
        // Read-ahead is for scans; LMDB's documentation advises against it for random reads.
        let is_random = matches!(spec.operation, Operation::Read | Operation::Open | Operation::ReadInOrder);
        let mut flags = EnvFlags::empty();
        flags.set(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP, !is_durable);
        flags.set(EnvFlags::NO_READ_AHEAD, is_random);
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES).max_readers(READER_COUNT_MAX);
        // SAFETY: no other process changes the file while it is mapped, and a file that a crash without syncs
        // may have left is not read again.
        let env = unsafe { options.flags(flags).open(directory)? };
        let pairs = env
            .create_databases_and_commit(env.write_txn()?, |opener, transaction| {
                opener.create_database(transaction, None).map(CommitOrAbort::<_, ()>::Commit)
            })?
            .commit()
            .ok_or("LMDB returned no database")?;
        let setup = format!(
            "LMDB through heed 0.23: a transaction for each batch, {}; its memory is the page cache's",
            if is_durable { "synced" } else { "MDB_NOSYNC and MDB_WRITEMAP" }
        );
        Ok(Lmdb { env, pairs, setup })
    }

    fn write(&self, pairs: &[(Key, Bytes)], _durable: bool) -> Result<(), Failure> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in pairs {
            self.pairs.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    /// Committed pages are in the page cache.
    fn flush_to_kernel(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn write_out(&self) -> Result<(), Failure> {
        Ok(self.env.force_sync()?)
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn view(&self) -> Result<LmdbView, Failure> {
        Ok(LmdbView { transaction: self.env.clone().static_read_txn()?, pairs: self.pairs })
    }

    fn setup(&self) -> String {
        self.setup.clone()
    }

    fn counters(&self) -> String {
        String::new()
    }
}

pub(super) struct LmdbView {
    transaction: RoTxn<'static, WithoutTls>,
    pairs: Pairs,
}

impl View for LmdbView {
    fn get(&mut self, key: &Key, check: impl FnOnce(&[u8])) -> Result<bool, Failure> {
        Ok(self.pairs.get(&self.transaction, key)?.map(check).is_some())
    }

    fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<u64, Failure> {
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(start), Bound::Unbounded);
        let mut found = 0;
        for pair in self.pairs.range(&self.transaction, &range)?.take(count as usize) {
            let (key, value) = pair?;
            each(key, if values { value } else { &[] });
            found += 1;
        }
        Ok(found)
    }
}
