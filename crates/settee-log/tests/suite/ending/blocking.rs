//! Goal: a blocking append triggers the writes that it waits for.
//! Method: a pool of one buffer, which is full of bytes that no caller waits for.

use std::sync::Arc;
use std::time::Duration;

use settee_io::{BufferPool, Env, PoolOptions, ThreadOptions};
use settee_log::{Batch, Flags, Log, LogOptions, Stage};

#[test]
fn a_blocking_append_writes_the_buffer_that_it_waits_for() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let env = Env::system(runtime.handle().clone(), ThreadOptions::default());
    let env = Env { buffers: BufferPool::new(PoolOptions { bytes_max: 64 << 10 }), ..env };
    let options = LogOptions {
        batch_bytes_max: 30 << 10,
        buffer_bytes_max: 64 << 10,
        segment_bytes_min: 1 << 20,
        accepted_age_ms_max: 3_600_000,
        ..LogOptions::default()
    };
    let mut batch = Batch::new();
    batch.push(Flags::none(), b"key", b"", &[1; 28_000]);
    let log = runtime.block_on(async {
        let (log, _) = Log::open(&env, &directory.path().join("log"), options, |_, _| {}).await.unwrap();
        log.append(&batch, Stage::Accepted).await.unwrap();
        log.append(&batch, Stage::Accepted).await.unwrap();
        Arc::new(log)
    });
    let (sender, receiver) = std::sync::mpsc::channel();
    let appending = log.clone();
    runtime.spawn_blocking(move || sender.send(appending.append_blocking(&batch).map(|_| ())));
    let ended = receiver.recv_timeout(Duration::from_secs(10));
    runtime.block_on(log.close()).ok();
    assert!(ended.is_ok_and(|result| result.is_ok()), "it waits for a write that nobody begins");
}
