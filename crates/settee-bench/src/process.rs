//! A server in a process of its own, started and stopped by the measurement.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::couch::Couch;
use crate::error::{Error, Result};
use crate::http::Server;

/// Longest wait for a server to answer its first request.
const START_WAIT_MAX: Duration = Duration::from_secs(30);

/// Longest wait for a server to stop when asked to; it is killed afterwards.
const STOP_WAIT_MAX: Duration = Duration::from_secs(30);

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Most bytes of a failed server's error output that are shown.
const STDERR_BYTES_MAX: u64 = 2000;

/// A child process that serves; it is stopped with the value.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    server: Server,
}

impl ServerProcess {
    /// Starts `program serve` on a free port of the loopback, with its data in `directory`, the administrator
    /// `admin` (`NAME:PASSWORD`) or none, and `settings` as flags. Returns once it answers.
    ///
    /// # Errors
    /// [`Error::Server`] with what it said; nothing runs afterwards.
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

    /// Starts `program bench floor-server`: see [`crate::limits`].
    ///
    /// # Errors
    /// [`Error::Server`]; nothing runs afterwards.
    pub fn floor(program: &Path) -> Result<ServerProcess> {
        let mut command = Command::new(program);
        // It ends when its input does, so that it goes with this process whatever ends that.
        command.args(["bench", "floor-server"]).stdin(Stdio::piped()).stdout(Stdio::piped());
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

    /// Where it listens.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets [`ServerProcess::peak_bytes`] begin anew, where the system takes that.
    pub(crate) fn reset_peak(pid: u32) {
        // "5" resets the resident set's high-water mark: see proc_pid_clear_refs(5).
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").ok();
    }

    /// The most memory that a process has had, in bytes; None where the system doesn't say.
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
                let mut said = String::new();
                if let Some(stderr) = self.child.stderr.take() {
                    let _ = stderr.take(STDERR_BYTES_MAX).read_to_string(&mut said);
                }
                return Err(Error::Server(format!("{status}: {}", said.trim())));
            }
            match couch.call("GET", "/_up", None).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Keeps the pipe of its log from filling up, which would stop it.
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
    // One that reads its input ends with it.
    let asked = child.stdin.take().is_some() || kill_process(Pid::from_child(child), Signal::TERM).is_ok();
    let deadline = Instant::now() + STOP_WAIT_MAX;
    while asked && Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    // Nothing can be done where this fails too.
    let _ = child.kill();
    let _ = child.wait();
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
