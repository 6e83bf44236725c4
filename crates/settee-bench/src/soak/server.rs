//! The server under test: a process that is killed and restarted on the same directory.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::couch::Couch;
use crate::error::{Error, Result};
use crate::http::Server;

/// Longest wait for the server's first response, and for its exit.
const START_WAIT_MAX: Duration = Duration::from_secs(60);

/// Interval between two checks of a server that starts or stops.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes at the end of the server's log that an error shows.
const LOG_BYTES_SHOWN: usize = 4_000;

/// A server with the parameters to restart it. It is killed on drop.
pub(super) struct ServerUnderTest {
    program: PathBuf,
    directory: PathBuf,
    address: String,
    child: Option<Child>,
}

/// Resources of the server's process, from `/proc`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) resident_bytes: u64,
    pub(super) descriptors: u64,
    pub(super) sockets: u64,
    /// Number of open files that have been removed.
    pub(super) removed_files: u64,
    pub(super) threads: u64,
}

impl ServerUnderTest {
    pub(super) async fn start(program: &Path, directory: &Path) -> Result<ServerUnderTest> {
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = port.map_err(|error| Error::file(directory, error))?.port();
        let (program, directory) = (program.to_owned(), directory.to_owned());
        let address = format!("127.0.0.1:{port}");
        let mut server = ServerUnderTest { program, directory, address, child: None };
        server.restart().await?;
        Ok(server)
    }

    /// The server's address, which restarts don't change.
    pub(super) fn server(&self) -> Server {
        format!("http://{}", self.address).parse().expect("it is an address")
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// Starts the server. Returns once it responds, with the time that it took.
    pub(super) async fn restart(&mut self) -> Result<Duration> {
        let log = fs::File::options().create(true).append(true).open(self.log());
        let log = log.map_err(|error| Error::file(&self.directory, error))?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--no-admin", "--listen", &self.address, "--data-dir"]).arg(self.data());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let started = Instant::now();
        self.child = Some(command.spawn().map_err(|error| Error::Server(error.to_string()))?);
        let mut couch = Couch::new(self.server());
        while couch.call("GET", "/_up", None).await.is_err() {
            if let Some(ended) = self.has_ended() {
                return Err(Error::Server(ended));
            }
            if started.elapsed() > START_WAIT_MAX {
                return Err(Error::Server(format!("it doesn't respond: {}", self.log_tail())));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(started.elapsed())
    }

    /// A description of the server's exit, if it has exited by itself.
    pub(super) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(format!("the server ended by itself ({status}): {}", self.log_tail()))
    }

    /// The end of the server's log.
    pub(super) fn log_tail(&self) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES_SHOWN)..]).into_owned()
    }

    /// Kills the server by SIGKILL and waits for its exit.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Fails if it has exited by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the server by SIGTERM and runs `settee check` on its files.
    pub(super) async fn stop_and_check(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            let signalled = rustix::process::kill_process(
                rustix::process::Pid::from_child(&child),
                rustix::process::Signal::TERM,
            );
            signalled.map_err(|error| Error::file(&self.directory, error.into()))?;
            let started = Instant::now();
            let status = loop {
                match child.try_wait().map_err(|error| Error::file(&self.directory, error))? {
                    Some(status) => break status,
                    None if started.elapsed() > START_WAIT_MAX => {
                        let _ = child.kill();
                        let _ = child.wait();
                        return Err(Error::Server("it did not stop after SIGTERM".to_owned()));
                    }
                    None => tokio::time::sleep(POLL_INTERVAL).await,
                }
            };
            if !status.success() {
                return Err(Error::Server(format!("it stopped with {status}: {}", self.log_tail())));
            }
        }
        let mut check = Command::new(&self.program);
        check.arg("check").arg(self.data()).stdin(Stdio::null());
        let output = check.output().map_err(|error| Error::Server(error.to_string()))?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            return Err(Error::Server(format!("settee check: {}: {text}", output.status)));
        }
        Ok(())
    }

    /// The process's current usage.
    pub(super) fn usage(&self) -> Result<Usage> {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let proc_directory = PathBuf::from(format!("/proc/{pid}"));
        let read = || -> std::io::Result<Usage> {
            let status = fs::read_to_string(proc_directory.join("status"))?;
            let number = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0_u64)
            };
            let mut usage = Usage {
                resident_bytes: number("VmRSS:") << 10,
                threads: number("Threads:"),
                ..Usage::default()
            };
            for entry in fs::read_dir(proc_directory.join("fd"))? {
                // A descriptor that was closed meanwhile doesn't count.
                let Ok(target) = fs::read_link(entry?.path()) else { continue };
                let target = target.to_string_lossy();
                usage.descriptors += 1;
                usage.sockets += u64::from(target.starts_with("socket:"));
                usage.removed_files += u64::from(target.ends_with(" (deleted)"));
            }
            Ok(usage)
        };
        read().map_err(|error| Error::file(&proc_directory, error))
    }
}

impl Drop for ServerUnderTest {
    fn drop(&mut self) {
        self.kill();
    }
}
