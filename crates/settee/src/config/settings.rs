//! The declaration of the settings, one row of [`SETTINGS`] each: name, type, default, bounds and help.
//!
//! Flags, `SETTEE_*` variables, the settings file, `settee config`, `docs/settee.toml` and the table of
//! `docs/configuration.md` derive from it. `retired` lists the names of former settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, value_parser};

use super::limits::Unit::{Bytes, Count, Ms, Percent, S};
use super::limits::{Assign, Field, Limit, Value, field};

/// Name of a table of the settings file. `""`: the settings before the first table.
pub(super) type TableName = &'static str;

/// The tables of the settings file in their order, each with its heading.
pub(super) const TABLES: &[(TableName, &str)] = &[
    ("", "The server"),
    ("limits", "Limits on clients"),
    ("databases", "Open databases"),
    ("store", "Memory and compaction of all databases together"),
    ("views", "Indexes of views"),
    ("io", "Files"),
];

/// The declaration of a setting.
pub(super) struct Setting {
    pub(super) table: TableName,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The meaning, without default and bounds.
    pub(super) help: &'static str,
}

/// Type and default of a setting.
pub(super) enum Kind {
    Text {
        placeholder: &'static str,
        default: Option<&'static str>,
    },
    Path {
        placeholder: &'static str,
        default: Option<&'static str>,
    },
    /// One of these texts; the first is the default.
    Choice(&'static [&'static str]),
    /// True or false. The default is the field's; false without a field.
    Switch(Option<Field>),
    Number(Limit),
}

const fn setting(table: TableName, name: &'static str, kind: Kind, help: &'static str) -> Setting {
    Setting { table, name, kind, help }
}

const fn text(placeholder: &'static str, default: Option<&'static str>) -> Kind {
    Kind::Text { placeholder, default }
}

const fn path(placeholder: &'static str, default: Option<&'static str>) -> Kind {
    Kind::Path { placeholder, default }
}

