//! What can be set, described once for flags, variables and the file alike.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::parser::ValueSource;
use serde::Deserialize;
use serde_json::Value;
use settee_doc::{DatabasesOptions, LogOptions, StoreLimits};
use settee_http::Limits;
use settee_io::{EngineKind, EngineOptions, PoolOptions, ThreadOptions, UringOptions};

/// No size is larger, in bytes: 16 TiB.
pub(super) const BYTES_MAX: u64 = 16 << 40;

/// No time is longer, in seconds: ten years.
pub(super) const SECONDS_MAX: u64 = 10 * 366 * 24 * 3600;

/// No number of things is larger.
pub(super) const COUNT_MAX: u64 = 1 << 40;

/// The settings of a server; what isn't given is None.
#[derive(clap::Args, Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Directory that holds the databases [default: ./settee-data]
    #[arg(long, env = "SETTEE_DATA_DIR", value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,

    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:5984]
    #[arg(long, env = "SETTEE_LISTEN", value_name = "HOST:PORT")]
    pub(super) listen: Option<String>,

    /// The administrator. Arguments show in `ps`: a file or the variable are safer
    #[arg(long, env = "SETTEE_ADMIN", value_name = "NAME:PASSWORD", hide_env_values = true)]
    pub(super) admin: Option<String>,

    /// File that holds NAME:PASSWORD. Where no administrator is given, one is made at the first
    /// start and kept in the data directory
    #[arg(long, env = "SETTEE_ADMIN_FILE", value_name = "FILE", conflicts_with = "admin")]
    pub(super) admin_file: Option<PathBuf>,

    /// No administrator: every caller on this machine is one, and only loopback is served
    #[arg(long, env = "SETTEE_NO_ADMIN", value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    pub(super) no_admin: Option<bool>,

    /// What the server logs: off, error, warn, info, debug, trace; or a list that names crates, as in
    /// warn,settee_http=debug [default: info]
    #[arg(long, alias = "log", env = "SETTEE_LOG", value_name = "LEVEL")]
    pub(super) log_level: Option<String>,

    /// Proxies and their networks, separated by commas, to which max-connections-per-address doesn't
    /// apply [default: 127.0.0.0/8, ::1]
    #[arg(long, env = "SETTEE_TRUSTED_PROXIES", value_name = "ADDRESSES")]
    pub(super) trusted_proxies: Option<String>,

    /// How the server's log is written [default: text]
    #[arg(long, env = "SETTEE_LOG_FORMAT", value_name = "FORMAT")]
    pub(super) log_format: Option<LogFormat>,

    /// File that the server's log is appended to; SIGHUP opens it again [default: stderr]
    #[arg(long, env = "SETTEE_LOG_FILE", value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,

    /// Whether each request is logged once it is answered [default: false]
    #[arg(long, env = "SETTEE_ACCESS_LOG", value_name = "BOOL")]
    pub(super) access_log: Option<bool>,

    /// What runs the operations on files [default: auto]
    #[arg(long, env = "SETTEE_IO_ENGINE", value_name = "ENGINE")]
    pub(super) io_engine: Option<IoEngine>,

    /// Whether the databases' files go past the page cache (O_DIRECT), where their file system
    /// lets them [default: false]
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

/// A table of the file; `""` is what stands above all tables.
pub(super) type Table = &'static str;

impl Settings {
    /// The names of those that are given.
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

