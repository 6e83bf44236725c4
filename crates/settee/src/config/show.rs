//! Prints the effective settings and their origins: as a settings file with the origins in comments, or as
//! JSON.
//!
//! Values set over HTTP, which the data directory stores, take precedence over all other sources, as in the
//! server. If such a value contradicts other settings in a settings file, it is printed in a comment, after a
//! line with the value that is effective without it.
//!
//! Invariants:
//! 1. The printed TOML is a valid settings file that yields the same settings.
//! 2. No password is printed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use settee_http::{CONFIG_FILE, Configured, Limits};

use super::effective::{Config, check_limits};
use super::file;
use super::settings::{GivenSettings, LimitTable, Settings, TableName, variable_name};

#[cfg(test)]
mod tests;

/// Column of the comments.
const COMMENT_COLUMN: usize = 48;

/// Printed instead of a password.
const HIDDEN: &str = "****";

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Default,
    File(PathBuf),
    Variable(String),
    Flag(String),
    /// Set over HTTP: the file in the data directory, and the key as `section/key`.
    Http(PathBuf, String),
}

impl Origin {
    /// Returns the text of the comment.
    fn text(&self) -> String {
        match self {
            Origin::Default => "default".to_owned(),
            Origin::File(path) => format!("file {}", path.display()),
            Origin::Variable(name) => format!("variable {name}"),
            Origin::Flag(name) => format!("flag {name}"),
            Origin::Http(path, key) => format!("set over HTTP as {key}, file {}", path.display()),
        }
    }

    /// Returns the members `source` and `where` of the JSON output.
    fn json(&self) -> (&'static str, Value) {
        match self {
            Origin::Default => ("default", Value::Null),
            Origin::File(path) => ("file", json!(path.display().to_string())),
            Origin::Variable(name) => ("variable", json!(name)),
            Origin::Flag(name) => ("flag", json!(name)),
            Origin::Http(path, key) => ("http", json!({ "file": path.display().to_string(), "key": key })),
        }
    }
}

/// A setting with its effective value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EffectiveSetting {
    pub(super) table: TableName,
    pub(super) name: &'static str,
    /// None if it isn't set and has no default.
    pub(super) value: Option<Value>,
    pub(super) origin: Origin,
    /// How the setting is printed in a settings file. None: as its value.
    file_form: Option<FileForm>,
}

/// How a settings file represents a setting that can't be printed as its value.
#[derive(Debug, Clone, PartialEq)]
enum FileForm {
    /// Only as a comment, to which this text is appended.
    Comment(&'static str),
    /// As the value and origin that are effective without the value set over HTTP, which is added as a
    /// comment.
    Replaced { value: Value, origin: Origin },
}

/// All settings with their effective values.
pub(super) struct EffectiveSettings {
    file: Option<PathBuf>,
    pub(super) settings: Vec<EffectiveSetting>,
    configured: Configured,
    configured_file: PathBuf,
}

impl EffectiveSettings {
    /// Resolves all settings as `settee serve` does.
    ///
    /// # Errors
    /// The errors of a server that starts with the same flags, variables and file.
    pub(super) fn resolve(given: &GivenSettings, path: Option<&Path>) -> Result<EffectiveSettings, String> {
        let of_file = path.map_or_else(|| Ok(Settings::default()), file::settings)?;
        let sources = Sources { given, of_given: given.settings.given(), of_file: of_file.given(), path };
        let config = Config::merge(given.settings.clone(), of_file)?;
        let configured_file = config.data_dir.join(CONFIG_FILE);
        let configured = settee_http::read_configured(&configured_file, &config.limits);

        let mut settings = before_tables(&config, &sources)?;
        for (table, limits) in config.groups() {
            let setting = |(name, value)| EffectiveSetting {
                table,
                name,
                value: Some(value),
                origin: sources.origin(name),
                file_form: None,
            };
            settings.extend(limits.into_iter().map(setting));
        }
        let valid = valid_in_file(&config.limits, &configured);
        for (name, value) in configured.limits.values() {
            let Some((_, key)) = configured.changed.iter().find(|(changed, _)| *changed == name) else {
                continue;
            };
            let setting =
                settings.iter_mut().find(|setting| setting.name == name).expect("every limit has a row");
            let start = (setting.value.replace(value), setting.origin.clone());
            setting.origin = Origin::Http(configured_file.clone(), key.clone());
            if !valid.contains(name) {
                let value = start.0.expect("every limit has a value");
                setting.file_form = Some(FileForm::Replaced { value, origin: start.1 });
            }
        }
        Ok(EffectiveSettings { file: path.map(Path::to_owned), settings, configured, configured_file })
    }

