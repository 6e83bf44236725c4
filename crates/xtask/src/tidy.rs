//! The rules of the source tree that no compiler checks.
//!
//! Reads every file that git tracks or would track, and reports each breach with its file and line:
//! 1. A crate depends only on those below it ([`ORDER`]), and not on its forbidden dependencies
//!    ([`FORBIDDEN`]). `settee-sim` is only for tests, and so is the feature [`FAILPOINTS`].
//! 2. `unsafe` occurs only in `settee-io`, and in the peers' file that opens LMDB.
//! 3. No file has [`LINES_MAX`] lines or more.
//! 4. No test is ignored; no file contains a path of a particular machine.
//! 5. Text has no NUL, tab, carriage return or trailing white space, and one newline at the end. Go files may
//!    have tabs, with which Go's formatter indents.
//! 6. Every crate's root begins with its doc.
//! 7. The engine's crates have the same `clippy.toml` ([`ENGINE`]).
//! 8. No file of a crate imports another that imports it (`circles`).
//! 9. Comments of Rust files use none of the idioms that a newcomer reads twice ([`IDIOMS`]).

use std::path::Path;
use std::process::Command;

use crate::circles::{self, Circle};

#[cfg(test)]
mod tests;

/// The file that opens LMDB. A mapped file can change while it is read, so LMDB's library has no safe
/// function to open one.
const LMDB: &str = "peers/src/store/lmdb.rs";

/// The crates of the engine and the server, the highest first. A crate depends only on those after it.
const ORDER: [&str; 14] = [
    "settee",
    "settee-bench",
    "settee-http",
    "settee-client",
    "settee-view",
    "settee-map",
    "settee-js",
    "settee-doc",
    "settee-auth",
    "settee-collate",
    "settee-store",
    "settee-tree",
    "settee-log",
    "settee-io",
];

/// The simulation. It depends only on `settee-io` and is only a dev-dependency of other crates.
const SIMULATION: &str = "settee-sim";

/// This crate. It depends on none of the others, and none depends on it.
const TASKS: &str = "xtask";

/// The crates that run under simulation. Each has the same `clippy.toml`, which forbids the files, clocks,
/// tasks and randomness of std and tokio.
const ENGINE: [&str; 5] = ["settee-log", "settee-tree", "settee-store", "settee-doc", "settee-view"];

/// Dependencies that a crate must not have although the order would allow them.
const FORBIDDEN: [(&str, &[&str]); 6] = [
    ("settee-http", &["settee-store", "settee-tree", "settee-log"]),
    ("settee-view", &["hyper", "http"]),
    ("settee-doc", &["hyper", "http", "settee-tree", "settee-log"]),
    ("settee-store", &["hyper", "http", "serde_json"]),
    ("settee-tree", &["hyper", "http", "serde_json", "settee-log"]),
    ("settee-log", &["hyper", "http", "serde_json"]),
];

/// The feature that adds failpoints for tests.
const FAILPOINTS: &str = "failpoints";

/// Number of lines from which on a file is too long.
const LINES_MAX: usize = 1000;

/// Files that aren't checked: they are generated, or copied unchanged.
const UNCHECKED_FILES: [&str; 4] = ["Cargo.lock", "package-lock.json", "go.sum", "LICENSE"];

/// Files that tests read, and aren't text: their directory, and how their names end.
const TEST_DATA: &[(&str, &str)] = &[("tests/upgrade/", ".gz")];

/// Beginnings of paths of a particular machine; split, so that this file doesn't break its own rule.
const MACHINE_PATHS: [&str; 6] = [
    concat!("/", "home/"),
    concat!("/", "root/"),
    concat!("/", "Users/"),
    concat!("/", "work/"),
    concat!("/", "workspace/"),
    concat!("/", "builds/"),
];

/// Words and phrases in place of which the field has a term, or the sentence a subject with a name.
const IDIOMS: [&str; 12] = [
    "whoever",
    "so many",
    "told",
    "stands",
    "lets go",
    "let go",
    "gives on",
    "let in",
    "room",
    "folder",
    "folders",
    "hundredths",
];

