//! A server in a separate process that the measurement starts and stops.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::couch::Couch;
use crate::error::{Error, Result};
use crate::http::Server;

/// Longest wait for a server's first response.
const START_WAIT_MAX: Duration = Duration::from_secs(30);

/// Longest wait for a server to exit after SIGTERM; past it, it is killed.
const STOP_WAIT_MAX: Duration = Duration::from_secs(30);

/// Interval between two checks of a server that starts or stops.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum bytes of a failed server's error output that an error shows.
const STDERR_BYTES_MAX: u64 = 2000;

/// A server in a child process, stopped on drop.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    server: Server,
}

impl ServerProcess {
    /// Starts `program serve` on a free loopback port, with its data in `directory`, the administrator
    /// `admin` (`NAME:PASSWORD`) or none, and `settings` as flags. Returns once the server responds.
    ///
    /// # Errors
    /// [`Error::Server`] with the process's error output; no process is left running.
    pub async fn settee(
        program: &Path,
        directory: &Path,
        admin: Option<&str>,
        settings: &[String],
    ) -> Result<ServerProcess> {
        let port = free_port().map_err(|error| Error::Server(error.to_string()))?;
        let mut command = Command::new(program);
        command.args(["serve", "--data-dir"]).arg(directory);
        match admin {
            Some(admin) => command.args(["--admin", admin]),
            None => command.arg("--no-admin"),
        };
        command.args(["--listen", &format!("127.0.0.1:{port}")]).args(settings);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| Error::Server(error.to_string()))?;
        let server = format!("http://127.0.0.1:{port}").parse().map_err(crate::couch::CouchError::from)?;
        let mut process = ServerProcess { child, server };
        process.wait_until_up().await?;
        process.drain_stderr();
        Ok(process)
    }

    /// Starts `program bench bare-server`, the bare server of [`crate::limits`].
    ///
    /// # Errors
    /// [`Error::Server`]; no process is left running.
    pub fn bare(program: &Path) -> Result<ServerProcess> {
        let mut command = Command::new(program);
        // It exits when its input ends, so also when this process is killed.
        command.args(["bench", "bare-server"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Error::Server(error.to_string()))?;
        let mut url = String::new();
        let stdout = child.stdout.take().expect("its output is a pipe");
        let read = BufReader::new(stdout).read_line(&mut url);
        match (read, url.trim().parse()) {
            (Ok(_), Ok(server)) => Ok(ServerProcess { child, server }),
            _ => {
                stop(&mut child);
                Err(Error::Server("the bare server named no address".to_owned()))
            }
        }
    }

    /// The server's address.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resets the maximum that [`ServerProcess::peak_bytes`] returns, if the system supports it.
    pub(crate) fn reset_peak(pid: u32) {
        // "5" resets the resident set's high-water mark: see proc_pid_clear_refs(5).
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").ok();
    }

    /// A process's peak resident memory in bytes, or `None` if the system doesn't report it.
    pub(crate) fn peak_bytes(pid: u32) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
    }

    async fn wait_until_up(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_WAIT_MAX;
        let mut couch = Couch::new(self.server.clone());
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                let mut error_output = String::new();
                if let Some(stderr) = self.child.stderr.take() {
                    let _ = stderr.take(STDERR_BYTES_MAX).read_to_string(&mut error_output);
                }
                return Err(Error::Server(format!("{status}: {}", error_output.trim())));
            }
            match couch.call("GET", "/_up", None).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Reads the server's log in a thread: a full pipe would block the server.
    fn drain_stderr(&mut self) {
        if let Some(mut stderr) = self.child.stderr.take() {
            std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

fn stop(child: &mut Child) {
    // The bare server exits when its input is closed.
    let requested =
        child.stdin.take().is_some() || kill_process(Pid::from_child(child), Signal::TERM).is_ok();
    let deadline = Instant::now() + STOP_WAIT_MAX;
    while requested && Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    // Errors are ignored: nothing else can stop the process.
    let _ = child.kill();
    let _ = child.wait();
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
