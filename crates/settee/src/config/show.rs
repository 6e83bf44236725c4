//! What holds, and where it comes from: as a file of settings with the origins in comments, or as JSON.
//!
//! What was set over HTTP, in the data directory, goes before all else, as in the server. What of it
//! a file of settings can't hold beside the others is told in a comment, and the line says what
//! holds without it.
//!
//! Invariants:
//! 1. What is printed as TOML is taken as a file of settings, and says the same again.
//! 2. No password is printed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use settee_http::{CONFIG_FILE, Configured, Limits};

use super::settings::{Given, Group, Settings, Table, variable};
use super::{Config, check_limits, file};

#[cfg(test)]
mod tests;

/// Where comments begin.
const COMMENT_COLUMN: usize = 48;

/// Stands in place of a password.
const HIDDEN: &str = "****";

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Default,
    File(PathBuf),
    Variable(String),
    Flag(String),
    /// The file of the data directory, and the section and key there.
    Http(PathBuf, String),
}

impl Origin {
    /// In words.
    fn text(&self) -> String {
        match self {
            Origin::Default => "default".to_owned(),
            Origin::File(path) => format!("file {}", path.display()),
            Origin::Variable(name) => format!("variable {name}"),
            Origin::Flag(name) => format!("flag {name}"),
            Origin::Http(path, key) => format!("set over HTTP as {key}, file {}", path.display()),
        }
    }

    /// For programs: of what kind it is, and which one.
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

/// A setting in force.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) table: Table,
    pub(super) name: &'static str,
    /// None where it isn't set and has no default.
    pub(super) value: Option<Value>,
    pub(super) origin: Origin,
    /// What a file of settings has to say in its place, where that isn't the same.
    aside: Option<Aside>,
}

#[derive(Debug, Clone, PartialEq)]
enum Aside {
    /// Nothing: the value is told in a comment, with this.
    Comment(&'static str),
    /// What holds without what was set over HTTP, and why.
    Without { value: Value, origin: Origin },
}

/// All settings in force.
pub(super) struct Shown {
    file: Option<PathBuf>,
    pub(super) rows: Vec<Row>,
    configured: Configured,
    configured_file: PathBuf,
}

impl Shown {
    /// Decides every setting as `settee serve` does.
    ///
    /// # Errors
    /// Those of a server that starts with the same flags, variables and file.
    pub(super) fn gather(given: &Given, path: Option<&Path>) -> Result<Shown, String> {
        let of_file = path.map_or_else(|| Ok(Settings::default()), file::settings)?;
        let named = Named { given, of_given: given.settings.given(), of_file: of_file.given(), path };
        let config = Config::merge(given.settings.clone(), of_file)?;
        let configured_file = config.data_dir.join(CONFIG_FILE);
        let configured = settee_http::read_configured(&configured_file, &config.limits);

        let mut rows = above_tables(&config, &named)?;
        for (table, limits) in config.groups() {
            let row = |(name, value)| Row {
                table,
                name,
                value: Some(value),
                origin: named.origin(name),
                aside: None,
            };
            rows.extend(limits.into_iter().map(row));
        }
        let fitting = fitting(&config.limits, &configured);
        for (name, value) in configured.limits.each() {
            let Some((_, key)) = configured.changed.iter().find(|(changed, _)| *changed == name) else {
                continue;
            };
            let row = rows.iter_mut().find(|row| row.name == name).expect("every limit has a row");
            let without = (row.value.replace(value), row.origin.clone());
            row.origin = Origin::Http(configured_file.clone(), key.clone());
            if !fitting.contains(name) {
                let value = without.0.expect("every limit has a value");
                row.aside = Some(Aside::Without { value, origin: without.1 });
            }
        }
        Ok(Shown { file: path.map(Path::to_owned), rows, configured, configured_file })
    }

    /// What a server would log as left out, in words.
    pub(super) fn left_out(&self) -> Vec<String> {
        let left_out = self.configured.invalid.iter();
        left_out
            .map(|(what, reason)| format!("{what}: what was configured over HTTP is left out: {reason}"))
            .collect()
    }

