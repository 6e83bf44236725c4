//! The subject of a measurement: a server that is given or started, or this process.

use std::path::Path;

use settee_bench::api::Target;
use settee_bench::process::ServerProcess;
use settee_bench::space::{self, Directory};

use super::arguments::CommonArgs;
use crate::output::print_stderr;

/// The subject of a measurement: a server or this process, with the directory of its data.
pub(super) struct Subject {
    /// None for a measurement in this process.
    pub(super) server: Option<Target>,
    /// Dropped before the directory, so that the server stops first.
    _process: Option<ServerProcess>,
    /// None if the server's directory isn't known.
    directory: Option<Directory>,
}

impl Subject {
    /// Prepares the subject that the arguments select. `needed` is the size of the documents to write, in
    /// bytes of JSON; `settings` are flags of a server that is started.
    ///
    /// # Errors
    /// The disk is too small, or the server can't be started.
    pub(super) async fn open(
        common: &CommonArgs,
        needed: u64,
        settings: &[String],
    ) -> Result<Subject, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(server) = &common.url {
            let directory =
                common.data_dir.as_deref().map(|parent| Directory::new(Some(parent))).transpose()?;
            let target = Target { server: common.user.apply(server.clone())?, pid: common.server_pid };
            return Ok(Subject { server: Some(target), _process: None, directory });
        }
        let directory = Directory::new(common.data_dir.as_deref())?;
        space::check(directory.path(), needed)?;
        if space::is_in_memory(directory.path()) {
            print_stderr!(
                "{} is on a file system in memory, where a sync costs nothing: see --data-dir",
                directory.path().display()
            );
        }
        let mut subject = Subject { server: None, _process: None, directory: Some(directory) };
        if common.spawn {
            let directory = subject.directory.as_ref().expect("set above").path().join("server");
            let process =
                ServerProcess::settee(&std::env::current_exe()?, &directory, None, settings).await?;
            subject.server = Some(Target { server: process.server().clone(), pid: Some(process.pid()) });
            subject._process = Some(process);
        }
        Ok(subject)
    }

    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_ref().map(Directory::path)
    }

    pub(super) fn description(&self) -> String {
        match &self.server {
            None => "in process".to_owned(),
            Some(target) => format!("over HTTP at {}", target.server.address()),
        }
    }
}
