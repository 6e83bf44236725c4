//! The steps of `cargo xtask test`: what each runs, how long it may take, what is printed.
//!
//! A step is a process group of its own with a watcher in it that waits for the end of a pipe
//! whose other end is here. Letting go of the pipe ends the whole group: that is how a step is
//! stopped at its limit, how servers that a step left behind go, and what happens when this
//! process itself is killed.
//!
//! Invariants:
//! 1. No step runs after one that failed.
//! 2. What a step leaves running is ended with it.
//! 3. The last line printed is `N passed, N failed`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Reading the tree and looking at each line.
const TIDY_SECONDS_MAX: u64 = 30;
/// Parsing and comparing, without a build.
const FMT_SECONDS_MAX: u64 = 60;
/// From nothing: every dependency is checked here first.
const CLIPPY_SECONDS_MAX: u64 = 20 * 60;
/// The crates' own pages; dependencies' metadata is there by now.
const DOC_SECONDS_MAX: u64 = 10 * 60;
/// Building all in the test profile, then the simulations' seeds.
const TEST_SECONDS_MAX: u64 = 30 * 60;
/// The release build, from nothing.
const BUILD_SECONDS_MAX: u64 = 20 * 60;
/// Every row of both benchmarks' tables with a few hundred documents.
const BENCH_SECONDS_MAX: u64 = 5 * 60;
/// Fetching some 70 small packages.
const NPM_SECONDS_MAX: u64 = 5 * 60;
/// CouchDB's clients against the built binary, kills and full disks included.
const INTEROP_SECONDS_MAX: u64 = 20 * 60;
/// Making a Python environment and fetching a dozen small packages, or Go's modules.
const FETCH_SECONDS_MAX: u64 = 5 * 60;
/// Python's or Go's clients against the built binary; Go builds its client first.
const CLIENTS_SECONDS_MAX: u64 = 10 * 60;

/// The programs that the steps run and cargo doesn't bring, with what to say where one is missing.
const PROGRAMS: [(&str, &str); 4] = [
    ("npm", "npm, which comes with Node.js 20.11 or later (nodejs.org)"),
    ("node", "Node.js 20.11 or later (nodejs.org)"),
    ("python3", "Python 3.11 or later with venv (python.org; Debian's packages python3 and python3-venv)"),
    ("go", "Go 1.24 or later (go.dev)"),
];

/// Where the Python clients are installed, below their tests.
const PYTHON_FOLDER: &str = ".venv";

/// Ends with a reason where Python is too old for the clients.
const PYTHON_CHECK: &str = "import sys; sys.version_info >= (3, 11) or sys.exit(\
    'Python 3.11 or later is needed (python.org), not ' + sys.version.split()[0])";

/// The benchmarks with small values, so that they can't rot: in process and over HTTP; a short soak.
const BENCHES: [&str; 4] = [
    "bench --docs 200 --batch 50 --updates 20 --json",
    "bench --docs 200 --batch 50 --updates 20 --json --spawn --clients 4",
    "bench http --scale 0.001 --json --spawn",
    "bench soak --seconds 30 --kills 1",
];

/// One step: commands that share a limit.
struct Step {
    name: &'static str,
    seconds_max: u64,
    commands: Vec<Command>,
}

/// How a step ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    /// Ended at its limit.
    Expired,
    /// A step before it failed.
    NotRun,
}

