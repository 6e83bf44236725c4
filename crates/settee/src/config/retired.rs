//! The names of former settings: each is refused with its present name, or with the value that is fixed now.

use std::ffi::OsStr;

use settee_doc::{DatabasesOptions, LogOptions};
use settee_http::Limits;
use settee_io::{ThreadOptions, UringOptions};
use settee_store::StoreOptions;

use super::constants;

/// Table of the settings file that has no settings any more.
pub(super) const TABLE: &str = "log";

/// What became of a setting.
pub(super) enum Fate {
    /// The present name.
    Renamed(&'static str),
    /// The name of a constant.
    Constant(&'static str),
    /// The default of a field that is no setting. `key` of `_node/_local/_config` changes it, if any.
    Field { name: &'static str, value: fn() -> u64, meaning: &'static str, key: Option<&'static str> },
}

use Fate::{Constant, Renamed};

/// A field that is always the default.
macro_rules! fixed {
    ($options:expr, $field:ident, $meaning:literal) => {
        fixed!($options, $field, $meaning, None)
    };
    ($options:expr, $field:ident, $meaning:literal, $key:expr) => {
        Fate::Field {
            name: stringify!($field),
            value: || $options.$field as u64,
            meaning: $meaning,
            key: $key,
        }
    };
}

/// A field that only a key of `_node/_local/_config` changes.
macro_rules! over_http {
    ($options:expr, $field:ident, $key:literal, $meaning:literal) => {
        fixed!($options, $field, $meaning, Some($key))
    };
}

/// The former settings.
pub(super) const RETIRED: &[(&str, Fate)] = &[
    ("max_connections", Renamed("connections_max")),
    ("max_connections_per_address", Renamed("connections_per_address_max")),
    ("max_requests_in_flight", Renamed("requests_in_flight_max")),
    ("max_document_size", Renamed("document_bytes_max")),
    ("max_attachment_size", Renamed("attachment_bytes_max")),
    ("max_request_bytes", Renamed("request_bytes_max")),
    ("answer_bytes_in_flight_max", Renamed("response_bytes_in_flight_max")),
    ("compress_answers", Renamed("compress_responses")),
    (
        "max_dbs_info_names",
        over_http!(
            Limits::default(),
            dbs_info_names_max,
            "chttpd/max_db_number_for_dbs_info_req",
            "Names in a POST /_dbs_info."
        ),
    ),
    (
        "max_uuids",
        over_http!(Limits::default(), uuids_max, "uuids/max_count", "Identifiers in a response of _uuids."),
    ),
    ("max_streams", Constant("STREAMS_MAX")),
    ("max_feed_doc_ids", Constant("DOC_IDS_MAX")),
    ("snapshot_age_s_max", Constant("SNAPSHOT_AGE_S_MAX")),
    ("group_bytes_max", Constant("GROUP_BYTES_MAX")),
    ("group_writes_max", Constant("GROUP_BATCHES_MAX")),
    ("max_head_bytes", fixed!(Limits::default(), head_bytes_max, "Bytes of a request's head.")),
    ("max_headers", fixed!(Limits::default(), headers_max, "Headers of a request.")),
    (
        "max_discard_bytes",
        fixed!(
            Limits::default(),
            discard_bytes_max,
            "Bytes of a refused body that are read before the connection is closed."
        ),
    ),
    (
        "body_bytes_per_second_min",
        fixed!(Limits::default(), body_bytes_per_second_min, "Average rate of a body after body_timeout_ms."),
    ),
    (
        "stream_chunk_bytes",
        fixed!(Limits::default(), stream_chunk_bytes, "Size of a chunk of a streamed response."),
    ),
    (
        "stream_chunks",
        fixed!(
            Limits::default(),
            stream_chunks,
            "Chunks of a streamed response that are buffered for a slow client."
        ),
    ),
    (
        "database_idle_s",
        fixed!(
            DatabasesOptions::default(),
            database_idle_s,
            "Seconds after which an idle database is closed."
        ),
    ),
    (
        "frozen_layers_max",
        fixed!(
            StoreOptions::DEFAULT,
            immutable_memtables_max,
            "Memtables of a database that wait for a checkpoint."
        ),
    ),
    (
        "checkpoint_share",
        fixed!(
            StoreOptions::DEFAULT,
            checkpoint_divisor,
            "A checkpoint begins when 1/N of the entries are new, or of the bytes garbage."
        ),
    ),
    (
        "checkpoint_entries_min",
        fixed!(
            StoreOptions::DEFAULT,
            checkpoint_entries_min,
            "Smallest number of new index entries for which a checkpoint begins."
        ),
    ),
    (
        "checkpoint_entries_max",
        fixed!(
            StoreOptions::DEFAULT,
            checkpoint_entries_max,
            "New index entries at which a checkpoint begins in any case."
        ),
    ),
    (
        "checkpoint_garbage_min",
        fixed!(
            StoreOptions::DEFAULT,
            checkpoint_garbage_min,
            "Smallest number of garbage bytes for which a checkpoint begins."
        ),
    ),
    (
        "checkpoint_bytes_max",
        fixed!(
            StoreOptions::DEFAULT,
            checkpoint_bytes_max,
            "New bytes at which a checkpoint begins in any case."
        ),
    ),
    (
        "group_delay_us_max",
        fixed!(
            LogOptions::DEFAULT,
            group_delay_us_max,
            "Microseconds that a sync waits at most for writers that could share it."
        ),
    ),
    (
        "accepted_age_ms_max",
        fixed!(
            LogOptions::DEFAULT,
            accepted_age_ms_max,
            "Milliseconds within which accepted bytes are written."
        ),
    ),
    (
        "written_age_ms_max",
        fixed!(
            LogOptions::DEFAULT,
            written_age_ms_max,
            "Milliseconds within which written bytes are synced."
        ),
    ),
    ("segment_bytes_min", fixed!(LogOptions::DEFAULT, segment_bytes_min, "Smallest capacity of a segment.")),
    ("segment_bytes_max", fixed!(LogOptions::DEFAULT, segment_bytes_max, "Largest capacity of a segment.")),
    (
        "buffer_bytes_min",
        fixed!(LogOptions::DEFAULT, buffer_bytes_min, "First buffer of a log after an idle period."),
    ),
    (
        "buffer_bytes_max",
        fixed!(LogOptions::DEFAULT, buffer_bytes_max, "Largest buffer of a log, and so the largest write."),
    ),
    ("writes_in_flight_max", fixed!(LogOptions::DEFAULT, writes_in_flight_max, "Writes in flight of a log.")),
    (
        "bypass_bytes_min",
        fixed!(
            LogOptions::DEFAULT,
            bypass_bytes_min,
            "Bytes from which a document is written without being copied."
        ),
    ),
    (
        "spare_percent_max",
        fixed!(
            LogOptions::DEFAULT,
            recycled_percent_max,
            "Largest file, in percent of the log, that becomes the next segment."
        ),
    ),
    (
        "io_write_threads",
        fixed!(ThreadOptions::default(), write_thread_count, "Threads of the I/O engine for writes."),
    ),
    (
        "io_sync_threads",
        fixed!(
            ThreadOptions::default(),
            sync_thread_count,
            "Threads of the I/O engine for syncs, and so concurrent syncs."
        ),
    ),
    (
        "io_queue_max",
        fixed!(
            ThreadOptions::default(),
            queue_count_max,
            "Operations in each queue of the I/O engine; past it callers run theirs."
        ),
    ),
    ("io_ring_entries", fixed!(UringOptions::default(), entry_count, "Entries of the io_uring ring.")),
];

/// Returns why a name isn't a key of the settings file any more, and what to do.
pub(super) fn message(name: &str) -> Option<String> {
    explain(name, |name| format!("`{name}`"))
}

/// Checks that no flag is a former setting. Everything after `--` isn't a flag.
///
/// # Errors
/// The first such flag, with its present name or value.
pub(crate) fn check_flags<T: AsRef<OsStr>>(arguments: impl Iterator<Item = T>) -> Result<(), String> {
    for argument in arguments {
        let Some(flag) = argument.as_ref().to_str().and_then(|text| text.strip_prefix("--")) else {
            continue;
        };
        if flag.is_empty() {
            break;
        }
        let name = flag.split('=').next().unwrap_or_default().replace('-', "_");
        if let Some(message) = explain(&name, |name| format!("--{}", name.replace('_', "-"))) {
            return Err(message);
        }
    }
    Ok(())
}

/// Returns why the variable of this name isn't read any more, and what to do.
pub(crate) fn variable_message(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("SETTEE_")?.to_lowercase();
    explain(&name, |name| format!("SETTEE_{}", name.to_uppercase()))
}

/// Explains what became of a former setting; `shown` formats a name.
fn explain(name: &str, shown: impl Fn(&str) -> String) -> Option<String> {
    let (_, fate) = RETIRED.iter().find(|(retired, _)| *retired == name)?;
    let name = shown(name);
    let fixed = |value: u64| format!("{name} isn't a setting any more: the value is always {value}");
    Some(match fate {
        Renamed(present) => format!("{name} is {} now", shown(present)),
        Constant(constant) => fixed(constants::value(constant)),
        Fate::Field { value, key: None, .. } => fixed(value()),
        Fate::Field { value, key: Some(key), .. } => format!(
            "{name} isn't a setting any more: the value is {} unless PUT /_node/_local/_config/{key} sets it",
            value()
        ),
    })
}
