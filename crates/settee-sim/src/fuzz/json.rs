//! JSON for fuzzing: a generator of mostly valid texts, and an independent validator.

use super::source::Source;

/// Largest nesting depth of generated values.
const DEPTH_MAX: usize = 5;

/// Numbers near the limits of common types, and texts that are almost numbers.
const NUMBERS: [&str; 26] = [
    "0",
    "-0",
    "1",
    "-1",
    "7",
    "1.0",
    "-0.0",
    "1e3",
    "1E+2",
    "1.5e-7",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "170141183460469231731687303715884105728",
    "1e308",
    "1e999",
    "0.1",
    "123456789.125",
    "01",
    "+1",
    ".5",
];

/// Pieces of strings besides words, as they appear in the text.
const PIECES: [&str; 24] = [
    "a",
    "b",
    "Z",
    "0",
    " ",
    "_",
    "$",
    ".",
    "-",
    "/",
    "é",
    "\u{1F600}",
    "\\\"",
    "\\\\",
    "\\/",
    "\\n",
    "\\u0000",
    "\\u005f",
    "\\u00e9",
    "\\uD83D\\uDE00",
    "\\ud800",
    "\\uDE00",
    "\\x",
    "\u{7f}",
];

const SPACES: [&str; 4] = [" ", "\n", "\t", "\r\n  "];

impl Source<'_> {
    /// Returns a JSON text of any kind. Its names and strings are often the target's words. Sometimes it is
    /// slightly invalid.
    pub fn json(&mut self) -> String {
        let mut text = String::new();
        write_value(self, 0, &mut text);
        text
    }

    /// As [`Source::json`], but returns an object.
    pub fn json_object(&mut self) -> String {
        let mut text = String::new();
        write_object(self, 0, &mut text);
        text
    }
}

fn space(source: &mut Source<'_>, out: &mut String) {
    if source.below(8) == 0 {
        out.push_str(source.pick(&SPACES));
    }
}

fn write_value(source: &mut Source<'_>, depth: usize, out: &mut String) {
    space(source, out);
    match source.below(if depth < DEPTH_MAX { 10 } else { 7 }) {
        0 => out.push_str(source.pick(&["null", "true", "false"])),
        1 | 2 => out.push_str(source.pick(&NUMBERS)),
        3..=6 => write_string(source, out),
        7 => write_array(source, depth, out),
        _ => write_object(source, depth, out),
    }
    space(source, out);
}

fn write_array(source: &mut Source<'_>, depth: usize, out: &mut String) {
    out.push('[');
    for index in 0..source.below(5) {
        if index > 0 {
            out.push(',');
        }
        write_value(source, depth + 1, out);
    }
    out.push(']');
}

fn write_object(source: &mut Source<'_>, depth: usize, out: &mut String) {
    out.push('{');
    for index in 0..source.below(5) {
        if index > 0 {
            out.push(',');
        }
        space(source, out);
        write_string(source, out);
        space(source, out);
        out.push(':');
        write_value(source, depth + 1, out);
    }
    out.push('}');
}

/// Writes a string, often an unescaped word: words with quotes make the text invalid.
fn write_string(source: &mut Source<'_>, out: &mut String) {
    out.push('"');
    match source.below(3) {
        0 => {
            for _ in 0..source.below(6) {
                // The pieces that make a string invalid are the rarest.
                let piece_count = if source.below(8) == 0 { PIECES.len() } else { 20 };
                out.push_str(PIECES[source.below(piece_count)]);
            }
        }
        _ => out.push_str(source.word()),
    }
    out.push('"');
}

/// Properties of a valid JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonFacts {
    /// First byte of the value, which determines its type.
    pub first: u8,
    /// Nesting depth of arrays and objects.
    pub depth: usize,
    /// Whether a string has half a surrogate pair.
    pub has_half_pairs: bool,
    /// Whether there is white space between tokens.
    pub has_space: bool,
    /// Whether a number exceeds the range of a double.
    pub has_infinite: bool,
}

