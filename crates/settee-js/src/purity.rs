//! Which map functions cannot change a document, so that freezing it is superfluous.
//!
//! Freezing a document costs as much as parsing it. Without it a function behaves the same if it writes no
//! member, and gets no hold of a built-in that writes or that tells frozen objects from others. This module
//! accepts a source by its tokens alone and rejects whatever it does not know; a rejected function gets frozen
//! documents.
//!
//! The argument, by construct:
//! - An assignment, `++` or `--` has a plain name as its target; no destructuring, `delete` or accessor.
//! - A call is to a known global (never shadowed), or to a method whose name is in [`METHODS`]. No object gets
//!   a member with such a name, except from a document, where no member is a function. The built-in methods of
//!   these names change nothing.
//! - Methods that call back get a function written in place, whose code is checked too, or `emit`.
//! - Names that reach more ([`BANNED`]) do not occur, in strings neither. What a computed member
//!   gives may be any built-in, but as a value it cannot be called.

/// Names that may not occur, as a name, a member or a string.
const BANNED: &[&str] = &[
    "eval",
    "Function",
    "with",
    "this",
    "arguments",
    "class",
    "delete",
    "async",
    "await",
    "yield",
    "import",
    "require",
    "super",
    "constructor",
    "prototype",
    "__proto__",
    "__defineGetter__",
    "__defineSetter__",
    "call",
    "apply",
    "bind",
    "globalThis",
    "Object",
    "Reflect",
    "Proxy",
    "Symbol",
    "Array",
    "push",
    "pop",
    "shift",
    "unshift",
    "splice",
    "sort",
    "reverse",
    "fill",
    "copyWithin",
    "get",
    "set",
];

/// Globals that may be called, and only called.
const CALLABLE: &[&str] = &[
    "emit",
    "isArray",
    "sum",
    "toJSON",
    "log",
    "String",
    "Number",
    "Boolean",
    "parseInt",
    "parseFloat",
    "isNaN",
    "isFinite",
];

/// Methods that change neither their receiver nor their arguments, whatever built-in object the receiver is.
const METHODS: &[&str] = &[
    "concat",
    "slice",
    "substr",
    "substring",
    "indexOf",
    "lastIndexOf",
    "includes",
    "join",
    "split",
    "charAt",
    "charCodeAt",
    "toLowerCase",
    "toUpperCase",
    "trim",
    "toString",
    "hasOwnProperty",
    "startsWith",
    "endsWith",
    "getTime",
    "getFullYear",
    "getMonth",
    "getDate",
    "getDay",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getUTCFullYear",
    "getUTCMonth",
    "getUTCDate",
    "getUTCHours",
    "getUTCMinutes",
    "getUTCSeconds",
    "toISOString",
    "toFixed",
    "floor",
    "ceil",
    "round",
    "abs",
    "max",
    "min",
    "stringify",
    "isArray",
    "repeat",
];

/// Methods that call their first argument.
const CALLING_METHODS: &[&str] =
    &["forEach", "map", "filter", "some", "every", "reduce", "find", "findIndex"];

/// Operators, the longest first.
const OPERATORS: &[&str] = &[
    ">>>=", "===", "!==", "**=", "<<=", ">>=", ">>>", "&&=", "||=", "??=", "...", "==", "!=", "<=", ">=",
    "=>", "&&", "||", "??", "?.", "++", "--", "+=", "-=", "*=", "%=", "&=", "|=", "^=", "**", "<<", ">>",
];

/// Operators that end in `=` and assign nothing.
const COMPARISONS: &[&str] = &["===", "!==", "==", "!=", "<=", ">="];

/// Keywords that a parenthesis may follow without a call.
const BEFORE_PARENTHESIS: &[&str] = &[
    "if",
    "for",
    "while",
    "switch",
    "catch",
    "return",
    "typeof",
    "in",
    "of",
    "case",
    "do",
    "else",
    "void",
    "function",
    "throw",
    "instanceof",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    Text(&'a str),
    Number,
    Sign(&'a str),
    End,
}

/// Whether no call of the function can change a document, or tell whether it is frozen.
pub(crate) fn keeps_documents(source: &str) -> bool {
    let Some(tokens) = tokens(source) else { return false };
    (0..tokens.len()).all(|at| is_harmless(&Window { tokens: &tokens, at }))
}

/// The tokens around one of them.
struct Window<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
}

impl<'a> Window<'a> {
    fn get(&self, offset: isize) -> Token<'a> {
        let at = self.at.checked_add_signed(offset);
        at.and_then(|at| self.tokens.get(at)).copied().unwrap_or(Token::End)
    }

    /// Whether the token at `offset` is a name that is not a member of something.
    fn is_plain_name(&self, offset: isize) -> bool {
        let is_name = matches!(self.get(offset), Token::Name(n) if !CALLABLE.contains(&n) && !is_method(n));
        is_name && self.get(offset - 1) != Token::Sign(".")
    }
}

