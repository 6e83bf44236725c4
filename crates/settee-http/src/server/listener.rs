//! Accepts connections until the server is shut down.
//!
//! Each connection is a task (`connection.rs`). Shutdown runs in this order: the server stops accepting
//! connections, feeds end, requests in flight are answered, and after `stop_timeout_ms` the remaining ones
//! are aborted.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use settee_doc::Databases;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connection;
use super::connections::{ConnectionSlot, Connections};
use crate::context::Shared;
use crate::settings::ServerOptions;

/// Pause after a failed accept, which is most likely caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a server ended or didn't start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Without an administrator, every caller of a non-loopback address would have administrator rights.
    #[error("refusing to listen on {0} without an administrator: only loopback is served without one")]
    NoAdministrator(SocketAddr),

    /// The listener failed.
    #[error("cannot listen: {0}")]
    Listener(#[from] io::Error),
}

/// Serves `databases` on `listener` until `shutdown` completes, and returns when the requests in flight are
/// answered or `stop_timeout_ms` has passed. It doesn't close the databases; the caller does.
///
/// Must be called on a tokio runtime with its I/O and time drivers. Dropping the future stops the server at
/// once.
///
/// # Errors
/// [`ServeError::NoAdministrator`] if the listener isn't on loopback and there is no administrator.
pub async fn serve(
    listener: TcpListener,
    databases: Arc<Databases>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    check_listener(&listener, &options)?;
    let (stop, stopping) = watch::channel(false);
    let address = listener.local_addr().ok();
    let slots = Connections::new(&options.limits, options.trusted_proxies.clone());
    let shared = Arc::new(Shared::new(databases, options, address, stopping));
    let server = shared.current();
    let acceptor = Acceptor { listener, slots: Arc::new(slots), accepted: None };
    if let Err(error) = server.views.sweep(&server.databases).await {
        tracing::warn!(%error, "the indexes of databases that don't exist remain");
    }
    let keep_up = server.views.clone().keep_up(server.databases.clone());
    let mut connections = tokio::select! {
        connections = accept_until(acceptor, &shared, shutdown) => connections,
        () = keep_up => unreachable!("it runs until it is dropped"),
    };

    stop.send_replace(true);
    let stop_timeout = Duration::from_millis(server.limits.stop_timeout_ms);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(stop_timeout, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "requests were aborted at shutdown");
    }
    connections.shutdown().await;
    Ok(())
}

/// Checks that `listener` may be served with these options. [`serve`] makes the same check.
///
/// # Errors
/// [`ServeError::NoAdministrator`].
pub fn check_listener(listener: &TcpListener, options: &ServerOptions) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    match options.admin.is_some() || address.ip().is_loopback() {
        true => Ok(()),
        false => Err(ServeError::NoAdministrator(address)),
    }
}

async fn accept_until(
    mut acceptor: Acceptor,
    shared: &Arc<Shared>,
    shutdown: impl Future<Output = ()>,
) -> JoinSet<()> {
    let mut shutdown = pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => return connections,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = acceptor.next() => match accepted {
                Ok(Some((stream, slot))) => {
                    connections.spawn(connection::serve(shared.clone(), stream, slot));
                }
                Ok(None) => shared.current().metrics.count_refused_connection(),
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Accepts connections from the kernel's queue.
struct Acceptor {
    listener: TcpListener,
    slots: Arc<Connections>,
    /// Accepted and waiting for a connection slot.
    accepted: Option<(TcpStream, IpAddr)>,
}

impl Acceptor {
    /// Returns the next connection once it has a slot, or None if the connection was closed because its
    /// address has `connections_per_address_max` connections.
    ///
    /// Cancel-safe: dropping the future loses no connection.
    async fn next(&mut self) -> io::Result<Option<(TcpStream, ConnectionSlot)>> {
        let address = match &self.accepted {
            Some((_, address)) => *address,
            None => {
                let (stream, address) = self.listener.accept().await?;
                self.accepted = Some((stream, address.ip()));
                address.ip()
            }
        };
        let slot = self.slots.acquire(address).await;
        let accepted = self.accepted.take();
        Ok(accepted.zip(slot.ok()).map(|((stream, _), slot)| (stream, slot)))
    }
}
