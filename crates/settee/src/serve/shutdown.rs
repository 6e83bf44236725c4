//! What ends a server from outside: SIGINT and SIGTERM, and SIGHUP where no log file is set.
//!
//! With a log file SIGHUP reopens it, which is what logrotate sends the signal for. Without one
//! there is nothing to reopen, and SIGHUP means that the terminal has gone: the server stops in
//! order. A SIGHUP that was ignored when the process began (`nohup`) stays ignored then.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that stop the server.
pub(super) struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    /// None where SIGHUP doesn't stop the server.
    hangup: Option<Signal>,
}

impl Shutdown {
    /// Listens for the signals. Where `reopen_log` is given, a task calls it at each SIGHUP.
    ///
    /// # Errors
    /// The system takes no handler.
    pub(super) fn new(reopen_log: Option<impl Fn() + Send + 'static>) -> io::Result<Shutdown> {
        let hangup = match reopen_log {
            Some(reopen_log) => {
                let mut hangup = signal(SignalKind::hangup())?;
                tokio::spawn(async move {
                    while hangup.recv().await.is_some() {
                        reopen_log();
                        tracing::info!("SIGHUP: opening the log's file again");
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

    /// Completes at the first signal. A second one ends the process at once, which loses
    /// nothing that was acknowledged as persisted.
    pub(super) async fn begun(mut self) {
        self.next().await;
        tracing::info!("stopping: requests in flight are answered first");
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
/// Source: proc_pid_status(5): `SigIgn` is a mask in hexadecimal, signal 1 its lowest bit.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