    /// As a file of settings.
    pub(super) fn toml(&self) -> String {
        let file = self.file.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
        let mut text = format!(
            "# What holds for `settee serve`, and where it comes from.\n# File: {}\n\n",
            plain(&file)
        );
        let mut table = "";
        for row in &self.rows {
            if row.table != table {
                table = row.table;
                text.push_str(&format!("\n[{table}]\n"));
            }
            text.push_str(&row.toml());
        }
        text.push_str("\n# What has no key in this file.\n");
        for (section, key, value) in &self.configured.others {
            let value = value.as_deref().map_or("(deleted)".to_owned(), quoted);
            let origin = format!("set over HTTP, file {}", self.configured_file.display());
            text.push_str(&line(&format!("# {} = {value}", plain(&format!("{section}/{key}"))), &origin));
        }
        for left_out in self.left_out() {
            text.push_str(&format!("# {}\n", plain(&left_out)));
        }
        text
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let mut settings = Map::new();
        for row in &self.rows {
            let (source, name) = row.origin.json();
            let member = json!({ "value": row.value, "source": source, "where": name });
            match row.table {
                "" => settings.insert(row.name.to_owned(), member),
                table => {
                    let table = settings.entry(table).or_insert_with(|| json!({}));
                    table.as_object_mut().and_then(|table| table.insert(row.name.to_owned(), member))
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
                "left_out": self.left_out(),
            },
        })
    }
}

impl Row {
    /// As a line of a file of settings, with its origin.
    fn toml(&self) -> String {
        let (name, origin) = (self.name, self.origin.text());
        let value = self.value.as_ref().map_or("\"\"".to_owned(), toml_value);
        match &self.aside {
            None => line(&format!("{name} = {value}"), &origin),
            Some(Aside::Comment(reason)) => line(&format!("#{name} = {value}"), &format!("{origin}{reason}")),
            Some(Aside::Without { value: without, origin: without_origin }) => {
                let told = line(&format!("{name} = {}", toml_value(without)), &without_origin.text());
                let in_force = format!("{origin}; in force, but no file may say so beside the rest");
                told + &line(&format!("#{name} = {value}"), &in_force)
            }
        }
    }
}

/// Which source says something, by the settings' names.
struct Named<'a> {
    given: &'a Given,
    of_given: BTreeSet<&'static str>,
    of_file: BTreeSet<&'static str>,
    path: Option<&'a Path>,
}

impl Named<'_> {
    fn origin(&self, name: &str) -> Origin {
        if self.given.flags.contains(name) {
            return Origin::Flag(format!("--{}", name.replace('_', "-")));
        }
        if self.of_given.contains(name) {
            return Origin::Variable(variable(name));
        }
        match self.path {
            Some(path) if self.of_file.contains(name) => Origin::File(path.to_owned()),
            _ => Origin::Default,
        }
    }
}

/// The settings above all tables.
fn above_tables(config: &Config, named: &Named<'_>) -> Result<Vec<Row>, String> {
    let text = |path: &Path| {
        let text = path.to_str().ok_or_else(|| format!("{}: not UTF-8, which TOML is", path.display()))?;
        Ok::<_, String>(json!(text))
    };
    let row = |name, value| Row { table: "", name, value, origin: named.origin(name), aside: None };
    let log_format = match config.log.format {
        super::LogFormat::Text => "text",
        super::LogFormat::Json => "json",
    };
    // What isn't set has no value; what names nobody, since a nearer source does, isn't in force.
    let silent = |name| Row {
        table: "",
        name,
        value: None,
        origin: Origin::Default,
        aside: Some(Aside::Comment(": none")),
    };
    let log_file = match &config.log.file {
        Some(path) => row("log_file", Some(text(path)?)),
        None => silent("log_file"),
    };
    let mut rows = vec![
        row("data_dir", Some(text(&config.data_dir)?)),
        row("listen", Some(json!(config.listen))),
        row("trusted_proxies", Some(json!(config.trusted_proxies.to_string()))),
        row("log_level", Some(json!(config.log.level.as_str()))),
        row("log_format", Some(json!(log_format))),
        log_file,
        row("access_log", Some(json!(config.access_log))),
        row("io_engine", Some(json!(config.io_engine.to_string()))),
        row("direct_io", Some(json!(config.databases.log.direct))),
    ];
    let (admin, admin_file) = match (&config.admin, &config.admin_file) {
        (None, _) => (silent("admin"), silent("admin_file")),
        (Some(_), Some(path)) => (silent("admin"), row("admin_file", Some(text(path)?))),
        (Some(admin), None) => {
            let hidden = json!(format!("{}:{HIDDEN}", admin.name()));
            let aside = Some(Aside::Comment("; the password isn't shown: it has to be given again"));
            (Row { aside, ..row("admin", Some(hidden)) }, silent("admin_file"))
        }
    };
    rows.splice(2..2, [admin, admin_file, row("no_admin", Some(json!(config.no_admin)))]);
    Ok(rows)
}

/// The limits set over HTTP that a file of settings can have beside the others: as many as go
/// together.
fn fitting(start: &Limits, configured: &Configured) -> BTreeSet<&'static str> {
    let mut limits = start.clone();
    let mut fitting = BTreeSet::new();
    loop {
        let before = fitting.len();
        for (name, _) in &configured.changed {
            let mut with = limits.clone();
            with.take(name, &configured.limits);
            if with.in_bounds().is_ok() && check_limits(with.clone()).is_ok() {
                limits = with;
                fitting.insert(*name);
            }
        }
        // One may go only after another.
        if fitting.len() == before {
            return fitting;
        }
    }
}

/// A line with a comment.
pub(super) fn line(text: &str, comment: &str) -> String {
    format!("{text:<width$}  # {}\n", plain(comment), width = COMMENT_COLUMN - 2)
}

/// A value as TOML has it: numbers and truth values are alike in both.
pub(super) fn toml_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// A string as TOML has it, on one line.
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

/// Text for a comment, which control characters would end or spoil.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}
