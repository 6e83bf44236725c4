//! Environment variables: every `SETTEE_*` variable that no command knows is an error, so that a typing
//! error doesn't leave a default in force.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::secret::USER_VARIABLE;

/// What all variables of ours begin with.
const PREFIX: &str = "SETTEE_";

/// What Kubernetes sets in every container beside a service named `settee`.
const FOREIGN_PREFIXES: [&str; 2] = ["SETTEE_PORT", "SETTEE_SERVICE_"];

/// Variables that belong to no argument.
const OTHERS: [&str; 1] = [USER_VARIABLE];

/// How alike a variable must be to one that is known to be taken for a misspelt one: 1 is equal.
const LIKENESS_MIN: f64 = 0.9;

/// Checks the names of `variables` against those of `command` and its subcommands.
///
/// # Errors
/// Names the first that is unknown, and what it may have been meant for.
pub(crate) fn check(
    command: &clap::Command,
    variables: impl Iterator<Item = OsString>,
) -> Result<(), String> {
    let mut known: BTreeSet<String> = OTHERS.map(str::to_owned).into();
    add_known(command, &mut known);
    let is_foreign = |name: &str| FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let names = variables.map(|name| name.to_string_lossy().into_owned());
    let unknown =
        names.filter(|name| name.starts_with(PREFIX) && !is_foreign(name) && !known.contains(name)).min();
    let Some(unknown) = unknown else { return Ok(()) };
    let alike = known.iter().map(|name| (strsim::jaro_winkler(name, &unknown), name));
    let nearest = alike.max_by(|one, other| one.0.total_cmp(&other.0));
    let hint = match nearest {
        Some((likeness, name)) if likeness >= LIKENESS_MIN => format!("; did you mean {name}?"),
        _ => String::new(),
    };
    Err(format!("the environment variable {unknown} is no setting{hint}"))
}

fn add_known(command: &clap::Command, known: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    known.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|subcommand| add_known(subcommand, known));
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn check_one(name: &str) -> Result<(), String> {
        check(&crate::Cli::command(), [OsString::from(name)].into_iter())
    }

    #[test]
    fn known_variables_those_of_others_and_those_of_kubernetes_are_taken() {
        for name in [
            "SETTEE_DATA_DIR",
            "SETTEE_MAX_UUIDS",
            "SETTEE_LOG",
            "SETTEE_USER",
            "SETTEE_USER_FILE",
            "SETTEE_PORT",
            "SETTEE_PORT_5984_TCP_ADDR",
            "SETTEE_SERVICE_HOST",
            "PATH",
            "SETTEED",
        ] {
            assert_eq!(check_one(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn an_unknown_variable_is_named_with_the_one_it_may_have_been_meant_for() {
        let refusal = check_one("SETTEE_DATADIR").unwrap_err();
        assert!(refusal.contains("SETTEE_DATADIR") && refusal.contains("mean SETTEE_DATA_DIR?"), "{refusal}");
        let refusal = check_one("SETTEE_QQQ").unwrap_err();
        assert!(refusal.contains("SETTEE_QQQ") && !refusal.contains("mean"), "{refusal}");
    }
}
