//! Runs: each a process of its own, ours as the peers'.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use settee_io::{EngineKind, EngineOptions, Env};

use super::bare::Bare;
use super::ours::Settee;
use super::work::meter::Base;
use super::work::{self, Failure, Operation, Report, Second, Spec, Told};
use crate::io::row::{Latency, Window};

/// Most bytes of a failed process's error output that are shown.
const MESSAGE_BYTES_MAX: u64 = 300;

/// Who runs a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Ours,
    /// A bare lookup and pread.
    Bare,
    Peer(&'static str),
}

impl Who {
    /// The name by which the process knows it, and the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Who::Ours => "settee",
            Who::Bare => "bare",
            Who::Peer(name) => name,
        }
    }
}

/// The other engines, as their binary knows them.
pub const PEERS: [&str; 4] = ["fjall", "lmdb", "redb", "rocksdb"];

/// What starts the processes.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub ours: PathBuf,
    pub peers: Option<PathBuf>,
    pub engine: EngineKind,
}

/// What a run told.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub report: Report,
    pub seconds: Vec<Second>,
}

impl Programs {
    fn command(&self, who: Who, directory: &Path, spec: &Spec) -> Result<Command, String> {
        let spec = serde_json::to_string(spec).expect("a spec is plain data");
        let mut command = match (who, &self.peers) {
            (Who::Peer(name), Some(program)) => {
                let mut command = Command::new(program);
                command.args([name, "store"]).arg(directory).arg(spec);
                command
            }
            (Who::Peer(_), None) => return Err("no program of the peers".to_owned()),
            (Who::Ours | Who::Bare, _) => {
                let mut command = Command::new(&self.ours);
                command.args(["bench", "store-run", who.name()]).arg(directory).arg(spec);
                command.arg(self.engine.to_string());
                command
            }
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Runs the spec in `directory` to its end.
    ///
    /// # Errors
    /// What went wrong, in the process's words.
    pub(super) fn run(&self, who: Who, directory: &Path, spec: &Spec) -> Result<Run, String> {
        let mut command = self.command(who, directory, spec)?;
        let mut child = command.stdin(Stdio::null()).spawn().map_err(|error| error.to_string())?;
        let mut run = Run::default();
        let mut is_told = false;
        let told = listen(&mut child, |told| {
            match told {
                Told::Second(second) => run.seconds.push(second),
                Told::Report(report) => (run.report, is_told) = (*report, true),
                Told::Held => {}
            }
            true
        });
        let status = child.wait().map_err(|error| error.to_string())?;
        match told {
            Ok(()) if status.success() && is_told => Ok(run),
            Ok(()) => Err(format!("{status}: {}", said(&mut child))),
            Err(error) => Err(format!("{status}: {error}: {}", said(&mut child))),
        }
    }

    /// Runs the spec until it says that it holds, and kills it.
    pub(super) fn kill_when_held(&self, who: Who, directory: &Path, spec: &Spec) -> Result<(), String> {
        assert_eq!(spec.operation, Operation::LoadAndHold);
        let mut command = self.command(who, directory, spec)?;
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut is_held = false;
        let told = listen(&mut child, |told| {
            is_held = matches!(told, Told::Held);
            !is_held
        });
        let killed = child.kill();
        let status = child.wait().map_err(|error| error.to_string())?;
        match (told, killed) {
            (Ok(()), Ok(())) if is_held => Ok(()),
            _ => Err(format!("{status} before it was to be killed: {}", said(&mut child))),
        }
    }
}

/// Gives each line to `each` until that has enough.
fn listen(child: &mut Child, mut each: impl FnMut(Told) -> bool) -> Result<(), String> {
    let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
    for line in output.lines() {
        let line = line.map_err(|error| error.to_string())?;
        if !each(serde_json::from_str(&line).map_err(|error| format!("{error} in {line:?}"))?) {
            return Ok(());
        }
    }
    Ok(())
}

fn said(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // What can't be read isn't shown.
        let _ = stderr.take(MESSAGE_BYTES_MAX).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}

impl Report {
    /// As a round of a row: operations, each worth `weight` of the row's unit.
    pub(super) fn window(&self, weight: f64) -> Window {
        let time = |us: Option<f64>| Some(Duration::from_secs_f64(us? / 1e6));
        let latency = time(self.p50_us).zip(time(self.p99_us));
        Window {
            operations: self.operations,
            weight,
            wall: Duration::from_secs_f64(self.seconds),
            cpu: Some(Duration::from_secs_f64(self.cpu_seconds.max(0.0))),
            switches: None,
            latency: latency.map(|(p50, p99)| Latency { p50, p99, longest: p99 }),
        }
    }
}

/// Runs one spec, in JSON, in this process: what the command behind [`Programs::run`] does.
pub(super) fn run_here(
    who: &str,
    directory: &Path,
    spec: &str,
    engine: EngineKind,
    tell: impl FnMut(Told) + Send,
) -> Result<(), Failure> {
    let spec: Spec = serde_json::from_str(spec)?;
    if let Some(group) = &spec.group {
        std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    }
    std::fs::create_dir_all(directory)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let base = Base::new();
        match who {
            "settee" => {
                let engine = EngineOptions { kind: engine, ..EngineOptions::default() }.start()?;
                let env = Env::with_engine(runtime.handle().clone(), engine);
                let subject = Arc::new(Settee::open(&env, directory, &spec).await?);
                work::run(subject, &spec, directory, base.opened(), tell).await
            }
            "bare" => {
                let subject = Arc::new(Bare::open(directory, &spec)?);
                work::run(subject, &spec, directory, base.opened(), tell).await
            }
            _ => Err(format!("there is no engine {who:?}").into()),
        }
    })
}
