//! Runs, each a separate process of this program or of the peers'.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use settee_io::{EngineKind, EngineOptions, Env};

use super::bare::Bare;
use super::ours::Settee;
use super::work::message::{Report, Second};
use super::work::meter::Baseline;
use super::work::{self, Failure, Message, Operation, Spec};
use crate::rounds::Window;
use crate::stats::{Elapsed, Samples};

/// Maximum bytes of a failed process's error output that an error shows.
const MESSAGE_BYTES_MAX: u64 = 300;

/// The engine that runs a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EngineId {
    /// The store.
    Ours,
    /// A bare lookup and pread.
    Bare,
    /// One of [`PEERS`].
    Peer(&'static str),
}

impl EngineId {
    /// The name on the command line and in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            EngineId::Ours => "settee",
            EngineId::Bare => "bare",
            EngineId::Peer(name) => name,
        }
    }
}

/// The other engines, by the peers' binary's names.
pub(super) const PEERS: [&str; 4] = ["fjall", "lmdb", "redb", "rocksdb"];

/// The programs that are started for runs.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub ours: PathBuf,
    pub peers: Option<PathBuf>,
    pub engine: EngineKind,
}

/// The messages of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub report: Report,
    pub seconds: Vec<Second>,
}

impl Programs {
    fn command(&self, engine_id: EngineId, directory: &Path, spec: &Spec) -> Result<Command, String> {
        let spec = serde_json::to_string(spec).expect("a spec is plain data");
        let mut command = match (engine_id, &self.peers) {
            (EngineId::Peer(name), Some(program)) => {
                let mut command = Command::new(program);
                command.args([name, "store"]).arg(directory).arg(spec);
                command
            }
            (EngineId::Peer(_), None) => return Err("no program of the peers".to_owned()),
            (EngineId::Ours | EngineId::Bare, _) => {
                let mut command = Command::new(&self.ours);
                command.args(["bench", "store-run", engine_id.name()]).arg(directory).arg(spec);
                command.arg(self.engine.to_string());
                command
            }
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Runs the spec in `directory` and waits for its end.
    ///
    /// # Errors
    /// The process's status and its error output.
    pub(super) fn run(&self, engine_id: EngineId, directory: &Path, spec: &Spec) -> Result<Run, String> {
        let mut command = self.command(engine_id, directory, spec)?;
        let mut child = command.stdin(Stdio::null()).spawn().map_err(|error| error.to_string())?;
        let mut run = Run::default();
        let mut has_report = false;
        let received = receive(&mut child, |message| {
            match message {
                Message::Second(second) => run.seconds.push(second),
                Message::Report(report) => (run.report, has_report) = (*report, true),
                Message::Loaded => {}
            }
            true
        });
        let status = child.wait().map_err(|error| error.to_string())?;
        match received {
            Ok(()) if status.success() && has_report => Ok(run),
            Ok(()) => Err(format!("{status}: {}", error_output(&mut child))),
            Err(error) => Err(format!("{status}: {error}: {}", error_output(&mut child))),
        }
    }

    /// Runs the spec until the process reports that its records are loaded, and kills the process.
    pub(super) fn kill_when_loaded(
        &self,
        engine_id: EngineId,
        directory: &Path,
        spec: &Spec,
    ) -> Result<(), String> {
        assert_eq!(spec.operation, Operation::LoadAndHold);
        let mut command = self.command(engine_id, directory, spec)?;
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut is_loaded = false;
        let received = receive(&mut child, |message| {
            is_loaded = matches!(message, Message::Loaded);
            !is_loaded
        });
        let killed = child.kill();
        let status = child.wait().map_err(|error| error.to_string())?;
        match (received, killed) {
            (Ok(()), Ok(())) if is_loaded => Ok(()),
            _ => Err(format!("{status} before it was to be killed: {}", error_output(&mut child))),
        }
    }
}

/// Calls `each` with each message of the process until it returns false.
fn receive(child: &mut Child, mut each: impl FnMut(Message) -> bool) -> Result<(), String> {
    let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
    for line in output.lines() {
        let line = line.map_err(|error| error.to_string())?;
        if !each(serde_json::from_str(&line).map_err(|error| format!("{error} in {line:?}"))?) {
            return Ok(());
        }
    }
    Ok(())
}

fn error_output(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // If reading fails, the text so far is shown.
        let _ = stderr.take(MESSAGE_BYTES_MAX).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}

impl Report {
    /// Converts the report to a measurement. `weight` is the number of the row's units per operation.
    pub(super) fn window(&self, weight: f64) -> Window {
        let elapsed = Elapsed {
            wall: Duration::from_secs_f64(self.seconds),
            client_cpu: Duration::from_secs_f64(self.cpu_seconds.max(0.0)),
            ..Elapsed::default()
        };
        Window {
            units: self.operations as f64 * weight,
            percentiles: self.p50_us.zip(self.p99_us).map(|(p50, p99)| [p50, p99]),
            ..Window::new(self.operations, Samples::default(), elapsed)
        }
    }
}

/// Runs one spec, in JSON, in this process. The command that [`Programs::run`] starts calls this.
pub(super) fn run_here(
    engine_id: &str,
    directory: &Path,
    spec: &str,
    engine: EngineKind,
    send: impl FnMut(Message) + Send,
) -> Result<(), Failure> {
    let spec: Spec = serde_json::from_str(spec)?;
    if let Some(group) = &spec.group {
        std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    }
    std::fs::create_dir_all(directory)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let baseline = Baseline::new();
        match engine_id {
            "settee" => {
                let engine = EngineOptions { kind: engine, ..EngineOptions::default() }.start()?;
                let env = Env::with_engine(runtime.handle().clone(), engine);
                let engine = Arc::new(Settee::open(&env, directory, &spec).await?);
                work::run(engine, &spec, directory, baseline.opened(), send).await
            }
            "bare" => {
                let engine = Arc::new(Bare::open(directory, &spec)?);
                work::run(engine, &spec, directory, baseline.opened(), send).await
            }
            _ => Err(format!("there is no engine {engine_id:?}").into()),
        }
    })
}