/// A file of the tree.
struct Source {
    /// The path from the root.
    path: String,
    bytes: Vec<u8>,
}

/// Checks the tree under `root`.
///
/// # Errors
/// All breaches, one per line.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let tree = read_tree(root)?;
    let mut breaches = check(&tree);
    check_circles(root, &mut breaches)?;
    if !breaches.is_empty() {
        return Err(breaches.join("\n"));
    }
    println!("{} files are tidy", tree.len());
    Ok(())
}

/// Prints the import circles of each crate.
///
/// # Errors
/// The file that can't be read or parsed.
pub(crate) fn print_circles(root: &Path) -> Result<(), String> {
    for (name, circle) in all_circles(root)? {
        println!("{name}: {} files import each other", circle.files.len());
        for (from, to, names) in circle.imports {
            println!("    {} -> {}: {}", from.display(), to.display(), names.join(", "));
        }
    }
    Ok(())
}

/// The import circles of all crates, each with the crate's name.
fn all_circles(root: &Path) -> Result<Vec<(&'static str, Circle)>, String> {
    let mut found = Vec::new();
    for name in ORDER.into_iter().chain([SIMULATION, TASKS]) {
        let files = ["lib.rs", "main.rs"].map(|file| root.join("crates").join(name).join("src").join(file));
        for file in files.iter().filter(|file| file.exists()) {
            found.extend(circles::circles(file)?.into_iter().map(|circle| (name, circle)));
        }
    }
    Ok(found)
}

/// Rule 8.
fn check_circles(root: &Path, breaches: &mut Vec<String>) -> Result<(), String> {
    for (name, circle) in all_circles(root)? {
        let files: Vec<_> = circle.files.iter().map(|file| file.to_string_lossy()).collect();
        breaches.push(format!(
            "crates/{name}/src: files import each other: {} (see `cargo xtask circles`)",
            files.join(", ")
        ));
    }
    Ok(())
}

/// Reads the files that git tracks, and the untracked ones that it doesn't ignore.
fn read_tree(root: &Path) -> Result<Vec<Source>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let paths = String::from_utf8(output.stdout).map_err(|_| "a path isn't UTF-8".to_owned())?;
    let mut tree = Vec::new();
    for path in paths.split_terminator('\0') {
        match std::fs::read(root.join(path)) {
            Ok(bytes) => tree.push(Source { path: path.to_owned(), bytes }),
            // Tracked, but deleted in this checkout.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    Ok(tree)
}

/// All breaches in `tree`.
fn check(tree: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    for Source { path, bytes } in tree {
        let is_unchecked =
            UNCHECKED_FILES.iter().any(|name| path == name || path.ends_with(&format!("/{name}")));
        if is_unchecked
            || TEST_DATA.iter().any(|(directory, end)| path.starts_with(directory) && path.ends_with(end))
        {
            continue;
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            breaches.push(format!("{path}: not UTF-8"));
            continue;
        };
        check_text(path, text, &mut breaches);
        if path.ends_with(".rs") {
            check_rust(path, text, &mut breaches);
        } else if path.ends_with(".js") || path.ends_with(".mjs") {
            check_node_tests(path, text, &mut breaches);
        } else if path.ends_with(".go") {
            check_skips(path, text, [".Skip(", ".Skipf(", ".SkipNow("], &mut breaches);
        } else if path.ends_with(".py") {
            check_skips(path, text, ["unittest.skip", ".skipTest(", "SkipTest"], &mut breaches);
        } else if path.starts_with("crates/") && path.ends_with("/Cargo.toml") {
            check_manifest(path, text, &mut breaches);
        }
    }
    check_engine(tree, &mut breaches);
    breaches
}

/// Rule 7.
fn check_engine(tree: &[Source], breaches: &mut Vec<String>) {
    let find = |path: &str| tree.iter().find(|source| source.path == path).map(|source| &source.bytes);
    let first = find(&format!("crates/{}/clippy.toml", ENGINE[0]));
    for name in ENGINE {
        let path = format!("crates/{name}/clippy.toml");
        let exists = find(&format!("crates/{name}/Cargo.toml")).is_some();
        if exists && (first.is_none() || find(&path) != first) {
            breaches.push(format!("{path}: must exist and equal {}'s", ENGINE[0]));
        }
    }
}

/// Rules 3 and 5, and the paths of rule 4.
fn check_text(path: &str, text: &str, breaches: &mut Vec<String>) {
    let line_count = text.lines().count();
    if line_count >= LINES_MAX {
        breaches.push(format!("{path}: {line_count} lines; fewer than {LINES_MAX} are allowed"));
    }
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        breaches.push(format!("{path}: must end with one newline"));
    }
    let is_go = path.ends_with(".go") || path.ends_with("go.mod");
    for (index, line) in text.split('\n').enumerate() {
        let mut breach = |what: &str| breaches.push(format!("{path}:{}: {what}", index + 1));
        for (character, name) in [('\0', "a NUL"), ('\t', "a tab"), ('\r', "a carriage return")] {
            if line.contains(character) && !(character == '\t' && is_go) {
                breach(name);
            }
        }
        if line.ends_with(' ') {
            breach("trailing white space");
        }
        if MACHINE_PATHS.iter().any(|start| names_path(line, start)) {
            breach("a path of a particular machine");
        }
    }
}

