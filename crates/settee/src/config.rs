//! What `settee serve` is told: by flags, by `SETTEE_*` variables, by a file, or not at all.
//!
//! One struct describes the settings to all three. The first of flag, variable, file and
//! default that says something counts, setting by setting. An unknown key in the file is an
//! error that names it.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use settee_http::{Admin, Limits};
use settee_io::EngineKind;

/// Largest configuration or administrator's file in bytes.
const FILE_SIZE_MAX: u64 = 1 << 20;

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

    #[command(flatten)]
    #[serde(default)]
    limits: LimitSettings,
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

/// Describes the limits to flags, variables and the file alike.
macro_rules! limit_settings {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ty, $variable:literal;)*) => {
        /// The limits, as `settee_http::Limits` has them; what isn't given is None.
        #[derive(clap::Args, Deserialize, Default)]
        #[serde(deny_unknown_fields)]
        #[command(next_help_heading = "Limits")]
        struct LimitSettings {
            $(
                $(#[doc = $doc])*
                #[arg(long, env = $variable, value_name = "N")]
                $name: Option<$type>,
            )*
        }

        impl LimitSettings {
            /// The limits of the first source that has each, checked.
            fn resolve(self, file: LimitSettings) -> Result<Limits, String> {
                let mut limits = Limits::default();
                $(
                    if let Some(value) = self.$name.or(file.$name) {
                        if value == 0 {
                            return Err(format!("the limit `{}` must be at least 1", stringify!($name)));
                        }
                        limits.$name = value;
                    }
                )*
                Ok(limits)
            }
        }
    };
}

limit_settings! {
    /// Connections served at once
    max_connections: usize, "SETTEE_MAX_CONNECTIONS";
    /// Bytes of a request's head
    max_head_bytes: usize, "SETTEE_MAX_HEAD_BYTES";
    /// Headers of a request
    max_headers: usize, "SETTEE_MAX_HEADERS";
    /// Bytes of a request's body
    max_request_bytes: u64, "SETTEE_MAX_REQUEST_BYTES";
    /// Bytes of all requests' bodies that are held at once; at least max-request-bytes
    request_bytes_in_flight_max: u64, "SETTEE_REQUEST_BYTES_IN_FLIGHT_MAX";
    /// Bytes of a document
    max_document_size: usize, "SETTEE_MAX_DOCUMENT_SIZE";
    /// Bytes of a refused body that are read before the connection is closed
    max_discard_bytes: u64, "SETTEE_MAX_DISCARD_BYTES";
    /// Milliseconds to send a request's head, idle time before it included
    head_timeout_ms: u64, "SETTEE_HEAD_TIMEOUT_MS";
    /// Milliseconds for which a client may pause within a body
    body_timeout_ms: u64, "SETTEE_BODY_TIMEOUT_MS";
    /// Identifiers that _uuids gives at once
    max_uuids: u64, "SETTEE_MAX_UUIDS";
    /// Ids that a feed filtered by _doc_ids takes
    max_feed_doc_ids: usize, "SETTEE_MAX_FEED_DOC_IDS";
    /// Bytes of a chunk of a streamed answer
    stream_chunk_bytes: usize, "SETTEE_STREAM_CHUNK_BYTES";
    /// Chunks of a streamed answer that wait for a slow client
    stream_chunks: usize, "SETTEE_STREAM_CHUNKS";
    /// Milliseconds for which a client may take nothing of an answer
    send_timeout_ms: u64, "SETTEE_SEND_TIMEOUT_MS";
    /// Milliseconds of the longest silence in a changes feed
    changes_timeout_ms: u64, "SETTEE_CHANGES_TIMEOUT_MS";
    /// Seconds for which a session's cookie is good
    session_timeout_s: u64, "SETTEE_SESSION_TIMEOUT_S";
    /// Milliseconds that a stopping server waits for the requests in flight
    stop_timeout_ms: u64, "SETTEE_STOP_TIMEOUT_MS";
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
        Ok(Config {
            data_dir: given.data_dir.or(file.data_dir).unwrap_or_else(|| "./settee-data".into()),
            listen: given.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:5984".to_owned()),
            admin,
            log_format: given.log_format.or(file.log_format).unwrap_or(LogFormat::Text),
            io_engine: given.io_engine.or(file.io_engine).unwrap_or(IoEngine::Auto).into(),
            limits: check_limits(given.limits.resolve(file.limits)?)?,
        })
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
    Ok(limits)
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
    fn a_limit_of_zero_is_refused() {
        let error = resolve(flags(&["--changes-timeout-ms", "0"]), "").unwrap_err();
        assert!(error.contains("changes_timeout_ms"), "{error}");
    }
}
