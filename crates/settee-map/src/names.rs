//! Names that objects have from their prototypes.
//!
//! A plan never evaluates an inherited member itself, other than calls of known methods: where a document lacks a
//! member of such a name, the engine maps it. A test compares the lists with the engine's prototypes.

/// Kinds of receivers, as bits of a mask.
pub(crate) const OBJECT: u8 = 1;
pub(crate) const ARRAY: u8 = 2;
pub(crate) const TEXT: u8 = 4;
pub(crate) const NUMBER: u8 = 8;
pub(crate) const BOOLEAN: u8 = 16;

/// The kinds of receivers that inherit a member of this name.
pub(crate) fn inheriting(name: &[u8]) -> u8 {
    let Ok(name) = std::str::from_utf8(name) else { return 0 };
    match name {
        "constructor"
        | "toString"
        | "toLocaleString"
        | "valueOf"
        | "hasOwnProperty"
        | "isPrototypeOf"
        | "propertyIsEnumerable"
        | "toSource"
        | "toJSON" => OBJECT | ARRAY | TEXT | NUMBER | BOOLEAN,
        _ if name.starts_with("__") => OBJECT | ARRAY | TEXT | NUMBER | BOOLEAN,
        "toExponential" | "toFixed" | "toPrecision" => NUMBER,
        "at" | "concat" | "includes" | "indexOf" | "lastIndexOf" | "slice" => ARRAY | TEXT,
        _ if is_of_arrays(name) => ARRAY,
        _ if is_of_texts(name) => TEXT,
        _ => 0,
    }
}

fn is_of_arrays(name: &str) -> bool {
    matches!(
        name,
        "copyWithin"
            | "entries"
            | "every"
            | "fill"
            | "filter"
            | "find"
            | "findIndex"
            | "findLast"
            | "findLastIndex"
            | "flat"
            | "flatMap"
            | "forEach"
            | "join"
            | "keys"
            | "map"
            | "pop"
            | "push"
            | "reduce"
            | "reduceRight"
            | "reverse"
            | "shift"
            | "some"
            | "sort"
            | "splice"
            | "toReversed"
            | "toSorted"
            | "toSpliced"
            | "unshift"
            | "values"
            | "with"
    )
}

fn is_of_texts(name: &str) -> bool {
    matches!(
        name,
        "anchor"
            | "big"
            | "blink"
            | "bold"
            | "charAt"
            | "charCodeAt"
            | "codePointAt"
            | "endsWith"
            | "fixed"
            | "fontcolor"
            | "fontsize"
            | "isWellFormed"
            | "italics"
            | "link"
            | "localeCompare"
            | "match"
            | "matchAll"
            | "normalize"
            | "padEnd"
            | "padStart"
            | "repeat"
            | "replace"
            | "replaceAll"
            | "search"
            | "small"
            | "split"
            | "startsWith"
            | "strike"
            | "sub"
            | "substr"
            | "substring"
            | "sup"
            | "toLocaleLowerCase"
            | "toLocaleUpperCase"
            | "toLowerCase"
            | "toUpperCase"
            | "toWellFormed"
            | "trim"
            | "trimEnd"
            | "trimLeft"
            | "trimRight"
            | "trimStart"
    )
}
