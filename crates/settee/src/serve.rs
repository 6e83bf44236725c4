//! `settee serve`: the server as a process, from its settings to its last sync.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use settee_doc::Databases;
use settee_http::{Admin, ServerOptions, check_listener};
use settee_io::{BufferPool, Env};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::runtime::{self, Handle};

use crate::config::{Config, Settings};
use crate::first_admin::{ADMIN_FILE, FirstAdmin};
use crate::logging::ServerLog;
use crate::{CommandResult, place};

mod shutdown;

use shutdown::Shutdown;

/// Connections that the system keeps until they are accepted, where its own limit
/// (`net.core.somaxconn`) allows as many. One beyond is tried again by its client after a second.
const ACCEPT_QUEUE_COUNT: u32 = 4096;

/// The target of the line that each start logs, at every level.
pub(crate) const START_TARGET: &str = "settee::start";

/// Holds the server's identity, beside the databases.
pub(crate) const UUID_FILE: &str = "server-uuid";

/// What each start of a server without an administrator says.
const NO_ADMIN: &str = "none (no_admin): every caller on this machine may do everything, and only this \
                        machine is served";

/// Descriptors for all but connections and the databases' files: the runtime, the listener, the log, the
/// server's own files, and the directories that the engine's threads open in order to sync or list them.
const OTHER_DESCRIPTORS: u64 = 64;

/// Files of each database that may be open, at least: its open segment, and another.
const FILES_PER_DATABASE: u64 = 2;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// TOML file with settings; flags and variables go before it
    #[arg(long, env = "SETTEE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let config = Config::resolve(args.settings, args.config.as_deref())?;
    let log = ServerLog::start(&config.log)?;
    runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(config, &log))
}

/// Listens on the first of the addresses that `address` names where that works.
///
/// # Errors
/// Those of the last address.
async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in lookup_host(address).await? {
        result = listen_on(address);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart doesn't wait for the last process's connections to time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE_COUNT)
}

async fn serve(mut config: Config, log: &ServerLog) -> CommandResult {
    let files_max = share_descriptors(&mut config, raise_descriptor_limit());
    let shutdown = Shutdown::new(config.log.file.is_some().then(|| log.reopener()))?;
    let listener = listen(&config.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", config.listen))?;
    let limits = config.limits_text();
    let ignores_validation = config.databases.ignore_validation;
    let mut options = ServerOptions {
        admin: config.admin,
        limits: config.limits,
        trusted_proxies: config.trusted_proxies,
        config_file: Some(config.data_dir.join(settee_http::CONFIG_FILE)),
        access_log: config.access_log,
        dropped_log_lines: log.dropped_count(),
        ..ServerOptions::default()
    };
    if config.no_admin {
        check_listener(&listener, &options)?;
    }
    let address = listener.local_addr()?;

    if let Some(problem) = place::close_to_others(&config.data_dir) {
        tracing::warn!("{problem}");
    }
    let mut engine = config.io.engine(config.io_engine);
    engine.threads.files_max = files_max;
    let engine =
        engine.start().map_err(|error| format!("cannot start the engine {}: {error}", config.io_engine))?;
    let engine_name = engine.name();
    tracing::debug!(engine = engine_name, direct_io = config.databases.log.direct, %limits, "settings in force");
    let buffers = BufferPool::new(config.io.pool());
    let env = Env { buffers, ..Env::with_engine(Handle::current(), engine) };
    let databases = Databases::open_with(env, &std::path::absolute(&config.data_dir)?, config.databases)
        .await
        .map_err(|error| format!("cannot open the data in {}: {error}", config.data_dir.display()))?;
    let new_password = match identify(&config.data_dir, config.no_admin, &mut options) {
        Ok(new_password) => new_password,
        Err(error) => {
            databases.close().await?;
            return Err(error.into());
        }
    };
    let admin = options.admin.as_ref().map(Admin::name);
    log_start(address, &config.data_dir, admin, engine_name, ignores_validation);
    greet(address, &config.data_dir, admin, new_password.as_deref(), ignores_validation);

    let served = settee_http::serve(listener, databases.clone(), options, shutdown.begun()).await;
    databases.close().await?;
    tracing::info!("stopped");
    Ok(served?)
}

/// Takes as many descriptors as the system lets us: connections and segments need one each, and
/// what shells set by default is meant for programs that use select(2).
/// Returns how many those are, where there is a limit.
fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let shown = |count: Option<u64>| count.map_or("unlimited".to_owned(), |count| count.to_string());
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            tracing::debug!(before = shown(limit.current), now = shown(limit.maximum), "descriptors");
            limit.maximum
        }
        Err(error) => {
            tracing::warn!(%error, limit = shown(limit.current), "the limit on descriptors stays");
            limit.current
        }
    }
}