/// All settings, in the order of the settings file.
pub(super) const SETTINGS: &[Setting] = &[
    setting("", "data_dir", path("DIR", Some("./settee-data")), "The directory that holds the databases."),
    setting(
        "",
        "listen",
        text("HOST:PORT", Some("127.0.0.1:5984")),
        "The address to listen on. Port 0 selects a free port.",
    ),
    setting(
        "",
        "admin",
        text("NAME:PASSWORD", None),
        "The administrator. Prefer admin_file or the variable: arguments are visible in `ps`, and a settings \
         file with a password is refused if other users can read it.",
    ),
    setting(
        "",
        "admin_file",
        path("FILE", None),
        "File that contains NAME:PASSWORD of the administrator; refused if other users can read it. If no \
         administrator is set, the first start creates one and stores it in the file `admin` of the data \
         directory.",
    ),
    setting(
        "",
        "no_admin",
        Kind::Switch(None),
        "Run without an administrator: every caller on this machine has all rights. Then only loopback is \
         served, and no request that a proxy forwards.",
    ),
    setting(
        "",
        "trusted_proxies",
        text("ADDRESSES", Some("127.0.0.0/8, ::1")),
        "Addresses and networks of proxies, separated by commas, to which connections_per_address_max \
         doesn't apply, since all of their clients have the proxy's address. \"\" means none, not even on this \
         machine.",
    ),
    setting(
        "",
        "log_level",
        text("LEVEL", Some("info")),
        "Level of the server's log: off, error, warn, info, debug or trace; or a list with levels of crates, \
         such as warn,settee_http=debug. The variable is SETTEE_LOG; --log is a short form of the flag. \
         Whatever the level, each start logs one line; from debug on, it also logs the settings in force.",
    ),
    setting("", "log_format", Kind::Choice(&["text", "json"]), "Format of the server's log: text or json."),
    setting(
        "",
        "log_file",
        path("FILE", None),
        "File that the server's log is appended to; without it the log goes to stderr. SIGHUP reopens the \
         file; without a file SIGHUP stops the server in order.",
    ),
    setting(
        "",
        "access_log",
        Kind::Switch(None),
        "Whether each request is logged when it has been answered, whatever log_level is.",
    ),
    setting(
        "",
        "io_engine",
        Kind::Choice(&["auto", "io_uring", "threads"]),
        "Engine for operations on the databases' files. auto is io_uring if the machine supports it, else \
         threads. With io_uring the server doesn't start on a machine without it.",
    ),
    setting(
        "",
        "direct_io",
        Kind::Switch(Some(field!(databases.log.direct))),
        "Whether the databases' files bypass the page cache (O_DIRECT). If a file system doesn't support \
         that, the log says so, and its files use the page cache.",
    ),
    setting(
        "limits",
        "connections_max",
        Kind::Number(Limit::new(Count, field!(http.connections_max))),
        "Open connections. Beyond it, the connection is closed that has been without a request in flight for \
         the longest time; a feed counts as a request. If all have one, new connections wait. At most half of \
         the process's descriptors that remain after 64 are set aside; if that is fewer, the log says so at \
         start.",
    ),
    setting(
        "limits",
        "connections_per_address_max",
        Kind::Number(Limit::new(Count, field!(http.connections_per_address_max))),
        "Open connections of one address, or of one IPv6 network of 64 bits, except trusted_proxies. If it \
         isn't set, it is at most a quarter of connections_max.",
    ),
    setting(
        "limits",
        "requests_in_flight_max",
        Kind::Number(Limit::new(Count, field!(http.requests_in_flight_max))),
        "Requests in progress whose responses haven't begun; beyond it: 503.",
    ),
    setting(
        "limits",
        "document_bytes_max",
        Kind::Number(
            Limit::new(Bytes, field!(http.document_bytes_max))
                .within(1..=settee_doc::DOCUMENT_BYTES_LIMIT as u64),
        ),
        "Largest document, without its attachments. A local document has at most 8355840 bytes.",
    ),
    setting(
        "limits",
        "attachment_bytes_max",
        Kind::Number(Limit::new(Bytes, field!(http.attachment_bytes_max))),
        "Largest attachment.",
    ),
    setting(
        "limits",
        "request_bytes_max",
        Kind::Number(Limit::new(Bytes, field!(http.request_bytes_max))),
        "Largest body of a request, attachments excepted; at least document_bytes_max.",
    ),
    setting(
        "limits",
        "request_bytes_in_flight_max",
        Kind::Number(Limit::new(Bytes, field!(http.request_bytes_in_flight_max))),
        "Memory of all request bodies as they arrive, and of the values parsed from them; at least \
         document_bytes_max. Beyond it requests wait, or get 503. A body that alone needs more is a 413.",
    ),
    setting(
        "limits",
        "response_bytes_in_flight_max",
        Kind::Number(Limit::new(Bytes, field!(http.response_bytes_in_flight_max))),
        "Memory of all responses that clients haven't read yet. Beyond it the connection that holds the most \
         is closed. A connection that holds a quarter of it gets 503 for responses larger than 64 KiB.",
    ),
    setting(
        "limits",
        "spool_bytes_max",
        Kind::Number(Limit::new(Bytes, field!(http.spool_bytes_max)).within(0..=Bytes.max())),
        "Disk space of all spooled bodies of _bulk_docs: those larger than 32 MiB or than half of \
         request_bytes_in_flight_max, and those of very many documents. A body that alone needs more is a \
         413; if others take the space, a 503. 0 disables spooling.",
    ),
    setting(
        "limits",
        "head_timeout_ms",
        Kind::Number(Limit::new(Ms, field!(http.head_timeout_ms))),
        "Time in which a client must send a request's head, including idle time before it.",
    ),
    setting(
        "limits",
        "body_timeout_ms",
        Kind::Number(Limit::new(Ms, field!(http.body_timeout_ms))),
        "Longest pause of a client within a body, and longest time for the whole body of an unauthenticated \
         request, such as a login.",
    ),
    setting(
        "limits",
        "send_timeout_ms",
        Kind::Number(Limit::new(Ms, field!(http.send_timeout_ms))),
        "Time for which a client may read nothing of its response.",
    ),
    setting(
        "limits",
        "changes_timeout_ms",
        Kind::Number(Limit::new(Ms, field!(http.changes_timeout_ms))),
        "Longest silence in a changes feed: the largest heartbeat and timeout of a feed, and the default of \
         both.",
    ),
    setting(
        "limits",
        "session_timeout_s",
        Kind::Number(Limit::new(S, field!(http.session_timeout_s))),
        "Lifetime of a session's cookie; a cookie in use is renewed.",
    ),
    setting(
        "limits",
        "stop_timeout_ms",
        Kind::Number(Limit::new(Ms, field!(http.stop_timeout_ms))),
        "Time for which a server that stops waits for the requests in flight.",
    ),
    setting(
        "limits",
        "compress_responses",
        Kind::Switch(Some(field!(http.compress_responses))),
        "Whether responses are compressed for clients that accept gzip. Compression costs more processor \
         time than the rest of a request.",
    ),
    setting(
        "databases",
        "open_databases_max",
        Kind::Number(Limit::new(Count, field!(databases.open_databases_max))),
        "Open databases. Beyond it the least recently used idle database is closed; databases in use by a \
         request or a feed stay open, even if that exceeds the limit. At most half of the descriptors that \
         are left for files; if that is fewer, the log says so at start.",
    ),
    setting(
        "store",
        "index_memory_bytes_max",
        Kind::Number(
            Limit::new(Bytes, field!(databases.store.index_memory_bytes_max)).within(1 << 20..=Bytes.max()),
        ),
        "Memory for index entries of recent changes. From half of it checkpoints move them to disk; writers \
         wait while all of it is used.",
    ),
    setting(
        "store",
        "index_cache_bytes_max",
        Kind::Number(
            Limit::new(Bytes, field!(databases.store.index_cache_bytes_max)).within(64 << 10..=Bytes.max()),
        ),
        "Cache of index nodes from disk.",
    ),
    setting(
        "store",
        "value_cache_bytes_max",
        Kind::Number(
            Limit::new(Bytes, field!(databases.store.value_cache_bytes_max)).within(0..=Bytes.max()),
        ),
        "Cache of documents' bodies, used with direct_io; otherwise the page cache holds them. 0: no cache.",
    ),
    setting(
        "store",
        "garbage_percent_max",
        Kind::Number(Limit::new(Percent, field!(databases.store.garbage_percent_max))),
        "Percentage of a database's files that may be garbage while it is written; beyond it, segments and \
         index are rewritten.",
    ),
    setting(
        "store",
        "garbage_idle_percent_max",
        Kind::Number(Limit::new(Percent, field!(databases.store.garbage_idle_percent_max))),
        "Percentage to which garbage is freed when writes pause for a second. 100: nothing is freed then.",
    ),
    setting(
        "store",
        "garbage_hard_percent_max",
        Kind::Number(Limit::new(Percent, field!(databases.store.garbage_hard_percent_max))),
        "Percentage of garbage at which writes are slowed most, to 4 MiB/s; from garbage_percent_max on they are \
         slowed in proportion, while segments are rewritten; if it is less than garbage_percent_max, from that on. 100: never.",
    ),
    setting(
        "store",
        "compaction_bytes_per_second",
        Kind::Number(
            Limit::new(Bytes, field!(databases.store.compaction_bytes_per_second))
                .within(1 << 20..=Bytes.max()),
        ),
        "Bytes per second that compaction and backups copy.",
    ),
    setting(
        "store",
        "replaced_segments_max",
        Kind::Number(Limit::new(Count, field!(databases.store.replaced_segments_max)).within(0..=65_536)),
        "Segments that a request searches for bodies of replaced revisions; beyond them a body is missing. 0: none.",
    ),
    setting(
        "views",
        "view_autoupdate",
        Kind::Switch(Some(field!(views.autoupdate))),
        "Whether indexes are built in the background after writes, unless a design document has \
         \"autoupdate\": false. Otherwise only queries build them.",
    ),
    setting(
        "views",
        "view_cache_bytes_max",
        Kind::Number(Limit::new(Bytes, field!(views.cache_bytes_max)).within(64 << 10..=Bytes.max())),
        "Cache of index nodes of views.",
    ),
    setting(
        "views",
        "view_merge_bytes",
        Kind::Number(Limit::new(Bytes, field!(views.merge_bytes)).within(1 << 20..=Bytes.max())),
        "Memory for the rows that a build collects before it merges them into the indexes.",
    ),
    setting(
        "views",
        "open_indexes_max",
        Kind::Number(Limit::new(Count, field!(views.open_indexes_max))),
        "Indexes whose files stay open while nobody uses them; at most a quarter of the files that may be open.",
    ),
    setting(
        "views",
        "javascript_bytes_max",
        Kind::Number(Limit::new(Bytes, field!(views.javascript_bytes_max)).within(4 << 20..=Bytes.max())),
        "Memory of a JavaScript context: of each design document, as many as groups of documents are mapped at once.",
    ),
    setting(
        "views",
        "javascript_ticks_max",
        Kind::Number(Limit::new(Count, field!(views.javascript_ticks_max))),
        "Ticks that a JavaScript function may use for one document; one is about 10,000 calls and loop turns. Beyond it \
         a map function stops its view.",
    ),
    setting(
        "io",
        "buffer_pool_bytes_max",
        Kind::Number(Limit::new(Bytes, field!(buffers.bytes_max))),
        "Memory of all buffers for writes; at least the largest batch. Writers wait while all of it is used.",
    ),
    setting(
        "io",
        "io_threads",
        // A thread costs memory, and no device takes more reads at once.
        Kind::Number(Limit::new(Count, field!(threads.thread_count)).within(1..=1024)),
        "Threads for reads that the page cache can't serve, and so the number of such reads in flight.",
    ),
];

