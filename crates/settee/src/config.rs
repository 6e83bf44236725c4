//! What `settee serve` is told: by flags, by `SETTEE_*` variables, by a file, or not at all.
//!
//! One struct describes the settings to all three. The first of flag, variable, file and
//! default that says something counts, setting by setting. An unknown key in the file is an
//! error that names it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use settee_doc::{DatabasesOptions, LogOptions, StoreLimits};
use settee_http::{Admin, Limits};
use settee_io::{EngineKind, EngineOptions, PoolOptions, ThreadOptions, UringOptions};

/// Largest configuration or administrator's file in bytes.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// No size is larger, in bytes: 16 TiB.
const BYTES_MAX: u64 = 16 << 40;

/// No time is longer, in seconds: ten years.
const SECONDS_MAX: u64 = 10 * 366 * 24 * 3600;

/// No number of things is larger.
const COUNT_MAX: u64 = 1 << 40;

/// Most threads of each kind for operations on files.
const IO_THREADS_MAX: usize = 1024;

/// Most entries of the ring, as the engine takes them.
const IO_RING_ENTRIES_MAX: u32 = 4096;

/// The settings of a server; what isn't given is None.
#[derive(clap::Args, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Folder that holds the databases [default: ./settee-data]
    #[arg(long, env = "SETTEE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:5984]
    #[arg(long, env = "SETTEE_LISTEN", value_name = "HOST:PORT")]
    listen: Option<String>,

    /// The administrator. Arguments show in `ps`: a file or the variable are safer
    #[arg(long, env = "SETTEE_ADMIN", value_name = "NAME:PASSWORD", hide_env_values = true)]
    admin: Option<String>,

    /// File that holds NAME:PASSWORD
    #[arg(long, env = "SETTEE_ADMIN_FILE", value_name = "FILE", conflicts_with = "admin")]
    admin_file: Option<PathBuf>,

    /// How the log is written to stderr [default: text]
    #[arg(long, env = "SETTEE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// What runs the operations on files [default: auto]
    #[arg(long, env = "SETTEE_IO_ENGINE", value_name = "ENGINE")]
    io_engine: Option<IoEngine>,

    /// Whether the databases' files go past the page cache (O_DIRECT), where their file system
    /// lets them [default: false]
    #[arg(long, env = "SETTEE_DIRECT_IO", value_name = "BOOL")]
    direct_io: Option<bool>,

    #[command(flatten)]
    #[serde(default)]
    limits: LimitSettings,

    #[command(flatten)]
    #[serde(default)]
    databases: DatabasesSettings,

    #[command(flatten)]
    #[serde(default)]
    store: StoreSettings,

    #[command(flatten)]
    #[serde(default)]
    log: LogSettings,

    #[command(flatten)]
    #[serde(default)]
    io: IoSettings,
}

/// What runs the operations on files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
pub(crate) enum IoEngine {
    /// io_uring where the machine has it, else threads.
    #[serde(rename = "auto")]
    Auto,
    /// io_uring, or an error at start.
    #[serde(rename = "io_uring")]
    #[value(name = "io_uring")]
    Uring,
    /// A pool of threads.
    #[serde(rename = "threads")]
    Threads,
}

impl From<IoEngine> for EngineKind {
    fn from(engine: IoEngine) -> EngineKind {
        match engine {
            IoEngine::Auto => EngineKind::Auto,
            IoEngine::Uring => EngineKind::Uring,
            IoEngine::Threads => EngineKind::Threads,
        }
    }
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// A JSON object a line.
    Json,
}