/// Runs all steps, or those of the comma-separated `only`, in order.
///
/// # Errors
/// An empty message where a step failed (the table has said so); otherwise what kept the steps
/// from starting.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<(), String> {
    let mut steps = steps(root)?;
    if let Some(only) = only {
        let names: Vec<&str> = only.split(',').collect();
        if let Some(unknown) = names.iter().find(|name| steps.iter().all(|step| step.name != **name)) {
            return Err(format!("no step is named {unknown:?}\n{}", crate::USAGE));
        }
        steps.retain(|step| names.contains(&step.name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut results: Vec<(&'static str, f64, Outcome)> = Vec::new();
    for mut step in steps {
        if results.iter().any(|(_, _, outcome)| *outcome != Outcome::Passed) {
            results.push((step.name, 0.0, Outcome::NotRun));
            continue;
        }
        println!("== {}", step.name);
        let start = Instant::now();
        let limit = Duration::from_secs(step.seconds_max);
        let mut outcome = Outcome::Passed;
        for command in &mut step.commands {
            if outcome == Outcome::Passed {
                outcome = match missing(command, &path) {
                    Some(what) => {
                        println!("step {} needs {what}: it is not in the PATH", step.name);
                        Outcome::Failed
                    }
                    None => run_limited(command, limit.saturating_sub(start.elapsed()))?,
                };
            }
        }
        if outcome == Outcome::Expired {
            println!("step {} ended at its limit of {} s", step.name, step.seconds_max);
        }
        results.push((step.name, start.elapsed().as_secs_f64(), outcome));
    }
    print!("{}", table(&results));
    let passed = results.iter().all(|(_, _, outcome)| *outcome == Outcome::Passed);
    if passed { Ok(()) } else { Err(String::new()) }
}

/// What is run, in order: what is quick to fail comes first.
fn steps(root: &Path) -> Result<Vec<Step>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let own = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let settee = target_folder(root).join("release/settee");
    let interop = root.join("tests/interop");
    let command = |program: OsString, arguments: &str| {
        let mut command = Command::new(program);
        command.args(arguments.split_whitespace()).current_dir(root);
        command
    };
    let cargo = |arguments: &str| command(cargo.clone(), arguments);

    let mut doc = cargo("doc --workspace --no-deps --locked");
    doc.env("RUSTDOCFLAGS", "-D warnings");
    let benches = BENCHES.map(|arguments| command(settee.clone().into(), arguments));
    let mut npm = command("npm".into(), "ci --ignore-scripts --no-audit --no-fund");
    npm.current_dir(&interop);
    // Each file starts servers of its own on free ports, so files could run side by side; one
    // after the other keeps a failure's output in one place and the machine's load steady.
    let mut node = command("node".into(), "--test --test-concurrency=1 --test-reporter=spec");
    node.current_dir(&interop).env("SETTEE_BIN", &settee);

    let [pip, python] = python_steps(root, &settee);
    let [go_mod, go] = go_steps(root, &settee);

    let step = |name, seconds_max, command| Step { name, seconds_max, commands: vec![command] };
    Ok(vec![
        step("tidy", TIDY_SECONDS_MAX, command(own.into(), "tidy")),
        step("fmt", FMT_SECONDS_MAX, cargo("fmt --all --check")),
        step("clippy", CLIPPY_SECONDS_MAX, cargo("clippy --workspace --all-targets --locked -- -D warnings")),
        step("doc", DOC_SECONDS_MAX, doc),
        step("test", TEST_SECONDS_MAX, cargo("test --workspace --locked")),
        step("build", BUILD_SECONDS_MAX, cargo("build --release --locked")),
        Step { name: "bench", seconds_max: BENCH_SECONDS_MAX, commands: benches.into() },
        step("npm", NPM_SECONDS_MAX, npm),
        step("interop", INTEROP_SECONDS_MAX, node),
        pip,
        python,
        go_mod,
        go,
    ])
}

/// Python's clients, installed in the locked versions in a folder of their own, and their tests.
fn python_steps(root: &Path, settee: &Path) -> [Step; 2] {
    let folder = root.join("tests/interop-python");
    let python = folder.join(PYTHON_FOLDER).join("bin/python");
    let command = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&folder);
        command
    };
    let any = Path::new("python3");
    // Built packages alone: building one fetches what no lock file names.
    let pip = "-m pip install --require-hashes --no-deps --only-binary :all: --requirement requirements.txt \
               --disable-pip-version-check --no-input --quiet";
    let pip: Vec<&str> = pip.split_whitespace().collect();
    let install = vec![
        command(any, &["-c", PYTHON_CHECK]),
        command(any, &["-m", "venv", "--clear", PYTHON_FOLDER]),
        command(&python, &pip),
    ];
    let mut test = command(&python, &["-B", "-m", "unittest", "discover", "--verbose"]);
    test.env("SETTEE_BIN", settee);
    [
        Step { name: "pip", seconds_max: FETCH_SECONDS_MAX, commands: install },
        Step { name: "interop-py", seconds_max: CLIENTS_SECONDS_MAX, commands: vec![test] },
    ]
}

/// Go's client, fetched as `go.sum` has it, and its tests.
fn go_steps(root: &Path, settee: &Path) -> [Step; 2] {
    let command = |arguments: &str| {
        let mut command = Command::new("go");
        // The Go that is there, or none: no other one is fetched.
        command.args(arguments.split_whitespace()).env("GOTOOLCHAIN", "local");
        command.current_dir(root.join("tests/interop-go"));
        command
    };
    // Always run: a test's result depends on the binary, of which Go knows nothing.
    let mut test = command("test -count=1 -v ./...");
    test.env("SETTEE_BIN", settee);
    [
        Step { name: "go-mod", seconds_max: FETCH_SECONDS_MAX, commands: vec![command("mod download")] },
        Step {
            name: "interop-go",
            seconds_max: CLIENTS_SECONDS_MAX,
            commands: vec![command("vet ./..."), test],
        },
    ]
}

/// What to get where the program of `command` is in no folder of `path`.
fn missing(command: &Command, path: &OsStr) -> Option<&'static str> {
    let (name, what) = PROGRAMS.iter().find(|(name, _)| command.get_program() == *name)?;
    (!std::env::split_paths(path).any(|folder| folder.join(name).is_file())).then_some(*what)
}

