//! The JSON text that `loop.js`'s entry points return.

use serde_json::value::RawValue;

use crate::error::{Error, Stop};
use crate::limits::Limits;

/// A successful answer: a status, and values as JSON text.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: String,
    pub(crate) values: Vec<String>,
}

impl Answer {
    /// Splits `[status, value, …]`.
    pub(crate) fn parse(text: &str, limits: &Limits) -> Result<Answer, Error> {
        let malformed = |e: serde_json::Error| Error::Engine(format!("malformed answer: {e}"));
        let parts: Vec<&RawValue> = serde_json::from_str(text).map_err(malformed)?;
        let mut parts = parts.into_iter().map(RawValue::get);
        let status: String = serde_json::from_str(parts.next().unwrap_or("null")).map_err(malformed)?;
        let values: Vec<String> = parts.map(str::to_owned).collect();
        match status.as_str() {
            "memory" => Err(Stop::Memory { limit: limits.memory_bytes }.into()),
            "error" => {
                let text = |at: usize| values.get(at).map_or("null", String::as_str);
                Err(Error::Raised { error: plain(text(0)), reason: plain(text(1)) })
            }
            _ => Ok(Answer { status, values }),
        }
    }

    /// The value at `index`, `null` if there is none.
    pub(crate) fn take(&mut self, index: usize) -> String {
        self.values.get_mut(index).map(std::mem::take).unwrap_or_else(|| "null".to_owned())
    }
}

/// Replaces the escapes of lone surrogates in JSON text by that of the replacement character: they are no
/// Unicode text, and other parsers refuse them. The engine writes pairs without escapes.
pub(crate) fn well_formed(mut json: String) -> String {
    let mut at = 0;
    while let Some(found) = json.get(at..).and_then(|rest| rest.find('\\')) {
        let begin = at + found;
        let escape = json.as_bytes().get(begin..begin + SURROGATE.len());
        at = begin + 2;
        if escape.is_some_and(|e| e.starts_with(br"\ud") && matches!(e[3], b'8' | b'9' | b'a'..=b'f')) {
            json.replace_range(begin..begin + SURROGATE.len(), r"\ufffd");
        }
    }
    json
}

/// As long as every escape of a surrogate, which are `\ud800` to `\udfff`.
const SURROGATE: &str = r"\ud800";

/// A string's content, or the JSON text of another value. An error object has no members in JSON; CouchDB
/// shows an empty object as `{[]}`.
fn plain(json: &str) -> String {
    match serde_json::from_str::<String>(json) {
        Ok(text) => text,
        Err(_) if json == "{}" => "{[]}".to_owned(),
        Err(_) => json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_escapes_of_surrogates_are_replaced() {
        for (json, expected) in [
            (r#""a""#, r#""a""#),
            (r#""\ud800x\udfff""#, r#""\ufffdx\ufffd""#),
            (r#""\\ud800\n\u0000""#, r#""\\ud800\n\u0000""#),
            (r#""\\\ud800\ud7ff é""#, r#""\\\ufffd\ud7ff é""#),
            (r#""\"#, r#""\"#),
        ] {
            assert_eq!(well_formed(json.to_owned()), expected);
        }
    }
}