/// Validates a text by RFC 8259. Returns `None` if it isn't JSON in UTF-8. Shares no code with the parsers
/// that are tested against it.
pub fn check_json(text: &[u8]) -> Option<JsonFacts> {
    std::str::from_utf8(text).ok()?;
    let mut facts =
        JsonFacts { first: 0, depth: 0, has_half_pairs: false, has_space: false, has_infinite: false };
    let mut validator = Validator { text, at: 0, facts: &mut facts };
    let mut open: Vec<u8> = Vec::new();
    validator.skip_space();
    validator.facts.first = validator.peek()?;
    loop {
        // A value begins here.
        match validator.peek()? {
            b'{' => {
                validator.begin(b'{', &mut open);
                if validator.peek()? != b'}' {
                    validator.name()?;
                    continue;
                }
            }
            b'[' => {
                validator.begin(b'[', &mut open);
                if validator.peek()? != b']' {
                    continue;
                }
            }
            b'"' => validator.string()?,
            b't' => validator.literal(b"true")?,
            b'f' => validator.literal(b"false")?,
            b'n' => validator.literal(b"null")?,
            _ => validator.number()?,
        }
        // A value, or an empty pair of brackets, ended here.
        loop {
            validator.skip_space();
            match (open.last(), validator.peek()) {
                (None, None) => return Some(facts),
                (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')) => {
                    validator.at += 1;
                    open.pop();
                }
                (Some(bracket), Some(b',')) => {
                    let is_object = *bracket == b'{';
                    validator.at += 1;
                    validator.skip_space();
                    if is_object {
                        validator.name()?;
                    }
                    break;
                }
                _ => return None,
            }
        }
    }
}

struct Validator<'a> {
    text: &'a [u8],
    at: usize,
    facts: &'a mut JsonFacts,
}

impl Validator<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
            self.facts.has_space = true;
        }
    }

    fn begin(&mut self, bracket: u8, open: &mut Vec<u8>) {
        self.at += 1;
        open.push(bracket);
        self.facts.depth = self.facts.depth.max(open.len());
        self.skip_space();
    }

    fn name(&mut self) -> Option<()> {
        self.string()?;
        self.skip_space();
        (self.next()? == b':').then_some(())?;
        self.skip_space();
        Some(())
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn string(&mut self) -> Option<()> {
        (self.next()? == b'"').then_some(())?;
        // Whether the first half of a surrogate pair precedes.
        let mut is_half = false;
        loop {
            let unit = match self.next()? {
                b'"' => break,
                b'\\' => match self.next()? {
                    b'u' => self.unit()?,
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 0,
                    _ => return None,
                },
                0..=0x1F => return None,
                _ => 0,
            };
            let is_second = (0xDC00..0xE000).contains(&unit);
            self.facts.has_half_pairs |= is_half != is_second;
            is_half = (0xD800..0xDC00).contains(&unit);
        }
        self.facts.has_half_pairs |= is_half;
        Some(())
    }

    fn unit(&mut self) -> Option<u32> {
        let mut unit = 0;
        for _ in 0..4 {
            unit = unit * 16 + char::from(self.next()?).to_digit(16)?;
        }
        Some(unit)
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let number = std::str::from_utf8(&self.text[start..self.at]).ok()?;
        self.facts.has_infinite |= number.parse::<f64>().ok()?.is_infinite();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_validator_accepts_json_and_nothing_else() {
        for good in [
            "{}",
            " [ ] ",
            "0",
            "-0.5e+7",
            "\"\\u00e9\\n\"",
            "{\"a\":[1,{\"b\":null}],\"c\":true}",
            "[[],[[]],{}]",
        ] {
            assert!(check_json(good.as_bytes()).is_some(), "{good}");
        }
        for bad in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{1:2}",
            "01",
            "+1",
            ".5",
            "1.",
            "1e",
            "-",
            "nul",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\n\"",
            "\"",
            "[1 2]",
            "[}",
            "1 2",
            "{\"a\":1]",
            "'a'",
            "[,1]",
        ] {
            assert_eq!(check_json(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(check_json(b"\"\xff\""), None);
    }

    #[test]
    fn the_validator_reports_depth_half_pairs_and_white_space() {
        let facts = |text: &str| check_json(text.as_bytes()).unwrap();
        assert_eq!((facts("[[1],[]]").depth, facts("1").depth), (2, 0));
        for half in ["\"\\ud800\"", "\"\\ud800x\\udc00\"", "\"\\udc00\\ud800\"", "\"\\ud800\\ud800\\udc00\""]
        {
            assert!(facts(half).has_half_pairs, "{half}");
        }
        assert!(!facts("\"\\ud83d\\uDE00\\ud83d\\uDE00\"").has_half_pairs);
        assert!(facts("[1, 2]").has_space && !facts("[\" \"]").has_space);
    }
}
