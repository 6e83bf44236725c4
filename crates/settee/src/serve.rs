//! `settee serve`: starts the server from its settings and runs it until a signal stops it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use settee_doc::Databases;
use settee_http::{Admin, ServerOptions, check_listener};
use settee_io::{BufferPool, EngineOptions, Env, ThreadOptions, UringOptions};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::runtime::{self, Handle};

use crate::config::{Config, Settings};
use crate::first_admin::{ADMIN_FILE, FirstAdmin};
use crate::logging::{START_TARGET, ServerLog};
use crate::output::CommandResult;
use crate::{data_directory, server_uuid};

mod shutdown;

use shutdown::Shutdown;

/// Number of connections that the kernel queues before they are accepted. `net.core.somaxconn` also limits
/// it. A client beyond the limit retries after a second.
const LISTEN_BACKLOG: u32 = 4096;

/// Printed and logged at each start of a server without an administrator.
const NO_ADMIN: &str = "none (no_admin): every caller on this machine has all rights, and only this \
                        machine is served";

/// Descriptors reserved for everything but connections and the databases' files: the runtime, the listener,
/// the log, the server's own files, and the directories that the engine's threads sync or list.
const OTHER_DESCRIPTORS: u64 = 64;

/// Smallest number of open files per database: its open segment and another file.
const FILES_PER_DATABASE: u64 = 2;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// TOML file with settings; flags and variables take precedence
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

/// Resolves `address` and listens on the first address that can be bound.
///
/// # Errors
/// The error of the last address.
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
    // Lets a restarted server bind while connections of the previous process are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

async fn serve(mut config: Config, log: &ServerLog) -> CommandResult {
    let files_max = share_descriptors(&mut config, raise_descriptor_limit());
    let shutdown = Shutdown::new(config.log.file.is_some().then(|| log.reopener()))?;
    let listener = listen(&config.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", config.listen))?;
    let limits = config.limits_text();
    let mut options = ServerOptions {
        admin: config.admin,
        limits: config.limits.http,
        views: config.limits.views,
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

    if let Some(warning) = data_directory::restrict_access(&config.data_dir) {
        tracing::warn!("{warning}");
    }
    let threads = ThreadOptions { files_max, ..config.limits.threads };
    let engine = EngineOptions { kind: config.io_engine, threads, uring: UringOptions::default() };
    let engine =
        engine.start().map_err(|error| format!("cannot start the engine {}: {error}", config.io_engine))?;
    let engine_name = engine.name();
    tracing::debug!(engine = engine_name, direct_io = config.limits.databases.log.direct, %limits, "settings in force");
    let buffers = BufferPool::new(config.limits.buffers);
    let env = Env { buffers, ..Env::with_engine(Handle::current(), engine) };
    let databases =
        Databases::open_with(env, &std::path::absolute(&config.data_dir)?, config.limits.databases)
            .await
            .map_err(|error| format!("cannot open the data in {}: {error}", config.data_dir.display()))?;
    let new_password = match load_uuid_and_admin(&config.data_dir, config.no_admin, &mut options) {
        Ok(new_password) => new_password,
        Err(error) => {
            databases.close().await?;
            return Err(error.into());
        }
    };
    let admin = options.admin.as_ref().map(Admin::name);
    log_start(address, &config.data_dir, admin, engine_name);
    print_start(address, &config.data_dir, admin, new_password.as_deref());

    let served = settee_http::serve(listener, databases.clone(), options, shutdown.requested()).await;
    databases.close().await?;
    tracing::info!("stopped");
    Ok(served?)
}

/// Raises the soft limit on descriptors to the hard limit, since each connection and segment needs one and
/// the default soft limit is meant for programs that use select(2). Returns the limit in force, or None if it
/// is unlimited.
fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let shown = |count: Option<u64>| count.map_or("unlimited".to_owned(), |count| count.to_string());
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            tracing::debug!(
                before = shown(limit.current),
                now = shown(limit.maximum),
                "descriptor limit raised"
            );
            limit.maximum
        }
        Err(error) => {
            tracing::warn!(%error, limit = shown(limit.current), "cannot raise the descriptor limit");
            limit.current
        }
    }
}