/// Describes a group of limits to flags, variables and the file alike: each limit's name, the
/// least that it may be, and the variable.
macro_rules! limit_settings {
    ($settings:ident, $limits:ident, $heading:literal;
     $($(#[doc = $doc:literal])* $name:ident: $type:ty, $least:literal, $variable:literal;)*) => {
        #[doc = concat!("The limits of [`", stringify!($limits), "`]; what isn't given is None.")]
        #[derive(clap::Args, Deserialize, Default)]
        #[serde(deny_unknown_fields)]
        #[command(next_help_heading = $heading)]
        struct $settings {
            $(
                $(#[doc = $doc])*
                #[arg(
                    long, env = $variable, value_name = "N",
                    help = with_default(concat!($($doc),*), $limits::default().$name)
                )]
                $name: Option<$type>,
            )*
        }

        impl Describe for $limits {
            fn describe(&self, out: &mut String) {
                $(
                    let separator = if out.is_empty() { "" } else { " " };
                    write!(out, "{separator}{}={}", stringify!($name), self.$name)
                        .expect("a String takes all");
                )*
            }
        }

        impl $settings {
            /// The limits of the first source that has each, checked one by one.
            fn resolve(self, file: $settings) -> Result<$limits, String> {
                let mut limits = $limits::default();
                $(
                    if let Some(value) = self.$name.or(file.$name) {
                        at_least(stringify!($name), value, $least)?;
                        at_most(stringify!($name), value as u64)?;
                        limits.$name = value;
                    }
                )*
                Ok(limits)
            }
        }
    };
}

limit_settings! {
    LimitSettings, Limits, "Limits";
    /// Connections served at once
    max_connections: usize, 1, "SETTEE_MAX_CONNECTIONS";
    /// Requests at work at once, whose answers haven't begun; past it: 503
    max_requests_in_flight: usize, 1, "SETTEE_MAX_REQUESTS_IN_FLIGHT";
    /// Requests that an HTTP/2 connection may have under way at once
    max_streams: u32, 1, "SETTEE_MAX_STREAMS";
    /// Bytes of a request's head
    max_head_bytes: usize, 1, "SETTEE_MAX_HEAD_BYTES";
    /// Headers of a request
    max_headers: usize, 1, "SETTEE_MAX_HEADERS";
    /// Bytes of a request's body
    max_request_bytes: u64, 1, "SETTEE_MAX_REQUEST_BYTES";
    /// Bytes of all requests' bodies that are held at once; at least max-request-bytes
    request_bytes_in_flight_max: u64, 1, "SETTEE_REQUEST_BYTES_IN_FLIGHT_MAX";
    /// Bytes of a document
    max_document_size: usize, 1, "SETTEE_MAX_DOCUMENT_SIZE";
    /// Bytes of an attachment
    max_attachment_size: u64, 1, "SETTEE_MAX_ATTACHMENT_SIZE";
    /// Bytes of a refused body that are read before the connection is closed
    max_discard_bytes: u64, 1, "SETTEE_MAX_DISCARD_BYTES";
    /// Milliseconds to send a request's head, idle time before it included
    head_timeout_ms: u64, 1, "SETTEE_HEAD_TIMEOUT_MS";
    /// Milliseconds for which a client may pause within a body
    body_timeout_ms: u64, 1, "SETTEE_BODY_TIMEOUT_MS";
    /// Whether answers are compressed for clients that take gzip
    compress_answers: bool, false, "SETTEE_COMPRESS_ANSWERS";
    /// Names that POST /_dbs_info takes
    max_dbs_info_names: usize, 1, "SETTEE_MAX_DBS_INFO_NAMES";
    /// Identifiers that _uuids gives at once
    max_uuids: u64, 1, "SETTEE_MAX_UUIDS";
    /// Ids that a feed filtered by _doc_ids takes
    max_feed_doc_ids: usize, 1, "SETTEE_MAX_FEED_DOC_IDS";
    /// Bytes of a chunk of a streamed answer
    stream_chunk_bytes: usize, 1, "SETTEE_STREAM_CHUNK_BYTES";
    /// Chunks of a streamed answer that wait for a slow client
    stream_chunks: usize, 1, "SETTEE_STREAM_CHUNKS";
    /// Milliseconds for which a client may take nothing of an answer
    send_timeout_ms: u64, 1, "SETTEE_SEND_TIMEOUT_MS";
    /// Milliseconds of the longest silence in a changes feed
    changes_timeout_ms: u64, 1, "SETTEE_CHANGES_TIMEOUT_MS";
    /// Seconds for which a session's cookie is good
    session_timeout_s: u64, 1, "SETTEE_SESSION_TIMEOUT_S";
    /// Milliseconds that a stopping server waits for the requests in flight
    stop_timeout_ms: u64, 1, "SETTEE_STOP_TIMEOUT_MS";
}

limit_settings! {
    DatabasesSettings, DatabasesOptions, "Many databases";
    /// Databases open at once; past it the least recently used that is idle is closed. At most a quarter
    /// of the descriptors that the system grants
    open_databases_max: usize, 1, "SETTEE_OPEN_DATABASES_MAX";
    /// Seconds after which a database that nobody uses is closed
    database_idle_s: u64, 1, "SETTEE_DATABASE_IDLE_S";
}

limit_settings! {
    StoreSettings, StoreLimits, "Databases' indexes, checkpoints and compaction";
    /// Bytes of memory for index entries of recent changes, of all databases together: from half of it
    /// on they are taken to disk, and with all of it taken writers wait for that
    index_memory_bytes_max: usize, 1048576, "SETTEE_INDEX_MEMORY_BYTES_MAX";
    /// Bytes of the cache of index nodes that are on disk
    index_cache_bytes_max: usize, 65536, "SETTEE_INDEX_CACHE_BYTES_MAX";
    /// Bytes of the cache of documents' bodies, with direct_io; otherwise the page cache has them
    value_cache_bytes_max: usize, 0, "SETTEE_VALUE_CACHE_BYTES_MAX";
    /// Parts of that memory that may wait for a checkpoint of one database
    frozen_layers_max: usize, 1, "SETTEE_FROZEN_LAYERS_MAX";
    /// A checkpoint begins when one in so many of a database's index entries is new, or of its bytes dead
    checkpoint_share: u64, 1, "SETTEE_CHECKPOINT_SHARE";
    /// New index entries without which no checkpoint begins for their number
    checkpoint_entries_min: u64, 1, "SETTEE_CHECKPOINT_ENTRIES_MIN";
    /// New index entries with which a checkpoint begins at the latest; at least checkpoint-entries-min
    checkpoint_entries_max: u64, 1, "SETTEE_CHECKPOINT_ENTRIES_MAX";
    /// Dead bytes without which no checkpoint begins for their number
    checkpoint_garbage_min: u64, 1, "SETTEE_CHECKPOINT_GARBAGE_MIN";
    /// New bytes with which a checkpoint begins at the latest
    checkpoint_bytes_max: u64, 1048576, "SETTEE_CHECKPOINT_BYTES_MAX";
    /// Hundredths of a database's files that may be garbage before some are rewritten; 100 at most
    garbage_percent_max: u64, 1, "SETTEE_GARBAGE_PERCENT_MAX";
    /// Bytes that compaction copies in a second
    compaction_bytes_per_second: u64, 1048576, "SETTEE_COMPACTION_BYTES_PER_SECOND";
    /// Seconds from which on a snapshot that keeps replaced files is counted in settee_old_snapshots
    snapshot_age_s_max: u64, 1, "SETTEE_SNAPSHOT_AGE_S_MAX";
}

limit_settings! {
    LogSettings, LogOptions, "Databases' logs";
    /// Microseconds that a sync waits at most for those who may come again; a lone writer never waits
    group_delay_us_max: u64, 0, "SETTEE_GROUP_DELAY_US_MAX";
    /// Bytes with which a group of writes waits no longer for its sync
    group_bytes_max: usize, 1, "SETTEE_GROUP_BYTES_MAX";
    /// Writes with which a group waits no longer for its sync
    group_writes_max: usize, 1, "SETTEE_GROUP_WRITES_MAX";
    /// Milliseconds within which what is accepted is written, though nobody waits for it
    accepted_age_ms_max: u64, 0, "SETTEE_ACCEPTED_AGE_MS_MAX";
    /// Milliseconds within which what is written is synced, though nobody waits for it
    written_age_ms_max: u64, 0, "SETTEE_WRITTEN_AGE_MS_MAX";
    /// Bytes of a small database's files
    segment_bytes_min: u32, 1, "SETTEE_SEGMENT_BYTES_MIN";
    /// Bytes of a large database's files
    segment_bytes_max: u32, 1, "SETTEE_SEGMENT_BYTES_MAX";
    /// Bytes of a database's first buffer after a pause
    buffer_bytes_min: usize, 1, "SETTEE_BUFFER_BYTES_MIN";
    /// Bytes of a busy database's buffers, each of which is a write
    buffer_bytes_max: usize, 1, "SETTEE_BUFFER_BYTES_MAX";
    /// Writes that a database has under way at once
    writes_in_flight_max: usize, 1, "SETTEE_WRITES_IN_FLIGHT_MAX";
    /// Bytes from which on a document is written from where it is, without a copy
    bypass_bytes_min: usize, 1, "SETTEE_BYPASS_BYTES_MIN";
    /// Hundredths of a database's files that may be kept as spares
    spare_percent_max: u64, 0, "SETTEE_SPARE_PERCENT_MAX";
}

limit_settings! {
    IoSettings, IoLimits, "Files and memory";
    /// Bytes of all databases' buffers together
    buffer_pool_bytes_max: usize, 1, "SETTEE_BUFFER_POOL_BYTES_MAX";
    /// Threads for reads of files that the page cache can't serve, and for what else changes nothing
    io_threads: usize, 1, "SETTEE_IO_THREADS";
    /// Threads for writes to files, and for what else may wait for writes; not for syncs
    io_write_threads: usize, 1, "SETTEE_IO_WRITE_THREADS";
    /// Threads for syncs, and so how many are under way at once
    io_sync_threads: usize, 1, "SETTEE_IO_SYNC_THREADS";
    /// Operations that wait in each of the engine's queues; past it their callers run them
    io_queue_max: usize, 1, "SETTEE_IO_QUEUE_MAX";
    /// Entries of the ring, where io_uring is used: a power of two
    io_ring_entries: u32, 2, "SETTEE_IO_RING_ENTRIES";
}

/// Limits that can be shown.
trait Describe {
    /// Appends `name=value` of each.
    fn describe(&self, out: &mut String);
}

fn at_least<T: PartialOrd + std::fmt::Display>(name: &str, value: T, least: T) -> Result<(), String> {
    match value < least {
        true => Err(format!("the limit `{name}` must be at least {least}")),
        false => Ok(()),
    }
}

/// What no setting means in earnest, by the unit that its name tells: a typing error.
fn at_most(name: &str, value: u64) -> Result<(), String> {
    let has = |unit: &str| name.split('_').any(|word| word == unit);
    let most = match () {
        () if has("bytes") || has("size") || has("garbage") && !has("percent") => BYTES_MAX,
        () if has("us") => SECONDS_MAX * 1_000_000,
        () if has("ms") => SECONDS_MAX * 1000,
        () if has("s") => SECONDS_MAX,
        () if has("percent") => 100,
        () => COUNT_MAX,
    };
    match value > most {
        true => Err(format!("the limit `{name}` is {value}: it must be at most {most}")),
        false => Ok(()),
    }
}

/// What a database's store takes.
fn check_store(store: StoreLimits) -> Result<StoreLimits, String> {
    let (least, most) = (store.checkpoint_entries_min, store.checkpoint_entries_max);
    if least > most {
        return Err(format!(
            "the limit `checkpoint_entries_min` is {least}: it must be at most {most}, `checkpoint_entries_max`"
        ));
    }
    let (garbage, bytes) = (store.checkpoint_garbage_min, store.checkpoint_bytes_max);
    if garbage > bytes {
        return Err(format!(
            "the limit `checkpoint_garbage_min` is {garbage}: it must be at most {bytes}, `checkpoint_bytes_max`"
        ));
    }
    Ok(store)
}

/// A setting's help, with what holds where it isn't given.
fn with_default(help: &str, default: impl std::fmt::Display) -> String {
    format!("{} [default: {default}]", help.trim_start())
}

/// The limits of what runs operations on files, and of the memory that writes wait in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IoLimits {
    buffer_pool_bytes_max: usize,
    io_threads: usize,
    io_write_threads: usize,
    io_sync_threads: usize,
    io_queue_max: usize,
    io_ring_entries: u32,
}

