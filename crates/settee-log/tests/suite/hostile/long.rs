//! Goal: a file may be longer than any segment's frames, because of its segment index or other bytes after
//! them, and takes no more memory than the frames.
//! Method: files are extended with space that was never written.

use std::path::Path;
use std::time::Duration;

use settee_io::{Env, File, OpenMode, ThreadOptions};
use settee_log::{Batch, Flags, Log, LogOptions, SEGMENT_BYTES_LIMIT, Stage};

const RECORD_COUNT: u64 = 12;

fn options() -> LogOptions {
    LogOptions { batch_bytes_max: 48 << 10, segment_bytes_max: SEGMENT_BYTES_LIMIT, ..LogOptions::default() }
}

/// Opens the log, and returns the number of recovered records.
async fn open(env: &Env, directory: &Path) -> (Log, u64) {
    let mut found = 0;
    let opened = Log::open(env, directory, options(), |_, _| found += 1).await;
    (opened.unwrap_or_else(|error| panic!("{error}")).0, found)
}

async fn append(log: &Log) {
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &[1; 40_000]);
    let appended = log.append(&batch, Stage::Persisted).await.unwrap();
    log.wait(appended.last_seq, Stage::Persisted).await.unwrap();
}

/// A log of a few segments; returns the paths of the first and the last.
async fn fill(env: &Env, directory: &Path) -> [std::path::PathBuf; 2] {
    let (log, _) = open(env, directory).await;
    for _ in 0..RECORD_COUNT {
        append(&log).await;
    }
    env.clock.sleep(Duration::from_millis(10)).await;
    let segments = log.segments();
    log.close().await.unwrap();
    assert!(segments.len() > 1);
    [1, *segments.last().unwrap()].map(|number| directory.join(format!("{number:010}.log")))
}

async fn file(env: &Env, path: &Path) -> File {
    File::open(&env.engine, path, OpenMode::Write).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_behind_a_segments_frames_may_be_long() {
    let directory = tempfile::tempdir().unwrap();
    let env = Env::current(ThreadOptions::default());
    let [first, _] = fill(&env, directory.path()).await;
    // As long as a segment index makes it, and longer than any memory.
    for length in [u64::from(SEGMENT_BYTES_LIMIT) + 12_288, 1 << 42] {
        file(&env, &first).await.set_length(length).await.unwrap();
        let (log, found) = open(&env, directory.path()).await;
        assert_eq!(found, RECORD_COUNT, "{length}");
        log.close().await.unwrap();
        assert_eq!(file(&env, &first).await.length().await.unwrap(), length, "it is as it was");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_segment_that_is_longer_than_any_ends_where_its_frames_end() {
    let directory = tempfile::tempdir().unwrap();
    let env = Env::current(ThreadOptions::default());
    let [_, last] = fill(&env, directory.path()).await;
    file(&env, &last).await.set_length(1 << 42).await.unwrap();
    let (log, found) = open(&env, directory.path()).await;
    assert_eq!(found, RECORD_COUNT);
    let length = file(&env, &last).await.length().await.unwrap();
    assert!(length <= 1 << 20, "{length}");
    append(&log).await;
    log.close().await.unwrap();
    assert_eq!(open(&env, directory.path()).await.1, RECORD_COUNT + 1);
}
