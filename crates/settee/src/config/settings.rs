//! The settings of a server, declared once for flags, variables and the settings file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::parser::ValueSource;
use serde::Deserialize;
use serde_json::Value;
use settee_doc::{DatabasesOptions, LogOptions, StoreLimits};
use settee_http::Limits;
use settee_io::{EngineKind, EngineOptions, PoolOptions, ThreadOptions, UringOptions};

/// Largest size that a limit accepts, in bytes: 16 TiB.
pub(super) const BYTES_MAX: u64 = 16 << 40;

/// Longest time that a limit accepts, in seconds: ten years.
pub(super) const SECONDS_MAX: u64 = 10 * 366 * 24 * 3600;

/// Largest count that a limit accepts.
pub(super) const COUNT_MAX: u64 = 1 << 40;

/// The settings of a server from one source. None: the source doesn't set it.
#[derive(clap::Args, Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Data directory [default: ./settee-data]
    #[arg(long, env = "SETTEE_DATA_DIR", value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,

    /// Address to listen on; port 0 selects a free port [default: 127.0.0.1:5984]
    #[arg(long, env = "SETTEE_LISTEN", value_name = "HOST:PORT")]
    pub(super) listen: Option<String>,

    /// The administrator. Arguments are visible in `ps`: prefer a file or the variable
    #[arg(long, env = "SETTEE_ADMIN", value_name = "NAME:PASSWORD", hide_env_values = true)]
    pub(super) admin: Option<String>,

    /// File with NAME:PASSWORD. Without an administrator the first start creates one and stores it in the
    /// data directory
    #[arg(long, env = "SETTEE_ADMIN_FILE", value_name = "FILE", conflicts_with = "admin")]
    pub(super) admin_file: Option<PathBuf>,

    /// Run without an administrator: every caller on this machine has all rights, and only loopback is served
    #[arg(long, env = "SETTEE_NO_ADMIN", value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    pub(super) no_admin: Option<bool>,

    /// Level of the server log: off, error, warn, info, debug, trace; or a list with levels of crates, as in
    /// warn,settee_http=debug [default: info]
    #[arg(long, alias = "log", env = "SETTEE_LOG", value_name = "LEVEL")]
    pub(super) log_level: Option<String>,

    /// Addresses and networks of proxies, separated by commas, to which max-connections-per-address doesn't
    /// apply [default: 127.0.0.0/8, ::1]
    #[arg(long, env = "SETTEE_TRUSTED_PROXIES", value_name = "ADDRESSES")]
    pub(super) trusted_proxies: Option<String>,

    /// Format of the server log [default: text]
    #[arg(long, env = "SETTEE_LOG_FORMAT", value_name = "FORMAT")]
    pub(super) log_format: Option<LogFormat>,

    /// File that the server log is appended to; SIGHUP reopens it [default: stderr]
    #[arg(long, env = "SETTEE_LOG_FILE", value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,

    /// Whether each answered request is logged [default: false]
    #[arg(long, env = "SETTEE_ACCESS_LOG", value_name = "BOOL")]
    pub(super) access_log: Option<bool>,

    /// I/O engine for the databases' files [default: auto]
    #[arg(long, env = "SETTEE_IO_ENGINE", value_name = "ENGINE")]
    pub(super) io_engine: Option<IoEngine>,

    /// Whether the databases' files bypass the page cache (O_DIRECT) if their file system supports it
    /// [default: false]
    #[arg(long, env = "SETTEE_DIRECT_IO", value_name = "BOOL")]
    pub(super) direct_io: Option<bool>,

    #[command(flatten)]
    #[serde(default)]
    pub(super) limits: LimitSettings,

    #[command(flatten)]
    #[serde(default)]
    pub(super) databases: DatabasesSettings,

    #[command(flatten)]
    #[serde(default)]
    pub(super) store: StoreSettings,

    #[command(flatten)]
    #[serde(default)]
    pub(super) log: LogSettings,

    #[command(flatten)]
    #[serde(default)]
    pub(super) io: IoSettings,
}

/// Name of a table of the settings file. `""`: the settings before the first table.
pub(super) type TableName = &'static str;