/// Returns the declaration of a setting.
pub(super) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

impl Setting {
    /// Returns the default; None if the setting is unset by default.
    pub(super) fn default(&self) -> Option<Value> {
        match &self.kind {
            Kind::Text { default, .. } => default.map(|text| Value::Text(text.to_owned())),
            Kind::Path { default, .. } => default.map(|path| Value::Path(path.into())),
            Kind::Choice(choices) => Some(Value::Text(choices[0].to_owned())),
            Kind::Switch(None) => Some(Value::Bool(false)),
            Kind::Switch(Some(field)) | Kind::Number(Limit { field, .. }) => {
                Some((field.get)(&Default::default()))
            }
        }
    }

    /// Returns the field of the options that the setting sets: a number's, or a switch's if it has one.
    pub(super) fn field(&self) -> Option<Field> {
        match &self.kind {
            Kind::Switch(field) => *field,
            Kind::Number(limit) => Some(limit.field),
            _ => None,
        }
    }

    /// Returns the flag without its dashes.
    pub(super) fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Returns the environment variable, which derives from the name. Exception: `log_level` has
    /// `SETTEE_LOG`; the setting can't be called `log`, which would be too general a name in a file.
    pub(super) fn variable(&self) -> String {
        match self.name {
            "log_level" => "SETTEE_LOG".to_owned(),
            name => format!("SETTEE_{}", name.to_uppercase()),
        }
    }

