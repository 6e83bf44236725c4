//! Whether a function that the engine runs could change what plans rely on.
//!
//! A plan means by `emit`, `isArray`, `Array.isArray`, `Object.keys`, `Math.floor`, a string's `slice` and so on what a
//! new context has. A function that runs in the engine could replace these for the functions of its realm, and the
//! prototypes of documents for all. The check is of words, not of syntax, and errs on the side of yes.

/// Words that give access to the global object, to prototypes, or to code that isn't in the source.
const ACCESS_WORDS: [&str; 19] = [
    "this",
    "globalThis",
    "global",
    "window",
    "self",
    "eval",
    "Function",
    "with",
    "require",
    "import",
    "Reflect",
    "Proxy",
    "__proto__",
    "constructor",
    "getPrototypeOf",
    "setPrototypeOf",
    "__defineGetter__",
    "__defineSetter__",
    "getOwnPropertyDescriptor",
];

/// Global objects whose members plans rely on.
const NAMESPACES: [&str; 3] = ["Array", "Object", "Math"];

/// Global functions that plans rely on.
const FUNCTIONS: [&str; 5] = ["emit", "isArray", "String", "Number", "Boolean"];

/// Whether a map function that has no plan may change globals or prototypes. If so, all functions
/// that share its realm or its documents belong in the engine: plans would not see what the engine sees. Other globals
/// may be changed, since no plan reads them.
pub fn may_change_globals(source: &str) -> bool {
    // An escape may spell any name.
    if source.contains("\\u") || source.contains("\\x") {
        return true;
    }
    let is_part = |char: char| char.is_alphanumeric() || char == '_' || char == '$';
    let mut at = 0;
    let mut word_before = "";
    while at < source.len() {
        let rest = &source[at..];
        let size = rest.find(|char: char| !is_part(char)).unwrap_or(rest.len());
        if size == 0 {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        }
        let (word, after) = rest.split_at(size);
        let before = source[..at].trim_end();
        if is_change(word, before, word_before, after.trim_start()) {
            return true;
        }
        word_before = word;
        at += size;
    }
    false
}

fn is_change(word: &str, before: &str, word_before: &str, after: &str) -> bool {
    if ACCESS_WORDS.contains(&word) {
        return true;
    }
    if word == "prototype" {
        return !is_borrowed_method(after);
    }
    // A member of something else, of the document for example; or what `toString` prints, `[object Array]`.
    if before.ends_with('.') || (before.ends_with("[object") && after.starts_with(']')) {
        return false;
    }
    if NAMESPACES.contains(&word) {
        let is_tested = word_before == "instanceof" || word_before == "new";
        return !is_tested && !after.starts_with('(') && !is_member_used(after);
    }
    if FUNCTIONS.contains(&word) {
        let is_used = after.starts_with(['(', ')', ';', '.']) || after.starts_with("==");
        let is_updated = before.ends_with("++") || before.ends_with("--");
        return !is_used || is_updated || ["function", "class"].contains(&word_before);
    }
    false
}

/// `.name(` or `.name.`: a member that is called, or looked into.
fn is_member_used(after: &str) -> bool {
    let Some(name) = after.strip_prefix('.') else { return false };
    let rest = name.trim_start().trim_start_matches(|char: char| char.is_alphanumeric() || char == '_');
    rest.trim_start().starts_with(['(', '.'])
}

/// `.name.call(` or `.name.apply(`.
fn is_borrowed_method(after: &str) -> bool {
    let Some(name) = after.strip_prefix('.') else { return false };
    let rest = name.trim_start_matches(|char: char| char.is_alphanumeric() || char == '_');
    rest.starts_with(".call(") || rest.starts_with(".apply(")
}