/// Divides the descriptors between connections and the databases' files, so that neither can exhaust the
/// other's share, and lowers limits in `config` that exceed the shares. Returns the largest number of open
/// files. Beyond it idle databases are closed; part of the files is reserved for new segments
/// ([`settee_io::Descriptors`]).
fn share_descriptors(config: &mut Config, descriptor_count_max: Option<u64>) -> usize {
    let Some(count) = descriptor_count_max else { return usize::MAX };
    let shared = count.saturating_sub(OTHER_DESCRIPTORS).max(2);
    clamp_limit("connections_max", &mut config.limits.http.connections_max, shared / 2);
    config.share_connections();
    let files = shared - config.limits.http.connections_max as u64;
    clamp_limit(
        "open_databases_max",
        &mut config.limits.databases.open_databases_max,
        files / FILES_PER_DATABASE,
    );
    usize::try_from(files).unwrap_or(usize::MAX)
}

/// Lowers a limit to `max`, but at least 1, and warns if that changes it.
fn clamp_limit(name: &str, limit: &mut usize, max: u64) {
    let max = usize::try_from(max).unwrap_or(usize::MAX).max(1);
    if *limit > max {
        tracing::warn!(asked = *limit, now = max, "{name}: lowered because of too few descriptors");
        *limit = max;
    }
}

/// Loads the server's uuid from the data directory, or creates it, and does the same with the administrator
/// unless the settings determine it; adds both to the options. Returns the password of an administrator that
/// was created now.
fn load_uuid_and_admin(
    data_dir: &Path,
    no_admin: bool,
    options: &mut ServerOptions,
) -> Result<Option<String>, String> {
    options.uuid = server_uuid::load_or_create(data_dir)
        .map_err(|error| format!("cannot keep the server's identity in {}: {error}", data_dir.display()))?;
    if options.admin.is_some() || no_admin {
        return Ok(None);
    }
    let FirstAdmin { admin, new_password } =
        FirstAdmin::load_or_create(data_dir).map_err(|error| format!("no administrator: {error}"))?;
    options.admin = Some(admin);
    Ok(new_password)
}

/// Prints the server's address, the administrator and an example request on stdout.
fn print_start(address: SocketAddr, data_dir: &Path, admin: Option<&str>, new_password: Option<&str>) {
    let version = env!("CARGO_PKG_VERSION");
    let file = data_dir.join(ADMIN_FILE);
    let (user, admin_line) = match (admin, new_password) {
        (Some(name), Some(password)) => (
            format!("-u {name}:{password} "),
            format!("Administrator: {name}, password: {password} (stored in {})", file.display()),
        ),
        (Some(name), None) => (format!("-u {name} "), format!("Administrator: {name}")),
        (None, _) => (String::new(), format!("Administrator: {NO_ADMIN}")),
    };
    let text = format!(
        "Settee {version}, data in {}\n\
         listening on http://{address}/\n\
         {admin_line}\n\
         Open http://{address}/ or try:\n  \
         curl {user}-X PUT http://{address}/hello\n",
        data_dir.display()
    );
    // The server starts even if stdout is closed.
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).ok();
}

/// Logs the listening address and the settings.
fn log_start(address: SocketAddr, data_dir: &Path, admin: Option<&str>, engine: &str) {
    let version = env!("CARGO_PKG_VERSION");
    let (data_dir, admin) = (data_dir.display(), admin.unwrap_or(NO_ADMIN));
    tracing::info!(
        target: START_TARGET,
        %version,
        %data_dir,
        admin,
        engine,
        "listening on http://{address}/"
    );
}