    /// Returns messages about the values set over HTTP that the server would ignore as invalid.
    pub(super) fn invalid(&self) -> Vec<String> {
        let invalid = self.configured.invalid.iter();
        invalid
            .map(|(name, reason)| format!("{name}: the value configured over HTTP is ignored: {reason}"))
            .collect()
    }

    /// Returns the text of a settings file.
    pub(super) fn toml(&self) -> String {
        let file = self.file.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
        let mut text = format!(
            "# The effective settings of `settee serve` and their sources.\n# File: {}\n\n",
            plain(&file)
        );
        let mut table = "";
        for setting in &self.settings {
            if setting.table != table {
                table = setting.table;
                text.push_str(&format!("\n[{table}]\n"));
            }
            text.push_str(&setting.toml());
        }
        text.push_str("\n# Configuration without a key in this file:\n");
        for (section, key, value) in &self.configured.others {
            let value = value.as_deref().map_or("(deleted)".to_owned(), quoted);
            let origin = format!("set over HTTP, file {}", self.configured_file.display());
            text.push_str(&line(&format!("# {} = {value}", plain(&format!("{section}/{key}"))), &origin));
        }
        for invalid in self.invalid() {
            text.push_str(&format!("# {}\n", plain(&invalid)));
        }
        text
    }

    /// Returns the JSON output.
    pub(super) fn json(&self) -> Value {
        let mut settings = Map::new();
        for setting in &self.settings {
            let (source, name) = setting.origin.json();
            let member = json!({ "value": setting.value, "source": source, "where": name });
            match setting.table {
                "" => settings.insert(setting.name.to_owned(), member),
                table => {
                    let table = settings.entry(table).or_insert_with(|| json!({}));
                    table.as_object_mut().and_then(|table| table.insert(setting.name.to_owned(), member))
                }
            };
        }
        let others = self.configured.others.iter();
        let others: Vec<Value> = others
            .map(|(section, key, value)| json!({ "section": section, "key": key, "value": value }))
            .collect();
        json!({
            "file": self.file.as_ref().map(|path| path.display().to_string()),
            "settings": settings,
            "over_http": {
                "file": self.configured_file.display().to_string(),
                "others": others,
                "left_out": self.invalid(),
            },
        })
    }
}

impl EffectiveSetting {
    /// Returns the lines of a settings file, with the origin in a comment.
    fn toml(&self) -> String {
        let (name, origin) = (self.name, self.origin.text());
        let value = self.value.as_ref().map_or("\"\"".to_owned(), toml_value);
        match &self.file_form {
            None => line(&format!("{name} = {value}"), &origin),
            Some(FileForm::Comment(reason)) => {
                line(&format!("#{name} = {value}"), &format!("{origin}{reason}"))
            }
            Some(FileForm::Replaced { value: start_value, origin: start_origin }) => {
                let start = line(&format!("{name} = {}", toml_value(start_value)), &start_origin.text());
                let in_force = format!("{origin}; effective, but invalid in a file with the other settings");
                start + &line(&format!("#{name} = {value}"), &in_force)
            }
        }
    }
}

/// The sources of settings, from which a setting's origin is determined.
struct Sources<'a> {
    given: &'a GivenSettings,
    /// Names of the settings from flags and variables.
    of_given: BTreeSet<&'static str>,
    /// Names of the settings in the file.
    of_file: BTreeSet<&'static str>,
    path: Option<&'a Path>,
}