impl Default for IoLimits {
    fn default() -> IoLimits {
        let threads = ThreadOptions::default();
        IoLimits {
            buffer_pool_bytes_max: PoolOptions::default().bytes_max,
            io_threads: threads.thread_count,
            io_write_threads: threads.write_thread_count,
            io_sync_threads: threads.sync_thread_count,
            io_queue_max: threads.queue_count_max,
            io_ring_entries: UringOptions::default().entry_count,
        }
    }
}

impl IoLimits {
    /// How the engine is to run.
    pub(crate) fn engine(&self, kind: EngineKind) -> EngineOptions {
        let threads = ThreadOptions {
            thread_count: self.io_threads,
            write_thread_count: self.io_write_threads,
            sync_thread_count: self.io_sync_threads,
            queue_count_max: self.io_queue_max,
        };
        let uring = UringOptions {
            entry_count: self.io_ring_entries,
            queue_count_max: self.io_queue_max,
            ..UringOptions::default()
        };
        EngineOptions { kind, threads, uring }
    }

    /// How large the pool of buffers may grow.
    pub(crate) fn pool(&self) -> PoolOptions {
        PoolOptions { bytes_max: self.buffer_pool_bytes_max }
    }
}

/// The configuration, every setting decided.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) data_dir: PathBuf,
    pub(crate) listen: String,
    pub(crate) admin: Option<Admin>,
    pub(crate) log_format: LogFormat,
    pub(crate) io_engine: EngineKind,
    pub(crate) limits: Limits,
    /// With the limits of each database's log.
    pub(crate) databases: DatabasesOptions,
    pub(crate) io: IoLimits,
}

