//! Goal: the documentation of the settings is what their declaration yields.
//! Method: generates `docs/settee.toml` and the table of `docs/configuration.md`, and compares them with the
//! files. With `SETTEE_UPDATE=1` it writes the files instead.

use std::fs;
use std::path::PathBuf;

use super::super::limits::{Limit, Unit, Value};
use super::super::settings::{Kind, SETTINGS, Setting, TABLES};
use super::super::show::toml_value;

/// Longest line of `docs/settee.toml`.
const COLUMNS: usize = 110;

const TOML_HEAD: &str = "\
# Settee's configuration: settee serve --config settee.toml
#
# Every setting is listed here, commented out, with its default or an example: remove the # from those you
# change. Flags take precedence over environment variables, and both over this file. A setting's flag and
# variable have its name: connections_max is --connections-max and SETTEE_CONNECTIONS_MAX.
# `settee serve --help` lists them all. `settee config` prints the settings in force and their sources;
# `settee config --limits` adds the limits that are fixed; `settee config import-ini` converts CouchDB's
# configuration files to such a file.
#
# Numbers are at least 1 unless stated otherwise; sizes are in bytes and at most 16 TiB, times at most ten
# years.
";

const TABLE_BEGIN: &str =
    "<!-- The settings, generated: SETTEE_UPDATE=1 cargo test -p settee --bin settee documents -->\n";
const TABLE_END: &str = "<!-- End of the settings. -->\n";

/// Values of settings without a default, for the example.
const EXAMPLES: [(&str, &str); 3] =
    [("admin", "NAME:PASSWORD"), ("admin_file", "/etc/settee/admin"), ("log_file", "/var/log/settee.log")];

fn wrap(text: &str) -> String {
    let mut wrapped = String::new();
    let mut line = "#".to_owned();
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > COLUMNS {
            wrapped.push_str(&line);
            wrapped.push('\n');
            line.truncate(1);
        }
        line.push(' ');
        line.push_str(word);
    }
    wrapped + &line + "\n"
}

fn toml() -> String {
    let mut text = TOML_HEAD.to_owned();
    for (table, heading) in TABLES {
        if !table.is_empty() {
            text.push_str(&format!("\n# {heading}.\n[{table}]\n"));
        }
        for setting in SETTINGS.iter().filter(|setting| setting.table == *table) {
            let example = || EXAMPLES.iter().find(|(name, _)| *name == setting.name).expect("an example").1;
            let value = setting.default().unwrap_or_else(|| Value::Text(example().to_owned()));
            let (meaning, value) = (wrap(&setting.meaning()), toml_value(&value));
            text.push_str(&format!("\n{meaning}#{} = {value}\n", setting.name));
        }
    }
    text
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its unit, as people read it.
fn with_unit(number: u64, unit: Unit) -> String {
    let bytes = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match unit {
        Unit::Bytes => {
            match bytes.into_iter().find(|(bits, _)| number >> bits << bits == number && number > 0) {
                Some((bits, unit)) => format!("{} {unit}", number >> bits),
                None => format!("{} bytes", grouped(number)),
            }
        }
        Unit::Ms if number.is_multiple_of(1000) => format!("{} s", grouped(number / 1000)),
        Unit::Ms => format!("{} ms", grouped(number)),
        Unit::S => format!("{} s", grouped(number)),
        Unit::Percent => format!("{number} %"),
        Unit::Count => grouped(number),
    }
}

fn shown_default(setting: &Setting) -> String {
    match (&setting.kind, setting.default()) {
        (_, None) => "none".to_owned(),
        (Kind::Number(Limit { unit, .. }), Some(Value::Number(number))) => with_unit(number, *unit),
        (_, Some(value)) => format!("`{value}`"),
    }
}

fn table() -> String {
    let mut text = String::new();
    for (table, heading) in TABLES {
        let place =
            if table.is_empty() { "before the first table".to_owned() } else { format!("`[{table}]`") };
        text.push_str(&format!("\n{heading}, {place}:\n\n| setting | default | meaning |\n|---|---|---|\n"));
        for setting in SETTINGS.iter().filter(|setting| setting.table == *table) {
            let (name, default, meaning) = (setting.name, shown_default(setting), setting.meaning());
            text.push_str(&format!("| `{name}` | {default} | {} |\n", meaning.replace('|', "\\|")));
        }
    }
    text + "\n"
}

/// Compares a file of `docs` with its generated text, or writes it.
fn compare(name: &str, generate: impl FnOnce(&str) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let text = fs::read_to_string(&path).unwrap();
    let generated = generate(&text);
    if std::env::var_os("SETTEE_UPDATE").is_some() {
        fs::write(&path, generated).unwrap();
    } else {
        let hint =
            "the declaration has changed: run SETTEE_UPDATE=1 cargo test -p settee --bin settee documents";
        assert!(text == generated, "docs/{name}: {hint}");
    }
}

#[test]
fn the_example_file_is_what_the_declaration_yields() {
    compare("settee.toml", |_| toml());
}

#[test]
fn the_table_of_settings_is_what_the_declaration_yields() {
    compare("configuration.md", |text| {
        let (before, rest) = text.split_once(TABLE_BEGIN).expect("the begin of the table");
        let (_, after) = rest.split_once(TABLE_END).expect("the end of the table");
        [before, TABLE_BEGIN, &table(), TABLE_END, after].concat()
    });
}