/// Where cargo builds: as `CARGO_TARGET_DIR` has it, else `target`.
fn target_folder(root: &Path) -> PathBuf {
    // A relative folder counts from where cargo runs, and the steps run in the root.
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target")))
}

/// Becomes the step's command, with a watcher beside it that ends the process group once its
/// standard input ends. A shell gives background commands no input, hence descriptor 3.
const WATCHED: &str = r#"exec 3<&0; (read -r line <&3; kill -KILL 0) & exec "$@" </dev/null 3<&-"#;

/// Runs `command` to its end or to `limit`, and ends what it leaves running.
fn run_limited(command: &mut Command, limit: Duration) -> Result<Outcome, String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", WATCHED, "step"]).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    let mut child = shell
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start {:?}: {error}", command.get_program()))?;
    let watcher = child.stdin.take();
    let (sender, receiver) = mpsc::channel::<std::io::Result<ExitStatus>>();
    std::thread::spawn(move || sender.send(child.wait()));
    let received = receiver.recv_timeout(limit);
    drop(watcher);
    match received {
        Ok(Ok(status)) if status.success() => Ok(Outcome::Passed),
        Ok(_) => Ok(Outcome::Failed),
        Err(_) => {
            // Killed by now; what matters is that it is gone.
            let _ = receiver.recv();
            Ok(Outcome::Expired)
        }
    }
}

/// The table of steps and the line that sums it up.
fn table(results: &[(&'static str, f64, Outcome)]) -> String {
    let mut text = format!("\n{:<10} {:>8}\n", "step", "seconds");
    for (name, seconds, outcome) in results {
        let note = match outcome {
            Outcome::Passed => "",
            Outcome::Failed => "  failed",
            Outcome::Expired => "  failed: time limit",
            Outcome::NotRun => "  not run",
        };
        text += &format!("{name:<10} {seconds:>8.1}{note}\n");
    }
    let count =
        |wanted: &[Outcome]| results.iter().filter(|(_, _, outcome)| wanted.contains(outcome)).count();
    let seconds: f64 = results.iter().map(|(_, seconds, _)| seconds).sum();
    let passed = count(&[Outcome::Passed]);
    let failed = count(&[Outcome::Failed, Outcome::Expired]);
    text + &format!("{:<10} {seconds:>8.1}\n\n{passed} passed, {failed} failed\n", "total")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_step_passes_by_its_exit_status() {
        let limit = Duration::from_secs(TEST_SECONDS_MAX);
        assert_eq!(run_limited(&mut shell("exit 0"), limit), Ok(Outcome::Passed));
        assert_eq!(run_limited(&mut shell("exit 3"), limit), Ok(Outcome::Failed));
        assert_eq!(run_limited(&mut Command::new("no-such-program"), limit), Ok(Outcome::Failed));
    }

    #[test]
    fn a_program_that_is_not_there_is_told_with_what_to_get() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        for command in steps(&root).unwrap().iter().flat_map(|step| &step.commands) {
            let program = command.get_program();
            let is_ours = Path::new(program).is_absolute() || program == cargo;
            assert_eq!(missing(command, OsStr::new("")).is_none(), is_ours, "{program:?}");
        }
    }

    #[test]
    fn a_step_that_would_go_on_for_ever_ends_at_its_limit() {
        let endless = "while :; do sleep 1; done";
        assert_eq!(run_limited(&mut shell(endless), Duration::from_millis(50)), Ok(Outcome::Expired));
    }

    #[test]
    fn what_a_step_left_running_ends_with_it() {
        // The one left behind holds the pipe that `output` reads to its end: were it not ended,
        // this test would hang.
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", WATCHED, "step", "sh", "-c", "while :; do sleep 1; done & exit 0"]);
        let mut child = command.stdin(Stdio::piped()).stdout(writer).process_group(0).spawn().unwrap();
        drop(command);
        let watcher = child.stdin.take();
        assert!(child.wait().unwrap().success());
        drop(watcher);
        let mut left = Vec::new();
        assert_eq!(std::io::Read::read_to_end(&mut reader, &mut left).unwrap(), 0);
    }

    #[test]
    fn the_last_line_counts_what_passed_and_failed() {
        let text = table(&[
            ("tidy", 0.25, Outcome::Passed),
            ("fmt", 1.0, Outcome::Expired),
            ("clippy", 0.0, Outcome::NotRun),
        ]);
        assert_eq!(text.lines().last(), Some("1 passed, 1 failed"));
        assert!(text.contains("\nfmt             1.0  failed: time limit\n"), "{text}");
        assert!(text.contains("\nclippy          0.0  not run\n"), "{text}");
        assert!(text.contains("\ntotal           1.2\n"), "{text}");
    }
}