impl Settings {
    /// Returns the names of the settings that are set.
    pub(super) fn given(&self) -> BTreeSet<&'static str> {
        let mut names = BTreeSet::new();
        let tops = [
            ("data_dir", self.data_dir.is_some()),
            ("listen", self.listen.is_some()),
            ("admin", self.admin.is_some()),
            ("admin_file", self.admin_file.is_some()),
            ("no_admin", self.no_admin.is_some()),
            ("log_level", self.log_level.is_some()),
            ("trusted_proxies", self.trusted_proxies.is_some()),
            ("log_format", self.log_format.is_some()),
            ("log_file", self.log_file.is_some()),
            ("access_log", self.access_log.is_some()),
            ("io_engine", self.io_engine.is_some()),
            ("direct_io", self.direct_io.is_some()),
        ];
        names.extend(tops.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name));
        self.limits.given(&mut names);
        self.databases.given(&mut names);
        self.store.given(&mut names);
        self.log.given(&mut names);
        self.io.given(&mut names);
        names
    }

    /// Returns the names of all settings with their tables.
    pub(super) fn names() -> Vec<(TableName, &'static str)> {
        let tops = [
            "data_dir",
            "listen",
            "admin",
            "admin_file",
            "no_admin",
            "trusted_proxies",
            "log_level",
            "log_format",
            "log_file",
            "access_log",
            "io_engine",
            "direct_io",
        ];
        let mut names: Vec<(TableName, &str)> = tops.map(|name| ("", name)).to_vec();
        let groups: [(TableName, &[&'static str]); 5] = [
            ("limits", LimitSettings::NAMES),
            ("databases", DatabasesSettings::NAMES),
            ("store", StoreSettings::NAMES),
            ("log", LogSettings::NAMES),
            ("io", IoSettings::NAMES),
        ];
        for (table, of_table) in groups {
            names.extend(of_table.iter().map(|name| (table, *name)));
        }
        names
    }
}

/// Returns the environment variable of a setting, which derives from its name. Exception: `log_level` has
/// `SETTEE_LOG`; the setting can't be called `log`, which is a table.
pub(super) fn variable_name(name: &str) -> String {
    match name {
        "log_level" => "SETTEE_LOG".to_owned(),
        name => format!("SETTEE_{}", name.to_uppercase()),
    }
}

/// The settings from flags and variables.
#[derive(Default, Clone)]
pub(crate) struct GivenSettings {
    pub(super) settings: Settings,
    /// Names of the settings that come from flags.
    pub(super) flags: BTreeSet<String>,
}

impl clap::Args for GivenSettings {
    fn augment_args(command: clap::Command) -> clap::Command {
        Settings::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Settings::augment_args_for_update(command)
    }
}

impl clap::FromArgMatches for GivenSettings {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<GivenSettings, clap::Error> {
        let mut given = GivenSettings::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        let is_flag = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let flags = Settings::names().into_iter().map(|(_, name)| name).filter(|name| is_flag(name));
        self.flags.extend(flags.map(str::to_owned));
        self.settings = Settings::from_arg_matches(matches)?;
        Ok(())
    }
}

/// I/O engine for the databases' files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
pub(crate) enum IoEngine {
    /// io_uring if the kernel supports it, else threads.
    #[serde(rename = "auto")]
    Auto,
    /// io_uring; the start fails without it.
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

/// Format of the server log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Declares a table of limits for flags, variables and the settings file: each limit's help, name, type,
/// smallest value and variable.
macro_rules! limit_settings {
    ($settings:ident, $limits:ident, $heading:literal;
     $($(#[doc = $doc:literal])* $name:ident: $type:ty, $min:literal, $variable:literal;)*) => {
        #[doc = concat!("The limits of [`", stringify!($limits), "`] from one source. None: not set.")]
        #[derive(clap::Args, Deserialize, Default, Clone)]
        #[serde(deny_unknown_fields)]
        #[command(next_help_heading = $heading)]
        pub(super) struct $settings {
            $(
                $(#[doc = $doc])*
                #[arg(
                    long, env = $variable, value_name = "N",
                    help = with_default(concat!($($doc),*), $limits::default().$name)
                )]
                $name: Option<$type>,
            )*
        }

        impl LimitTable for $limits {
            fn values(&self) -> Vec<(&'static str, Value)> {
                vec![$((stringify!($name), Value::from(self.$name))),*]
            }

            fn copy_limit(&mut self, name: &str, from: &$limits) {
                match name {
                    $(stringify!($name) => self.$name = from.$name,)*
                    _ => panic!("there is no limit {name}"),
                }
            }

            fn check_bounds(&self) -> Result<(), String> {
                $(
                    check_min(stringify!($name), self.$name, $min)?;
                    check_max(stringify!($name), self.$name as u64)?;
                )*
                Ok(())
            }
        }

        impl $settings {
            const NAMES: &[&'static str] = &[$(stringify!($name)),*];

            /// Merges the sources: `self` takes precedence over `file`, and both over the defaults.
            ///
            /// # Errors
            /// A limit is out of its bounds.
            pub(super) fn resolve(self, file: $settings) -> Result<$limits, String> {
                let mut limits = $limits::default();
                $(
                    if let Some(value) = self.$name.or(file.$name) {
                        limits.$name = value;
                    }
                )*
                limits.check_bounds()?;
                Ok(limits)
            }

            fn given(&self, names: &mut BTreeSet<&'static str>) {
                $(
                    if self.$name.is_some() {
                        names.insert(stringify!($name));
                    }
                )*
            }
        }
    };
}

impl LimitSettings {
    /// Whether `max_connections_per_address` is set.
    pub(super) fn has_address_limit(&self) -> bool {
        self.max_connections_per_address.is_some()
    }
}

limit_settings! {
    LimitSettings, Limits, "Limits";
    /// Largest number of open connections
    max_connections: usize, 1, "SETTEE_MAX_CONNECTIONS";
    /// Largest number of open connections of one address or IPv6 network of 64 bits; see trusted-proxies
    max_connections_per_address: usize, 1, "SETTEE_MAX_CONNECTIONS_PER_ADDRESS";
    /// Largest number of requests whose responses haven't begun; past it: 503
    max_requests_in_flight: usize, 1, "SETTEE_MAX_REQUESTS_IN_FLIGHT";
    /// Largest number of concurrent requests of an HTTP/2 connection
    max_streams: u32, 1, "SETTEE_MAX_STREAMS";
    /// Largest head of a request in bytes
    max_head_bytes: usize, 1, "SETTEE_MAX_HEAD_BYTES";
    /// Largest number of headers of a request
    max_headers: usize, 1, "SETTEE_MAX_HEADERS";
    /// Largest body of a request in bytes
    max_request_bytes: u64, 1, "SETTEE_MAX_REQUEST_BYTES";
    /// Bytes of all request bodies in memory; at least max-document-size
    request_bytes_in_flight_max: u64, 1, "SETTEE_REQUEST_BYTES_IN_FLIGHT_MAX";
    /// Bytes of all spool files, which hold bodies of _bulk_docs that are too large for memory; 0 disables
    /// spooling
    spool_bytes_max: u64, 0, "SETTEE_SPOOL_BYTES_MAX";
    /// Bytes of all responses that clients haven't read yet
    answer_bytes_in_flight_max: u64, 1, "SETTEE_ANSWER_BYTES_IN_FLIGHT_MAX";
    /// Largest document in bytes
    max_document_size: usize, 1, "SETTEE_MAX_DOCUMENT_SIZE";
    /// Largest attachment in bytes
    max_attachment_size: u64, 1, "SETTEE_MAX_ATTACHMENT_SIZE";
    /// Bytes of a refused body that are read before the connection is closed
    max_discard_bytes: u64, 1, "SETTEE_MAX_DISCARD_BYTES";
    /// Milliseconds in which a client must send a request's head, including idle time before it
    head_timeout_ms: u64, 1, "SETTEE_HEAD_TIMEOUT_MS";
    /// Longest pause within a body, and longest time for the whole body of a login, in milliseconds
    body_timeout_ms: u64, 1, "SETTEE_BODY_TIMEOUT_MS";
    /// Smallest average rate at which a client must send a body, in bytes per second; 0 disables the limit
    body_bytes_per_second_min: u64, 0, "SETTEE_BODY_BYTES_PER_SECOND_MIN";
    /// Whether responses are compressed for clients that accept gzip
    compress_answers: bool, false, "SETTEE_COMPRESS_ANSWERS";
    /// Largest number of names in a POST /_dbs_info
    max_dbs_info_names: usize, 1, "SETTEE_MAX_DBS_INFO_NAMES";
    /// Largest number of identifiers in a response of _uuids
    max_uuids: u64, 1, "SETTEE_MAX_UUIDS";
    /// Largest number of ids of a feed filtered by _doc_ids
    max_feed_doc_ids: usize, 1, "SETTEE_MAX_FEED_DOC_IDS";
    /// Size of a chunk of a streamed response in bytes
    stream_chunk_bytes: usize, 1, "SETTEE_STREAM_CHUNK_BYTES";
    /// Number of chunks of a streamed response that are buffered for a slow client
    stream_chunks: usize, 1, "SETTEE_STREAM_CHUNKS";
    /// Milliseconds for which a client may read nothing of a response
    send_timeout_ms: u64, 1, "SETTEE_SEND_TIMEOUT_MS";
    /// Largest heartbeat and timeout of a changes feed in milliseconds, and the default of both
    changes_timeout_ms: u64, 1, "SETTEE_CHANGES_TIMEOUT_MS";
    /// Lifetime of a session cookie in seconds
    session_timeout_s: u64, 1, "SETTEE_SESSION_TIMEOUT_S";
    /// Milliseconds that a server waits for requests in flight when it stops
    stop_timeout_ms: u64, 1, "SETTEE_STOP_TIMEOUT_MS";
}

limit_settings! {
    DatabasesSettings, DatabasesOptions, "Open databases";
    /// Largest number of open databases; past it the least recently used idle database is closed. At most
    /// half of the descriptors that are left for files
    open_databases_max: usize, 1, "SETTEE_OPEN_DATABASES_MAX";
    /// Seconds after which an idle database is closed
    database_idle_s: u64, 1, "SETTEE_DATABASE_IDLE_S";
    /// Whether design documents with validate_doc_update, which isn't run, are stored, and documents in their
    /// databases
    ignore_validation: bool, false, "SETTEE_IGNORE_VALIDATION";
}

limit_settings! {
    StoreSettings, StoreLimits, "Databases' indexes, checkpoints and compaction";
    /// Memory of all databases for index entries of recent changes, in bytes. At half of it a checkpoint
    /// begins; writers wait while it is exhausted
    index_memory_bytes_max: usize, 1048576, "SETTEE_INDEX_MEMORY_BYTES_MAX";
    /// Size of the cache of index nodes in bytes
    index_cache_bytes_max: usize, 65536, "SETTEE_INDEX_CACHE_BYTES_MAX";
    /// Size of the cache of documents' bodies in bytes, used with direct_io; otherwise the page cache holds
    /// them
    value_cache_bytes_max: usize, 0, "SETTEE_VALUE_CACHE_BYTES_MAX";
    /// Largest number of memtables of one database that wait for a checkpoint
    frozen_layers_max: usize, 1, "SETTEE_FROZEN_LAYERS_MAX";
    /// A checkpoint begins when 1/N of a database's index entries are new, or 1/N of its bytes became garbage
    checkpoint_share: u64, 1, "SETTEE_CHECKPOINT_SHARE";
    /// Smallest number of new index entries for which a checkpoint begins
    checkpoint_entries_min: u64, 1, "SETTEE_CHECKPOINT_ENTRIES_MIN";
    /// Number of new index entries at which a checkpoint begins in any case; at least checkpoint-entries-min
    checkpoint_entries_max: u64, 1, "SETTEE_CHECKPOINT_ENTRIES_MAX";
    /// Smallest number of garbage bytes for which a checkpoint begins
    checkpoint_garbage_min: u64, 1, "SETTEE_CHECKPOINT_GARBAGE_MIN";
    /// Number of new bytes at which a checkpoint begins in any case
    checkpoint_bytes_max: u64, 1048576, "SETTEE_CHECKPOINT_BYTES_MAX";
    /// Largest share of garbage in a database's files, in percent; compaction starts above it
    garbage_percent_max: u64, 1, "SETTEE_GARBAGE_PERCENT_MAX";
    /// Rate of compaction in bytes per second
    compaction_bytes_per_second: u64, 1048576, "SETTEE_COMPACTION_BYTES_PER_SECOND";
    /// Age in seconds from which a snapshot that pins replaced files is counted in settee_old_snapshots
    snapshot_age_s_max: u64, 1, "SETTEE_SNAPSHOT_AGE_S_MAX";
}

limit_settings! {
    LogSettings, LogOptions, "Databases' logs";
    /// Longest time that a group of writes waits for further writes, in microseconds; a single writer never
    /// waits
    group_delay_us_max: u64, 0, "SETTEE_GROUP_DELAY_US_MAX";
    /// Bytes at which a group of writes waits no longer
    group_bytes_max: usize, 1, "SETTEE_GROUP_BYTES_MAX";
    /// Number of writes at which a group waits no longer
    group_writes_max: usize, 1, "SETTEE_GROUP_WRITES_MAX";
    /// Milliseconds within which accepted bytes are written, even if no caller waits for them
    accepted_age_ms_max: u64, 0, "SETTEE_ACCEPTED_AGE_MS_MAX";
    /// Milliseconds within which written bytes are synced, even if no caller waits for them
    written_age_ms_max: u64, 0, "SETTEE_WRITTEN_AGE_MS_MAX";
    /// Smallest capacity of a segment in bytes
    segment_bytes_min: u32, 1, "SETTEE_SEGMENT_BYTES_MIN";
    /// Largest capacity of a segment in bytes
    segment_bytes_max: u32, 1, "SETTEE_SEGMENT_BYTES_MAX";
    /// Size of a log's first buffer after an idle period, in bytes
    buffer_bytes_min: usize, 1, "SETTEE_BUFFER_BYTES_MIN";
    /// Largest buffer of a log in bytes; one write writes at most one buffer
    buffer_bytes_max: usize, 1, "SETTEE_BUFFER_BYTES_MAX";
    /// Largest number of writes in flight of a log
    writes_in_flight_max: usize, 1, "SETTEE_WRITES_IN_FLIGHT_MAX";
    /// Bytes from which a document is written without being copied
    bypass_bytes_min: usize, 1, "SETTEE_BYPASS_BYTES_MIN";
    /// Largest truncated segment that is recycled for the next segment, in percent of the log's size
    spare_percent_max: u64, 0, "SETTEE_SPARE_PERCENT_MAX";
}

limit_settings! {
    IoSettings, IoLimits, "Files and memory";
    /// Size of the buffer pool of all databases in bytes
    buffer_pool_bytes_max: usize, 1, "SETTEE_BUFFER_POOL_BYTES_MAX";
    /// Threads for reads that the page cache can't serve, and for other operations that change nothing
    io_threads: usize, 1, "SETTEE_IO_THREADS";
    /// Threads for writes and other operations that may wait for writes, except syncs
    io_write_threads: usize, 1, "SETTEE_IO_WRITE_THREADS";
    /// Threads for syncs, and so the number of concurrent syncs
    io_sync_threads: usize, 1, "SETTEE_IO_SYNC_THREADS";
    /// Length of each queue of the I/O engine; past it callers run their operations themselves
    io_queue_max: usize, 1, "SETTEE_IO_QUEUE_MAX";
    /// Number of entries of the io_uring ring, a power of two
    io_ring_entries: u32, 2, "SETTEE_IO_RING_ENTRIES";
}

/// The limits of a table of the settings file.
pub(super) trait LimitTable {
    /// Returns all names and values, in the order of the settings file.
    fn values(&self) -> Vec<(&'static str, Value)>;

    /// Copies the limit `name` from another instance.
    fn copy_limit(&mut self, name: &str, from: &Self);

    /// Checks each limit against its bounds.
    ///
    /// # Errors
    /// The first limit that is out of its bounds.
    fn check_bounds(&self) -> Result<(), String>;
}

fn check_min<T: PartialOrd + std::fmt::Display>(name: &str, value: T, min: T) -> Result<(), String> {
    match value < min {
        true => Err(format!("the limit `{name}` must be at least {min}")),
        false => Ok(()),
    }
}

/// Refuses implausible values, which are typing errors. The unit in the name determines the maximum.
fn check_max(name: &str, value: u64) -> Result<(), String> {
    let has = |unit: &str| name.split('_').any(|word| word == unit);
    let max = match () {
        () if has("bytes") || has("size") || has("garbage") && !has("percent") => BYTES_MAX,
        () if has("us") => SECONDS_MAX * 1_000_000,
        () if has("ms") => SECONDS_MAX * 1000,
        () if has("s") => SECONDS_MAX,
        () if has("percent") => 100,
        () => COUNT_MAX,
    };
    match value > max {
        true => Err(format!("the limit `{name}` is {value}: it must be at most {max}")),
        false => Ok(()),
    }
}

/// Returns a setting's help text with its default.
fn with_default(help: &str, default: impl std::fmt::Display) -> String {
    format!("{} [default: {default}]", help.trim_start())
}

/// The limits of the I/O engine and of the buffer pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IoLimits {
    pub(super) buffer_pool_bytes_max: usize,
    pub(super) io_threads: usize,
    pub(super) io_write_threads: usize,
    pub(super) io_sync_threads: usize,
    pub(super) io_queue_max: usize,
    pub(super) io_ring_entries: u32,
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
    /// Returns the options of the I/O engine.
    pub(crate) fn engine(&self, kind: EngineKind) -> EngineOptions {
        let threads = ThreadOptions {
            thread_count: self.io_threads,
            write_thread_count: self.io_write_threads,
            sync_thread_count: self.io_sync_threads,
            queue_count_max: self.io_queue_max,
            ..ThreadOptions::default()
        };
        let uring = UringOptions {
            entry_count: self.io_ring_entries,
            queue_count_max: self.io_queue_max,
            ..UringOptions::default()
        };
        EngineOptions { kind, threads, uring }
    }

    /// Returns the options of the buffer pool.
    pub(crate) fn pool(&self) -> PoolOptions {
        PoolOptions { bytes_max: self.buffer_pool_bytes_max }
    }
}
