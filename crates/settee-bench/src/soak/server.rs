//! The server under test: a process that is killed and started again on the same directory.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::couch::Couch;
use crate::error::{Error, Result};
use crate::http::Server;

/// Longest wait for a server to answer its first request.
const START_WAIT_MAX: Duration = Duration::from_secs(60);

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Bytes at the end of its log that are shown where it fails.
const LOG_BYTES_SHOWN: usize = 4_000;

/// A server, and what is needed to start it again.
pub(super) struct Subject {
    program: PathBuf,
    directory: PathBuf,
    address: String,
    child: Option<Child>,
}

/// What a process holds, as `/proc` tells.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) resident_bytes: u64,
    pub(super) descriptors: u64,
    pub(super) sockets: u64,
    /// Descriptors of files that have no name any more.
    pub(super) nameless: u64,
    pub(super) threads: u64,
}

impl Subject {
    pub(super) async fn start(program: &Path, directory: &Path) -> Result<Subject> {
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = port.map_err(|error| Error::file(directory, error))?.port();
        let (program, directory) = (program.to_owned(), directory.to_owned());
        let mut subject = Subject { program, directory, address: format!("127.0.0.1:{port}"), child: None };
        subject.start_again().await?;
        Ok(subject)
    }

    /// Where it listens, before and after it was started again.
    pub(super) fn server(&self) -> Server {
        format!("http://{}", self.address).parse().expect("it is an address")
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// Starts it; returns once it answers, with how long that took.
    pub(super) async fn start_again(&mut self) -> Result<Duration> {
        let log = fs::File::options().create(true).append(true).open(self.log());
        let log = log.map_err(|error| Error::file(&self.directory, error))?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--no-admin", "--listen", &self.address, "--data-dir"]).arg(self.data());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let begun = Instant::now();
        self.child = Some(command.spawn().map_err(|error| Error::Server(error.to_string()))?);
        let mut couch = Couch::new(self.server());
        while couch.call("GET", "/_up", None).await.is_err() {
            if let Some(ended) = self.has_ended() {
                return Err(Error::Server(ended));
            }
            if begun.elapsed() > START_WAIT_MAX {
                return Err(Error::Server(format!("it answers nothing: {}", self.said())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(begun.elapsed())
    }

    /// How it ended by itself, where it did.
    pub(super) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(format!("the server ended by itself ({status}): {}", self.said()))
    }

    /// The end of its log.
    pub(super) fn said(&self) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES_SHOWN)..]).into_owned()
    }

    /// Ends it by SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself: then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it by SIGTERM, and checks what it left.
    pub(super) async fn stop_and_check(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            let asked = rustix::process::kill_process(
                rustix::process::Pid::from_child(&child),
                rustix::process::Signal::TERM,
            );
            asked.map_err(|error| Error::file(&self.directory, error.into()))?;
            let begun = Instant::now();
            let status = loop {
                match child.try_wait().map_err(|error| Error::file(&self.directory, error))? {
                    Some(status) => break status,
                    None if begun.elapsed() > START_WAIT_MAX => {
                        let _ = child.kill();
                        let _ = child.wait();
                        return Err(Error::Server("it did not stop when it was asked to".to_owned()));
                    }
                    None => tokio::time::sleep(LOOK_EVERY).await,
                }
            };
            if !status.success() {
                return Err(Error::Server(format!("it stopped with {status}: {}", self.said())));
            }
        }
        let mut check = Command::new(&self.program);
        check.arg("check").arg(self.data()).stdin(Stdio::null());
        let output = check.output().map_err(|error| Error::Server(error.to_string()))?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            return Err(Error::Server(format!("settee check: {}: {said}", output.status)));
        }
        Ok(())
    }

    /// What it holds now.
    pub(super) fn held(&self) -> Result<Held> {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let at = PathBuf::from(format!("/proc/{pid}"));
        let read = || -> std::io::Result<Held> {
            let status = fs::read_to_string(at.join("status"))?;
            let number = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0_u64)
            };
            let mut held = Held {
                resident_bytes: number("VmRSS:") << 10,
                threads: number("Threads:"),
                ..Held::default()
            };
            for entry in fs::read_dir(at.join("fd"))? {
                // One that was closed meanwhile isn't held.
                let Ok(target) = fs::read_link(entry?.path()) else { continue };
                let target = target.to_string_lossy();
                held.descriptors += 1;
                held.sockets += u64::from(target.starts_with("socket:"));
                held.nameless += u64::from(target.ends_with(" (deleted)"));
            }
            Ok(held)
        };
        read().map_err(|error| Error::file(&at, error))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.kill();
    }
}
