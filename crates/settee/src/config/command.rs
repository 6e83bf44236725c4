//! `settee config`: prints the effective settings, and converts CouchDB's ini files.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::file::read;
use super::import::Conversion;
use super::settings::Settings;
use super::show::EffectiveSettings;
use crate::output::{self, CommandResult, print_stderr};

/// Largest number of ini files of one conversion.
const INI_FILES_MAX: usize = 1000;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Takes the flags, variables and file of `settee serve` and prints the effective settings as \
    a settings file, with the source of each value in a comment. Passwords aren't printed."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// TOML file with settings; flags and variables take precedence
    #[arg(long, env = "SETTEE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print every limit: the settings, and the fixed ones with their values and meanings
    #[arg(long)]
    limits: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    given: Settings,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Convert CouchDB's ini files into a settings file
    #[command(after_help = "Keys without a counterpart are listed in comments with the reason. \
        If the files have administrators and none can be converted, since their passwords are hashes, the \
        exit code is 1. \
        Later files take precedence: name default.ini, local.ini and local.d in this order.")]
    ImportIni(ImportArgs),
}

#[derive(clap::Args)]
struct ImportArgs {
    /// CouchDB's files; a directory means its *.ini files in alphabetical order
    #[arg(required = true, value_name = "INI")]
    files: Vec<PathBuf>,

    /// File to write instead of the standard output; only its owner may read it
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Replace the file if it exists
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
    let effective = EffectiveSettings::resolve(&args.given, args.config.as_deref())?;
    let effective = if args.limits { effective.with_fixed() } else { effective };
    for invalid in effective.invalid() {
        print_stderr!("settee: {invalid}");
    }
    let text = match args.json {
        true => serde_json::to_string_pretty(&effective.json())? + "\n",
        false => effective.toml(),
    };
    print(&text)
}

fn import_ini(args: &ImportArgs) -> CommandResult {
    let mut files = Vec::new();
    for path in ini_files(&args.files)? {
        files.push((path.display().to_string(), read(&path)?));
    }
    let conversion = Conversion::new(&files)?;
    let text = conversion.toml();
    match &args.out {
        None => print(&text)?,
        Some(path) => {
            write_file(path, &text, args.force).map_err(|error| format!("{}: {error}", path.display()))?
        }
    }
    for warning in &conversion.warnings {
        print_stderr!("settee: {warning}");
    }
    let (converted, unconverted) = conversion.counts();
    print_stderr!(
        "settee: {converted} settings converted; {unconverted} keys have no setting, for the reasons in the \
         comments"
    );
    match conversion.missing_admin() {
        Some(missing) => Err(missing.into()),
        None => Ok(()),
    }
}

/// Returns the files that the arguments select, those of a directory in the order in which CouchDB reads
/// them.
fn ini_files(given: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in given {
        let with_path = |error: io::Error| format!("cannot read {}: {error}", path.display());
        if !fs::metadata(path).map_err(with_path)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries =
            fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(with_path)?;
        let mut inside: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
        inside.retain(|path| path.extension().is_some_and(|extension| extension == "ini"));
        inside.sort();
        files.extend(inside);
    }
    match files.len() {
        0 => Err("there is no *.ini file in the given directories".to_owned()),
        1..=INI_FILES_MAX => Ok(files),
        count => Err(format!("{count} files are more than {INI_FILES_MAX}")),
    }
}

fn print(text: &str) -> CommandResult {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(output::write_error)
}

/// Writes a file that may contain a password, with mode 0600. An existing file is replaced only if `replace`
/// is set.
fn write_file(path: &Path, text: &str, replace: bool) -> io::Result<()> {
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let fill = |mut file: fs::File| file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    match create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && replace => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(io::Error::other("the file already exists; --force replaces it"));
        }
        created => return created.and_then(fill),
    }
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file and isn't replaced"));
    }
    // A symbolic link is followed: its target is replaced, atomically.
    let path = fs::canonicalize(path)?;
    let mut unfinished = path.clone().into_os_string();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let with_path = |error| io::Error::other(format!("{}: {error}", unfinished.display()));
    create(&unfinished).and_then(fill).map_err(with_path)?;
    fs::rename(&unfinished, &path)
}