impl Config {
    /// Decides every setting; `given` holds what flags and variables say.
    ///
    /// # Errors
    /// In words for the one who started the server; passwords aren't shown.
    pub(crate) fn resolve(given: Settings, file: Option<&Path>) -> Result<Config, String> {
        let file = match file {
            None => Settings::default(),
            Some(path) => {
                let text = read(path)?;
                parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        // Where a nearer source names the administrator either way, a farther one is silent.
        let (admin, admin_file) = match (given.admin, given.admin_file) {
            (None, None) => (file.admin, file.admin_file),
            nearer => nearer,
        };
        let admin = match (admin, admin_file) {
            (Some(_), Some(_)) => return Err("give `admin` or `admin_file`, not both".to_owned()),
            (Some(text), None) => Some(Admin::parse(&text)?),
            (None, Some(path)) => {
                let text = read(&path)?;
                let admin = Admin::parse(text.trim_end_matches(['\r', '\n']));
                Some(admin.map_err(|error| format!("{}: {error}", path.display()))?)
            }
            (None, None) => None,
        };
        let io = check_io(given.io.resolve(file.io)?)?;
        let log = given.log.resolve(file.log)?;
        let log = LogOptions { direct: given.direct_io.or(file.direct_io).unwrap_or(log.direct), ..log };
        Ok(Config {
            data_dir: given.data_dir.or(file.data_dir).unwrap_or_else(|| "./settee-data".into()),
            listen: given.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:5984".to_owned()),
            admin,
            log_format: given.log_format.or(file.log_format).unwrap_or(LogFormat::Text),
            io_engine: given.io_engine.or(file.io_engine).unwrap_or(IoEngine::Auto).into(),
            limits: check_limits(given.limits.resolve(file.limits)?)?,
            databases: DatabasesOptions {
                log: check_log(log, io.buffer_pool_bytes_max)?,
                store: check_store(given.store.resolve(file.store)?)?,
                ..given.databases.resolve(file.databases)?
            },
            io,
        })
    }

    /// Every limit in force, as `name=value`.
    pub(crate) fn limits_text(&self) -> String {
        let mut text = String::new();
        self.limits.describe(&mut text);
        self.databases.describe(&mut text);
        self.databases.store.describe(&mut text);
        self.databases.log.describe(&mut text);
        self.io.describe(&mut text);
        text
    }
}

/// What limits must be beside each other and beside the engine's.
fn check_limits(limits: Limits) -> Result<Limits, String> {
    let (document, most) = (limits.max_document_size, settee_doc::DOCUMENT_BYTES_LIMIT);
    if document > most {
        return Err(format!(
            "the limit `max_document_size` is {document}: at most {most} bytes can be stored"
        ));
    }
    let (all, one) = (limits.request_bytes_in_flight_max, limits.max_request_bytes);
    if all < one {
        return Err(format!(
            "the limit `request_bytes_in_flight_max` is {all}: it must hold `max_request_bytes`, {one}"
        ));
    }
    if one < document as u64 {
        return Err(format!(
            "the limit `max_request_bytes` is {one}: it must hold the largest document, `max_document_size`, {document}"
        ));
    }
    Ok(limits)
}

/// What the log's limits must be beside each other and beside the pool's.
fn check_log(log: LogOptions, buffer_pool_bytes_max: usize) -> Result<LogOptions, String> {
    log.check(buffer_pool_bytes_max).map_err(|error| format!("the limit {error}"))?;
    let (least, most) = (log.segment_bytes_min, log.segment_bytes_max);
    match least > most {
        true => Err(format!(
            "the limit `segment_bytes_min` is {least}: it must be at most {most}, `segment_bytes_max`"
        )),
        false => Ok(log),
    }
}

/// What the engine takes.
fn check_io(io: IoLimits) -> Result<IoLimits, String> {
    let threads = [
        ("io_threads", io.io_threads),
        ("io_write_threads", io.io_write_threads),
        ("io_sync_threads", io.io_sync_threads),
    ];
    for (name, count) in threads {
        if count > IO_THREADS_MAX {
            return Err(format!("the limit `{name}` is {count}: it must be at most {IO_THREADS_MAX}"));
        }
    }
    let entries = io.io_ring_entries;
    if !entries.is_power_of_two() || entries > IO_RING_ENTRIES_MAX {
        return Err(format!(
            "the limit `io_ring_entries` is {entries}: it must be a power of two, at most {IO_RING_ENTRIES_MAX}"
        ));
    }
    Ok(io)
}

/// Reads the settings of a file. Of an error the message alone is kept: what TOML would show
/// beside it is a line of the file, which may hold the password.
fn parse_file(text: &str) -> Result<Settings, String> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", error.message())
    })
}

