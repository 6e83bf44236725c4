//! Checks the names of environment variables: a `SETTEE_*` variable that no command reads is an error, so
//! that a misspelled name doesn't silently leave the default in effect.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::config::retired;
use crate::secret::USER_VARIABLE;

/// Prefix of all variables that commands read.
const PREFIX: &str = "SETTEE_";

/// Prefixes of the variables that Kubernetes sets in the containers of a namespace with a service named
/// `settee`.
const FOREIGN_PREFIXES: [&str; 2] = ["SETTEE_PORT", "SETTEE_SERVICE_"];

/// Variables that belong to no argument.
const WITHOUT_ARGUMENT: [&str; 1] = [USER_VARIABLE];

/// Smallest Jaro-Winkler similarity to a known name for which the error suggests that name. 1 means equal.
const SIMILARITY_MIN: f64 = 0.9;

/// Checks the names of `variables` against those of `command` and its subcommands.
///
/// # Errors
/// The first unknown name in alphabetical order, with the most similar known name.
pub(crate) fn check(
    command: &clap::Command,
    variables: impl Iterator<Item = OsString>,
) -> Result<(), String> {
    let mut known: BTreeSet<String> = WITHOUT_ARGUMENT.map(str::to_owned).into();
    add_known(command, &mut known);
    let is_foreign = |name: &str| FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let names = variables.map(|name| name.to_string_lossy().into_owned());
    let unknown =
        names.filter(|name| name.starts_with(PREFIX) && !is_foreign(name) && !known.contains(name)).min();
    let Some(unknown) = unknown else { return Ok(()) };
    if let Some(message) = retired::variable_message(&unknown) {
        return Err(format!("the environment variable {message}"));
    }
    let similarities = known.iter().map(|name| (strsim::jaro_winkler(name, &unknown), name));
    let nearest = similarities.max_by(|one, other| one.0.total_cmp(&other.0));
    let hint = match nearest {
        Some((similarity, name)) if similarity >= SIMILARITY_MIN => format!("; did you mean {name}?"),
        _ => String::new(),
    };
    Err(format!("the environment variable {unknown} is not a setting{hint}"))
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
    fn known_unprefixed_and_kubernetes_variables_are_accepted() {
        for name in [
            "SETTEE_DATA_DIR",
            "SETTEE_CONNECTIONS_MAX",
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
    fn an_unknown_variable_is_reported_with_a_similar_or_its_present_name() {
        let error = check_one("SETTEE_DATADIR").unwrap_err();
        assert!(error.contains("SETTEE_DATADIR") && error.contains("mean SETTEE_DATA_DIR?"), "{error}");
        let error = check_one("SETTEE_MAX_CONNECTIONS").unwrap_err();
        assert!(error.ends_with("SETTEE_MAX_CONNECTIONS is SETTEE_CONNECTIONS_MAX now"), "{error}");
        let error = check_one("SETTEE_MAX_HEADERS").unwrap_err();
        assert!(error.ends_with("isn't a setting any more: the value is always 100"), "{error}");
        let error = check_one("SETTEE_QQQ").unwrap_err();
        assert!(error.contains("SETTEE_QQQ") && !error.contains("mean"), "{error}");
    }
}