/// Whether a path in `line` begins with `start`: not in the middle of a longer path or URL.
fn names_path(line: &str, start: &str) -> bool {
    let inside = |before: char| before.is_alphanumeric() || "._-~}/".contains(before);
    line.match_indices(start).any(|(at, _)| !line[..at].ends_with(inside))
}

/// Rules 2 and 6, and the ignored tests of rule 4.
fn check_rust(path: &str, text: &str, breaches: &mut Vec<String>) {
    let is_root = path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    if path.starts_with("crates/") && is_root && !text.starts_with("//!") {
        breaches.push(format!("{path}:1: must begin with `//!`"));
    }
    let code = blank_text(text);
    for (index, line) in code.lines().enumerate() {
        let location = format!("{path}:{}", index + 1);
        let mut words =
            line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let is_allowed = path.starts_with("crates/settee-io/") || path == LMDB;
        if !is_allowed && words.clone().any(|word| word == "unsafe") {
            breaches.push(format!("{location}: `unsafe` is allowed only in settee-io"));
        }
        if line.trim_start().starts_with("#[") && words.any(|word| word == "ignore") {
            breaches.push(format!("{location}: an ignored test"));
        }
    }
    check_idioms(path, text, breaches);
}

/// Rule 9, for comments that have a line to themselves.
fn check_idioms(path: &str, text: &str, breaches: &mut Vec<String>) {
    // The words of a phrase may be in two lines of a comment.
    let mut before = String::new();
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            before.clear();
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        let words = comment.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let comment: String = words.map(|word| word.to_lowercase() + " ").collect();
        let both = format!(" {before}{comment}");
        for idiom in IDIOMS {
            let found = format!(" {idiom} ");
            if both.contains(&found) && !format!(" {before}").contains(&found) {
                breaches.push(format!("{path}:{}: a comment says {idiom:?}", index + 1));
            }
        }
        before = comment;
    }
}

/// Rule 4 for node's test runner: no test is skipped, or makes the runner skip others.
fn check_node_tests(path: &str, text: &str, breaches: &mut Vec<String>) {
    let has = |line: &str, words: [&str; 3]| words.iter().any(|word| line.contains(word));
    for (index, line) in text.lines().enumerate() {
        let option = line.contains("test(") && has(line, ["skip:", "todo:", "only:"]);
        if option || has(line, [".skip(", ".todo(", ".only("]) {
            breaches.push(format!("{path}:{}: an ignored test", index + 1));
        }
    }
}

/// Rule 4 for Go's and Python's tests: none of `words`, which skip tests.
fn check_skips(path: &str, text: &str, words: [&str; 3], breaches: &mut Vec<String>) {
    for (index, line) in text.lines().enumerate() {
        if words.iter().any(|word| line.contains(word)) {
            breaches.push(format!("{path}:{}: an ignored test", index + 1));
        }
    }
}