impl Sources<'_> {
    fn origin(&self, name: &str) -> Origin {
        if self.given.flags.contains(name) {
            return Origin::Flag(format!("--{}", name.replace('_', "-")));
        }
        if self.of_given.contains(name) {
            return Origin::Variable(variable_name(name));
        }
        match self.path {
            Some(path) if self.of_file.contains(name) => Origin::File(path.to_owned()),
            _ => Origin::Default,
        }
    }
}

/// Returns the settings before the first table.
fn before_tables(config: &Config, sources: &Sources<'_>) -> Result<Vec<EffectiveSetting>, String> {
    let text = |path: &Path| {
        let text =
            path.to_str().ok_or_else(|| format!("{}: not UTF-8, which TOML requires", path.display()))?;
        Ok::<_, String>(json!(text))
    };
    let setting = |name, value| EffectiveSetting {
        table: "",
        name,
        value,
        origin: sources.origin(name),
        file_form: None,
    };
    let log_format = match config.log.format {
        super::LogFormat::Text => "text",
        super::LogFormat::Json => "json",
    };
    // Also for an administrator setting that another source overrides.
    let unset = |name| EffectiveSetting {
        table: "",
        name,
        value: None,
        origin: Origin::Default,
        file_form: Some(FileForm::Comment(": none")),
    };
    let log_file = match &config.log.file {
        Some(path) => setting("log_file", Some(text(path)?)),
        None => unset("log_file"),
    };
    let mut settings = vec![
        setting("data_dir", Some(text(&config.data_dir)?)),
        setting("listen", Some(json!(config.listen))),
        setting("trusted_proxies", Some(json!(config.trusted_proxies.to_string()))),
        setting("log_level", Some(json!(config.log.level.as_str()))),
        setting("log_format", Some(json!(log_format))),
        log_file,
        setting("access_log", Some(json!(config.access_log))),
        setting("io_engine", Some(json!(config.io_engine.to_string()))),
        setting("direct_io", Some(json!(config.databases.log.direct))),
    ];
    let (admin, admin_file) = match (&config.admin, &config.admin_file) {
        (None, _) => (unset("admin"), unset("admin_file")),
        (Some(_), Some(path)) => (unset("admin"), setting("admin_file", Some(text(path)?))),
        (Some(admin), None) => {
            let hidden = json!(format!("{}:{HIDDEN}", admin.name()));
            let file_form = Some(FileForm::Comment("; the password isn't printed and has to be set again"));
            (EffectiveSetting { file_form, ..setting("admin", Some(hidden)) }, unset("admin_file"))
        }
    };
    settings.splice(2..2, [admin, admin_file, setting("no_admin", Some(json!(config.no_admin)))]);
    Ok(settings)
}

/// Returns the names of the limits set over HTTP that are valid in a settings file with the other settings.
/// The set is maximal.
fn valid_in_file(start: &Limits, configured: &Configured) -> BTreeSet<&'static str> {
    let mut limits = start.clone();
    let mut valid = BTreeSet::new();
    loop {
        let count_before = valid.len();
        for (name, _) in &configured.changed {
            let mut changed = limits.clone();
            changed.copy_limit(name, &configured.limits);
            if changed.check_bounds().is_ok() && check_limits(changed.clone()).is_ok() {
                limits = changed;
                valid.insert(*name);
            }
        }
        // Repeats, since one limit may become valid only after another.
        if valid.len() == count_before {
            return valid;
        }
    }
}

/// Returns a line with a comment.
pub(super) fn line(text: &str, comment: &str) -> String {
    format!("{text:<width$}  # {}\n", plain(comment), width = COMMENT_COLUMN - 2)
}

/// Formats a value as TOML. Numbers and booleans are the same in JSON.
pub(super) fn toml_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// Formats a string as TOML, on one line.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(char))),
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

/// Replaces the control characters of a text, which aren't allowed in a comment.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}