fn is_method(name: &str) -> bool {
    METHODS.contains(&name) || CALLING_METHODS.contains(&name)
}

fn is_harmless(window: &Window<'_>) -> bool {
    match window.get(0) {
        Token::Name(name) if window.get(-1) == Token::Sign(".") => is_harmless_member(window, name),
        Token::Name(name) => is_harmless_name(window, name),
        // A string may be a member's name.
        Token::Text(text) => {
            !BANNED.contains(&text) && (!is_method(text) || window.get(1) != Token::Sign(":"))
        }
        Token::Sign(sign) => is_harmless_sign(window, sign),
        Token::Number | Token::End => true,
    }
}

fn is_harmless_member(window: &Window<'_>, name: &str) -> bool {
    if BANNED.contains(&name) {
        return false;
    }
    if window.get(1) != Token::Sign("(") {
        return true;
    }
    METHODS.contains(&name) || (CALLING_METHODS.contains(&name) && calls_back_in_place(window))
}

/// Whether the first argument of the call at hand is a function written in place, or `emit`.
fn calls_back_in_place(window: &Window<'_>) -> bool {
    match (window.get(2), window.get(3)) {
        (Token::Name("function"), _) | (Token::Name(_), Token::Sign("=>")) => true,
        (Token::Name("emit"), Token::Sign(")")) => true,
        (Token::Sign("("), _) => {
            let mut at = 3;
            while matches!(window.get(at), Token::Name(_) | Token::Sign(",")) {
                at += 1;
            }
            window.get(at) == Token::Sign(")") && window.get(at + 1) == Token::Sign("=>")
        }
        _ => false,
    }
}

fn is_harmless_name(window: &Window<'_>, name: &str) -> bool {
    let (before, after) = (window.get(-1), window.get(1));
    if BANNED.contains(&name) || is_method(name) && !CALLABLE.contains(&name) {
        return false;
    }
    if CALLABLE.contains(&name) {
        let called_back = name == "emit"
            && after == Token::Sign(")")
            && before == Token::Sign("(")
            && matches!(window.get(-2), Token::Name(n) if CALLING_METHODS.contains(&n))
            && window.get(-3) == Token::Sign(".");
        return called_back || (after == Token::Sign("(") && before != Token::Name("function"));
    }
    match name {
        "new" => after == Token::Name("Date"),
        "Date" => matches!(before, Token::Name("new")) || after == Token::Sign("."),
        "for" => matches!(
            (after, window.get(2), window.get(3)),
            (Token::Sign("("), Token::Sign(";"), _)
                | (Token::Sign("("), Token::Name("var" | "let" | "const"), Token::Name(_))
                | (Token::Sign("("), Token::Name(_), Token::Sign("=") | Token::Name("in" | "of"))
        ),
        _ if after == Token::Sign("(") => {
            BEFORE_PARENTHESIS.contains(&name) || before == Token::Name("function")
        }
        _ => true,
    }
}

fn is_harmless_sign(window: &Window<'_>, sign: &str) -> bool {
    match sign {
        "?." => false,
        "++" | "--" => {
            let member = |t| matches!(t, Token::Sign("." | "[" | "(" | "?."));
            let operand = |t| matches!(t, Token::Name(_) | Token::Sign("(" | "["));
            let postfix = window.is_plain_name(-1) && !operand(window.get(1));
            let prefix = window.is_plain_name(1) && !member(window.get(2)) && !operand(window.get(-1));
            postfix || (prefix && !matches!(window.get(-1), Token::Sign(")" | "]")))
        }
        // The value of an expression, called.
        "(" => !matches!(window.get(-1), Token::Sign("]" | ")") | Token::Text(_) | Token::Number),
        // A computed name of a member.
        ":" => window.get(-1) != Token::Sign("]"),
        _ if sign.ends_with('=') && !COMPARISONS.contains(&sign) => window.is_plain_name(-1),
        _ => true,
    }
}