/// Rule 1.
fn check_manifest(path: &str, text: &str, breaches: &mut Vec<String>) {
    let manifest: toml::Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return breaches.push(format!("{path}: {error}")),
    };
    let name = path.trim_start_matches("crates/").trim_end_matches("/Cargo.toml");
    let declared =
        manifest.get("package").and_then(|package| package.get("name")).and_then(|name| name.as_str());
    if declared != Some(name) {
        breaches.push(format!("{path}: a crate has its directory's name"));
    }
    if ![SIMULATION, TASKS].contains(&name) && !ORDER.contains(&name) {
        breaches.push(format!("{path}: {name} is missing in the order of the crates"));
    }
    for (kind, dependency) in dependencies(&manifest) {
        if !may_depend(name, &kind, &dependency) {
            breaches.push(format!("{path}: {name} must not depend on {dependency} ({kind})"));
        }
    }
    let own_tests = format!("{name} = {{ path = \".\", features = [\"{FAILPOINTS}\"] }}");
    let enables = |line: &str| line.contains(FAILPOINTS) && !line.starts_with(&format!("{FAILPOINTS} ="));
    if text.lines().any(|line| enables(line) && line != own_tests) {
        breaches.push(format!("{path}: `{FAILPOINTS}` is only for a crate's own tests"));
    }
}

/// Whether the crate `name` may list `dependency` in its section `kind`.
fn may_depend(name: &str, kind: &str, dependency: &str) -> bool {
    let rank = |name: &str| ORDER.iter().position(|other| *other == name);
    if FORBIDDEN.iter().any(|(from, to)| *from == name && to.contains(&dependency)) {
        return false;
    }
    match (name, dependency) {
        (_, TASKS) => false,
        (TASKS, _) => rank(dependency).is_none() && dependency != SIMULATION,
        (SIMULATION, _) => rank(dependency).is_none() || dependency == "settee-io",
        (_, SIMULATION) => kind == "dev-dependencies",
        _ if name == dependency => kind == "dev-dependencies",
        _ => rank(dependency).is_none_or(|below| rank(name).is_some_and(|own| own < below)),
    }
}

/// Each dependency in `manifest`: its section and its package's name.
fn dependencies(manifest: &toml::Table) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (key, value) in manifest {
        let Some(section) = value.as_table() else { continue };
        if key.ends_with("dependencies") {
            for (name, dependency) in section {
                let renamed = dependency.get("package").and_then(|package| package.as_str());
                found.push((key.clone(), renamed.unwrap_or(name).to_owned()));
            }
        } else if key == "target" {
            found.extend(section.values().filter_map(|target| target.as_table()).flat_map(dependencies));
        }
    }
    found
}

/// Replaces comments, strings and character literals in `text` by spaces; line breaks are kept.
fn blank_text(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = text_length(rest, code.chars().next_back());
        if skipped > 0 {
            code.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// The length in bytes of the comment or literal at the beginning of `rest`. 0: code.
fn text_length(rest: &str, before: Option<char>) -> usize {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let raw = rest.strip_prefix('r').or_else(|| rest.strip_prefix("br")).unwrap_or("");
    let hashes = &raw[..raw.len() - raw.trim_start_matches('#').len()];
    if rest.starts_with("//") {
        rest.find('\n').unwrap_or(rest.len())
    } else if rest.starts_with("/*") {
        block_comment_length(rest)
    } else if !in_word && raw[hashes.len()..].starts_with('"') {
        let start = rest.len() - raw.len() + hashes.len() + 1;
        let end = format!("\"{hashes}");
        rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
    } else if rest.starts_with('"') {
        quoted_length(rest, '"')
    } else if rest.starts_with("'\\") || (rest.starts_with('\'') && rest.chars().nth(2) == Some('\'')) {
        // A character, not a lifetime.
        quoted_length(rest, '\'')
    } else {
        0
    }
}

/// The length of the block comment at the beginning of `rest`. Block comments nest.
fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        let step = match here {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of the literal between two `quote`s at the beginning of `rest`.
fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}
