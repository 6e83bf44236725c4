//! The subject of a measurement: a server that is given or started.

use std::path::{Path, PathBuf};

use settee_bench::drive::Target;
use settee_bench::process::ServerProcess;
use settee_bench::space::Directory;

use super::arguments::ServerArgs;

/// The subject of a measurement: a server with the directory of its data.
pub(super) struct Subject {
    pub(super) target: Target,
    /// Dropped before the directory, so that the server stops first.
    _process: Option<ServerProcess>,
    /// None if the server's directory isn't known.
    directory: Option<Directory>,
}

impl Subject {
    /// Prepares the subject that the arguments select. `needed` is the size of the documents to write, in
    /// bytes of JSON; `admin` and `settings` are the administrator and flags of a server that is started.
    ///
    /// # Errors
    /// The disk is too small, or the server can't be started.
    pub(super) async fn open(
        args: &ServerArgs,
        needed: u64,
        admin: Option<&str>,
        settings: &[String],
    ) -> Result<Subject, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(server) = &args.url {
            let directory =
                args.disk.data_dir.as_deref().map(|parent| Directory::new(Some(parent))).transpose()?;
            let target = Target { server: args.user.apply(server.clone())?, pid: args.server_pid };
            return Ok(Subject { target, _process: None, directory });
        }
        let directory = args.disk.directory_for(needed)?;
        let (program, path) = (std::env::current_exe()?, directory.path().join("server"));
        let process = ServerProcess::start(&program, &path, admin, settings).await?;
        let target = Target { server: process.server().clone(), pid: Some(process.pid()) };
        Ok(Subject { target, _process: Some(process), directory: Some(directory) })
    }

    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_ref().map(Directory::path)
    }

    /// The data directory of a server that was started.
    pub(super) fn data(&self) -> Option<PathBuf> {
        self._process.as_ref().map(ServerProcess::data)
    }

    pub(super) fn description(&self) -> String {
        let kind = if self._process.is_some() { "a server of its own" } else { "a server" };
        format!("{kind} at {}", self.target.server.address())
    }
}
