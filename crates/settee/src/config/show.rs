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

use serde_json::{Map, Value as Json, json};
use settee_http::{CONFIG_FILE, Configured};

use super::constants::CONSTANTS;
use super::effective::{Config, check_sizes};
use super::file;
use super::limits::{ServerLimits, Value};
use super::retired::{Fate, RETIRED};
use super::settings::{Kind, Origin, SETTINGS, Setting, Settings, TableName};

#[cfg(test)]
mod tests;

/// Column of the comments.
const COMMENT_COLUMN: usize = 48;

/// Printed instead of a password.
const HIDDEN: &str = "****";

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
    fn json(&self) -> (&'static str, Json) {
        match self {
            Origin::Default => ("default", Json::Null),
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
    /// Whether fixed limits are printed too.
    prints_fixed: bool,
}

impl EffectiveSettings {
    /// Resolves all settings as `settee serve` does.
    ///
    /// # Errors
    /// The errors of a server that starts with the same flags, variables and file.
    pub(super) fn resolve(given: &Settings, path: Option<&Path>) -> Result<EffectiveSettings, String> {
        let of_file = path.map_or_else(|| Ok(Settings::default()), file::settings)?;
        let merged = given.clone().over(of_file);
        let config = Config::of(&merged)?;
        let configured_file = config.data_dir.join(CONFIG_FILE);
        let mut configured = settee_http::read_configured(&configured_file, &config.limits.http);
        let changed = ServerLimits { http: configured.limits.clone(), ..config.limits.clone() };
        let valid = valid_in_file(&config.limits, &changed, &configured);

        let mut settings = Vec::new();
        for setting in SETTINGS {
            let mut effective = effective(setting, &config, &merged)?;
            let over_http = configured.changed.iter().find(|(name, ..)| *name == setting.name);
            if let (Some((_, section, key, _)), Some(field)) = (over_http, setting.field()) {
                let origin = Origin::Http(configured_file.clone(), format!("{section}/{key}"));
                let origin = std::mem::replace(&mut effective.origin, origin);
                let value = effective.value.replace((field.get)(&changed)).expect("every limit has a value");
                effective.file_form =
                    (!valid.contains(setting.name)).then_some(FileForm::Replaced { value, origin });
            }
            settings.push(effective);
        }
        let is_setting = |name: &str| SETTINGS.iter().any(|setting| setting.name == name);
        for (_, section, key, value) in configured.changed.extract_if(.., |changed| !is_setting(changed.0)) {
            configured.others.push((section, key, Some(value)));
        }
        let file = path.map(Path::to_owned);
        Ok(EffectiveSettings { file, settings, configured, configured_file, prints_fixed: false })
    }

    /// Prints the fixed limits too.
    pub(super) fn with_fixed(self) -> EffectiveSettings {
        EffectiveSettings { prints_fixed: true, ..self }
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
        if self.prints_fixed {
            text.push_str("\n# Fixed limits:\n");
            for FixedLimit { name, value, meaning, place } in fixed_limits() {
                let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
                text.push_str(&line(&format!("# {name} = {value}"), &format!("{meaning}{place}")));
            }
        }
        text
    }

    /// Returns the JSON output.
    pub(super) fn json(&self) -> Json {
        let mut settings = Map::new();
        for setting in &self.settings {
            let (source, name) = setting.origin.json();
            let member =
                json!({ "value": setting.value.as_ref().map(json_value), "source": source, "where": name });
            match setting.table {
                "" => settings.insert(setting.name.to_owned(), member),
                table => {
                    let table = settings.entry(table).or_insert_with(|| json!({}));
                    table.as_object_mut().and_then(|table| table.insert(setting.name.to_owned(), member))
                }
            };
        }
        let others = self.configured.others.iter();
        let others: Vec<Json> = others
            .map(|(section, key, value)| json!({ "section": section, "key": key, "value": value }))
            .collect();
        let mut shown = json!({
            "file": self.file.as_ref().map(|path| path.display().to_string()),
            "settings": settings,
            "over_http": {
                "file": self.configured_file.display().to_string(),
                "others": others,
                "left_out": self.invalid(),
            },
        });
        if self.prints_fixed {
            let fixed = fixed_limits().into_iter().map(|FixedLimit { name, value, meaning, place }| {
                json!({ "name": name, "value": value, "meaning": meaning, "file": place })
            });
            shown["fixed"] = fixed.collect();
        }
        shown
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

/// Returns the effective value of a setting without the values set over HTTP.
fn effective(setting: &Setting, config: &Config, merged: &Settings) -> Result<EffectiveSetting, String> {
    let (table, name) = (setting.table, setting.name);
    let value = match (name, &config.admin) {
        ("admin", Some(admin)) if merged.has(name) => Some(Value::Text(format!("{}:{HIDDEN}", admin.name()))),
        _ => setting.field().map(|field| (field.get)(&config.limits)).or_else(|| merged.value(name)),
    };
    if let Some(Value::Path(path)) = &value
        && path.to_str().is_none()
    {
        return Err(format!("{}: not UTF-8, which TOML requires", path.display()));
    }
    let file_form = match &value {
        None => Some(FileForm::Comment(": none")),
        Some(_) if name == "admin" => {
            Some(FileForm::Comment("; the password isn't printed and has to be set again"))
        }
        Some(_) => None,
    };
    Ok(EffectiveSetting { table, name, value, origin: merged.origin(name), file_form })
}

/// Returns the names of the limits set over HTTP that are valid in a settings file with the other settings.
/// The set is maximal.
fn valid_in_file(
    start: &ServerLimits,
    changed: &ServerLimits,
    configured: &Configured,
) -> BTreeSet<&'static str> {
    let mut limits = start.clone();
    let mut valid = BTreeSet::new();
    loop {
        let count_before = valid.len();
        for setting in SETTINGS {
            let is_changed = configured.changed.iter().any(|(name, ..)| *name == setting.name);
            let Some(field) = setting.field().filter(|_| is_changed) else { continue };
            let mut with = limits.clone();
            (field.set)(&mut with, &(field.get)(changed));
            let is_in_bounds = match &setting.kind {
                Kind::Number(limit) => limit.check(setting.name, &with).is_ok(),
                _ => true,
            };
            if is_in_bounds && check_sizes(&with.http).is_ok() {
                limits = with;
                valid.insert(setting.name);
            }
        }
        // Repeats, since one limit may become valid only after another.
        if valid.len() == count_before {
            return valid;
        }
    }
}

/// A limit that no setting changes.
struct FixedLimit {
    name: &'static str,
    value: String,
    meaning: &'static str,
    /// The file that declares it, if it is a constant.
    place: Option<&'static str>,
}

/// Returns the fields that were settings, and the constants.
fn fixed_limits() -> Vec<FixedLimit> {
    let fields = RETIRED.iter().filter_map(|(_, fate)| match fate {
        Fate::Field { name, value, meaning, .. } => {
            Some(FixedLimit { name, value: value().to_string(), meaning, place: None })
        }
        _ => None,
    });
    let constants = CONSTANTS.iter().map(|constant| FixedLimit {
        name: constant.name,
        value: constant.value.to_owned(),
        meaning: constant.meaning,
        place: Some(constant.file),
    });
    fields.chain(constants).collect()
}

/// Returns a line with a comment.
pub(super) fn line(text: &str, comment: &str) -> String {
    format!("{text:<width$}  # {}\n", plain(comment), width = COMMENT_COLUMN - 2)
}

/// Formats a value as TOML.
pub(super) fn toml_value(value: &Value) -> String {
    match value {
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Text(_) | Value::Path(_) => quoted(&value.to_string()),
    }
}

fn json_value(value: &Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::Number(value) => json!(value),
        Value::Text(_) | Value::Path(_) => json!(value.to_string()),
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