/// The tokens of a source. None if it has a regular expression, a division, a template, an escape outside of
/// simple strings, or a character that is not ASCII outside of strings and comments.
fn tokens(source: &str) -> Option<Vec<Token<'_>>> {
    if source.contains("<!--") || source.contains("-->") || source.contains(['\u{2028}', '\u{2029}']) {
        return None;
    }
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &source[at..];
        let length = match bytes[at] {
            b' ' | b'\t' | b'\n' | b'\r' => 1,
            b'/' if rest.starts_with("//") => rest.find(['\n', '\r']).unwrap_or(rest.len()),
            b'/' if rest.starts_with("/*") => rest[2..].find("*/")? + 4,
            quote @ (b'"' | b'\'') => {
                let length = rest[1..].find([char::from(quote), '\\', '\n', '\r'])? + 2;
                if !rest[..length].ends_with(char::from(quote)) {
                    return None;
                }
                tokens.push(Token::Text(&rest[1..length - 1]));
                length
            }
            b'0'..=b'9' => {
                tokens.push(Token::Number);
                number_length(rest)
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' => {
                let length = word_length(rest);
                tokens.push(Token::Name(&rest[..length]));
                length
            }
            b'/' | b'\\' | b'`' | b'#' | b'@' => return None,
            byte if byte.is_ascii_punctuation() => {
                let length = OPERATORS.iter().find(|o| rest.starts_with(**o)).map_or(1, |o| o.len());
                tokens.push(Token::Sign(&rest[..length]));
                length
            }
            _ => return None,
        };
        at += length;
    }
    Some(tokens)
}

fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$').unwrap_or(text.len())
}

/// Digits, and a fraction that begins with a digit.
fn number_length(text: &str) -> usize {
    let whole = word_length(text);
    match text[whole..].strip_prefix('.') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => whole + 1 + word_length(rest),
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    //! Goal: common map functions are accepted, and every way to write is rejected.
    //! Method: lists. That rejection suffices is tested from outside, in `tests/map.rs`.

    use super::keeps_documents;

    #[test]
    fn common_functions_are_accepted() {
        for source in [
            "function (doc) { emit(doc.x, null); }",
            "doc => { if (doc.type === 'post' && doc.tags) doc.tags.forEach(function (t) { emit([t, doc.at], 1); }); }",
            "function(doc) {\n  // all\n  for (var i = 0; i < doc.list.length; i++) { emit(doc.list[i], {n: i}); }\n}",
            "function (d) { var day = new Date(d.at).getTime(); var n = 0; n += 1; emit(String(day), n); }",
            "function (doc) { doc.tags.forEach(emit); for (var k in doc) emit(k, doc[k]); }",
            "function (doc) { if (doc.name.toLowerCase().indexOf('a') >= 0) { emit(doc._id, doc); } }",
        ] {
            assert!(keeps_documents(source), "{source}");
        }
    }

    #[test]
    fn writers_are_rejected() {
        for body in [
            "doc.a = 1",
            "doc['a'] = 1",
            "doc.a++",
            "++doc.a",
            "--doc [0]",
            "delete doc.a",
            "doc.l.push(1)",
            "[doc.a] = [1]",
            "({x: doc.a} = y)",
            "for (doc.a of x);",
            "for (doc[0] in x);",
            "(doc.a) = 1",
            "f(doc)",
            "doc.f(1)",
            "doc['f'](1)",
            "x.forEach(f, doc)",
            "x.forEach((f), doc)",
            "`${doc.a = 1}`",
            "/a/.test(doc.a = 1)",
            "doc?.l.push(1)",
            "var emit = f",
            "function emit(x) {}",
            "emit => 1",
            "var x = {concat: f}; x.concat(doc)",
            "({['concat']: f}).concat(doc)",
            "({'concat': f}).concat(doc)",
            "({concat}).concat(doc)",
            "1..constructor.constructor('doc', '')(doc)",
            "x <!-- '\n doc.a = 1 //'",
            "doc.a ||= 1",
            "doc.a **= 2",
            "\\u0064oc.a = 1",
            "new Set([1])",
            "with (doc) a = 1",
            "a\n++\ndoc.x",
            "x['con\\x73tructor']",
            "(0, f)(doc)",
            "function (emit) { }",
            "catch (emit) {}",
            "var a, emit;",
            "({get concat() { return f; }}).concat(doc)",
            "Object.isFrozen(doc)",
            "a ? x : doc.l.sort()",
        ] {
            assert!(!keeps_documents(&format!("function (doc) {{ {body}; }}")), "{body}");
        }
    }
}
