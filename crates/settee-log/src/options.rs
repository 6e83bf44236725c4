//! The options of a log, and their limits.

use settee_io::BufferPool;

use crate::error::InvalidLimit;
use crate::failpoints::Failpoint;
use crate::format::{
    BATCH_SIZE_MAX, FRAME_HEADER_SIZE, RECORD_HEADER_SIZE, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_SIZE,
};

/// Bytes at which a group of batches waits no longer: writing them takes about as long as the sync, so that
/// sharing it saves little more.
pub(crate) const GROUP_BYTES_MAX: usize = 4 << 20;

/// Number of batches at which a group waits no longer: each one's share of the sync is negligible.
pub(crate) const GROUP_BATCHES_MAX: usize = 4096;

/// Options of a log. Of these only `direct` is a setting of the server: the other defaults were found by
/// measurement, and tests change them to reach limits sooner.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// Largest batch in bytes; at most [`BATCH_SIZE_MAX`]. Default: that.
    pub batch_bytes_max: usize,
    /// Smallest capacity of a segment in bytes, limited by `segment_bytes_max`. The log sizes a new segment
    /// at about a sixteenth of its live bytes, and so that it holds eight batches like its first one if the
    /// log is at least half as large as those. Default: 120 KiB.
    pub segment_bytes_min: u32,
    /// Largest capacity of a segment in bytes: at least a header and two batches of `batch_bytes_max`, at
    /// most [`SEGMENT_BYTES_LIMIT`]. Default: 64 MiB.
    pub segment_bytes_max: u32,
    /// Size in bytes of the first buffer after an idle period. Buffers come from the environment's pool.
    /// Default: 64 KiB.
    pub buffer_bytes_min: usize,
    /// Largest buffer in bytes, except for batches that are larger. One write writes at most one buffer.
    /// Default: 1 MiB.
    pub buffer_bytes_max: usize,
    /// Largest number of writes in flight at once. Default: 4.
    pub writes_in_flight_max: usize,
    /// Values of at least this many bytes are written without being copied; not in direct mode, where memory
    /// must be aligned. Default: 256 KiB.
    pub bypass_bytes_min: usize,
    /// Whether segments are written with direct I/O. Default: false.
    pub direct: bool,
    /// Longest time in microseconds that a group waits for callers that have just committed and may commit
    /// again; at most half of the measured sync time. A single committer never waits. Default: 500.
    pub group_delay_us_max: u64,
    /// Accepted bytes are written within this many milliseconds, even if no caller waits for them. Default:
    /// 50.
    pub accepted_age_ms_max: u64,
    /// Written bytes are synced within this many milliseconds, even if no caller waits for them. Default:
    /// 1000.
    pub written_age_ms_max: u64,
    /// A truncated segment's file is recycled for the next segment if it is at most this percentage of the
    /// log's size. Default: 5.
    pub recycled_percent_max: u64,
    /// The fault to inject, for tests of the tests.
    #[cfg(feature = "failpoints")]
    pub failpoint: Option<Failpoint>,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions::DEFAULT
    }
}

impl LogOptions {
    /// The default options.
    pub const DEFAULT: LogOptions = LogOptions {
        batch_bytes_max: BATCH_SIZE_MAX,
        segment_bytes_min: 120 << 10,
        segment_bytes_max: 64 << 20,
        buffer_bytes_min: 64 << 10,
        buffer_bytes_max: 1 << 20,
        writes_in_flight_max: 4,
        bypass_bytes_min: 256 << 10,
        direct: false,
        group_delay_us_max: 500,
        accepted_age_ms_max: 50,
        written_age_ms_max: 1_000,
        recycled_percent_max: 5,
        #[cfg(feature = "failpoints")]
        failpoint: None,
    };

    /// Checks that a log can be opened with these options and a buffer pool of `buffer_pool_bytes_max` bytes.
    ///
    /// # Errors
    /// The first option found that contradicts another one or exceeds a limit of the format.
    pub fn check(&self, buffer_pool_bytes_max: usize) -> Result<(), InvalidLimit> {
        let require = |holds: bool, name, value: usize, rule: &dyn Fn() -> String| match holds {
            true => Ok(()),
            false => Err(InvalidLimit { name, value: value as u64, rule: rule() }),
        };
        let at_least = |least: usize, of: &str| format!("it must be at least {least}, {of}");
        let at_most = |most: usize, of: &str| format!("it must be at most {most}, {of}");
        let batch = self.batch_bytes_max;
        require(batch <= BATCH_SIZE_MAX, "batch_bytes_max", batch, &|| {
            at_most(BATCH_SIZE_MAX, "the largest batch of the format")
        })?;
        let (segment, least) = (self.segment_bytes_max as usize, SEGMENT_HEADER_SIZE + 2 * batch);
        let frame = FRAME_HEADER_SIZE + RECORD_HEADER_SIZE;
        require(batch >= frame, "batch_bytes_max", batch, &|| at_least(frame, "an empty record"))?;
        require(segment >= least, "segment_bytes_max", segment, &|| {
            at_least(least, "a header and two of the largest batches")
        })?;
        require(self.segment_bytes_max <= SEGMENT_BYTES_LIMIT, "segment_bytes_max", segment, &|| {
            at_most(SEGMENT_BYTES_LIMIT as usize, "the largest segment of the format")
        })?;
        let (first, largest) = (self.buffer_bytes_min, self.buffer_bytes_max);
        require(first <= largest, "buffer_bytes_min", first, &|| at_most(largest, "`buffer_bytes_max`"))?;
        let in_flight = self.writes_in_flight_max;
        require(in_flight >= 1, "writes_in_flight_max", in_flight, &|| at_least(1, "or nothing is written"))?;
        let percent = usize::try_from(self.recycled_percent_max).unwrap_or(usize::MAX);
        require(percent <= 100, "recycled_percent_max", percent, &|| at_most(100, "the whole log"))?;
        let buffer = BufferPool::buffer_size(largest.max(batch + SEGMENT_HEADER_SIZE)).unwrap_or(usize::MAX);
        require(buffer <= buffer_pool_bytes_max, "buffer_pool_bytes_max", buffer_pool_bytes_max, &|| {
            at_least(buffer, "the largest write buffer, for the largest batch")
        })
    }

    /// Whether the failpoint is enabled.
    #[cfg(feature = "failpoints")]
    pub(crate) fn is_enabled(&self, failpoint: Failpoint) -> bool {
        self.failpoint == Some(failpoint)
    }

    /// Whether the failpoint is enabled: never without the feature `failpoints`.
    #[cfg(not(feature = "failpoints"))]
    pub(crate) const fn is_enabled(&self, _: Failpoint) -> bool {
        false
    }
}
