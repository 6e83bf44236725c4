//! The steps of `cargo xtask test`: what each runs, how long it may take, what is printed.
//!
//! Steps are in two lanes, which run side by side, each in order. One builds everything and runs
//! the tests; the other fetches the clients meanwhile, and then lints, runs the clients and the
//! small benchmarks. All use the profile `dev`, so that dependencies are compiled once; linting
//! checks them, which produces no code. A step's output goes to a file and is printed when the step
//! ends. The output of a failed step comes last, before the table, so that the end of a long log has it.
//!
//! A step is a process group of its own with a watcher in it that waits for the end of a pipe whose other end
//! is here. Closing the pipe ends the whole group. So a step is stopped at its limit, its leftover servers are
//! ended, and so is everything when this process is killed.
//!
//! Invariants:
//! 1. No step starts after one that failed.
//! 2. What a step leaves running is ended with it.
//! 3. The last line printed is `N passed, N failed`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::usage::USAGE;

/// Reading the tree and looking at each line.
const TIDY_SECONDS_MAX: u64 = 30;
/// Parsing and comparing, without a build.
const FMT_SECONDS_MAX: u64 = 60;
/// All crates and their tests, from nothing.
const BUILD_SECONDS_MAX: u64 = 25 * 60;
/// From nothing: every dependency is checked here first.
const CLIPPY_SECONDS_MAX: u64 = 20 * 60;
/// The crates' own pages; dependencies' metadata is there by now.
const DOC_SECONDS_MAX: u64 = 10 * 60;
/// The tests and the documentation's examples; what they run is built by then.
const TEST_SECONDS_MAX: u64 = 20 * 60;
/// Every row of the benchmarks' tables with a few hundred documents.
const BENCH_SECONDS_MAX: u64 = 5 * 60;
/// Fetching some 90 packages, and a browser where there is none.
const NPM_SECONDS_MAX: u64 = 10 * 60;
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
const PYTHON_DIRECTORY: &str = ".venv";

/// Ends with a reason where Python is too old for the clients.
const PYTHON_CHECK: &str = "import sys; sys.version_info >= (3, 11) or sys.exit(\
    'Python 3.11 or later is needed (python.org), not ' + sys.version.split()[0])";

/// The benchmarks with small values, so that they can't rot; a short soak.
const BENCHES: [&str; 5] = [
    "bench --docs 200 --batch 50 --updates 20 --json --clients 4",
    "bench http --scale 0.001 --json",
    "bench views --documents 500 --seconds 0.1 --follow-seconds 1 --json",
    "bench io --small --json",
    "bench soak --seconds 30 --kills 1",
];

/// The step that the other lane's builds and clients wait for.
const BUILD: &str = "build";

/// One step: commands that share a limit.
struct Step {
    name: &'static str,
    seconds_max: u64,
    /// A step of the other lane that has to pass first.
    after: Option<&'static str>,
    commands: Vec<Command>,
}

