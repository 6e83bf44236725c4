//! A server in a separate process that the measurement starts, kills and stops, and what a process uses.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use settee_client::{Couch, Server};

use crate::error::{Error, Result};
use crate::stats::proc_field;

/// Longest wait for the server's first response, and for its exit.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Interval between two checks of a server that starts or stops.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes at the end of the server's log that an error shows.
const LOG_BYTES_SHOWN: usize = 4_000;

/// A server, and the command that restarts it. It is killed on drop.
#[derive(Debug)]
pub struct ServerProcess {
    command: Command,
    directory: PathBuf,
    server: Server,
    child: Option<Child>,
}

impl ServerProcess {
    /// Starts `program serve` on a free loopback port, with its data and its log in `directory`, the
    /// administrator `admin` (`NAME:PASSWORD`) or none, and `settings` as flags. Returns once it responds.
    ///
    /// # Errors
    /// [`Error::Server`] with the end of the server's log; no process is left running.
    pub async fn start(
        program: &Path,
        directory: &Path,
        admin: Option<&str>,
        settings: &[String],
    ) -> Result<ServerProcess> {
        let failed = |error| Error::file(directory, error);
        fs::create_dir_all(directory).map_err(failed)?;
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let address = format!("127.0.0.1:{}", port.map_err(failed)?.port());
        let log = fs::File::options().create(true).append(true).open(directory.join("server.log"));
        let mut command = Command::new(program);
        command.args(["serve", "--listen", &address, "--data-dir"]).arg(directory.join("data"));
        match admin {
            Some(admin) => command.args(["--admin", admin]),
            None => command.arg("--no-admin"),
        };
        command.args(settings).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.map_err(failed)?);
        let server = format!("http://{address}").parse()?;
        let mut process = ServerProcess { command, directory: directory.to_owned(), server, child: None };
        process.restart().await?;
        Ok(process)
    }

    /// Starts the server again, which has exited. Returns once it responds, with the time that it took.
    ///
    /// # Errors
    /// Those of [`ServerProcess::start`].
    pub async fn restart(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.child = Some(self.command.spawn().map_err(|error| Error::Server(error.to_string()))?);
        let mut couch = Couch::new(self.server.clone());
        while couch.call("GET", "/_up", None).await.is_err() {
            if let Some(ended) = self.has_ended() {
                return Err(Error::Server(ended));
            }
            if started.elapsed() > WAIT_MAX {
                return Err(Error::Server(format!("it doesn't respond: {}", self.log_tail())));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(started.elapsed())
    }

    /// The server's address, which restarts don't change.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// The server's data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// A description of the server's exit, if it has exited by itself.
    pub(crate) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(format!("the server ended by itself ({status}): {}", self.log_tail()))
    }

    /// The end of the server's log.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(self.directory.join("server.log")).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES_SHOWN)..]).into_owned()
    }

    /// Kills the server by SIGKILL and waits for its exit.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Fails if it has exited by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the server by SIGTERM.
    ///
    /// # Errors
    /// It doesn't stop, or not in order; it is killed then.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        let failed = |error| Error::file(Path::new("/proc"), error);
        let Some(child) = &mut self.child else { return Ok(()) };
        kill_process(Pid::from_child(child), Signal::TERM).map_err(|error| failed(error.into()))?;
        let started = Instant::now();
        let status = loop {
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if started.elapsed() > WAIT_MAX => {
                    self.kill();
                    return Err(Error::Server("it did not stop after SIGTERM".to_owned()));
                }
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        };
        self.child = None;
        match status.success() {
            true => Ok(()),
            false => Err(Error::Server(format!("it stopped with {status}: {}", self.log_tail()))),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Resources of a process, from `/proc`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) resident_bytes: u64,
    /// The maximum since [`reset_peak`], or since the process began.
    pub(crate) peak_bytes: u64,
    pub(crate) threads: u64,
    pub(crate) descriptors: u64,
    pub(crate) sockets: u64,
    /// Number of open files that have been removed.
    pub(crate) removed_files: u64,
}

impl Usage {
    /// The current usage. None if there is no such process.
    pub(crate) fn of(pid: u32) -> Option<Usage> {
        let number = |name: &str| proc_field(&format!("/proc/{pid}/status"), name);
        let mut usage = Usage {
            resident_bytes: number("VmRSS:")? << 10,
            peak_bytes: number("VmHWM:")? << 10,
            threads: number("Threads:")?,
            ..Usage::default()
        };
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
            // A descriptor that was closed meanwhile doesn't count.
            let Ok(target) = fs::read_link(entry.ok()?.path()) else { continue };
            let target = target.to_string_lossy();
            usage.descriptors += 1;
            usage.sockets += u64::from(target.starts_with("socket:"));
            usage.removed_files += u64::from(target.ends_with(" (deleted)"));
        }
        Some(usage)
    }
}

/// Resets a process's [`Usage::peak_bytes`], if the system supports it.
pub(crate) fn reset_peak(pid: u32) {
    // "5" resets the resident set's high-water mark: see proc_pid_clear_refs(5).
    fs::write(format!("/proc/{pid}/clear_refs"), "5").ok();
}

/// Raises this process's limit on open descriptors, which bounds the number of connections, to at least
/// `needed` (getrlimit(2)).
pub(crate) fn raise_descriptor_limit(needed: u64) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(limit.current) {
        return Ok(());
    }
    let maximum = if enough(limit.maximum) { limit.maximum } else { Some(needed) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|error| {
        let granted = limit.maximum.map_or("unlimited".to_owned(), |limit| limit.to_string());
        format!(
            "{needed} descriptors are needed and {granted} granted ({error}): \
             see ulimit -Hn, or take a smaller --scale"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_descriptors_than_the_system_grants_are_refused_with_both_figures() {
        let refused = raise_descriptor_limit(1 << 40).unwrap_err();
        assert!(refused.contains("1099511627776 descriptors are needed"), "{refused}");
    }

    #[test]
    fn a_process_has_memory_threads_and_descriptors() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.peak_bytes >= usage.resident_bytes && usage.resident_bytes > 1 << 20, "{usage:?}");
        assert!(usage.threads > 0 && usage.descriptors > 0, "{usage:?}");
        assert!(Usage::of(u32::MAX).is_none());
    }
}
