//! Goal: a shared handle gives what `std::fs::File` gives, and closing it is orderly.
//! Method: random operations on both, compared step by step; and use after close.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{Error, File};

#[derive(Debug, Clone)]
enum Step {
    Read(u64, usize),
    Write(u64, Vec<u8>, bool),
    SetLength(u64),
    Allocate(u64, u64),
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..40_000u64, 0..20_000usize).prop_map(|(offset, length)| Step::Read(offset, length)),
        (0..40_000u64, prop::collection::vec(any::<u8>(), 0..9_000), any::<bool>())
            .prop_map(|(offset, bytes, sync)| Step::Write(offset, bytes, sync)),
        (0..50_000u64).prop_map(Step::SetLength),
        (0..50_000u64, 1..9_000u64).prop_map(|(offset, length)| Step::Allocate(offset, length)),
        Just(Step::Sync),
    ]
}

fn read_std(file: &fs::File, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut buffer[filled..], offset + filled as u64).unwrap() {
            0 => break,
            count => filled += count,
        }
    }
    buffer.truncate(filled);
    buffer
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_handle_gives_what_std_gives(steps in prop::collection::vec(step(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let engine: Arc<dyn Engine> = Arc::new(ThreadEngine::new(ThreadOptions {
                thread_count: 1,
                sync_thread_count: 1,
                queue_count_max: 1,
            }));
            let ours = File::open(&engine, &folder.path().join("ours"), OpenMode::CreateNew).await.unwrap();
            let theirs = open(&folder.path().join("theirs"), OpenMode::CreateNew).unwrap();
            for step in steps {
                match step {
                    Step::Read(offset, length) => {
                        let found = ours.read_at(offset, length).await.unwrap();
                        prop_assert_eq!(found, read_std(&theirs, offset, length));
                    }
                    Step::Write(offset, bytes, sync) => {
                        theirs.write_all_at(&bytes, offset).unwrap();
                        match sync {
                            true => ours.write_and_sync_at(offset, bytes.into()).await.unwrap(),
                            false => ours.write_at(offset, bytes.into()).await.unwrap(),
                        }
                    }
                    Step::SetLength(length) => {
                        theirs.set_len(length).unwrap();
                        ours.set_length(length).await.unwrap();
                    }
                    Step::Allocate(offset, length) => {
                        let end = theirs.metadata().unwrap().len().max(offset + length);
                        theirs.set_len(end).unwrap();
                        ours.allocate(offset, length).await.unwrap();
                    }
                    Step::Sync => ours.sync().await.unwrap(),
                }
                prop_assert_eq!(ours.length().await.unwrap(), theirs.metadata().unwrap().len());
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_closed_handle_refuses_and_a_missing_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let engine: Arc<dyn Engine> = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    let path = folder.path().join("file");
    let missing = File::open(&engine, &path, OpenMode::Read).await.unwrap_err();
    assert!(missing.is_not_found(), "{missing}");

    let file = File::open(&engine, &path, OpenMode::CreateNew).await.unwrap();
    file.write_at(0, bytes::Bytes::from_static(b"settee")).await.unwrap();
    let past = file.read_exact_at(3, 4).await.unwrap_err();
    assert!(matches!(past, Error::PastEnd { offset: 3, length: 4, .. }), "{past}");
    file.close();
    assert!(matches!(file.read_at(0, 1).await, Err(Error::Closed { .. })));
    assert!(matches!(file.sync().await, Err(Error::Closed { .. })));
}

#[tokio::test]
async fn a_second_lock_is_refused_until_the_first_handle_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let engine: Arc<dyn Engine> = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    let path = folder.path().join("lock");
    let first = File::open(&engine, &path, OpenMode::Create).await.unwrap();
    let second = File::open(&engine, &path, OpenMode::Create).await.unwrap();
    first.lock().await.unwrap();
    let refused = second.lock().await.unwrap_err();
    assert_eq!(refused.io_kind(), Some(io::ErrorKind::WouldBlock), "{refused}");
    drop(first);
    second.lock().await.unwrap();
}

#[tokio::test]
async fn a_dropped_read_leaves_the_handle_usable() {
    let folder = tempfile::tempdir().unwrap();
    let engine: Arc<dyn Engine> = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    let file = File::open(&engine, &folder.path().join("file"), OpenMode::CreateNew).await.unwrap();
    file.write_at(0, vec![7; 1 << 20].into()).await.unwrap();
    for _ in 0..100 {
        let read = file.read_at(0, 2 << 20);
        // Polled once at the most, then dropped with its request in flight.
        let _ = tokio::time::timeout(std::time::Duration::ZERO, read).await;
    }
    assert_eq!(file.read_at(0, 2 << 20).await.unwrap(), vec![7; 1 << 20]);
}
