//! `settee upgrade`: converts a data directory that the version before wrote to a new one.

use std::path::PathBuf;

use indicatif::ProgressBar;
use settee_doc::{UpgradeEvent, UpgradeStep, UpgradeSummary};
use settee_io::{Env, ThreadOptions};

use crate::data_directory::{self, KEPT_FILES};
use crate::output::{CommandResult, print_stderr, print_stdout};
use crate::progress;

#[derive(clap::Args)]
#[command(
    after_help = "OLD isn't changed, and NEW needs as much disk space; documents with more than sixteen revisions \
    need it twice until they are converted. Documents with all their branches and \
    revisions, attachments, local documents, limits, purge infos, the configuration, the administrator and the \
    server's uuid are kept. Updates are numbered anew: followers and replications start over. All records are \
    compared afterwards. An interrupted upgrade continues when the command is repeated; delete NEW to abandon it."
)]
pub(crate) struct Args {
    /// Data directory of the version before, which no server has open
    #[arg(value_name = "OLD")]
    old: PathBuf,

    /// Data directory to create
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

pub(crate) fn run(args: Args) -> CommandResult {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(upgrade(args))
}

async fn upgrade(Args { old, new }: Args) -> CommandResult {
    if !old.is_dir() {
        return Err(data_directory::missing_directory_text(&old).into());
    }
    let env = Env::system(tokio::runtime::Handle::current(), ThreadOptions::default());
    let (from, to) = (data_directory::resolve_path(&old)?, data_directory::resolve_path(&new)?);
    let bar = progress::progress_bar("{msg} [{bar:30}] {percent} % eta {eta}");
    let mut shown = Shown { bar: bar.clone(), database: "the catalogue".to_owned() };
    let files = [KEPT_FILES, settee_http::BACKED_UP_FILES].concat();
    let result = settee_doc::upgrade(&env, &from, &to, &files, |event| shown.show(event)).await;
    bar.finish_and_clear();
    let UpgradeSummary { database_count, earlier_count, document_count } = result?;
    let earlier = match earlier_count {
        0 => String::new(),
        count => format!(" ({count} of them before the interruption)"),
    };
    print_stdout!(
        "{database_count} databases of {} upgraded into {}{earlier}, and compared: {document_count} documents, deleted \
         ones included",
        old.display(),
        new.display()
    );
    Ok(())
}

/// What the progress bar shows.
struct Shown {
    bar: ProgressBar,
    database: String,
}

impl Shown {
    fn show(&mut self, event: UpgradeEvent) {
        match event {
            UpgradeEvent::Database(name) => self.database = name,
            UpgradeEvent::Step(step) => {
                let what = match step {
                    UpgradeStep::Check => "checking",
                    UpgradeStep::Copy => "copying",
                    UpgradeStep::Convert => "converting",
                    UpgradeStep::Compare => "comparing",
                    UpgradeStep::Compact => "compacting",
                };
                self.bar.set_message(format!("{what} {}", self.database));
                self.bar.set_position(0);
            }
            UpgradeEvent::Note(text) => {
                let database = &self.database;
                self.bar.suspend(|| print_stderr!("settee: {database}: {text}"));
            }
            UpgradeEvent::Progress(done, total) => progress::show_progress(&self.bar, done, total),
        }
    }
}