/// One step's name, its duration in seconds, and how it ended.
type StepResult = (&'static str, f64, Outcome);

/// What both lanes know: the steps that ended so far.
struct Progress {
    results: Mutex<Vec<StepResult>>,
    changed: Condvar,
}

impl Progress {
    /// Waits for the step that `step` needs. Returns whether `step` may start.
    fn may_start(&self, step: &Step) -> bool {
        let mut results = self.results.lock().expect("no lane panics");
        loop {
            if results.iter().any(|(_, _, outcome)| *outcome != Outcome::Passed) {
                return false;
            }
            if step.after.is_none_or(|needed| results.iter().any(|(name, _, _)| *name == needed)) {
                return true;
            }
            results = self.changed.wait(results).expect("no lane panics");
        }
    }

    /// Records how a step ended, and prints what it printed if it passed.
    fn end(&self, result: StepResult, outputs: &Path) {
        let mut results = self.results.lock().expect("no lane panics");
        if result.2 == Outcome::Passed {
            show(&result, outputs);
        }
        results.push(result);
        self.changed.notify_all();
    }
}

/// Prints what a step printed.
fn show((name, seconds, _): &StepResult, outputs: &Path) {
    println!("== {name} ({seconds:.1} s)");
    let path = output_path(name, outputs);
    let copied = File::open(&path).and_then(|mut file| io::copy(&mut file, &mut io::stdout().lock()));
    if let Err(error) = copied {
        println!("cannot show {}: {error}", path.display());
    }
}

/// The file of a step's output.
fn output_path(name: &str, outputs: &Path) -> PathBuf {
    outputs.join(name).with_extension("log")
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

impl Outcome {
    /// Whether the step ran and didn't pass.
    fn is_failure(&self) -> bool {
        matches!(self, Outcome::Failed | Outcome::Expired)
    }
}

/// Runs all steps, or those of the comma-separated `only`, in order.
///
/// # Errors
/// An empty message where a step failed (the table has said so); otherwise what kept the steps
/// from starting.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<(), String> {
    let mut lanes = lanes(root)?;
    if let Some(only) = only {
        let names: Vec<&str> = only.split(',').collect();
        let known: Vec<&str> = lanes.iter().flatten().map(|step| step.name).collect();
        if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
            return Err(format!("no step is named {unknown:?}\n{USAGE}"));
        }
        for step in lanes.iter_mut().flatten() {
            step.after = step.after.filter(|needed| names.contains(needed));
        }
        lanes.iter_mut().for_each(|lane| lane.retain(|step| names.contains(&step.name)));
    }
    let outputs = target_directory(root).join("xtask");
    fs::create_dir_all(&outputs).map_err(|error| format!("cannot make {}: {error}", outputs.display()))?;
    let start = Instant::now();
    let progress = Progress { results: Mutex::default(), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for lane in lanes {
            scope.spawn(|| {
                for step in lane {
                    run_step(step, &outputs, &progress);
                }
            });
        }
    });
    let results = progress.results.into_inner().expect("no lane panics");
    for failed in results.iter().filter(|(_, _, outcome)| outcome.is_failure()) {
        show(failed, &outputs);
    }
    print!("{}", table(&results, start.elapsed().as_secs_f64()));
    let passed = results.iter().all(|(_, _, outcome)| *outcome == Outcome::Passed);
    if passed { Ok(()) } else { Err(String::new()) }
}

