//! The minimum cost of a read: a map in memory from keys to offsets, and pread(2).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::work::data::Source;
use super::work::{Failure, Key, Reader, Spec, TestEngine};

/// A file of values and the map of their offsets, both created from the spec.
pub(super) struct Bare(Arc<Inner>);

struct Inner {
    file: File,
    offsets: BTreeMap<Key, u64>,
    value_bytes: usize,
}

impl Bare {
    pub(super) fn open(directory: &Path, spec: &Spec) -> Result<Bare, Failure> {
        let path = directory.join("values");
        let source = Source::get();
        if !path.exists() {
            let mut file = std::io::BufWriter::new(File::create_new(&path)?);
            for record in 0..spec.records {
                file.write_all(&source.value(record, 0, spec.value_bytes))?;
            }
            file.into_inner()?.sync_all()?;
        }
        let offset = |record| (spec.order.key(record), record * spec.value_bytes as u64);
        let offsets = (0..spec.records).map(offset).collect();
        let file = File::open(path)?;
        Ok(Bare(Arc::new(Inner { file, offsets, value_bytes: spec.value_bytes })))
    }
}

impl TestEngine for Bare {
    type Reader = BareReader;

    async fn write(&self, _pairs: &[(Key, Bytes)], _durable: bool) -> Result<(), Failure> {
        Err("a bare file isn't written to".into())
    }

    async fn flush_to_kernel(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn write_out(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn reader(&self) -> Result<BareReader, Failure> {
        Ok(BareReader { inner: self.0.clone(), buffer: vec![0; self.0.value_bytes] })
    }

    async fn lanes<T, F, L>(self: &Arc<Self>, count: usize, lane: L) -> Result<Vec<T>, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        L: Fn(Arc<Self>, usize) -> F + Clone + Send + Sync + 'static,
    {
        let mut results = Vec::with_capacity(count);
        for index in 0..count {
            results.push(tokio::spawn(lane(self.clone(), index)).await??);
        }
        Ok(results)
    }

    async fn yield_now(&self) {}

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn setup(&self) -> String {
        "a BTreeMap in memory, and pread into a buffer of one's own; no checksum".to_owned()
    }

    fn counters(&self) -> String {
        String::new()
    }
}

pub(super) struct BareReader {
    inner: Arc<Inner>,
    buffer: Vec<u8>,
}

impl Reader for BareReader {
    fn visible(&self) -> Option<u64> {
        None
    }

    async fn get(&mut self, key: &Key, check: impl FnOnce(&[u8]) + Send) -> Result<bool, Failure> {
        let Some(offset) = self.inner.offsets.get(key) else { return Ok(false) };
        self.inner.file.read_exact_at(&mut self.buffer, *offset)?;
        check(&self.buffer);
        Ok(true)
    }

    async fn scan(
        &mut self,
        _start: &Key,
        _count: u64,
        _values: bool,
        _each: impl FnMut(&[u8], &[u8]) + Send,
    ) -> Result<u64, Failure> {
        Err("a bare file isn't scanned".into())
    }
}