/// Shares the descriptors that there are among connections and the databases' files, so that neither takes
/// the others': lowers the limits that ask for more. Returns how many files may be open. Databases whose
/// files are more than that are closed while nobody uses them; of the files a part is kept for new
/// segments ([`settee_io::Descriptors`]).
fn share_descriptors(config: &mut Config, descriptor_count_max: Option<u64>) -> usize {
    let Some(count) = descriptor_count_max else { return usize::MAX };
    let shared = count.saturating_sub(OTHER_DESCRIPTORS).max(2);
    lower("max_connections", &mut config.limits.max_connections, shared / 2);
    config.share_connections();
    let files = shared - config.limits.max_connections as u64;
    lower("open_databases_max", &mut config.databases.open_databases_max, files / FILES_PER_DATABASE);
    usize::try_from(files).unwrap_or(usize::MAX)
}

fn lower(name: &str, limit: &mut usize, most: u64) {
    let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
    if *limit > most {
        tracing::warn!(asked = *limit, now = most, "{name}: too few descriptors");
        *limit = most;
    }
}

/// The identity kept with the data; `None` where there is none yet.
///
/// # Errors
/// What the system says; of kind `InvalidData` where the file holds something else.
pub(crate) fn read_server_uuid(data_dir: &Path) -> io::Result<Option<String>> {
    match std::fs::read(data_dir.join(UUID_FILE)) {
        Ok(bytes) if bytes.len() == 32 && bytes.iter().all(u8::is_ascii_hexdigit) => {
            Ok(Some(bytes.into_iter().map(char::from).collect()))
        }
        Ok(_) => {
            let what = format!(
                "{} is damaged: it holds no 32 hex digits. Without the file the server gives itself a new \
                 identity, and whoever replicates with it begins anew",
                data_dir.join(UUID_FILE).display()
            );
            Err(io::Error::new(io::ErrorKind::InvalidData, what))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Completes the options with what is kept in the data directory: the server's identity, and the
/// administrator where the settings name none. Returns the password of an administrator made now.
fn identify(data_dir: &Path, no_admin: bool, options: &mut ServerOptions) -> Result<Option<String>, String> {
    options.uuid = server_uuid(data_dir)
        .map_err(|error| format!("cannot keep the server's identity in {}: {error}", data_dir.display()))?;
    if options.admin.is_some() || no_admin {
        return Ok(None);
    }
    let FirstAdmin { admin, new_password } =
        FirstAdmin::of(data_dir).map_err(|error| format!("no administrator: {error}"))?;
    options.admin = Some(admin);
    Ok(new_password)
}

/// The identity kept with the data; a server that has none draws it.
fn server_uuid(data_dir: &Path) -> io::Result<String> {
    let path = data_dir.join(UUID_FILE);
    match read_server_uuid(data_dir)? {
        Some(uuid) => Ok(uuid),
        None => {
            let fresh = settee_http::new_uuid();
            // Renamed into place, so that there is never half of one.
            let unfinished = path.with_extension("new");
            let mut file = std::fs::File::create(&unfinished)?;
            file.write_all(fresh.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)?;
            std::fs::File::open(data_dir)?.sync_all()?;
            Ok(fresh)
        }
    }
}

/// Prints on stdout where the server is and what to try.
fn greet(
    address: SocketAddr,
    data_dir: &Path,
    admin: Option<&str>,
    new_password: Option<&str>,
    ignores_validation: bool,
) {
    let version = env!("CARGO_PKG_VERSION");
    let file = data_dir.join(ADMIN_FILE);
    let (user, who) = match (admin, new_password) {
        (Some(name), Some(password)) => (
            format!("-u {name}:{password} "),
            format!("Administrator: {name}, password: {password} (kept in {})", file.display()),
        ),
        (Some(name), None) => (format!("-u {name} "), format!("Administrator: {name}")),
        (None, _) => (String::new(), format!("Administrator: {NO_ADMIN}")),
    };
    let validation = match ignores_validation {
        true => "ignore_validation is set: validate_doc_update functions are stored and not run.\n",
        false => "",
    };
    let text = format!(
        "Settee {version}, data in {}\n\
         listening on http://{address}/\n\
         {who}\n{validation}\
         Open http://{address}/ or try:\n  \
         curl {user}-X PUT http://{address}/hello\n",
        data_dir.display()
    );
    // Nobody has to be reading.
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).ok();
}

/// Logs the one line of each start.
fn log_start(
    address: SocketAddr,
    data_dir: &Path,
    admin: Option<&str>,
    engine: &str,
    ignores_validation: bool,
) {
    let version = env!("CARGO_PKG_VERSION");
    let (data_dir, admin) = (data_dir.display(), admin.unwrap_or(NO_ADMIN));
    let ignore_validation =
        ignores_validation.then_some("validate_doc_update functions are stored and not run");
    tracing::info!(
        target: START_TARGET,
        %version,
        %data_dir,
        admin,
        engine,
        ignore_validation,
        "listening on http://{address}/"
    );
}
