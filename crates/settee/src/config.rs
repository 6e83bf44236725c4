//! The configuration of `settee serve`, and `settee config`, which prints it and converts CouchDB's.
//!
//! One table declares the settings for flags, `SETTEE_*` variables, the settings file and the documentation
//! ([`settings`]). For each setting the flag takes precedence over the variable, the file and the default, in
//! this order. An unknown key in the file is an error with the key and its table; a former name, an error
//! with the present one ([`retired`]).

mod command;
mod constants;
mod effective;
mod file;
mod import;
mod ini;
mod limits;
pub(crate) mod retired;
mod settings;
mod show;
#[cfg(test)]
mod tests;

pub(crate) use command::{Args, run};
pub(crate) use effective::Config;
pub(crate) use settings::Settings;