    /// Every name, with the table that it stands in.
    pub(super) fn names() -> Vec<(Table, &'static str)> {
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
        let mut names: Vec<(Table, &str)> = tops.map(|name| ("", name)).to_vec();
        let groups: [(Table, &[&'static str]); 5] = [
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

/// The variable of a setting: its name, but for the log's level, whose short name would be a
/// table's in the file.
pub(super) fn variable(name: &str) -> String {
    match name {
        "log_level" => "SETTEE_LOG".to_owned(),
        name => format!("SETTEE_{}", name.to_uppercase()),
    }
}

/// Settings as flags and variables give them, and which of them are flags.
#[derive(Default, Clone)]
pub(crate) struct Given {
    pub(super) settings: Settings,
    pub(super) flags: BTreeSet<String>,
}

impl clap::Args for Given {
    fn augment_args(command: clap::Command) -> clap::Command {
        Settings::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Settings::augment_args_for_update(command)
    }
}

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Given, clap::Error> {
        let mut given = Given::default();
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

        impl Group for $limits {
            fn each(&self) -> Vec<(&'static str, Value)> {
                vec![$((stringify!($name), Value::from(self.$name))),*]
            }

            fn take(&mut self, name: &str, from: &$limits) {
                match name {
                    $(stringify!($name) => self.$name = from.$name,)*
                    _ => panic!("there is no limit {name}"),
                }
            }

            fn in_bounds(&self) -> Result<(), String> {
                $(
                    at_least(stringify!($name), self.$name, $least)?;
                    at_most(stringify!($name), self.$name as u64)?;
                )*
                Ok(())
            }
        }

        impl $settings {
            const NAMES: &[&'static str] = &[$(stringify!($name)),*];

            /// The limits of the first source that has each, checked one by one.
            pub(super) fn resolve(self, file: $settings) -> Result<$limits, String> {
                let mut limits = $limits::default();
                $(
                    if let Some(value) = self.$name.or(file.$name) {
                        limits.$name = value;
                    }
                )*
                limits.in_bounds()?;
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
    /// Whether it says how many connections one address may have.
    pub(super) fn has_address_limit(&self) -> bool {
        self.max_connections_per_address.is_some()
    }
}

limit_settings! {
    LimitSettings, Limits, "Limits";
    /// Connections served at once
    max_connections: usize, 1, "SETTEE_MAX_CONNECTIONS";
    /// Connections of one address, or one IPv6 network of 64 bits, at once; see trusted-proxies
    max_connections_per_address: usize, 1, "SETTEE_MAX_CONNECTIONS_PER_ADDRESS";
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
    /// Bytes of all requests' bodies that are held in memory at once; at least max-document-size
    request_bytes_in_flight_max: u64, 1, "SETTEE_REQUEST_BYTES_IN_FLIGHT_MAX";
    /// Bytes of the data directory's disk that bodies of _bulk_docs may take which are too large for memory; 0 for none
    spool_bytes_max: u64, 0, "SETTEE_SPOOL_BYTES_MAX";
    /// Bytes of all answers that are held until their clients take them
    answer_bytes_in_flight_max: u64, 1, "SETTEE_ANSWER_BYTES_IN_FLIGHT_MAX";
    /// Bytes of a document
    max_document_size: usize, 1, "SETTEE_MAX_DOCUMENT_SIZE";
    /// Bytes of an attachment
    max_attachment_size: u64, 1, "SETTEE_MAX_ATTACHMENT_SIZE";
    /// Bytes of a refused body that are read before the connection is closed
    max_discard_bytes: u64, 1, "SETTEE_MAX_DISCARD_BYTES";
    /// Milliseconds to send a request's head, idle time before it included
    head_timeout_ms: u64, 1, "SETTEE_HEAD_TIMEOUT_MS";
    /// Milliseconds for which a client may pause within a body, and in which all of a login's body has to come
    body_timeout_ms: u64, 1, "SETTEE_BODY_TIMEOUT_MS";
    /// Bytes of a body that a client must send in a second, on average; 0 is no limit
    body_bytes_per_second_min: u64, 0, "SETTEE_BODY_BYTES_PER_SECOND_MIN";
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
    /// Whether design documents with validate_doc_update, which isn't run, are stored all the same, and
    /// documents written beside them
    ignore_validation: bool, false, "SETTEE_IGNORE_VALIDATION";
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

/// A table's limits, by their names.
pub(super) trait Group {
    /// Each, in the order of the file.
    fn each(&self) -> Vec<(&'static str, Value)>;

    /// Takes one over from others.
    fn take(&mut self, name: &str, from: &Self);

    /// Whether each is in its bounds.
    fn in_bounds(&self) -> Result<(), String>;
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

/// A setting's help, with what holds where it isn't given.
fn with_default(help: &str, default: impl std::fmt::Display) -> String {
    format!("{} [default: {default}]", help.trim_start())
}

/// The limits of what runs operations on files, and of the memory that writes wait in.
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
    /// How the engine is to run.
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

    /// How large the pool of buffers may grow.
    pub(crate) fn pool(&self) -> PoolOptions {
        PoolOptions { bytes_max: self.buffer_pool_bytes_max }
    }
}