fn read(path: &Path) -> Result<String, String> {
    let problem = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let size = std::fs::metadata(path).map_err(|error| problem(&error))?.len();
    if size > FILE_SIZE_MAX {
        return Err(problem(&format!("it is larger than {FILE_SIZE_MAX} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| problem(&error))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    fn flags(flags: &[&str]) -> Settings {
        let line = Line::try_parse_from(std::iter::once("settee").chain(flags.iter().copied()));
        line.unwrap_or_else(|error| panic!("{error}")).settings
    }

    fn resolve(given: Settings, file: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settee.toml");
        std::fs::write(&path, file).unwrap();
        Config::resolve(given, Some(&path))
    }

    #[test]
    fn without_any_word_the_defaults_hold() {
        let config = Config::resolve(Settings::default(), None).unwrap();
        assert_eq!(config.listen, "127.0.0.1:5984");
        assert_eq!(config.data_dir, Path::new("./settee-data"));
        assert!(config.admin.is_none());
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let file =
            "listen = \"127.0.0.1:1\"\ndata_dir = \"from-file\"\n[limits]\nmax_uuids = 5\nmax_headers = 50";
        let config = resolve(flags(&["--listen", "127.0.0.1:2", "--max-uuids", "6"]), file).unwrap();
        assert_eq!(config.listen, "127.0.0.1:2");
        assert_eq!(config.data_dir, Path::new("from-file"));
        assert_eq!((config.limits.max_uuids, config.limits.max_headers), (6, 50));
        assert_eq!(config.limits.max_connections, Limits::default().max_connections);
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let error = resolve(Settings::default(), "listem = \"x\"").unwrap_err();
        assert!(error.contains("listem") && error.contains("line 1"), "{error}");
        let error = resolve(Settings::default(), "[limits]\n\nmax_fun = 1").unwrap_err();
        assert!(error.contains("max_fun") && error.contains("line 3"), "{error}");
    }

    #[test]
    fn an_error_in_the_file_does_not_show_the_password() {
        let error = resolve(Settings::default(), "admin = \"ann:hidden\" oops").unwrap_err();
        assert!(!error.contains("hidden"), "{error}");
        let error = resolve(Settings::default(), "admin = \"hidden\"").unwrap_err();
        assert!(!error.contains("hidden") && error.contains("NAME:PASSWORD"), "{error}");
    }

    #[test]
    fn the_administrator_may_come_from_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin");
        std::fs::write(&path, "ann:secret\n").unwrap();
        let given = flags(&["--admin-file", path.to_str().unwrap()]);
        let config = resolve(given, "admin = \"bob:x\"").unwrap();
        assert_eq!(config.admin.unwrap().name(), "ann");
    }

    #[test]
    fn a_document_size_that_can_not_be_stored_is_refused_with_the_largest() {
        let most = settee_doc::DOCUMENT_BYTES_LIMIT;
        let fits = resolve(flags(&["--max-document-size", &most.to_string()]), "").unwrap();
        assert_eq!(fits.limits.max_document_size, most);
        let file = format!("[limits]\nmax_document_size = {}", most + 1);
        let error = resolve(Settings::default(), &file).unwrap_err();
        assert!(error.contains("max_document_size") && error.contains(&most.to_string()), "{error}");
    }

    #[test]
    fn all_bodies_may_take_at_least_what_one_may() {
        let error = resolve(flags(&["--max-request-bytes", "2000000000"]), "").unwrap_err();
        assert!(error.contains("request_bytes_in_flight_max") && error.contains("2000000000"), "{error}");
        let both = ["--max-request-bytes", "2000000000", "--request-bytes-in-flight-max", "2000000000"];
        assert_eq!(resolve(flags(&both), "").unwrap().limits.max_request_bytes, 2_000_000_000);
    }

    #[test]
    fn the_logs_and_the_engines_limits_come_from_their_tables_and_flags() {
        let file = "direct_io = true\n[log]\ngroup_delay_us_max = 7\nwrites_in_flight_max = 4\n\
                    [io]\nio_threads = 3\nio_write_threads = 2\nbuffer_pool_bytes_max = 134217728";
        let config = resolve(flags(&["--group-delay-us-max", "0", "--io-ring-entries", "64"]), file).unwrap();
        assert!(config.databases.log.direct);
        assert_eq!(
            (config.databases.log.group_delay_us_max, config.databases.log.writes_in_flight_max),
            (0, 4)
        );
        assert_eq!(config.io.pool().bytes_max, 128 << 20);
        let engine = config.io.engine(EngineKind::Auto);
        assert_eq!((engine.threads.thread_count, engine.uring.entry_count), (3, 64));
        assert_eq!(engine.threads.write_thread_count, 2);
        assert_eq!(engine.threads.sync_thread_count, ThreadOptions::default().sync_thread_count);
        let buffered = resolve(flags(&["--direct-io", "false"]), file).unwrap();
        assert!(!buffered.databases.log.direct);
        assert!(!Config::resolve(Settings::default(), None).unwrap().databases.log.direct);
    }

    #[test]
    fn a_contradiction_among_the_logs_limits_names_the_setting() {
        let cases: &[(&str, &[&str])] = &[
            ("segment_bytes_max", &["--segment-bytes-max", "1000000"]),
            ("segment_bytes_max", &["--segment-bytes-max", "4294967295"]),
            ("segment_bytes_min", &["--segment-bytes-min", "100000000"]),
            ("buffer_bytes_min", &["--buffer-bytes-min", "2000000"]),
            ("buffer_pool_bytes_max", &["--buffer-pool-bytes-max", "1000000"]),
            ("buffer_bytes_max", &["--buffer-bytes-max", "18446744073709551615"]),
            ("buffer_pool_bytes_max", &["--buffer-bytes-max", "1099511627776"]),
            ("writes_in_flight_max", &["--writes-in-flight-max", "0"]),
            ("spare_percent_max", &["--spare-percent-max", "101"]),
            ("io_threads", &["--io-threads", "1000000000"]),
            ("io_write_threads", &["--io-write-threads", "1000000000"]),
            ("io_sync_threads", &["--io-sync-threads", "0"]),
            ("io_ring_entries", &["--io-ring-entries", "100"]),
            ("io_ring_entries", &["--io-ring-entries", "8192"]),
            ("checkpoint_entries_min", &["--checkpoint-entries-min", "3000000"]),
            ("checkpoint_entries_min", &["--checkpoint-entries-max", "1000"]),
            ("checkpoint_garbage_min", &["--checkpoint-garbage-min", "1000000000"]),
            ("garbage_percent_max", &["--garbage-percent-max", "101"]),
            ("garbage_percent_max", &["--garbage-percent-max", "0"]),
            ("compaction_bytes_per_second", &["--compaction-bytes-per-second", "1048575"]),
            ("compaction_bytes_per_second", &["--compaction-bytes-per-second", "18446744073709551615"]),
            ("checkpoint_share", &["--checkpoint-share", "18446744073709551615"]),
            ("index_memory_bytes_max", &["--index-memory-bytes-max", "18446744073709551615"]),
            ("snapshot_age_s_max", &["--snapshot-age-s-max", "18446744073709551615"]),
            ("head_timeout_ms", &["--head-timeout-ms", "18446744073709551615"]),
            ("written_age_ms_max", &["--written-age-ms-max", "18446744073709551615"]),
            ("max_connections", &["--max-connections", "18446744073709551615"]),
            ("max_request_bytes", &["--max-request-bytes", "18446744073709551615"]),
            ("open_databases_max", &["--open-databases-max", "18446744073709551615"]),
        ];
        for (name, given) in cases {
            let error = resolve(flags(given), "").unwrap_err();
            assert!(error.contains(&format!("`{name}`")), "{given:?}: {error}");
        }
    }

    #[test]
    fn zero_is_taken_where_it_means_something() {
        let given = ["--group-delay-us-max", "0", "--accepted-age-ms-max", "0", "--written-age-ms-max", "0"];
        let config = resolve(flags(&given), "[log]\nspare_percent_max = 0").unwrap();
        let LogOptions { group_delay_us_max, accepted_age_ms_max, spare_percent_max, .. } =
            config.databases.log;
        assert_eq!((group_delay_us_max, accepted_age_ms_max, spare_percent_max), (0, 0, 0));
        assert_eq!(config.databases.log.written_age_ms_max, 0);
    }

    #[test]
    fn the_help_shows_every_limit_with_its_default() {
        use clap::CommandFactory;
        let help = Line::command().render_long_help().to_string();
        for (flag, default) in [
            ("--group-delay-us-max", LogOptions::DEFAULT.group_delay_us_max.to_string()),
            ("--buffer-pool-bytes-max", PoolOptions::default().bytes_max.to_string()),
            ("--io-write-threads", ThreadOptions::default().write_thread_count.to_string()),
            ("--io-sync-threads", ThreadOptions::default().sync_thread_count.to_string()),
            ("--max-connections", Limits::default().max_connections.to_string()),
        ] {
            let (_, after) = help.split_once(&format!("{flag} <N>")).unwrap_or_else(|| panic!("{help}"));
            let shown = after.split_once("[default: ").unwrap().1.split_once(']').unwrap().0;
            assert_eq!(shown, default, "{flag}");
        }
        assert!(help.contains("Databases' logs:") && help.contains("Files and memory:"), "{help}");
    }

    /// The example file with every setting in force: what is commented out there begins right
    /// behind its `#`, and prose doesn't.
    fn example_in_force() -> String {
        let example = include_str!("../../../docs/settee.toml");
        let setting = |line: &'static str| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with([' ', '#']) => setting,
            _ => line,
        };
        example.lines().map(setting).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_example_file_holds_every_setting_at_its_default() {
        use clap::CommandFactory;
        let text = example_in_force();
        let table: toml::Table = toml::from_str(&text).unwrap();
        let names = |(name, value): (&String, &toml::Value)| match value {
            toml::Value::Table(table) => table.keys().cloned().collect(),
            _ => vec![name.clone()],
        };
        let shown: Vec<String> = table.iter().flat_map(names).collect();
        for argument in Line::command().get_arguments().map(|argument| argument.get_id().as_str()) {
            // Of these two only one may be given.
            let of_admin = argument == "admin" || argument == "help";
            assert!(of_admin || shown.iter().any(|name| name == argument), "{argument} is not there");
        }
        let settings = parse_file(&text).unwrap();
        assert!(settings.admin_file.is_some(), "how to set an administrator");
        let given = Settings { admin_file: None, ..settings };
        let (example, default) =
            (Config::resolve(given, None).unwrap(), Config::resolve(Settings::default(), None).unwrap());
        for (shown, default) in example.limits_text().split(' ').zip(default.limits_text().split(' ')) {
            assert_eq!(shown, default, "docs/settee.toml");
        }
        assert_eq!(format!("{example:?}"), format!("{default:?}"));
    }

    #[test]
    fn the_example_file_as_it_is_changes_nothing() {
        let example = resolve(Settings::default(), include_str!("../../../docs/settee.toml")).unwrap();
        let default = Config::resolve(Settings::default(), None).unwrap();
        assert_eq!(format!("{example:?}"), format!("{default:?}"));
    }

    #[test]
    fn every_setting_has_a_flag_and_a_variable_of_its_name() {
        use clap::CommandFactory;
        let command = Line::command();
        for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
            let expected = format!("SETTEE_{}", argument.get_id().as_str().to_uppercase());
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(expected.as_str()));
            let flag = argument.get_id().as_str().replace('_', "-");
            assert_eq!(argument.get_long(), Some(flag.as_str()));
        }
    }

    #[test]
    fn all_limits_in_force_are_told() {
        let config = resolve(flags(&["--max-uuids", "7"]), "[log]\ngroup_writes_max = 9").unwrap();
        let text = config.limits_text();
        let limits: Vec<(&str, &str)> = text.split(' ').map(|limit| limit.split_once('=').unwrap()).collect();
        assert!(
            limits.contains(&("max_uuids", "7")) && limits.contains(&("group_writes_max", "9")),
            "{text}"
        );
        assert!(limits.contains(&("io_threads", "8")), "{text}");
        assert_eq!(limits.len(), 22 + 2 + 12 + 12 + 6, "{text}");
    }

    #[test]
    fn a_limit_of_zero_is_refused() {
        let error = resolve(flags(&["--changes-timeout-ms", "0"]), "").unwrap_err();
        assert!(error.contains("changes_timeout_ms"), "{error}");
    }
}