    /// Returns the meaning with the bounds.
    pub(super) fn meaning(&self) -> String {
        match &self.kind {
            Kind::Number(limit) => limit
                .bounds()
                .map_or_else(|| self.help.to_owned(), |bounds| format!("{} {bounds}", self.help)),
            _ => self.help.to_owned(),
        }
    }

    /// Returns the flag with its variable.
    fn argument(&self) -> Arg {
        let heading = TABLES.iter().find(|(table, _)| *table == self.table).map(|(_, heading)| *heading);
        let default = self.default().map_or_else(String::new, |default| format!(" [default: {default}]"));
        let argument = Arg::new(self.name)
            .long(self.flag())
            .env(self.variable())
            .help_heading(heading)
            .help(self.meaning() + &default);
        let argument = match &self.kind {
            Kind::Text { placeholder, .. } => argument.value_name(*placeholder),
            Kind::Path { placeholder, .. } => {
                argument.value_name(*placeholder).value_parser(value_parser!(PathBuf))
            }
            Kind::Choice(choices) => {
                argument.value_name("NAME").value_parser(PossibleValuesParser::new(*choices))
            }
            Kind::Switch(_) => argument.value_name("BOOL").value_parser(value_parser!(bool)),
            Kind::Number(_) => argument.value_name("N").value_parser(value_parser!(u64)),
        };
        match self.name {
            "admin" => argument.hide_env_values(true),
            "admin_file" => argument.conflicts_with("admin"),
            "log_level" => argument.alias("log"),
            "no_admin" => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
            _ => argument,
        }
    }

