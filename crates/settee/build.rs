//! Collects the constants of the crates' sources that bound a queue, a buffer, a loop or a cache, for
//! `settee config --limits`. The declarations in the sources are the only place that has them.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Crates that are no part of the server.
const OTHER_CRATES: [&str; 3] = ["settee-bench", "settee-sim", "xtask"];

/// A constant with one of these words in its name is a limit.
const WORDS: [&str; 7] = ["MAX", "LIMIT", "COUNT", "BYTES", "TIMEOUT", "BACKLOG", "AHEAD"];

fn main() -> io::Result<()> {
    let crates = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    let mut text = String::from("&[\n");
    for directory in sorted(&crates)? {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !OTHER_CRATES.contains(&name.as_str()) && directory.join("src").is_dir() {
            println!("cargo::rerun-if-changed={}", directory.join("src").display());
            collect(&crates, &directory.join("src"), &mut text)?;
        }
    }
    text.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("constants.rs"), text)
}

fn sorted(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    Ok(paths)
}

/// Appends the constants of a directory's files, except for tests and benchmarks.
fn collect(crates: &Path, directory: &Path, text: &mut String) -> io::Result<()> {
    for path in sorted(directory)? {
        let name = path.file_stem().unwrap_or_default();
        if name == "tests" || name == "bench" {
            continue;
        }
        if path.is_dir() {
            collect(crates, &path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = path.strip_prefix(crates).expect("below it").display().to_string();
            constants(&file, &fs::read_to_string(&path)?, text);
        }
    }
    Ok(())
}

/// Appends the constants of a file. The lines of tests come last in a file.
fn constants(file: &str, source: &str, text: &mut String) {
    let mut doc = String::new();
    let mut lines = source.lines().map(str::trim).take_while(|line| *line != "mod tests {");
    while let Some(line) = lines.next() {
        if let Some(more) = line.strip_prefix("///") {
            doc.push_str(more);
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let declared = line.split_once("const ").filter(|(before, _)| is_visibility(before));
        if let Some((name, _)) = declared.and_then(|(_, rest)| rest.split_once(": ")) {
            let mut declaration = line.to_owned();
            while !declaration.ends_with(';') {
                let Some(line) = lines.next() else { return };
                declaration.push(' ');
                declaration.push_str(line);
            }
            let value = declaration.split_once(" = ").map(|(_, value)| value.trim_end_matches(';'));
            let is_limit = name.split('_').any(|word| WORDS.contains(&word));
            // What a value takes in memory isn't a limit, nor is a list.
            let is_number = |value: &&str| !value.contains("size_of") && !value.starts_with(['&', '[', '"']);
            if let Some(value) = value.filter(is_number).filter(|_| is_limit) {
                let sentence = doc.trim().split_once(". ").map_or(doc.trim(), |(first, _)| first);
                let meaning = sentence.trim_end_matches('.').replace("[`", "`").replace("`]", "`");
                let value = evaluate(value);
                text.push_str(&format!(
                    "Constant {{ file: {file:?}, name: {name:?}, value: {value:?}, meaning: {meaning:?} }},\n"
                ));
            }
        }
        doc.clear();
    }
}

/// Whether this is all that may precede `const`.
fn is_visibility(text: &str) -> bool {
    let text = text.trim_end();
    text.is_empty() || text == "pub" || text.starts_with("pub(") && text.ends_with(')')
}

/// Returns the number that a plain expression yields; any other expression as it is.
fn evaluate(expression: &str) -> String {
    for (function, unit) in [("secs", "s"), ("millis", "ms"), ("micros", "us")] {
        let argument = expression.strip_prefix(&format!("Duration::from_{function}("));
        if let Some(number) = argument.and_then(|rest| rest.strip_suffix(')')) {
            return format!("{} {unit}", evaluate(number));
        }
    }
    shifted(expression).map_or_else(|| expression.to_owned(), |number| number.to_string())
}

fn shifted(expression: &str) -> Option<u64> {
    match expression.split_once(" << ") {
        Some((number, bits)) => product(number)?.checked_shl(u32::try_from(product(bits)?).ok()?),
        None => product(expression),
    }
}

fn product(expression: &str) -> Option<u64> {
    expression
        .split(" * ")
        .map(|factor| factor.replace('_', "").parse::<u64>().ok())
        .try_fold(1_u64, |one, other| one.checked_mul(other?))
}
