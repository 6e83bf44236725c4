//! The engine's figures, collected at each scrape.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use settee_doc::{Databases, Stats};

use super::series::{counter, gauge, info};

/// Collects the engine's figures at each scrape.
pub(super) struct EngineMetrics {
    databases: Arc<Databases>,
    started: Instant,
    dropped_log_lines: Arc<AtomicU64>,
}

impl EngineMetrics {
    /// The figures of a server that started at `started`.
    pub(super) fn new(
        databases: Arc<Databases>,
        started: Instant,
        dropped_log_lines: Arc<AtomicU64>,
    ) -> EngineMetrics {
        EngineMetrics { databases, started, dropped_log_lines }
    }
}

impl fmt::Debug for EngineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineMetrics")
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.databases.stats();
        let Stats { engine, buffers, database_count, open_count, stopped_count, log, .. } = stats;
        let out = &mut encoder;
        let version = env!("CARGO_PKG_VERSION");
        info(out, "build_info", "The server's version", ("version", version))?;
        info(out, "io_engine_info", "The I/O engine", ("engine", engine))?;
        let uptime = self.started.elapsed().as_secs();
        gauge(out, "uptime_seconds", "Seconds since the server started", uptime)?;

        let help =
            "Lines dropped from the server's own log because it couldn't be written fast enough or at all";
        counter(out, "server_log_dropped_lines", help, self.dropped_log_lines.load(Ordering::Relaxed))?;

        let help = "Bytes of disk space reserved for spooled bodies";
        gauge(out, "httpd_spool_bytes", help, self.databases.spools().reserved_bytes())?;

        gauge(out, "databases", "Databases that exist", database_count as u64)?;
        let help = "Databases that are open: in use, or used recently";
        gauge(out, "open_databases", help, open_count as u64)?;
        let help = "Logs stopped by a failed write or sync, including the catalogue's";
        gauge(out, "stopped_logs", help, stopped_count as u64)?;

        gauge(
            out,
            "buffer_pool_bytes_max",
            "The limit of the buffer pool's bytes",
            buffers.bytes_max as u64,
        )?;
        gauge(
            out,
            "buffer_pool_leased_bytes",
            "Bytes of the buffer pool in use",
            buffers.leased_bytes as u64,
        )?;
        gauge(
            out,
            "buffer_pool_kept_bytes",
            "Free bytes kept in the buffer pool",
            buffers.kept_bytes as u64,
        )?;
        gauge(out, "buffer_pool_waiting", "Number of waiters for buffers", buffers.waiting_count as u64)?;

        counter(out, "log_batches", "Batches accepted by all logs", log.batch_count)?;
        counter(out, "log_writes", "Writes handed to the system", log.write_count)?;
        counter(out, "log_written_bytes", "Bytes written", log.written_bytes)?;
        counter(out, "log_syncs", "Syncs that carried a group of batches", log.sync_count)?;
        let help = "Duration of a sync: mean over the open logs of their running averages";
        gauge(out, "log_sync_seconds_mean", help, seconds(log.sync_us))?;
        let help = "Duration of a sync: maximum over the open logs of their running averages";
        gauge(out, "log_sync_seconds_max", help, seconds(stats.sync_us_max))?;
        gauge(out, "log_file_bytes", "Bytes that the open logs' frames take", log.file_bytes)?;
        let help = "Of these, padding bytes, so that no synced block is rewritten";
        gauge(out, "log_padding_bytes", help, log.padding_bytes)?;
        let help = "Disk space reserved for the next batches in the segments that take them";
        gauge(out, "log_reserved_bytes", help, log.reserved_bytes)?;
        gauge(out, "log_memory_bytes", "Bytes accepted and not yet written", log.memory_bytes)?;
        gauge(out, "log_unsynced_bytes", "Bytes written and not yet persisted", log.unsynced_bytes)?;
        encode_store(out, &stats)
    }
}

/// The figures of the databases' indexes and background jobs.
fn encode_store(out: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    let store = &stats.store;
    let help = "Bytes of the memtables";
    gauge(out, "index_memory_bytes", help, store.memory_bytes)?;
    gauge(out, "index_memory_bytes_max", "The limit of the memtables' bytes", stats.index_memory_bytes_max)?;
    gauge(out, "index_file_bytes", "Bytes of the open databases' indexes on disk", store.tree_bytes)?;
    counter(
        out,
        "checkpoints",
        "Checkpoints: memtables merged into an index on disk",
        store.checkpoint_count,
    )?;
    counter(out, "checkpoints_whole", "Of these, those that rewrote the whole index", store.whole_count)?;
    let help = "Indexes rebuilt from the data because they were missing or damaged";
    counter(out, "indexes_rebuilt", help, store.rebuild_count)?;
    gauge(out, "segment_bytes", "Bytes of segments that can be compacted", store.segment_bytes)?;
    gauge(out, "segment_live_bytes", "Of these, bytes of live records", store.segment_live_bytes)?;
    gauge(out, "live_bytes", "Live bytes of logs and indexes", store.live_bytes)?;
    gauge(out, "garbage_bytes", "Garbage in logs and indexes", store.garbage_bytes)?;
    let help = "Seconds for which writes were delayed while garbage was freed";
    counter(out, "write_delay_seconds", help, seconds(store.delayed_us))?;
    let help = "The least rate to which a database's writes are slowed now; 0 for none";
    gauge(out, "write_bytes_per_second_max", help, store.paced_bytes_per_second)?;
    counter(
        out,
        "write_lookups",
        "Keys that writes looked up in the index on disk",
        store.write_lookup_count,
    )?;
    counter(out, "compacted_segments", "Segments rewritten by compaction", store.compacted_count)?;
    counter(out, "compacted_bytes", "Bytes of the segments rewritten by compaction", store.compacted_bytes)?;
    counter(out, "compaction_copied_bytes", "Bytes written by compaction", store.copied_bytes)?;
    let help = "Age in seconds of the oldest snapshot that keeps replaced files";
    gauge(out, "oldest_snapshot_seconds", help, store.oldest_snapshot_ms as f64 / 1e3)?;
    let help = "Open databases with a snapshot older than snapshot_age_s_max";
    gauge(out, "old_snapshots", help, stats.old_snapshot_count as u64)?;
    gauge(out, "snapshots", "References of readers to snapshots", stats.snapshot_count as u64)
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