/// Runs a step's commands, once it may start, until one of them fails.
fn run_step(mut step: Step, outputs: &Path, progress: &Progress) {
    if !progress.may_start(&step) {
        return progress.end((step.name, 0.0, Outcome::NotRun), outputs);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let output = output_path(step.name, outputs);
    let start = Instant::now();
    let limit = Duration::from_secs(step.seconds_max);
    let mut run = || -> io::Result<Outcome> {
        let mut log = File::create(&output)?;
        for command in &mut step.commands {
            if let Some(what) = missing(command, &path) {
                writeln!(log, "step {} needs {what}: it is not in the PATH", step.name)?;
                return Ok(Outcome::Failed);
            }
            let outcome = run_limited(command, limit.saturating_sub(start.elapsed()), &log)?;
            if outcome == Outcome::Expired {
                writeln!(log, "step {} ended at its limit of {} s", step.name, step.seconds_max)?;
            }
            if outcome != Outcome::Passed {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Passed)
    };
    let outcome = run().unwrap_or_else(|error| {
        println!("step {}: {error}", step.name);
        Outcome::Failed
    });
    progress.end((step.name, start.elapsed().as_secs_f64(), outcome), outputs);
}

/// What is run, each lane in order: what is quick to fail comes first.
fn lanes(root: &Path) -> Result<[Vec<Step>; 2], String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let own = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let settee = target_directory(root).join("debug/settee");
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
    let browser = command(interop.join("chromium.sh").into(), "");
    // Each file starts servers of its own on free ports, so files could run side by side; one
    // after the other keeps a failure's output in one place and the machine's load steady.
    let mut node = command("node".into(), "--test --test-concurrency=1 --test-reporter=spec");
    node.current_dir(&interop).env("SETTEE_BIN", &settee);

    // The examples run as tests of the documentation: they aren't built a second time.
    let tests = ["test --workspace --tests --locked", "test --workspace --doc --locked"].map(cargo);

    let [pip, python] = python_steps(root, &settee);
    let [go_mod, go] = go_steps(root, &settee);

    let step = |name, seconds_max, command| Step { name, seconds_max, after: None, commands: vec![command] };
    let main = vec![
        step("tidy", TIDY_SECONDS_MAX, command(own.into(), "tidy")),
        step("fmt", FMT_SECONDS_MAX, cargo("fmt --all --check")),
        step(BUILD, BUILD_SECONDS_MAX, cargo("test --workspace --tests --locked --no-run")),
        Step { name: "test", seconds_max: TEST_SECONDS_MAX, after: None, commands: tests.into() },
    ];
    let npm = Step { name: "npm", seconds_max: NPM_SECONDS_MAX, after: None, commands: vec![npm, browser] };
    let mut beside = vec![npm, pip, go_mod];
    // Linting uses the build's macros and build scripts, all others its binary.
    let clippy = cargo("clippy --workspace --all-targets --locked -- -D warnings");
    let after_build = [
        step("clippy", CLIPPY_SECONDS_MAX, clippy),
        step("doc", DOC_SECONDS_MAX, doc),
        step("interop", INTEROP_SECONDS_MAX, node),
        python,
        go,
        Step { name: "bench", seconds_max: BENCH_SECONDS_MAX, after: None, commands: benches.into() },
    ];
    beside.extend(after_build.map(|step| Step { after: Some(BUILD), ..step }));
    Ok([main, beside])
}

/// Python's clients, installed in the locked versions in a directory of their own, and their tests.
fn python_steps(root: &Path, settee: &Path) -> [Step; 2] {
    let directory = root.join("tests/interop-python");
    let python = directory.join(PYTHON_DIRECTORY).join("bin/python");
    let command = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&directory);
        command
    };
    let any = Path::new("python3");
    // Built packages alone: building one fetches what no lock file names.
    let pip = "-m pip install --require-hashes --no-deps --only-binary :all: --requirement requirements.txt \
               --disable-pip-version-check --no-input --quiet";
    let pip: Vec<&str> = pip.split_whitespace().collect();
    let install = vec![
        command(any, &["-c", PYTHON_CHECK]),
        command(any, &["-m", "venv", "--clear", PYTHON_DIRECTORY]),
        command(&python, &pip),
    ];
    let mut test = command(&python, &["-B", "-m", "unittest", "discover", "--verbose"]);
    test.env("SETTEE_BIN", settee);
    [
        Step { name: "pip", seconds_max: FETCH_SECONDS_MAX, after: None, commands: install },
        Step { name: "interop-py", seconds_max: CLIENTS_SECONDS_MAX, after: None, commands: vec![test] },
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
        Step {
            name: "go-mod",
            seconds_max: FETCH_SECONDS_MAX,
            after: None,
            commands: vec![command("mod download")],
        },
        Step {
            name: "interop-go",
            seconds_max: CLIENTS_SECONDS_MAX,
            after: None,
            commands: vec![command("vet ./..."), test],
        },
    ]
}

/// What to get where the program of `command` is in no directory of `path`.
fn missing(command: &Command, path: &OsStr) -> Option<&'static str> {
    let (name, what) = PROGRAMS.iter().find(|(name, _)| command.get_program() == *name)?;
    (!std::env::split_paths(path).any(|directory| directory.join(name).is_file())).then_some(*what)
}

/// Where cargo builds: as `CARGO_TARGET_DIR` has it, else `target`.
fn target_directory(root: &Path) -> PathBuf {
    // A relative directory counts from where cargo runs, and the steps run in the root.
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target")))
}

/// Becomes the step's command, with a watcher beside it that ends the process group once its
/// standard input ends. A shell gives background commands no input, hence descriptor 3.
const WATCHED: &str = r#"exec 3<&0; (read -r line <&3; kill -KILL 0) & exec "$@" </dev/null 3<&-"#;

