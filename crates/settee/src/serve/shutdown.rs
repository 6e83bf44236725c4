//! Signals that stop the server: SIGINT, SIGTERM, and SIGHUP if no log file is set.
//!
//! With a log file SIGHUP reopens it, as logrotate expects. Without one SIGHUP means that the terminal was
//! closed, and the server shuts down gracefully. A SIGHUP that was ignored when the process started (`nohup`)
//! stays ignored.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that stop the server.
pub(super) struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    /// None if SIGHUP doesn't stop the server.
    hangup: Option<Signal>,
}

impl Shutdown {
    /// Installs the signal handlers. If `reopen_log` is given, a task calls it on each SIGHUP.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(super) fn new(reopen_log: Option<impl Fn() + Send + 'static>) -> io::Result<Shutdown> {
        let hangup = match reopen_log {
            Some(reopen_log) => {
                let mut hangup = signal(SignalKind::hangup())?;
                tokio::spawn(async move {
                    while hangup.recv().await.is_some() {
                        reopen_log();
                        tracing::info!("SIGHUP: reopening the log file");
                    }
                });
                None
            }
            None if ignores_hangup() => None,
            None => Some(signal(SignalKind::hangup())?),
        };
        Ok(Shutdown {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
        })
    }

    /// Returns at the first signal. A second signal exits the process immediately; writes acknowledged as
    /// persisted survive that.
    pub(super) async fn requested(mut self) {
        self.next().await;
        tracing::info!("stopping: answering the requests in flight first");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(1);
        });
    }

    async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}

/// Whether SIGHUP is ignored.
///
/// Source: proc_pid_status(5): `SigIgn` is a hexadecimal mask whose lowest bit is signal 1.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
