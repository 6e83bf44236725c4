//! `settee config`: shows the settings in force, and converts CouchDB's ini files.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::file::read;
use super::import::Conversion;
use super::settings::Given;
use super::show::Shown;
use crate::CommandResult;
use crate::output::{self, complain};

/// Most of CouchDB's files that are converted together.
const INI_FILES_MAX: usize = 1000;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Give the flags, variables and file of `settee serve`, and it says what would hold, as a file of \
    settings with each value's origin behind it. Passwords aren't shown."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// TOML file with settings; flags and variables go before it
    #[arg(long, env = "SETTEE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    given: Given,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Convert CouchDB's ini files into a file of settings
    #[command(after_help = "What has no counterpart here is told in comments, with the reason. \
        Where there are administrators and none can be taken over, since their passwords are hashes, the exit \
        code is 1. \
        Later files go before earlier ones: give default.ini, local.ini and local.d in this order.")]
    ImportIni(ImportArgs),
}

#[derive(clap::Args)]
struct ImportArgs {
    /// CouchDB's files; of a directory all *.ini, by their names
    #[arg(required = true, value_name = "INI")]
    files: Vec<PathBuf>,

    /// File to write, in place of the standard output; only its owner may read it
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Replace that file where there is one
    #[arg(long, requires = "out")]
    force: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Some(Command::ImportIni(import)) => import_ini(&import),
        None => show(&args),
    }
}

fn show(args: &Args) -> CommandResult {
    let shown = Shown::gather(&args.given, args.config.as_deref())?;
    for left_out in shown.left_out() {
        complain!("settee: {left_out}");
    }
    let text = match args.json {
        true => serde_json::to_string_pretty(&shown.json())? + "\n",
        false => shown.toml(),
    };
    print(&text)
}

fn import_ini(args: &ImportArgs) -> CommandResult {
    let mut files = Vec::new();
    for path in ini_files(&args.files)? {
        files.push((path.display().to_string(), read(&path)?));
    }
    let conversion = Conversion::of(&files)?;
    let text = conversion.toml();
    match &args.out {
        None => print(&text)?,
        Some(path) => {
            write_file(path, &text, args.force).map_err(|error| format!("{}: {error}", path.display()))?
        }
    }
    for warning in &conversion.warnings {
        complain!("settee: {warning}");
    }
    let (converted, left) = conversion.counts();
    complain!("settee: {converted} settings; {left} keys are no settings here: the comments say why");
    match conversion.missing_admin() {
        Some(missing) => Err(missing.into()),
        None => Ok(()),
    }
}

/// The files that are meant, a directory's in the order in which CouchDB reads them.
fn ini_files(given: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in given {
        let problem = |error: io::Error| format!("cannot read {}: {error}", path.display());
        if !fs::metadata(path).map_err(problem)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries =
            fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(problem)?;
        let mut inside: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
        inside.retain(|path| path.extension().is_some_and(|extension| extension == "ini"));
        inside.sort();
        files.extend(inside);
    }
    match files.len() {
        0 => Err("there is no *.ini in what was given".to_owned()),
        1..=INI_FILES_MAX => Ok(files),
        count => Err(format!("{count} files are more than {INI_FILES_MAX}")),
    }
}

fn print(text: &str) -> CommandResult {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(output::write_error)
}

/// Writes a file that may hold a password; one that there is only where that is asked for.
fn write_file(path: &Path, text: &str, replace: bool) -> io::Result<()> {
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let fill = |mut file: fs::File| file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    match create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && replace => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(io::Error::other("it is there already; --force replaces it"));
        }
        created => return created.and_then(fill),
    }
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a file: nothing is replaced"));
    }
    // Behind a link it is the file that is replaced, and as a whole.
    let path = fs::canonicalize(path)?;
    let mut unfinished = path.clone().into_os_string();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let named = |error| io::Error::other(format!("{}: {error}", unfinished.display()));
    create(&unfinished).and_then(fill).map_err(named)?;
    fs::rename(&unfinished, &path)
}