/// Runs `command` to its end or to `limit`, and ends what it leaves running. What it prints is
/// appended to `output`.
///
/// # Errors
/// What kept it from starting; nothing runs then.
fn run_limited(command: &mut Command, limit: Duration, output: &File) -> io::Result<Outcome> {
    let mut shell = Command::new("sh");
    shell.args(["-c", WATCHED, "step"]).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    let mut child = shell
        .stdin(Stdio::piped())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0)
        .spawn()?;
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

/// The table of steps, the seconds that all took side by side, and the line that sums it up.
fn table(results: &[StepResult], total_seconds: f64) -> String {
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
    let count = |is_counted: fn(&Outcome) -> bool| results.iter().filter(|(_, _, it)| is_counted(it)).count();
    let passed = count(|outcome| *outcome == Outcome::Passed);
    let failed = count(Outcome::is_failure);
    text + &format!("{:<10} {total_seconds:>8.1}\n\n{passed} passed, {failed} failed\n", "total")
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
        let output = tempfile::tempfile().unwrap();
        let run = |command: &mut Command| run_limited(command, limit, &output).unwrap();
        assert_eq!(run(&mut shell("exit 0")), Outcome::Passed);
        assert_eq!(run(&mut shell("exit 3")), Outcome::Failed);
        assert_eq!(run(&mut Command::new("no-such-program")), Outcome::Failed);
    }

    #[test]
    fn a_program_that_is_not_there_is_told_with_what_to_get() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        for command in lanes(&root).unwrap().iter().flatten().flat_map(|step| &step.commands) {
            let program = command.get_program();
            let is_ours = Path::new(program).is_absolute() || program == cargo;
            assert_eq!(missing(command, OsStr::new("")).is_none(), is_ours, "{program:?}");
        }
    }

    #[test]
    fn a_step_that_would_go_on_for_ever_ends_at_its_limit() {
        let endless = "while :; do sleep 1; done";
        let output = tempfile::tempfile().unwrap();
        let outcome = run_limited(&mut shell(endless), Duration::from_millis(50), &output).unwrap();
        assert_eq!(outcome, Outcome::Expired);
    }

    #[test]
    fn no_step_starts_before_the_one_it_needs_or_after_one_that_failed() {
        let directory = tempfile::tempdir().unwrap();
        let step = |name, after, script| Step {
            name,
            seconds_max: TEST_SECONDS_MAX,
            after,
            commands: vec![shell(script)],
        };
        let progress = Progress { results: Mutex::default(), changed: Condvar::new() };
        std::thread::scope(|scope| {
            scope.spawn(|| run_step(step("second", Some("first"), "exit 0"), directory.path(), &progress));
            run_step(step("first", None, "exit 0"), directory.path(), &progress);
        });
        run_step(step("third", None, "exit 1"), directory.path(), &progress);
        run_step(step("fourth", Some("never"), "exit 0"), directory.path(), &progress);
        let results = progress.results.into_inner().unwrap();
        let ended: Vec<_> = results.into_iter().map(|(name, _, outcome)| (name, outcome)).collect();
        let expected = [
            ("first", Outcome::Passed),
            ("second", Outcome::Passed),
            ("third", Outcome::Failed),
            ("fourth", Outcome::NotRun),
        ];
        assert_eq!(ended, expected);
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
        let results = [
            ("tidy", 0.25, Outcome::Passed),
            ("fmt", 1.0, Outcome::Expired),
            ("clippy", 0.0, Outcome::NotRun),
        ];
        let text = table(&results, 1.0);
        assert_eq!(text.lines().last(), Some("1 passed, 1 failed"));
        assert!(text.contains("\nfmt             1.0  failed: time limit\n"), "{text}");
        assert!(text.contains("\nclippy          0.0  not run\n"), "{text}");
        assert!(text.contains("\ntotal           1.0\n"), "{text}");
    }
}
