//! `settee dump`.

use crate::CommandResult;

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> CommandResult {
    Err("not written yet".into())
}