    fn value_of(&self, matches: &ArgMatches) -> Option<Value> {
        Some(match &self.kind {
            Kind::Text { .. } | Kind::Choice(_) => Value::Text(matches.get_one::<String>(self.name)?.clone()),
            Kind::Path { .. } => Value::Path(matches.get_one::<PathBuf>(self.name)?.clone()),
            Kind::Switch(_) => Value::Bool(*matches.get_one(self.name)?),
            Kind::Number(_) => Value::Number(*matches.get_one(self.name)?),
        })
    }
}

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Default,
    File(PathBuf),
    Variable(String),
    Flag(String),
    /// Set over HTTP: the file in the data directory, and the key as `section/key`.
    Http(PathBuf, String),
}

/// The settings of one or several sources, each with its source.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings(BTreeMap<&'static str, (Value, Origin)>);

impl Settings {
    pub(super) fn insert(&mut self, name: &'static str, value: Value, origin: Origin) {
        self.0.insert(name, (value, origin));
    }

    /// Merges the settings: `self` takes precedence over `file`. The administrator's settings of the file
    /// count only if `self` has none of them.
    pub(super) fn over(self, mut file: Settings) -> Settings {
        if self.has("admin") || self.has("admin_file") || self.is_true("no_admin") {
            file.0.retain(|name, _| !["admin", "admin_file", "no_admin"].contains(name));
        }
        file.0.extend(self.0);
        file
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the value, or the default.
    pub(super) fn value(&self, name: &str) -> Option<Value> {
        let given = self.0.get(name).map(|(value, _)| value.clone());
        given.or_else(|| find(name).expect("the setting is declared").default())
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.value(name)? {
            Value::Text(text) => Some(text),
            value => panic!("`{name}` is {value:?}"),
        }
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        match self.value(name)? {
            Value::Path(path) => Some(path),
            value => panic!("`{name}` is {value:?}"),
        }
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.value(name) == Some(Value::Bool(true))
    }

    pub(super) fn origin(&self, name: &str) -> Origin {
        self.0.get(name).map_or(Origin::Default, |(_, origin)| origin.clone())
    }
}

impl clap::Args for Settings {
    fn augment_args(command: Command) -> Command {
        command.args(SETTINGS.iter().map(Setting::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args(command)
    }
}

impl clap::FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let mut settings = Settings::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SETTINGS {
            let origin = match matches.value_source(setting.name) {
                Some(ValueSource::CommandLine) => Origin::Flag(format!("--{}", setting.flag())),
                Some(ValueSource::EnvVariable) => Origin::Variable(setting.variable()),
                _ => continue,
            };
            if let Some(value) = setting.value_of(matches) {
                self.insert(setting.name, value, origin);
            }
        }
        Ok(())
    }
}
